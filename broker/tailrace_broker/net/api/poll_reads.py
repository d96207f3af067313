"""What a poll delivers: read from the logs as far as its bounds go, and as text.

All of it is read before the delivery is made, so that its ends are known; what is read counts
against the read memory until it is sent.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple
from uuid import UUID

from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.codec.poll_json import TextColumns, element, element_head, text_columns
from tailrace_broker.core.groups.group import FetchRange
from tailrace_broker.memory.pool import Lease
from tailrace_broker.memory.read_memory import ReadMemory
from tailrace_broker.model.errors import (
    CorruptPartitionError,
    NoLeaderError,
    NotLeaderError,
    NotReadyError,
    OffsetOutOfRangeError,
    ReadFailedError,
    ReadMemoryFullError,
    TailraceError,
    TopicNotFoundError,
)
from tailrace_broker.model.topic import Slice, slices_of
from tailrace_broker.net.api.record_texts import (
    PIECE_BYTES,
    TextBytes,
    cuts_of,
    lines_of,
    unpinned_bytes,
)
from tailrace_broker.net.broker import GroupPoll
from tailrace_broker.net.logs import ReadLog

# What does not keep a poll from the other partitions.
_UNREADABLE = (
    CorruptPartitionError,
    ReadFailedError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
    NotLeaderError,
    NoLeaderError,
    NotReadyError,
)
# Of the header that says where in their first batches partitions begin: clients and proxies take
# little, Python's http.client 64 KiB.
START_OFFSETS_BYTES_MAX = 32 * 1024
_START_OFFSET_BYTES = len("/,:") + 10 + 19  # of one, with the longest numbers, but for its topic
# What was delivered before is read by so much at a time.
_AGAIN_BYTES = 1024 * 1024


class PollBounds(NamedTuple):
    """Of an answer. `records_max` is exact in text; whole batches go up to it, or over it."""

    bytes_max: int  # of stored batches; at least one
    records_max: int
    is_text: bool


class Part(NamedTuple):
    """A fetch range as far as it was read: up to `end`, its start when nothing was.

    `problem`: of what follows, which is damaged or cannot be read.
    """

    fetch_range: FetchRange
    end: int
    batches: Sequence[StoredBatch]
    problem: TailraceError | None = None


async def read_parts(
    memory: ReadMemory, lease: Lease, poll: GroupPoll, bounds: PollBounds
) -> list[Part]:
    """Read what each fetch range delivers; a repeated delivery is exactly the same.

    What cannot be read is left out. ReadMemoryFullError.
    """
    return await memory.run(partial(_read_parts, lease, poll.fetch_ranges, bounds))


async def lines(parts: Sequence[Part]) -> AsyncIterator[list[bytes]]:
    """A line a record, range by range."""
    for fetch_range, end, batches, _ in parts:
        name = fetch_range.topic.name
        for some in lines_of(
            fetch_range.partition.partition, batches, fetch_range.start, end, topic=name
        ):
            yield some


async def elements(parts: Sequence[Part]) -> AsyncIterator[list[bytes]]:
    """Elements of a JSON array: of each partition one, or more when its records are many."""
    slices: dict[UUID, Mapping[int, Slice]] = {}
    for fetch_range, end, batches, _ in parts:
        topic, partition = fetch_range.topic, fetch_range.partition
        if topic.topic_id not in slices:
            slices[topic.topic_id] = slices_of(topic)
        head = element_head(topic.name, partition, slices[topic.topic_id][partition.partition])
        offset = start_offset = fetch_range.start
        rows: list[TextColumns] = []
        rows_bytes = 0
        for cut in cuts_of(batches, offset, end):
            if rows and rows_bytes + cut.size_bytes > PIECE_BYTES:
                yield [element(head, start_offset, rows)]
                rows, rows_bytes, start_offset = [], 0, offset
            rows.append(text_columns(cut.header, cut.columns, first=cut.first, last=cut.last))
            rows_bytes += cut.size_bytes
            offset += cut.last - cut.first
            await asyncio.sleep(0)  # others' requests come in between
        if rows:
            yield [element(head, start_offset, rows)]


async def _read_parts(
    lease: Lease, fetch_ranges: Sequence[tuple[FetchRange, ReadLog]], bounds: PollBounds
) -> list[Part]:
    reading = _Reading(lease, bounds)
    return [await reading.read(fetch_range, log) for fetch_range, log in fetch_ranges]


@dataclass(slots=True)
class _Reading:
    """The reads of one poll, and what is left of its bounds."""

    lease: Lease
    bounds: PollBounds
    has_taken: bool = False
    _left_bytes: int = field(init=False)
    _left_records: int = field(init=False)
    _start_offsets_bytes: int = 0
    _held_bytes: int = 0  # of batches
    _text: TextBytes = field(default_factory=TextBytes)

    def __post_init__(self) -> None:
        self._left_bytes = self.bounds.bytes_max
        self._left_records = self.bounds.records_max

    async def read(self, fetch_range: FetchRange, log: ReadLog) -> Part:
        """Read as much of a range as one answer takes. ReadMemoryFullError: nothing is held."""
        try:
            if fetch_range.end is None:
                return await self._read_on(fetch_range, log)
            return await self._read_again(fetch_range, log, fetch_range.end)
        except ReadMemoryFullError:
            self.lease.resize(0)
            raise

    async def _read_on(self, fetch_range: FetchRange, log: ReadLog) -> Part:
        end = log.high_watermark  # of one moment, so that live producers do not prolong it
        offset = fetch_range.start
        batches: list[StoredBatch] = []
        problem: TailraceError | None = None
        while offset < end and self._left_bytes > 0 and self._left_records > 0:
            try:
                read_batches = await log.read(offset, self._left_bytes)
                if not read_batches:  # a new leader does not know yet how far it is committed
                    break
                taken, offset = self._take(read_batches, offset, end)
            except ReadMemoryFullError:
                if not self.has_taken:
                    raise
                self._left_bytes = 0  # what there is goes first
            except _UNREADABLE as error:
                problem = _problem_of(error)
                break
            else:
                batches += taken
        if batches and batches[0].header.base_offset < fetch_range.start:
            self._count_start_offset(fetch_range)
        return Part(fetch_range, offset, batches, problem)

    def _count_start_offset(self, fetch_range: FetchRange) -> None:
        """Whole batches begin before what is new: the answer says where, as often as it can."""
        self._start_offsets_bytes += len(fetch_range.topic.name) + _START_OFFSET_BYTES
        if not self.bounds.is_text and self._start_offsets_bytes > START_OFFSETS_BYTES_MAX:
            self._left_bytes = 0  # what there is goes first

    async def _read_again(self, fetch_range: FetchRange, log: ReadLog, end: int) -> Part:
        """All of it or, when it cannot be read, nothing; whatever the bounds are."""
        offset = fetch_range.start
        batches: list[StoredBatch] = []
        try:
            while offset < end:
                read_batches = await log.read(offset, _AGAIN_BYTES)
                if not read_batches:  # the replica is fetched again
                    return Part(fetch_range, fetch_range.start, ())
                taken = [each for each in read_batches if each.header.base_offset < end]
                self._hold(taken)
                batches += taken
                offset = min(taken[-1].header.end_offset, end)
        except _UNREADABLE as error:
            return Part(fetch_range, fetch_range.start, (), _problem_of(error))
        return Part(fetch_range, offset, batches)

    def _take(
        self, found: Sequence[StoredBatch], offset: int, end: int
    ) -> tuple[list[StoredBatch], int]:
        """Return the batches from `offset` on that are within the bounds, and their end.

        ReadMemoryFullError: none of them.
        """
        taken: list[StoredBatch] = []
        left_bytes, left_records = self._left_bytes, self._left_records
        for batch in found:
            header = batch.header
            is_over = header.batch_bytes > left_bytes and (self.has_taken or bool(taken))
            if is_over or left_records <= 0 or offset >= end:
                left_bytes = 0 if is_over else left_bytes
                break
            taken.append(batch)
            left_bytes -= header.batch_bytes
            count = header.end_offset - offset
            count = min(count, left_records) if self.bounds.is_text else count
            left_records -= count
            offset += count
        self._hold(taken)
        self._left_bytes, self._left_records = left_bytes, left_records
        return taken, offset

    def _hold(self, taken: Sequence[StoredBatch]) -> None:
        """Memory for these too. ReadMemoryFullError: not for them."""
        held_bytes = self._held_bytes + unpinned_bytes(taken)
        text = self._text.with_batches(taken) if self.bounds.is_text else self._text
        self.lease.resize(held_bytes + text.held_bytes)
        self._held_bytes, self._text = held_bytes, text
        self.has_taken = self.has_taken or bool(taken)


def _problem_of(error: TailraceError) -> TailraceError | None:
    """Damage is one; no problem is what was trimmed or deleted meanwhile, or changes its leader."""
    is_problem = isinstance(error, CorruptPartitionError | ReadFailedError)
    return error.with_traceback(None) if is_problem else None
