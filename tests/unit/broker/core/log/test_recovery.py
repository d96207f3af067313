"""Where a log ends, example by example; `test_recovery_properties.py` has the general rules."""

from typing import Any, NamedTuple
from uuid import UUID

import pytest

from tailrace.wire import BATCH_ALIGNMENT_BYTES, HEADER_BYTES, BatchHeader
from tailrace_broker.codec.batch import read_header
from tailrace_broker.codec.producers import TableEntry, encode_table
from tailrace_broker.codec.segment import (
    INDEX_INTERVAL_BYTES,
    NO_TIMESTAMP_US,
    IndexEntry,
    encode_pad,
)
from tailrace_broker.core.log.producers import Duplicate, Producer, ProducerWindows
from tailrace_broker.core.log.recovery import (
    LogScan,
    Resumption,
    SegmentState,
    durable_end_behind,
    end_of_damaged,
    follow_journal,
    largest_end_behind,
    resume_journal,
    resumption_in,
    size_at_damage,
)
from tests.support.storage.batches import (
    PARTITION,
    TIME_US,
    TOPIC_ID,
    WRITE_ALIGNMENT_BYTES,
    Event,
    Log,
    batch_of,
    body_of,
    log_of,
)

EVENTS = [Event(b"1"), Event(b"2")]
THREE_WRITES = log_of([[body_of(EVENTS)], [body_of(EVENTS), body_of(EVENTS)], [body_of(EVENTS)]])
BLOCK = WRITE_ALIGNMENT_BYTES


def scan_of(stored: bytes, **known: int) -> LogScan:
    """A scan that has seen all of `stored` in one window."""
    scan = LogScan(TOPIC_ID, PARTITION, SegmentState(0, 0))
    for name, value in known.items():
        setattr(scan.state, name, value)
    assert scan.feed(memoryview(stored), is_last=True) == 0
    assert scan.ended
    return scan


def with_zeros(log: Log, start: int, end: int) -> bytes:
    return log.stored[:start] + bytes(end - start) + log.stored[end:]


