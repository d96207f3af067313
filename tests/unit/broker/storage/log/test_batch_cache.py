import random
from collections import deque
from collections.abc import Iterable

from tailrace.wire import HEADER, BatchHeader
from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.storage.log.batch_cache import (
    BATCH_OVERHEAD_BYTES,
    BatchCache,
    RecentBatches,
)
from tests.support.storage.batches import Event, batch_of


def stored(base_offset: int, *values: bytes) -> StoredBatch:
    raw = batch_of([Event(value) for value in values], base_offset=base_offset)
    return StoredBatch(BatchHeader._make(HEADER.unpack(raw[: HEADER.size])), (raw,))


BATCHES = [stored(0, b"0", b"1"), stored(2, b"2"), stored(3, b"3", b"4", b"5"), stored(6, b"6")]


def memory_bytes(batches: Iterable[StoredBatch]) -> int:
    """What the cache counts for them."""
    return sum(batch.header.batch_bytes + BATCH_OVERHEAD_BYTES for batch in batches)


def test_recent_batches_are_read_from_the_one_that_holds_the_offset() -> None:
    recent = RecentBatches()
    for batch in BATCHES:
        recent.append(batch)

    assert recent.read(0, 10_000) == BATCHES
    assert recent.read(4, 10_000) == BATCHES[2:]
    assert recent.read(4, 1) == [BATCHES[2]]


def test_nothing_is_read_from_before_the_first_recent_batch() -> None:
    recent = RecentBatches()
    assert recent.read(0, 10_000) == []
    recent.append(BATCHES[2])
    assert recent.read(2, 10_000) == []


def test_the_oldest_batch_of_any_partition_leaves_first() -> None:
    cache = BatchCache(3 * max(memory_bytes([batch]) for batch in BATCHES))
    first, second = RecentBatches(), RecentBatches()
    cache.add(first, BATCHES[0])
    cache.add(second, BATCHES[0])
    cache.add(first, BATCHES[1])
    cache.add(second, BATCHES[1])

    assert first.read(0, 10_000) == []
    assert first.read(2, 10_000) == [BATCHES[1]]
    assert second.read(0, 10_000) == BATCHES[:2]


def test_a_cache_without_room_keeps_nothing() -> None:
    cache, recent = BatchCache(0), RecentBatches()
    for batch in BATCHES:
        cache.add(recent, batch)

    assert cache.cached_bytes == 0
    assert recent.read(6, 10_000) == []


def test_the_cache_holds_the_newest_batches_that_fit() -> None:
    generator = random.Random(3)
    capacity_bytes = 10 * memory_bytes(BATCHES[:1])
    cache = BatchCache(capacity_bytes)
    partitions = [RecentBatches() for _ in range(3)]
    added: list[list[StoredBatch]] = [[] for _ in partitions]
    newest: deque[tuple[int, StoredBatch]] = deque()
    for _ in range(300):
        index = generator.randrange(len(partitions))
        base_offset = added[index][-1].header.end_offset if added[index] else 0
        batch = stored(base_offset, *[b"x"] * generator.randint(1, 20))
        cache.add(partitions[index], batch)
        added[index].append(batch)
        newest.append((index, batch))
        while memory_bytes(batch for _, batch in newest) > capacity_bytes:
            newest.popleft()

        assert cache.cached_bytes == memory_bytes(batch for _, batch in newest)
        for index, recent in enumerate(partitions):
            kept = [batch for owner, batch in newest if owner == index]
            for position, batch in enumerate(added[index]):
                is_kept = position >= len(added[index]) - len(kept)
                assert recent.read(batch.header.base_offset, 1) == ([batch] if is_kept else [])
