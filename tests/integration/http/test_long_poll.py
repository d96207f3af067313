"""Reads that wait for records: what ends them."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tailrace.wire import BATCH_CONTENT_TYPE, HEADER_BYTES, JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE
from tests.support.broker.fixtures import RunningBroker
from tests.support.broker.metrics import wait_for_metric
from tests.support.http.http11 import (
    READ,
    Connection,
    document,
    get,
    messages,
    new_topic,
    problem,
    read_listeners,
    records,
    request,
    settle,
)

pytestmark = pytest.mark.integration

# Three times as long as a test waits for an answer: what is answered was not waited for to the end.
LONG_MS = 60_000
STARTS = ["latest", "earliest", "0", "-5"]


@read_listeners
@pytest.mark.parametrize("start", STARTS)
def test_a_read_that_waits_is_answered_by_the_first_produce(
    shared_broker: RunningBroker, connection: Connection, topic: str, start: str
) -> None:
    with Connection(shared_broker.port) as public:
        assert public.exchange(new_topic(topic)).status == 201
        connection.send(get(records(topic, offset=start, waitMs=LONG_MS)))
        settle(shared_broker.port)
        assert public.exchange(request(messages(topic), b'"first"')).status == 200
        answer = connection.receive()

    assert json.loads(answer.body)["value"] == "first"
    assert answer.headers["tailrace-next-offset"] == "1"
    assert answer.headers["tailrace-high-watermark"] == "1"


@read_listeners
def test_a_read_by_time_waits_at_the_end(
    shared_broker: RunningBroker, connection: Connection, topic: str
) -> None:
    with Connection(shared_broker.port) as public:
        assert public.exchange(new_topic(topic)).status == 201
        assert public.exchange(request(messages(topic), b"1")).status == 200
        connection.send(get(records(topic, timestamp=10**18 - 1, waitMs=LONG_MS)))
        settle(shared_broker.port)
        assert public.exchange(request(messages(topic), b"2")).status == 200

    assert json.loads(connection.receive().body)["offset"] == 1


@read_listeners
def test_where_there_is_something_nothing_is_waited_for(
    shared_broker: RunningBroker, connection: Connection, topic: str
) -> None:
    with Connection(shared_broker.port) as public:
        assert public.exchange(request(messages(topic, partitionKey="k"), b"1")).status == 200
    with Connection(shared_broker.port) as public:
        rows = document(public.exchange(get(f"/v1/offsets?topic={topic}")))["topics"][0]
    (partition,) = (each["partition"] for each in rows["partitions"] if each["highWatermark"])

    answer = connection.exchange(get(records(topic, partition, waitMs=LONG_MS)))
    assert json.loads(answer.body)["value"] == 1


@read_listeners
@pytest.mark.parametrize(
    ("accept", "body"),
    [(NDJSON_CONTENT_TYPE, b""), (JSON_CONTENT_TYPE, b"[]"), (BATCH_CONTENT_TYPE, b"")],
    ids=["lines", "array", "batches"],
)
def test_a_wait_that_ends_without_records_is_answered_with_none(
    shared_broker: RunningBroker, connection: Connection, topic: str, accept: str, body: bytes
) -> None:
    with Connection(shared_broker.port) as public:
        assert public.exchange(new_topic(topic)).status == 201
    answer = connection.exchange(get(records(topic, waitMs=20), accept=accept))

    assert (answer.status, answer.body) == (200, body)
    assert answer.headers["tailrace-next-offset"] == "0"


def test_every_read_that_waits_is_answered_by_one_produce(
    shared_broker: RunningBroker, topic: str
) -> None:
    accepted = [NDJSON_CONTENT_TYPE, JSON_CONTENT_TYPE, BATCH_CONTENT_TYPE]
    with ExitStack() as stack, Connection(shared_broker.port) as public:
        assert public.exchange(new_topic(topic)).status == 201
        waiting = [
            stack.enter_context(Connection(shared_broker.port + listener))
            for listener in (0, READ)
            for _ in range(50)
        ]
        for number, each in enumerate(waiting):
            accept = accepted[number % len(accepted)]
            each.send(get(records(topic, waitMs=LONG_MS), accept=accept))
        settle(shared_broker.port)
        assert public.exchange(request(messages(topic), b"1")).status == 200
        answers = [each.receive() for each in waiting]

    for answer in answers:
        assert (answer.status, answer.headers["tailrace-next-offset"]) == (200, "1")
        assert len(answer.body) > (
            HEADER_BYTES if answer.headers["content-type"] == BATCH_CONTENT_TYPE else 50
        )


@read_listeners
def test_a_wait_is_ended_by_the_end_of_its_topic(
    shared_broker: RunningBroker, connection: Connection, topic: str
) -> None:
    with Connection(shared_broker.port) as public:
        assert public.exchange(new_topic(topic)).status == 201
        connection.send(get(records(topic, waitMs=LONG_MS)))
        settle(shared_broker.port)
        assert public.exchange(request(f"/v1/topics/{topic}", method="DELETE")).status == 204

    assert problem(connection.receive()) == (404, "topic-not-found")


@read_listeners
def test_a_wait_is_ended_by_the_end_of_the_broker(broker: RunningBroker, listener: int) -> None:
    with Connection(broker.port) as public, Connection(broker.port + listener) as waiting:
        assert public.exchange(new_topic("empty")).status == 201
        waiting.send(get(records("empty", waitMs=LONG_MS)))
        settle(broker.port)
        with ThreadPoolExecutor(1) as thread:
            stopped = thread.submit(broker.stop)
            answer = waiting.receive()
            stopped.result()

        assert (answer.status, answer.body) == (200, b"")
        assert waiting.is_closed()


@read_listeners
def test_a_peer_that_leaves_while_it_waits_is_forgotten(
    shared_broker: RunningBroker, listener: int, topic: str
) -> None:
    """A read that follows on the same partition is not disturbed by it."""
    with Connection(shared_broker.port) as public:
        assert public.exchange(new_topic(topic)).status == 201
        for _ in range(10):
            with Connection(shared_broker.port + listener) as leaving:
                leaving.send(get(records(topic, waitMs=LONG_MS)) * 3)
                settle(shared_broker.port)
                leaving.reset()
        wait_for_metric(shared_broker, "tailrace_waiting_reads", 0)
        with Connection(shared_broker.port + listener) as staying:
            staying.send(get(records(topic, waitMs=LONG_MS)))
            settle(shared_broker.port)
            assert public.exchange(request(messages(topic), b"1")).status == 200
            assert json.loads(staying.receive().body)["value"] == 1
