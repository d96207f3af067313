"""What a consumer asks next, from literal answers: deliveries, removals, assignments, timeouts."""

import pytest

from tailrace.errors import (
    ConnectionFailedError,
    ConsumerNotRegisteredError,
    ProblemError,
    StaleAssignmentError,
    StaleDeliveryError,
    TailraceError,
    TopicNotFoundError,
    UnexpectedAnswerError,
)
from tailrace.protocol.group_values import (
    GroupConsumer,
    GroupDetails,
    GroupInfo,
    Polled,
    Registered,
    TopicPartition,
)
from tailrace.sansio.consuming import Assignment, ConsumerOptions, Consuming, Step

URL = "http://127.0.0.1:9250"
PATIENCE_S = 10.0
INFO = GroupInfo("g", "active", 1, ("t",), 0, None, 0)


def consuming(*, wants_assignment: bool = False, **options: object) -> Consuming:
    """Of consumer "c1" of group "g", which reads topic "t"."""
    given = ConsumerOptions(consumer_id="c1", wait_ms=0, patience_s=PATIENCE_S)
    given.update(options)  # type: ignore[typeddict-item]
    return Consuming("g", "t", new_id="new", wants_assignment=wants_assignment, **given)


def registered(epoch: int = 1) -> Registered:
    return Registered("c1", "g", ("t",), "startFromEarliest", 30_000, epoch)


def polled(*values: int, delivery: int = 1, epoch: int = 1) -> Polled:
    """A delivery of these values, at these offsets."""
    body = b"".join(
        b'{"topic":"t","partition":0,"offset":%d,"timestamp":"2026-11-21T10:09:23.114502Z",'
        b'"key":null,"value":%d}\n' % (value, value)
        for value in values
    )
    return Polled(body, delivery, epoch, {}, None)


def nothing(*, delivery: int = 0, epoch: int = 1, retry_after_s: float = 1.0) -> Polled:
    return Polled(b"", delivery, epoch, {}, retry_after_s)


def details(*partitions: int, epoch: int, consumer_id: str = "c1") -> GroupDetails:
    own = tuple(TopicPartition("t", partition) for partition in partitions)
    consumer = GroupConsumer(consumer_id, ("t",), "startFromEarliest", 30_000, 0, own)
    return GroupDetails(INFO, epoch, (consumer,), ())


def problem(kind: type[ProblemError], *, retriable: bool = False) -> ProblemError:
    return kind(type="any", title="No", status=409, retriable=retriable)


def ready(*, wants_assignment: bool = False) -> Consuming:
    """A consumer that has registered and wants records."""
    state = consuming(wants_assignment=wants_assignment)
    state.ask("records")
    assert state.next_step() is Step.REGISTER
    state.registered(registered())
    return state


def with_delivery(*values: int, delivery: int = 1) -> Consuming:
    """One that has got these records."""
    state = ready()
    state.polled(polled(*values, delivery=delivery))
    return state


def test_options_have_defaults() -> None:
    state = Consuming("g", ["a", "b"], new_id="new")

    assert state.register_parameters() == {
        "consumer_id": "new",
        "group": "g",
        "topics": ("a", "b"),
        "on_new_group": "startFromEarliest",
        "session_ms": 30_000,
        "create_topics": False,
        "assignment_epoch": None,
    }
    assert state.poll_parameters() == {
        "form": "ndjson",
        "max_records": None,
        "max_bytes": None,
        "wait_ms": 5000,
        "delivery": 0,
        "assignment_epoch": None,
    }


@pytest.mark.parametrize(
    ("option", "value", "reported"),
    [
        ("session_ms", 999, "session_ms is 999; give 1000 or more"),
        ("max_records", 0, "max_records is 0; give 1 or more"),
        ("max_bytes", -1, "max_bytes is -1; give 1 or more"),
        ("wait_ms", -1, "wait_ms is -1; give 0 or more"),
        ("patience_s", -0.1, "patience_s is -0.1; give 0 or more"),
        ("on_new_group", "earliest", "on_new_group is 'earliest'; give startFromEarliest or"),
        ("consumer_id", "", "consumer_id '' is no name"),
        ("consumer_id", "a b", "consumer_id 'a b' is no name"),
        ("consumer_id", "a/b", "none of them a /"),
    ],
)
def test_an_option_out_of_bounds_is_named(option: str, value: object, reported: str) -> None:
    with pytest.raises(ValueError, match=reported):
        consuming(**{option: value})  # type: ignore[arg-type]


