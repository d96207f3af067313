from itertools import pairwise
from uuid import UUID

import pytest

from tailrace_broker.core.ring import topic_commands
from tailrace_broker.core.ring.topics import topic_of
from tailrace_broker.model.commands import (
    AbortStep,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    PurgeTopics,
    RestoreTopic,
)
from tailrace_broker.model.ring_state import Refusal, RingState
from tailrace_broker.model.topic import NEW_TOPIC, TopicSettings
from tests.support.ring.states import begin, done, led, refusal_of, stepped, with_topic

FOUR = TopicSettings()


def create(name: str = "orders", number: int = 1, settings: TopicSettings = FOUR) -> CreateTopic:
    return CreateTopic(name, UUID(int=number), settings)


def places(state: RingState, name: str) -> list[tuple[int, int]]:
    """The topic's partitions and their ranges."""
    topic = topic_of(state, state.topics[name])
    return [(each.partition, each.range_id) for each in topic.partitions]


def trashed() -> RingState:
    return done(led(), create(), DeleteTopic("orders", 55))


def test_a_topic_has_its_partitions_in_the_order_of_the_ranges() -> None:
    state = done(led(), create(settings=TopicSettings(partitions_per_range=2)))

    assert places(state, "orders") == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2)]
    partitions = topic_of(state, state.topics["orders"]).partitions
    assert {each.epoch for each in partitions} == {1}
    assert all(one.token_end == other.token_start for one, other in pairwise(partitions))


def test_creating_a_topic_again_is_done_already_unless_it_is_another() -> None:
    state = done(led(), create())

    assert done(state, create(number=2)).topics == state.topics
    assert refusal_of(state, create(number=2, settings=NEW_TOPIC)) == "topic-exists"


def test_a_creation_that_comes_late_makes_no_second_topic_of_its_id() -> None:
    """By then the topic is deleted, or has another name."""
    renamed = done(trashed(), RestoreTopic(UUID(int=1), "renamed"))

    assert refusal_of(trashed(), create()) == "topic-exists"
    assert refusal_of(renamed, create()) == "topic-exists"
    assert done(renamed, create(number=2)).topics.keys() == {"orders", "renamed"}


@pytest.mark.parametrize("name", ["", ".", "a b", "____", "__", "__a/b"])
def test_a_topic_has_a_proper_name(name: str) -> None:
    assert refusal_of(led(), create(name)) == "invalid-topic-name"


def test_the_rings_own_topics_are_created_too() -> None:
    assert "__groups" in done(led(), create("__groups")).topics


def test_there_are_so_many_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_commands, "TOPICS_MAX", 1)
    state = done(led(), create())

    assert refusal_of(state, create("flights", 2)) == "too-many-topics"
    full = done(done(state, DeleteTopic("orders", 5)), create("flights", 2))
    assert refusal_of(full, RestoreTopic(UUID(int=1))) == "too-many-topics"


def test_settings_are_altered_one_by_one() -> None:
    state = done(led(), create(), AlterTopic("orders", {"retentionMs": 60_000, "lingerMs": 5}))

    settings = state.topics["orders"].settings
    assert (settings.retention_ms, settings.linger_ms) == (60_000, 5)
    assert settings.flush_ms == FOUR.flush_ms
    again = done(state, AlterTopic("orders", {"retentionMs": None, "partitionsPerRange": 4}))
    assert again.topics["orders"].settings.retention_ms is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"partitionsPerRange": 257}, "invalid-parameter"),
        ({"flushMs": 0}, "invalid-parameter"),
        ({"flushMs": "soon"}, "invalid-parameter"),
        ({"durability": "hoped"}, "invalid-parameter"),
        ({"flushms": 5}, "invalid-parameter"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    changes: dict[str, int | bool | str | None], reason: str
) -> None:
    assert refusal_of(done(led(), create()), AlterTopic("orders", changes)) == reason


def test_a_change_is_of_the_topic_that_was_meant() -> None:
    state = done(trashed(), create(number=2))
    meant = UUID(int=1)

    assert refusal_of(state, AlterTopic("orders", {}, topic_id=meant)) == "topic-not-found"
    assert refusal_of(state, DeleteTopic("orders", 5, topic_id=meant)) == "topic-not-found"
    assert done(state, DeleteTopic("orders", 5, topic_id=UUID(int=2))).topics == {}


