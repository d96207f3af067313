"""What brokers answer, in the client's values, as the values that plans are made from. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic.alias_generators import to_snake

from tailrace.protocol.ring_values import RangeDetails, Registration, RingDetails
from tailrace.values import PartitionDetails, TopicDetails, to_document
from tailrace_operator.plan.observed import Broker, Document, LiveTopic, Ring

_NOT_SETTINGS = frozenset({"name", "id", "partitions", "copies"})
_OUT_OF_SERVICE = ("leaderless", "waiting")


def progress(ring: RingDetails) -> tuple[bool, int]:
    """Order of two answers by the height of the replicated state."""
    return ring.cluster_id is not None, ring.metadata.applied or 0


def ring_of(best: RingDetails, brokers: tuple[Broker, ...], version: str | None) -> Ring:
    """Return the ring by the broker that knows the most; `brokers`: those that answered."""
    by_ordinal = {registration.ordinal: registration for registration in best.registrations}
    return Ring(
        cluster_id=best.cluster_id,
        broker_count=best.brokers,
        copies=best.copies,
        version=version,
        metadata_leader=best.metadata.leader,
        leaderless=sum(range_.state in _OUT_OF_SERVICE for range_ in best.ranges),
        under_replicated=sum(_lacks_replicas(range_, by_ordinal) for range_ in best.ranges),
        brokers=brokers,
        lost=tuple(
            (each.id, _loss(each, by_ordinal)) for each in best.ranges if _is_lost(each, by_ordinal)
        ),
    )


def _is_lost(one: RangeDetails, by_ordinal: Mapping[int, Registration]) -> bool:
    """Whether nobody is left to be waited for: all that were in sync are back without their data.

    A ghost that is away may have them on its disk, and is waited for.
    """
    found = [by_ordinal.get(each.ordinal) for each in one.isr if each.ghost]
    are_back = all(each is not None and each.alive and not each.fenced for each in found)
    return one.state == "waiting" and len(found) == len(one.isr) and are_back


def _loss(one: RangeDetails, by_ordinal: Mapping[int, Registration]) -> str:
    losses = {by_ordinal[each.ordinal].loss for each in one.isr}
    return "lost its disk" if "disk" in losses else "may have lost its last events"


def _lacks_replicas(one: RangeDetails, by_ordinal: Mapping[int, Registration]) -> bool:
    """Return whether replicas are missing, counted as for `GET /v1/brokers`."""
    good = 0
    for each in one.isr:
        registration = by_ordinal.get(each.ordinal)
        good += (
            not each.ghost
            and registration is not None
            and registration.registration == each.registration
            and not registration.fenced
        )
    return one.state != "sealed" and good < len(one.replicas)


def live_topic(details: TopicDetails) -> LiveTopic:
    """A topic with what its leaders report."""
    document = to_document(details.topic)
    partitions = tuple(map(_partition, details.partition_details))
    return LiveTopic(
        id=details.topic.id,
        settings={name: each for name, each in document.items() if name not in _NOT_SETTINGS},
        partition_count=details.topic.partitions,
        partitions=partitions,
        size_bytes=_sum(
            partition_detail.size_bytes for partition_detail in details.partition_details
        ),
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
