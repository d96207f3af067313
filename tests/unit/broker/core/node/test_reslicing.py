"""The metadata's leader has ranges re-sliced, one after another."""

from msgspec.structs import replace

from tailrace_broker.core.node.reslicing import PAUSE_MS, PAUSE_MS_MAX, Reslicing
from tailrace_broker.model.commands import (
    AbortStep,
    AlterTopic,
    ChangeIsr,
    DeleteTopic,
    Reslice,
)
from tailrace_broker.model.ring_state import Replica, RingState
from tests.support.ring.states import done, led, sealed, with_topic


def altered() -> RingState:
    """A ring of three whose only topic wants more partitions."""
    return done(with_topic(led()), AlterTopic("orders", {"partitionsPerRange": 4}))


def test_nothing_is_due_while_topics_have_what_they_want() -> None:
    reslicing = Reslicing()

    assert reslicing.due(led(), 0) is None
    assert reslicing.due(with_topic(led()), 0) is None


def test_one_range_follows_another() -> None:
    reslicing, state, asked = Reslicing(), altered(), []
    while (command := reslicing.due(state, 0)) is not None:
        asked.append(command.range_id)
        state = done(state, command)
        assert reslicing.due(state, 0) is None
        state = done(state, sealed(state, command.range_id))

    assert asked == [0, 1, 2]


def test_what_was_not_applied_is_asked_for_again() -> None:
    reslicing, state = Reslicing(), altered()

    assert reslicing.due(state, 0) == reslicing.due(state, 200) == Reslice(0)


def test_a_range_that_cannot_be_sealed_now_is_passed_over() -> None:
    state = done(altered(), ChangeIsr(0, 1, 0, (Replica(0, 1), Replica(1, 1))))
    assert Reslicing().due(state, 0) == Reslice(1)

    leaderless = {key: replace(each, leader=None) for key, each in state.ranges.items()}
    assert Reslicing().due(replace(state, ranges=leaderless), 0) is None


def test_one_that_is_cancelled_is_tried_again_after_a_pause_that_doubles() -> None:
    reslicing, state, now_ms = Reslicing(), altered(), 0
    for number, pause_ms in enumerate((PAUSE_MS, 2 * PAUSE_MS, 4 * PAUSE_MS)):
        assert reslicing.due(state, now_ms) == Reslice(number)
        state = done(done(state, Reslice(number)), AbortStep(state.next_step))
        assert reslicing.due(state, now_ms) is None
        now_ms += pause_ms - 1
        assert reslicing.due(state, now_ms) is None
        now_ms += 1


def test_a_range_that_is_cancelled_each_time_keeps_no_other_waiting() -> None:
    """A partition of it may be damaged, until a person decides."""
    reslicing, state, now_ms, asked = Reslicing(), altered(), 0, []
    for _ in range(4):
        command = reslicing.due(state, now_ms)
        assert command is not None
        asked.append(command.range_id)
        state = done(state, command)
        ended = AbortStep(state.next_step - 1)
        state = done(state, sealed(state, asked[-1]) if asked[-1] else ended)
        assert reslicing.due(state, now_ms) is None or asked[-1]
        now_ms += PAUSE_MS_MAX

    assert asked == [0, 1, 2, 0]


def test_a_pause_has_a_bound_and_ends_with_success() -> None:
    reslicing, state, now_ms = Reslicing(), altered(), 0
    for number in range(9):
        assert reslicing.due(state, now_ms) == Reslice(number % 3)
        state = done(done(state, Reslice(number % 3)), AbortStep(state.next_step))
        assert reslicing.due(state, now_ms) is None
        now_ms += PAUSE_MS_MAX
    assert reslicing.due(state, now_ms) == Reslice(0)
    state = done(state, Reslice(0))
    state = done(state, sealed(state, 0))
    assert reslicing.due(state, now_ms) == Reslice(1)

    state = done(done(state, Reslice(1)), AbortStep(state.next_step))
    assert reslicing.due(state, now_ms) is None
    assert reslicing.due(state, now_ms + PAUSE_MS) == Reslice(2)


def test_a_topic_that_is_deleted_waits_for_nothing() -> None:
    reslicing, state = Reslicing(), altered()
    assert reslicing.due(state, 0) == Reslice(0)

    assert reslicing.due(done(state, DeleteTopic("orders", 5)), 0) is None
