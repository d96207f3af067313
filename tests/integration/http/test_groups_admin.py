"""Consumer groups as people and tools see and move them."""

import json
import re
from typing import Any

import pytest

from tailrace.wire import NDJSON_CONTENT_TYPE
from tests.support.broker.fixtures import RunningBroker
from tests.support.broker.metrics import wait_for_metric
from tests.support.broker.stored import SPLIT_END, split
from tests.support.groups.consumers import ask, delivery_of, got, poll, register, take_all
from tests.support.http.http11 import (
    Connection,
    document,
    get,
    messages,
    new_topic,
    problem,
    request,
)

pytestmark = pytest.mark.integration

TIME_US = 1_764_000_000_000_000
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def make(public: Connection, topic: str, *bodies: bytes, partitions: int = 1) -> None:
    """A topic, with a batch of each body, a second after the other."""
    assert public.exchange(new_topic(topic, partitions=partitions)).status == 201
    for number, body in enumerate(bodies):
        target = messages(topic, timestamp=TIME_US + number * 1_000_000)
        sent = request(target, body, content_type=NDJSON_CONTENT_TYPE)
        assert public.exchange(sent).status == 200


def group_of(public: Connection, name: str) -> Any:
    answer = public.exchange(get(f"/v1/groups/{name}"))
    assert answer.status == 200, answer
    return document(answer)


def reset(name: str, **body: Any) -> bytes:
    """A whole request."""
    return request(f"/v1/groups/{name}/reset", json.dumps(body).encode())


def publish(name: str, offsets: Any, source: str = "spark") -> bytes:
    """A whole request."""
    body = json.dumps({"source": source, "offsets": offsets}).encode()
    return request(f"/v1/groups/{name}/offsets", body, method="PUT")


def leave(public: Connection, consumer: str) -> None:
    assert public.exchange(ask("goodbye", consumer)).status == 200


# --- to inspect -----------------------------------------------------------------------------------


def test_a_group_is_described_with_its_consumers_and_partitions(
    public: Connection, topic: str
) -> None:
    make(public, topic, b"1\n2\n3\n4\n5\n")
    register(public, topic, topic, group=topic, sessionMs=60_000)
    number = delivery_of(public.exchange(poll(topic, maxRecords=2)))
    assert public.exchange(ask("commit", topic)).status == 204
    assert public.exchange(poll(topic, delivery=number, maxRecords=2)).status == 200
    said = group_of(public, topic)
    idle_ms = said["consumers"][0].pop("idleMs")
    oldest = said["oldestUnread"]

    assert TIME.fullmatch(oldest)
    assert 0 <= idle_ms < 60_000
    assert said.pop("coordinator").keys() == {"topic", "partition"}
    assert said == {
        "group": topic,
        "state": "active",
        "members": 1,
        "topics": [topic],
        "lag": 3,
        "oldestUnread": oldest,
        "lost": 0,
        "assignmentEpoch": 1,
        "consumers": [
            {
                "consumerId": topic,
                "topics": [topic],
                "onNewGroup": "startFromEarliest",
                "sessionMs": 60_000,
                "partitions": [{"topic": topic, "partition": 0}],
            }
        ],
        "partitions": [
            {
                "topic": topic,
                "partition": 0,
                "consumer": topic,
                "position": 2,
                "committed": 2,
                "logStart": 0,
                "highWatermark": 5,
                "lag": 3,
                "lost": 0,
                "state": "open",
                "oldestUnread": oldest,
            }
        ],
    }


def test_the_oldest_unread_record_is_of_the_partition_that_waits_longest(
    public: Connection, topic: str
) -> None:
    names = [f"{topic}{letter}" for letter in "ab"]
    for name in names:
        make(public, name, b"1\n")
    register(public, topic, *names, group=topic)
    said = group_of(public, topic)
    times = [partition["oldestUnread"] for partition in said["partitions"]]

    assert said["topics"] == names
    assert said["lag"] == 2
    assert said["oldestUnread"] == min(times) == times[0]
    take_all(public, topic)
    assert group_of(public, topic)["oldestUnread"] is None


