"""How long workers wait."""

from tailrace_operator.app.pace import Outcome, Pace
from tailrace_operator.app.settings import Settings


def pace() -> Pace:
    return Pace(
        Settings(waiting_seconds=1, resync_seconds=30, ring_seconds=10, retry_seconds_max=60)
    )


def test_a_change_that_changes_nothing_is_repeated_more_and_more_slowly() -> None:
    one = pace()
    waits_s = [one.next_s(Outcome.CHANGED, "the same", 0) for _ in range(10)]
    assert waits_s == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert one.rest_s(Outcome.CHANGED) == 1, "its own echo wakes nobody"
    assert one.next_s(Outcome.CHANGED, "another", 0) == 0


def test_errors_are_retried_more_and_more_slowly() -> None:
    one = pace()
    waits_s = [one.next_s(Outcome.FAILED, str(number), 0) for number in range(8)]
    assert waits_s == [1, 2, 4, 8, 16, 32, 60, 60]
    assert one.failure_count == 8
    one.next_s(Outcome.WELL, None, 0)
    assert one.failure_count == 0


def test_what_takes_long_is_asked_for_less_often() -> None:
    one = pace()
    assert [one.next_s(Outcome.WAITING, "s", now_s) for now_s in (0, 5, 60, 1000)] == [1, 1, 6, 30]
    assert one.next_s(Outcome.WAITING, "moved", 1000) == 1


def test_what_is_well_is_looked_at_now_and_then() -> None:
    assert pace().next_s(Outcome.WELL, None, 0) == 30
    assert pace().rest_s(Outcome.WELL) == 0
