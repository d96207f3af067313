"""What a step changes: which ranges end, which follow them, and which slices follow which.

A step takes a ring from n brokers to n + 1 or back. It is the difference of the two rings, so any
walk of sizes ends at the ring that the last size has from the start.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from uuid import UUID

from tailrace_broker.core.ring.arithmetic import Range, ring_ranges
from tailrace_broker.core.ring.topics import slices_in
from tailrace_broker.model.commands import Sealed
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import Replica, RingState, Slices


@dataclass(frozen=True, slots=True)
class Step:
    """All that changes when the last broker of a ring comes or goes; the rest stays as it is.

    Growing splits one range at the new broker's token: the left part stays with its natural
    leader, the right one is the new broker's. Shrinking joins the two again. At every size the
    replicas of at most one other range change: it is continued, as a new range of the same tokens.
    """

    parents: tuple[Range, ...]  # the range that is split, or the two that are joined
    children: tuple[Range, ...]  # over the same tokens, as the parents in token order
    continued: tuple[Range, Range] | None  # before and after


def plan_step(*, before_count: int, after_count: int) -> Step:
    """What adding or removing the last broker of a ring changes. O(n)."""
    assert abs(after_count - before_count) == 1, (before_count, after_count)
    before, after = ring_ranges(before_count), ring_ranges(after_count)
    kept = {*before} & {*after}
    sealed = {(each.start, each.end): each for each in before if each not in kept}
    created = {(each.start, each.end): each for each in after if each not in kept}

    parents = tuple(each for bounds, each in sealed.items() if bounds not in created)
    children = tuple(each for bounds, each in created.items() if bounds not in sealed)
    continued = [(each, created[bounds]) for bounds, each in sealed.items() if bounds in created]
    assert {len(parents), len(children)} == {1, 2}, (parents, children)
    assert len(continued) <= 1, continued
    return Step(parents, children, continued[0] if continued else None)


def overlaps(
    slices: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]
) -> list[tuple[int, ...]]:
    """For each of `slices` the indices of the `others` that share a token with it.

    Both are `[start, end)`, disjoint and in token order; gaps are allowed. With a step's new
    slices first this gives their parents, with the old ones first their children. O(n log n).
    """
    starts = [start for start, _ in others]
    ends = [end for _, end in others]
    return [
        tuple(range(bisect_right(ends, start), bisect_left(starts, end))) for start, end in slices
    ]


@dataclass(frozen=True, slots=True)
class OpenStep:
    """The step that changes a range, as the range's leader needs it.

    `is_reported`: the range has been sealed in it. `staying`: its replicas but the one that leaves
    the ring. `logs`: all of the range, `live` those of them whose ends are reported, by topic; the
    others are of topics in the trash. `heirs`: by child the replicas that may hold it, of those
    that are registered and not fenced; fewer than `floor` are too few.
    """

    id: int
    is_reported: bool
    staying: frozenset[int]
    logs: frozenset[LogKey]
    live: Mapping[UUID, tuple[LogKey, ...]]
    heirs: tuple[tuple[Replica, ...], ...]
    floor: int

    def are_heard(self, heard: Collection[int]) -> bool:
        """Whether all heirs are, and they are enough."""
        return all(
            len(heirs) >= self.floor and all(each.ordinal in heard for each in heirs)
            for heirs in self.heirs
        )

    def sealed(
        self,
        range_id: int,
        epoch: int,
        ends: Mapping[LogKey, int],
        heard: Collection[int],
        held_after_ms: int,
    ) -> Sealed:
        """The command of the leader of `epoch`. Heirs that are heard are prepared: of a child
        nobody can lack anything, since it is empty.
        """
        heirs = {each for of_child in self.heirs for each in of_child if each.ordinal in heard}
        by_topic = {
            topic_id: tuple(ends[key] for key in keys) for topic_id, keys in self.live.items()
        }
        return Sealed(self.id, range_id, epoch, by_topic, tuple(sorted(heirs)), held_after_ms)


def open_step(state: RingState, range_id: int) -> OpenStep | None:
    """The open step that changes the range, if there is one. O(topics)."""
    step, owner = state.step, state.ranges[range_id]
    if step is None or owner.step != step.id:
        return None
    live = {
        topic_id: _keys(topic_id, each) for topic_id, each in slices_in(state, range_id).items()
    }
    trashed = [
        _keys(each.topic.id, slices)
        for each in state.deleted.values()
        for slices in each.topic.slices
        if slices.range_id == range_id
    ]
    brokers = {ordinal: each for ordinal, each in state.brokers.items() if not each.is_fenced}
    heirs = tuple(
        tuple(owner.replica_of(brokers[each]) for each in child.replicas if each in brokers)
        for child in step.children
        if child.start < owner.end and owner.start < child.end
    )
    return OpenStep(
        step.id,
        range_id in step.sealed,
        frozenset(owner.replicas) - step.leaving,
        frozenset(chain.from_iterable((*live.values(), *trashed))),
        live,
        heirs,
        min(2, state.factor, step.brokers_after),
    )


def _keys(topic_id: UUID, slices: Slices) -> tuple[LogKey, ...]:
    first = slices.first_partition
    return tuple(LogKey(topic_id, each) for each in range(first, first + len(slices.starts)))
