"""Keeps freed memory in the process (glibc's malloc, mallopt(3)).

By default malloc maps each large block again and gives it back when freed. A broker that allocates
and frees a few megabytes a request then pays a page fault for every 4 KiB, a microsecond and more
each: half of the CPU of an NDJSON request (5.3 against 3.0 CPU s/GiB, docs/decisions/004).
"""

import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

# The largest that glibc takes; larger blocks are rare and bounded by the request limit.
_MAPPED_BLOCK_BYTES = 32 * 1024 * 1024
# Free memory kept at the end of the heap; bounds what an idle broker holds after a burst.
_KEPT_BYTES = 32 * 1024 * 1024


def keep_freed_memory() -> None:
    """Call once, before threads start. Does nothing where malloc is not glibc's."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return
    libc.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BLOCK_BYTES)
    libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    # One heap, so that what one thread freed serves the next; the interpreter runs one at a time.
    libc.mallopt(_M_ARENA_MAX, 1)
