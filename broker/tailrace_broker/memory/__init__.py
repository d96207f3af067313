"""Page-aligned buffers of a bounded pool, for direct I/O."""
