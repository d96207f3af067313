"""Polls whose answer does not arrive: what was to be delivered comes again, nothing is skipped."""

import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.broker.metrics import wait_for_metric
from tests.support.groups.consumers import (
    FORM_NAMES,
    FORMS,
    Got,
    ask,
    by_partition,
    delivery_of,
    got,
    poll,
    register,
    take_all,
)
from tests.support.http.http11 import (
    Connection,
    document,
    get,
    messages,
    new_topic,
    problem,
    read_listeners,
    request,
    settle,
)

pytestmark = pytest.mark.integration

# Three times as long as a test waits for an answer: what is answered was not waited for to the end.
LONG_MS = 60_000
MEBIBYTE = 1024 * 1024
# More than the buffers of both ends of a connection hold.
LARGE_COUNT, LARGE_BYTES = 40, 400_000
LEAVINGS: dict[str, Callable[[Connection], object]] = {
    "closed": Connection.close,
    "reset": Connection.reset,
    "ended": lambda leaving: leaving.socket.shutdown(socket.SHUT_WR),
}
each_form = pytest.mark.parametrize("form", FORMS, ids=FORM_NAMES)
each_leaving = pytest.mark.parametrize("leave", LEAVINGS.values(), ids=LEAVINGS.keys())


def group_of(public: Connection, name: str) -> Any:
    return document(public.exchange(get(f"/v1/groups/{name}")))


def wait_until_no_poll_waits(broker: RunningBroker) -> None:
    """A connection that is closed is not looked at before the broker gets to it."""
    wait_for_metric(broker, "tailrace_waiting_reads", 0)


@read_listeners
@each_leaving
def test_a_poll_that_waits_is_given_up_when_its_peer_has_gone(
    shared_broker: RunningBroker,
    public: Connection,
    listener: int,
    topic: str,
    leave: Callable[[Connection], object],
) -> None:
    """Else it would take what comes next, and the poll that follows would confirm it."""
    assert public.exchange(new_topic(topic)).status == 201
    register(public, topic, topic, group=topic)
    with Connection(shared_broker.port + listener) as leaving:
        leaving.send(poll(topic, waitMs=LONG_MS))
        wait_for_metric(shared_broker, "tailrace_waiting_reads", 1)
        leave(leaving)
        wait_until_no_poll_waits(shared_broker)
        assert public.exchange(request(messages(topic), b"1")).status == 200
        records = got(public.exchange(poll(topic)))

    assert [record.value for record in records] == [1]


def test_the_polls_behind_one_that_is_given_up_are_not_started(
    shared_broker: RunningBroker, public: Connection, topic: str
) -> None:
    assert public.exchange(new_topic(topic)).status == 201
    register(public, topic, topic, group=topic)
    with Connection(shared_broker.port) as leaving:
        leaving.send(poll(topic, waitMs=LONG_MS), ask("goodbye", topic))
        wait_for_metric(shared_broker, "tailrace_waiting_reads", 1)
    wait_until_no_poll_waits(shared_broker)
    settle(shared_broker.port)

    assert group_of(public, topic)["members"] == 1


def test_an_answer_that_left_is_confirmed_though_its_connection_has_closed(
    shared_broker: RunningBroker, public: Connection, topic: str
) -> None:
    assert public.exchange(request(messages(topic), b"1")).status == 200
    register(public, topic, topic, group=topic)
    with Connection(shared_broker.port) as once:
        assert len(got(once.exchange(poll(topic)))) == 1

    assert public.exchange(poll(topic)).status == 204


@pytest.fixture(scope="module")
def large_topic(shared_broker: RunningBroker) -> str:
    """Of one partition, with records of random text."""
    with Connection(shared_broker.port) as public:
        assert public.exchange(new_topic("large")).status == 201
        for number in range(LARGE_COUNT):
            value = json.dumps(f"{number}-{Random(number).randbytes(LARGE_BYTES // 2).hex()}")
            assert public.exchange(request(messages("large"), value.encode())).status == 200
    return "large"


