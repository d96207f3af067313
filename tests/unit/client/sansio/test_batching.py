"""When requests are due, and that of each lane one at a time is under way. Time is numbers."""

import pytest

from tailrace.protocol.records_binary import encode_records
from tailrace.sansio.batching import BATCH_RECORDS_MAX, Batch, Batching, Limits, Outgoing

LIMITS = Limits(linger_s=0.5, batch_bytes=100, buffer_bytes=1_000, record_bytes=10)
A, B = "http://a", "http://b"


def record(
    value: bytes = b"v",
    *,
    topic: str = "t",
    key: bytes | None = b"k",
    timestamp_us: int | None = None,
) -> Outgoing[str]:
    """Of 16 bytes, and those of key and value."""
    return Outgoing(
        topic=topic,
        key=key,
        value=value,
        timestamp_us=timestamp_us,
        headers=(),
        token=0,
        ticket=value.decode(),
    )


def values(batch: Batch[str] | None) -> list[str] | None:
    return None if batch is None else [each.ticket for each in batch.records]


def taken(batching: Batching[str], now_s: float) -> Batch[str]:
    batch = batching.take(now_s)
    assert batch is not None
    return batch


def test_records_linger_for_others_and_go_together() -> None:
    batching = Batching[str](LIMITS)
    is_news = [batching.add(record(value), A, now_s) for value, now_s in ((b"1", 0.0), (b"2", 0.4))]

    assert is_news == [True, False]
    assert batching.due_s() == 0.5
    assert batching.take(0.4) is None
    assert values(batching.take(0.5)) == ["1", "2"]
    assert batching.due_s() is None


@pytest.mark.parametrize(
    ("sizes", "first"), [([83], 1), ([40, 43], 1), ([20, 20, 20], 2), ([500, 1], 1)]
)
def test_enough_bytes_are_due_at_once(sizes: list[int], first: int) -> None:
    """A record of more bytes than a request should have goes alone."""
    batching = Batching[str](LIMITS)
    is_news = [batching.add(record(b"x" * size), A, 0.0) for size in sizes]

    assert is_news[-1]
    assert batching.due_s() == 0.0
    assert len(taken(batching, 0.0).records) == first


def test_enough_records_are_due_at_once() -> None:
    batching = Batching[str](
        Limits(linger_s=9, batch_bytes=10**9, buffer_bytes=10**9, record_bytes=1)
    )
    for _ in range(BATCH_RECORDS_MAX + 1):
        batching.add(record(), A, 0.0)

    assert len(taken(batching, 0.0).records) == BATCH_RECORDS_MAX
    assert batching.due_s() is None


def test_of_a_lane_one_request_is_under_way_and_meanwhile_the_next_one_grows() -> None:
    batching = Batching[str](LIMITS)
    batching.add(record(b"1"), A, 0.0)
    first = taken(batching, 0.5)
    is_news = [batching.add(record(value), A, 1.0) for value in (b"2", b"3")]

    assert is_news == [False, False]
    assert batching.take(9.0) is None
    batching.finish(first)
    assert values(batching.take(9.0)) == ["2", "3"]


def test_a_request_that_failed_goes_again_before_its_successor() -> None:
    batching = Batching[str](LIMITS)
    batching.add(record(b"1"), A, 0.0)
    first = taken(batching, 0.5)
    body = first.body()
    batching.add(record(b"2"), A, 0.6)
    batching.send_again(first, 3.0)

    assert batching.due_s() == 3.0
    assert batching.take(2.9) is None
    assert batching.take(3.0) is first
    assert first.body() is body
    assert batching.take(3.0) is None


def test_lanes_do_not_wait_for_each_other_and_the_oldest_record_goes_first() -> None:
    batching = Batching[str](LIMITS)
    batching.add(record(b"1"), A, 0.0)
    batching.add(record(b"2"), B, 0.0)
    batching.add(record(b"3", topic="u"), A, 0.0)

    assert [values(batching.take(0.5)) for _ in range(4)] == [["1"], ["2"], ["3"], None]
    assert batching.lane_count == 3
    assert batching.topics() == {"t", "u"}


def test_a_hurry_ends_the_lingering_of_what_is_there_and_is_done_with_its_outcomes() -> None:
    batching = Batching[str](LIMITS)
    batching.add(record(b"1"), A, 0.0)
    number = batching.hurry()
    batch = taken(batching, 0.0)
    batching.add(record(b"2"), A, 0.0)
    before = batching.is_done_to(number)
    batching.finish(batch)

    assert not before
    assert batching.is_done_to(number)
    assert not batching.is_empty
    assert batching.take(0.4) is None


def test_memory_is_counted_until_the_outcome() -> None:
    batching = Batching[str](LIMITS)
    big = record(b"x" * 2_000)
    assert batching.has_room(big.size_bytes)  # the only one

    batching.add(record(b"x" * 900), A, 0.0)
    assert batching.used_bytes == 917 + 10
    assert batching.has_room(63)
    assert not batching.has_room(64)

    batching.finish(taken(batching, 1.0))
    assert batching.used_bytes == 0
    assert batching.is_empty


