"""What is reported of a Topic."""

from dataclasses import replace
from typing import Any

import pytest

from tailrace_operator.plan.actions import Blocked, CreateTopic, TopicAction
from tailrace_operator.plan.observed import Topic
from tailrace_operator.plan.topic_status import topic_status
from tailrace_operator.plan.words import size_text
from tests.support.operator.kubernetes_world import NOW, settled, with_ranges
from tests.support.operator.topics_of_operator import a_topic, live_topic
from tools.crd_kinds import TopicStatus

LATER = "2026-11-21T11:00:00Z"


def status_of(
    topic: Topic,
    action: TopicAction | None = None,
    *,
    error: str | None = None,
    now: str = NOW,
) -> dict[str, Any]:
    """As the CRD knows it."""
    status = topic_status(topic, action, now=now, error=error)
    TopicStatus.model_validate(status)
    return dict(status)


def ready(status: dict[str, Any]) -> tuple[str, str, str]:
    found = next(condition for condition in status["conditions"] if condition["type"] == "Ready")
    return found["status"], found["reason"], found["message"]


def test_a_topic_that_is_served() -> None:
    status = status_of(a_topic(live_topic(partition_count=2, retentionMs=7 * 86_400_000)))

    assert ready(status) == ("True", "Served", "2 partitions are served")
    partition = {"leader": 0, "isr": [0], "highWatermark": 5, "logEnd": 5}
    conditions = status.pop("conditions")
    assert status == {
        "observedGeneration": 3,
        "topicId": "7f3a",
        "partitionCount": 2,
        "sealedPartitionCount": 0,
        "retention": "7d",
        "durability": "fsync",
        "size": "0",
        "partitions": [{"id": 0, **partition}, {"id": 1, **partition}],
    }
    assert [condition["type"] for condition in conditions] == ["Ready", "ReconciliationPaused"]


@pytest.mark.parametrize(("count", "words"), [(1, "1 range"), (3, "3 ranges")])
def test_ranges_that_wait_for_another_number_of_partitions_are_counted(
    count: int, words: str
) -> None:
    live = replace(live_topic(12, partitionsPerRange=8), ranges_to_slice=count)

    assert ready(status_of(a_topic(live))) == (
        "True",
        "Served",
        f"12 partitions are served; {words} still to come to 8 partitions",
    )


def test_sealed_partitions_are_counted_apart() -> None:
    status = status_of(a_topic(replace(live_topic(4), sealed_count=12)))

    assert ready(status)[2] == "4 partitions are served, and 12 sealed ones"
    assert (status["partitionCount"], status["sealedPartitionCount"]) == (4, 12)


def test_a_topic_that_keeps_all_says_so() -> None:
    assert status_of(a_topic(live_topic()))["retention"] == "none"


@pytest.mark.parametrize(("partition_count", "listed"), [(64, 64), (65, 0)])
def test_partitions_are_listed_when_they_are_few(partition_count: int, listed: int) -> None:
    status = status_of(a_topic(live_topic(partition_count)))

    assert len(status["partitions"]) == listed
    assert ready(status)[2] == f"{partition_count} partitions are served"


def test_partitions_without_a_leader_are_counted() -> None:
    live = live_topic(3)
    live = replace(live, partitions=({**live.partitions[0], "leader": None}, *live.partitions[1:]))

    status = status_of(a_topic(live))

    assert ready(status) == ("False", "Leaderless", "1 of 3 open partitions have no leader")
    assert "leader" not in status["partitions"][0]


def test_what_was_once_known_stays() -> None:
    before = status_of(a_topic(live_topic()))
    waiting = replace(a_topic(), status=before, cluster_problem=("ClusterNotReady", "wait"))
    unknown = replace(a_topic(replace(live_topic(), size_bytes=None)), status=before)

    assert status_of(waiting)["topicId"] == "7f3a"
    assert status_of(unknown)["size"] == "0"


