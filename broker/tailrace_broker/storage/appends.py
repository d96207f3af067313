"""What waits to be appended to a partition: whole batches, or single events to be coalesced."""

from collections.abc import Callable

import numpy as np

from tailrace.wire import Flag
from tailrace_broker.codec.batch import BatchBody
from tailrace_broker.codec.columns import RecordColumns, column_of_values, pack_columns
from tailrace_broker.model.errors import TailraceError

# Called once, on the event loop: the offset of the request's first record, or why there is none.
Appended = Callable[[int, TailraceError | None], None]

# What a single event costs in a batch beside its key and value: two offsets and a timestamp.
_EVENT_OVERHEAD_BYTES = 16


class BatchAppend:
    """One request's records, a batch of their own; as columns, or compressed already."""

    def __init__(self, contents: RecordColumns | BatchBody, done: Appended) -> None:
        self._contents = contents
        self.size_bytes = len(contents.payload)
        self.finish = done

    def contents(self) -> RecordColumns | BatchBody:
        """What the batch holds."""
        return self._contents


class EventsAppend:
    """Single events of many requests that become one batch."""

    def __init__(self) -> None:
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._timestamps_us: list[int] = []
        self._done: list[Appended] = []
        self._flags = int(Flag.JSON_VALUES | Flag.BROKER_TIMESTAMPS)
        self.size_bytes = 0

    def add(
        self, key: bytes | None, value: bytes, timestamp_us: int, flags: int, done: Appended
    ) -> None:
        """Add an event; `flags` says what holds for it (JSON_VALUES, BROKER_TIMESTAMPS)."""
        self._keys.append(key)
        self._values.append(value)
        self._timestamps_us.append(timestamp_us)
        self._done.append(done)
        self._flags &= flags
        self.size_bytes += len(value) + len(key or b"") + _EVENT_OVERHEAD_BYTES

    def contents(self) -> RecordColumns:
        """What the batch holds."""
        return pack_columns(
            column_of_values(self._values),
            column_of_values(self._keys),
            np.array(self._timestamps_us, np.int64),
            flags=self._flags,
        )

    def finish(self, base_offset: int, error: TailraceError | None) -> None:
        """Tell each request its own offset."""
        for offset, done in enumerate(self._done, start=base_offset):
            done(offset, error)
