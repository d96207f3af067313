"""Memory in fixed shares: page-aligned buffers for direct I/O, and what answers hold."""
