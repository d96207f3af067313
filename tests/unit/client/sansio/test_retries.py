"""Whether a produce request is sent again, and when."""

import pytest

from tailrace.errors import ConnectionFailedError, ProblemError, TailraceError
from tailrace.sansio.retries import PAUSE_S_MAX, PAUSE_S_MIN, Retries, first_sequence


def lost(*, write_attempted: bool) -> ConnectionFailedError:
    return ConnectionFailedError("http://a", "reset", write_attempted=write_attempted)


def refused(status: int, type: str, *, retriable: bool) -> ProblemError:
    return ProblemError(type=type, title="no", status=status, retriable=retriable)


def test_a_name_s_next_run_does_not_repeat_the_numbers_of_the_last() -> None:
    assert first_sequence(None, 7_000) == 0
    assert first_sequence("till-7", 7_000) == 7_000


def test_pauses_grow_until_the_timeout_ends() -> None:
    retries = Retries(10.0, is_numbered=True, is_patient=True)
    now_s, pauses_s = 0.0, []
    while (pause_s := retries.pause_s(lost(write_attempted=True), now_s)) is not None:
        pauses_s.append(pause_s)
        now_s += pause_s

    assert pauses_s[0] == PAUSE_S_MIN
    assert pauses_s == sorted(pauses_s)
    assert pauses_s[-1] == PAUSE_S_MAX
    assert 10.0 - PAUSE_S_MAX < now_s <= 10.0


def test_what_a_retry_does_not_repair_is_the_outcome_at_once() -> None:
    retries = Retries(10.0, is_numbered=True, is_patient=True)

    assert retries.pause_s(refused(404, "topic-not-found", retriable=False), 0.0) is None


@pytest.mark.parametrize(("write_attempted", "pause_s"), [(False, PAUSE_S_MIN), (True, None)])
def test_without_a_number_only_what_was_surely_not_stored_is_sent_again(
    write_attempted: bool, pause_s: float | None
) -> None:
    retries = Retries(10.0, is_numbered=False, is_patient=True)

    assert retries.pause_s(lost(write_attempted=write_attempted), 0.0) == pause_s


def test_where_no_broker_was_met_from_the_start_the_impatient_give_up() -> None:
    retries = Retries(10.0, is_numbered=True, is_patient=False)

    assert retries.pause_s(lost(write_attempted=False), 0.0) is None
    assert retries.pause_s(lost(write_attempted=True), 0.0) is not None
    assert retries.pause_s(lost(write_attempted=False), 0.0) is not None


def test_one_attempt_that_may_have_stored_it_counts_for_all() -> None:
    retries = Retries(10.0, is_numbered=True, is_patient=True)
    retries.pause_s(lost(write_attempted=True), 0.0)
    error: TailraceError = lost(write_attempted=False)

    assert retries.pause_s(error, 11.0) is None
    assert error.write_attempted


@pytest.mark.parametrize(("status", "is_tried"), [(502, True), (504, True), (403, False)])
def test_a_proxy_without_a_broker_is_tried_again(status: int, is_tried: bool) -> None:
    error = refused(status, "about:blank", retriable=False)
    pause_s = Retries(10.0, is_numbered=True, is_patient=False).pause_s(error, 0.0)

    assert (pause_s is not None) == is_tried
    assert error.write_attempted == is_tried
