"""What is reported of a Topic: what is in force in its ring, and whether that is what is wanted."""

from collections.abc import Iterator
from typing import Any

from tailrace.settings.quantities import duration_quantity
from tailrace_operator.plan.actions import Action, words_of
from tailrace_operator.plan.conditions import (
    NOT_READY,
    READY,
    Finding,
    condition_documents,
    paused_finding,
)
from tailrace_operator.plan.facts import IN_SYNC_MIN
from tailrace_operator.plan.findings import RETRYING, lost_data, unserved
from tailrace_operator.plan.names import PAUSED
from tailrace_operator.plan.observed import Document, LiveTopic, Ring, Topic
from tailrace_operator.plan.words import size_text

PARTITIONS_LISTED_MAX = 64
_CONDITIONS = ("Ready", "ReconciliationPaused")


def topic_status(topic: Topic, action: Action | None, *, now: str, error: str | None) -> Document:
    """The whole status; what was once known stays. `now`: as in RFC 3339."""
    owner = topic.owner
    found = [*_findings(topic, action, error)]
    return {
        **topic.status,
        **({} if topic.live is None else _in_force(topic.live)),
        "observedGeneration": owner.generation,
        "conditions": condition_documents(
            ("Ready", "ReconciliationPaused"),
            found,
            topic.status,
            generation=owner.generation,
            now=now,
        ),
    }


def _in_force(live: LiveTopic) -> dict[str, Any]:
    """Partitions are listed when they are few; else the condition says how many are led."""
    is_listed = len(live.partitions) <= PARTITIONS_LISTED_MAX
    size = {} if live.size_bytes is None else {"size": size_text(live.size_bytes)}
    return {
        "topicId": live.id,
        "partitionCount": live.partition_count,
        "sealedPartitionCount": live.sealed_count,
        "retention": duration_quantity(live.settings.get("retentionMs")),
        "durability": live.settings.get("durability", "fsync"),
        **size,
        "partitions": [_known(partition) for partition in live.partitions] if is_listed else [],
    }


def _known(partition: Document) -> Document:
    """Ends that no broker reported are left out."""
    return {name: value for name, value in partition.items() if value is not None}


def _findings(topic: Topic, action: Action | None, error: str | None) -> Iterator[Finding]:
    """Return what decides the conditions, the first thing first."""
    owner, problem = topic.owner, topic.cluster_problem
    yield paused_finding(is_paused=owner.is_paused)
    waits = [] if error is None else [Finding(RETRYING, error, NOT_READY)]
    if problem is not None:
        waits.append(Finding(*problem, NOT_READY))
    if owner.is_deleting:  # which can be for long
        why = "".join(f"; {each.message}" for each in waits[:1])
        if owner.is_paused:
            why = f"; it waits until the annotation {PAUSED} is gone"
        yield Finding("Deleting", f"it is being deleted{why}", NOT_READY)
    yield from waits
    if action is not None:
        words = words_of(action)
        yield Finding(words.reason, words.text, NOT_READY)
    if topic.live is None:
        yield Finding("Missing", "the ring has no such topic", NOT_READY)
        return
    yield from _unserved(topic.live, topic.ring)
    yield Finding("Served", _served_text(topic.live), READY)


def _unserved(live: LiveTopic, ring: Ring | None) -> Iterator[Finding]:
    """By the leaders of its partitions, or the ring's ranges: it has partitions in each."""
    if ring is not None:
        yield from lost_data(ring.lost)
    without = sum(each.get("leader") is None for each in live.partitions)
    if without:
        message = f"{without} of {len(live.partitions)} open partitions have no leader"
        yield Finding("Leaderless", message, NOT_READY)
    if ring is not None:
        yield from unserved(ring, int(live.settings.get("minInSyncReplicas", IN_SYNC_MIN)))


def _served_text(live: LiveTopic) -> str:
    sealed = f", and {live.sealed_count} sealed ones" if live.sealed_count else ""
    return f"{live.partition_count} partitions are served{sealed}{_waiting_ranges(live)}"


def _waiting_ranges(live: LiveTopic) -> str:
    """How far the ring is with another number of partitions, of which nobody sees a pause."""
    count = live.ranges_to_slice
    if not count:
        return ""
    wanted = live.settings.get("partitionsPerRange")
    return f"; {count} range{'s' * (count > 1)} still to come to {wanted} partitions"
