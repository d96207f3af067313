"""What the logs of a partition of `__groups` and of its parents make of groups."""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import count
from uuid import UUID

import pytest
from msgspec.structs import replace

from tailrace_broker.codec.batch import StoredBatch, verified_batches
from tailrace_broker.codec.groups import encode_group_event
from tailrace_broker.core.groups.group import Group
from tailrace_broker.core.ring.arithmetic import token
from tailrace_broker.groups.stored_groups import GroupsReader, StoredGroups, read_groups
from tailrace_broker.model.errors import CorruptPartitionError, NotReadyError
from tailrace_broker.model.group import (
    Committed,
    Deleted,
    GroupRecord,
    GroupsInherited,
    GroupSnapshot,
    Published,
)
from tailrace_broker.model.topic import Partition, Topic, TopicSettings
from tests.support.storage.batches import Event, batch_of

ID = UUID(int=1)
LOWEST, HIGHEST = -(2**63), 2**63
NAMES = [f"group-{number}" for number in range(20)]
LOW = [name for name in NAMES if token(name.encode()) < 0]
HIGH = [name for name in NAMES if token(name.encode()) >= 0]
INHERITED = ("", GroupsInherited())


class Log:
    """A partition's records from `log_start` on, a batch each."""

    def __init__(self, *records: tuple[str, GroupRecord | bytes], log_start: int = 0) -> None:
        self.log_start = log_start
        self._records = records

    @property
    def end(self) -> int:
        return self.log_start + len(self._records)

    async def read(self, offset: int, max_bytes: int) -> Sequence[StoredBatch]:
        name, record = self._records[offset - self.log_start]
        value = record if isinstance(record, bytes) else encode_group_event(record)
        return verified_batches(
            memoryview(batch_of([Event(value, key=name.encode())], base_offset=offset))
        )


class Holed(Log):
    """Its records at some offsets are lost."""

    def __init__(
        self, *records: tuple[str, GroupRecord | bytes], lost: range, is_accepted: bool = True
    ) -> None:
        super().__init__(*records)
        self._lost = lost
        self._is_accepted = is_accepted

    async def read(self, offset: int, max_bytes: int) -> Sequence[StoredBatch]:
        if offset in self._lost:
            raise CorruptPartitionError(
                "lost",
                firstOffset=self._lost.start,
                nextOffset=self._lost.stop,
                accepted=self._is_accepted,
            )
        return await super().read(offset, max_bytes)


class Unreadable(Log):
    async def read(self, offset: int, max_bytes: int) -> Sequence[StoredBatch]:
        return ()


def committed(offset: int) -> Committed:
    return Committed({ID: {0: offset}})


def snapshot(offset: int) -> GroupSnapshot:
    return GroupSnapshot(1, (), {ID: {0: offset}})


def partition(
    number: int, *parents: int, first: int = 0, tokens: tuple[int, int] = (LOWEST, HIGHEST)
) -> Partition:
    return Partition(number, number, number + 1, *tokens, first, parents)


def read(lineage: Sequence[Partition], logs: Mapping[int, Log]) -> StoredGroups:
    """What the last partition's leader reads."""
    sealed = [
        replace(each, sealed_end=logs[number].end) for number, each in enumerate(lineage[:-1])
    ]
    mine = lineage[-1]
    topic = Topic("__groups", ID, TopicSettings(), (*sealed, mine))

    async def find(parent: Partition) -> Log:
        return logs[parent.partition]

    reader = GroupsReader(9, count(1), 77, find)
    log = logs[mine.partition]
    return asyncio.run(read_groups(reader, topic, mine, log, log.end))


def positions(by_name: Mapping[str, Group]) -> dict[str, int]:
    return {name: next(iter(group.stored.values())) for name, group in by_name.items()}


def test_a_partition_without_parents_has_what_it_stores() -> None:
    stored = read(
        [partition(0)], {0: Log(("a", committed(3)), ("b", committed(4)), ("b", Deleted()))}
    )

    assert positions(stored.by_name) == {"a": 3}
    assert not stored.is_inherited


def test_a_new_partition_has_those_of_its_parents_groups_whose_names_it_has() -> None:
    lineage = [partition(0), partition(1, 0, first=20, tokens=(LOWEST, 0))]

    stored = read(lineage, {0: Log(*((name, committed(5)) for name in NAMES)), 1: Log()})

    assert positions(stored.by_name) == dict.fromkeys(LOW, 5)
    assert stored.is_inherited


