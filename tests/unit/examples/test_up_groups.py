"""What the main job demands of a consumer group."""

from pathlib import Path

import pytest

from examples.up_events import Events, UpError
from examples.up_groups import DeliveryCheck, Handled

EVENTS = Events("t", ".k", [b"a", b"b", b"a"], [b"1", b"2", b"3"])
STARTS = {0: 10, 1: 0}
ENDS = {0: 12, 1: 1}


def check() -> DeliveryCheck:
    """Of EVENTS, behind 10 events of earlier runs."""
    return DeliveryCheck(EVENTS, STARTS, repeat_count=1)


def test_a_partitions_records_come_in_order() -> None:
    deliveries = check()

    deliveries.feed(0, 10, b"a", b"1")
    deliveries.feed(1, 0, b"b", b"2")
    assert not deliveries.has_all(ENDS)
    deliveries.feed(0, 11, b"a", b"3")

    assert deliveries.has_all(ENDS)
    assert deliveries.finish() == 3
    assert deliveries.twice_count == 0


def test_what_was_not_confirmed_must_come_again() -> None:
    deliveries = check()
    deliveries.feed(1, 0, b"b", b"2")
    deliveries.feed(0, 10, b"a", b"1")
    deliveries.feed(0, 11, b"a", b"3")

    deliveries.expect_again({0: 10})
    assert not deliveries.has_all(ENDS)
    with pytest.raises(UpError, match="partition 0: offset 11 came where 10 was due"):
        deliveries.feed(0, 11, b"a", b"3")
    deliveries.feed(0, 10, b"a", b"1")
    deliveries.feed(0, 11, b"a", b"3")

    assert deliveries.has_all(ENDS)
    assert deliveries.finish() == 3
    assert deliveries.twice_count == 2


@pytest.mark.parametrize(
    ("records", "sentence"),
    [
        ([(0, 11, b"a", b"3")], "partition 0: offset 11 came where 10 was due"),
        ([(0, 9, b"a", b"0")], "partition 0: offset 9 came where 10 was due"),
        ([(0, 10, b"a", b"3")], "event 1 of key b'a' is not the one"),
        (
            [(0, 10, b"a", b"1"), (0, 10, b"a", b"3")],
            "partition 0: offset 10 came again as another record",
        ),
    ],
    ids=["gap", "earlier run", "order", "other content"],
)
def test_refuses_anything_else(records: list[tuple[int, int, bytes, bytes]], sentence: str) -> None:
    deliveries = check()
    *before, last = records
    for record in before:
        deliveries.feed(*record)

    with pytest.raises(UpError, match=sentence):
        deliveries.feed(*last)


def test_finds_what_is_missing() -> None:
    deliveries = check()
    deliveries.feed(0, 10, b"a", b"1")
    deliveries.feed(0, 11, b"a", b"3")

    assert not deliveries.has_all(ENDS)
    with pytest.raises(UpError, match="key b'b': the last 1 events are missing"):
        deliveries.finish()


def test_reads_only_whole_lines_of_what_consumers_append(tmp_path: Path) -> None:
    with Handled(tmp_path / "handled") as handled, (tmp_path / "handled").open("ab") as writer:
        assert handled.new_lines() == []
        writer.write(b"[1]\n[2]\n[")
        writer.flush()
        assert handled.new_lines() == [[1], [2]]
        writer.write(b'3]\n{"holds":{}}\n')
        writer.flush()
        assert handled.new_lines() == [[3], {"holds": {}}]
