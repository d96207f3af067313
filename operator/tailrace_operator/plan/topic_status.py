"""What is reported of a Topic: what is in force in its ring, and whether that is what is wanted."""

from typing import Any

from tailrace.settings.quantities import duration_quantity
from tailrace_operator.plan.actions import Action, Blocked, described, progress_reason
from tailrace_operator.plan.conditions import Condition, condition_documents, paused_condition
from tailrace_operator.plan.facts import IN_SYNC_MIN
from tailrace_operator.plan.names import PAUSED
from tailrace_operator.plan.observed import Document, LiveTopic, Ring, Topic
from tailrace_operator.plan.problems import lost_data, unserved
from tailrace_operator.plan.words import size_text

PARTITIONS_LISTED_MAX = 64


def topic_status(topic: Topic, action: Action | None, *, now: str, error: str | None) -> Document:
    """The whole status; what was once known stays. `now`: as in RFC 3339."""
    owner = topic.owner
    conditions = (
        _ready(topic, action, error),
        paused_condition(is_paused=owner.is_paused),
    )
    return {
        **topic.status,
        **({} if topic.live is None else _in_force(topic.live)),
        "observedGeneration": owner.generation,
        "conditions": condition_documents(
            conditions, topic.status, generation=owner.generation, now=now
        ),
    }


def _in_force(live: LiveTopic) -> dict[str, Any]:
    """Partitions are listed when they are few; else the condition says how many are led."""
    is_listed = len(live.partitions) <= PARTITIONS_LISTED_MAX
    size = {} if live.size_bytes is None else {"size": size_text(live.size_bytes)}
    return {
        "topicId": live.id,
        "partitionCount": live.partition_count,
        "retention": duration_quantity(live.settings.get("retentionMs")),
        "durability": live.settings.get("durability", "fsync"),
        **size,
        "partitions": [_known(partition) for partition in live.partitions] if is_listed else [],
    }


def _known(partition: Document) -> Document:
    """Ends that no broker reported are left out."""
    return {name: value for name, value in partition.items() if value is not None}


def _ready(topic: Topic, action: Action | None, error: str | None) -> Condition:
    if topic.owner.is_deleting:
        message = f"it is being deleted{_waits_for(topic, error)}"
        return Condition("Ready", False, "Deleting", message)
    if error is not None:
        return Condition("Ready", False, "Retrying", error)
    if topic.cluster_problem is not None:
        return Condition("Ready", False, *topic.cluster_problem)
    if isinstance(action, Blocked):
        return Condition("Ready", False, action.reason, action.message)
    if action is not None:
        return Condition("Ready", False, progress_reason(action), described(action))
    if topic.live is None:
        return Condition("Ready", False, "Missing", "the ring has no such topic")
    return _served(topic.live, topic.ring)


def _waits_for(topic: Topic, error: str | None) -> str:
    """Return what keeps a deletion, which can be for long."""
    reason: str | None = None
    if topic.owner.is_paused:
        reason = f"it waits until the annotation {PAUSED} is gone"
    elif error is not None:
        reason = error
    elif topic.cluster_problem is not None:
        reason = topic.cluster_problem[1]
    return "" if reason is None else f"; {reason}"


def _served(live: LiveTopic, ring: Ring | None) -> Condition:
    """By the leaders of its partitions, and by the ring's ranges: it has partitions in each."""
    if ring is not None and ring.lost:
        return Condition("Ready", False, *lost_data(ring.lost))
    without = [each["id"] for each in live.partitions if each.get("leader") is None]
    if without:
        message = f"{len(without)} of {len(live.partitions)} open partitions have no leader"
        return Condition("Ready", False, "Leaderless", message)
    if ring is not None:
        minimum = int(live.settings.get("minInSyncReplicas", IN_SYNC_MIN))
        for problem in unserved(ring, minimum):
            return Condition("Ready", False, *problem)
    message = f"{live.partition_count} partitions are served{_waiting_ranges(live)}"
    return Condition("Ready", True, "Served", message)


def _waiting_ranges(live: LiveTopic) -> str:
    """How far the ring is with another number of partitions, of which nobody sees a pause."""
    count = live.ranges_to_slice
    if not count:
        return ""
    wanted = live.settings.get("partitionsPerRange")
    return f"; {count} range{'s' * (count > 1)} still to come to {wanted} partitions"
