import os
import random
from pathlib import Path

import numpy as np
import pytest

from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.codec.segment import INDEX_INTERVAL_BYTES
from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.model.errors import CorruptBatchError, ReadFailedError, ReadMemoryFullError
from tailrace_broker.storage.files.direct_file import BLOCK_BYTES
from tests.support.storage.storage import MEBIBYTE, LogFiles, append, records_of


def segment_of(
    files: LogFiles, *writes: list[list[bytes]]
) -> tuple[SegmentState, list[StoredBatch]]:
    """A segment of these writes and its batches."""
    writer = files.writer()
    batches = [batch for write in writes for batch in append(writer, *write)]
    writer.close()
    return writer.segments[0], batches


def address_of(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def ends_of(batches: list[StoredBatch]) -> list[tuple[int, int]]:
    return [(batch.header.base_offset, batch.header.end_offset) for batch in batches]


def test_a_read_begins_with_the_batch_that_holds_the_offset(files: LogFiles) -> None:
    state, _ = segment_of(files, [[b"0", b"1"], [b"2", b"3", b"4"]], [[b"5"]])
    for offset, first in [(0, 0), (1, 0), (2, 2), (4, 2), (5, 5)]:
        assert ends_of(files.read(state, offset, end_offset=6))[0][0] == first
    assert ends_of(files.read(state, 3, end_offset=6)) == [(2, 5), (5, 6)]


def test_a_read_takes_what_fits_but_at_least_one_batch(files: LogFiles) -> None:
    state, batches = segment_of(files, [[b"0"], [b"1"]], [[b"2"]])
    sizes = [batch.header.batch_bytes for batch in batches]
    for max_bytes, count in [
        (1, 1),
        (sizes[0], 1),
        (sum(sizes[:2]) - 1, 1),
        (sum(sizes[:2]), 2),
        (sum(sizes) - 1, 2),
        (sum(sizes), 3),
    ]:
        assert len(files.read(state, 0, end_offset=3, max_bytes=max_bytes)) == count


def test_a_read_gives_nothing_from_the_end_offset_on(files: LogFiles) -> None:
    """There may be a write that is not durable yet."""
    state, _ = segment_of(files, [[b"0"]], [[b"1"]], [[b"2"]])
    assert ends_of(files.read(state, 0, end_offset=2)) == [(0, 1), (1, 2)]


def test_batches_are_read_whole_wherever_the_window_ends(files: LogFiles) -> None:
    generator = random.Random(11)
    sizes = [generator.choice([1, 500, 3_900, 5_000, 70_000, 300_000]) for _ in range(60)]
    values = [generator.randbytes(size) for size in sizes]
    state, _ = segment_of(files, *([[value]] for value in values))
    for offset in range(len(values)):
        for max_bytes in (1, generator.randint(1, MEBIBYTE)):
            batches = files.read(state, offset, end_offset=len(values), max_bytes=max_bytes)
            read = [record.value for record in records_of(batches)]
            assert read == values[offset : offset + len(batches)]


def test_a_batch_larger_than_all_bounds_is_read(files: LogFiles) -> None:
    large = os.urandom(3 * MEBIBYTE)
    state, _ = segment_of(files, [[b"0"], [large]], [[b"2"]])
    (batch,) = files.read(state, 1, end_offset=3, max_bytes=1)
    assert records_of([batch])[0].value == large


def test_a_read_starts_near_its_offset(files: LogFiles) -> None:
    """Damage far before it is not even seen."""
    writes = [[[os.urandom(BLOCK_BYTES)]] for _ in range(64)]
    state, _ = segment_of(files, *writes)
    assert state.position > 4 * INDEX_INTERVAL_BYTES
    path = files.segment()
    path.write_bytes(
        bytes(2 * INDEX_INTERVAL_BYTES) + path.read_bytes()[2 * INDEX_INTERVAL_BYTES :]
    )

    assert ends_of(files.read(state, 63, end_offset=64)) == [(63, 64)]
    with pytest.raises(CorruptBatchError):
        files.read(state, 0, end_offset=64)


@pytest.mark.timeout(20)
def test_a_flipped_bit_is_never_served(files: LogFiles) -> None:
    """What stands before the damage is."""
    state, (first, second) = segment_of(files, [[b"first"], [b"second"]])
    path = files.segment()
    stored = path.read_bytes()
    first_bytes = first.header.batch_bytes
    for position in range(first_bytes + second.header.batch_bytes):
        changed = bytearray(stored)
        changed[position] ^= 1 << position % 8
        path.write_bytes(changed)
        damaged_offset = 0 if position < first_bytes else 1
        with pytest.raises(CorruptBatchError, match=f"{path}, from byte "):
            files.read(state, damaged_offset, end_offset=2)
        if damaged_offset == 1:
            served = files.read(state, 0, end_offset=2)
            assert [b"".join(batch.buffers) for batch in served] == [b"".join(first.buffers)]


def test_a_file_that_ends_too_early_is_damage(files: LogFiles) -> None:
    state, _ = segment_of(files, [[os.urandom(2 * BLOCK_BYTES)]], [[b"1"]])
    for size_bytes in (3 * BLOCK_BYTES, 3 * BLOCK_BYTES - 100, BLOCK_BYTES, 100, 0):
        os.truncate(files.segment(), size_bytes)
        with pytest.raises(CorruptBatchError):
            files.read(state, 1, end_offset=2)


def test_a_missing_file_is_named(files: LogFiles) -> None:
    state, _ = segment_of(files, [[b"0"]])
    files.segment().unlink()
    with pytest.raises(ReadFailedError, match=r"0\.log: No such file"):
        files.read(state, 0, end_offset=1)


def test_batches_stay_where_the_disk_has_put_them(files: LogFiles) -> None:
    """The buffer is not used for another read before the last of them is gone."""
    state, written = segment_of(files, [[b"0"], [b"1"]])
    batches = files.read(state, 0, end_offset=2)
    first = address_of(batches[0].contents())
    assert first % BLOCK_BYTES == 0
    assert address_of(batches[1].contents()) == first + batches[0].header.batch_bytes
    assert files.pool.read.used_bytes > MEBIBYTE

    last = batches.pop()
    batches.clear()
    other = files.read(state, 0, end_offset=2)
    assert address_of(other[0].contents()) != first
    assert bytes(last.contents()) == b"".join(written[1].buffers)
    del last
    assert address_of(files.read(state, 0, end_offset=2)[0].contents()) == first


def test_a_failed_read_pins_nothing(files: LogFiles) -> None:
    """Although the error is kept."""
    state, _ = segment_of(files, [[b"0"]])
    files.segment().write_bytes(bytes(BLOCK_BYTES))
    with pytest.raises(CorruptBatchError) as kept:
        files.read(state, 0, end_offset=1)

    assert files.pool.read.used_bytes == 0
    assert kept.value.__cause__ is not None


def test_a_read_without_memory_does_not_wait(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, pool_bytes=2 * MEBIBYTE)
    state, _ = segment_of(files, [[b"0"]])
    kept = files.read(state, 0, end_offset=1)
    with pytest.raises(ReadMemoryFullError):
        files.read(state, 0, end_offset=1)
    kept.clear()
    assert len(files.read(state, 0, end_offset=1)) == 1
