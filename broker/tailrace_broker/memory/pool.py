"""A bounded pool of page-aligned buffers, as O_DIRECT wants them (open(2)).

Buffers are anonymous mappings in powers of two; freed ones are kept for reuse, so that a busy
broker neither asks the kernel for zeroed pages nor leaves holes in its heap.
"""

import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SMALLEST_BYTES = 4096


class BufferPool:
    """Lends buffers to threads; waits when `capacity_bytes` are lent.

    A thread holds one buffer at a time, so waiting cannot deadlock.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._free: dict[int, list[mmap.mmap]] = {}
        self._mapped_bytes = 0
        self._changed = threading.Condition()

    @contextmanager
    def lend(self, size_bytes: int) -> Iterator[memoryview]:
        """A buffer of at least `size_bytes` (and so at most twice that), contents undefined."""
        class_bytes = max(SMALLEST_BYTES, 1 << (size_bytes - 1).bit_length())
        assert class_bytes <= self.capacity_bytes, (size_bytes, self.capacity_bytes)
        buffer = self._take(class_bytes)
        try:
            with memoryview(buffer) as view:
                yield view
        finally:
            with self._changed:
                self._free.setdefault(class_bytes, []).append(buffer)
                self._changed.notify_all()

    def _take(self, class_bytes: int) -> mmap.mmap:
        with self._changed:
            while True:
                free = self._free.get(class_bytes)
                if free:
                    return free.pop()
                if self._mapped_bytes + class_bytes <= self.capacity_bytes:
                    self._mapped_bytes += class_bytes
                    return mmap.mmap(-1, class_bytes)
                if not self._unmap_one():
                    self._changed.wait()

    def _unmap_one(self) -> bool:
        """Give the largest free buffer back to the kernel; False when none is free."""
        for class_bytes in sorted(self._free, reverse=True):
            if self._free[class_bytes]:
                # Not closed: the traceback of an error may still hold a view of it.
                self._free[class_bytes].pop()
                self._mapped_bytes -= class_bytes
                return True
        return False
