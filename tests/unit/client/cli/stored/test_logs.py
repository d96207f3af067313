"""What is found wrong with the files of a log, and what is not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace.cli.stored.logs import Expected, Finding, log_findings
from tailrace.wire import HEADER, BatchHeader
from tailrace_broker.codec.batch import BatchBody
from tailrace_broker.codec.segment import SegmentIndex, encode_index, encode_pad
from tailrace_broker.core.log.recovery import LogScan, SegmentState
from tests.support.storage.batches import (
    PARTITION,
    TIME_US,
    TOPIC_ID,
    Event,
    batch_of,
    body_of,
    log_of,
)

ALL = Expected(first_offset=0, epoch_before=0)
BODY: BatchBody = body_of([Event(b"%d" % number) for number in range(5)])
LOG = log_of([[BODY, BODY], [BODY]])  # offsets 0 to 14
SECOND_WRITE = LOG.write_ends[0]


def write(*batches: bytes) -> bytes:
    """As a broker writes them."""
    stored = b"".join(batches)
    return stored + encode_pad(-len(stored) % 4096)


def batch(base_offset: int, **place: Any) -> bytes:
    """One of five records that follows another."""
    known = {"previous_epoch": 1 if base_offset else 0, "high_watermark": base_offset}
    return batch_of(
        [Event(b"%d" % number) for number in range(5)],
        base_offset=base_offset,
        **{**known, **place},
    )


def index_of(stored: bytes, base_offset: int = 0, **changes: Any) -> bytes:
    """The index of a segment that follows nothing."""
    scan = LogScan(
        TOPIC_ID, PARTITION, SegmentState(base_offset, base_offset, int(base_offset > 0))
    )
    scan.feed(memoryview(stored), is_last=True)
    state = scan.state
    index = SegmentIndex(
        state.position,
        state.end_offset,
        state.last_epoch,
        state.last_append_time_us,
        state.largest_timestamp_us,
        state.entries,
    )
    return encode_index(index._replace(**changes))


@pytest.fixture
def find(tmp_path: Path) -> Callable[..., list[tuple[str, int | None, str, bool]]]:
    """What is found in a partition of these segments and indexes, by base offset."""
    folder = tmp_path / str(TOPIC_ID) / str(PARTITION)
    folder.mkdir(parents=True)

    def findings(
        segments: dict[int, bytes],
        indexes: dict[int, bytes] | None = None,
        expected: Expected = ALL,
    ) -> list[tuple[str, int | None, str, bool]]:
        for suffix, files in ((".log", segments), (".idx", indexes or {})):
            for base_offset, stored in files.items():
                (folder / f"{base_offset:020d}{suffix}").write_bytes(stored)
        (folder / "notes.txt").write_bytes(b"not ours")
        found: list[Finding] = log_findings(folder, expected, lambda _: None)
        return [(each.file.suffix, each.position, each.text, each.is_bad) for each in found]

    return findings


Find = Callable[..., list[tuple[str, int | None, str, bool]]]


def flipped(stored: bytes, position: int) -> bytes:
    changed = bytearray(stored)
    changed[position] ^= 1
    return bytes(changed)


def test_a_log_as_brokers_leave_it_has_no_findings(find: Find) -> None:
    last = write(batch(15)) + bytes(8192)

    assert find({0: LOG.stored, 15: last}, {0: index_of(LOG.stored), 15: index_of(last, 15)}) == []


def test_the_last_segment_may_go_on_behind_an_old_index(find: Find) -> None:
    assert find({0: LOG.stored}, {0: index_of(LOG.stored[:SECOND_WRITE])}) == []


@pytest.mark.parametrize(
    ("stored", "position", "text"),
    [
        (flipped(LOG.stored, 150), 0, "the batch of offsets 0 to 4 does not match its checksum"),
        (flipped(LOG.stored, SECOND_WRITE), SECOND_WRITE, "no batch and no pad, where offset 10"),
        (flipped(LOG.stored, 4095), LOG.pieces[2].start, "a pad whose fill is not zero"),
        (LOG.stored + bytes(4096), len(LOG.stored), "zeros at the end of a finished segment"),
    ],
)
def test_damage_in_a_finished_segment_is_told(
    find: Find, stored: bytes, position: int, text: str
) -> None:
    [found] = find({0: stored, 15: write(batch(15))})

    assert found[:2] == (".log", position)
    assert found[2].startswith(text)
    assert found[3]


@pytest.mark.parametrize(
    ("second", "text"),
    [
        (batch(6), "the batch of offsets 6 to 10, where offset 5 should be"),
        (batch(5, previous_epoch=7), "the batch of offsets 5 to 9 does not follow epoch 1"),
        (batch(5, epoch=0), "the batch of offsets 5 to 9 is of epoch 0, below 1 before it"),
        (batch(5, partition=PARTITION + 1), f"a batch of partition 4 of topic {TOPIC_ID}"),
        (
            batch(5, append_time_us=TIME_US - 1),
            "the batch of offsets 5 to 9 was appended before its predecessor",
        ),
    ],
)
def test_a_batch_that_does_not_follow_is_told(find: Find, second: bytes, text: str) -> None:
    first = batch(0)
    found = find({0: write(first, second), 11: write(batch(11))})

    assert (".log", len(first), text, True) in found


def test_a_pad_that_is_too_short_is_told(find: Find) -> None:
    first = batch(0)
    stored = first + encode_pad(64) + encode_pad(4096 - 64 - len(first))

    assert find({0: stored}) == [(".log", len(first), "a pad that does not end with a block", True)]


def test_zeros_before_more_of_the_log_are_a_hole(find: Find) -> None:
    stored = LOG.stored[:SECOND_WRITE] + bytes(4096) + LOG.stored[SECOND_WRITE:]

    assert find({0: stored, 15: write(batch(15))}) == [
        (".log", SECOND_WRITE, "zeros, with more of the log behind them", True)
    ]


def test_a_segment_that_is_missing_is_told(find: Find) -> None:
    last = write(batch(15))
    unknown = Expected()

    assert find({15: last}) == [
        (".log", 0, "starts at offset 15, and 0 is the next of the log", True)
    ]
    assert find({15: last}, expected=unknown) == []
    assert find({15: last}, {0: index_of(LOG.stored)}, unknown) == [
        (".idx", 0, "has lost its segment, the .log file", True)
    ]


def test_what_retention_has_left_is_not_looked_at(find: Find) -> None:
    expected = Expected(first_offset=15, epoch_before=1)

    assert find({0: b"x" * 4096, 15: write(batch(15))}, {0: b""}, expected) == []


# --- the end of the log ---------------------------------------------------------------------------


def test_a_torn_write_is_no_damage(find: Find) -> None:
    stored = flipped(LOG.stored, SECOND_WRITE + 150)

    assert find({0: stored}) == [
        (
            ".log",
            SECOND_WRITE,
            "the batch of offsets 10 to 14 does not match its checksum; the next start cuts away: "
            "it is not proven to have been acknowledged",
            False,
        )
    ]


@pytest.mark.parametrize(
    "expected",
    [ALL._replace(end_offset=15), ALL._replace(journaled=[
        BatchHeader._make(HEADER.unpack(batch(20, high_watermark=15)[:128]))
    ])],
    ids=["of a clean stop", "of the journal"],
)  # fmt: skip
def test_the_same_is_damage_when_another_file_tells_that_it_was_acknowledged(
    find: Find, expected: Expected
) -> None:
    damaged = find({0: flipped(LOG.stored, SECOND_WRITE + 150)}, expected=expected)
    missing = find({0: LOG.stored[:SECOND_WRITE]}, expected=expected)

    assert [found[1:] for found in damaged] == [
        (SECOND_WRITE, "the batch of offsets 10 to 14 does not match its checksum", True)
    ]
    assert [found[1:] for found in missing] == [
        (
            SECOND_WRITE,
            "the log ends at offset 10, and there were records up to 14",
            True,
        )
    ]


def test_the_same_is_damage_when_a_later_batch_or_an_index_tells(find: Find) -> None:
    torn = flipped(LOG.stored, SECOND_WRITE + 150)

    assert find({0: torn}, {0: index_of(LOG.stored)})[0][3]
    assert find({0: torn + write(batch(15))})[0][3]


def test_what_the_journal_brings_back_is_no_damage(find: Find) -> None:
    header = BatchHeader._make(HEADER.unpack(batch(10)[:128]))
    expected = ALL._replace(end_offset=15, journaled=[header])

    [found] = find({0: flipped(LOG.stored, SECOND_WRITE + 150)}, expected=expected)

    assert found[2].endswith("the next start brings back from the journal")
    assert not found[3]


# --- indexes --------------------------------------------------------------------------------------


def index_findings(find: Find, index: bytes) -> list[str]:
    found = find({0: LOG.stored, 15: write(batch(15))}, {0: index})
    assert {each[0] for each in found} == {".idx"}
    return [each[2] for each in found]


def test_a_damaged_index_is_told(find: Find) -> None:
    index = index_of(LOG.stored)
    remedy = "a broker writes it anew at its next start"

    assert index_findings(find, flipped(index, 0)) == [f"is not an index: {remedy}"]
    assert index_findings(find, flipped(index, 30)) == [f"the checksum does not match: {remedy}"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"entries": [(0, 4096, 0)]}, "an entry for byte 4096, where no such batch starts"),
        ({"entries": [(1, 0, -(2**63))]}, "an entry for byte 0, where no such batch starts"),
        ({"last_epoch": 2}, "the head does not fit the batches of its segment"),
        ({"segment_bytes": 4096}, "tells another end than that of its segment, offset 15"),
    ],
)
def test_an_index_that_does_not_fit_its_segment_is_told(
    find: Find, change: dict[str, Any], text: str
) -> None:
    assert text in index_findings(find, index_of(LOG.stored, **change))
