"""The files of the ring's metadata."""