def is_damage(scan: LogScan, stored: bytes) -> bool:
    """Whether what is stored from the block behind the log's end on proves damage."""
    behind = -(-scan.state.position // BLOCK) * BLOCK
    return durable_end_behind(scan, memoryview(stored)[behind:]) > scan.state.end_offset


def test_a_log_ends_behind_its_last_write() -> None:
    state = scan_of(THREE_WRITES.stored).state

    assert (state.position, state.end_offset) == (3 * BLOCK, 8)
    assert (state.last_epoch, state.last_append_time_us) == (1, TIME_US)


@pytest.mark.parametrize("behind", [b"", bytes(BLOCK), b"\1" * BLOCK], ids=["", "zeros", "garbage"])
def test_what_is_no_batch_is_not_of_the_log(behind: bytes) -> None:
    scan = scan_of(THREE_WRITES.stored + behind)

    assert (scan.state.position, scan.state.end_offset) == (3 * BLOCK, 8)
    assert not is_damage(scan, THREE_WRITES.stored + behind)


def test_an_empty_file_is_an_empty_log() -> None:
    state = scan_of(b"").state

    assert (state.position, state.end_offset) == (0, 0)


@pytest.mark.parametrize(
    "place",
    [
        pytest.param({"topic_id": UUID(int=1)}, id="of another topic"),
        pytest.param({"partition": PARTITION + 1}, id="of another partition"),
        pytest.param({"base_offset": 9}, id="leaves offsets out"),
        pytest.param({"base_offset": 7}, id="repeats offsets"),
        pytest.param({"epoch": 0}, id="of an earlier epoch"),
        pytest.param({"previous_epoch": 0}, id="follows another batch"),
        pytest.param({"previous_epoch": 2, "epoch": 2}, id="follows a batch that is missing"),
    ],
)
def test_a_batch_that_does_not_follow_the_last_one_ends_the_log(place: dict[str, Any]) -> None:
    stray = batch_of(EVENTS, **{"base_offset": 8, "previous_epoch": 1, **place})

    state = scan_of(THREE_WRITES.stored + stray).state

    assert (state.position, state.end_offset) == (3 * BLOCK, 8)


def test_a_batch_of_a_later_epoch_belongs_to_the_log_when_it_names_the_one_before() -> None:
    next_epoch = batch_of(EVENTS, base_offset=8, previous_epoch=1, epoch=5)

    state = scan_of(THREE_WRITES.stored + next_epoch).state

    assert (state.end_offset, state.last_epoch) == (10, 5)


def test_what_a_batch_says_of_its_producers_is_learnt() -> None:
    producer = Producer.named(b"till-7", 5)
    table = encode_table([TableEntry(*producer, 0, 1)])
    log = log_of([[body_of([Event(b"1")], producer_table=table)]])
    windows = ProducerWindows()

    scan = LogScan(TOPIC_ID, PARTITION, SegmentState(0, 0), windows=windows)
    scan.feed(memoryview(log.stored), is_last=True)

    assert scan.state.end_offset == 1
    assert windows.begin(producer, 1, now_us=TIME_US) == Duplicate(0)


def test_a_segment_goes_on_where_the_one_before_ended() -> None:
    stored = batch_of(EVENTS, base_offset=100, previous_epoch=4, epoch=4)

    state = scan_of(stored, base_offset=100, end_offset=100, last_epoch=4).state

    assert (state.end_offset, state.entries) == (102, [IndexEntry(0, 0, NO_TIMESTAMP_US)])


def test_a_batch_whose_payload_is_damaged_ends_the_log() -> None:
    stored = bytearray(THREE_WRITES.stored)
    stored[BLOCK + HEADER_BYTES] ^= 1

    assert scan_of(bytes(stored)).state.position == BLOCK


def test_the_batches_of_a_torn_write_up_to_the_first_damage_are_kept() -> None:
    second = THREE_WRITES.pieces[3]
    torn = with_zeros(THREE_WRITES, second.start + 16, 3 * BLOCK)

    state = scan_of(torn).state

    assert (state.position, state.end_offset) == (second.start, 4)


def test_stale_batches_behind_a_hole_are_not_taken() -> None:
    """They would follow by their offset, if the pad between them were not a hole."""
    pad = THREE_WRITES.pieces[1]
    assert pad.header is None

    state = scan_of(with_zeros(THREE_WRITES, pad.start, pad.end)).state

    assert (state.position, state.end_offset) == (pad.start, 2)


def test_a_pad_that_the_file_cuts_off_ends_the_log() -> None:
    batch = batch_of(EVENTS)

    assert scan_of(batch + encode_pad(64)[:-1]).state.position == len(batch)
    assert scan_of(batch + encode_pad(64)).state.position == len(batch) + 64


def test_a_pad_smaller_than_a_batch_header_is_taken_at_the_end_of_a_file() -> None:
    assert scan_of(encode_pad(BATCH_ALIGNMENT_BYTES)).state.position == BATCH_ALIGNMENT_BYTES


@pytest.mark.parametrize(
    ("stored", "wanted_bytes"),
    [
        pytest.param(batch_of(EVENTS)[:-1], len(batch_of(EVENTS)), id="a batch"),
        pytest.param(encode_pad(300)[:-1], 300, id="a pad"),
        pytest.param(batch_of(EVENTS)[: HEADER_BYTES - 1], HEADER_BYTES, id="a header"),
        pytest.param(b"", HEADER_BYTES, id="nothing"),
    ],
)
def test_a_window_that_ends_early_says_how_much_is_wanted(stored: bytes, wanted_bytes: int) -> None:
    scan = LogScan(TOPIC_ID, PARTITION, SegmentState(0, 0))

    assert scan.feed(memoryview(stored), is_last=False) == wanted_bytes
    assert (scan.ended, scan.state.position) == (False, 0)


def test_a_window_that_ends_with_a_batch_wants_the_next_header() -> None:
    scan = LogScan(TOPIC_ID, PARTITION, SegmentState(0, 0))
    batch = batch_of(EVENTS)

    assert scan.feed(memoryview(batch), is_last=False) == HEADER_BYTES
    assert (scan.ended, scan.state.position) == (False, len(batch))


def test_a_stray_batch_ends_the_log_before_all_of_it_is_read() -> None:
    scan = LogScan(TOPIC_ID, PARTITION, SegmentState(0, 0))
    stray = batch_of(EVENTS, base_offset=5)

    assert scan.feed(memoryview(stray)[:HEADER_BYTES], is_last=False) == 0
    assert scan.ended


def test_the_index_has_an_entry_for_the_first_batch_behind_every_64_kib() -> None:
    """With the largest time before it, though the times go up and down."""
    times = [number ^ 1 for number in range(40)]
    log = log_of([[body_of([Event(bytes(20_000), timestamp_us=time)])] for time in times])
    assert {write_end - BLOCK * n for n, write_end in enumerate(log.write_ends)} == {BLOCK}

    state = scan_of(log.stored).state
    step = INDEX_INTERVAL_BYTES // BLOCK

    assert state.entries == [
        IndexEntry(0, 0, NO_TIMESTAMP_US),
        IndexEntry(step, step * BLOCK, max(times[:step])),
        IndexEntry(2 * step, 2 * step * BLOCK, max(times[: 2 * step])),
    ]
    assert state.largest_timestamp_us == max(times)


def test_an_acknowledged_write_that_is_damaged_is_proven_by_a_later_one() -> None:
    stored = with_zeros(THREE_WRITES, BLOCK, 2 * BLOCK)
    scan = scan_of(stored)

    assert scan.state.position == BLOCK
    assert is_damage(scan, stored)


def test_a_hole_in_place_of_a_pad_is_proven_by_the_write_after_the_next() -> None:
    """The next one was appended when the high watermark was the end that is found."""
    pad = THREE_WRITES.pieces[1]
    stored = with_zeros(THREE_WRITES, pad.start, pad.end)

    assert is_damage(scan_of(stored), stored)
    assert not is_damage(scan_of(stored[: 2 * BLOCK]), stored[: 2 * BLOCK])


def test_a_torn_last_write_proves_nothing() -> None:
    """Its first sector is missing; in the next a whole batch names the end as it was before."""
    body = body_of([Event(bytes(96))])  # two of them are a sector
    log = log_of([[body_of(EVENTS)], [body] * 4])
    assert BLOCK + 512 in [piece.start for piece in log.pieces]
    torn = with_zeros(log, BLOCK, BLOCK + 512)
    scan = scan_of(torn)

    assert scan.state.position == BLOCK
    assert not is_damage(scan, torn)


@pytest.mark.parametrize(
    "place",
    [
        pytest.param({"topic_id": UUID(int=1)}, id="another topic"),
        pytest.param({"partition": PARTITION + 1}, id="another partition"),
        pytest.param({"high_watermark": 8}, id="the end itself"),
    ],
)
def test_a_batch_that_says_nothing_of_this_log_behind_its_end_proves_nothing(
    place: dict[str, Any],
) -> None:
    stray = batch_of(EVENTS, **{"base_offset": 20, "high_watermark": 20, **place})
    scan = scan_of(THREE_WRITES.stored)

    assert durable_end_behind(scan, memoryview(stray)) <= 8


def test_a_proof_is_found_behind_what_only_looks_like_a_batch() -> None:
    proof = batch_of(EVENTS, base_offset=20, high_watermark=9)
    scan = scan_of(THREE_WRITES.stored)
    window = proof[: HEADER_BYTES - 1].ljust(512, b"\1") + proof[:4].ljust(512, b"\0") + proof

    assert durable_end_behind(scan, memoryview(window)) == 9
    assert durable_end_behind(scan, memoryview(window)[:1024]) == 0


@pytest.mark.parametrize("size_bytes", [0, 3, 4, 127])
def test_a_window_too_small_for_a_header_proves_nothing(size_bytes: int) -> None:
    proof = batch_of(EVENTS, base_offset=20, high_watermark=9)

    assert durable_end_behind(scan_of(THREE_WRITES.stored), memoryview(proof)[:size_bytes]) == 0


# --- what the journal adds ------------------------------------------------------------------------


class Stored(NamedTuple):
    """A batch in the journal."""

    header: BatchHeader


def stored(base_offset: int, **place: Any) -> Stored:
    """A batch of two records, of epoch 1 behind the same."""
    known = {"base_offset": base_offset, "previous_epoch": 1, "high_watermark": base_offset}
    return Stored(read_header(memoryview(batch_of(EVENTS, **{**known, **place}))))


END = SegmentState(0, end_offset=8, last_epoch=1)


def test_the_journal_goes_on_behind_the_segments() -> None:
    batches = [stored(8), stored(10), stored(12, epoch=2), stored(14, epoch=2, previous_epoch=2)]

    assert follow_journal(END, batches) == (batches, 0)
    assert follow_journal(END, []) == ([], 0)


def test_what_the_segments_hold_already_is_passed_over() -> None:
    batches = [stored(4), stored(6), stored(8)]

    assert follow_journal(END, batches) == (batches[2:], 0)


@pytest.mark.parametrize(
    "place",
    [{"epoch": 0}, {"previous_epoch": 0}, {"previous_epoch": 2, "epoch": 2}],
    ids=["of an earlier epoch", "follows another batch", "follows one that is missing"],
)
def test_a_journaled_batch_that_does_not_follow_is_not_of_the_log(place: dict[str, Any]) -> None:
    (first, second) = stored(8, high_watermark=3, **place), stored(8)

    assert follow_journal(END, [first, second]) == ([second], 3)


def test_a_hole_in_the_journal_ends_the_log_and_tells_how_far_it_was_durable() -> None:
    batches = [stored(8), stored(12), stored(14, high_watermark=11)]

    assert follow_journal(END, batches) == (batches[:1], 12)


def test_what_was_appended_in_place_of_a_torn_batch_follows() -> None:
    """The journal has both: the batch of before the stop had lost what it followed."""
    torn = stored(10, high_watermark=8)
    new = [stored(8, epoch=2), stored(10, epoch=2, previous_epoch=2)]

    assert follow_journal(END, [torn, *new]) == (new, 8)


# --- behind damage --------------------------------------------------------------------------------


def test_behind_damage_the_log_goes_on_with_an_index_entry_of_its_own() -> None:
    scan = scan_of(with_zeros(THREE_WRITES, BLOCK, 2 * BLOCK))
    scan.resume(Resumption(6, 2 * BLOCK, 1))
    rest = memoryview(THREE_WRITES.stored)[2 * BLOCK :]

    assert scan.feed(rest, is_last=True) == 0
    assert (scan.state.position, scan.state.end_offset) == (3 * BLOCK, 8)
    assert [each[:2] for each in scan.state.entries] == [(0, 0), (6, 2 * BLOCK)]


@pytest.mark.parametrize(
    ("place", "is_found"),
    [
        pytest.param({"base_offset": 12}, True, id="above the end"),
        pytest.param({"base_offset": 20}, True, id="at the proven end"),
        pytest.param({"base_offset": 21}, False, id="above the proven end"),
        pytest.param({"base_offset": 6}, False, id="below the end"),
        pytest.param({"base_offset": 8}, True, id="at the end, behind a damaged pad"),
        pytest.param({"base_offset": 8, "previous_epoch": 2, "epoch": 2}, False, id="not behind"),
        pytest.param({"base_offset": 12, "previous_epoch": 3, "epoch": 5}, True, id="later epochs"),
        pytest.param({"base_offset": 12, "previous_epoch": 0}, False, id="an earlier epoch"),
        pytest.param({"base_offset": 12, "previous_epoch": 3, "epoch": 2}, False, id="falling"),
        pytest.param({"base_offset": 12, "partition": PARTITION + 1}, False, id="another log"),
    ],
)
def test_the_log_goes_on_behind_damage_with_what_was_durable(
    place: dict[str, Any], *, is_found: bool
) -> None:
    scan = scan_of(THREE_WRITES.stored)
    header = read_header(memoryview(batch_of(EVENTS, **{"previous_epoch": 1, **place})))
    window = memoryview(bytes(BLOCK) + batch_of(EVENTS, **{"previous_epoch": 1, **place}))

    found = resumption_in(scan, window, 5 * BLOCK, durable_end=20)

    expected = Resumption(header.base_offset, 6 * BLOCK, header.previous_epoch)
    assert found == (expected if is_found else None)


def test_a_header_behind_the_end_tells_where_its_batch_ends() -> None:
    scan = scan_of(THREE_WRITES.stored)

    assert largest_end_behind(scan, memoryview(batch_of(EVENTS, base_offset=30))) == 32
    assert largest_end_behind(scan, memoryview(bytes(BLOCK))) == 0


def test_a_damaged_batch_whose_header_is_right_tells_what_comes_next() -> None:
    batch = bytearray(batch_of(EVENTS, base_offset=8, previous_epoch=1))
    scan = scan_of(THREE_WRITES.stored)
    batch[-17] ^= 1

    size_bytes, resumption = size_at_damage(scan, memoryview(batch))

    assert size_bytes == len(batch)
    assert resumption == Resumption(10, 3 * BLOCK + len(batch), 1)


@pytest.mark.parametrize(
    ("batch", "size_bytes"),
    [
        pytest.param(b"\0" + batch_of(EVENTS)[1:], len(batch_of(EVENTS)), id="its header is not"),
        pytest.param(batch_of(EVENTS), len(batch_of(EVENTS)), id="it is of elsewhere"),
        pytest.param(batch_of(EVENTS)[:-40][: HEADER_BYTES - 1], 0, id="too short"),
    ],
)
def test_of_another_only_its_size_is_guessed(batch: bytes, size_bytes: int) -> None:
    scan = scan_of(THREE_WRITES.stored)

    assert size_at_damage(scan, memoryview(batch)) == (size_bytes, None)


def test_behind_a_lost_segment_the_epoch_before_is_not_asked_for() -> None:
    state = scan_of(THREE_WRITES.stored).state.follow_on(20)
    assert (state.base_offset, state.is_behind_damage) == (20, True)

    scan = LogScan(TOPIC_ID, PARTITION, state)
    scan.feed(memoryview(batch_of(EVENTS, base_offset=20, previous_epoch=3, epoch=4)), is_last=True)

    assert (scan.state.end_offset, scan.state.last_epoch) == (22, 4)
    assert not scan.state.is_behind_damage


def test_the_journal_goes_on_behind_damage_with_what_leads_to_its_last_batch() -> None:
    batches = [stored(8), stored(12, high_watermark=12), stored(14, high_watermark=14)]

    assert resume_journal(SegmentState(0, 10, 1), batches, 14) == batches[1:]
    assert resume_journal(SegmentState(0, 10, 1), batches, 11) == []  # the end is below
    assert resume_journal(SegmentState(0, 10, 1), [], 14) == []


def test_batches_that_are_damaged_in_the_journal_tell_where_they_end() -> None:
    headers = [stored(base).header for base in (4, 8, 10, 14)]

    assert end_of_damaged(8, headers) == 12
    assert end_of_damaged(7, headers) == 7


def test_what_was_given_up_does_not_come_back_behind_damage() -> None:
    """The batch of before the stop, torn with what it followed; and the new one is damaged."""
    given_up = stored(10, high_watermark=8)
    new = [stored(12, epoch=2, previous_epoch=2, high_watermark=12)]

    assert resume_journal(END, [given_up, *new], 12) == new
    assert resume_journal(END, [given_up, stored(6, epoch=2)], 12) == []


# --- cuts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [2, 4, 6])
def test_a_segment_ends_where_the_next_one_begins(limit: int) -> None:
    scan = LogScan(TOPIC_ID, PARTITION, SegmentState(0, 0), limit=limit)
    scan.feed(memoryview(THREE_WRITES.stored), is_last=True)
    end = max(each.end for each in THREE_WRITES.pieces if each.end_offset == limit)

    assert (scan.ended, scan.state.end_offset, scan.state.position) == (True, limit, end)


def test_the_largest_high_watermark_of_the_headers_is_known() -> None:
    state = scan_of(THREE_WRITES.stored).state

    assert state.high_watermark == state.follow_on(8).high_watermark
    assert 0 < state.high_watermark < 8