@pytest.mark.parametrize(
    ("changes", "action", "error", "said"),
    [
        (
            {"cluster_problem": ("ClusterNotFound", "make it")},
            None,
            None,
            ("ClusterNotFound", "make it"),
        ),
        ({}, Blocked("Refused", "no"), None, ("Refused", "no")),
        ({}, CreateTopic("a", {}), None, ("Creating", "topic a is being created")),
        ({}, None, "no answer", ("Retrying", "no answer")),
        ({}, None, None, ("Missing", "the ring has no such topic")),
    ],
    ids=["waits", "blocked", "is created", "fails", "is not there"],
)
def test_why_a_topic_is_not_ready(
    changes: dict[str, Any],
    action: TopicAction | None,
    error: str | None,
    said: tuple[str, str],
) -> None:
    status = status_of(replace(a_topic(), **changes), action, error=error)

    assert ready(status) == ("False", *said)


def test_a_topic_that_is_being_deleted_says_so() -> None:
    topic = a_topic(live_topic())

    status = status_of(replace(topic, owner=replace(topic.owner, is_deleting=True)))

    assert ready(status) == ("False", "Deleting", "it is being deleted")


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        (
            {"cluster_problem": ("ClusterNotReady", "no broker is ready")},
            None,
            "no broker is ready",
        ),
        ({}, "no answer", "no answer"),
        (
            {"owner": replace(a_topic().owner, is_deleting=True, is_paused=True)},
            None,
            "it waits until the annotation tailrace.dev/paused is gone",
        ),
    ],
)
def test_a_deletion_that_waits_says_for_what(
    changes: dict[str, Any], error: str | None, reason: str
) -> None:
    topic = replace(a_topic(), owner=replace(a_topic().owner, is_deleting=True))

    status = status_of(replace(topic, **changes), error=error)

    assert ready(status) == ("False", "Deleting", f"it is being deleted; {reason}")


def test_a_condition_keeps_the_time_of_its_last_change() -> None:
    topic = a_topic(live_topic())
    before = status_of(topic)

    assert status_of(replace(topic, status=before), now=LATER) == before
    changed = status_of(replace(topic, status=before), error="x", now=LATER)
    assert [condition["lastTransitionTime"] for condition in changed["conditions"]] == [LATER, NOW]


def test_a_pause_is_reported() -> None:
    topic = a_topic(live_topic())

    status = status_of(replace(topic, owner=replace(topic.owner, is_paused=True)))

    assert status["conditions"][1]["status"] == "True"
    assert ready(status)[0] == "True"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0"),
        (812, "812"),
        (1023, "1023"),
        (1024, "1Ki"),
        (3_355_443, "3.2Mi"),
        (2**20 - 1, "1Mi"),
        (10 * 2**30, "10Gi"),
        (3 * 2**60, "3Ei"),
    ],
)
def test_a_size_has_one_digit_behind_the_point(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


@pytest.mark.parametrize(
    ("changes", "reason", "said"),
    [
        ({"leaderless": {1}}, "Leaderless", "ranges without a leader: 1"),
        (
            {"behind": {1, 2}},
            "NotEnoughReplicas",
            "ranges with fewer than 2 copies in sync, which take no events: 3",
        ),
        (
            {"leaderless": {1}, "losses": {1: "lost its disk"}},
            "DataAtRisk",
            "range 1 lost its disk; see tailrace ring accept-loss",
        ),
    ],
)
def test_a_topic_is_not_ready_while_a_range_of_its_ring_has_no_leader(
    changes: dict[str, Any], reason: str, said: str
) -> None:
    """Whatever the leaders that answered say of its partitions."""
    ring = settled().observed().ring
    topic = replace(a_topic(live_topic()), ring=ring)
    assert ready(status_of(topic))[0] == "True"

    topic = replace(topic, ring=with_ranges(ring, **changes))
    status = ready(status_of(topic))

    assert status[:2] == ("False", reason)
    assert status[2].startswith(said)


@pytest.mark.parametrize(
    ("wanted", "is_ready"), [({}, "True"), ({"minInSyncReplicas": 3}, "False")]
)
def test_a_topic_says_how_many_replicas_it_needs(wanted: dict[str, int], is_ready: str) -> None:
    ring = with_ranges(settled().observed().ring, behind={1})
    live = live_topic()
    live = replace(live, settings={**live.settings, **wanted})

    status = ready(status_of(replace(a_topic(live), ring=ring)))

    assert status[0] == is_ready
    assert wanted == {} or status[1] == "NotEnoughReplicas"
