"""The checks of `tailrace doctor` on data: what of it is damaged, and ranges without a leader."""

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress

from tailrace.cli.checking.check import FAILED, OK, Check, shown_names
from tailrace.cli.lib.options import counted
from tailrace.errors import TailraceError
from tailrace.protocol.ring_values import RangeDetails, RingDetails
from tailrace.sync import Client
from tailrace.values import BrokerStatus, PartitionDetails, QuarantinedBatch, RingStatus

# Damaged partitions with their topics' names, by the ordinal of the broker that leads them.
DamagedPartitions = Mapping[int, Sequence[tuple[str, PartitionDetails]]]

_NO_LEADER = ("leaderless", "waiting")


def damaged_partitions(client: Client, status: RingStatus) -> DamagedPartitions:
    """All of the ring; brokers are asked for them only when one of them counts some.

    What cannot be asked for is left out: the counts are known without it.
    """
    found: dict[int, list[tuple[str, PartitionDetails]]] = defaultdict(list)
    if any(broker.damaged or broker.quarantined for broker in status.brokers):
        with suppress(TailraceError):
            for topic in client.topics():
                for partition_detail in client.topic(topic.name).partition_details:
                    if partition_detail.leader is not None and (
                        _quarantined(partition_detail) or partition_detail.state == "damaged"
                    ):
                        found[partition_detail.leader].append((topic.name, partition_detail))
    return found


def damage_check(broker: BrokerStatus, partitions: Sequence[tuple[str, PartitionDetails]]) -> Check:
    """`partitions`: the damaged ones that this broker leads, as far as they are known."""
    if not (broker.damaged or broker.quarantined):
        return Check(OK, "partitions", "none damaged")
    counts = []
    if broker.damaged:
        counts.append(f"{broker.damaged} damaged")
    if broker.quarantined:
        counts.append(f"{counted(broker.quarantined, 'range')} of offsets quarantined")
    names = shown_names([_description(topic, each) for topic, each in partitions])
    parts = [", ".join(counts), *([names] if names else []), _remedy(partitions)]
    return Check(FAILED, "partitions", ": ".join(parts))


def range_check(ring: RingDetails, silent: Container[int] = ()) -> Check:
    """FAILED when no broker leads a range that takes events, or has all of one that is sealed.

    `ring`: all that is committed. `silent`: brokers that do not answer; a range that one of them
    leads may have no working leader.
    """
    headless = [range_ for range_ in ring.ranges if range_.state in _NO_LEADER]
    lost = [range_ for range_ in ring.ranges if range_.complete == ()]
    if lost and not headless:
        names = shown_names([f"range {each.id}" for each in lost])
        remedy = start_or_accept(lost[0])
        return Check(FAILED, "ranges", f"no broker has all of {names} (sealed): {remedy}")
    unheard = [each for each in ring.ranges if each.leader in silent and each.state != "sealed"]
    if unheard and not headless:
        names = shown_names([f"range {each.id} (broker {each.leader})" for each in unheard])
        remedy = "start what is down, or ask from where all brokers can be reached"
        return Check(FAILED, "ranges", f"the leader of {names} does not answer: {remedy}")
    if not headless:
        return Check(OK, "ranges", f"{counted(len(ring.ranges), 'range')}, none without a leader")
    names = shown_names([f"range {each.id} ({each.state})" for each in headless])
    waiting = next((each for each in headless if each.state == "waiting"), None)
    remedy = "a replica takes over soon: see tailrace ring status"
    if waiting is not None:
        remedy = start_or_accept(waiting)
    return Check(FAILED, "ranges", f"no broker leads {names}: {remedy}")


def unknown_range_check(detail: str) -> Check:
    """Return the check that fails when the voters could not say what is committed."""
    return Check(
        FAILED,
        "ranges",
        f"not known which have a leader: {detail}; start the voters that are away (tailrace ring "
        "status names them), else try again",
    )


def start_or_accept(one: RangeDetails) -> str:
    """The remedy for a range that waits for one of its replicas."""
    replicas = " or ".join(map(str, one.replicas))
    return (
        f"start broker {replicas} with the data that it had; where that is lost for good: tailrace "
        f"ring accept-loss {one.id} --broker {one.replicas[0]}"
    )


def _description(topic: str, partition: PartitionDetails) -> str:
    reasons = []
    if quarantined := _quarantined(partition):
        first, *others = quarantined
        more = f" and {len(others)} more" if others else ""
        reasons.append(f"offsets {first.first_offset}-{first.last_offset}{more}")
    if partition.state == "damaged":
        end = partition.high_watermark
        reasons.append("all of it" if end is None else f"from offset {end} on")
    return f'partition {partition.partition} of topic "{topic}" ({", ".join(reasons)})'


def _quarantined(partition: PartitionDetails) -> list[QuarantinedBatch]:
    """But for what is lost as somebody has accepted: that is no news."""
    return [each for each in partition.quarantined if not each.accepted]


def _remedy(partitions: Sequence[tuple[str, PartitionDetails]]) -> str:
    restore = "restore the files that the broker's log names, and start it again"
    for topic, each in partitions:
        if each.state == "damaged" and each.high_watermark is not None:
            command = f"tailrace topic accept-loss {topic} {each.partition}"
            return f"{restore}; or go on without the records that are lost: {command}"
    alone = (each for _, each in partitions if _quarantined(each) and len(each.isr) == 1)
    found = next(alone, None)
    if found is None:
        return restore
    command = f"tailrace ring accept-loss {found.range_id} --broker {found.leader}"
    return f"{restore}; or give up the offsets of range {found.range_id}: {command}"
