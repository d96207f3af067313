"""A person gives up what no copy of a sealed range has."""

from collections.abc import Sequence
from uuid import UUID

import pytest
from msgspec.structs import replace

from tailrace_broker.core.ring.changes import changes
from tailrace_broker.core.ring.lost_copies import accepted_losses_in, accepted_since, fenced_holders
from tailrace_broker.model.commands import (
    AcceptLoss,
    AlterTopic,
    Completed,
    DeleteTopic,
    Fence,
    Reslice,
    RestoreTopic,
)
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import LostOffsets, RangeState, Replica, RingState
from tests.support.ring.states import done, led, refusal_of, stepped, with_topic

TOPIC_ID = UUID(bytes=b"orders".ljust(16))
LOST = LostOffsets(TOPIC_ID, 1, 40, 50)


def sealed_range(state: RingState) -> RangeState:
    [held] = [each for each in state.ranges.values() if each.is_sealed]
    return held


def sealed_with(*complete: int) -> RingState:
    """A sealed range with two partitions of a topic, ends 100 and 101, on brokers 0 to 2."""
    state = stepped(with_topic(led(3, registered=1)))
    held = replace(sealed_range(state), complete=complete)
    return replace(state, ranges={**state.ranges, held.id: held})


def accept(state: RingState, ordinal: int, *lost: LostOffsets) -> AcceptLoss:
    held = sealed_range(state)
    return AcceptLoss(held.id, held.epoch, ordinal, state.brokers[ordinal].number, lost)


def test_what_a_broker_has_is_a_whole_copy_when_nobody_has_one() -> None:
    state = sealed_with()
    after = done(state, accept(state, 1, LOST))
    held = sealed_range(after)

    assert held.complete == (1,)
    assert accepted_losses_in(after) == {LogKey(TOPIC_ID, 1): ((40, 50),)}
    said = (
        f"range {held.id}, sealed: what broker 1 has in registration 1; lost: orders/1 offsets "
        "40 to 49"
    )
    assert after.accepted_losses == (said,)
    assert [each.text for each in changes(state, after)] == [f"a loss was accepted: {said}"]


def test_fenced_brokers_with_all_of_a_range_are_known() -> None:
    state = done(sealed_with(0, 2), Fence(2, 1))
    assert fenced_holders(state, sealed_range(state)) == [2]

    state = done(led(3), Fence(1, 1), Fence(2, 1))
    ghost = Replica(2, 1, is_ghost=True, cause="disk")
    held = replace(state.ranges[0], isr=(Replica(0, 1), Replica(1, 1), ghost))
    assert fenced_holders(state, held) == [1]


def test_what_the_others_were_about_to_say_does_not_count() -> None:
    state = sealed_with()
    after = done(state, accept(state, 1))
    held = sealed_range(after)

    assert refusal_of(after, Completed(held.id, 0, 1, 0)) == "stale-registration"
    assert sealed_range(done(after, Completed(held.id, 0, 1, 1))).complete == (1, 0)


def test_the_only_copy_counts_without_what_it_lacks_and_more_later() -> None:
    state = sealed_with(2)
    after = done(state, accept(state, 2, LOST))
    more = LostOffsets(TOPIC_ID, 1, 0, 10)
    again = done(after, accept(after, 2, more, LOST))

    assert sealed_range(again).accepted == (more, LOST)
    assert accepted_since(state, again) == {LogKey(TOPIC_ID, 1)}
    assert accepted_since(again, again) == set()
    assert accepted_since(again, replace(again, ranges=dict(again.ranges))) == set()


@pytest.mark.parametrize(
    ("complete", "ordinal", "lost"), [((0,), 1, [LOST]), ((0, 1), 1, [LOST]), ((1,), 1, [])]
)
def test_nothing_is_given_up_while_somebody_has_all(
    complete: Sequence[int], ordinal: int, lost: Sequence[LostOffsets]
) -> None:
    state = sealed_with(*complete)
    assert refusal_of(state, accept(state, ordinal, *lost)) == "not-lost"


