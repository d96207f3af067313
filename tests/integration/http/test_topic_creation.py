"""A topic that is not there: what creates it, who learns of that, and what is refused."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tailrace.consumer import Consumer
from tailrace.errors import TopicNotFoundError
from tailrace.protocol.records_binary import encode_records
from tailrace.request_producer import RequestProducer
from tailrace.sync import Client
from tailrace.wire import (
    BATCH_CONTENT_TYPE,
    JSON_CONTENT_TYPE,
    NDJSON_CONTENT_TYPE,
    RECORDS_CONTENT_TYPE,
    RECORDS_JSON_CONTENT_TYPE,
)
from tailrace_broker.codec.batch import stamp_batch
from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.groups.consumers import ask
from tests.support.http.http11 import (
    PUBLIC,
    READ,
    Connection,
    document,
    get,
    messages,
    problem,
    produce_listeners,
    request,
)
from tests.support.http.scripted_answers import ScriptedAnswers
from tests.support.storage.batches import Event, body_of, place_of

pytestmark = pytest.mark.integration

KEYS = [b"k%d" % number for number in range(20)]
RECORDS = encode_records(KEYS, KEYS)
BATCH = b"".join(stamp_batch(body_of([Event(b"1")]), place_of()).buffers)
AHEAD_US = 2**62


@pytest.fixture(scope="module")
def careful_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """It creates no topic that nobody has declared."""
    path = tmp_path_factory.mktemp("careful")
    with start_broker(path, auto_create_topics=False) as broker:
        yield broker


@produce_listeners
@pytest.mark.parametrize(
    ("body", "content_type"),
    [(b"1", JSON_CONTENT_TYPE), (b"1\n2\n", NDJSON_CONTENT_TYPE), (RECORDS, RECORDS_CONTENT_TYPE)],
)
def test_only_the_produce_that_creates_its_topic_says_so(
    connection: Connection, listener: int, topic: str, body: bytes, content_type: str
) -> None:
    produce = request(messages(topic), body, content_type=content_type)
    connection.send(produce * 3)  # the others wait for the topic as well
    answers = [document(connection.receive()) for _ in range(3)]

    assert [_said(answer) for answer in answers] == [{True}, {None}, {None}]


@pytest.mark.parametrize(
    ("body", "content_type", "query"),
    [
        (b"{", JSON_CONTENT_TYPE, {}),
        (b"", JSON_CONTENT_TYPE, {}),
        (b"1", JSON_CONTENT_TYPE, {"timestamp": "1"}),
        (b"1", JSON_CONTENT_TYPE, {"key": ".a"}),
        (b"1\n{\n", NDJSON_CONTENT_TYPE, {}),
        (b"\n", NDJSON_CONTENT_TYPE, {}),
        (b'{"a":1}\n{"b":1}\n', NDJSON_CONTENT_TYPE, {"key": ".a"}),
        (b"1\n", NDJSON_CONTENT_TYPE, {"key": "a"}),
        (RECORDS[:-1], RECORDS_CONTENT_TYPE, {}),
        (encode_records([b"k"], [b"1"], [AHEAD_US]), RECORDS_CONTENT_TYPE, {}),
        (b'{"records":[{"key":1}]}', RECORDS_JSON_CONTENT_TYPE, {}),
        (b'{"records":[{"timestamp":1}]}', RECORDS_JSON_CONTENT_TYPE, {}),
        (BATCH[:-1], BATCH_CONTENT_TYPE, {"partition": "0"}),
        (BATCH, BATCH_CONTENT_TYPE, {}),
        (BATCH, BATCH_CONTENT_TYPE, {"partition": "4"}),
    ],
)
def test_a_refused_body_creates_no_topic(
    shared_broker: RunningBroker, topic: str, body: bytes, content_type: str, query: dict[str, str]
) -> None:
    with Connection(shared_broker.port) as public:
        sent = request(messages(topic, **query), body, content_type=content_type)
        answer = public.exchange(sent)
        topics = [each["name"] for each in document(public.exchange(get("/v1/topics")))["topics"]]

    assert answer.status in (400, 404)
    assert "topicCreated" not in document(answer)
    assert topic not in topics


def test_a_bad_header_creates_no_topic(shared_broker: RunningBroker, topic: str) -> None:
    with Connection(shared_broker.port) as public:
        sent = request(messages(topic), b"1", **{"tailrace-sequence": "x"})
        answer = public.exchange(sent)

        assert problem(answer) == (400, "invalid-parameter")
        assert public.exchange(get(f"/v1/topics/{topic}")).status == 404


@produce_listeners
def test_a_good_body_behind_a_refused_one_creates_the_topic(
    connection: Connection, listener: int, topic: str
) -> None:
    connection.send(request(messages(topic), b"{") + request(messages(topic), b"1"))
    refused, stored = connection.receive(), connection.receive()

    assert problem(refused) == (400, "invalid-record")
    assert "topicCreated" not in document(refused)
    assert document(stored)["topicCreated"] is True


def test_a_client_learns_that_its_produce_created_the_topic(
    shared_broker: RunningBroker, topic: str
) -> None:
    with Client(shared_broker.url) as client:
        producer = RequestProducer(client)
        one = [client.produce(f"{topic}-1", b"1").topic_created for _ in range(2)]
        lines = [producer.produce_lines(f"{topic}-2", b"1\n").topic_created for _ in range(2)]
        records = [
            {
                produce_record.topic_created
                for produce_record in producer.produce_records(f"{topic}-3", KEYS, KEYS)
            }
            for _ in range(2)
        ]

    assert (one, lines, records) == ([True, False], [True, False], [{True}, {False}])


@pytest.mark.parametrize("has_keys", [False, True])
def test_a_producer_learns_of_a_creation_by_an_attempt_that_failed(has_keys: bool) -> None:
    failed = {
        "type": "/v1/problems/produce-memory-full",
        "retriable": True,
        "writeAttempted": True,
        "topicCreated": True,
    }
    stored = {"partition": 0, "offset": 0, "count": 1, "durability": "fsync", "copies": 1}
    answers = [(503, failed), (200, stored), (200, stored)]
    with ScriptedAnswers(*answers) as server, Client(server.url) as client:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            producer = RequestProducer(client)
            produced = [
                producer.produce_records("t", [b"k"], [b"1"])[0]
                if has_keys
                else producer.produce_lines("t", b"1\n")
                for _ in range(2)
            ]
        finally:
            server.shutdown()
            thread.join()

    assert [part.topic_created for part in produced] == [True, False]
    assert producer.created_topics == {"t"}


def _said(answer: Any) -> set[bool | None]:
    """What each element of an answer says of the topic's creation."""
    elements = answer if isinstance(answer, list) else [answer]
    return {element.get("topicCreated") for element in elements}


