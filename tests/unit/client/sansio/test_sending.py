"""What an answer means for each record, and what is tried again. Time is numbers."""

from typing import Any

import pytest

from tailrace.errors import ConnectionFailedError, ProblemError, TailraceError
from tailrace.produced import Produced
from tailrace.protocol.murmur3 import token
from tailrace.sansio.batching import Batch
from tailrace.sansio.sending import ASK_AGAIN_S, Outcome, Sending, Settled, Stored
from tests.support.ring.rings import partition, ring, topic

URL = "http://a:9250"
EARLY, LATE = b"hello", b"SFO"  # keys with a token below 0, and above
NOW_US = 1_764_000_000_000_000
HALVES = topic(partition(0, -(2**63), 0), partition(1, 0, 1))


def sending(**options: Any) -> Sending[str]:
    return Sending[str](URL, now_us=NOW_US, **{"linger_ms": 0, "id": "till-7", **options})


def send(
    sender: Sending[str], *keys: bytes | None, topic: str = "t", now_s: float = 0.0
) -> Batch[str]:
    """The request of records with these keys, taken; tickets are "0", "1", …."""
    for index, key in enumerate(keys):
        outgoing = sender.outgoing(
            topic, b"1", key=key, timestamp_us=None, headers=(), ticket=str(index)
        )
        sender.add(outgoing, now_s)
    batch = sender.take(now_s)
    assert batch is not None
    return batch


def reported(settled: Settled[str] | None) -> dict[str, Outcome]:
    assert settled is not None
    return {record.ticket: outcome for record, outcome in settled}


def produced(partition: int, offset: int, count: int, *, duplicate: bool = False) -> Produced:
    return Produced(partition, offset, count, "fsync", 1, duplicate)


def refused(
    type: str, *, status: int = 400, retriable: bool = False, **members: object
) -> ProblemError:
    return ProblemError(type=type, title="no", status=status, members=members, retriable=retriable)


def lost(*, write_attempted: bool = True) -> ConnectionFailedError:
    return ConnectionFailedError(URL, "reset", write_attempted=write_attempted)


def test_the_keys_of_these_tests_are_in_two_partitions() -> None:
    assert token(EARLY) < 0 <= token(LATE)


def test_each_record_learns_where_it_is() -> None:
    sender = sending()
    sender.learn(ring("a"), HALVES, 0.0)
    batch = send(sender, EARLY, LATE, EARLY, LATE)
    parts = [produced(0, 10, 2), produced(1, 70, 2, duplicate=True)]

    assert not sender.wants_routing(batch, parts, 0.0)
    assert reported(sender.stored(batch, parts)) == {
        "0": Stored("t", 0, 10),
        "1": Stored("t", 1, 70, duplicate=True),
        "2": Stored("t", 0, 11),
        "3": Stored("t", 1, 71, duplicate=True),
    }


def test_an_answer_that_is_not_understood_makes_the_producer_ask_and_then_it_is() -> None:
    sender = sending()
    batch = send(sender, EARLY, LATE)
    parts = [produced(0, 10, 1), produced(1, 70, 1)]

    before = sender.wants_routing(batch, (), 0.0), sender.wants_routing(batch, parts, 0.0)
    again = sender.wants_routing(batch, parts, 0.0)
    later = sender.wants_routing(batch, parts, ASK_AGAIN_S)
    sender.learn(ring("a"), HALVES, 0.0)

    assert before == (False, True)
    assert (again, later) == (False, True)
    assert reported(sender.stored(batch, parts))["1"] == Stored("t", 1, 70)


@pytest.mark.parametrize(
    "parts",
    [
        [produced(0, 10, 2)],
        [produced(0, 10, 1), produced(5, 70, 1)],
        [produced(0, 10, 2), produced(1, 70, 1)],
    ],
)
def test_what_is_stored_nobody_knows_where_is_stored_all_the_same(parts: list[Produced]) -> None:
    sender = sending()
    sender.learn(ring("a"), HALVES, 0.0)
    batch = send(sender, EARLY, LATE)

    assert set(reported(sender.stored(batch, parts)).values()) == {Stored("t", None, None)}


def test_of_what_a_partition_has_in_several_parts_only_the_partition_is_known() -> None:
    sender = sending()
    sender.learn(ring("a"), HALVES, 0.0)
    batch = send(sender, EARLY, LATE, EARLY)
    parts = [produced(0, 10, 1), produced(0, 70, 1, duplicate=True), produced(1, 5, 1)]

    assert not sender.wants_routing(batch, parts, 0.0)
    assert reported(sender.stored(batch, parts)) == {
        "0": Stored("t", 0, None, duplicate=True),
        "1": Stored("t", 1, 5),
        "2": Stored("t", 0, None, duplicate=True),
    }


@pytest.mark.parametrize("order", [1, -1])
def test_records_of_a_partition_that_took_some_may_be_stored(order: int) -> None:
    sender = sending()
    sender.learn(ring("a"), HALVES, 0.0)
    batch = send(sender, EARLY, EARLY, EARLY)
    error = refused("sequence-unknown")
    error.write_attempted = True
    parts = (produced(0, 10, 2), refused("sequence-unknown", partition=0))
    error.parts = parts[::order]

    outcomes = reported(sender.failed(batch, error, 0.0)).values()
    assert [getattr(each, "write_attempted", None) for each in outcomes] == [True] * 3