def test_groups_are_listed_by_name(broker: RunningBroker) -> None:
    with Connection(broker.port) as public:
        assert document(public.exchange(get("/v1/groups"))) == {"groups": []}
        make(public, "t", b"1\n2\n3\n")
        register(public, "c", "t", group="active")
        register(public, "d", "t", group="Idle")
        leave(public, "d")
        assert public.exchange(publish("spark-1", {"t": {"0": 1}}, "spark")).status == 204
        listed = document(public.exchange(get("/v1/groups")))["groups"]
        described = [group_of(public, each["group"]) for each in listed]

    assert [(each["group"], each["state"], each["members"], each["lag"]) for each in listed] == [
        ("Idle", "idle", 0, 3),
        ("active", "active", 1, 3),
        ("spark-1", "spark", 0, 2),
    ]
    for each, whole in zip(listed, described, strict=True):
        assert {name: whole[name] for name in each} == each


def test_a_group_that_is_not_there(public: Connection) -> None:
    for asked in (
        get("/v1/groups/nobody"),
        reset("nobody", to="earliest"),
        request("/v1/groups/nobody", method="DELETE"),
    ):
        answer = public.exchange(asked)
        assert problem(answer) == (404, "group-not-found")
        assert document(answer)["group"] == "nobody"


def test_children_wait_for_their_parent_to_be_read(broker: RunningBroker) -> None:
    split(broker, "t")
    with Connection(broker.port) as public:
        for child in range(2):
            assert (
                public.exchange(request(messages("t", partitionKey=str(child)), b"9")).status == 200
            )
        register(public, "c", "t", group="g")

        def states() -> list[str]:
            return [partition["state"] for partition in group_of(public, "g")["partitions"]]

        first = public.exchange(poll("c", maxRecords=3))
        assert [each.partition for each in got(first)] == [0] * 3
        assert states() == ["sealed", "waiting", "waiting"]
        second = public.exchange(poll("c"))
        assert [each.offset for each in got(second)] == [*range(3, SPLIT_END)]
        assert states() == ["sealed", "waiting", "waiting"]
        third = public.exchange(poll("c"))
        assert [each.value for each in got(third)] == [9, 9]
        assert {each.partition for each in got(third)} <= {1, 2}
        assert states() == ["done", "open", "open"]


def make_damaged(broker: RunningBroker, *, is_found_at_start: bool) -> None:
    """A topic of two partitions with a group; the first partition is damaged where the group is.

    The memory of recent batches has gone with the restart.
    """
    with Connection(broker.port) as public:
        topic_id = document(public.exchange(new_topic("t", partitions=2)))["id"]
        for number in range(10):
            body = json.dumps("x" * 100_000 + str(number)).encode()
            sent = request(messages("t", partitionKey=str(number)), body)
            assert public.exchange(sent).status == 200
        register(public, "c", "t", group="g")
    broker.stop()
    (segment,) = (broker.data_dir / "data" / topic_id / "0").glob("*.log")
    stored = bytearray(segment.read_bytes())
    if is_found_at_start:
        segment.write_bytes(b"")
    broker.restart()
    if not is_found_at_start:
        stored[140] ^= 1
        segment.write_bytes(stored)


each_damage = pytest.mark.parametrize("is_found_at_start", [True, False], ids=["start", "read"])