def test_a_joined_partition_has_the_groups_of_both_parents() -> None:
    lineage = [
        partition(0, tokens=(LOWEST, 0)),
        partition(1, tokens=(0, HIGHEST)),
        partition(2, 0, 1, first=20),
    ]
    low = Log(*((name, committed(5)) for name in LOW))
    high = Log(*((name, Published("spark", {ID: {0: 6}})) for name in HIGH))

    stored = read(lineage, {0: low, 1: high, 2: Log(log_start=20)})

    assert positions(stored.by_name) == {**dict.fromkeys(LOW, 5), **dict.fromkeys(HIGH, 6)}
    assert {stored.by_name[name].source for name in HIGH} == {"spark"}


def test_what_was_begun_and_not_ended_is_read_from_the_parents_again() -> None:
    lineage = [partition(0), partition(1, 0, first=2)]
    parent = Log(("a", committed(3)), ("b", committed(4)))

    stored = read(lineage, {0: parent, 1: Log(("a", snapshot(3)), log_start=2)})

    assert positions(stored.by_name) == {"a": 3, "b": 4}
    assert stored.is_inherited


@pytest.mark.parametrize(
    ("first", "log"),
    [
        (1, Log(("a", snapshot(3)), INHERITED, ("a", committed(7)), log_start=1)),
        (1, Log(("a", snapshot(7)), log_start=5)),  # compacted since
    ],
)
def test_what_is_stored_to_its_end_needs_no_parents(first: int, log: Log) -> None:
    lineage = [partition(0), partition(1, 0, first=first)]

    stored = read(lineage, {0: Unreadable(("a", committed(3))), 1: log})

    assert positions(stored.by_name) == {"a": 7}
    assert not stored.is_inherited


def test_a_parent_that_has_stored_nothing_to_its_end_is_passed_over() -> None:
    """It was sealed before its leader had read its own parents."""
    lineage = [
        partition(0),
        partition(1, 0, first=20),
        partition(2, 1, first=22, tokens=(0, HIGHEST)),
    ]
    begun = Log((NAMES[0], snapshot(5)), (NAMES[1], snapshot(5)), log_start=20)

    stored = read(
        lineage,
        {0: Log(*((name, committed(5)) for name in NAMES)), 1: begun, 2: Log(log_start=22)},
    )

    assert positions(stored.by_name) == dict.fromkeys(HIGH, 5)


def test_groups_are_those_of_the_present_epoch() -> None:
    stored = read([partition(0), partition(1, 0, first=1)], {0: Log(("a", committed(3))), 1: Log()})

    assert stored.by_name["a"].term == 9


def test_a_parent_that_cannot_be_read_to_its_end_is_no_parent_without_groups() -> None:
    with pytest.raises(NotReadyError):
        read(
            [partition(0), partition(1, 0, first=1)], {0: Unreadable(("a", committed(3))), 1: Log()}
        )


def test_damage_in_a_copy_of_a_parent_is_not_that_of_the_child() -> None:
    """Another copy may be read later: the child is tried again."""
    with pytest.raises(NotReadyError):
        read([partition(0), partition(1, 0, first=1)], {0: Log(("a", b"{}")), 1: Log()})


def test_a_record_that_is_no_group_event_is_damage() -> None:
    with pytest.raises(CorruptPartitionError) as raised:
        read([partition(0)], {0: Log(("a", b"{}"))})

    assert raised.value.members["partition"] == 0


def test_groups_go_on_without_what_was_given_up_of_their_parents() -> None:
    lineage = [partition(0), partition(1, 0, first=3), partition(2, 1, first=3)]
    first = Log(("a", committed(3)), ("b", committed(4)), ("c", committed(5)))
    second = Holed(("a", snapshot(3)), INHERITED, ("b", committed(9)), lost=range(2))

    stored = read(lineage, {0: first, 1: second, 2: Log(log_start=3)})

    assert positions(stored.by_name) == {"a": 3, "b": 9, "c": 5}
    assert stored.is_inherited


def test_damage_of_a_parent_that_nobody_has_given_up_is_waited_for() -> None:
    lineage = [partition(0), partition(1, 0, first=2)]
    parent = Holed(("a", committed(3)), ("b", committed(4)), lost=range(1), is_accepted=False)

    with pytest.raises(NotReadyError):
        read(lineage, {0: parent, 1: Log(log_start=2)})