def test_records_without_a_key_are_where_the_producer_s_name_is() -> None:
    sender = sending(id="hello")
    sender.learn(ring("a"), HALVES, 0.0)
    batch = send(sender, None, LATE, None)

    assert sender.numbered(batch) == {"producer_id": "hello", "sequence": NOW_US}
    assert reported(sender.stored(batch, [produced(0, 10, 2), produced(1, 70, 1)])) == {
        "0": Stored("t", 0, 10),
        "1": Stored("t", 1, 70),
        "2": Stored("t", 0, 11),
    }


def test_without_numbers_those_without_a_key_are_where_the_answer_has_more() -> None:
    sender = sending(idempotent=False)
    sender.learn(ring("a"), HALVES, 0.0)
    batch = send(sender, None, LATE, None)

    assert sender.numbered(batch) == {}
    assert reported(sender.stored(batch, [produced(1, 70, 3)])) == {
        "0": Stored("t", 1, 70),
        "1": Stored("t", 1, 71),
        "2": Stored("t", 1, 72),
    }


def test_one_partition_s_refusal_is_its_records_alone() -> None:
    sender = sending()
    sender.learn(ring("a"), HALVES, 0.0)
    batch = send(sender, EARLY, LATE)
    damaged = refused("corrupt-partition", status=500, partition=0)
    error = refused("corrupt-partition", status=500, partition=0)
    error.write_attempted = True  # of the others
    error.parts = [damaged, produced(1, 70, 1)]
    outcomes = reported(sender.failed(batch, error, 0.0))
    failure = sender.take_failure()

    assert outcomes == {"0": damaged, "1": Stored("t", 1, 70)}
    assert not damaged.write_attempted
    assert failure is not None
    assert (failure.count, failure.first) == (1, damaged)
    assert sender.take_failure() is None


def test_a_refusal_after_a_lost_answer_may_be_of_what_is_stored() -> None:
    sender = sending()
    sender.learn(ring("a"), HALVES, 0.0)
    batch = send(sender, EARLY, LATE)
    assert sender.failed(batch, lost(), 0.0) is None
    damaged = refused("corrupt-partition", status=500, partition=0)
    error = refused("corrupt-partition", status=500, partition=0)
    error.parts = [damaged, produced(1, 70, 1)]
    outcomes = reported(sender.failed(batch, error, 1.0))

    assert outcomes["0"] is damaged
    assert damaged.write_attempted


def test_one_partition_s_passing_trouble_sends_the_whole_request_again() -> None:
    sender = sending()
    sender.learn(ring("a"), HALVES, 0.0)
    batch = send(sender, EARLY, LATE)
    error = refused("corrupt-partition", partition=0)
    error.parts = [
        refused("corrupt-partition", partition=0),
        refused("overloaded", retriable=True, partition=1),
    ]

    assert sender.failed(batch, error, 0.0) is None
    assert sender.take(9.0) is batch


def test_a_retry_has_the_same_number_and_the_next_request_another() -> None:
    sender = sending()
    first = send(sender, EARLY)
    numbers = [sender.numbered(first)["sequence"]]
    assert sender.failed(first, lost(), 0.0) is None
    assert sender.take(9.0) is first
    numbers.append(sender.numbered(first)["sequence"])
    sender.batching.finish(first)
    numbers.append(sender.numbered(send(sender, EARLY))["sequence"])

    assert numbers == [NOW_US, NOW_US, NOW_US + 1]


def test_when_the_timeout_ends_what_waited_as_long_is_not_sent_either() -> None:
    sender = sending(patience_s=10.0, batch_bytes=1)
    first = send(sender, EARLY, EARLY)  # the second waits for the first
    outcomes = reported(sender.failed(first, lost(), 10.0))
    sender.batching.finish(first)

    assert isinstance(outcomes["0"], ConnectionFailedError)
    assert outcomes["0"].write_attempted
    assert isinstance(outcomes["1"], TailraceError)
    assert "not sent" in str(outcomes["1"])
    assert not outcomes["1"].write_attempted
    assert sender.batching.is_empty
    assert sender.failed_count == 2


def test_a_request_with_a_record_that_is_refused_is_split_until_the_record_is_alone() -> None:
    sender = sending()
    ahead = refused("invalid-parameter", parameter="timestamp")
    whole = send(sender, EARLY, LATE)
    assert sender.failed(whole, ahead, 0.0) is None
    first = sender.take(0.0)
    assert first is not None
    outcomes = reported(sender.failed(first, ahead, 0.0))
    sender.batching.finish(first)
    second = sender.take(0.0)

    assert outcomes == {"0": ahead}
    assert second is not None
    assert [record.ticket for record in second.records] == ["1"]
    assert sender.numbered(second)["sequence"] == NOW_US + 2


