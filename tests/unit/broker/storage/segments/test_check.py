"""What a check of a segment finds, on real files with damage put into them."""

import random
from pathlib import Path

import pytest

from tailrace_broker.codec.segment import INDEX_INTERVAL_BYTES
from tailrace_broker.core.log.recovery import LogScan, SegmentState
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.damage import Damage
from tailrace_broker.model.errors import ReadFailedError
from tailrace_broker.storage.files.direct_file import has_direct_io
from tailrace_broker.storage.segments.check import (
    Checked,
    Place,
    SegmentPart,
    check_part,
    part_from_offset,
)
from tests.support.storage.batches import PARTITION, TOPIC_ID, Event, body_of, log_of

NOISE = random.Random(5)
# Batches of 10 records; every fourth or so has an entry in the index.
BATCH_COUNT, BATCH_RECORDS = 12, 10
LOG = log_of(
    [
        [body_of([Event(NOISE.randbytes(2_000)) for _ in range(BATCH_RECORDS)])]
        for _ in range(BATCH_COUNT)
    ]
)
BATCHES = [piece for piece in LOG.pieces if piece.header]
PADS = [piece for piece in LOG.pieces if not piece.header]
END_OFFSET = BATCH_COUNT * BATCH_RECORDS
ALL = 10 * len(LOG.stored)


def state_of(stored: bytes = LOG.stored) -> SegmentState:
    scan = LogScan(TOPIC_ID, PARTITION, SegmentState(0, 0))
    scan.feed(memoryview(stored), is_last=True)
    assert scan.state.end_offset == END_OFFSET
    assert len(scan.state.entries) >= 3
    return scan.state


STATE = state_of()
ENTRIES = STATE.entries


def check(
    folder: Path, stored: bytes, part: SegmentPart | None = None, *, max_bytes: int = ALL
) -> Checked:
    path = folder / "0.log"
    path.write_bytes(stored)
    part = part or part_from_offset(path, STATE, 0)
    pool = BufferPool(64 * 1024 * 1024)
    is_direct = has_direct_io(folder)
    return check_part(part._replace(path=path), pool, max_bytes=max_bytes, is_direct=is_direct)


def flipped(position: int) -> bytes:
    stored = bytearray(LOG.stored)
    stored[position] ^= 1
    return bytes(stored)


def found(checked: Checked) -> list[tuple[int, int, int]]:
    return [damage[1:4] for damage in checked.damages]


def test_a_whole_segment_has_no_damage(tmp_path: Path) -> None:
    assert check(tmp_path, LOG.stored) == Checked(Place(len(LOG.stored), END_OFFSET), [])


def test_damage_in_a_payload_is_of_that_batch_alone(tmp_path: Path) -> None:
    batch = BATCHES[4]
    checked = check(tmp_path, flipped(batch.start + 200))

    assert checked.damages == [Damage(tmp_path / "0.log", batch.start, 40, 50)]
    assert checked.end == Place(len(LOG.stored), END_OFFSET)


@pytest.mark.parametrize("position", [0, 9, 33, 127])
def test_damage_in_a_header_hides_what_follows_up_to_the_next_entry(
    tmp_path: Path, position: int
) -> None:
    batch = BATCHES[1]
    following = next(entry for entry in ENTRIES if entry.position > batch.start)

    assert found(check(tmp_path, flipped(batch.start + position))) == [
        (batch.start, 10, following.relative_offset)
    ]


def test_damage_behind_the_last_entry_hides_the_rest_of_the_segment(tmp_path: Path) -> None:
    batch = next(each for each in BATCHES if each.start > ENTRIES[-1].position)

    assert found(check(tmp_path, flipped(batch.start))) == [
        (batch.start, batch.end_offset - BATCH_RECORDS, END_OFFSET)
    ]


def test_a_damaged_pad_hides_what_follows_unless_readers_pass_it(tmp_path: Path) -> None:
    following = ENTRIES[1].relative_offset
    needed, passed = PADS[0], PADS[following // BATCH_RECORDS - 1]

    assert found(check(tmp_path, flipped(needed.start))) == [(needed.start, 10, following)]
    assert found(check(tmp_path, flipped(passed.start))) == []


def test_a_batch_of_another_place_is_damage(tmp_path: Path) -> None:
    stored = bytearray(LOG.stored)
    stored[BATCHES[1].start : BATCHES[1].end] = stored[BATCHES[0].start : BATCHES[0].end]

    assert found(check(tmp_path, bytes(stored)))[0][:2] == (BATCHES[1].start, 10)


@pytest.mark.parametrize("cut", [BATCHES[-1].start, BATCHES[-1].start + 500, BATCHES[-1].start + 8])
def test_what_a_file_lacks_is_damage(tmp_path: Path, cut: int) -> None:
    assert found(check(tmp_path, LOG.stored[:cut])) == [
        (BATCHES[-1].start, END_OFFSET - BATCH_RECORDS, END_OFFSET)
    ]


def test_a_check_of_some_bytes_ends_behind_a_batch_and_the_next_goes_on_there(
    tmp_path: Path,
) -> None:
    stored = flipped(BATCHES[7].start + 300)
    part = part_from_offset(tmp_path, STATE, 0)
    ends, damages = [], []
    while part.start.position < part.end.position:
        checked = check(tmp_path, stored, part, max_bytes=30_000)
        ends.append(checked.end.position)
        damages += found(checked)
        part = part._replace(start=checked.end)

    assert damages == [(BATCHES[7].start, 70, 80)]
    assert len(ends) > 5
    assert {*ends} <= {piece.end for piece in LOG.pieces}


def test_a_batch_that_is_larger_than_a_check_is_read_whole(tmp_path: Path) -> None:
    checked = check(tmp_path, LOG.stored, max_bytes=4_096)

    assert checked == Checked(Place(PADS[0].end, 10), [])


def test_a_part_begins_with_the_entry_before(tmp_path: Path) -> None:
    second = ENTRIES[1]
    place = Place(second.position, second.relative_offset)
    path = tmp_path / "0.log"

    assert second.position >= INDEX_INTERVAL_BYTES
    assert part_from_offset(path, STATE, second.relative_offset + 1).start == place
    assert part_from_offset(path, STATE, second.relative_offset - 1).start == Place(0, 0)
    assert part_from_offset(path, SegmentState(7, 7), 7).start == Place(0, 7)


def test_a_file_that_is_gone_cannot_be_checked(tmp_path: Path) -> None:
    part = part_from_offset(tmp_path / "gone.log", STATE, 0)

    with pytest.raises(ReadFailedError, match=r"gone\.log"):
        check_part(part, BufferPool(1 << 20), max_bytes=ALL, is_direct=False)
