"""What waits to be appended to a partition: whole batches, or single events to be coalesced."""

from collections.abc import Iterator, Sequence

from tailrace.wire import HEADER_BYTES, PRODUCER_ENTRY, Flag
from tailrace_broker.codec.batch import BatchBody
from tailrace_broker.codec.columns import (
    RECORD_OVERHEAD_BYTES,
    RecordColumns,
    pack_event,
    pack_events,
)
from tailrace_broker.codec.producers import TableEntry, encode_table, with_table
from tailrace_broker.core.log.producers import Producer
from tailrace_broker.model.append_outcome import Appended, AppendOutcome, OnAppended

# A write takes what waits up to here, or one larger append alone.
GROUP_BYTES_MAX = 4 * 1024 * 1024
_ALL_FLAGS = int(Flag.JSON_VALUES | Flag.BROKER_TIMESTAMPS)


class BatchAppend:
    """One request's records, a batch of their own; as columns, or compressed already."""

    __slots__ = ("_contents", "_producer", "finish", "size_bytes")

    def __init__(
        self,
        contents: RecordColumns | BatchBody,
        done: OnAppended,
        producer: Producer | None,
    ) -> None:
        self._contents = contents
        self._producer = producer
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

    def requests(self) -> Iterator[tuple[Producer, int]]:
        """The request, if it names its producer, with its first record's number."""
        if self._producer is not None:
            yield self._producer, 0


class EventsAppend:
    """Single events of many requests that become one batch."""

    __slots__ = ("_entries", "_events", "_flags", "size_bytes")

    def __init__(self) -> None:
        self._events: list[tuple[bytes, bytes | None, int, OnAppended]] = []
        self._entries: list[TableEntry] | None = None  # None: no request names its producer
        self._flags = _ALL_FLAGS
        self.size_bytes = 0

    def add(
        self,
        key: bytes | None,
        value: bytes,
        timestamp_us: int,
        flags: int,
        done: OnAppended,
        producer: Producer | None,
    ) -> int:
        """Add an event; `flags`: what holds for it (JSON_VALUES, BROKER_TIMESTAMPS). Its size."""
        added_bytes = len(value) + len(key or b"") + RECORD_OVERHEAD_BYTES
        if producer is not None:
            added_bytes += PRODUCER_ENTRY.size
            self._entries = self._entries or []
            self._entries.append(TableEntry(*producer, len(self._events), 1))
        self._events.append((value, key, timestamp_us, done))
        self._flags &= flags
        self.size_bytes += added_bytes
        return added_bytes

    def requests(self) -> Iterator[tuple[Producer, int]]:
        """Each request that names its producer, with its event's number."""
        for entry in self._entries or ():
            yield Producer(entry.id, entry.sequence), entry.first_record

    def contents(self) -> RecordColumns | BatchBody:
        """What the batch holds."""
        events, flags = self._events, self._flags
        if len(events) == 1:
            value, key, timestamp_us, _ = events[0]
            columns = pack_event(value, key, timestamp_us, flags=flags)
        else:
            values, keys, timestamps_us, _ = zip(*events, strict=True)
            columns = pack_events(values, keys, timestamps_us, flags=flags)
        return _of_producers(columns, self._entries) if self._entries else columns

    def finish(self, outcome: AppendOutcome) -> None:
        """Answer each request with its own offset, or all with the error."""
        if isinstance(outcome, Appended) and len(self._events) > 1:
            first_offset, is_duplicate, copies, partition = outcome
            assert not is_duplicate
            for offset, (_, _, _, done) in enumerate(self._events, start=first_offset):
                # Not `_replace`, which costs three times as much.
                done(Appended(offset, is_duplicate, copies, partition))
        else:
            for _, _, _, done in self._events:
                done(outcome)


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
        done: OnAppended,
        producer: Producer | None,
    ) -> None:
        """An event, to be coalesced with others."""
        last = self._waiting[-1] if self._waiting else None
        if not isinstance(last, EventsAppend) or last.size_bytes >= GROUP_BYTES_MAX:
            last = EventsAppend()
            self._waiting.append(last)
        self.size_bytes += last.add(key, value, timestamp_us, flags, done, producer)

    def take_group(self) -> list[Append]:
        """The next write's: what waits up to `GROUP_BYTES_MAX`, at least one."""
        if len(self._waiting) == 1:
            group, self._waiting, self.size_bytes = self._waiting, [], 0
            return group
        count, group_bytes = 1, self._waiting[0].size_bytes
        for append in self._waiting[1:]:
            group_bytes += append.size_bytes
            if group_bytes > GROUP_BYTES_MAX:
                break
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        self.size_bytes -= sum(append.size_bytes for append in group)
        return group
