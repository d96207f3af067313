"""Requests that a parent of the partition may have stored."""

import pytest

from tailrace_broker.codec.producers import NO_SEQUENCE, ROW, ProducerState
from tailrace_broker.core.log.derived_ids import derived_id
from tailrace_broker.core.log.leader_appends import LeaderAppends
from tailrace_broker.core.log.parent_windows import AncestorWindows, Inherited, ParentWindows
from tailrace_broker.core.log.producers import Producer, WindowLimits
from tailrace_broker.core.log.replica_tail import LogId, ReplicaTail
from tailrace_broker.core.log.tail_events import Acknowledge, Fail, LogEnd
from tailrace_broker.model.append_outcome import AppendOutcome
from tailrace_broker.model.errors import (
    NotReadyError,
    SequenceReusedError,
    SequenceUnknownError,
)
from tailrace_broker.model.topic import TopicSettings
from tests.support.storage.batches import TOPIC_ID

LIMITS = WindowLimits(age_us=10)
ID = b"p" * 16
PARENT, GRANDPARENT = 3, 1
MASK = 77


def state(*rows: tuple[int, int, int, int], forgotten: int = NO_SEQUENCE) -> ProducerState:
    return ProducerState(ID, forgotten, 0, b"".join(ROW.pack(*row) for row in rows))


def windows(*states: ProducerState, mask: int = 0) -> ParentWindows:
    return ParentWindows([AncestorWindows(PARENT, [mask], states)], LIMITS)


def find(
    known: ParentWindows, sequence: int, count: int = 1, now_us: int = 5, id: bytes = ID
) -> Inherited | None:
    return known.find(Producer(id, sequence), count, now_us)


def test_what_a_parent_has_is_there_and_nothing_else() -> None:
    known = windows(state((7, 100, 0, 1)))

    assert find(known, 7) == Inherited(PARENT, 100)
    assert find(known, 8) is None
    assert find(known, 7, id=b"q" * 16) is None
    assert find(ParentWindows(), 7) is None


def test_a_part_of_a_request_is_there_with_the_whole() -> None:
    known = windows(state((7, 100, 0, 3)))

    assert find(known, 7, count=2) == Inherited(PARENT, 100)
    with pytest.raises(SequenceReusedError, match="3 events before, and now 4"):
        find(known, 7, count=4)


def test_what_a_parent_may_have_forgotten_is_unknown() -> None:
    known = windows(state((7, 100, 0, 1), forgotten=5))

    for sequence, now_us in ((5, 5), (7, 10)):
        with pytest.raises(SequenceUnknownError):
            find(known, sequence, now_us=now_us)
    assert find(known, 6) is None


def test_each_ancestor_is_looked_at_and_knows_the_producer_by_an_id_of_its_own() -> None:
    known = ParentWindows(
        [
            AncestorWindows(PARENT, [MASK], [state((8, 200, 0, 1))]),
            AncestorWindows(GRANDPARENT, [MASK], [state((7, 100, 0, 1))]),
        ],
        LIMITS,
    )

    assert find(known, 7) is None
    assert find(known, 7, id=derived_id(ID, MASK)) == Inherited(GRANDPARENT, 100)
    assert find(known, 8, id=derived_id(ID, MASK)) == Inherited(PARENT, 200)


# --- the leader of a child ---


def ignore(_: AppendOutcome) -> None:
    pass


def leader() -> LeaderAppends:
    tail = ReplicaTail(LogId(TOPIC_ID, 0, 0), LogEnd(200, 1, 0), TopicSettings())
    return LeaderAppends(tail, 2)


def append(subject: LeaderAppends, sequence: int | None) -> list[object]:
    by = None if sequence is None else Producer(ID, sequence)
    return [*subject.append_event(b"k", b"{}", 0, 0, ignore, by, 5)]


def test_a_leader_answers_with_the_place_in_the_parent() -> None:
    subject = leader()
    subject.inherit(windows(state((7, 100, 0, 1), forgotten=5)))

    assert append(subject, 7) == [Acknowledge(ignore, 100, is_duplicate=True, partition=PARENT)]
    (refused,) = append(subject, 5)
    assert isinstance(refused, Fail)
    assert isinstance(refused.error, SequenceUnknownError)


def test_what_a_leader_has_itself_is_not_looked_for_in_the_parents() -> None:
    subject = leader()
    subject.inherit(windows(state(forgotten=5)))
    assert append(subject, 8)  # it is new
    subject.inherit(windows(state((9, 100, 0, 1))))
    assert append(subject, 9) == [Acknowledge(ignore, 100, is_duplicate=True, partition=PARENT)]


def test_a_retry_of_what_is_under_way_gets_its_outcome() -> None:
    subject = leader()
    subject.inherit(windows(state(forgotten=5)))

    assert append(subject, 8)
    assert append(subject, 8) == []


def test_while_the_parents_are_not_known_only_requests_of_producers_fail() -> None:
    subject, unknown = leader(), NotReadyError("not known yet")
    subject.inherit(unknown)

    assert append(subject, 8) == [Fail(ignore, unknown)]
    assert append(subject, None)
    subject.inherit(ParentWindows())
    assert append(subject, 8) == []  # it joins the write under way
