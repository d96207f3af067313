"""What the entries of model logs hold: a value's record, and an entry as a stored batch."""

from typing import NamedTuple
from uuid import UUID

from tailrace_broker.codec.batch import (
    BatchBody,
    BatchPlace,
    StoredBatch,
    compress_columns,
    stamp_batch,
)
from tailrace_broker.codec.columns import pack_event
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.topic import NO_EPOCH
from tests.simulation.ring.data.model_log import Entry

# Of the topic `__groups`, which coordinators alone write.
GROUPS_ID = UUID(int=1000)


class _Place(NamedTuple):
    key: LogKey
    offset: int
    epoch: int


class Records:
    """By value. An entry's batch is made once, however many replicas have it."""

    def __init__(self) -> None:
        self._bodies: dict[int, BatchBody] = {}
        self._batches: dict[_Place, tuple[int, StoredBatch]] = {}
        self.last_number = 0

    def add(self, key: bytes | None, value: bytes | None = None) -> int:
        """The number of a new record; without a value that is its value."""
        self.last_number += 1
        number = self.last_number
        if key is not None or value is not None:
            columns = pack_event(value or b"", key, number, flags=0)
            self._bodies[number] = compress_columns(columns)
        return number

    def batch(self, key: LogKey, range_id: int, offset: int, entry: Entry) -> StoredBatch:
        """An entry as it is stored; its time is its number."""
        place = _Place(key, offset, entry.epoch)
        known = self._batches.get(place)
        if known is not None and known[0] == entry.value:
            return known[1]
        body = self._bodies.get(entry.value)
        if body is None:
            columns = pack_event(b"%d" % entry.value, None, entry.value, flags=0)
            body = compress_columns(columns)
        where = BatchPlace(
            key.topic_id,
            range_id,
            key.partition,
            entry.epoch,
            NO_EPOCH,
            offset,
            entry.value,
            entry.committed,
        )
        batch = stamp_batch(body, where)
        self._batches[place] = entry.value, batch
        return batch
