"""A topic that is not there: what creates it, who learns of that, and what is refused."""

import asyncio
from typing import Any

import pytest

from tailrace import aio
from tailrace.records_binary import encode_records
from tailrace.request_producer import RequestProducer
from tailrace.sync import Client
from tailrace.wire import NDJSON_CONTENT_TYPE, RECORDS_CONTENT_TYPE
from tests.fixtures import RunningBroker
from tests.http11 import Connection, document, messages, produce_doors, request

pytestmark = pytest.mark.integration

KEYS = [b"k%d" % number for number in range(20)]
RECORDS = encode_records(KEYS, KEYS)


@produce_doors
@pytest.mark.parametrize(
    ("body", "content_type"),
    [(b"1", None), (b"1\n2\n", NDJSON_CONTENT_TYPE), (RECORDS, RECORDS_CONTENT_TYPE)],
)
def test_only_the_produce_that_creates_its_topic_says_so(
    connection: Connection, door: int, topic: str, body: bytes, content_type: str | None
) -> None:
    produce = request(messages(topic), body, content_type=content_type)
    connection.send(produce * 3)  # the others wait for the topic as well
    answers = [document(connection.receive()) for _ in range(3)]

    assert [_said(answer) for answer in answers] == [{True}, {None}, {None}]


def test_a_refused_produce_that_created_its_topic_says_so(
    shared_broker: RunningBroker, topic: str
) -> None:
    with Connection(shared_broker.port) as public:
        answers = [public.exchange(request(messages(topic), b"{")) for _ in range(2)]

    assert [answer.status for answer in answers] == [400, 400]
    assert [_said(document(answer)) for answer in answers] == [{True}, {None}]


def test_a_client_learns_that_its_produce_created_the_topic(
    shared_broker: RunningBroker, topic: str
) -> None:
    with Client(shared_broker.url) as client:
        producer = RequestProducer(client)
        one = [client.produce(f"{topic}-1", b"1").topic_created for _ in range(2)]
        lines = [producer.produce_lines(f"{topic}-2", b"1\n").topic_created for _ in range(2)]
        records = [
            {each.topic_created for each in producer.produce_records(f"{topic}-3", KEYS, KEYS)}
            for _ in range(2)
        ]

    assert (one, lines, records) == ([True, False], [True, False], [{True}, {False}])


def test_the_client_for_asyncio_learns_that_its_produce_created_the_topic(
    shared_broker: RunningBroker, topic: str
) -> None:
    async def scenario() -> None:
        async with aio.Client(shared_broker.url) as client:
            assert (await client.produce(topic, b"1")).topic_created
            assert not (await client.produce(topic, b"1")).topic_created

    asyncio.run(scenario())


def _said(answer: Any) -> set[bool | None]:
    """What each element of an answer says of the topic's creation."""
    elements = answer if isinstance(answer, list) else [answer]
    return {element.get("topicCreated") for element in elements}
