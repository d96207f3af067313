"""A ring of three by HTTP and by the clients: the same ring and leaders at every listener."""

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tailrace import aio
from tailrace.errors import PartitionUnavailableError, ProblemError
from tailrace.producer import Producer
from tailrace.request_producer import RequestProducer
from tailrace.sync import Client
from tests.support.http.http11 import Connection, document, get, messages, problem, request
from tests.support.ring.local_ring import SECRET, LocalRing, founded_ring, waits_without_its_data

pytestmark = pytest.mark.integration

BROKERS = 3
ADMITTED_S_MAX = 30.0
KEYS = [f"k{number}".encode() for number in range(40)]
VALUES = [b"%d" % number for number in range(len(KEYS))]
each_broker = pytest.mark.parametrize("ordinal", range(BROKERS))


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRing]:
    """All three serve, and stay so."""
    with founded_ring(tmp_path_factory.mktemp("ring")) as founded:
        yield founded


def create(ring: LocalRing, topic: str) -> None:
    """Known to all brokers when it returns; three partitions."""
    ring.call(0, "POST", "/v1/topics", {"name": topic, "partitionsPerRange": 1})
    wait_known(ring, topic)


def wait_known(ring: LocalRing, topic: str) -> None:
    """Until every broker has opened what it leads of the topic."""
    for ordinal in range(BROKERS):
        is_known = partial(ring.is_answered, ordinal, "GET", f"/v1/topics/{topic}")
        ring.until(is_known, ADMITTED_S_MAX)


def client_of(ring: LocalRing, ordinal: int = 0) -> Client:
    return Client(ring.brokers[ordinal].url, token=SECRET)


def values_of(client: Client, topic: str) -> Counter[bytes]:
    return Counter(json.dumps(record.json()).encode() for record in client.read(topic))


# --- the same everywhere --------------------------------------------------------------------------


