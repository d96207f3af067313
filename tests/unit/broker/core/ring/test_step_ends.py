"""How a step has ended, as the states before and after it say."""

from msgspec.structs import replace

from tailrace_broker.core.ring.step_ends import StepEnd, participants, step_end
from tailrace_broker.model.commands import AbortStep, Command, Lead, Lost
from tailrace_broker.model.ring_state import RingState
from tests.support.ring.states import begin, done, led, register, sealed, with_topic


def growing() -> RingState:
    """A ring of four with two topics of two partitions a range, to which a fifth comes."""
    state = with_topic(with_topic(led(4, registered=1)), "refunds")
    return begin(state)


def ended_by(*commands: Command) -> StepEnd | None:
    before = growing()
    return step_end(before, done(before, *commands))


def test_a_step_goes_on_until_all_its_ranges_are_sealed() -> None:
    before = growing()
    assert before.step is not None
    first, second = before.step.parents
    half = done(before, sealed(before, first))

    assert step_end(led(), led()) is None
    assert step_end(before, half) is None
    after = done(half, sealed(half, second))
    assert half.step is not None
    assert step_end(half, after) == StepEnd(half.step, "", 2 * 2 * 2, 2 * 2 * 3, 0)


def test_a_cancelled_step_says_what_came_between() -> None:
    def why(*commands: Command) -> str:
        end = ended_by(*commands)
        assert end is not None
        assert (end.sealed_partitions, end.new_partitions) == (0, 0)
        return end.why

    late = "could not be sealed in time: "
    assert why(AbortStep(0, 1, "broker 2 is far")) == f"range 1 {late}broker 2 is far"
    assert why(AbortStep(0)) == (f"range 1 {late}its leader, broker 3, has not reported its ends")
    assert why(register(4, "process")) == "broker 4 has registered again"
    assert why(Lead(1, 1, 1, 1, (3,))) == "range 1 has begun epoch 2"
    assert why(Lost(1, 1, 1, 0)) == "a replica of range 1 has found damage"


def test_of_a_range_whose_leader_says_nothing_the_state_says_what_it_lacks() -> None:
    """The one that leaves is not needed."""

    def why(kind: str, brokers: int) -> str:
        before = begin(with_topic(led(brokers, registered=1)), kind)
        assert before.step is not None
        late, *others = before.step.parents
        owner = before.ranges[late]
        isr = tuple(each for each in owner.isr if each.ordinal != 2)
        half = done(before, *(sealed(before, each) for each in others))
        shrunk = replace(half, ranges={**half.ranges, late: replace(owner, isr=isr)})
        after = done(shrunk, AbortStep(0, others[0] if others else None, "unused"))
        assert after.last_step is not None
        return after.last_step.why

    late = "range 0 could not be sealed in time: "
    assert why("grow", 3) == f"{late}broker 2 is not in sync"
    assert why("shrink", 3) == f"{late}its leader, broker 0, has not reported its ends"


def test_the_pause_begins_with_the_first_leader_that_holds_appends() -> None:
    before = growing()
    assert before.step is not None
    first, second = before.step.parents
    for one, other in ((30, 70), (70, 30)):
        half = done(before, replace(sealed(before, first), held_after_ms=one))
        after = done(half, replace(sealed(half, second), held_after_ms=other))
        end = step_end(half, after)
        assert end is not None
        assert end.held_after_ms == 30


def test_another_step_may_have_begun_since() -> None:
    before = growing()
    after = begin(done(before, AbortStep(0)))

    end = step_end(before, after)
    assert end is not None
    assert end.why.startswith("range 1 could not be sealed in time")
    later = step_end(before, done(after, AbortStep(1)))
    assert later is not None
    assert later.why == "another step has ended since"


def test_a_step_that_was_followed_by_another_that_has_ended_is_done_all_the_same() -> None:
    before = growing()
    assert before.step is not None
    first, second = before.step.parents
    half = done(before, sealed(before, first))
    whole = done(half, sealed(half, second))
    later = done(begin(whole, "shrink"), AbortStep(1))

    end = step_end(half, later)
    assert end is not None
    assert (end.why, end.held_after_ms) == ("", None)


def test_who_holds_what_a_step_changes_takes_part() -> None:
    state = growing()
    assert state.step is not None

    assert participants(state.step, state) == {1, 2, 0, 3, 4}
    fewer = replace(state.step, children=())
    assert participants(fewer, state) == {0, 1, 2, 3}
