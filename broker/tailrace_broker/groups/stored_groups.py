"""What the records of a partition of `__groups` make of its groups; and of those of its parents.

Over a step of the ring a partition is sealed, and others follow it. A sealed log never changes. So
the first leader of a partition that follows others reads them to their ends, stores a snapshot of
each group whose name belongs to it, and then `GroupsInherited`. A leader that does not find that
record begins again, whatever is before it: nothing else was stored, and what the parents say is the
same.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from tailrace_broker.codec.batch import StoredBatch, decompress_payload
from tailrace_broker.codec.groups import decode_group_event
from tailrace_broker.codec.records import unpack_columns
from tailrace_broker.core.groups.group import Group
from tailrace_broker.core.ring.arithmetic import token
from tailrace_broker.model.damage import given_up
from tailrace_broker.model.errors import (
    CorruptBatchError,
    CorruptPartitionError,
    NotReadyError,
    StoredDataError,
)
from tailrace_broker.model.group import GROUPS_TOPIC, Deleted, GroupRecord, GroupsInherited
from tailrace_broker.model.topic import Partition, Topic

_READ_BYTES = 1024 * 1024


class GroupsLog(Protocol):
    """The log of a partition of `__groups`, here or elsewhere."""

    @property
    def log_start(self) -> int:
        """The first offset that can be read."""

    async def read(self, offset: int, max_bytes: int) -> Sequence[StoredBatch]:
        """Committed batches from the one that holds `offset`."""


# Finds the log of a sealed partition, with all of it. TailraceError.
FindSealed = Callable[[Partition], Awaitable[GroupsLog]]


class GroupsReader(NamedTuple):
    """Who reads: the coordinator's epoch, its numbers of deliveries, and its clock."""

    term: int
    numbers: Iterator[int]
    now_us: int
    find: FindSealed


class StoredGroups(NamedTuple):
    """The groups of a partition. `is_inherited`: they are not stored in it yet."""

    by_name: dict[str, Group]
    is_inherited: bool = False


async def read_groups(
    reader: GroupsReader, topic: Topic, partition: Partition, log: GroupsLog, end: int
) -> StoredGroups:
    """Read a partition of `__groups` up to `end`; what it lacks its parents have.

    CorruptPartitionError, ReadFailedError; what `find` raises. NotReadyError: also where a copy of
    a parent is damaged: there may be others.
    """
    # What was compacted begins with snapshots of all groups.
    is_whole = not partition.parents or log.log_start > partition.first_offset
    by_name: dict[str, Group] = {}
    lost: list[range] = []
    async for name, record in _records(log, partition.partition, end, lost):
        if isinstance(record, GroupsInherited):
            is_whole = True
            continue
        group = by_name.get(name)
        if group is None:
            group = by_name[name] = Group(name, reader.term, reader.numbers)
        group.apply(record, reader.now_us)
        if isinstance(record, Deleted):
            del by_name[name]
    if is_whole:
        return StoredGroups(by_name)
    inherited = await _of_parents(reader, topic, partition)
    # What says that all were stored may be among what is lost: what was stored is newer.
    return StoredGroups(inherited | by_name if lost else inherited, is_inherited=True)


async def _of_parents(reader: GroupsReader, topic: Topic, partition: Partition) -> dict[str, Group]:
    """Return the groups of its parents, at their ends, whose names belong to the partition."""
    found: dict[str, Group] = {}
    for parent in map(topic.at, partition.parents):
        assert parent.sealed_end is not None, parent
        try:
            log = await reader.find(parent)
            stored = await read_groups(reader, topic, parent, log, parent.sealed_end)
        except StoredDataError as error:  # of this copy; it is fetched again from another
            raise NotReadyError(error.detail) from error
        found |= _in_tokens_of(partition, stored.by_name)
    return found


def _in_tokens_of(partition: Partition, by_name: Mapping[str, Group]) -> dict[str, Group]:
    start, end = partition.token_start, partition.token_end
    return {name: each for name, each in by_name.items() if start <= token(name.encode()) < end}


async def _records(
    log: GroupsLog, partition: int, end: int, lost: list[range]
) -> AsyncIterator[tuple[str, GroupRecord]]:
    """Yield a group's name and what is said of it, in the log's order.

    What is lost, as was accepted, is passed over, and added to `lost`.
    """
    offset = log.log_start
    while offset < end:
        try:
            batches = await log.read(offset, _READ_BYTES)
        except CorruptPartitionError as error:
            gone = given_up(error)
            if gone is None:
                raise
            lost.append(gone)
            offset = gone.stop
            continue
        if not batches:
            raise NotReadyError(f"partition {partition} of {GROUPS_TOPIC} cannot be read now")
        for batch in batches:
            columns = decompress_payload(batch.header, batch.contents())
            for record in unpack_columns(batch.header, columns):
                try:
                    event = decode_group_event(record.value or b"")
                except CorruptBatchError as error:
                    raise CorruptPartitionError(
                        error.detail, topic=GROUPS_TOPIC, partition=partition
                    ) from error
                yield (record.key or b"").decode(errors="replace"), event
            offset = batch.header.end_offset
