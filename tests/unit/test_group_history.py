"""The group checker finds each kind of violation, and nothing where the group got what it must."""

from dataclasses import replace

import pytest

from tests.support.groups.group_history import (
    NUMBERS_OF_AN_EPOCH,
    Acknowledged,
    Confirmation,
    Delivery,
    Goodbye,
    GroupHistory,
    Kind,
    Record,
    RecordPosition,
    Span,
    repeat_count,
    violations,
)

SESSION_NS = 100
POSITIONS = {
    # Event c's key goes on in partition 2, a child of 0 and 1. Nobody was reported of x.
    "a": RecordPosition("t", 0, 0),
    "b": RecordPosition("t", 0, 1),
    "x": RecordPosition("t", 0, 2),
    "d": RecordPosition("t", 1, 0),
    "c": RecordPosition("t", 2, 3),
}
ACKNOWLEDGED = [
    Acknowledged("red", "a", POSITIONS["a"], Span(0, 2)),
    Acknowledged("red", "b", POSITIONS["b"], Span(3, 5)),
    Acknowledged("blue", "d", POSITIONS["d"], Span(3, 5)),
    Acknowledged("red", "c", POSITIONS["c"], Span(6, 8)),
]


def records(event_ids: str) -> tuple[Record, ...]:
    return tuple(Record(event_id, POSITIONS[event_id]) for event_id in event_ids)


def delivery(
    number: int, event_ids: str, start_ns: int, end_ns: int, consumer: str = "c1"
) -> Delivery:
    return Delivery(consumer, number, Span(start_ns, end_ns), records(event_ids))


GOOD = GroupHistory(
    sent_ids={*"abcdxy"},
    acknowledged=ACKNOWLEDGED,
    deliveries=[
        delivery(1, "ad", 10, 12),
        delivery(2, "bx", 13, 15),
        delivery(3, "c", 16, 18, "c2"),
    ],
    confirmations=[
        Confirmation(1, Span(13, 15), is_stored=False),
        Confirmation(2, Span(15, 16), is_stored=True),
    ],
    readable={("t", 0): range(3), ("t", 1): range(1), ("t", 2): range(3, 4)},
    session_ns=SESSION_NS,
)


def kinds(history: GroupHistory) -> set[Kind]:
    return {violation.kind for violation in violations(history)}


def with_deliveries(*deliveries: Delivery) -> GroupHistory:
    return replace(GOOD, deliveries=deliveries)


def with_more(*deliveries: Delivery) -> GroupHistory:
    return replace(GOOD, deliveries=[*GOOD.deliveries, *deliveries])


def test_a_group_that_got_what_it_must_has_no_violation() -> None:
    assert violations(GOOD) == []
    assert repeat_count(GOOD.deliveries) == 0


def test_an_acknowledged_event_that_nobody_got_is_lost() -> None:
    assert kinds(with_deliveries(*GOOD.deliveries[:2])) == {Kind.LOST}


def test_a_record_below_the_end_that_nobody_got_is_skipped() -> None:
    first, _, last = GOOD.deliveries

    assert kinds(with_deliveries(first, delivery(2, "b", 13, 15), last)) == {Kind.SKIPPED}


def test_a_record_that_nobody_sent_is_invented() -> None:
    assert kinds(replace(GOOD, sent_ids={*"abcd"})) == {Kind.INVENTED}


def test_an_event_that_is_elsewhere_than_its_producer_was_reported_is_at_two_places() -> None:
    reported, *others = ACKNOWLEDGED
    history = replace(GOOD, acknowledged=[reported._replace(position=POSITIONS["x"]), *others])

    assert Kind.TWO_POSITIONS in kinds(history)


def test_an_event_that_comes_from_two_places_is_found() -> None:
    again = Delivery("c2", 4, Span(20, 21), (Record("a", RecordPosition("t", 1, 1)),))

    assert kinds(with_more(again)) == {Kind.TWO_POSITIONS}


def test_two_records_at_one_offset_are_found() -> None:
    again = Delivery("c2", 4, Span(220, 221), (Record("y", POSITIONS["c"]),))

    assert kinds(with_more(again)) == {Kind.TWO_RECORDS}


@pytest.mark.parametrize("event_ids", ["abc", "axb", "ba", "aab"])
def test_a_delivery_with_a_hole_is_found(event_ids: str) -> None:
    history = with_deliveries(delivery(1, event_ids, 10, 12), *GOOD.deliveries[1:])
    is_dense = event_ids == "abc"

    assert (Kind.NOT_DENSE in kinds(history)) != is_dense


def test_an_offset_before_a_lower_one_of_its_partition_is_out_of_order() -> None:
    history = with_deliveries(
        delivery(1, "x", 10, 12), delivery(2, "abd", 13, 15), delivery(3, "c", 16, 18)
    )

    assert kinds(history) == {Kind.OUT_OF_ORDER}


def test_offsets_of_polls_at_the_same_time_are_in_some_order() -> None:
    history = with_deliveries(
        delivery(1, "x", 10, 14), delivery(2, "abd", 13, 15), delivery(3, "c", 16, 18)
    )

    assert violations(history) == []


def test_a_child_before_its_parent_is_reordered() -> None:
    history = with_deliveries(
        delivery(1, "c", 10, 12), delivery(2, "ab", 13, 15), delivery(3, "xd", 16, 18)
    )

    assert kinds(history) == {Kind.REORDERED}


def test_a_child_before_its_parent_in_one_delivery_is_reordered() -> None:
    history = with_deliveries(delivery(1, "acbx", 10, 12), delivery(2, "d", 13, 14))

    assert kinds(history) == {Kind.REORDERED}


