"""A log's pending tail, and which files of the journal hold some of it."""

from pathlib import Path
from typing import Any, cast

import pytest

from tailrace_broker.codec.batch import StoredBatch, stamp_batch
from tailrace_broker.storage.journal.file import JournaledLog, JournalFile
from tailrace_broker.storage.log.pending_tail import PendingTail
from tests.support.storage.batches import Event, body_of, place_of

LOG = cast(JournaledLog, object())


def batch(base_offset: int, timestamp_us: int = 0) -> StoredBatch:
    """Of two records."""
    body = body_of([Event(b"1", timestamp_us=timestamp_us)] * 2)
    return stamp_batch(body, place_of(base_offset=base_offset))


BATCHES = [batch(0, 5), batch(2, 9), batch(4, 7)]
SIZE = BATCHES[0].header.batch_bytes


@pytest.fixture
def journal(tmp_path: Path) -> list[JournalFile]:
    return [
        JournalFile(tmp_path / str(number), size_bytes=8192, is_direct=False) for number in range(3)
    ]


@pytest.fixture
def tail(journal: list[JournalFile]) -> PendingTail:
    """The first two batches are in the first file, the last in the second."""
    tail = PendingTail(LOG)
    tail.add(BATCHES[:2], journal[0])
    tail.add(BATCHES[2:], journal[1])
    return tail


def holders(journal: list[JournalFile]) -> list[bool]:
    return [LOG in file.pending for file in journal]


def test_the_files_know_which_logs_they_hold_something_of(
    tail: PendingTail, journal: list[JournalFile]
) -> None:
    assert (holders(journal), tail.size_bytes) == ([True, True, False], 3 * SIZE)
    for offset in (2, 3, 2):  # a batch of which a part is below stays
        tail.drop_below(offset)
        assert (holders(journal), tail.size_bytes) == ([True, True, False], 2 * SIZE)
    tail.drop_below(4)
    assert (holders(journal), tail.size_bytes) == ([False, True, False], SIZE)
    for _ in range(2):
        tail.drop_below(6)
        assert (holders(journal), tail.size_bytes) == ([False, False, False], 0)


def test_what_has_been_here_longest_is_taken_first(tail: PendingTail) -> None:
    assert [tail.first(size) for size in (1, 2 * SIZE)] == [BATCHES[:1], BATCHES[:2]]
    assert PendingTail(LOG).first(1) == []


def test_what_no_file_holds_keeps_none(journal: list[JournalFile]) -> None:
    tail = PendingTail(LOG)
    tail.add(BATCHES[:1], None)
    tail.add(BATCHES[1:], journal[2])
    assert holders(journal) == [False, False, True]
    tail.drop_below(6)
    assert holders(journal) == [False, False, False]


@pytest.mark.parametrize(
    ("offset", "max_bytes", "count"),
    [(0, 1, 1), (1, SIZE, 1), (1, 2 * SIZE, 2), (2, 9 * SIZE, 2), (5, 0, 1)],
)
def test_a_read_begins_with_the_batch_that_holds_the_offset(
    tail: PendingTail, offset: int, max_bytes: int, count: int
) -> None:
    first = offset // 2
    assert tail.read(offset, max_bytes) == BATCHES[first : first + count]


def test_what_is_before_the_tail_is_not_there(tail: PendingTail) -> None:
    tail.drop_below(2)
    assert tail.read(1, 100) == []
    assert PendingTail(LOG).read(0, 100) == []


@pytest.mark.parametrize(("timestamp_us", "found"), [(0, 0), (5, 0), (6, 1), (9, 1), (10, None)])
def test_the_first_batch_with_a_record_of_a_time_is_found(
    tail: PendingTail, timestamp_us: int, found: int | None
) -> None:
    wanted: Any = None if found is None else BATCHES[found]
    assert tail.find_time(timestamp_us) is wanted


@pytest.mark.parametrize(
    ("end", "held"), [(6, [True, True, False]), (4, [True, True, False]), (0, [False] * 3)]
)
def test_a_cut_drops_what_ends_above(
    tail: PendingTail, journal: list[JournalFile], end: int, held: list[bool]
) -> None:
    tail.cut(end)
    kept = BATCHES[: end // 2]
    assert (tail.batches, tail.size_bytes, holders(journal)) == (kept, len(kept) * SIZE, held)
    tail.drop_below(end)
    assert holders(journal) == [False] * 3


def test_what_follows_a_cut_is_held_by_its_own_file(
    tail: PendingTail, journal: list[JournalFile]
) -> None:
    tail.drop_below(2)
    tail.cut(4)
    tail.add([batch(4)], journal[2])
    tail.drop_below(4)
    assert holders(journal) == [False, False, True]
