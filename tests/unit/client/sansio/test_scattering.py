"""A request's records go to the brokers that lead them, each once."""

from collections.abc import Sequence

import pytest

from tailrace.errors import (
    ConnectionFailedError,
    ProblemError,
    TailraceError,
    UnexpectedAnswerError,
)
from tailrace.produced import Produced
from tailrace.protocol.murmur3 import token
from tailrace.protocol.records_binary import encode_records
from tailrace.sansio.routing import Routing
from tailrace.sansio.scattering import ROUNDS_MAX, Records, Scattering
from tests.support.ring.rings import partition, ring, topic

A, B = "http://a:9250", "http://b:9250"
EARLY, LATE = b"hello", b"SFO"  # keys with a token below 0, and above
HALVES = topic(partition(0, -(2**63), 0), partition(1, 0, 1))
SWAPPED = topic(partition(0, -(2**63), 1), partition(1, 0, 0))
KEYS = (EARLY, LATE, EARLY)
VALUES = (b"0", b"1", b"2")


def scattering(routing: Routing, *keys: bytes | None, producer_id: str | None = None) -> Scattering:
    values = [str(index).encode() for index in range(len(keys))]
    return Scattering(routing, "t", Records(keys, values, None), producer_id)


def body(*indices: int, times: bool = False) -> bytes:
    return encode_records(
        [KEYS[index] for index in indices],
        [VALUES[index] for index in indices],
        [index + 1 for index in indices] if times else None,
    )


def produced(partition: int, count: int) -> Produced:
    return Produced(partition, 10, count, "fsync", 1)


def refused(
    type: str = "not-leader", status: int = 421, *, partition: int | None = None
) -> ProblemError:
    members = {} if partition is None else {"partition": partition}
    return ProblemError(type=type, title="no", status=status, members=members, retriable=True)


def partly(*parts: Produced | ProblemError) -> ProblemError:
    error = refused(partition=0)
    error.parts = parts
    return error


def sent(scattering: Scattering) -> dict[str, tuple[bytes, list[int]]]:
    return {url: (body, list(indices)) for url, body, indices in scattering.requests()}


def learned(routing: Routing) -> Routing:
    routing.learn_ring(ring("a", "b"))
    routing.learn_topic(HALVES, 0.0)
    return routing


def test_the_keys_of_these_tests_are_in_two_partitions() -> None:
    assert token(EARLY) < 0 <= token(LATE)


def test_while_nothing_is_known_all_go_to_the_broker_that_was_given() -> None:
    request = scattering(Routing(A), *KEYS)

    assert sent(request) == {A: (body(0, 1, 2), [0, 1, 2])}
    request.stored([produced(1, 1), produced(0, 2)])
    assert not request.wants_routing
    assert request.outcome() == [produced(0, 2), produced(1, 1)]


def test_each_leader_gets_its_records_in_their_order() -> None:
    assert sent(scattering(learned(Routing(A)), *KEYS)) == {
        A: (body(0, 2), [0, 2]),
        B: (body(1), [1]),
    }


def test_times_go_with_their_records() -> None:
    records = Records(KEYS, VALUES, [1, 2, 3])
    request = Scattering(learned(Routing(A)), "t", records, None)

    assert sent(request)[A][0] == body(0, 2, times=True)


def test_headers_go_with_their_records() -> None:
    headers = [[(b"n", value)] for value in VALUES]
    request = Scattering(learned(Routing(A)), "t", Records(KEYS, VALUES, None, headers), None)

    assert sent(request)[B][0] == encode_records(KEYS[1:2], VALUES[1:2], None, headers[1:2])


def test_an_error_that_ends_a_request_says_what_other_brokers_have_stored() -> None:
    request = scattering(learned(Routing(A)), *KEYS)
    error = ConnectionFailedError(B, "refused")
    sent(request)
    request.stored([produced(0, 2)])
    with pytest.raises(ConnectionFailedError):
        request.failed(error, [1])

    assert error.write_attempted
    assert error.parts == [produced(0, 2)]


def test_an_error_between_two_rounds_says_what_is_stored() -> None:
    request = scattering(Routing(A), *KEYS)
    sent(request)
    request.failed(partly(produced(0, 2), refused(partition=1)), [0, 1, 2])
    error = ConnectionFailedError(A, "refused")
    request.cut_by(error)

    assert error.write_attempted
    assert error.parts == [produced(0, 2)]


