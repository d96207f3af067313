"""Aligned buffers, as O_DIRECT wants them (open(2)), and the memory of answers, in fixed quotas.

A broker's memory has six quotas. None takes from another: readers that do not take their answers
do not stop producers, nor the other way round; neither stops replication.

| quota    | setting (`TAILRACE_…`)  | what it holds                            | when it is full  |
|----------|-------------------------|------------------------------------------|------------------|
| produce  | `PRODUCE_MEMORY_BYTES`  | bodies in flight                         | 429 at once      |
| receive  | 4 MiB a leader          | batches that a follower has not written  | the leader waits |
| I/O      | `IO_BUFFER_BYTES`       | buffers of threads at work               | the thread waits |
| read     | `READ_MEMORY_BYTES`     | what disk reads fill, answers until sent | 503 after a time |
| catch-up | 40 MiB                  | what is read for followers, until sent   | the read waits   |
| cache    | `CACHE_BYTES`           | recent batches                           | the oldest goes  |

Here are the I/O, the read and the catch-up quota; the credits of `net/replication/link.py` are the
receive quota. Nothing deadlocks: a thread holds one buffer at a time; a thread that reads for an
answer or a follower never waits for memory, it fails; who then waits holds none.
"""

import mmap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tailrace_broker.model.errors import ReadMemoryFullError

SMALLEST_BYTES = 4096
# Sizes of buffers from one power of two to the next: none is over a quarter too large.
SIZES_PER_DOUBLING = 4


class BufferPool:
    """The I/O quota, the read quota and the catch-up quota."""

    def __init__(
        self, io_bytes: int, read_bytes: int | None = None, catch_up_bytes: int | None = None
    ) -> None:
        """None: as many again."""
        self._io = Quota(io_bytes)
        self.read = Quota(io_bytes if read_bytes is None else read_bytes)
        self.catch_up = Quota(io_bytes if catch_up_bytes is None else catch_up_bytes)

    @contextmanager
    def lend(self, size_bytes: int) -> Iterator[memoryview]:
        """A buffer of at least `size_bytes` for the block, contents undefined; waits for room."""
        wanted_bytes = buffer_bytes(size_bytes)
        assert wanted_bytes <= self._io.capacity_bytes, (size_bytes, self._io.capacity_bytes)
        buffer = self._io.map(wanted_bytes, waits=True)
        try:
            with memoryview(buffer) as view:
                yield view
        finally:
            self._io.give_back(len(buffer), buffer)


class Lease:
    """A part of a quota; it goes back with the last reference to this."""

    __slots__ = ("_quota", "size_bytes")

    def __init__(self, quota: "Quota") -> None:
        self._quota = quota
        self.size_bytes = 0

    def resize(self, size_bytes: int) -> None:
        """Hold so much from now on, at most the whole quota.

        On ReadMemoryFullError it is what it was.
        """
        size_bytes = min(size_bytes, self._quota.capacity_bytes)
        if size_bytes > self.size_bytes:
            self._quota.take(size_bytes - self.size_bytes)
        else:
            self._quota.give_back(self.size_bytes - size_bytes)
        self.size_bytes = size_bytes

    def __del__(self) -> None:
        """Give the memory back, in whichever thread."""
        if self.size_bytes:
            self._quota.give_back(self.size_bytes)


def tied(buffer: bytes | memoryview | mmap.mmap, kept: object) -> memoryview:
    """A view of `buffer` that keeps `kept` alive as long as there is a view of this view."""
    array = np.frombuffer(buffer, np.uint8).view(_Tied)
    array.kept = kept
    return array.data


def buffer_bytes(size_bytes: int) -> int:
    """The size of the buffer for so many bytes."""
    doubling_bytes = 1 << (max(size_bytes, 1) - 1).bit_length() >> 1
    step_bytes = max(SMALLEST_BYTES, doubling_bytes // SIZES_PER_DOUBLING)
    return max(1, -(-size_bytes // step_bytes)) * step_bytes


class _Tied(np.ndarray[Any, np.dtype[np.uint8]]):
    """A memoryview keeps the array that it is of; the array keeps what it was given."""

    kept: object


class _Loan:
    """Returns a buffer when it is gone itself."""

    __slots__ = ("_buffer", "_quota")

    def __init__(self, quota: "Quota", buffer: mmap.mmap) -> None:
        self._quota = quota
        self._buffer = buffer

    def __del__(self) -> None:
        self._quota.give_back(len(self._buffer), self._buffer)


class Quota:
    """Counts what is taken, and keeps freed buffers for reuse: a busy broker neither asks the
    kernel for zeroed pages nor leaves holes in its heap. They make room for what else is needed.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        # Called after each return, in whichever thread that is.
        self.on_returned: Callable[[], None] = lambda: None
        self._free: dict[int, list[mmap.mmap]] = {}
        self._free_bytes = 0
        # Its lock is reentrant: a cycle of garbage with a view may be collected in here.
        self._changed = threading.Condition()

    def pin(self, size_bytes: int) -> memoryview:
        """A buffer that goes back when this and all views of it are gone. ReadMemoryFullError."""
        buffer = self.map(buffer_bytes(size_bytes), waits=False)
        return tied(buffer, _Loan(self, buffer))

    def lease(self, size_bytes: int = 0) -> Lease:
        """So much of it for an answer that is made in memory. ReadMemoryFullError."""
        lease = Lease(self)
        lease.resize(size_bytes)
        return lease

    def take(self, size_bytes: int) -> None:
        """ReadMemoryFullError when there is no room for so much now."""
        with self._changed:
            if not self._make_room(size_bytes):
                raise self._full(size_bytes)
            self.used_bytes += size_bytes

    def map(self, size_bytes: int, *, waits: bool) -> mmap.mmap:
        """A buffer of this size, or a free one of up to the double."""
        with self._changed:
            while True:
                buffer = self._free_buffer(size_bytes)
                if buffer is not None:
                    return buffer
                if self._make_room(size_bytes):
                    self._free.setdefault(size_bytes, [])  # now: its collector adds no key
                    self.used_bytes += size_bytes
                    return mmap.mmap(-1, size_bytes)
                if not waits:
                    raise self._full(size_bytes)
                self._changed.wait()

    def give_back(self, size_bytes: int, buffer: mmap.mmap | None = None) -> None:
        """Give memory back; a buffer is kept for the next that needs one."""
        with self._changed:
            self.used_bytes -= size_bytes
            assert self.used_bytes >= 0
            if buffer is not None:
                self._free[size_bytes].append(buffer)
                self._free_bytes += size_bytes
            self._changed.notify_all()
        self.on_returned()

    def _free_buffer(self, size_bytes: int) -> mmap.mmap | None:
        for free_bytes in sorted(self._free):
            if size_bytes <= free_bytes <= 2 * size_bytes and self._free[free_bytes]:
                self._free_bytes -= free_bytes
                self.used_bytes += free_bytes
                return self._free[free_bytes].pop()
        return None

    def _make_room(self, size_bytes: int) -> bool:
        """The largest free buffers go back to the kernel, as far as needed; False: none is left."""
        while self.used_bytes + self._free_bytes + size_bytes > self.capacity_bytes:
            largest_bytes = max((size for size, free in self._free.items() if free), default=0)
            if not largest_bytes:
                return False
            # Not closed: the traceback of an error may still hold a view of it.
            self._free[largest_bytes].pop()
            self._free_bytes -= largest_bytes
        return True

    def _full(self, size_bytes: int) -> ReadMemoryFullError:
        return ReadMemoryFullError(
            f"{self.used_bytes} of {self.capacity_bytes} bytes are in use, {size_bytes} are needed"
        )