@each_damage
def test_a_damaged_partition_is_left_out(broker: RunningBroker, is_found_at_start: bool) -> None:
    """When nothing else has come the damage is reported."""
    make_damaged(broker, is_found_at_start=is_found_at_start)
    with Connection(broker.port) as public:
        answer = public.exchange(poll("c", maxBytes=16 * 1024 * 1024))
        assert {each.partition for each in got(answer)} == {1}
        again = public.exchange(poll("c", delivery=0))
        assert got(again) == got(answer)
        for wait_ms in (0, 20):
            refused = public.exchange(poll("c", waitMs=wait_ms))
            assert problem(refused) == (503, "corrupt-partition")
            assert document(refused)["partition"] == 0
        states = {
            partition["partition"]: partition for partition in group_of(public, "g")["partitions"]
        }
        assert (states[0]["oldestUnread"], states[1]["lag"]) == (None, 0)
        # A start that finds the file empty knows that the end is lost; else it takes events.
        assert (states[0]["state"] == "damaged") == is_found_at_start


@each_damage
def test_a_poll_waits_for_the_others_of_a_damaged_partition(
    broker: RunningBroker, is_found_at_start: bool
) -> None:
    make_damaged(broker, is_found_at_start=is_found_at_start)
    with Connection(broker.port) as public, Connection(broker.port) as waiting:
        take = poll("c", maxBytes=16 * 1024 * 1024)
        keys = {each.partition: each.key for each in got(public.exchange(take))}
        waiting.send(poll("c", waitMs=60_000))
        wait_for_metric(broker, "tailrace_waiting_reads", 1)
        sent = request(messages("t", partitionKey=keys[1]), b"1")
        assert public.exchange(sent).status == 200
        assert [each.value for each in got(waiting.receive())] == [1]


def test_what_was_delivered_and_is_damaged_now_holds_nobody_up(broker: RunningBroker) -> None:
    """It is no part of a delivery any more, and other partitions are served."""
    with Connection(broker.port) as public:
        topic_id = document(public.exchange(new_topic("t", partitions=2)))["id"]
        for number in range(10):
            sent = request(messages("t", partitionKey=str(number)), b'"%d"' % number)
            assert public.exchange(sent).status == 200
        register(public, "c", "t", group="g")
    broker.restart()
    with Connection(broker.port) as public:
        first = got(public.exchange(poll("c", maxBytes=1)))
        (partition,) = {each.partition for each in first}
        (segment,) = (broker.data_dir / "data" / topic_id / str(partition)).glob("*.log")
        stored = bytearray(segment.read_bytes())
        stored[140] ^= 1
        segment.write_bytes(stored)
        other = got(public.exchange(poll("c", delivery=0)))
        assert {each.partition for each in other} == {1 - partition}


# --- to move --------------------------------------------------------------------------------------


@pytest.fixture
def idle(public: Connection, topic: str) -> str:
    """A group that has read half of its topic, of ten records in five batches; and that topic."""
    make(public, topic, *[b"%d\n%d\n" % (number, number + 1) for number in range(0, 10, 2)])
    register(public, topic, topic, group=topic)
    public.exchange(poll(topic, maxRecords=5))
    leave(public, topic)
    return topic


@pytest.mark.parametrize(
    ("body", "to"),
    [
        ({"to": "earliest"}, 0),
        ({"to": "latest"}, 10),
        ({"timestamp": TIME_US + 2_000_000}, 4),
        ({"timestamp": TIME_US + 9_000_000}, 10),
        ({"offsets": {"TOPIC": {"0": 7}}}, 7),
        ({"offsets": {"TOPIC": {"0": 10}}}, 10),
        ({"offsets": {}}, None),
        ({"to": "earliest", "topics": ["TOPIC"]}, 0),
        ({"to": "earliest", "topics": []}, None),
    ],
)
def test_an_idle_group_can_be_moved(
    public: Connection, idle: str, body: dict[str, Any], to: int | None
) -> None:
    given = json.loads(json.dumps(body).replace("TOPIC", idle))
    expected = {
        "group": idle,
        "isIdle": True,
        "partitions": [] if to is None else [{"topic": idle, "partition": 0, "from": 5, "to": to}],
        "movedBack": 0 if to is None else max(0, 5 - to),
        "movedForward": 0 if to is None else max(0, to - 5),
    }
    dry = public.exchange(reset(idle, **given, dryRun=True))
    assert document(dry) == {**expected, "dryRun": True}
    assert group_of(public, idle)["partitions"][0]["position"] == 5

    moved = public.exchange(reset(idle, **given))
    assert document(moved) == {**expected, "dryRun": False}
    register(public, idle, idle, group=idle)
    start = 5 if to is None else to
    assert [each.value for each in take_all(public, idle)] == [*range(start, 10)]


