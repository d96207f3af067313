"""Files with direct I/O, and the threads and kernel calls that use them."""