def test_what_is_no_option_is_refused() -> None:
    with pytest.raises(TypeError, match="sesion_ms"):
        consuming(sesion_ms=1_000)


def test_a_group_has_a_name_and_topics() -> None:
    with pytest.raises(ValueError, match="group '' is no name; give 1 to 249 visible"):
        Consuming("", "t", new_id="c1")
    with pytest.raises(ValueError, match="topics is empty"):
        Consuming("g", [], new_id="c1")


def test_it_registers_then_polls_and_names_no_delivery() -> None:
    state = ready()

    assert state.is_registered
    assert state.next_step() is Step.POLL
    parameters = state.poll_parameters()
    assert (parameters["delivery"], parameters["assignment_epoch"]) == (0, 1)


def test_nothing_is_polled_before_all_records_are_handed_out() -> None:
    state = with_delivery(1, 2)

    state.ask("records")
    assert state.next_step() is None
    first = state.take()
    state.ask("records")
    assert state.next_step() is None
    last = state.take()

    assert first is not None
    assert last is not None
    assert (first.offset, last.offset) == (1, 2)
    assert state.take() is None


def test_the_poll_after_a_delivery_names_it() -> None:
    state = with_delivery(1, 2, delivery=7)
    assert [record.value for record in state.take_records()] == [b"1", b"2"]

    state.ask("records")

    assert state.next_step() is Step.POLL
    assert state.poll_parameters()["delivery"] == 7


def test_a_lost_answer_is_asked_for_again() -> None:
    state = with_delivery(1, delivery=7)
    state.take_records()
    state.ask("records")

    pause_s = state.failed(ConnectionFailedError(URL, "reset", write_attempted=True), 100.0)

    assert 0 < pause_s < 1
    assert state.next_step() is Step.POLL
    assert state.poll_parameters()["delivery"] == 7


def test_the_timeout_ends_and_begins_again() -> None:
    state = with_delivery()
    error = ConnectionFailedError(URL, "refused")
    state.ask("records")
    state.failed(error, 100.0)

    with pytest.raises(ConnectionFailedError) as caught:
        state.failed(error, 100.0 + PATIENCE_S)

    assert caught.value is error
    assert state.failed(error, 500.0) > 0


def test_an_answer_begins_the_timeout_again() -> None:
    state = with_delivery()
    error = ConnectionFailedError(URL, "refused")
    state.failed(error, 100.0)
    state.polled(nothing())

    assert state.failed(error, 100.0 + PATIENCE_S) > 0


def test_without_a_broker_from_the_start_there_is_no_timeout() -> None:
    state = consuming()
    state.ask("records")

    with pytest.raises(ConnectionFailedError):
        state.failed(ConnectionFailedError(URL, "refused"), 0.0)


@pytest.mark.parametrize("kind", [TopicNotFoundError, ProblemError, StaleAssignmentError])
def test_what_a_retry_does_not_repair_is_raised(kind: type[ProblemError]) -> None:
    state = ready()

    with pytest.raises(kind):
        state.failed(problem(kind), 0.0)


def test_a_broker_that_is_not_ready_is_asked_again() -> None:
    assert ready().failed(problem(ProblemError, retriable=True), 0.0) > 0


def test_a_consumer_whose_name_another_has_taken_does_not_speak_in_its_name() -> None:
    state = ready()

    with pytest.raises(StaleAssignmentError):
        state.failed(problem(StaleAssignmentError), 0.0)

    assert not state.is_registered


def test_a_removed_consumer_registers_and_goes_on() -> None:
    state = with_delivery(1, delivery=7)
    state.take_records()
    state.ask("records")

    assert state.failed(problem(ConsumerNotRegisteredError), 0.0) > 0
    assert state.next_step() is Step.REGISTER
    state.registered(registered(epoch=5))
    assert state.next_step() is Step.POLL
    parameters = state.poll_parameters()
    assert (parameters["delivery"], parameters["assignment_epoch"]) == (0, 5)
    state.polled(polled(1, delivery=9, epoch=5))
    assert [record.offset for record in state.take_records()] == [1]


