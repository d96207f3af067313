"""A topic's partitions per range change, range by range."""

from uuid import UUID

import pytest

from tailrace_broker.core.ring.reslicing import ranges_to_slice
from tailrace_broker.core.ring.topics import open_ranges
from tailrace_broker.model.commands import (
    AbortStep,
    AlterTopic,
    BeginStep,
    ChangeIsr,
    CreateTopic,
    DeleteTopic,
    Fence,
    Lead,
    Reslice,
    RestoreTopic,
)
from tailrace_broker.model.ring_state import Replica, RingState
from tailrace_broker.model.topic import TopicSettings
from tests.support.ring.states import (
    done,
    led,
    partitions,
    refusal_of,
    register,
    resliced,
    sealed,
    stepped,
    with_topic,
)


def altered(state: RingState, count: int, name: str = "orders") -> RingState:
    return done(state, AlterTopic(name, {"partitionsPerRange": count}))


def waiting(state: RingState, name: str = "orders") -> tuple[int, ...]:
    return ranges_to_slice(state.topics[name])


def counts(state: RingState, name: str = "orders") -> list[int]:
    """Of partitions in the ring's ranges, in token order."""
    slices = {each.range_id: each for each in state.topics[name].slices}
    return [len(slices[each.id].starts) for each in open_ranges(state)]


def test_a_topic_that_is_altered_keeps_its_partitions_until_its_ranges_are_resliced() -> None:
    before = with_topic(led())

    after = altered(before, 4)

    assert after.topics["orders"].slices == before.topics["orders"].slices
    assert waiting(before) == ()
    assert waiting(after) == (0, 1, 2)


def test_a_range_is_continued_with_the_number_that_is_wanted() -> None:
    before = altered(with_topic(led()), 4)

    begun = done(before, Reslice(1))
    assert begun.step is not None
    assert (begun.step.kind, begun.step.parents) == ("re-slice", (1,))
    assert (begun.step.brokers_before, begun.step.brokers_after) == (3, 3)

    after = done(begun, sealed(begun, 1, 100))
    assert (after.step, after.broker_count) == (None, 3)
    assert counts(after) == [2, 4, 2]
    assert waiting(after) == (0, 2)
    parent, child = after.ranges[1], after.ranges[3]
    assert (parent.is_sealed, parent.complete) == (True, parent.replicas)
    assert (child.start, child.end, child.replicas, child.natural_leader) == (
        parent.start, parent.end, parent.replicas, parent.natural_leader,
    )  # fmt: skip
    assert (child.epoch, child.leader) == (2, Replica(1, 1))


def test_children_follow_what_they_have_tokens_of() -> None:
    more = resliced(altered(with_topic(led(1), partitions=2), 4))
    assert [each.parents for each in partitions(more).values()] == [
        (), (), (0,), (0,), (1,), (1,),
    ]  # fmt: skip
    assert partitions(more)[0].children == (2, 3)

    uneven = resliced(altered(more, 3))
    assert [each.parents for each in partitions(uneven).values()][6:] == [(2, 3), (3, 4), (4, 5)]

    one = partitions(resliced(altered(uneven, 1)))
    assert one[9].parents == (6, 7, 8)
    assert one[9].first_offset == max(one[each].sealed_end or 0 for each in one[9].parents)


def test_other_topics_of_the_range_have_one_child_of_each_partition() -> None:
    state = with_topic(with_topic(led(1)), "other", partitions=3)

    after = partitions(resliced(altered(state, 4)), "other")

    assert [each.parents for each in after.values()] == [(), (), (), (0,), (1,), (2,)]


def test_topics_that_are_altered_together_are_resliced_together() -> None:
    state = altered(altered(with_topic(with_topic(led(1)), "other"), 4), 8, "other")

    after = resliced(state)

    assert (counts(after), counts(after, "other")) == ([4], [8])
    assert after.next_step == 1


def test_what_holds_when_the_last_end_comes_is_what_children_get() -> None:
    """Whoever has changed their mind meanwhile has it as it was, in a new range."""
    begun = done(altered(with_topic(led(1)), 4), Reslice(0))

    after = done(altered(begun, 2), sealed(begun, 0))

    assert (counts(after), waiting(after)) == ([2], ())


def test_a_change_of_mind_before_a_step_changes_nothing() -> None:
    before = with_topic(led())

    after = altered(altered(before, 4), 2)

    assert (after.topics, waiting(after)) == (before.topics, ())
    assert refusal_of(after, Reslice(0)) == "sliced-already"


def test_what_a_step_of_the_ring_seals_follows_as_wanted_too() -> None:
    state = altered(with_topic(led(registered=1)), 4)

    after = stepped(state)

    assert sorted(counts(after)) == [2, 2, 4, 4]
    assert waiting(after) == (1, 2)


def test_an_aborted_one_leaves_the_range_as_it_was() -> None:
    before = altered(with_topic(led()), 4)

    after = done(done(before, Reslice(0)), AbortStep(0))

    assert (after.ranges, after.topics) == (before.ranges, before.topics)
    assert done(after, Reslice(0)).step is not None


def test_a_topic_that_is_created_during_one_has_partitions_in_the_child() -> None:
    begun = done(altered(with_topic(led(1)), 4), Reslice(0))
    late = done(begun, CreateTopic("late", UUID(int=1), TopicSettings(partitions_per_range=3)))

    after = done(late, sealed(late, 0))

    assert counts(after, "late") == [3]


def test_a_topic_that_was_deleted_meanwhile_waits_again_when_it_is_back() -> None:
    state = altered(with_topic(led()), 4)
    topic_id = state.topics["orders"].id

    gone = done(state, DeleteTopic("orders", 5))
    assert refusal_of(gone, Reslice(0)) == "sliced-already"

    assert waiting(done(gone, RestoreTopic(topic_id))) == (0, 1, 2)


def test_one_is_refused_when_its_range_cannot_be_sealed() -> None:
    state = altered(with_topic(led(registered=1)), 4)

    assert refusal_of(state, Reslice(7)) == "range-not-found"
    assert refusal_of(stepped(state), Reslice(0)) == "range-not-found"
    assert refusal_of(done(state, BeginStep("grow", 3)), Reslice(1)) == "step-open"
    assert refusal_of(done(state, Fence(0, 1)), Reslice(0)) == "no-leader"
    assert refusal_of(done(state, register(0, "process")), Reslice(0)) == "no-leader"
    lagging = done(state, ChangeIsr(0, 1, 0, (Replica(0, 1), Replica(1, 1))))
    assert refusal_of(lagging, Reslice(0)) == "replica-not-in-isr"
    assert refusal_of(done(state, Fence(2, 1)), Reslice(0)) == "broker-not-registered"


@pytest.mark.parametrize("name", ["power", "process"])
def test_a_participant_that_registers_again_cancels_it(name: str) -> None:
    begun = done(altered(with_topic(led()), 4), Reslice(0))

    after = done(begun, register(1, "process" if name == "process" else "power"))

    assert (after.step, waiting(after)) == (None, (0, 1, 2))


def test_a_child_whose_natural_leader_does_not_lead_stays_with_who_led_the_parent() -> None:
    state = done(altered(with_topic(led()), 4), Lead(0, 1, 1, 1))
    begun = done(state, Reslice(0))

    after = done(begun, sealed(begun, 0))

    assert after.ranges[3].leader == Replica(0, 1)
