"""When appends for another broker are sent, repeated or given up."""

from itertools import count
from uuid import UUID

import pytest

from tailrace_broker.core.forwarding.partition_queue import (
    BACKOFF_MS_MAX,
    BACKOFF_MS_MIN,
    DEPOSED_MS,
    EventContents,
    PartitionQueue,
    WaitingAppend,
    is_refusal,
    is_role_end,
    is_sealed,
)
from tailrace_broker.core.log.producers import Producer
from tailrace_broker.model.errors import (
    DiskFullError,
    NoLeaderError,
    NotLeaderError,
    NotReadyError,
    TailraceError,
)
from tailrace_broker.model.replication import LogKey

KEY = LogKey(UUID(int=1), 0)
PRODUCER = Producer(b"p" * 16, 1)
DEADLINE_MS = 10_000
OLD, NEW = 1, 2  # leaders
REFUSED = NotLeaderError("another leads")
ENDED = NoLeaderError("the epoch has ended")
ENDED.write_attempted = True


def append(*, producer: Producer | None = None, deadline_ms: int = DEADLINE_MS) -> WaitingAppend:
    return WaitingAppend(EventContents(None, b"{}", 0, 0), lambda _: None, producer, deadline_ms)


class Subject:
    """A queue whose appends are numbered as they are sent, from 1 on."""

    def __init__(self, *appends: WaitingAppend) -> None:
        self.queue = PartitionQueue(KEY, count(1))
        self.numbers = count(1)
        for each in appends:
            self.queue.add(each)

    def send(self, leader: int | None, now_ms: int = 0) -> list[WaitingAppend]:
        """All that may be sent now."""
        sent = []
        while (each := self.queue.next(leader, now_ms)) is not None:
            self.queue.sent(next(self.numbers))
            sent.append(each)
        self.queue.validate()
        return sent


def test_appends_are_sent_in_order_and_end_when_they_are_stored() -> None:
    first, second = append(), append()
    subject = Subject(first, second)

    assert subject.send(OLD) == [first, second]
    assert subject.queue.stored(1) is first
    assert len(subject.queue) == 1
    assert subject.queue.stored(2) is second
    assert subject.queue.stored(2) is None
    assert len(subject.queue) == 0
    assert not subject.queue.has_unsent


def test_nothing_is_sent_while_nobody_leads() -> None:
    subject = Subject(append())

    assert subject.send(None) == []
    assert subject.queue.has_unsent


def test_what_was_refused_is_sent_again_in_order_in_a_new_turn() -> None:
    first, second, third = append(), append(), append()
    subject = Subject(first, second)
    turn = subject.queue.turn
    subject.send(OLD)

    assert subject.queue.failed(2, REFUSED, 0) is None
    subject.queue.add(third)
    assert subject.send(NEW) == []  # the first has no answer yet
    assert subject.queue.failed(1, REFUSED, 0) is None

    assert subject.send(NEW, BACKOFF_MS_MIN) == [first, second, third]
    assert subject.queue.turn > turn
    assert first.error is REFUSED


def test_a_leader_that_refuses_is_asked_ever_later() -> None:
    subject = Subject(append())
    now_ms = waited_ms = 0
    for number in range(1, 12):
        assert len(subject.send(OLD, now_ms)) == 1
        subject.queue.failed(number, REFUSED, now_ms)
        waited_ms = subject.queue.resume_at_ms - now_ms
        assert subject.send(OLD, subject.queue.resume_at_ms - 1) == []
        now_ms = subject.queue.resume_at_ms

    assert waited_ms == BACKOFF_MS_MAX
    subject.send(OLD, now_ms)
    subject.queue.stored(12)
    subject.queue.add(append())
    subject.send(OLD, now_ms)
    subject.queue.failed(13, REFUSED, now_ms)
    assert subject.queue.resume_at_ms == now_ms + BACKOFF_MS_MIN


def test_an_error_that_is_no_refusal_is_the_answer() -> None:
    first = append(producer=PRODUCER)
    subject = Subject(first)
    subject.send(OLD)

    assert subject.queue.failed(1, DiskFullError("full"), 0) is first
    assert subject.queue.failed(1, DiskFullError("full"), 0) is None


def test_what_the_end_of_an_epoch_leaves_open_is_repeated_with_a_producer_alone() -> None:
    plain, named = append(), append(producer=PRODUCER)
    subject = Subject(plain, named)
    subject.send(OLD)

    assert subject.queue.failed(1, ENDED, 0) is plain
    assert subject.queue.failed(2, ENDED, 0) is None
    assert named.may_be_stored
    assert subject.send(NEW) == [named]


def test_a_broken_connection_leaves_open_what_was_handed_over() -> None:
    plain, named, unsent = append(), append(producer=PRODUCER), append()
    subject = Subject(plain, named, unsent)
    subject.send(OLD)

    assert subject.queue.lost(NEW, 9) == []  # that of another broker
    assert subject.queue.lost(OLD, 2) == [plain]

    assert subject.send(OLD) == [named, unsent]
    assert (plain.may_be_stored, named.may_be_stored, unsent.may_be_stored) == (True, True, False)