@each_form
@pytest.mark.parametrize("leave", [Connection.close, Connection.reset], ids=["closed", "reset"])
def test_what_did_not_leave_whole_is_not_confirmed(
    shared_broker: RunningBroker,
    public: Connection,
    large_topic: str,
    topic: str,
    form: str,
    leave: Callable[[Connection], object],
) -> None:
    """The next poll names no delivery, as those of PolarStreams' clients."""
    register(public, topic, large_topic, group=topic)
    asked = poll(topic, accept=form, maxBytes=16 * MEBIBYTE)
    with Connection(shared_broker.port, receive_buffer_bytes=64 * 1024) as leaving:
        leaving.send(asked)
        assert leaving.socket.recv(1) == b"H"  # the answer is on its way
        leave(leaving)
    wait_for_metric(shared_broker, "tailrace_read_memory_bytes", 0)
    whole = public.exchange(asked)
    records = got(whole)

    assert [record.offset for record in records] == [*range(LARGE_COUNT)]
    assert (
        got(public.exchange(poll(topic, delivery=delivery_of(whole) - 1, accept=form))) == records
    )
    assert public.exchange(poll(topic)).status == 204


def test_a_reader_that_is_cut_off_confirms_nothing(tmp_path: Any) -> None:
    """It takes nothing of its answer for as long as it may."""
    with start_broker(tmp_path, answer_seconds=0.2) as broker, Connection(broker.port) as public:
        for number in range(LARGE_COUNT):
            value = json.dumps(Random(number).randbytes(LARGE_BYTES // 2).hex()).encode()
            sent = request(messages("t", partitionKey="k"), value)
            assert public.exchange(sent).status == 200
        register(public, "c", "t", group="g")
        with Connection(broker.port, receive_buffer_bytes=64 * 1024) as slow:
            slow.send(poll("c", maxBytes=16 * MEBIBYTE))
            wait_for_metric(broker, "tailrace_slow_readers_dropped_total", 1)
        assert len(take_all(public, "c")) == LARGE_COUNT


@pytest.mark.parametrize("seed", range(3))
def test_who_names_deliveries_gets_all_once_whatever_is_lost(
    shared_broker: RunningBroker, public: Connection, topic: str, seed: int
) -> None:
    """Connections end before, within and behind answers; events come all the while."""
    random = Random(seed)
    assert public.exchange(new_topic(topic, partitions=3)).status == 201
    register(public, topic, topic, group=topic)
    taken: list[Got] = []
    sent = confirmed = lost = 0
    while sent < 300 or len(taken) < sent:
        for _ in range(random.randrange(5) if sent < 300 else 0):
            body = json.dumps({"number": sent, "text": "x" * random.randrange(30_000)}).encode()
            produced = request(messages(topic, partitionKey=sent % 10), body)
            assert public.exchange(produced).status == 200
            sent += 1
        asked = poll(
            topic,
            delivery=confirmed,
            accept=random.choice(FORMS),
            maxRecords=random.randrange(1, 50),
        )
        with Connection(shared_broker.port, receive_buffer_bytes=8 * 1024) as connection:
            connection.send(asked)
            if random.random() < 0.5:
                lost += 1
                if random.random() < 0.5:
                    connection.socket.recv(random.randrange(1, 100_000))
                random.choice([Connection.close, Connection.reset])(connection)
                continue
            answer = connection.receive()
        if answer.status == 200:
            taken += got(answer)
            confirmed = delivery_of(answer)

    assert lost > 10
    assert sorted(each.value["number"] for each in taken) == [*range(sent)]
    for partition in by_partition(taken).values():
        assert [each.offset for each in partition] == [*range(len(partition))]


def test_the_end_of_the_broker_ends_a_wait(broker: RunningBroker) -> None:
    with Connection(broker.port) as public, Connection(broker.port) as waiting:
        register(public, "c", "t", group="g")
        waiting.send(poll("c", waitMs=LONG_MS))
        settle(broker.port)
        with ThreadPoolExecutor(1) as thread:
            stopped = thread.submit(broker.stop)
            answer = waiting.receive()
            stopped.result()

        assert problem(answer) == (503, "not-ready")
        assert waiting.is_closed()