# --- registrations --------------------------------------------------------------------------------


@pytest.mark.parametrize("listener", [PUBLIC, READ])
@pytest.mark.parametrize("said", [None, False, True])
@pytest.mark.parametrize("by_body", [False, True])
def test_a_registration_creates_its_topic_when_it_says_so_or_is_at_polarstreams_port(
    shared_broker: RunningBroker, topic: str, listener: int, said: bool | None, by_body: bool
) -> None:
    with (
        Connection(shared_broker.port) as public,
        Connection(shared_broker.port + listener) as other,
    ):
        answer = other.exchange(_registration(topic, said, by_body=by_body))
        is_there = public.exchange(get(f"/v1/topics/{topic}")).status == 200

    is_created = listener == READ if said is None else said
    assert is_there is is_created
    if is_created:
        assert answer.status == 200
    else:
        assert problem(answer) == (404, "topic-not-found")
        detail = (
            f'topic "{topic}" does not exist; create it with POST /v1/topics, or register with '
            "createTopics=true"
        )
        assert document(answer)["detail"] == detail


@pytest.mark.parametrize(
    ("group", "topics", "refusal"),
    [
        ("{}-other", ["{}"], "consumer-exists"),
        ("{}", ["{}", "{}-other"], "consumer-exists"),
        ("{}-other", ["{}", "{} name"], "invalid-topic-name"),
    ],
    ids=["of another group", "of other topics", "with an invalid name"],
)
def test_a_registration_that_is_refused_creates_no_topic(
    shared_broker: RunningBroker, topic: str, group: str, topics: list[str], refusal: str
) -> None:
    known = f"{topic}-known"
    consumer = topic if refusal == "consumer-exists" else f"{topic}-new"
    with Connection(shared_broker.port + READ) as connection:
        first = connection.exchange(ask("register", topic, topic=known, group=topic))
        body = {
            "id": consumer,
            "group": group.format(topic),
            "topics": [each.format(topic) for each in topics],
        }
        answer = connection.exchange(request("/v1/consumer/register", json.dumps(body).encode()))

    assert first.status == 200
    assert problem(answer) == (400, refusal)
    with Client(shared_broker.url) as client:
        assert {each.name for each in client.topics() if topic in each.name} == {known}


@pytest.mark.parametrize("listener", [PUBLIC, READ])
@pytest.mark.parametrize("said", [None, True])
def test_with_the_setting_off_no_registration_creates_a_topic(
    careful_broker: RunningBroker, topic: str, listener: int, said: bool | None
) -> None:
    with Connection(careful_broker.port + listener) as connection:
        answer = connection.exchange(_registration(topic, said, by_body=False))

    assert problem(answer) == (404, "topic-not-found")
    assert "(autoCreateTopics is off); create it with" in document(answer)["detail"]


def test_a_consumer_that_lives_goes_on_when_its_topic_is_deleted(
    shared_broker: RunningBroker, topic: str
) -> None:
    """It says that it lives, and gets what comes when the topic is there again."""
    with Client(shared_broker.url) as client:
        client.create_topic(topic, partitions_per_range=1)
        epoch = client.register(topic, topic, [topic]).assignment_epoch
        client.delete_topic(topic)
        again = client.register(topic, topic, [topic], assignment_epoch=epoch)

        assert again.assignment_epoch == epoch
        assert topic not in [each.name for each in client.topics()]
        with pytest.raises(TopicNotFoundError):
            client.register(topic, topic, [topic])


def test_a_consumer_in_python_names_the_topic_that_does_not_exist(
    shared_broker: RunningBroker, topic: str
) -> None:
    with Client(shared_broker.url) as client:
        with (
            pytest.raises(TopicNotFoundError, match=f'topic "{topic}" does not exist; create it'),
            Consumer(client, topic, topic) as consumer,
        ):
            consumer.poll()
        assert topic not in [group.group for group in client.groups()]

        with Consumer(client, topic, topic, create_topics=True, wait_ms=0) as consumer:
            assert consumer.poll() == []
        assert topic in [each.name for each in client.topics()]


def _registration(topic: str, said: bool | None, *, by_body: bool) -> bytes:
    if not by_body:
        query: dict[str, Any] = {} if said is None else {"createTopics": str(said).lower()}
        return ask("register", topic, topic=topic, group=topic, **query)
    members = {} if said is None else {"createTopics": said}
    body = {"id": topic, "group": topic, "topics": [topic], **members}
    return request("/v1/consumer/register", json.dumps(body).encode())