def test_who_has_all_but_is_not_heard_can_be_given_up() -> None:
    state = done(sealed_with(0), Fence(0, 1))
    assert sealed_range(done(state, accept(state, 1, LOST))).complete == (1,)


@pytest.mark.parametrize(
    "lost",
    [
        LostOffsets(TOPIC_ID, 1, 40, 102),
        LostOffsets(TOPIC_ID, 1, 50, 50),
        LostOffsets(TOPIC_ID, 7, 0, 1),
        LostOffsets(UUID(int=1), 0, 0, 1),
    ],
)
def test_only_offsets_of_the_range_can_be_lost(lost: LostOffsets) -> None:
    state = sealed_with()
    assert refusal_of(state, accept(state, 1, lost)) == "wrong-partitions"


def test_it_is_what_the_broker_has_now() -> None:
    state = sealed_with()
    command = accept(state, 1)

    assert refusal_of(state, replace(command, epoch=7)) == "stale-epoch"
    assert refusal_of(state, replace(command, range_id=99)) == "range-not-found"
    assert refusal_of(state, replace(command, registration=7)) == "stale-registration"
    assert refusal_of(state, accept(state, 3)) == "not-a-replica"


def test_a_deleted_topic_cannot_be_restored_without_what_it_lacks() -> None:
    state = done(sealed_with(), DeleteTopic("orders", 1))
    after = done(state, accept(state, 1))

    assert refusal_of(after, RestoreTopic(TOPIC_ID)) == "ring-changed"
    assert after.accepted_losses[0].endswith("lost: nothing of a topic that there is")


def test_many_losses_are_not_all_named() -> None:
    state = sealed_with()
    lost = [LostOffsets(TOPIC_ID, 0, each, each + 1) for each in range(0, 24, 2)]
    after = done(state, accept(state, 1, *lost))

    assert after.accepted_losses[0].endswith("orders/0 offsets 18 to 18, and 2 more")


def accept_open(state: RingState, range_id: int, *lost: LostOffsets) -> AcceptLoss:
    led_range = state.ranges[range_id]
    return AcceptLoss(range_id, led_range.epoch, led_range.natural_leader, 1, lost)


def test_what_is_damaged_in_the_only_copy_is_given_up_and_its_leader_leads_on() -> None:
    state = with_topic(led(1, factor=1))
    after = done(state, accept_open(state, 0, LOST))
    more = LostOffsets(TOPIC_ID, 0, 3, 2**40)

    assert accepted_losses_in(after) == {LogKey(TOPIC_ID, 1): ((40, 50),)}
    assert after.ranges[0] == replace(state.ranges[0], accepted=(LOST,))
    assert after.accepted_losses == (
        "range 0: what broker 0 has in registration 1; lost: orders/1 offsets 40 to 49",
    )
    assert done(after, accept_open(after, 0, more)).ranges[0].accepted == (more, LOST)
    assert refusal_of(state, accept_open(state, 0)) == "not-lost"
    foreign = LostOffsets(TOPIC_ID, 9, 3, 4)
    assert refusal_of(state, accept_open(state, 0, foreign)) == "wrong-partitions"


def test_what_is_damaged_in_one_of_several_copies_is_not_given_up() -> None:
    state = with_topic(led(3))
    assert refusal_of(state, accept_open(state, 0, LOST)) == "not-lost"


def test_a_lost_only_copy_is_led_without_what_is_damaged_in_it() -> None:
    state = with_topic(led(1, factor=1))
    ghost = replace(state.ranges[0], isr=(Replica(0, 1, is_ghost=True, cause="disk"),), leader=None)
    state = replace(state, ranges={0: ghost})
    after = done(state, accept_open(state, 0, LOST)).ranges[0]

    assert (after.epoch, after.leader, after.accepted) == (ghost.epoch + 1, Replica(0, 1), (LOST,))


def test_what_follows_a_range_has_lost_nothing_of_it() -> None:
    state = with_topic(led(1, factor=1))
    wanted = AlterTopic("orders", {"partitionsPerRange": 3})
    state = done(state, accept_open(state, 0, LOST), wanted, Reslice(0))

    assert state.step is not None
    assert [each.accepted for each in state.step.children] == [()]
