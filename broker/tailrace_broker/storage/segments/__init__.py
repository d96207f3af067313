"""A partition's files of batches."""