def test_a_group_with_consumers_is_not_moved_and_not_forgotten(
    public: Connection, idle: str
) -> None:
    register(public, idle, idle, group=idle)
    dry = document(public.exchange(reset(idle, to="earliest", dryRun=True)))
    assert (dry["isIdle"], dry["movedBack"]) == (False, 5)
    for asked in (
        reset(idle, to="earliest"),
        publish(idle, {idle: {"0": 1}}),
        request(f"/v1/groups/{idle}", method="DELETE"),
    ):
        refused = public.exchange(asked)
        assert problem(refused) == (409, "group-not-idle")
        assert (document(refused)["group"], document(refused)["members"]) == (idle, 1)
    assert group_of(public, idle)["partitions"][0]["position"] == 5


def refusal_of(answer: Any) -> tuple[int, str, dict[str, Any]]:
    """Status and type, and what a refusal says beyond what all do."""
    common = {"type", "title", "status", "retriable", "writeAttempted"}
    said = {name: each for name, each in document(answer).items() if name not in common}
    return (*problem(answer), said)


@pytest.mark.parametrize(
    ("body", "slug", "detail"),
    [
        ({}, "invalid-body", "one of to, timestamp and offsets; none is given"),
        ({"to": "latest", "timestamp": 1}, "invalid-body", "to, timestamp is given"),
        ({"to": "newest"}, "invalid-parameter", "to is 'newest'; give earliest or latest"),
        (
            {"offsets": {"TOPIC": {"x": 1}}},
            "invalid-parameter",
            "key inside offsets is not a whole number",
        ),
        ({"offsets": {"TOPIC": {"0": -1}}}, "invalid-parameter", "is too small; give 0 or more"),
        ({"offsets": {}, "topics": ["TOPIC"]}, "invalid-parameter", "topics beside offsets"),
        (
            {"to": "latest", "force": True},
            "invalid-parameter",
            "force is unknown; the fields are to",
        ),
    ],
)
def test_a_reset_that_says_no_place_is_refused(
    public: Connection, idle: str, body: dict[str, Any], slug: str, detail: str
) -> None:
    given = json.loads(json.dumps(body).replace("TOPIC", idle))
    answer = public.exchange(reset(idle, **given))

    assert problem(answer) == (400, slug)
    assert detail in document(answer)["detail"]


def test_an_offset_outside_of_the_log_is_refused_with_both_ends(
    public: Connection, idle: str
) -> None:
    expected = {
        "detail": f'offset 11 of partition 0 of topic "{idle}" is not in [0, 10]',
        "parameter": "offsets",
        "topic": idle,
        "partition": 0,
        "logStart": 0,
        "highWatermark": 10,
    }
    for asked in (reset(idle, offsets={idle: {"0": 11}}), publish(idle, {idle: {"0": 11}})):
        assert refusal_of(public.exchange(asked)) == (400, "invalid-parameter", expected)


