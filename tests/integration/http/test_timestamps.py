"""Every route that takes a time reads it alike; milliseconds are refused, and nothing is stored."""

import json

import pytest

from tests.support.broker.fixtures import RunningBroker
from tests.support.groups.consumers import make, register
from tests.support.http.http11 import (
    PUBLIC,
    Connection,
    document,
    get,
    messages,
    problem,
    produce_listeners,
    records,
    request,
    through,
)

pytestmark = pytest.mark.integration

MILLISECONDS = 1_764_000_000_000
MEANT = "timestamp is 1764000000000; it is in microseconds; did you mean 1764000000000000?"


@produce_listeners
def test_a_produce_with_milliseconds_is_refused_and_creates_no_topic(
    shared_broker: RunningBroker, connection: Connection, topic: str
) -> None:
    answer = connection.exchange(request(messages(topic, timestamp=MILLISECONDS), b"1"))

    assert problem(answer) == (400, "invalid-parameter")
    assert (document(answer)["detail"], document(answer)["parameter"]) == (MEANT, "timestamp")
    with Connection(shared_broker.port) as public:
        assert public.exchange(get(f"/v1/topics/{topic}")).status == 404


@produce_listeners
@pytest.mark.parametrize("time", ["2025-11-24T17:00:00%2B01:00", "2025-11-24T16:00Z"])
def test_an_event_has_the_time_that_its_producer_wrote(
    shared_broker: RunningBroker, connection: Connection, topic: str, time: str
) -> None:
    assert connection.exchange(request(f"{messages(topic)}?timestamp={time}", b"1")).status == 200

    with Connection(shared_broker.port) as public:
        [record] = document(
            public.exchange(get(f"/v1/topic/{topic}/records?last=1", accept="application/json"))
        )
    assert record["timestamp"] == "2025-11-24T16:00:00.000000Z"


@through(PUBLIC)
def test_reads_offsets_and_resets_refuse_milliseconds_alike(
    connection: Connection, topic: str
) -> None:
    make(connection, topic, b"1")
    register(connection, topic, topic, group=topic)
    assert connection.exchange(request(f"/v1/consumer/goodbye?consumerId={topic}")).status == 200
    reset = json.dumps({"timestamp": MILLISECONDS}).encode()
    asked = [
        get(records(topic, timestamp=MILLISECONDS)),
        get(f"/v1/offsets?topic={topic}&timestamp={MILLISECONDS}"),
        request(f"/v1/groups/{topic}/reset", reset, content_type="application/json"),
    ]

    for answer in map(connection.exchange, asked):
        assert problem(answer) == (400, "invalid-parameter")
        assert document(answer)["detail"] == MEANT


@through(PUBLIC)
def test_a_group_is_reset_to_a_time_of_its_text(connection: Connection, topic: str) -> None:
    make(connection, topic, b"1\n2\n")
    register(connection, topic, topic, group=topic, onNewGroup="startFromLatest")
    assert connection.exchange(request(f"/v1/consumer/goodbye?consumerId={topic}")).status == 200
    reset = json.dumps({"timestamp": "2001-01-01T00:00+01:00"}).encode()
    answer = connection.exchange(
        request(f"/v1/groups/{topic}/reset", reset, content_type="application/json")
    )

    assert [partition["to"] for partition in document(answer)["partitions"]] == [0]
