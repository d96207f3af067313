"""The flow of PolarStreams' clients, to the letter: they know none of Tailrace's headers.

They register at every broker's consumer port, poll them in turn, count on the next poll to confirm
the last, and register again when they are asked to.
"""

import json
from typing import Any

import pytest

from tests.support.broker.fixtures import RunningBroker
from tests.support.http.http11 import PRODUCE, READ, Connection, document, get, request

pytestmark = pytest.mark.integration

COUNT = 60
POLL = request("/v1/consumer/poll?consumerId=c1", accept="application/json")
REGISTER = "/v1/consumer/register?consumerId=c1&group=g1&topic=abc"
MEMBERS = {"topic", "token", "rangeIndex", "version", "startOffset", "values"}


def consumer_port(broker: RunningBroker) -> int:
    """As discovery reports it."""
    with Connection(broker.port) as discovery:
        ring = document(discovery.exchange(get("/v1/brokers")))
    assert (ring["length"], ring["consumerPort"]) == (1, broker.port + READ)
    return int(ring["consumerPort"])


def produce(broker: RunningBroker, numbers: range) -> None:
    """Events of some keys."""
    with Connection(broker.port + PRODUCE) as producer:
        for number in numbers:
            target = f"/v1/topic/abc/messages?partitionKey=key{number % 7}"
            body = json.dumps({"hello": number}).encode()
            sent = request(target, body, content_type="application/json")
            assert producer.exchange(sent).status == 200


def read(elements: list[dict[str, Any]]) -> list[int]:
    """What a client makes of an answer; offsets and tokens are texts, being of 64 bits."""
    for element in elements:
        assert element.keys() >= MEMBERS
        assert element["topic"] == "abc"
        assert (element["token"], element["version"]) == (str(-(2**63)), 1)
        assert isinstance(element["rangeIndex"], int)
        assert int(element["startOffset"]) >= 0
    return [value["hello"] for element in elements for value in element["values"]]


def test_a_client_reads_all_once(broker: RunningBroker) -> None:
    port = consumer_port(broker)
    with Connection(port) as first, Connection(port) as second:
        assert first.exchange(get("/status")).status == 200
        assert first.exchange(POLL).status == 409  # never registered: it does, and goes on
        for listener in (first, second):
            assert listener.exchange(request(REGISTER, method="PUT")).status == 200
        nothing = first.exchange(POLL)
        assert (nothing.status, nothing.headers["retry-after"]) == (204, "1")
        produce(broker, range(COUNT))
        taken: list[int] = []
        has_more = True
        while has_more:
            answers = [listener.exchange(POLL) for listener in (first, second)]
            taken += [
                number for answer in answers if answer.body for number in read(document(answer))
            ]
            has_more = any(answer.status == 200 for answer in answers)
        assert sorted(taken) == [*range(COUNT)]

        produce(broker, range(COUNT, COUNT + 5))
        assert sorted(read(document(first.exchange(POLL)))) == [*range(COUNT, COUNT + 5)]
        for listener in (first, second):
            commit = request("/v1/consumer/commit?consumerId=c1")
            assert listener.exchange(commit).status == 204
        goodbye = request("/v1/consumer/goodbye?consumerId=c1&commit=false")
        assert first.exchange(goodbye).status == 200
        assert second.exchange(POLL).status == 409
        assert second.exchange(commit).status == 409


def test_a_client_that_leaves_without_a_commit_leaves_the_last_to_others(
    broker: RunningBroker,
) -> None:
    port = consumer_port(broker)
    earliest = f"{REGISTER}&onNewGroup=startFromEarliest"
    with Connection(port) as listener:
        produce(broker, range(COUNT))
        assert listener.exchange(request(earliest)).status == 200
        assert listener.exchange(request(REGISTER)).status == 400  # with other values
        assert len(read(document(listener.exchange(POLL)))) == COUNT
        goodbye = request("/v1/consumer/goodbye?consumerId=c1&commit=false")
        assert listener.exchange(goodbye).status == 200

        assert listener.exchange(request(earliest.replace("c1", "c2"))).status == 200
        other = listener.exchange(request("/v1/consumer/poll?consumer_id=c2"))
        assert sorted(read(document(other))) == [*range(COUNT)]


def test_a_client_that_has_nothing_assigned_is_asked_to_come_back_later(
    broker: RunningBroker,
) -> None:
    """Four partitions, five consumers."""
    with Connection(consumer_port(broker)) as listener:
        for number in range(5):
            body = {"id": f"c{number}", "group": "g1", "topics": ["abc"]}
            body["onNewGroup"] = "startFromLatest"
            sent = request(
                "/v1/consumer/register",
                json.dumps(body).encode(),
                content_type="application/json",
            )
            assert listener.exchange(sent).status == 200
        polls = [request(f"/v1/consumer/poll?consumerId=c{number}") for number in range(5)]
        answers = [listener.exchange(poll) for poll in polls]

    assert {answer.status for answer in answers} == {204}
    assert sorted(answer.headers["retry-after"] for answer in answers) == ["1"] * 4 + ["5"]