@pytest.mark.parametrize("is_dry", [True, False])
def test_what_is_not_there_is_named(public: Connection, idle: str, is_dry: bool) -> None:
    for answer in (
        public.exchange(reset(idle, offsets={"nowhere": {"0": 1}}, dryRun=is_dry)),
        public.exchange(reset(idle, to="earliest", topics=["nowhere"], dryRun=is_dry)),
        public.exchange(publish(idle, {"nowhere": {"0": 1}})),
    ):
        assert problem(answer) == (404, "topic-not-found")
        assert document(answer)["topic"] == "nowhere"
    for answer in (
        public.exchange(reset(idle, offsets={idle: {"1": 1}}, dryRun=is_dry)),
        public.exchange(publish(idle, {idle: {"1": 1}})),
    ):
        assert problem(answer) == (404, "partition-not-found")
        assert (document(answer)["topic"], document(answer)["partition"]) == (idle, 1)


def test_a_reader_that_keeps_its_offsets_itself_shows_them(
    broker: RunningBroker,
) -> None:
    with Connection(broker.port) as public:
        make(public, "t", b"1\n2\n3\n")
        for offset in (2, 1, 3):
            assert public.exchange(publish("query", {"t": {"0": offset}})).status == 204
            said = group_of(public, "query")
            assert (said["state"], said["lag"]) == ("spark", 3 - offset)
            assert said["partitions"][0]["committed"] == offset
    broker.restart()
    with Connection(broker.port) as public:
        assert group_of(public, "query")["state"] == "spark"
        assert group_of(public, "query")["partitions"][0]["position"] == 3


@pytest.mark.parametrize("prefix", ["", "spark:"])
def test_a_group_of_spark_takes_no_consumer_and_no_reset(
    public: Connection, topic: str, prefix: str
) -> None:
    make(public, topic, b"1\n2\n3\n")
    group = f"{prefix}{topic}"
    assert public.exchange(publish(group, {topic: {"0": 2}})).status == 204

    for asked in (
        ask("register", topic, topic=topic, group=group),
        reset(group, to="earliest"),
        reset(group, to="earliest", dryRun=True),
    ):
        answer = public.exchange(asked)
        assert problem(answer) == (409, "group-kind")
        assert (document(answer)["group"], document(answer)["source"]) == (group, "spark")
        assert "its offsets are in Spark's checkpoint" in document(answer)["detail"]

    assert group_of(public, group)["state"] == "spark"
    assert group_of(public, group)["partitions"][0]["position"] == 2
    assert public.exchange(publish(group, {topic: {"0": 3}})).status == 204
    assert public.exchange(request(f"/v1/groups/{group}", method="DELETE")).status == 204


def test_a_consumer_that_is_refused_for_its_group_makes_no_topic(public: Connection) -> None:
    refused = public.exchange(ask("register", "c", topic="nowhere", group="spark:archive"))

    assert problem(refused) == (409, "group-kind")
    assert public.exchange(get("/v1/topics/nowhere")).status == 404


def test_spark_does_not_publish_over_the_offsets_of_consumers(
    public: Connection, idle: str
) -> None:
    answer = public.exchange(publish(idle, {idle: {"0": 1}}))

    assert problem(answer) == (409, "group-kind")
    assert "choose another groupId" in document(answer)["detail"]
    assert group_of(public, idle)["partitions"][0]["position"] == 5


@pytest.mark.parametrize(
    ("group", "source", "parameter"),
    [
        ("a%20b", "spark", "group"),
        ("g", "", "source"),
        ("g", "active", "source"),
        ("g", "idle", "source"),
    ],
)
def test_a_reader_s_name_is_checked(
    public: Connection, group: str, source: str, parameter: str
) -> None:
    answer = public.exchange(publish(group, {}, source))

    assert problem(answer) == (400, "invalid-parameter")
    assert document(answer)["parameter"] == parameter


def test_a_group_that_was_forgotten_starts_again(public: Connection, idle: str) -> None:
    assert public.exchange(request(f"/v1/groups/{idle}", method="DELETE")).status == 204
    assert problem(public.exchange(get(f"/v1/groups/{idle}"))) == (404, "group-not-found")
    register(public, idle, idle, group=idle)

    assert [each.value for each in take_all(public, idle)] == [*range(10)]
