"""The process's limit of open files, which connections and segments share."""

import resource

# Segments, listening sockets and what libraries open.
RESERVED_FILES = 1024


def raise_limit() -> int:
    """Raise the limit as far as an ordinary process may; return the limit then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def connections_max(wanted: int, open_files: int) -> int:
    """Return how many connections leave the reserve, at least one; `open_files` -1: no limit."""
    if open_files == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, open_files - RESERVED_FILES))