def test_a_topic_that_is_not_there_is_neither_altered_nor_deleted() -> None:
    assert refusal_of(led(), AlterTopic("orders", {})) == "topic-not-found"
    assert refusal_of(trashed(), DeleteTopic("orders", 5)) == "topic-not-found"


def test_a_deleted_topic_is_restored_as_it_was_by_its_own_name_or_another() -> None:
    before = done(led(), create())

    assert trashed().topics == {}
    assert trashed().deleted[UUID(int=1)].deleted_us == 55
    assert done(trashed(), RestoreTopic(UUID(int=1))).topics == before.topics
    renamed = done(trashed(), RestoreTopic(UUID(int=1), "renamed"))
    assert renamed.topics["renamed"].slices == before.topics["orders"].slices
    assert renamed.deleted == {}


def test_what_cannot_be_restored_is_refused() -> None:
    taken = done(trashed(), create(number=2))

    assert refusal_of(taken, RestoreTopic(UUID(int=1))) == "topic-exists"
    assert refusal_of(taken, RestoreTopic(UUID(int=1), "__x")) == "invalid-topic-name"
    assert refusal_of(taken, RestoreTopic(UUID(int=9))) == "not-in-trash"


def test_a_purged_topic_is_forgotten() -> None:
    state = done(trashed(), PurgeTopics({UUID(int=1): 55, UUID(int=8): 55}))

    assert refusal_of(state, RestoreTopic(UUID(int=1))) == "not-in-trash"
    assert done(state, create()).topics.keys() == {"orders"}


def test_a_late_purge_leaves_a_topic_that_was_restored_and_deleted_again() -> None:
    """It is asked for again and again until it is agreed on, and others go on meanwhile."""
    purge = PurgeTopics({UUID(int=1): 55, UUID(int=8): 55})
    again = done(trashed(), RestoreTopic(UUID(int=1)), DeleteTopic("orders", 90))

    assert done(again, purge).deleted[UUID(int=1)].deleted_us == 90
    assert done(trashed(), purge).deleted == {}


def test_a_topic_deleted_before_the_ring_changed_cannot_be_restored() -> None:
    """Nobody has reported where its partitions ended when their range was sealed."""
    state = done(with_topic(led(registered=1)), DeleteTopic("orders", 5))
    (topic_id,) = state.deleted

    assert refusal_of(begin(state), RestoreTopic(topic_id)) == "step-open"
    assert refusal_of(stepped(state), RestoreTopic(topic_id)) == "ring-changed"


def test_a_topic_that_cannot_be_restored_stays_in_the_trash() -> None:
    """Whoever asks is told that the records are there until it is purged."""
    state = stepped(done(with_topic(led(registered=1)), DeleteTopic("orders", 5)))
    (topic_id,) = state.deleted

    refused = topic_commands.restore_topic(state, RestoreTopic(topic_id))

    assert isinstance(refused, Refusal)
    assert "Nothing of it is removed before its time" in refused.detail
    assert refusal_of(state, RestoreTopic(topic_id)) == "ring-changed"
    assert topic_id in state.deleted
    assert 0 in state.ranges


def test_a_topic_deleted_after_the_ring_changed_is_restored_with_its_lineage() -> None:
    state = stepped(with_topic(led(registered=1)))
    (topic,) = state.topics.values()

    after = done(state, DeleteTopic("orders", 5), RestoreTopic(topic.id))

    assert after.topics == state.topics


def test_a_topic_that_came_and_went_during_a_step_has_its_partitions_when_it_is_back() -> None:
    begun = done(begin(led(registered=1)), create(), DeleteTopic("orders", 5))

    waiting = done(begun, RestoreTopic(UUID(int=1)))
    assert waiting.topics["orders"].waits_for == (0,)

    aborted = done(begun, AbortStep(0), RestoreTopic(UUID(int=1)))
    assert len(places(aborted, "orders")) == 12