def test_events_that_were_sent_at_the_same_time_have_no_order() -> None:
    a, b, d, c = ACKNOWLEDGED
    history = replace(
        with_deliveries(
            delivery(1, "c", 10, 12), delivery(2, "ab", 13, 15), delivery(3, "xd", 16, 18)
        ),
        acknowledged=[a._replace(span=Span(0, 7)), b._replace(span=Span(3, 7)), d, c],
    )

    assert violations(history) == []


def test_a_delivery_that_came_again_is_no_violation() -> None:
    """Its partitions may be in another order."""
    history = with_deliveries(delivery(1, "da", 8, 9), *GOOD.deliveries)

    assert violations(history) == []
    assert repeat_count(history.deliveries) == 2


@pytest.mark.parametrize(
    "again",
    [delivery(1, "a", 8, 9), delivery(1, "ad", 8, 9, "c2")],
    ids=["other records", "another consumer"],
)
def test_a_number_that_means_something_else_is_found(again: Delivery) -> None:
    assert Kind.CHANGED in kinds(with_deliveries(again, *GOOD.deliveries))


@pytest.mark.parametrize("consumer", ["c1", "c2"])
@pytest.mark.parametrize("number", [1, 4])
def test_what_was_confirmed_does_not_come_again(consumer: str, number: int) -> None:
    history = with_more(delivery(number, "ad", 220, 221, consumer))

    assert Kind.REPEATED in kinds(history)


def test_what_only_a_poll_confirmed_may_come_again_after_a_crash() -> None:
    again = with_more(delivery(4, "ad", 220, 221))

    assert violations(replace(again, crashes=[Span(17, 19)])) == []
    assert kinds(replace(again, crashes=[Span(5, 7)])) == {Kind.REPEATED}


def test_what_was_committed_does_not_come_again_after_a_crash() -> None:
    again = replace(with_more(delivery(4, "bx", 220, 221)), crashes=[Span(17, 19)])

    assert kinds(again) == {Kind.REPEATED}


def test_a_confirmation_that_was_not_answered_before_the_next_poll_says_nothing() -> None:
    late = [GOOD.confirmations[0], Confirmation(2, Span(15, 221), is_stored=True)]
    again = replace(with_more(delivery(4, "bx", 220, 221)), confirmations=late)

    assert violations(again) == []


@pytest.mark.parametrize("consumer", ["c1", "c2"])
def test_a_delivery_is_not_given_again_while_its_consumer_is_there(consumer: str) -> None:
    again = delivery(4, "c", 100, 115, consumer)

    assert kinds(with_more(again)) == {Kind.TAKEN}


@pytest.mark.parametrize(
    "history",
    [
        with_more(delivery(4, "c", 110, 116, "c1")),
        replace(
            with_more(delivery(4, "c", 100, 115, "c1")), goodbyes=[Goodbye("c2", Span(90, 95))]
        ),
        replace(with_more(delivery(4, "c", 100, 115, "c1")), crashes=[Span(90, 95)]),
    ],
    ids=["silent for its session", "left", "the broker died"],
)
def test_a_delivery_is_given_again_when_its_consumer_is_gone(history: GroupHistory) -> None:
    assert violations(history) == []


@pytest.mark.parametrize(
    "goodbye", [Goodbye("c1", Span(90, 95)), Goodbye("c2", Span(3, 5))], ids=["other", "before"]
)
def test_only_its_own_goodbye_ends_a_delivery(goodbye: Goodbye) -> None:
    history = replace(with_more(delivery(4, "c", 100, 115, "c1")), goodbyes=[goodbye])

    assert kinds(history) == {Kind.TAKEN}


def test_a_consumer_that_stood_still_notes_its_delivery_late() -> None:
    """c2 was removed with delivery 3, which it had received and not noted."""
    stood_still = delivery(3, "c", 16, 300, "c2")
    history = with_deliveries(*GOOD.deliveries[:2], stood_still, delivery(4, "c", 90, 118))

    assert violations(history) == []


def test_polls_at_the_same_time_do_not_share_records() -> None:
    history = with_deliveries(*GOOD.deliveries, delivery(4, "c", 17, 30, "c1"))

    assert kinds(history) == {Kind.TAKEN}


@pytest.mark.parametrize(("start_ns", "is_found"), [(19, True), (17, False)])
def test_a_coordinator_delivers_nothing_after_its_successor_has(
    start_ns: int, is_found: bool
) -> None:
    """Those of one moment have no order; that the consumer left or died is no excuse."""
    *others, last = GOOD.deliveries
    of_successor = last._replace(number=NUMBERS_OF_AN_EPOCH + 1)
    history = replace(
        with_deliveries(*others, of_successor, delivery(4, "c", start_ns, 220)),
        crashes=[Span(5, 220)],
        goodbyes=[Goodbye("c2", Span(5, 220))],
    )

    assert kinds(history) == ({Kind.DEPOSED} if is_found else set())


def test_a_successor_delivers_again_what_was_open() -> None:
    """Unless a commit has confirmed it; when it took over is not known here."""
    again = NUMBERS_OF_AN_EPOCH + 1

    assert violations(with_more(delivery(again, "ad", 100, 115))) == []
    assert kinds(with_more(delivery(again, "bx", 100, 115))) == {Kind.REPEATED}


def test_a_violation_names_delivery_and_place() -> None:
    (repeated,) = violations(with_more(delivery(4, "bx", 220, 221)))

    assert "delivery 4 of c1" in repeated.detail
    assert "offset=1" in repeated.detail or "offset=2" in repeated.detail
