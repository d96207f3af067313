"""What must be true of sealed partitions and of those that follow them: invariants 9 and 11.

That the open ranges cover every token once, and that the links of the lineage fit, the state's own
checks say at every committed height (`tests/support/ring/checks.py`).
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import RangeState, RingState, TopicState
from tests.simulation.ring.violation import check

if TYPE_CHECKING:
    from tests.simulation.ring.data.truth import Replicated

# Of what was acknowledged: value and epoch, by log and offset.
Acknowledged = Mapping[tuple[LogKey, int], tuple[int, int]]


class Lineage:
    """`ends`: by sealed partition, as they were committed first; `firsts`: of its children."""

    def __init__(self, ring: "Replicated") -> None:
        self.ends: dict[LogKey, int] = {}
        self.firsts: dict[LogKey, int] = {}
        self._ring = ring

    def acknowledged(self, name: str, key: LogKey, offset: int) -> None:
        """By a leader, which may not know yet that its range is sealed."""
        first, end = self.firsts.get(key, 0), self.ends.get(key)
        check(
            first <= offset and (end is None or offset < end),
            f"9: {name} acknowledges {offset} of {key}, which is sealed at {end}",
        )

    def changed(self, before: RingState, after: RingState, acknowledged: Acknowledged) -> None:
        """Ends and first offsets never change; what is sealed has all that was acknowledged."""
        if after.topics is not before.topics:
            for key, first, end in _offsets(after):
                known = self.firsts.setdefault(key, first)
                check(known == first, f"9: {key} begins at {first}, and began at {known}")
                if end is not None and key not in self.ends:
                    self.ends[key] = end
                    self._check_acknowledged(key, end, acknowledged)
                known_end = self.ends.get(key)
                check(known_end == end, f"9: {key} ends at {end}, and ended at {known_end}")
        self._check_retired(before, after)
        for range_id, owner in after.ranges.items():
            was = before.ranges.get(range_id)
            if owner.is_sealed and owner is not was:
                self._check_copies(after, owner)
                if was is not None and was.is_sealed and {*was.replicas} - {*owner.replicas}:
                    self._check_dropped(after, was, owner)

    def _check_retired(self, before: RingState, after: RingState) -> None:
        """Invariant 11: who is retired is to hold nothing."""
        for ordinal in before.brokers.keys() - after.brokers.keys():
            held = [each.id for each in before.ranges.values() if ordinal in each.replicas]
            check(not held, f"11: broker {ordinal} is retired, and has copies of ranges {held}")

    def check_end(self) -> None:
        """All whole copies are that still."""
        for owner in self._ring.state.ranges.values():
            if owner.is_sealed:
                self._check_copies(self._ring.state, owner)

    def lacking(self) -> str | None:
        """Invariant 15: a copy that is to be there, or is there though it need not be."""
        state = self._ring.state
        for owner in state.ranges.values():
            wanted = {each for each in owner.replicas if each < state.broker_count}
            if owner.is_sealed and not {*owner.replicas} == {*owner.complete} == wanted:
                return f"sealed range {owner.id} is at {owner.complete}, not {owner.replicas}"
        return None

    def _check_dropped(self, state: RingState, was: RangeState, owner: RangeState) -> None:
        """Invariant 11: enough brokers of the ring have what one need not hold any more."""
        self._ring.counts["sealed copy dropped"] += 1
        whole = [each for each in owner.complete if each < state.broker_count]
        check(
            len(whole) >= min(3, state.broker_count),
            f"11: range {owner.id} of {was.complete} is at {whole} only",
        )

    def _check_acknowledged(self, key: LogKey, end: int, acknowledged: Acknowledged) -> None:
        self._ring.counts["partition sealed"] += 1
        beyond = [offset for other, offset in acknowledged if other == key and offset >= end]
        check(not beyond, f"9: {key} is sealed at {end}: {beyond} were acknowledged")

    def _check_copies(self, state: RingState, owner: RangeState) -> None:
        """A copy that passes for whole is, durably, as far as its disk is known."""
        for topic in state.topics.values():
            for key, end in _sealed(topic, owner.id):
                for ordinal in owner.complete:
                    self._check_copy(ordinal, key, end)

    def _check_copy(self, ordinal: int, key: LogKey, end: int) -> None:
        logs = self._ring.logs_of(ordinal)
        if logs is None:
            return  # the ring will know when the broker has registered
        log = logs.get(key)
        found = None if log is None else (log.end, log.durable)
        is_whole = log is not None and log.end == end and log.durable == end
        check(is_whole, f"9: broker {ordinal} has {found} of {key}, which is sealed at {end}")


def _offsets(state: RingState) -> Iterator[tuple[LogKey, int, int | None]]:
    """First offsets, and ends of sealed partitions."""
    for topic in state.topics.values():
        for slices in topic.slices:
            for index in range(len(slices.starts)):
                key = LogKey(topic.id, slices.first_partition + index)
                end = slices.sealed_ends[index] if slices.sealed_ends else None
                yield key, slices.firsts[index], end


def _sealed(topic: TopicState, range_id: int) -> Iterator[tuple[LogKey, int]]:
    for slices in topic.slices:
        if slices.range_id == range_id:
            for index, end in enumerate(slices.sealed_ends):
                if index in slices.gone:
                    continue
                yield LogKey(topic.id, slices.first_partition + index), end
