"""What a group's consumer confirms: what was printed, and nothing else."""

import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from tailrace.cli.consuming import deliveries
from tailrace.cli.consuming.deliveries import SESSION_MS, Deliveries
from tailrace.errors import (
    ConnectionFailedError,
    ConsumerNotRegisteredError,
    StaleAssignmentError,
    StaleDeliveryError,
    TailraceError,
)
from tailrace.protocol.group_values import Polled, Registered
from tailrace.sansio import retries

EMPTY = b""
Answer = bytes | TailraceError | type[BaseException]


def problem(kind: type[Any]) -> Any:
    """One that a broker answers."""
    return kind(type="any", title="no", status=409)


class Broker:
    """A client whose broker has these answers to polls, then nothing any more."""

    def __init__(self, *answers: Answer, commit_error: TailraceError | None = None) -> None:
        self.answers = list(answers)
        self.commit_errors = [] if commit_error is None else [commit_error]
        self.signs: list[TailraceError] = []  # what is answered to heartbeats
        self.calls: list[str] = []
        self.parameters: list[Mapping[str, Any]] = []
        self.delivery = 10
        self.retry_after_s = 0.0

    def register(
        self,
        consumer_id: str,
        group: str,
        topics: Sequence[str],
        *,
        on_new_group: Any,
        session_ms: int,
        create_topics: bool,
        assignment_epoch: int | None,
    ) -> Registered:
        assert not create_topics
        self.calls.append("register" if assignment_epoch is None else "heartbeat")
        if assignment_epoch is not None and self.signs:
            raise self.signs.pop(0)
        return Registered(consumer_id, group, tuple(topics), on_new_group, session_ms, 7)

    def poll(self, consumer_id: str, *, delivery: int, **parameters: Any) -> Polled:
        self.calls.append(f"poll {delivery}")
        self.parameters.append(parameters)
        answer = self.answers.pop(0) if self.answers else EMPTY
        if not isinstance(answer, bytes):
            raise answer
        if not answer:
            return Polled(EMPTY, 0, 7, {}, self.retry_after_s)
        self.delivery += 1
        return Polled(answer, self.delivery, 7, {}, None)

    def commit(self, consumer_id: str, *, delivery: int, assignment_epoch: int) -> None:
        self.calls.append(f"commit {delivery}")
        if self.commit_errors:
            raise self.commit_errors.pop(0)

    def goodbye(
        self, consumer_id: str, *, commit: bool, delivery: int, assignment_epoch: int
    ) -> None:
        assert (commit, assignment_epoch) == (False, 7)
        self.calls.append(f"goodbye {delivery}")

    def close(self) -> None:
        self.calls.append("close")


def opened(broker: Any, notes: list[str] | None = None, *, follow: bool = False) -> Deliveries:
    """A consumer with pages of two records."""

    def note(text: str) -> None:
        if notes is not None:
            notes.append(text)

    return Deliveries(
        broker,
        group="g",
        topics=("t",),
        consumer_id="c",
        on_new_group="startFromEarliest",
        page_records=2,
        follow=follow,
        note=note,
    )


def take(
    pages: Iterable[bytes], printed: list[bytes], *, fail_at: bytes = b"", interrupts: int = 0
) -> None:
    """Print each page, with so many Ctrl-C before it is printed; one of them cannot be."""
    for page in pages:
        if page == fail_at:
            raise BrokenPipeError
        for _ in range(interrupts):
            signal.raise_signal(signal.SIGINT)
        printed.append(page)


def test_each_poll_confirms_what_was_printed_and_the_end_the_last() -> None:
    broker = Broker(b"1\n2\n", b"3\n")
    with opened(broker) as consumer:
        pages = list(consumer.slices(None))

    assert pages == [b"1\n2\n", b"3\n"]
    assert broker.calls == [*("register", "poll 0", "poll 11", "poll 12", "poll 12", "goodbye 12")]


