"""What is done next for a Topic, and where it always arrives."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_operator.api.spec import parse_topic_spec
from tailrace_operator.plan.actions import (
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    SetFinalizer,
    TopicAction,
)
from tailrace_operator.plan.observed import LiveTopic, Owner, Topic
from tailrace_operator.plan.topic_plan import CLUSTER_MISSING, NAME_TAKEN, next_topic_action
from tests.support.operator.topics_of_operator import DEFAULTS, a_topic, live_topic

MISSING = (CLUSTER_MISSING, "there is none")
NOT_READY = ("ClusterNotReady", "wait")
DAY_MS = 86_400_000


def test_a_topic_that_is_not_there_is_created_with_what_the_spec_says() -> None:
    topic = a_topic(topicName="clicks", retention="7d", partitionsPerRange=2)

    assert next_topic_action(topic) == CreateTopic(
        "clicks", {"retentionMs": 7 * DAY_MS, "partitionsPerRange": 2}
    )


def test_what_the_spec_does_not_say_is_not_enforced() -> None:
    assert next_topic_action(a_topic(live_topic(durability="written", lingerMs=5))) is None


def test_settings_that_are_others_are_altered_and_only_those() -> None:
    topic = a_topic(
        live_topic(retentionMs=DAY_MS), retention="none", durability="fsync", linger="5ms"
    )

    assert next_topic_action(topic) == AlterTopic(
        "flights",
        {"retentionMs": None, "lingerMs": 5},
        "retentionMs 86400000 → None, lingerMs 0 → 5",
    )


@pytest.mark.parametrize("problem", [MISSING, NOT_READY])
def test_a_ring_that_cannot_be_asked_is_waited_for(problem: tuple[str, str]) -> None:
    assert next_topic_action(replace(a_topic(), cluster_problem=problem)) is None


def test_the_finalizer_comes_before_the_topic_and_goes_with_the_policy() -> None:
    deleted_with = a_topic(deletionPolicy="Delete")

    assert next_topic_action(deleted_with) == SetFinalizer(is_wanted=True)
    assert next_topic_action(replace(deleted_with, has_finalizer=True)) == CreateTopic(
        "flights", {}
    )
    assert next_topic_action(replace(a_topic(), has_finalizer=True)) == SetFinalizer(
        is_wanted=False
    )


def test_a_pause_stops_everything() -> None:
    deletes = a_topic(live_topic(), deletionPolicy="Delete")
    for topic in (a_topic(), deletes, deleted(deletes), a_topic(live_topic(), linger="5ms")):
        paused = replace(topic, owner=replace(topic.owner, is_paused=True))

        assert next_topic_action(paused) is None


def deleted(topic: Topic, **changes: Any) -> Topic:
    owner = replace(topic.owner, is_deleting=True)
    return replace(topic, **{"owner": owner, "has_finalizer": True, **changes})


def test_a_retained_topic_stays() -> None:
    topic = deleted(a_topic(live_topic()))

    assert next_topic_action(topic) == SetFinalizer(is_wanted=False)
    assert next_topic_action(replace(topic, has_finalizer=False)) is None


def test_a_topic_that_is_deleted_with_its_resource_goes_first() -> None:
    topic = deleted(a_topic(live_topic(), deletionPolicy="Delete", topicName="clicks"))

    assert next_topic_action(topic) == DeleteTopic("clicks")
    assert next_topic_action(replace(topic, live=None)) == SetFinalizer(is_wanted=False)


@pytest.mark.parametrize(
    ("problem", "action"),
    [
        (MISSING, SetFinalizer(is_wanted=False)),
        ((NAME_TAKEN, "other"), SetFinalizer(is_wanted=False)),
        (NOT_READY, None),
    ],
    ids=["no ring", "of another resource", "ring not ready"],
)
def test_a_deletion_waits_only_for_what_can_come(
    problem: tuple[str, str], action: TopicAction | None
) -> None:
    topic = deleted(a_topic(deletionPolicy="Delete"), cluster_problem=problem)

    assert next_topic_action(topic) == action


# --- in general -----------------------------------------------------------------------------------


@dataclass
class RingOfTopics:
    """A Topic and its ring, in which actions are applied."""

    spec: dict[str, Any]
    live: dict[str, Any] | None = None
    has_finalizer: bool = False
    is_deleting: bool = False
    deletion_count: int = field(default=0)

    def observed(self) -> Topic:
        owner = Owner("shop", "flights", "topic-1", 1, is_deleting=self.is_deleting)
        live = None if self.live is None else LiveTopic("id", self.live, 12, (), None)
        spec = parse_topic_spec({"spec": {"cluster": "events", **self.spec}})
        return Topic(owner, spec, {}, self.has_finalizer, None, live)

    def execute(self, action: TopicAction) -> None:
        match action:
            case CreateTopic(_, settings):
                assert self.live is None
                self.live = {**DEFAULTS, **settings}
            case AlterTopic(_, settings):
                assert self.live is not None
                assert all(self.live[name] != value for name, value in settings.items())
                self.live |= settings
            case DeleteTopic():
                assert self.is_deleting
                assert self.has_finalizer
                self.live = None
                self.deletion_count += 1
            case SetFinalizer(is_wanted):
                self.has_finalizer = is_wanted

    def settle(self) -> None:
        for _ in range(8):
            action = next_topic_action(self.observed())
            if action is None:
                return
            self.execute(action)
        raise AssertionError("it goes on for ever")


specs = st.fixed_dictionaries(
    {},
    optional={
        "retention": st.sampled_from(["7d", "168h", "none"]),
        "partitionsPerRange": st.sampled_from([4, 8]),
        "retentionSize": st.sampled_from(["1Gi", "1024Mi", "none"]),
        "durability": st.sampled_from(["fsync", "written"]),
        "jsonCheck": st.booleans(),
        "linger": st.sampled_from(["0", "5ms"]),
        "deletionPolicy": st.sampled_from(["Retain", "Delete"]),
    },
)


@given(st.lists(specs, min_size=1, max_size=5), st.booleans())
def test_it_arrives_at_what_the_spec_says(wanted: list[Any], exists: bool) -> None:
    ring = RingOfTopics({}, dict(DEFAULTS) if exists else None)
    for ring.spec in wanted:
        ring.settle()

    settings = ring.observed().spec.topic_settings()
    assert ring.live is not None
    assert ring.live.items() >= settings.items()
    assert ring.has_finalizer == (wanted[-1].get("deletionPolicy") == "Delete")
    assert ring.deletion_count == 0


@given(specs)
def test_a_deleted_resource_goes_and_takes_its_topic_only_when_it_says_so(spec: Any) -> None:
    ring = RingOfTopics(spec)
    ring.settle()
    ring.is_deleting = True

    ring.settle()

    assert not ring.has_finalizer
    assert (ring.live is None) == (spec.get("deletionPolicy") == "Delete")
