"""The checker finds each kind of violation, and nothing in a log that kept its promises."""

from dataclasses import replace

import pytest

from tests.support.broker.history import (
    Acknowledged,
    History,
    Kind,
    Read,
    RecordPosition,
    violations,
)

EVENTS = [
    Acknowledged("p0", "red", "a", RecordPosition(0, 0)),
    Acknowledged("p0", "blue", "b", RecordPosition(1, 0)),
    Acknowledged("p0", "red", "c", RecordPosition(0, 2)),
    Acknowledged("p0", None, "d", RecordPosition(1, 1)),
    Acknowledged("p0", None, "e", RecordPosition(0, 3)),
    Acknowledged("p1", "red", "f", RecordPosition(0, 1)),
]
GOOD = History(
    sent_ids={*"abcdefgh"},
    acknowledged=EVENTS,
    # g was stored though its answer was lost; h was not stored.
    read=[
        *(Read(event.event_id, event.position) for event in EVENTS),
        Read("g", RecordPosition(1, 2)),
    ],
    high_watermarks={0: 4, 1: 3, 2: 0},
)


def kinds(history: History) -> set[Kind]:
    return {violation.kind for violation in violations(history)}


def with_read(changes: dict[str, RecordPosition | None]) -> History:
    """The good history with these events read elsewhere, or not at all."""
    positions: dict[str, RecordPosition | None] = {**dict(GOOD.read), **changes}
    read = [Read(each, position) for each, position in positions.items() if position is not None]
    return replace(GOOD, read=read)


def test_a_log_that_kept_its_promises_has_no_violation() -> None:
    assert violations(GOOD) == []


def test_an_acknowledged_event_that_is_not_there_is_lost() -> None:
    history = replace(
        with_read({"d": None, "g": RecordPosition(1, 1)}), high_watermarks={0: 4, 1: 2}
    )

    assert kinds(history) == {Kind.LOST}


def test_an_event_at_another_offset_has_moved() -> None:
    assert kinds(with_read({"c": RecordPosition(0, 3), "e": RecordPosition(0, 2)})) == {Kind.MOVED}


def test_an_event_in_another_partition_has_moved() -> None:
    assert kinds(with_read({"d": RecordPosition(0, 3), "e": RecordPosition(1, 1)})) == {Kind.MOVED}


@pytest.mark.parametrize("event_id", ["a", "g"], ids=["acknowledged", "not acknowledged"])
def test_an_event_that_is_there_twice_is_doubled(event_id: str) -> None:
    read = [*GOOD.read, Read(event_id, RecordPosition(2, 0))]

    assert kinds(replace(GOOD, read=read, high_watermarks={0: 4, 1: 3, 2: 1})) == {Kind.DOUBLED}


@pytest.mark.parametrize(
    "high_watermarks",
    [{0: 5, 1: 3}, {0: 4, 1: 4}, {0: 4, 1: 3, 2: 1}],
    ids=["behind 0", "behind 1", "in an empty partition"],
)
def test_an_offset_below_the_high_watermark_without_a_record_is_a_gap(
    high_watermarks: dict[int, int],
) -> None:
    assert kinds(replace(GOOD, high_watermarks=high_watermarks)) == {Kind.GAP}


def test_a_gap_in_the_middle_is_found() -> None:
    assert kinds(with_read({"g": RecordPosition(1, 3)})) == {Kind.GAP}


def test_a_record_at_or_above_the_high_watermark_is_no_dense_log() -> None:
    assert kinds(replace(GOOD, high_watermarks={0: 4, 1: 2})) == {Kind.GAP}


def test_two_records_at_one_offset_are_found() -> None:
    read = [*GOOD.read, Read("h", RecordPosition(1, 2))]

    assert kinds(replace(GOOD, read=read)) == {Kind.GAP}


def test_one_producers_events_of_one_key_in_another_order_are_reordered() -> None:
    first, second, third, *others = EVENTS
    swapped = [
        first._replace(position=third.position),
        second,
        third._replace(position=first.position),
    ]
    read = [Read(event.event_id, event.position) for event in (*swapped, *others)]
    history = replace(
        GOOD, acknowledged=[*swapped, *others], read=[*read, Read("g", RecordPosition(1, 2))]
    )

    assert kinds(history) == {Kind.REORDERED}


def test_one_key_in_two_partitions_is_reordered() -> None:
    changed = [event._replace(key="red") if event.event_id == "d" else event for event in EVENTS]

    assert kinds(replace(GOOD, acknowledged=changed)) == {Kind.REORDERED}


def test_keys_and_producers_are_not_ordered_among_each_other() -> None:
    assert kinds(replace(GOOD, acknowledged=EVENTS[::-1][:3] + EVENTS[:3])) == set()


def test_an_event_that_nobody_sent_is_invented() -> None:
    assert kinds(replace(GOOD, sent_ids={*"abcdef"})) == {Kind.INVENTED}


def test_an_acknowledgement_that_repeats_an_offset_is_found() -> None:
    again = Acknowledged("p1", None, "h", RecordPosition(0, 0))

    assert kinds(replace(GOOD, acknowledged=[*EVENTS, again])) == {Kind.LOST}


def test_a_violation_names_event_and_places() -> None:
    (moved, *_) = violations(with_read({"c": RecordPosition(0, 3), "e": RecordPosition(0, 2)}))

    assert "'c'" in moved.detail
    assert "offset=3" in moved.detail