def test_no_more_is_asked_for_than_is_wanted() -> None:
    broker = Broker(b"1\n2\n", b"3\n")
    with opened(broker, follow=True) as consumer:
        assert list(consumer.slices(3)) == [b"1\n2\n", b"3\n"]

    assert [parameter["max_records"] for parameter in broker.parameters] == [2, 1]
    assert broker.calls[-2:] == ["commit 12", "goodbye 12"]


def test_a_page_that_was_not_printed_is_not_confirmed() -> None:
    printed: list[bytes] = []
    broker = Broker(b"1\n2\n", b"3\n")
    with pytest.raises(BrokenPipeError), opened(broker) as consumer:
        take(consumer.slices(None), printed, fail_at=b"3\n")

    assert printed == [b"1\n2\n"]
    assert broker.calls[-3:] == ["poll 11", "close", "goodbye 12"]


def test_without_a_printed_page_nothing_is_confirmed() -> None:
    broker = Broker(b"1\n")
    with pytest.raises(BrokenPipeError), opened(broker) as consumer:
        take(consumer.slices(None), [], fail_at=b"1\n")

    assert broker.calls == ["register", "poll 0", "close", "goodbye 11"]


def test_a_later_delivery_on_its_way_is_left_to_come_again() -> None:
    """Its poll was interrupted, and had confirmed what came before it."""
    broker = Broker(b"1\n", KeyboardInterrupt, commit_error=problem(StaleDeliveryError))
    with pytest.raises(KeyboardInterrupt), opened(broker, follow=True) as consumer:
        list(consumer.slices(None))

    assert broker.calls[-3:] == ["close", "commit 11", "goodbye 11"]


def test_what_cannot_be_confirmed_in_the_end_is_reported() -> None:
    broker = Broker(b"1\n", commit_error=ConnectionFailedError("http://b:1", "gone"))
    reported = "The records printed last may come again"
    with pytest.raises(TailraceError, match=reported), opened(broker) as consumer:
        list(consumer.slices(1))


