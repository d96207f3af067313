"""What must always be true of groups: the invariants 7 and 8.

What is stored of a group is what the committed records of `__groups` say. Consumers report what
they got, when they say that they have dealt with it, and when that was acknowledged.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple
from uuid import UUID

from tailrace_broker.codec.groups import decode_group_event
from tailrace_broker.model.group import (
    Committed,
    GroupsInherited,
    GroupSnapshot,
    Joined,
    Left,
    Offsets,
    TopicPartition,
)
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import RingState
from tailrace_broker.model.topic import Partition
from tests.simulation.ring.data.host import Host
from tests.simulation.ring.data.truth import Truth
from tests.simulation.ring.violation import check

Place = tuple[str, TopicPartition]  # of a group in a partition


class Delivered(NamedTuple):
    """What a consumer got: by partition [start, end), and the records."""

    group: str
    consumer: str
    number: int
    ranges: Mapping[TopicPartition, tuple[int, int]]


class GroupsTruth:
    """By group and partition: what is `stored`, and what consumers have `dealt` with."""

    def __init__(
        self,
        data: Truth,
        counts: Counter[str],
        rules: Counter[str],
        partition_of: Callable[[TopicPartition], Partition | None],
    ) -> None:
        """`partition_of`: as it is committed; None: its topic is gone."""
        self._partition_of = partition_of
        self.stored: dict[Place, int] = {}
        self.dealt: dict[Place, int] = {}
        self._acked: dict[Place, int] = {}
        self._excused: dict[Place, int] = {}  # below lies what a `written` topic has lost
        self._grants: dict[Place, list[Delivered]] = {}
        # Records that retention took before the group got them, as [first, end) by group.
        self._gaps: dict[str, list[tuple[TopicPartition, int, int]]] = {}
        # Of each loss what was left, and the number of the last record before it.
        self._losses: dict[TopicPartition, list[tuple[int, int]]] = {}
        self._starts: dict[TopicPartition, int] = {}  # where logs began at some replica
        self._joined: dict[str, int] = {}  # the assignment epoch of a consumer, as answered
        self._unsteady: set[UUID] = set()  # topics that were deleted, restored or not
        self._data = data
        self._counts = counts
        self._rules = rules

    # --- the log of groups ---

    def stored_event(self, group: str, contents: bytes, number: int) -> None:
        """A record of `__groups` is committed; in the order of the log."""
        event = decode_group_event(contents)
        self._counts[f"group {type(event).__name__.lower()}"] += 1
        match event:
            case Joined():
                known = {tp.topic_id for name, tp in self.stored if name == group}
                for tp, start in _each(event.starts):
                    if tp.topic_id not in known:
                        left = self._left(tp, start, number)
                        self.stored[group, tp] = self.dealt[group, tp] = left
                        if left < start:
                            self._excused[group, tp] = start
            case Left():
                self._rules["groups.expired"] += event.reason == "expired"
            case Committed():
                for tp, offset in _each(event.offsets):
                    left = self._left(tp, offset, number)
                    self._check_stored(group, tp, left)
                    self.stored[group, tp] = left
                self._check_lost(group, event.lost)
            case GroupSnapshot():
                self._rules["groups.compacted"] += 1
                for tp, offset in _each(event.offsets):
                    known_offset = self.stored.get((group, tp), self._first(tp))
                    check(
                        offset == known_offset or (group, tp) in self._excused,
                        f"7: a snapshot has group {group} at {offset} of {tp}: {known_offset} is "
                        "stored",
                    )
            case GroupsInherited():
                self._rules["groups.inherited"] += 1
            case _:
                raise AssertionError(event)

    def _check_stored(self, group: str, tp: TopicPartition, offset: int) -> None:
        known = self.stored.get((group, tp), self._first(tp))
        check(
            offset >= known,
            f"7: group {group} goes back from {known} to {offset} of {tp}",
        )
        self._check_reached(group, tp, offset, "stores")

    def _check_lost(self, group: str, lost: int) -> None:
        skipped = sum(
            end - first
            for tp, first, end in self._gaps.get(group, ())
            if end <= self.stored.get((group, tp), self._first(tp))
        )
        check(lost >= skipped, f"7: group {group} has lost {skipped} records, and counts {lost}")

    # --- what consumers say ---

    def registered(self, consumer: str, epoch: int) -> None:
        """Answered with this assignment epoch."""
        self._joined[consumer] = max(epoch, self._joined.get(consumer, 0))

    def joined_epoch(self, consumer: str) -> int:
        """The newest that was answered."""
        return self._joined.get(consumer, 0)

    def answered(self, consumer: str, known_epoch: int, joined_epoch: int) -> None:
        """Invariant 8: a request that knows an older assignment than had been answered before."""
        check(
            known_epoch >= joined_epoch,
            f"8: {consumer} is answered in assignment epoch {known_epoch}, though it has "
            f"registered in {joined_epoch} since",
        )

    def received(self, delivered: Delivered, values: Mapping[TopicPartition, list[int]]) -> None:
        """Invariant 7: what comes goes on where the group was, and is what is committed."""
        self._counts["delivered"] += 1
        for tp, (start, end) in delivered.ranges.items():
            place = delivered.group, tp
            acked = self._acked.get(place, 0)
            who = f"{delivered.consumer} of group {delivered.group}"
            check(start >= acked, f"7: {who} gets {start} of {tp}, though {acked} was committed")
            self._check_reached(delivered.group, tp, start, f"has {delivered.consumer} read")
            self._check_parents(delivered.group, tp, who)
            committed = self._data.committed(LogKey(*tp))
            for offset, value in zip(range(start, end), values[tp], strict=True):
                known = committed.get(offset, value)
                check(known == value, f"7: {who} gets {value} at {offset} of {tp}, not {known}")
            self._grants.setdefault(place, []).append(delivered)

    def confirms(self, delivered: Delivered) -> None:
        """A consumer is about to say that it has dealt with this."""
        for tp, (_, end) in delivered.ranges.items():
            place = delivered.group, tp
            self.dealt[place] = max(end, self.dealt.get(place, 0))

    def committed(self, delivered: Delivered) -> None:
        """Invariant 8: only the newer of two that got the same commits it."""
        self._counts["committed"] += 1
        for tp, (_, end) in delivered.ranges.items():
            place = delivered.group, tp
            if tp.topic_id in self._unsteady or end <= self._excused.get(place, -1):
                continue
            for other in self._grants.get(place, ()):
                check(
                    other.number <= delivered.number or other.ranges[tp][0] >= end,
                    f"8: {delivered} was committed, though {other} is newer",
                )
            self._acked[place] = max(end, self._acked.get(place, 0))

    # --- the ring ---

    def changed(self, after: RingState) -> None:
        """What is delivered of a deleted topic is forgotten."""
        for topic_id in after.deleted.keys() - self._unsteady:
            self._unsteady.add(topic_id)
            for place in [each for each in self._acked if each[1].topic_id == topic_id]:
                del self._acked[place]

    def began_at(self, host: Host, key: LogKey) -> None:
        """Retention has removed what is before."""
        tp = TopicPartition(*key)
        self._starts[tp] = max(host.hosted[key].ends.start, self._starts.get(tp, 0))

    def gone(self, tp: TopicPartition, end: int) -> None:
        """The ring has no record of the partition any more."""
        self._starts[tp] = end

    def lost(self, key: LogKey, end: int, last_number: int) -> None:
        """A `written` topic has lost what is above, with the power of all.

        `last_number`: of the records that were made before.
        """
        tp = TopicPartition(*key)
        self._losses.setdefault(tp, []).append((end, last_number))
        for place in {*self.stored, *self.dealt}:
            if place[1] == tp:
                ends = (self.stored.get(place, 0), self.dealt.get(place, 0))
                grants = [each.ranges[tp][1] for each in self._grants.pop(place, [])]
                self._excused[place] = max(*ends, *grants, self._excused.get(place, 0))
                for offsets in (self.stored, self.dealt, self._acked):
                    if place in offsets:
                        offsets[place] = min(offsets[place], end)

    def _left(self, tp: TopicPartition, offset: int, number: int) -> int:
        """What losses leave of an offset in a record that may be older, and was committed later."""
        return min([offset, *(end for end, last in self._losses.get(tp, ()) if number <= last)])

    def _first(self, tp: TopicPartition) -> int:
        """The first offset that the partition ever had."""
        partition = self._partition_of(tp)
        return 0 if partition is None else partition.first_offset

    def _check_parents(self, group: str, tp: TopicPartition, who: str) -> None:
        """Invariant 9: children are read after their parents, and theirs."""
        partition = self._partition_of(tp)
        for parent in () if partition is None else partition.parents:
            place = TopicPartition(tp.topic_id, parent)
            sealed = self._partition_of(place)
            assert sealed is not None
            assert sealed.sealed_end is not None
            self._rules["groups.child_read"] += 1
            self._check_reached_end(group, place, sealed.sealed_end, f"{who} gets records of {tp}")
            self._check_parents(group, place, who)

    def _check_reached_end(self, group: str, tp: TopicPartition, end: int, what: str) -> None:
        dealt = max(self.dealt.get((group, tp), self._first(tp)), self._excused.get((group, tp), 0))
        if dealt < end:
            self._see_starts(tp)
            start = self._starts.get(tp, 0)
            check(start >= end, f"9: {what}, and has dealt with {dealt} of {end} of {tp}")

    def _check_reached(self, group: str, tp: TopicPartition, offset: int, does: str) -> None:
        """No record is skipped, unless retention was faster."""
        place = group, tp
        dealt = self.dealt.get(place, self._first(tp))
        if offset <= max(dealt, self._excused.get(place, 0)):
            return
        self._see_starts(tp)
        start = self._starts.get(tp, 0)
        check(
            offset <= start,
            f"7: group {group} {does} {offset} of {tp}: it has dealt with {dealt} only, and the "
            f"log begins at {start}",
        )
        self._rules["groups.lost_records"] += 1
        self._gaps.setdefault(group, []).append((tp, dealt, offset))
        self.dealt[place] = offset

    def _see_starts(self, tp: TopicPartition) -> None:
        key = LogKey(*tp)
        for host in self._data.hosts():
            if key in host.hosted:
                self.began_at(host, key)
            elif key in host.logs:  # it is sealed
                self._starts[tp] = max(host.logs[key].start, self._starts.get(tp, 0))


def _each(offsets: Offsets) -> list[tuple[TopicPartition, int]]:
    return [
        (TopicPartition(topic_id, partition), offset)
        for topic_id, by_partition in offsets.items()
        for partition, offset in by_partition.items()
    ]