def test_what_others_lead_is_sent_there_and_what_is_stored_is_not_sent_again() -> None:
    request = scattering(Routing(A), *KEYS)
    [(_, _, indices)] = request.requests()
    request.failed(partly(produced(0, 2), refused(partition=1)), indices)
    wanted = request.wants_routing
    request.learn(ring("a", "b"), HALVES, 0.0)

    assert wanted
    assert sent(request) == {B: (body(1), [1])}
    request.stored([produced(1, 1)])
    assert not request.wants_routing
    assert request.outcome() == [produced(0, 2), produced(1, 1)]


def test_a_request_that_was_refused_as_a_whole_is_sent_again() -> None:
    request = scattering(learned(Routing(A)), *KEYS)
    for _, _, indices in list(request.requests()):
        request.failed(refused(partition=0), indices)
    request.learn(ring("a", "b"), SWAPPED, 1.0)

    assert sent(request) == {B: (body(0, 2), [0, 2]), A: (body(1), [1])}


def test_a_topic_that_a_refused_request_created_is_new_to_the_caller() -> None:
    request = scattering(Routing(A), *KEYS)
    error = refused(partition=0)
    error.topic_created = True

    for _, _, indices in request.requests():
        request.failed(error, indices)
    request.learn(ring("a", "b"), HALVES, 0.0)
    for url, _, _ in request.requests():
        request.stored([produced(0, 2) if url == A else produced(1, 1)])

    assert [part.topic_created for part in request.outcome()] == [True, True]


def test_an_error_behind_the_request_that_created_the_topic_says_that_it_exists() -> None:
    refusal = refused(partition=0)
    refusal.topic_created = True
    cut, whole = scattering(Routing(A), *KEYS), scattering(Routing(A), *KEYS)
    for request in (cut, whole):
        sent(request)
        request.failed(refusal, [0, 1, 2])
        request.learn(ring("a", "b"), HALVES, 0.0)
        sent(request)
    error = ConnectionFailedError(A, "refused")
    cut.cut_by(error)
    whole.failed(partly(produced(0, 2), refused("disk-full", 507, partition=1)), [0, 1, 2])

    with pytest.raises(ProblemError) as raised:
        whole.outcome()
    assert error.topic_created
    assert raised.value.topic_created


def test_records_without_a_key_go_where_the_producer_s_name_is() -> None:
    routing = learned(Routing(A))

    assert list(sent(scattering(routing, None, producer_id="SFO"))) == [B]
    assert list(sent(scattering(routing, None))) == [A]


def test_another_s_refusal_is_raised_with_what_became_of_the_rest() -> None:
    request = scattering(Routing(A), *KEYS)
    full = refused("disk-full", 507, partition=1)
    [(_, _, indices)] = request.requests()
    request.failed(partly(produced(0, 2), full), indices)

    with pytest.raises(ProblemError) as raised:
        request.outcome()
    assert not request.wants_routing
    assert (raised.value.type, raised.value.write_attempted) == ("disk-full", True)
    assert raised.value.parts == [produced(0, 2), full]
    assert not full.write_attempted


@pytest.mark.parametrize(
    "error",
    [refused("disk-full", 507, partition=0), refused(), TailraceError("no")],
    ids=["disk full", "nobody knows which", "no answer"],
)
def test_what_another_broker_cannot_repair_is_raised(error: TailraceError) -> None:
    request = scattering(learned(Routing(A)), *KEYS)
    (_, _, first), (_, _, second) = list(request.requests())
    request.stored([produced(0, len(first))])

    with pytest.raises(TailraceError) as raised:
        request.failed(error, second)
    assert raised.value is error
    assert error.write_attempted


def test_a_part_that_names_no_partition_is_no_answer() -> None:
    request = scattering(Routing(A), *KEYS)
    [(_, _, indices)] = request.requests()

    with pytest.raises(UnexpectedAnswerError) as raised:
        request.failed(partly(produced(0, 2), refused()), indices)
    assert raised.value.write_attempted


def test_a_leader_that_is_away_is_not_asked_the_next_time() -> None:
    routing = learned(Routing(A))
    request = scattering(routing, LATE)
    [(url, _, indices)] = request.requests()

    with pytest.raises(ConnectionFailedError):
        request.failed(ConnectionFailedError(url, "refused"), indices)
    assert url == B
    assert list(sent(scattering(routing, LATE))) == [A]