def test_a_consumer_that_is_removed_again_and_again_gives_up() -> None:
    state = ready()
    state.failed(problem(ConsumerNotRegisteredError), 0.0)
    state.registered(registered())

    with pytest.raises(ConsumerNotRegisteredError):
        state.failed(problem(ConsumerNotRegisteredError), PATIENCE_S)


def test_a_commit_names_what_was_handed_out_completely() -> None:
    state = with_delivery(1, 2, delivery=7)

    assert state.commit_parameters() is None
    state.take_records()
    assert state.commit_parameters() == {"delivery": 7, "assignment_epoch": 1}
    state.committed()
    assert state.commit_parameters() is None


def test_a_poll_that_was_answered_has_confirmed() -> None:
    state = with_delivery(1, delivery=7)
    state.take_records()
    state.ask("records")

    state.polled(nothing(delivery=7))

    assert state.next_step() is None
    assert state.commit_parameters() is None


def test_a_commit_that_came_too_late_is_reported() -> None:
    state = with_delivery(1)
    state.take_records()

    with pytest.raises(StaleDeliveryError):
        state.commit_failed(problem(StaleDeliveryError), 0.0)
    assert state.commit_parameters() is None
    assert state.is_registered


def test_a_commit_after_a_change_of_the_coordinator_is_no_error() -> None:
    state = with_delivery(1)
    state.take_records()
    error = problem(StaleDeliveryError)
    error.members["coordinatorChanged"] = True

    assert state.commit_failed(error, 0.0) == 0
    assert state.commit_parameters() is None
    assert [state.take_comes_again() for _ in range(2)] == [True, False]
    assert state.is_registered


def test_a_commit_of_a_removed_consumer_is_reported() -> None:
    state = with_delivery(1)
    state.take_records()

    with pytest.raises(ConsumerNotRegisteredError):
        state.commit_failed(problem(ConsumerNotRegisteredError), 0.0)
    assert not state.is_registered


def test_a_commit_without_an_answer_is_repeated() -> None:
    state = with_delivery(1)
    state.take_records()

    assert state.commit_failed(ConnectionFailedError(URL, "reset"), 0.0) > 0
    assert state.commit_parameters() is not None


def test_the_assignment_is_described_before_records_of_it() -> None:
    state = ready(wants_assignment=True)

    assert state.next_step() is Step.DESCRIBE
    first = state.described(details(0, 1, epoch=1))
    assert state.next_step() is Step.POLL
    state.polled(polled(1, epoch=2))
    assert state.next_step() is Step.DESCRIBE
    second = state.described(details(1, 2, epoch=2))
    assert state.next_step() is None

    zero, one, two = (TopicPartition("t", partition) for partition in range(3))
    assert first == Assignment(1, (zero, one), (zero, one), ())
    assert second == Assignment(2, (one, two), (two,), (zero,))


def test_an_assignment_newer_than_the_answer_is_reported_once() -> None:
    state = ready(wants_assignment=True)

    state.described(details(0, epoch=3))

    assert state.next_step() is Step.POLL
    state.polled(polled(1, epoch=3))
    assert state.next_step() is None


def test_a_description_that_failed_loses_no_records() -> None:
    state = ready(wants_assignment=True)
    state.described(details(0, epoch=1))
    state.polled(polled(1, epoch=2))
    with pytest.raises(TailraceError):
        state.failed(problem(ProblemError), 0.0)

    state.ask("records")
    assert state.next_step() is Step.DESCRIBE
    state.described(details(epoch=2, consumer_id="another"))

    assert state.next_step() is None
    assert [record.offset for record in state.take_records()] == [1]


def test_an_answer_that_cannot_be_read_is_not_dealt_with() -> None:
    state = with_delivery(1, delivery=7)
    state.take_records()
    state.ask("records")

    with pytest.raises(UnexpectedAnswerError):
        state.polled(Polled(b"<html>", 8, 1, {}, None))

    assert state.next_step() is Step.POLL
    assert state.poll_parameters()["delivery"] == 7


def test_after_an_empty_answer_it_waits_as_reported_less_what_it_has_waited() -> None:
    state = ready()
    state.asked(100.0)
    state.polled(nothing(retry_after_s=5.0))

    assert state.idle_s(102.0) == 3.0
    assert state.idle_s(106.0) == 0.0