def test_a_consumer_that_was_removed_registers_again_and_prints_nothing_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retries, "PAUSE_S_MIN", 0)
    broker = Broker(b"1\n", problem(ConsumerNotRegisteredError), b"1\n", b"2\n")
    with opened(broker) as consumer:
        assert list(consumer.slices(2)) == [b"1\n", b"2\n"]

    assert broker.calls == [
        *("register", "poll 0", "poll 11", "register", "poll 0", "poll 12", "commit 13"),
        "goodbye 13",
    ]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which does not advance; and slices of one short line."""
    now_s = [1000.0]
    monkeypatch.setattr("tailrace.cli.consuming.deliveries.time.monotonic", lambda: now_s[0])
    monkeypatch.setattr(deliveries, "SLICE_BYTES", 1)
    return now_s


def take_slowly(slices: Iterable[bytes], printed: list[bytes], clock: list[float]) -> None:
    """Print each; it takes a session."""
    for slice_ in slices:
        printed.append(slice_)
        clock[0] += SESSION_MS / 1000


def test_between_slices_a_consumer_shows_that_it_lives(clock: list[float]) -> None:
    broker = Broker(b"1\n2\n3\n")
    with opened(broker) as consumer:
        for _ in consumer.slices(3):
            clock[0] += SESSION_MS / 1000 / 3

    assert broker.calls == [
        *("register", "poll 0", "heartbeat", "heartbeat", "commit 11", "goodbye 11")
    ]


def test_a_reader_slower_than_its_session_gets_each_record_and_the_group_moves(
    clock: list[float],
) -> None:
    page = b"1\n2\n3\n"
    broker = Broker(page, page, page, b"4\n")
    broker.signs = [problem(ConsumerNotRegisteredError)] * 2
    printed: list[bytes] = []
    with opened(broker) as consumer:
        take_slowly(consumer.slices(4), printed, clock)

    assert printed == [b"1\n", b"2\n", b"3\n", b"4\n"]
    assert broker.calls == [
        *("register", "poll 0", "heartbeat"),
        *("register", "poll 0", "heartbeat"),
        *("register", "poll 0", "poll 13"),
        *("commit 14", "goodbye 14"),
    ]


def test_what_comes_again_in_parts_is_not_printed_twice(clock: list[float]) -> None:
    broker = Broker(b"1\n2\n3\n", b"1\n", b"2\n", b"3\n")
    broker.signs = [problem(ConsumerNotRegisteredError)] * 2
    printed: list[bytes] = []
    with opened(broker) as consumer:
        slices = consumer.slices(3)
        printed += [next(slices), next(slices)]
        clock[0] += SESSION_MS / 1000
        printed += slices

    assert printed == [b"1\n", b"2\n", b"3\n"]


def test_what_was_printed_when_the_session_ended_is_confirmed_when_it_comes_again() -> None:
    broker = Broker(b"1\n", b"1\n", commit_error=problem(ConsumerNotRegisteredError))
    with opened(broker) as consumer:
        assert list(consumer.slices(1)) == [b"1\n"]

    assert broker.calls == [
        *("register", "poll 0", "commit 11", "register", "poll 0", "commit 12", "goodbye 12")
    ]


@pytest.mark.parametrize("answers", [[], [b"2\n"]], ids=["nothing", "another"])
def test_what_comes_to_another_in_the_end_is_reported(answers: list[bytes]) -> None:
    broker = Broker(b"1\n", *answers, commit_error=problem(ConsumerNotRegisteredError))
    reported = "The records printed last may come again"
    with pytest.raises(TailraceError, match=reported), opened(broker) as consumer:
        list(consumer.slices(1))


def test_a_consumer_whose_name_another_has_taken_ends_and_says_nothing_in_its_name(
    clock: list[float],
) -> None:
    broker = Broker(b"1\n2\n")
    broker.signs = [problem(StaleAssignmentError)]
    printed: list[bytes] = []
    with pytest.raises(StaleAssignmentError), opened(broker) as consumer:
        take_slowly(consumer.slices(None), printed, clock)

    assert printed == [b"1\n"]
    assert broker.calls == ["register", "poll 0", "heartbeat", "close"]


def test_a_poll_in_a_name_that_another_has_taken_is_an_error() -> None:
    broker = Broker(problem(StaleAssignmentError))
    with pytest.raises(StaleAssignmentError), opened(broker, follow=True) as consumer:
        list(consumer.slices(None))

    assert broker.calls == ["register", "poll 0", "close"]


def test_following_outlives_a_broker_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retries, "PAUSE_S_MIN", 0)
    gone = ConnectionFailedError("http://b:1", "gone")
    notes: list[str] = []
    with opened(Broker(gone, gone, b"1\n"), notes, follow=True) as consumer:
        assert list(consumer.slices(1)) == [b"1\n"]

    assert notes == [
        "no broker answers at http://b:1 (gone); trying again",
        "the broker answers again",
    ]


def test_without_following_a_broker_that_does_not_answer_is_an_error() -> None:
    broker = Broker(ConnectionFailedError("http://b:1", "gone"))
    with pytest.raises(ConnectionFailedError), opened(broker) as consumer:
        list(consumer.slices(None))


def test_a_consumer_without_partitions_says_so_once() -> None:
    broker = Broker()
    broker.retry_after_s = 5.0
    notes: list[str] = []
    with opened(broker, notes) as consumer:
        assert list(consumer.slices(None)) == []

    assert notes == ['other consumers of group "g" have all partitions']


def test_the_first_ctrl_c_waits_for_the_page_and_is_then_quiet() -> None:
    broker = Broker(b"1\n", b"2\n")
    printed: list[bytes] = []
    with pytest.raises(KeyboardInterrupt), opened(broker, follow=True) as consumer:
        take(consumer.slices(None), printed, interrupts=1)

    assert printed == [b"1\n"]
    assert broker.calls == ["register", "poll 0", "close", "commit 11", "goodbye 11"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_second_ctrl_c_does_not_wait() -> None:
    printed: list[bytes] = []
    broker = Broker(b"1\n")
    with pytest.raises(KeyboardInterrupt), opened(broker, follow=True) as consumer:
        take(consumer.slices(None), printed, interrupts=2)

    assert printed == []
    assert broker.calls == ["register", "poll 0", "close", "goodbye 11"]