def test_leaders_that_change_all_the_time_are_the_caller_s_to_try_again() -> None:
    request = scattering(learned(Routing(A)), *KEYS)

    def refuse(indices: Sequence[int]) -> None:
        request.failed(partly(produced(0, 2), refused(partition=1)), indices)

    for _ in range(ROUNDS_MAX - 1):
        for _, _, indices in list(request.requests()):
            refuse(indices)
        request.learn(ring("a", "b"), HALVES, 0.0)
    [(_, _, indices)] = request.requests()
    refuse(indices)

    assert not request.wants_routing
    with pytest.raises(ProblemError, match="no"):
        request.outcome()


@pytest.mark.parametrize(("producer_id", "is_sent_again"), [(None, False), ("p", True)])
def test_what_a_deposed_leader_wrote_goes_to_the_next_one_if_that_stores_it_once(
    producer_id: str | None, is_sent_again: bool
) -> None:
    request = scattering(Routing(A), EARLY, producer_id=producer_id)
    sent(request)
    written = refused(partition=0)
    written.write_attempted = True

    if is_sent_again:
        request.failed(written, [0])
    else:
        with pytest.raises(ProblemError):
            request.failed(written, [0])
    assert request.wants_routing is is_sent_again

    parts = scattering(Routing(A), *KEYS, producer_id=producer_id)
    sent(parts)
    written = refused(partition=1)
    written.write_attempted = True
    parts.failed(partly(produced(0, 2), written), [0, 1, 2])
    assert parts.wants_routing is is_sent_again


def test_a_partition_of_several_elements_is_stored_when_all_of_them_are() -> None:
    """A ring that has shrunk answers for each part that has come from another parent."""
    request = scattering(Routing(A), *KEYS, producer_id="p")
    [(_, _, indices)] = request.requests()
    full = refused("disk-full", 507, partition=0)
    request.failed(partly(full, produced(0, 1), produced(1, 1)), indices)

    with pytest.raises(ProblemError) as raised:
        request.outcome()
    assert (raised.value.type, raised.value.write_attempted) == ("disk-full", True)
    assert raised.value.parts == [full, produced(0, 1), produced(1, 1)]


def test_each_element_of_a_partition_is_reported() -> None:
    request = scattering(Routing(A), *KEYS, producer_id="p")
    sent(request)
    request.stored([produced(0, 1), produced(0, 1), produced(1, 1)])

    assert request.outcome() == [produced(0, 1), produced(0, 1), produced(1, 1)]


@pytest.mark.parametrize(("producer_id", "is_sent_again"), [(None, False), ("p", True)])
def test_what_a_partition_took_in_part_is_sent_again_if_it_is_stored_once(
    producer_id: str | None, is_sent_again: bool
) -> None:
    request = scattering(Routing(A), *KEYS, producer_id=producer_id)
    [(_, _, indices)] = request.requests()
    parts = partly(produced(0, 1), refused(partition=0), produced(1, 1))
    request.failed(parts, indices)

    assert request.wants_routing is is_sent_again
    if not is_sent_again:
        with pytest.raises(ProblemError) as raised:
            request.outcome()
        assert {*raised.value.parts} == {*parts.parts}
        return
    request.learn(ring("a", "b"), HALVES, 0.0)
    assert sent(request) == {A: (body(0, 2), [0, 2])}
    request.stored([produced(0, 1), produced(0, 1)])
    assert request.outcome() == [produced(0, 1), produced(0, 1), produced(1, 1)]


def test_what_a_deposed_leader_wrote_may_be_stored_whatever_the_next_one_says() -> None:
    written = refused(partition=0)
    written.write_attempted = True
    unled = refused("no-leader", 503, partition=0)
    cut, whole = (scattering(Routing(A), EARLY, producer_id="p") for _ in range(2))
    for request in (cut, whole):
        sent(request)
        request.failed(written, [0])
        request.learn(ring("a", "b"), HALVES, 0.0)
        sent(request)
    error = refused("no-leader", 503)
    with pytest.raises(ProblemError):
        cut.failed(error, [0])
    whole.failed(partly(unled), [0])

    with pytest.raises(ProblemError) as raised:
        whole.outcome()
    assert error.write_attempted
    assert raised.value.write_attempted
    assert not unled.write_attempted