def test_after_records_it_does_not_wait() -> None:
    state = ready()
    state.polled(nothing(retry_after_s=5.0))
    state.asked(100.0)
    state.polled(polled(1))

    assert state.idle_s(100.0) == 0.0


def test_a_heartbeat_is_due_after_a_third_of_the_session() -> None:
    state = consuming(session_ms=3000)
    assert not state.is_sign_due(100.0)
    state.asked(100.0)
    state.registered(registered(epoch=4))

    state.polled(polled(1, epoch=4))

    assert not state.is_sign_due(100.9)
    assert state.is_sign_due(101.0)
    state.take()
    assert not state.is_sign_due(200.0)  # the next poll comes when more is wanted


def test_a_heartbeat_says_and_keeps_what_was_reported() -> None:
    state = with_delivery(1, 2, delivery=7)

    assert state.register_parameters()["assignment_epoch"] == 1
    state.registered(registered(epoch=9))

    assert state.poll_parameters()["assignment_epoch"] == 1
    assert len(state.take_records()) == 2
    assert state.commit_parameters() == {"delivery": 7, "assignment_epoch": 1}


def test_a_heartbeat_of_a_removed_consumer_drops_what_is_in_hand() -> None:
    state = with_delivery(1, 2, delivery=7)
    state.take()

    state.sign_failed(problem(ConsumerNotRegisteredError))

    assert state.take() is None
    state.ask("records")
    assert state.next_step() is Step.REGISTER
    assert state.register_parameters()["assignment_epoch"] is None
    state.registered(registered(epoch=5))
    parameters = state.poll_parameters()
    assert (parameters["delivery"], parameters["assignment_epoch"]) == (0, 5)


def test_a_process_that_slept_while_another_took_its_name_does_not_take_it_back() -> None:
    state = with_delivery(1, 2)
    state.take()

    with pytest.raises(StaleAssignmentError):
        state.sign_failed(problem(StaleAssignmentError))

    assert state.take() is None
    assert state.commit_parameters() is None
    assert state.goodbye_parameters() is None


def test_a_heartbeat_without_an_answer_leaves_it_to_the_next_poll() -> None:
    state = with_delivery(1, 2, delivery=7)

    state.sign_failed(ConnectionFailedError(URL, "reset"))

    assert len(state.take_records()) == 2
    assert state.goodbye_parameters() == {"delivery": 7, "assignment_epoch": 1}


def test_the_epoch_of_a_description_is_not_the_consumers_own() -> None:
    state = ready(wants_assignment=True)

    state.described(details(0, epoch=9))

    assert state.next_step() is Step.POLL
    assert state.poll_parameters()["assignment_epoch"] == 1


def test_the_timeout_begins_again_after_a_commit_that_came_too_late() -> None:
    state = with_delivery(1)
    state.take_records()
    state.commit_failed(ConnectionFailedError(URL, "reset"), 0.0)
    with pytest.raises(ConsumerNotRegisteredError):
        state.commit_failed(problem(ConsumerNotRegisteredError), 1.0)

    assert state.failed(ConnectionFailedError(URL, "refused"), 10 * PATIENCE_S) > 0


def test_lines_are_handed_out_once_they_are_dealt_with() -> None:
    state = ready()
    state.ask("lines", max_records=3)
    assert state.poll_parameters()["form"] == "ndjson"
    assert state.poll_parameters()["max_records"] == 3

    state.polled(Polled(b"one\rone\ntwo\nthree\n", 1, 1, {}, None))
    assert state.lines(size_bytes=1) == [b"one\rone\n"]
    state.take_lines(1)
    assert state.lines(size_bytes=10) == [b"two\n", b"three\n"]
    assert state.commit_parameters() is None
    state.skip_lines({b"two\n", b"three\n"})

    assert state.lines(size_bytes=10) == []
    assert state.commit_parameters() == {"delivery": 1, "assignment_epoch": 1}


def test_the_rest_of_a_delivery_is_taken_as_it_began() -> None:
    state = with_delivery(1, 2)
    state.take()

    with pytest.raises(ValueError, match="take the rest"):
        state.ask("batches")

    state.drop()
    state.ask("batches")
    assert state.poll_parameters()["form"] == "batch"