def test_what_may_be_stored_under_its_number_is_never_split() -> None:
    sender = sending()
    whole = send(sender, EARLY, LATE)
    assert sender.failed(whole, lost(), 0.0) is None
    too_large = refused("body-too-large", status=413)

    assert reported(sender.failed(whole, too_large, 1.0)) == {"0": too_large, "1": too_large}
    assert too_large.write_attempted


def test_a_leader_that_cannot_be_reached_is_gone_around() -> None:
    sender = sending()
    sender.learn(ring("a", "b"), HALVES, 0.0)
    batch = send(sender, LATE)
    before = batch.url
    assert sender.failed(batch, lost(), 0.0) is None

    assert (before, batch.url) == ("http://b:9250", URL)
    assert sender.take(9.0) is batch
    sender.batching.finish(batch)
    assert send(sender, LATE).url == URL


def test_a_refusal_by_one_that_does_not_lead_makes_the_producer_ask() -> None:
    sender = sending()
    sender.learn(ring("a"), HALVES, 0.0)
    batch = send(sender, EARLY)
    assert sender.failed(batch, refused("not-leader", status=421, retriable=True), 0.0) is None

    assert sender.wants_routing(batch, (), 0.0)
    sender.learn(ring("a"), HALVES, 0.0)
    assert not sender.wants_routing(batch, (), ASK_AGAIN_S)


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        ({"key": 7}, TypeError, "key is int"),
        ({"value": "text"}, TypeError, "value is str"),
        ({"timestamp_us": -1}, ValueError, "timestamp_us is -1"),
        ({"timestamp_us": 1.5}, ValueError, "timestamp_us is 1.5"),
        ({"topic": ""}, ValueError, "topic ''"),
        ({"topic": "\ud800"}, ValueError, "topic"),
        ({"headers": [("a", "b")]}, TypeError, "headers"),
        ({"value": b"x" * 2_000}, ValueError, "buffer_bytes is 1,000"),
    ],
)
def test_what_can_be_no_record_is_refused_at_once(
    bad: dict[str, Any], error: type[Exception], words: str
) -> None:
    record: dict[str, Any] = {"key": b"k", "timestamp_us": None, "headers": (), **bad}
    name, value = record.pop("topic", "t"), record.pop("value", b"1")

    with pytest.raises(error, match=words):
        sending(buffer_bytes=1_000).outgoing(name, value, ticket="0", **record)


@pytest.mark.parametrize(
    "bad",
    [
        {"linger_ms": -1},
        {"batch_bytes": 0},
        {"buffer_bytes": 0},
        {"patience_s": float("nan")},
        {"connections_max": 0},
        {"id": "two words"},
    ],
)
def test_an_option_out_of_bounds_is_named(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        sending(**bad)


def test_what_is_abandoned_may_be_stored() -> None:
    sender = sending()
    send(sender, EARLY, LATE)
    outcomes = reported(sender.abandon("it ends"))

    assert [str(outcome) for outcome in outcomes.values()] == ["it ends", "it ends"]
    assert all(
        isinstance(outcome, TailraceError) and outcome.write_attempted
        for outcome in outcomes.values()
    )


THIRDS = topic(partition(0, -(2**63), 0), partition(1, 0, 1))
B = "http://b:9250"


def part_refused(partition: int) -> ProblemError:
    return refused("not-leader", status=421, retriable=True, partition=partition)


def test_what_others_lead_is_sent_to_them_under_the_same_number() -> None:
    sender = sending()
    batch = send(sender, EARLY, LATE, EARLY)
    error = part_refused(1)
    error.write_attempted = True  # of partition 0
    error.parts = [produced(0, 10, 2), part_refused(1)]
    wanted = sender.wants_routing(batch, error.parts, 0.0)
    sender.learn(ring("a", "b"), THIRDS, 0.0)
    settled = sender.failed(batch, error, 0.0)
    again = sender.take(0.1)
    assert again is not None
    is_one = sender.aim(again, has_learned=False)
    sent = []
    while (part := sender.take(0.1)) is not None:
        sent.append((part.url, [record.key for record in part.records], sender.numbered(part)))
        assert sender.aim(part, has_learned=False)
        sender.batching.finish(part)

    number = {"producer_id": "till-7", "sequence": NOW_US}
    assert wanted
    assert settled is None
    assert not is_one
    assert sent == [(URL, [EARLY, EARLY], number), (B, [LATE], number)]
    assert sender.batching.is_empty


def test_a_request_of_one_leader_is_aimed_at_it() -> None:
    sender = sending()
    batch = send(sender, LATE, LATE)
    as_it_was = sender.aim(batch, has_learned=False), batch.url
    sender.learn(ring("a", "b"), THIRDS, 0.0)
    aimed = sender.aim(batch, has_learned=True), batch.url

    assert as_it_was == (True, URL)
    assert aimed == (True, B)


def test_without_numbers_nothing_is_sent_before_it_is_known_who_leads() -> None:
    sender = sending(idempotent=False)
    batch = send(sender, EARLY, LATE)

    assert sender.wants_routing(batch, (), 0.0)
    assert not sender.wants_routing(batch, (), 0.0)
