"""Topics at the public listener: create, list, describe, alter, delete; ends of partitions."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tailrace.protocol.records_binary import encode_records
from tailrace.sync import Client
from tailrace.wire import (
    BATCH_CONTENT_TYPE,
    HEADER,
    NDJSON_CONTENT_TYPE,
    RECORDS_CONTENT_TYPE,
    BatchHeader,
    Codec,
)
from tailrace_broker.core.ring.arithmetic import TOKEN_END, TOKEN_MIN
from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.http.http11 import (
    PRODUCE,
    PUBLIC,
    READ,
    Connection,
    document,
    get,
    messages,
    new_topic,
    problem,
    produce_listeners,
    read_listeners,
    records,
    request,
)
from tests.support.storage.batches import read_by_broker, read_by_client

pytestmark = pytest.mark.integration


# Of a new topic.
DEFAULTS: dict[str, Any] = {
    "jsonCheck": True,
    "compression": "lz4",
    "durability": "fsync",
    "flushMs": 1000,
    "flushBytes": 16 * 1024 * 1024,
    "lingerMs": 0,
    "lingerBytes": 0,
    "retentionMs": 604_800_000,
    "retentionBytes": None,
    "minInSyncReplicas": 2,
}
OTHERS: dict[str, Any] = {
    "jsonCheck": False,
    "compression": "zstd",
    "durability": "written",
    "flushMs": 50,
    "flushBytes": 65_536,
    "lingerMs": 1,
    "lingerBytes": 4096,
    "retentionMs": None,
    "retentionBytes": 1024**3,
    "minInSyncReplicas": 3,
}


def change(topic: str, body: object, method: str = "PATCH") -> bytes:
    """A request to the path of a topic."""
    return request(f"/v1/topics/{topic}", json.dumps(body).encode(), method=method)


def delete(topic: str) -> bytes:
    return request(f"/v1/topics/{topic}", method="DELETE")


# --- create ---------------------------------------------------------------------------------------


def test_a_topic_is_created_once_and_found_again(public: Connection, topic: str) -> None:
    created = public.exchange(new_topic(topic, partitions=3, jsonCheck=False))
    found = public.exchange(new_topic(topic, partitions=3, jsonCheck=False))

    said = document(created)
    assert created.status == 201
    assert said == {
        "name": topic,
        "id": str(UUID(said["id"])),
        "partitionsPerRange": 3,
        **DEFAULTS,
        "jsonCheck": False,
        "partitions": 3,
        "sealedPartitions": 0,
        "copies": 1,
        "rangesToSlice": 0,
    }
    assert (found.status, document(found)) == (200, said)
    assert said in document(public.exchange(get("/v1/topics")))["topics"]


def test_topics_are_listed_by_name(public: Connection, topic: str) -> None:
    for name in ("b", "A", "a.1", "a-0"):
        assert public.exchange(new_topic(topic + name)).status == 201
    names = [each["name"] for each in document(public.exchange(get("/v1/topics")))["topics"]]

    assert names == sorted(names)
    assert len(names) >= 4


def test_a_topic_that_exists_with_other_settings_is_kept(public: Connection, topic: str) -> None:
    assert public.exchange(new_topic(topic)).status == 201
    for other in (new_topic(topic, partitions=2), new_topic(topic, jsonCheck=False)):
        assert problem(public.exchange(other)) == (409, "topic-exists")
    assert document(public.exchange(get(f"/v1/topics/{topic}")))["partitions"] == 1


def test_a_topic_has_the_settings_that_it_was_created_with(
    broker: RunningBroker, topic: str
) -> None:
    with Connection(broker.port) as public:
        created = document(public.exchange(new_topic(topic, **OTHERS)))
        answer = public.exchange(request(messages(topic), b"no JSON"))

        assert created | OTHERS == created
        assert (answer.status, document(answer)["durability"]) == (200, "written")
    broker.restart()
    with Connection(broker.port) as public:
        described = document(public.exchange(get(f"/v1/topics/{topic}")))
        assert described | OTHERS == described


def test_a_topic_is_found_by_the_settings_that_are_given(public: Connection, topic: str) -> None:
    created = document(public.exchange(new_topic(topic, retentionMs=None, jsonCheck=False)))

    same: list[dict[str, Any]]
    same = [{}, {"jsonCheck": False}, {"retentionMs": None}, {"compression": "lz4"}]
    for given in same:
        found = public.exchange(new_topic(topic, **given))
        assert (found.status, document(found)) == (200, created), given
    other = public.exchange(new_topic(topic, retentionMs=604_800_000))
    assert problem(other) == (409, "topic-exists")


@produce_listeners
def test_a_first_produce_creates_the_topic_with_the_defaults(
    public: Connection, connection: Connection, topic: str
) -> None:
    assert connection.exchange(request(messages(topic), b"1")).status == 200
    said = document(public.exchange(get(f"/v1/topics/{topic}")))

    assert said | DEFAULTS == said
    assert said["partitions"] == 4


def test_first_produces_at_the_same_time_make_one_topic(
    shared_broker: RunningBroker, topic: str
) -> None:
    with Connection(shared_broker.port) as slow, Connection(shared_broker.port + 1) as fast:
        produce = request(messages(topic, partitionKey="k"), b"1")
        create = request("/v1/topics", json.dumps({"name": topic}).encode())
        fast.send(produce * 20)
        slow.send(create + produce + create + produce)
        assert [fast.receive().status for _ in range(20)] == [200] * 20
        assert {slow.receive().status for _ in range(4)} <= {200, 201}
    with Client(shared_broker.url) as client:
        assert sum(len(row.readable()) for row in client.offsets([topic])) == 22


BAD_NAMES = [".", "..", "__a", "a b", "a/b", "a\\b", "a\0b", "a\nb", "ä", "a?", "a%", "", "a" * 250]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_is_no_name_is_refused_everywhere(
    shared_broker: RunningBroker, name: str
) -> None:
    """Path characters, NUL and `..` among them: it is part of paths."""
    encoded = "".join(f"%{byte:02X}" for byte in name.encode())
    asked = {
        PUBLIC: [
            new_topic(name),
            get(f"/v1/topics/{encoded}"),
            delete(encoded),
            change(encoded, {"jsonCheck": False}),
        ],
        PRODUCE: [request(messages(encoded), b"1")],
        READ: [
            get(records(encoded)),
            get(f"/v1/topic/{encoded}/records"),
            get(f"/v1/offsets?topic={encoded}"),
        ],
    }
    if name in {".", ".."}:
        asked[PRODUCE].append(request(messages(name), b"1"))
    for listener, requests in asked.items():
        for own_listener in {PUBLIC, listener}:
            with Connection(shared_broker.port + own_listener) as connection:
                for sent in requests:
                    answer = connection.exchange(sent)
                    assert problem(answer) == (400, "invalid-topic-name"), sent
                    assert document(answer)["topic"] == name
    files = {path.name for path in (shared_broker.data_dir / "data").rglob("*")}
    assert not files & {name, "messages", "records"}


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "a" * 249, "...", "_a", "-"])
def test_a_name_may_have_these_characters(public: Connection, name: str) -> None:
    assert public.exchange(new_topic(name)).status == 201
    assert public.exchange(request(messages(name), b"1")).status == 200
    assert public.exchange(delete(name)).status == 204


REFUSED = {
    b"": ("invalid-body", None),
    b"{": ("invalid-body", None),
    b"[]": ("invalid-body", None),
    b'"t"': ("invalid-body", None),
    b'{"name":"\xff"}': ("invalid-body", None),
    b"[" * 100_000: ("invalid-body", None),
    b'{"name":"\\ud800"}': ("invalid-body", None),
    b'{"name":"\\u0000"}': ("invalid-topic-name", None),
    b"{}": ("invalid-parameter", "name"),
    b'{"name":null}': ("invalid-parameter", "name"),
    b'{"name":7}': ("invalid-parameter", "name"),
    b'{"name":"n","owner":1}': ("invalid-parameter", "owner"),
    b'{"name":"n","retentionMs":-1}': ("invalid-parameter", "retentionMs"),
    b'{"name":"n","retentionMs":"7d"}': ("invalid-parameter", "retentionMs"),
    b'{"name":"n","retentionBytes":1}': ("invalid-parameter", "retentionBytes"),
    b'{"name":"n","minInSyncReplicas":1}': ("invalid-parameter", "minInSyncReplicas"),
    b'{"name":"n","minInSyncReplicas":4}': ("invalid-parameter", "minInSyncReplicas"),
    b'{"name":"n","flushMs":null}': ("invalid-parameter", "flushMs"),
    b'{"name":"n","lingerMs":60001}': ("invalid-parameter", "lingerMs"),
    b'{"name":"n","compression":"gzip"}': ("invalid-parameter", "compression"),
    b'{"name":"n","compression":null}': ("invalid-parameter", "compression"),
    b'{"name":"n","durability":"FSYNC"}': ("invalid-parameter", "durability"),
    b'{"name":"n","partitionsPerRange":"4"}': ("invalid-parameter", "partitionsPerRange"),
    b'{"name":"n","partitionsPerRange":1.5}': ("invalid-parameter", "partitionsPerRange"),
    b'{"name":"n","partitionsPerRange":0}': ("invalid-parameter", "partitionsPerRange"),
    b'{"name":"n","partitionsPerRange":257}': ("invalid-parameter", "partitionsPerRange"),
    b'{"name":"n","partitionsPerRange":99999999999999999999}': (
        "invalid-parameter",
        "partitionsPerRange",
    ),
    b'{"name":"n","jsonCheck":1}': ("invalid-parameter", "jsonCheck"),
}


@pytest.mark.parametrize("body", REFUSED, ids=lambda body: body[:50].decode(errors="replace"))
def test_what_is_wrong_in_a_new_topic_is_named(public: Connection, body: bytes) -> None:
    slug, field = REFUSED[body]
    answer = public.exchange(request("/v1/topics", body))

    assert problem(answer) == (400, slug)
    assert document(answer).get("parameter") == field
    assert public.exchange(get("/v1/topics/n")).status == 404


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b'{"name":"\\ud800"}', "the body is not JSON: \\ud800 is half of a surrogate pair"),
        (
            b'{"name":"n","partitionsPerRange":"4"}',
            "partitionsPerRange is text; give a whole number",
        ),
        (b'{"name":"n","owner":1}', "owner is unknown; the fields are name, partitionsPerRange"),
    ],
)
def test_a_new_topic_is_refused_in_words_of_json(
    public: Connection, body: bytes, detail: str
) -> None:
    assert document(public.exchange(request("/v1/topics", body)))["detail"].startswith(detail)


@pytest.mark.parametrize("content_type", ["text/plain", NDJSON_CONTENT_TYPE, "application/jsonx"])
def test_a_topic_comes_as_json(public: Connection, topic: str, content_type: str) -> None:
    body = json.dumps({"name": topic}).encode()
    for sent in (
        request("/v1/topics", body, content_type=content_type),
        request(f"/v1/topics/{topic}", b"{}", method="PATCH", content_type=content_type),
    ):
        assert problem(public.exchange(sent)) == (415, "unsupported-media-type")
    named = request("/v1/topics", body, content_type="Application/JSON; charset=utf-8")
    assert public.exchange(named).status == 201


# --- describe, alter ------------------------------------------------------------------------------


def test_a_topic_is_described_with_its_partitions(public: Connection, topic: str) -> None:
    created = document(public.exchange(new_topic(topic, partitions=4)))
    assert public.exchange(request(messages(topic), b"1")).status == 200
    described = document(public.exchange(get(f"/v1/topics/{topic}")))
    details = described.pop("partitionDetails")

    assert described == created
    starts = [int(detail["tokenStart"]) for detail in details]
    ends = [int(detail["tokenEnd"]) for detail in details]
    assert [starts[0], *ends] == [*starts, TOKEN_END]
    assert starts[0] == TOKEN_MIN
    for number, detail in enumerate(details):
        assert detail == {
            "partition": number,
            "range": 0,
            "slice": number,
            "slices": 4,
            "tokenStart": str(starts[number]),
            "tokenEnd": str(ends[number]),
            "leader": 0,
            "isr": [0],
            "epoch": 1,
            "firstOffset": 0,
            "logStart": 0,
            "highWatermark": 1 if number == 0 else 0,
            "logEnd": 1 if number == 0 else 0,
            "sizeBytes": detail["sizeBytes"],
            "quarantined": [],
            "parents": [],
            "children": [],
            "state": "open",
        }
    assert [detail["sizeBytes"] > 0 for detail in details] == [True, False, False, False]


def test_a_topic_takes_its_new_settings_at_once_and_keeps_them(
    broker: RunningBroker, topic: str
) -> None:
    with Connection(broker.port) as public:
        created = document(public.exchange(new_topic(topic)))
        assert public.exchange(request(messages(topic), b"no JSON")).status == 400
        altered = public.exchange(change(topic, {"jsonCheck": False}))
        assert (altered.status, document(altered)) == (200, created | {"jsonCheck": False})
        assert public.exchange(request(messages(topic), b"no JSON")).status == 200
        for same in ({}, {"jsonCheck": False}):
            assert document(public.exchange(change(topic, same))) == document(altered)
    broker.restart()
    with Connection(broker.port) as public:
        assert document(public.exchange(get(f"/v1/topics/{topic}")))["jsonCheck"] is False


def test_all_settings_but_the_partitions_can_be_altered_and_back(
    public: Connection, topic: str
) -> None:
    created = document(public.exchange(new_topic(topic)))

    for settings in (OTHERS, DEFAULTS):
        altered = public.exchange(change(topic, settings))
        assert (altered.status, document(altered)) == (200, created | settings)
        stored = document(public.exchange(request(messages(topic), b"1")))
        assert stored["durability"] == settings["durability"]


def test_a_request_for_several_partitions_names_the_durability(
    public: Connection, topic: str
) -> None:
    assert public.exchange(new_topic(topic, partitions=4, durability="written")).status == 201
    body = encode_records([b"a", b"b", b"c", b"d"], [b"1"] * 4)
    answer = public.exchange(request(messages(topic), body, content_type=RECORDS_CONTENT_TYPE))

    assert {each["durability"] for each in document(answer)} == {"written"}


def test_batches_are_compressed_as_the_topic_says_from_its_change_on(
    public: Connection, topic: str
) -> None:
    lines = b'{"origin":"SFO","destination":"JFK"}\n' * 100
    sent = request(messages(topic), lines, content_type=NDJSON_CONTENT_TYPE)
    assert public.exchange(new_topic(topic)).status == 201
    for compression in ("lz4", "zstd", "none"):
        assert public.exchange(change(topic, {"compression": compression})).status == 200
        assert public.exchange(sent).status == 200
    batches = [
        public.exchange(
            get(records(topic, offset=offset, maxBytes=1), accept=BATCH_CONTENT_TYPE)
        ).body
        for offset in (0, 100, 200)
    ]
    rows = [row for batch in batches for row in read_by_broker(batch)]
    as_json = public.exchange(get(records(topic, maxRecords=300))).body.splitlines()

    headers = [BatchHeader._make(HEADER.unpack(batch[: HEADER.size])) for batch in batches]
    assert [header.codec for header in headers] == [Codec.LZ4, Codec.ZSTD, Codec.NONE]
    assert [row.offset for row in rows] == [*range(300)]
    assert {row.value for row in rows} == set(lines.splitlines())
    assert rows == [
        row
        for header, batch in zip(headers, batches, strict=True)
        for row in read_by_client(batch, header.base_offset)
    ]
    assert [json.loads(line)["offset"] for line in as_json] == [*range(300)]


def test_what_cannot_be_changed_is_named(public: Connection, topic: str) -> None:
    assert public.exchange(new_topic(topic)).status == 201
    before = document(public.exchange(get(f"/v1/topics/{topic}")))
    for body, field in [
        ({"partitionsPerRange": 257}, "partitionsPerRange"),
        ({"partitionsPerRange": 0, "jsonCheck": False}, "partitionsPerRange"),
        ({"jsonCheck": "no"}, "jsonCheck"),
        ({"jsonCheck": None}, "jsonCheck"),
        ({"retentionMs": 1}, "retentionMs"),
        ({"retentionMs": -1}, "retentionMs"),
        ({"flushBytes": 4095}, "flushBytes"),
        ({"lingerBytes": None}, "lingerBytes"),
        ({"durability": "none"}, "durability"),
        ({"owner": "me"}, "owner"),
    ]:
        answer = public.exchange(change(topic, body))
        assert problem(answer) == (400, "invalid-parameter"), body
        assert document(answer)["parameter"] == field
    name = public.exchange(change(topic, {"name": "other"}))
    assert problem(name) == (400, "invalid-parameter")
    for body in (b"", b"[]", b"{"):
        sent = request(f"/v1/topics/{topic}", body, method="PATCH")
        assert problem(public.exchange(sent)) == (400, "invalid-body")
    assert document(public.exchange(get(f"/v1/topics/{topic}"))) == before


def test_a_topic_that_is_not_there_is_not_found(public: Connection, topic: str) -> None:
    for sent in (
        get(f"/v1/topics/{topic}"),
        change(topic, {"jsonCheck": False}),
        delete(topic),
        get(records(topic)),
        get(f"/v1/topic/{topic}/records"),
        get(f"/v1/offsets?topic={topic}"),
    ):
        answer = public.exchange(sent)
        assert problem(answer) == (404, "topic-not-found")
        assert document(answer)["topic"] == topic


# --- delete ---------------------------------------------------------------------------------------


def test_a_deleted_topic_is_gone_and_its_name_is_free(broker: RunningBroker, topic: str) -> None:
    with Connection(broker.port) as public:
        first = document(public.exchange(new_topic(topic)))
        assert public.exchange(request(messages(topic), b"1")).status == 200
        answer = public.exchange(delete(topic))

        assert (answer.status, answer.body) == (204, b"")
        assert "content-length" not in answer.headers
        assert public.exchange(delete(topic)).status == 404
        assert public.exchange(get(records(topic))).status == 404
        assert document(public.exchange(get("/v1/topics"))) == {"topics": []}
        second = document(public.exchange(new_topic(topic)))
        assert second["id"] != first["id"]
        assert document(public.exchange(request(messages(topic), b"2")))["offset"] == 0
    broker.restart()
    with Connection(broker.port) as public:
        assert document(public.exchange(get("/v1/topics"))) == {"topics": [second]}


def test_produces_behind_a_delete_make_the_topic_again(broker: RunningBroker, topic: str) -> None:
    """Before it they go into the one that goes."""
    produce = request(messages(topic, partitionKey="k"), b"1")
    with Connection(broker.port) as public:
        public.send(produce * 3 + delete(topic) + produce * 2)
        answers = [public.receive() for _ in range(6)]

    assert [answer.status for answer in answers] == [200, 200, 200, 204, 200, 200]
    stored = answers[:3] + answers[4:]
    assert [document(answer)["offset"] for answer in stored] == [0, 1, 2, 0, 1]


def test_a_topic_that_is_not_to_be_created_stays_deleted(tmp_path: Path, topic: str) -> None:
    with (
        start_broker(tmp_path, auto_create_topics=False) as broker,
        Connection(broker.port) as public,
    ):
        assert public.exchange(new_topic(topic)).status == 201
        assert public.exchange(delete(topic)).status == 204
        answer = public.exchange(request(messages(topic), b"1"))

    assert problem(answer) == (404, "topic-not-found")


# --- offsets --------------------------------------------------------------------------------------


@read_listeners
def test_offsets_report_where_each_partition_starts_and_ends(
    public: Connection, connection: Connection, topic: str
) -> None:
    second = f"{topic}-2"
    assert public.exchange(new_topic(topic)).status == 201
    assert public.exchange(new_topic(second, partitions=2)).status == 201
    lines = request(messages(topic), b"1\n2\n3\n", content_type=NDJSON_CONTENT_TYPE)
    assert public.exchange(lines).status == 200
    said = document(connection.exchange(get(f"/v1/offsets?topic={second}&topic={topic}")))

    row = {
        "partition": 0,
        "range": 0,
        "epoch": 1,
        "leader": 0,
        "firstOffset": 0,
        "logStart": 0,
        "highWatermark": 3,
        "logEnd": 3,
        "state": "open",
        "parents": [],
        "children": [],
    }
    empty = row | {"highWatermark": 0, "logEnd": 0}
    assert said == {
        "topics": [
            {"topic": second, "partitions": [empty, empty | {"partition": 1}]},
            {"topic": topic, "partitions": [row]},
        ]
    }
    everything = document(connection.exchange(get("/v1/offsets")))["topics"]
    assert [each for each in everything if each["topic"] in {topic, second}] == said["topics"][::-1]
