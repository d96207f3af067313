"""How a ring comes to the number of brokers that its spec asks for: one broker at a time. Pure.

Growing: the next broker's pod starts, registers and serves, then the ring takes the step that gives
it a range. Shrinking: the ring takes the step that takes the last broker's range, others copy the
sealed ranges that it holds, it is retired, and only then its pod goes (`pod_count`). Nothing
is remembered: a change of mind, or an operator that starts again, goes on from where the ring is.
"""

from tailrace_operator.plan.actions import RetireBroker, StepRing, words_of
from tailrace_operator.plan.facts import (
    broker_count,
    can_step,
    is_founded,
    ready_ordinals,
)
from tailrace_operator.plan.observed import Cluster, Ring


def next_step(cluster: Cluster) -> StepRing | RetireBroker | None:
    """None: the ring has as many brokers as it is to have, or something is waited for."""
    ring, count, wanted = cluster.ring, broker_count(cluster), cluster.spec.brokers
    if ring is None or not is_founded(cluster) or ring.has_step:
        return None
    leaving = _leaving(cluster, ring)
    if leaving:
        is_needed = ring.sealed_held.get(leaving[-1]) or leaving[-1] in ring.voters
        return None if is_needed else RetireBroker(leaving[-1])
    if wanted == count or not can_step(cluster):
        return None
    if wanted < count:
        return StepRing("shrink", count)
    is_there = count in ring.registered and count in ready_ordinals(cluster)
    return StepRing("grow", count) if is_there else None


def progress(cluster: Cluster) -> tuple[str, str] | None:
    """A word for programs, and what is waited for, for people; None: nothing is to be done."""
    ring, count, wanted = cluster.ring, broker_count(cluster), cluster.spec.brokers
    if ring is None or not is_founded(cluster):
        return None
    leaving = _leaving(cluster, ring)
    if leaving:
        held = ring.sealed_held.get(leaving[-1], 0)
        ranges = "a sealed range" if held == 1 else f"{held} sealed ranges"
        what = f"others copy {ranges} of it" if held else "others have all that it held"
        return "Shrinking", f"broker {leaving[-1]} leaves, {what}"
    if wanted == count:
        return None
    word = "Growing" if wanted > count else "Shrinking"
    return word, f"{count} → {wanted} brokers, {_waited_for(cluster, ring, count)}"


def _waited_for(cluster: Cluster, ring: Ring, count: int) -> str:
    wanted = cluster.spec.brokers
    if wanted > count and count not in ring.registered & ready_ordinals(cluster):
        return f"broker {count} starts"
    what = words_of(StepRing("grow" if wanted > count else "shrink", count)).text
    return what if can_step(cluster) else f"{what} when all brokers serve and all copies are there"


def _leaving(cluster: Cluster, ring: Ring) -> list[int]:
    """Brokers that are registered, and do not belong to the ring nor come to it next."""
    count = broker_count(cluster)
    coming = count if cluster.spec.brokers > count else -1
    return sorted(each for each in ring.registered if each >= count and each != coming)
