"""What a step changes: which ranges end, which follow them, and which slices follow which.

A step takes a ring from n brokers to n + 1 or back. It is the difference of the two rings, so any
walk of sizes ends at the ring that the last size has from the start.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from tailrace_broker.core.ring.arithmetic import Range, ring_ranges


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
