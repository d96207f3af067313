"""Recent batches of all partitions in memory, for readers that are near the end.

First in, first out over the whole broker, bounded by bytes: what was appended last is what live
readers want next.
"""

from bisect import bisect_right
from collections import deque

from tailrace_broker.codec.batch import StoredBatch

# What a cached batch takes in memory beside its bytes: header, buffers, list slots (measured).
BATCH_OVERHEAD_BYTES = 1024


class RecentBatches:
    """The cached end of one partition's log: consecutive batches."""

    def __init__(self) -> None:
        self._batches: list[StoredBatch | None] = []
        self._base_offsets: list[int] = []
        self._first = 0  # before it: evicted, not yet cut off

    def read(self, offset: int, max_bytes: int) -> list[StoredBatch]:
        """Batches from the one that holds `offset`, up to `max_bytes` but at least one, or none."""
        index = bisect_right(self._base_offsets, offset, lo=self._first) - 1
        if index < self._first:
            return []
        taken: list[StoredBatch] = []
        taken_bytes = 0
        for position in range(index, len(self._batches)):
            batch = self._batches[position]
            assert batch is not None
            taken_bytes += batch.header.batch_bytes
            if taken and taken_bytes > max_bytes:
                break
            taken.append(batch)
        return taken

    def find_time(self, offset: int, timestamp_us: int) -> StoredBatch | None:
        """The first batch of this time or later, from the one that holds `offset` on.

        None also when memory does not reach back to `offset`.
        """
        index = bisect_right(self._base_offsets, offset, lo=self._first) - 1
        if index < self._first:
            return None
        for position in range(index, len(self._batches)):
            batch = self._batches[position]
            assert batch is not None
            if batch.header.largest_timestamp_us >= timestamp_us:
                return batch
        return None

    def append(self, batch: StoredBatch) -> None:
        """Add the batch that follows the last."""
        last = self._batches[-1] if self._batches else None
        assert last is None or last.header.end_offset == batch.header.base_offset
        self._batches.append(batch)
        self._base_offsets.append(batch.header.base_offset)

    def evict_first(self) -> None:
        """Forget the oldest batch; O(1) amortised."""
        self._batches[self._first] = None
        self._first += 1
        if self._first * 2 >= len(self._batches):
            del self._batches[: self._first]
            del self._base_offsets[: self._first]
            self._first = 0


class BatchCache:
    """Bounds the recent batches of all partitions together."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        # Two, as a pair of each batch would be one more object for the garbage collector.
        self._order: deque[RecentBatches] = deque()
        self._sizes_bytes: deque[int] = deque()
        self.cached_bytes = 0

    def add(self, recent: RecentBatches, batch: StoredBatch) -> None:
        """Cache a batch at the end of its partition's, evicting the oldest of any partition."""
        size_bytes = batch.header.batch_bytes + BATCH_OVERHEAD_BYTES
        recent.append(batch)
        self._order.append(recent)
        self._sizes_bytes.append(size_bytes)
        self.cached_bytes += size_bytes
        while self.cached_bytes > self._capacity_bytes:
            self._order.popleft().evict_first()
            self.cached_bytes -= self._sizes_bytes.popleft()
