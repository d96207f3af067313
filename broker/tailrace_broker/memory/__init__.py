"""Memory in fixed quotas: page-aligned buffers for direct I/O, and what answers hold."""
