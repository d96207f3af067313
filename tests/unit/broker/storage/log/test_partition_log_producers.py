"""A log whose requests name their producers: stored once, over failures and restarts."""

import asyncio
from random import Random

import pytest

from tailrace_broker.codec.producers import decode_checkpoint, decode_table
from tailrace_broker.core.log.producers import Producer
from tailrace_broker.model.append_outcome import Appended, AppendOutcome
from tailrace_broker.model.errors import TailraceError, TopicNotFoundError
from tailrace_broker.storage.log.partition_log import PartitionLog
from tests.support.storage.batches import TIME_US, Event, body_of, columns_of
from tests.support.storage.storage import MEBIBYTE, LogFiles, open_engine_on, open_log

WIDE = Random(0).randbytes(MEBIBYTE)


def producer(sequence: int, name: bytes = b"till-7") -> Producer:
    return Producer.named(name, sequence)


class Requests:
    """Requests to a log and what each was reported: its offset, and whether it is a duplicate."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.reported: asyncio.Queue[tuple[int, bool] | TailraceError] = asyncio.Queue()

    def event(self, value: bytes, by: Producer | None) -> None:
        """One event."""
        self.log.append_event(b"key", value, TIME_US, 0, self, by)

    def columns(self, values: list[bytes], by: Producer | None) -> None:
        """A batch."""
        self.log.append_records(columns_of([Event(each) for each in values]), self, by)

    def body(self, values: list[bytes], by: Producer | None) -> None:
        """A ready-made batch."""
        self.log.append_records(body_of([Event(each) for each in values]), self, by)

    def __call__(self, outcome: AppendOutcome) -> None:
        self.reported.put_nowait(outcome[:2] if isinstance(outcome, Appended) else outcome.error)

    async def outcomes(self, count: int) -> list[tuple[int, bool] | TailraceError]:
        """The next so many, in the order in which they were reported."""
        return [await self.reported.get() for _ in range(count)]


async def test_a_batch_says_which_records_are_whose(files: LogFiles) -> None:
    async with open_log(files) as log:
        requests = Requests(log)
        for value, by in ((b"0", producer(5)), (b"1", None), (b"2", producer(0, b"other"))):
            requests.event(value, by)
        requests.columns([b"3", b"4"], producer(6))
        requests.body([b"5", b"6", b"7"], producer(7))
        assert await requests.outcomes(5) == [(n, False) for n in (0, 1, 2, 3, 5)]
        batches = await log.read(0, MEBIBYTE)

    tables = [
        [(entry.id, entry.sequence, entry.first_record, entry.record_count) for entry in entries]
        for entries in (decode_table(batch.buffers[1]) for batch in batches)
    ]
    assert tables == [
        [(*producer(5), 0, 1), (*producer(0, b"other"), 2, 1)],
        [(*producer(6), 0, 2)],
        [(*producer(7), 0, 3)],
    ]


async def test_a_log_that_is_going_away_stores_and_remembers_nothing(files: LogFiles) -> None:
    async with open_log(files) as log:
        requests = Requests(log)
        requests.event(b"0", producer(0))
        await requests.outcomes(1)
        log.give_up(TopicNotFoundError("gone"))
        requests.event(b"0", producer(0))
        requests.columns([b"0"], producer(1))
        reported = await requests.outcomes(2)

    assert [str(error) for error in reported] == ["gone", "gone"]
    assert not (files.place.directory / "producers").exists()


@pytest.mark.parametrize("is_killed", [False, True])
async def test_retries_are_known_after_a_restart(files: LogFiles, is_killed: bool) -> None:
    """Those in finished segments, in the last one, and in the journal."""
    async with open_engine_on(files, segment_bytes=MEBIBYTE, is_killed=is_killed) as engine:
        requests = Requests(engine.logs[0])
        for sequence, value in enumerate((WIDE, b"1", WIDE, WIDE, b"4")):
            requests.columns([value], producer(sequence))
            assert await requests.outcomes(1) == [(sequence, False)]
    async with open_log(files, segment_bytes=MEBIBYTE) as log:
        requests = Requests(log)
        for sequence in range(6):
            requests.columns([b"0"], producer(sequence))
        reported = await requests.outcomes(6)

    assert sorted(reported, key=str) == [(n, n < 5) for n in range(6)]


async def test_a_finished_segment_and_a_clean_stop_leave_a_checkpoint(files: LogFiles) -> None:
    path = files.place.directory / "producers"
    async with open_log(files, segment_bytes=MEBIBYTE) as log:
        requests = Requests(log)
        for sequence in range(2):
            requests.columns([WIDE * 2], producer(sequence))
            await requests.outcomes(1)
        await log.spilled()  # behind it
        at_seal = decode_checkpoint(path.read_bytes())
        requests.event(b"2", producer(2))
        await requests.outcomes(1)
    at_stop = decode_checkpoint(path.read_bytes())

    assert (at_seal.end_offset, at_stop.end_offset) == (2, 3)
    assert [len(each.rows) for each in (*at_seal.producers, *at_stop.producers)] == [2 * 28, 3 * 28]


async def test_a_clean_stop_within_a_segment_leaves_a_checkpoint(files: LogFiles) -> None:
    async with open_log(files) as log:
        requests = Requests(log)
        requests.event(b"0", producer(0))
        await requests.outcomes(1)
    checkpoint = decode_checkpoint((files.place.directory / "producers").read_bytes())

    assert (checkpoint.end_offset, len(checkpoint.producers)) == (1, 1)


async def test_a_trim_leaves_what_producers_sent(files: LogFiles) -> None:
    async with open_engine_on(files, is_killed=True) as engine:
        [log] = engine.logs
        requests = Requests(log)
        requests.event(b"0", producer(0))
        await requests.outcomes(1)
        await log.trim(1)
        assert log.log_start == 1
    async with open_log(files) as log:
        requests = Requests(log)
        requests.event(b"0", producer(0))

        assert await requests.outcomes(1) == [(0, True)]