def committed(described: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on who answers."""
    brokers = [
        {name: registration[name] for name in ("ordinal", "registration", "incarnation", "alive")}
        for registration in described["registrations"]
    ]
    metadata = {name: described["metadata"][name] for name in ("term", "leader", "voters")}
    same = {name: described[name] for name in ("clusterId", "brokers", "factor")}
    ranges = [{**each, "followers": None} for each in described["ranges"]]
    return {**same, **metadata, "registrations": brokers, "ranges": ranges}


def test_every_broker_lists_all_brokers_and_describes_itself(ring: LocalRing) -> None:
    reported = [ring.call(ordinal, "GET", "/v1/brokers") for ordinal in range(BROKERS)]

    assert [each["length"] for each in reported] == [BROKERS] * BROKERS
    assert reported[0]["ports"] == [broker.port for broker in ring.brokers]
    assert len({json.dumps(each["ring"], sort_keys=True) for each in reported}) == 1
    for ordinal, each in enumerate(reported):
        assert [row["ordinal"] for row in each["brokers"]] == [0, 1, 2]
        assert [row["upSeconds"] is not None for row in each["brokers"]] == [
            other == ordinal for other in range(BROKERS)
        ]
        incarnations = [row["incarnation"] for row in each["brokers"]]
        assert incarnations == [row["incarnation"] for row in reported[0]["brokers"]]


@each_broker
def test_a_topic_that_is_created_at_one_broker_is_at_all(ring: LocalRing, ordinal: int) -> None:
    name = f"created-at-{ordinal}"
    with client_of(ring, ordinal) as client:
        client.create_topic(name)
    wait_known(ring, name)
    for other in range(BROKERS):
        with client_of(ring, other) as client:
            details = client.topic(name)
            leaders = [partition_detail.leader for partition_detail in details.partition_details]
            assert leaders == [0] * 4 + [1] * 4 + [2] * 4
            assert [
                partition_detail.high_watermark for partition_detail in details.partition_details
            ] == [0] * 12


# --- the secret -----------------------------------------------------------------------------------


@pytest.mark.parametrize("authorization", [None, "Bearer guessed", f"Basic {SECRET}"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/ring/found", b'{"brokers":3}'),
        ("/v1/ring/ranges/0/accept-loss", b'{"broker":0}'),
        ("/v1/ring/metadata/recover", b'{"acceptLoss":true}'),
    ],
)
def test_who_does_not_name_the_secret_changes_nothing(
    ring: LocalRing, path: str, body: bytes, authorization: str | None
) -> None:
    before = committed(ring.ring(0))
    with Connection(ring.brokers[0].port) as connection:
        answer = connection.exchange(request(path, body, authorization=authorization))

    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert document(answer)["type"] == "/v1/problems/secret-required"
    assert committed(ring.ring(0)) == before


# --- who leads ------------------------------------------------------------------------------------


def test_who_does_not_lead_says_who_does_when_it_is_asked_to(ring: LocalRing) -> None:
    create(ring, "led")
    redirect: dict[str, Any] = {"tailrace_redirect": 1}
    with Connection(ring.brokers[0].port) as connection:
        target = messages("led", partitionKey="SFO")
        produced = connection.exchange(request(target, b"1", **redirect))
        read = connection.exchange(get("/v1/topic/led/partitions/1/records", **redirect))
        offsets = document(connection.exchange(get("/v1/offsets?topic=led", **redirect)))
        wrong = connection.exchange(request(target, b"1", tailrace_redirect="yes"))

    for answer in (produced, read):
        said = document(answer)
        assert answer.status == 421
        assert (said["leader"], said["leaderUrl"]) == (1, ring.brokers[1].url)
        assert (said["retriable"], said["writeAttempted"]) == (True, False)
    rows = offsets["topics"][0]["partitions"]
    assert [(row["leader"], row.get("leaderUrl")) for row in rows] == [
        (0, None),
        (1, ring.brokers[1].url),
        (2, ring.brokers[2].url),
    ]
    assert [row["highWatermark"] for row in rows] == [0, None, None]
    assert problem(wrong) == (400, "invalid-parameter")


@each_broker
def test_a_client_of_any_broker_stores_and_reads_all(ring: LocalRing, ordinal: int) -> None:
    topic = f"any-{ordinal}"
    create(ring, topic)
    with client_of(ring, ordinal) as client:
        stored = client.produce_records(topic, KEYS, VALUES)
        again = client.produce_records(topic, KEYS, VALUES)  # it knows now who leads
        client.produce(topic, b'"one"', key="SFO")
        client.produce_lines(topic, b'"two"\n"three"\n', key="SFO")
        expected = Counter(dict.fromkeys(VALUES, 2))
        expected.update([b'"one"', b'"two"', b'"three"'])
        last = [json.loads(line)["value"] for line in client.last_lines(topic, 3).splitlines()]

        assert [part.partition for part in stored] == [0, 1, 2]
        assert [part.count for part in stored] == [part.count for part in again]
        assert [part.offset for part in again] == [part.count for part in stored]
        assert values_of(client, topic) == expected
        assert last == ["one", "two", "three"]
        assert sum(len(row.readable()) for row in client.offsets([topic])) == sum(expected.values())


async def test_the_client_for_asyncio_stores_and_reads_all(ring: LocalRing) -> None:
    create(ring, "aio")

    async with aio.Client(ring.brokers[1].url) as client:
        await client.produce_records("aio", KEYS, VALUES)
        await client.produce("aio", b'"one"', key="SFO")
        offsets = await client.offsets(["aio"])
        last = json.loads(await client.last_lines("aio"))
        page = await client.read_lines("aio", 2)
        described = await client.ring(consistent=True)
        details = await client.topic("aio")

    assert sum(len(row.readable()) for row in offsets) == len(KEYS) + 1
    assert last["value"] == "one"
    assert page.next_offset == offsets[2].high_watermark
    assert described.brokers == BROKERS
    assert [partition_detail.log_end for partition_detail in details.partition_details] == [
        row.log_end for row in offsets
    ]


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_producer_stores_each_record_once_at_its_leader(
    ring: LocalRing, idempotent: bool
) -> None:
    topic = f"producer-{idempotent}"
    create(ring, topic)
    with client_of(ring, 2) as client:
        with Producer(client, idempotent=idempotent, linger_ms=1) as producer:
            first = [producer.send(topic, v, key=k) for k, v in zip(KEYS, VALUES, strict=True)]
            producer.flush()
            then = [producer.send(topic, v, key=k) for k, v in zip(KEYS, VALUES, strict=True)]
        places = [sent.result() for sent in (*first, *then)]

        assert {place.partition for place in places} == {0, 1, 2}
        assert len({(place.partition, place.offset) for place in places}) == 2 * len(KEYS)
        assert values_of(client, topic) == Counter(dict.fromkeys(VALUES, 2))


@each_broker
def test_a_client_learns_what_a_broker_created_that_does_not_lead(
    ring: LocalRing, ordinal: int
) -> None:
    with client_of(ring, ordinal) as client:
        one = [client.produce(f"new-{ordinal}", b"1", key="SFO").topic_created for _ in "12"]
        some = [
            {part.topic_created for part in client.produce_records(f"own-{ordinal}", KEYS, VALUES)}
            for _ in "12"
        ]

    assert (one, some) == ([True, False], [{True}, {False}])


def test_a_broker_that_has_not_heard_of_a_topic_yet_keeps_its_check(ring: LocalRing) -> None:
    """What a new topic would refuse is no reason to refuse it for one that another broker made."""
    with client_of(ring, 0) as maker, client_of(ring, 1) as client:
        for number in range(10):
            topic = f"unchecked-{number}"
            maker.create_topic(topic, json_check=False)
            assert not client.produce(topic, b"{", key="SFO").topic_created


def test_a_producer_creates_its_topic_and_finds_who_leads_it(ring: LocalRing) -> None:
    with client_of(ring) as client:
        with Producer(client) as producer:
            for key, value in zip(KEYS, VALUES, strict=True):
                producer.send("made-by-a-producer", value, key=key)
        assert values_of(client, "made-by-a-producer") == Counter(VALUES)


# --- brokers that are away ------------------------------------------------------------------------


def test_a_killed_broker_comes_back_and_a_wiped_one_is_admitted(tmp_path: Path) -> None:
    """A range of one copy has no leader meanwhile; what a wiped disk held is given up by hand."""
    with founded_ring(tmp_path, copies=1) as ring:
        create(ring, "t")
        before = ring.ring(0)
        with client_of(ring) as client:
            client.produce_records("t", KEYS, VALUES)
            ring.kill(1)
            ring.until(lambda: not ring.ring(0)["registrations"][1]["alive"], ADMITTED_S_MAX)
            missing = client.offsets(["t"])[1]
            with pytest.raises(PartitionUnavailableError):
                missing.readable()
            ring.brokers[1].start()
            ring.wait_ready(1)
            ring.until(lambda: ring.ring(0)["ranges"][1]["state"] == "open", ADMITTED_S_MAX)
            restarted = ring.ring(0)
            assert values_of(client, "t") == Counter(VALUES)
            RequestProducer(client).produce_records("t", KEYS, VALUES)

            ring.kill(1)
            ring.wipe(1)
            ring.brokers[1].start()
            ring.until(lambda: waits_without_its_data(ring, 1), ADMITTED_S_MAX)
            waiting = ring.ring(0)
            with pytest.raises(ProblemError, match="no broker leads") as raised:
                client.produce("t", b"1", key="SFO")
            accepted = client.accept_loss(1, 1).range
            ring.wait_ready(1)
            ring.until(lambda: client.offsets(["t"])[1].high_watermark is not None, ADMITTED_S_MAX)
            ends = [row.high_watermark for row in client.offsets(["t"])]
            client.produce("t", b"1", key="SFO")
            voters = client.ring(consistent=True).metadata.voters

    assert before["clusterId"] == restarted["clusterId"] == waiting["clusterId"]
    assert (raised.value.type, raised.value.status) == ("no-leader", 503)
    assert [each["registrations"][1]["registration"] for each in (before, restarted, waiting)] == [
        1,
        2,
        3,
    ]
    assert waiting["registrations"][1]["loss"] == "disk"
    assert waiting["ranges"][1]["isr"][0]["ghost"]
    assert (accepted.leader, accepted.state) == (1, "open")
    assert accepted.epoch > restarted["ranges"][1]["epoch"]
    assert ends[1] == 0
    assert ends[0]
    assert ends[2]
    assert voters == (0, 1, 2)


def test_a_producer_goes_through_a_kill_of_a_leader(tmp_path: Path) -> None:
    """What the killed broker leads waits for it; what others lead does not."""
    with founded_ring(tmp_path) as ring:
        create(ring, "t")
        with client_of(ring) as client:
            with Producer(client, linger_ms=1) as producer:
                first = [producer.send("t", v, key=k) for k, v in zip(KEYS, VALUES, strict=True)]
                producer.flush()
                ring.kill(1)
                then = [producer.send("t", v, key=k) for k, v in zip(KEYS, VALUES, strict=True)]
                others = [
                    later
                    for earlier, later in zip(first, then, strict=True)
                    if earlier.result().partition != 1
                ]
                elsewhere = {other.result(ADMITTED_S_MAX).partition for other in others}
                ring.brokers[1].start()
            places = [sent.result() for sent in (*first, *then)]
            stored = values_of(client, "t")

    assert elsewhere == {0, 2}
    assert len({(place.partition, place.offset) for place in places}) == 2 * len(KEYS)
    assert stored == Counter(dict.fromkeys(VALUES, 2))
