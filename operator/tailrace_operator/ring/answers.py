"""What brokers answer, in the client's values, as the values that plans are made from. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from pydantic.alias_generators import to_snake

from tailrace.protocol.ring_values import (
    RangeDetails,
    RangeReplica,
    Registration,
    RingDetails,
    RingPlan,
    StepResult,
)
from tailrace.values import PartitionDetails, TopicDetails, to_document
from tailrace_operator.plan.facts import OF_ANOTHER_RING
from tailrace_operator.plan.observed import Broker, Document, LiveTopic, Range, Ring
from tailrace_operator.plan.words import size_text

_NOT_SETTINGS = frozenset(
    {"name", "id", "partitions", "sealedPartitions", "copies", "rangesToSlice"}
)
_OUT_OF_SERVICE = ("leaderless", "waiting")


def together(answers: Collection[RingDetails], cluster_id: str | None) -> RingDetails:
    """Return the answer of whoever has applied the most, with what it does not hear itself.

    One that has just started hears nobody yet: a broker lives that anybody hears, and the leader of
    the metadata is whom anybody knows in the newest term. `cluster_id`: of the ring that is meant,
    if it is known; a broker of another one is not heard while any of this one answers.
    """
    meant = [each for each in answers if cluster_id is not None and each.cluster_id == cluster_id]
    best = max(meant or answers, key=_progress)
    answers = [each for each in answers if state_in(best, each) != OF_ANOTHER_RING]
    term = max(answer.metadata.term for answer in answers)
    leaders = (each.metadata.leader for each in answers if each.metadata.term == term)
    leader = next((each for each in leaders if each is not None), None)
    heard = {
        (each.ordinal, each.registration)
        for answer in answers
        for each in answer.registrations
        if each.alive
    }
    registrations = tuple(
        replace(each, alive=(each.ordinal, each.registration) in heard)
        for each in best.registrations
    )
    metadata = replace(best.metadata, leader=leader)
    return replace(best, registrations=registrations, metadata=metadata)


def state_in(ring: RingDetails, answer: RingDetails) -> str:
    """Return the state of a broker that answered, as one of this ring."""
    is_of_another = answer.cluster_id not in (None, ring.cluster_id)
    return OF_ANOTHER_RING if is_of_another else answer.state


def _progress(ring: RingDetails) -> tuple[bool, int]:
    """Order of two answers by the height of the replicated state."""
    return ring.cluster_id is not None, ring.metadata.applied or 0


def ring_of(best: RingDetails, brokers: tuple[Broker, ...], version: str | None) -> Ring:
    """Return the ring by the answer that knows the most; `brokers`: those that answered."""
    by_ordinal = {registration.ordinal: registration for registration in best.registrations}
    sealed = [each for each in best.ranges if each.state == "sealed"]
    return Ring(
        cluster_id=best.cluster_id,
        broker_count=best.brokers,
        copies=best.copies,
        version=version,
        metadata_leader=best.metadata.leader,
        ranges=tuple(_range(each, by_ordinal) for each in best.ranges if each.state != "sealed"),
        brokers=brokers,
        new_disks=frozenset(each.ordinal for each in best.registrations if each.loss == "disk"),
        registered=frozenset(each.ordinal for each in best.registrations),
        sealed_held=Counter(ordinal for each in sealed for ordinal in each.replicas),
        sealed_short=sum(len(each.complete or ()) < best.copies for each in sealed),
        sealed_lost=tuple(each.id for each in sealed if not each.complete),
        voters=frozenset(best.metadata.voters),
        next_voters=frozenset(best.metadata.next_voters),
        has_step=best.step is not None,
    )


def _range(one: RangeDetails, by_ordinal: Mapping[int, Registration]) -> Range:
    return Range(
        number=one.id,
        replicas=one.replicas,
        in_sync=tuple(each.ordinal for each in one.isr if _is_in_sync(each, by_ordinal)),
        is_led=one.state not in _OUT_OF_SERVICE,
        loss=_loss(one) if _is_lost(one, by_ordinal) else None,
    )


def _is_in_sync(replica: RangeReplica, by_ordinal: Mapping[int, Registration]) -> bool:
    """Return whether it has all events now; the last two members stay in an ISR, even if away."""
    registration = by_ordinal.get(replica.ordinal)
    return (
        not replica.ghost
        and registration is not None
        and registration.registration == replica.registration
        and _is_there(registration)
    )


def _is_there(registration: Registration | None) -> bool:
    return registration is not None and registration.alive and not registration.fenced


def _is_lost(one: RangeDetails, by_ordinal: Mapping[int, Registration]) -> bool:
    """Whether nobody is left to be waited for: all that were in sync are back without their data.

    A ghost that is away may have them on its disk, and is waited for. Of those that lost nothing
    but power the one that has most leads, and nobody is asked.
    """
    return one.state == "waiting" and all(
        each.ghost and each.cause != "power" and _is_there(by_ordinal.get(each.ordinal))
        for each in one.isr
    )


def _loss(one: RangeDetails) -> str:
    causes = {each.cause for each in one.isr}
    if causes == {"damage"}:
        return "has damaged data"
    return "lost its disk" if "disk" in causes else "may have lost its last events"


def step_text(done: StepResult) -> str:
    """What a step has changed, and what it cost."""
    cost = f"took {done.duration_ms} ms"
    if done.pause_ms is not None:
        cost = f"paused {done.pause_ms} ms"
    return (
        f"{_ranges(done.new_ranges)} in place of {_ranges(done.sealed_ranges)}; "
        f"{done.sealed_partitions} partitions sealed, {done.new_partitions} new; "
        f"0 bytes copied; {cost}"
    )


def _ranges(numbers: tuple[int, ...]) -> str:
    return f"range{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def plan_text(plan: RingPlan) -> str:
    """All steps in a line."""
    count = len(plan.steps)
    return (
        f"{plan.brokers} → {plan.brokers_after} brokers: {count} step{'s' * (count > 1)}, "
        f"{plan.sealed_partitions} partitions sealed, {plan.new_partitions} new; "
        f"{size_text(plan.copy_bytes)} to copy"
    )


def live_topic(details: TopicDetails) -> LiveTopic:
    """A topic with what its leaders report."""
    document = to_document(details.topic)
    opened = (each for each in details.partition_details if each.state != "sealed")
    partitions = tuple(map(_partition, opened))
    return LiveTopic(
        id=details.topic.id,
        settings={name: each for name, each in document.items() if name not in _NOT_SETTINGS},
        partition_count=details.topic.open_partitions,
        partitions=partitions,
        size_bytes=_sum(
            partition_detail.size_bytes for partition_detail in details.partition_details
        ),
        ranges_to_slice=details.topic.ranges_to_slice,
        sealed_count=details.topic.sealed_partitions,
    )


def _sum(sizes: Iterable[int | None]) -> int | None:
    """Return the sum of those that are known; None: not one is."""
    listed = list(sizes)
    known = [each for each in listed if each is not None]
    return sum(known) if known or not listed else None


def _partition(one: PartitionDetails) -> Document:
    return {
        "id": one.partition,
        "leader": one.leader,
        "isr": list(one.isr),
        "highWatermark": one.high_watermark,
        "logEnd": one.log_end,
        "sizeBytes": one.size_bytes,
    }


def arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return names as arguments: "retentionMs" -> "retention_ms"."""
    return {to_snake(name): setting for name, setting in settings.items()}