def test_a_producers_appends_do_not_wait_for_a_leader_that_is_one_no_more() -> None:
    named = append(producer=PRODUCER)
    subject = Subject(named)
    subject.send(OLD)

    assert subject.send(NEW) == [named]
    assert subject.queue.stored(1) is None
    assert subject.queue.stored(2) is named


def test_a_former_leader_has_some_time_to_answer() -> None:
    plain, named, later = append(), append(producer=PRODUCER), append()
    subject = Subject(plain, named)
    subject.send(OLD, 0)
    subject.queue.add(later)

    assert subject.send(NEW, 5) == []
    assert subject.send(NEW, 100) == []
    assert subject.queue.expired(4 + DEPOSED_MS) == []
    assert subject.queue.expired(5 + DEPOSED_MS) == [plain]
    assert subject.send(NEW, 5 + DEPOSED_MS) == [named, later]


def test_a_leader_that_leads_again_has_all_the_time() -> None:
    first = append()
    subject = Subject(first)
    subject.send(OLD)
    subject.send(None)
    subject.send(OLD)

    assert subject.queue.expired(DEPOSED_MS + 1) == []
    assert subject.queue.stored(1) is first


def test_what_waits_too_long_is_given_up() -> None:
    sent, returned, waiting = append(), append(), append(deadline_ms=DEADLINE_MS + 1)
    subject = Subject(returned, sent)
    subject.send(OLD)
    subject.queue.failed(1, REFUSED, 0)
    subject.queue.add(waiting)

    assert subject.queue.expired(DEADLINE_MS) == [sent, returned]
    assert (sent.may_be_stored, returned.may_be_stored) == (True, False)
    assert subject.queue.expired(DEADLINE_MS + 1) == [waiting]
    assert len(subject.queue) == 0


def test_what_is_not_sent_is_taken_back_in_order() -> None:
    first, second, third = append(), append(), append()
    subject = Subject(first, second)
    subject.send(OLD)
    subject.queue.failed(2, REFUSED, 0)
    subject.queue.add(third)

    assert subject.queue.take_waiting() == [second, third]
    assert len(subject.queue) == 1


def attempted(error: TailraceError) -> TailraceError:
    error.write_attempted = True
    return error


@pytest.mark.parametrize(
    ("error", "is_refused", "is_ended"),
    [
        (NotLeaderError("elsewhere"), True, False),
        (NotLeaderError("sealed", children=[1]), False, False),
        (NoLeaderError("nobody"), True, False),
        (NotReadyError("stopping"), True, False),
        (DiskFullError("full"), False, False),
        (attempted(NoLeaderError("ended")), False, True),
        (attempted(NotLeaderError("deposed")), False, True),
        (attempted(DiskFullError("full")), False, False),
    ],
)
def test_which_errors_leave_room_for_another_try(
    error: TailraceError, is_refused: bool, is_ended: bool
) -> None:
    assert is_refusal(error) is is_refused
    assert is_role_end(error) is is_ended


# --- sealed partitions ---


SEALED = NotLeaderError("sealed", children=[1, 2])


def test_a_sealed_partition_has_attempted_nothing_and_its_children_may() -> None:
    attempted = NotLeaderError("sealed", children=[1])
    attempted.write_attempted = True

    assert is_sealed(SEALED)
    assert not any(map(is_sealed, (REFUSED, attempted, NotReadyError("later"))))
    assert not is_refusal(SEALED)


def test_what_a_sealed_partition_has_refused_waits_until_it_is_taken() -> None:
    first, second = append(), append()
    subject = Subject(first, second)
    subject.send(OLD)

    assert subject.queue.has_sent
    assert subject.queue.target == OLD
    assert subject.queue.failed(2, SEALED, 0) is None
    assert subject.queue.failed(1, SEALED, 0) is None
    assert subject.queue.has_unsent
    assert subject.queue.take_waiting() == [first, second]
    assert len(subject.queue) == 0


def test_answers_of_the_last_leader_of_a_sealed_partition_are_waited_for_a_while() -> None:
    plain, named = append(), append(producer=PRODUCER)
    subject = Subject(plain, named)
    subject.send(OLD)

    subject.queue.seal(100)
    subject.queue.seal(200)
    assert subject.queue.expired(99 + DEPOSED_MS) == []
    assert subject.queue.expired(100 + DEPOSED_MS) == [plain]
    assert plain.may_be_stored
    assert subject.queue.take_waiting() == [named]
    assert named.may_be_stored
    subject.queue.seal(300)  # nothing is waited for


def test_what_is_moved_from_a_parent_goes_before_what_came_later() -> None:
    moved, moved_too, later = append(), append(), append()
    subject = Subject(later)
    subject.queue.add_moved(moved)
    subject.queue.add_moved(moved_too)

    assert subject.send(NEW) == [moved, moved_too, later]
    for number in (3, 1, 2):
        assert subject.queue.failed(number, REFUSED, 0) is None
    assert subject.send(NEW, BACKOFF_MS_MAX) == [moved, moved_too, later]