def test_records_with_and_without_a_time_are_not_mixed() -> None:
    batching = Batching[str](LIMITS)
    for value, timestamp_us in ((b"1", None), (b"2", 7), (b"3", 8)):
        batching.add(record(value, timestamp_us=timestamp_us), A, 0.0)
    untimed = taken(batching, 0.0)
    batching.finish(untimed)
    timed = taken(batching, 1.0)

    assert untimed.body() == encode_records([b"k"], [b"1"])
    assert timed.body() == encode_records([b"k", b"k"], [b"2", b"3"], [7, 8])


def test_what_waited_as_long_behind_a_lost_request_is_lost_with_it() -> None:
    batching = Batching[str](LIMITS)
    batching.add(record(b"1"), A, 0.0)
    first = taken(batching, 0.5)
    for value, now_s in ((b"2" * 90, 1.0), (b"3" * 90, 2.0), (b"4" * 90, 3.0)):
        batching.add(record(value), A, now_s)
    lost = batching.overdue(first, 2.0)
    batching.finish(first)

    assert [batch.records[0].value[:1] for batch in lost if batch.records[0].value] == [b"2", b"3"]
    assert (taken(batching, 3.0).records[0].value or b"")[:1] == b"4"


def test_a_request_is_split_into_two_that_go_one_after_the_other() -> None:
    batching = Batching[str](LIMITS)
    for value in (b"1", b"2", b"3", b"4"):
        batching.add(record(value), A, 0.0)
    whole = taken(batching, 0.5)
    batching.add(record(b"5"), A, 0.5)
    batching.split(whole)
    first = taken(batching, 0.5)
    nothing = batching.take(0.5)
    batching.finish(first)

    assert values(first) == ["1", "2"]
    assert nothing is None
    assert values(batching.take(0.5)) == ["3", "4"]


def test_keys_that_move_wait_for_what_is_under_way_of_them() -> None:
    batching = Batching[str](LIMITS)
    batching.add(record(b"1"), A, 0.0)
    old = taken(batching, 0.5)
    batching.add(record(b"2"), A, 0.6)
    batching.reroute("t", lambda _: B)
    batching.add(record(b"3"), B, 0.7)
    waiting = batching.take(9.0)
    batching.send_again(old, 1.0)
    again = batching.take(9.0)
    batching.finish(old)
    moved = taken(batching, 9.0)

    assert waiting is None
    assert again is old
    assert (moved.url, values(moved)) == (B, ["2", "3"])


def test_where_no_key_moves_nothing_waits() -> None:
    batching = Batching[str](LIMITS)
    batching.add(record(b"1"), A, 0.0)
    batching.add(record(b"2"), B, 0.0)
    first = taken(batching, 0.5)
    batching.reroute("t", lambda each: A if each.ticket == "1" else B)

    assert values(first) == ["1"]
    assert values(batching.take(0.5)) == ["2"]


def test_everything_can_be_taken_out() -> None:
    batching = Batching[str](LIMITS)
    batching.add(record(b"1"), A, 0.0)
    taken(batching, 0.5)
    batching.add(record(b"2"), A, 0.6)

    assert [each.ticket for each in batching.take_all()] == ["1", "2"]
    assert batching.is_empty
    assert batching.used_bytes == 0


def by_key(record: Outgoing[str]) -> str:
    return B if record.key == b"b" else A


def scattered_request(*, sequence: int = 7) -> Batching[str]:
    """One of three records, of which one belongs to another broker; behind it another waits."""
    batching = Batching[str](LIMITS)
    for value, key in ((b"1", b"a"), (b"2", b"b"), (b"3", b"a")):
        batching.add(record(value, key=key), A, 0.0)
    first = taken(batching, 0.5)
    first.sequence = sequence
    batching.add(record(b"4", key=b"b"), A, 0.5)
    batching.scatter(first, by_key)
    return batching


def test_the_parts_of_a_request_go_one_after_the_other_before_what_came_later() -> None:
    batching = scattered_request()
    seen = []
    for now_s in (0.5, 0.5, 1.0):
        batch = taken(batching, now_s)
        nothing_else = batching.take(now_s)
        seen.append((batch.url, values(batch), batch.sequence, nothing_else))
        batching.finish(batch)

    assert seen == [(A, ["1", "3"], 7, None), (B, ["2"], 7, None), (A, ["4"], None, None)]
    assert batching.is_empty
    assert batching.used_bytes == 0


def test_parts_stay_what_they_are_when_others_are_sorted_again() -> None:
    batching = scattered_request()
    batching.reroute("t", by_key)
    first = taken(batching, 0.5)
    nothing_else = batching.take(9.0)
    batching.finish(first)
    second = taken(batching, 0.5)
    still_nothing = batching.take(9.0)
    batching.finish(second)

    assert (values(first), values(second), second.sequence) == (["1", "3"], ["2"], 7)
    assert (nothing_else, still_nothing) == (None, None)
    assert values(batching.take(1.0)) == ["4"]


def test_parts_of_what_new_lanes_wait_for_are_waited_for() -> None:
    batching = Batching[str](LIMITS)
    for value, key in ((b"1", b"a"), (b"2", b"b")):
        batching.add(record(value, key=key), A, 0.0)
    first = taken(batching, 0.5)
    batching.add(record(b"3", key=b"b"), A, 0.5)
    batching.reroute("t", by_key)
    batching.scatter(first, by_key)
    order = []
    for _ in range(3):
        batch = taken(batching, 9.0)
        order.append(values(batch))
        assert batching.take(9.0) is None
        batching.finish(batch)

    assert order == [["1"], ["2"], ["3"]]
