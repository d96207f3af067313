"""What waits to be appended to a partition: whole batches, or single events to be coalesced."""

from collections.abc import Sequence
from typing import NamedTuple

from tailrace.wire import HEADER_BYTES, PRODUCER_ENTRY, BatchHeader, Flag
from tailrace_broker.codec.batch import BatchBody, BatchPlace, StoredBatch, stamp_batch
from tailrace_broker.codec.columns import RECORD_OVERHEAD_BYTES, RecordColumns, pack_events
from tailrace_broker.codec.producers import TableEntry, encode_table, with_table
from tailrace_broker.core.log.producers import Producer
from tailrace_broker.model.appended import Appended
from tailrace_broker.model.errors import TailraceError
from tailrace_broker.storage.segments.writer import LogPlace

# A write takes what waits up to here, or one larger append alone.
GROUP_BYTES_MAX = 4 * 1024 * 1024


class BatchAppend:
    """One request's records, a batch of their own; as columns, or compressed already."""

    __slots__ = ("_contents", "finish", "size_bytes")

    def __init__(
        self,
        contents: RecordColumns | BatchBody,
        done: Appended,
        producer: Producer | None = None,
    ) -> None:
        self._contents = contents
        self.size_bytes = HEADER_BYTES + len(contents.payload)
        self.finish = done
        if producer is not None:
            self.size_bytes += PRODUCER_ENTRY.size
            self._contents = _of_producers(
                contents, [TableEntry(*producer, 0, contents.record_count)]
            )

    def contents(self) -> RecordColumns | BatchBody:
        """What the batch holds."""
        return self._contents


class EventsAppend:
    """Single events of many requests that become one batch."""

    __slots__ = (
        "_done", "_entries", "_flags", "_keys", "_timestamps_us", "_values", "size_bytes",
    )  # fmt: skip

    def __init__(self) -> None:
        self._keys: list[bytes | None] = []
        self._values: list[bytes] = []
        self._timestamps_us: list[int] = []
        self._done: list[Appended] = []
        self._entries: list[TableEntry] = []
        self._flags = int(Flag.JSON_VALUES | Flag.BROKER_TIMESTAMPS)
        self.size_bytes = 0

    def add(
        self,
        key: bytes | None,
        value: bytes,
        timestamp_us: int,
        flags: int,
        done: Appended,
        producer: Producer | None = None,
    ) -> int:
        """Add an event; `flags`: what holds for it (JSON_VALUES, BROKER_TIMESTAMPS). Its size."""
        added_bytes = len(value) + len(key or b"") + RECORD_OVERHEAD_BYTES
        if producer is not None:
            added_bytes += PRODUCER_ENTRY.size
            self._entries.append(TableEntry(*producer, len(self._keys), 1))
        self._keys.append(key)
        self._values.append(value)
        self._timestamps_us.append(timestamp_us)
        self._done.append(done)
        self._flags &= flags
        self.size_bytes += added_bytes
        return added_bytes

    def contents(self) -> RecordColumns | BatchBody:
        """What the batch holds."""
        columns = pack_events(self._values, self._keys, self._timestamps_us, flags=self._flags)
        return _of_producers(columns, self._entries) if self._entries else columns

    def finish(self, base_offset: int, error: TailraceError | None) -> None:
        """Tell each request its own offset."""
        for offset, done in enumerate(self._done, start=base_offset):
            done(offset, error)


Append = BatchAppend | EventsAppend


def _of_producers(
    contents: RecordColumns | BatchBody, entries: Sequence[TableEntry]
) -> RecordColumns | BatchBody:
    """With the table that says which records are whose."""
    table = encode_table(entries)
    if isinstance(contents, BatchBody):
        return with_table(contents, table)
    return contents._replace(producer_table=table)


class AppendQueue:
    """In the order of the requests; single events join the last that still takes some."""

    __slots__ = ("_waiting", "size_bytes")

    def __init__(self) -> None:
        self._waiting: list[Append] = []
        self.size_bytes = 0

    def __bool__(self) -> bool:
        """Something waits."""
        return bool(self._waiting)

    @property
    def has_only_events(self) -> bool:
        """Nothing waits but single events, which others can join."""
        return len(self._waiting) == 1 and isinstance(self._waiting[0], EventsAppend)

    def add_batch(self, append: BatchAppend) -> None:
        """A batch of its own."""
        self._waiting.append(append)
        self.size_bytes += append.size_bytes

    def add_event(
        self,
        key: bytes | None,
        value: bytes,
        timestamp_us: int,
        flags: int,
        done: Appended,
        producer: Producer | None = None,
    ) -> None:
        """An event, to be coalesced with others."""
        last = self._waiting[-1] if self._waiting else None
        if not isinstance(last, EventsAppend) or last.size_bytes >= GROUP_BYTES_MAX:
            last = EventsAppend()
            self._waiting.append(last)
        self.size_bytes += last.add(key, value, timestamp_us, flags, done, producer)

    def take_group(self) -> list[Append]:
        """The next write's: what waits up to `GROUP_BYTES_MAX`, at least one."""
        count, group_bytes = 1, self._waiting[0].size_bytes
        for append in self._waiting[1:]:
            group_bytes += append.size_bytes
            if group_bytes > GROUP_BYTES_MAX:
                break
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        self.size_bytes -= sum(append.size_bytes for append in group)
        return group


class LogEnd(NamedTuple):
    """Where the next batch goes, and what it follows."""

    offset: int
    epoch: int
    append_time_us: int

    @classmethod
    def behind(cls, header: BatchHeader) -> "LogEnd":
        """After this batch."""
        return cls(header.end_offset, header.epoch, header.append_time_us)


def stamp(
    bodies: Sequence[BatchBody], place: LogPlace, end: LogEnd, now_us: int, durable_end: int
) -> list[StoredBatch]:
    """Give batches their offsets behind the end of the log.

    `durable_end`: all below survives a power failure, so that a recovery that misses it knows.
    """
    batches = []
    base_offset, previous_epoch = end.offset, end.epoch
    append_time_us = max(now_us, end.append_time_us)
    for body in bodies:
        batches.append(
            stamp_batch(
                body,
                BatchPlace(
                    topic_id=place.topic_id,
                    range_id=place.range_id,
                    partition=place.partition,
                    epoch=place.epoch,
                    previous_epoch=previous_epoch,
                    base_offset=base_offset,
                    append_time_us=append_time_us,
                    high_watermark=durable_end,
                ),
            )
        )
        base_offset += body.record_count
        previous_epoch = place.epoch
    return batches
