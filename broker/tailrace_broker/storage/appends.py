"""What waits to be appended to a partition: whole batches, or single events to be coalesced."""

import numpy as np

from tailrace.wire import Flag
from tailrace_broker.codec.batch import BatchBody
from tailrace_broker.codec.columns import (
    RECORD_OVERHEAD_BYTES,
    RecordColumns,
    column_of_values,
    pack_columns,
)
from tailrace_broker.model.appended import Appended
from tailrace_broker.model.errors import TailraceError


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
        self.size_bytes += len(value) + len(key or b"") + RECORD_OVERHEAD_BYTES

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
