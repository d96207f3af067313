"""The disk: direct files, partition logs, the broker's own files. Knows nothing of HTTP."""
