"""Requests are built, and answers read, as docs/protocol.md says."""

import json
from dataclasses import replace
from typing import Any, cast

import pytest

from tailrace.errors import (
    PartitionDamagedError,
    ProblemError,
    TopicNotFoundError,
    UnexpectedAnswerError,
)
from tailrace.produced import Produced
from tailrace.protocol import requests
from tailrace.protocol.group_requests import poll_request
from tailrace.protocol.requests import Answer, Numbered, Request
from tailrace.values import Fetched, PartitionOffsets, QuarantinedBatch, TopicInfo, to_document
from tailrace.wire import (
    BATCH_CONTENT_TYPE,
    JSON_CONTENT_TYPE,
    NDJSON_CONTENT_TYPE,
    RECORDS_CONTENT_TYPE,
)
from tests.support.storage.batches import TIME_US

STORED = {"topic": "flights", "offset": 10, "count": 2, "durability": "fsync", "copies": 1}
FULL = {
    "type": "/v1/problems/disk-full",
    "title": "The disk is full",
    "status": 507,
    "retriable": True,
    "writeAttempted": False,
}
TOPIC: dict[str, object] = {
    "name": "orders",
    "id": "0a4c",
    "partitionsPerRange": 4,
    "jsonCheck": True,
    "durability": "written",
    "partitions": 4,
    "copies": 1,
    "compression": "zstd",
    "flushMs": 5,
    "flushBytes": 8192,
    "lingerMs": 6,
    "lingerBytes": 7,
    "retentionMs": 60_000,
    "retentionBytes": 2**40,
    "minInSyncReplicas": 3,
    "rangesToSlice": 0,
    "sealedPartitions": 0,
}
INFO = TopicInfo(
    "orders", "0a4c", 4, True, "written", 4, 1, "zstd", 5, 8192, 6, 7, 60_000, 2**40, 3
)
PARTITION: dict[str, object] = {
    "partition": 3,
    "range": 7,
    "slice": 3,
    "slices": 4,
    "tokenStart": "-92",
    "tokenEnd": "-46",
    "leader": 0,
    "isr": [0, 2],
    "epoch": 1,
    "firstOffset": 0,
    "logStart": None,
    "highWatermark": None,
    "logEnd": None,
    "sizeBytes": None,
    "parents": [],
    "children": [],
    "state": "damaged",
    "leaderUrl": "http://a:9250",
    "quarantined": [
        {"firstOffset": 3, "lastOffset": 9, "file": "0.log", "byte": 4096, "accepted": False}
    ],
}
DETAILS = {**TOPIC, "partitionDetails": [PARTITION]}
BROKER: dict[str, object] = {
    "ordinal": 0,
    "token": "-9223372036854775808",
    "leads": 4,
    "replicates": 12,
    "damaged": 0,
    "quarantined": 0,
    "lagMax": 0,
    "dataBytes": 1,
    "diskUsedBytes": 1,
    "diskBytes": 2,
    "directIo": True,
    "durableWriteMs": 0.25,
    "incarnation": "7f3a",
    "startedAt": "2026-11-21T10:09:23.114502Z",
    "upSeconds": 120,
    "alive": False,
}
RING = {
    "length": 3,
    "names": ["a", "b", "c"],
    "ports": [9250, 9250, 9260],
    "producerPort": 9251,
    "producerBinaryPort": 0,
    "consumerPort": 9252,
    "ring": {
        "name": "local",
        "clusterId": "0b",
        "version": "0.1.0",
        "ranges": 3,
        "underReplicated": 2,
        "copies": 1,
        "metadataLeader": 0,
        "metadataTerm": 2,
    },
    "now": 1_700_000_000_000_000,
    "brokers": [BROKER, {**BROKER, "ordinal": 1, "durableWriteMs": None}],
}


def answer(document: object, *, status: int = 200) -> Answer:
    return Answer(status, {}, json.dumps(document).encode())


@pytest.mark.parametrize(
    ("key", "query"),
    [
        (None, ""),
        (b"", "?partitionKey="),
        ("SFO", "?partitionKey=SFO"),
        ("a b&c=d/é", "?partitionKey=a%20b%26c%3Dd%2F%C3%A9"),
        (b"\x00\xff+", "?partitionKey=%00%FF%2B"),
    ],
)
def test_the_key_is_percent_encoded_and_an_empty_one_is_kept(
    key: bytes | str | None, query: str
) -> None:
    request = requests.produce_request("t", b"{}", content_type=JSON_CONTENT_TYPE, key=key)

    assert request == Request(
        "POST", f"/v1/topic/t/messages{query}", {"Content-Type": JSON_CONTENT_TYPE}, b"{}"
    )


@pytest.mark.parametrize("body", ["1", "日", {"a": 1}, None, 5])
def test_what_is_produced_is_bytes(body: Any) -> None:
    with pytest.raises(TypeError, match=f"produced is {type(body).__name__}; give bytes of JSON"):
        requests.produce_request("t", body, content_type=JSON_CONTENT_TYPE)


def test_a_key_is_bytes_or_text() -> None:
    with pytest.raises(TypeError, match="key is int; give bytes or str"):
        requests.produce_request("t", b"1", content_type=JSON_CONTENT_TYPE, key=cast("str", 7))


def test_an_unknown_argument_of_a_produce_is_named_with_those_that_there_are() -> None:
    unknown = cast("Numbered", {"timestamp": 7})
    with pytest.raises(TypeError, match="timestamp; it takes key, producer_id and sequence"):
        requests.produce_request("t", b"1", content_type=JSON_CONTENT_TYPE, **unknown)


def test_a_request_says_how_long_its_answer_may_wait() -> None:
    assert requests.lines_request("a?waitMs=9", 0, wait_ms=2_500).wait_ms == 2_500
    assert requests.lines_request("a?waitMs=9", 0, 7).wait_ms == 0
    assert poll_request("c", max_records=1, wait_ms=70).wait_ms == 70


def test_a_request_that_may_be_sent_again_is_numbered() -> None:
    headers = {"Tailrace-Producer-Id": "till-7", "Tailrace-Sequence": "0"}
    event = requests.produce_request(
        "t", b"1", content_type=JSON_CONTENT_TYPE, producer_id="till-7", sequence=0
    )
    records = requests.produce_records_request("t", b"", producer_id="till-7", sequence=0)

    assert event.headers == {"Content-Type": JSON_CONTENT_TYPE, **headers}
    assert records.headers == {"Content-Type": RECORDS_CONTENT_TYPE, **headers}


def test_a_duplicate_is_reported() -> None:
    stored = b'{"topic":"t","partition":3,"offset":17,"count":2,"durability":"fsync","copies":1'
    answers = [Answer(200, {}, stored + end) for end in (b"}", b',"duplicate":true}')]

    assert [requests.parse_produced(answer)[0].duplicate for answer in answers] == [False, True]


def test_no_topic_name_escapes_its_path_segment() -> None:
    produce = requests.produce_request("a/b?c#d", b"1", content_type=JSON_CONTENT_TYPE)
    read = requests.lines_request("a/b?c", 0, 5)

    assert produce.target == "/v1/topic/a%2Fb%3Fc%23d/messages"
    assert read.target == "/v1/topic/a%2Fb%3Fc/partitions/0/records?offset=5"


def test_reads_name_only_the_limits_that_are_given() -> None:
    assert requests.batches_request("t", 3, "earliest", max_bytes=100) == Request(
        "GET",
        "/v1/topic/t/partitions/3/records?offset=earliest&maxBytes=100",
        {"Accept": BATCH_CONTENT_TYPE},
    )
    assert requests.lines_request("t", 3, 17) == Request(
        "GET", "/v1/topic/t/partitions/3/records?offset=17", {"Accept": NDJSON_CONTENT_TYPE}
    )


def test_a_read_may_start_at_a_time_or_wait_for_what_comes() -> None:
    timed = requests.lines_request("t", 3, timestamp_us=TIME_US, max_records=5)
    waiting = requests.batches_request("t", 3, -2, wait_ms=500, isolation="uncommitted")
    bare = requests.lines_request("t", 3)

    path = "/v1/topic/t/partitions/3/records"
    assert timed.target == f"{path}?maxRecords=5&timestamp={TIME_US}"
    assert waiting.target == f"{path}?offset=-2&waitMs=500&isolation=uncommitted"
    assert bare.target == path


def test_the_last_records_of_a_topic_are_lines() -> None:
    assert requests.last_lines_request("a/b", 7) == Request(
        "GET", "/v1/topic/a%2Fb/records?last=7", {"Accept": NDJSON_CONTENT_TYPE}
    )
    assert requests.parse_last_lines(Answer(200, {}, b"1\n2\n")) == b"1\n2\n"


def test_offsets_of_several_topics_repeat_the_parameter() -> None:
    timed = requests.offsets_request(["a"], TIME_US)
    assert timed.target == f"/v1/offsets?topic=a&timestamp={TIME_US}"


@pytest.mark.parametrize(
    ("timestamp_us", "written"),
    [
        (978_307_200_000_000, 978_307_200_000_000),
        (978_307_199_999_999, "2000-12-31T23:59:59.999999+00:00"),
        (0, "1970-01-01T00:00:00+00:00"),
        (1_764_000_000_000, 1_764_000_000_000),  # milliseconds: the broker says so
        (1_764_000_000, 1_764_000_000),
    ],
)
def test_a_time_before_2001_is_written_as_text_unless_it_is_of_another_unit(
    timestamp_us: int, written: int | str
) -> None:
    assert requests.time_on_wire(timestamp_us) == written
    assert requests.offsets_request(["a", "b&c"]).target == "/v1/offsets?topic=a&topic=b%26c"
    assert requests.offsets_request().target == "/v1/offsets"


def test_a_new_topic_names_only_the_settings_that_are_given() -> None:
    bare = requests.create_topic_request("orders")
    full = requests.create_topic_request(
        "orders", partitions_per_range=8, json_check=False, retention_ms=None, linger_bytes=0
    )

    assert json.loads(bare.body) == {"name": "orders"}
    assert json.loads(full.body) == {
        "name": "orders",
        "partitionsPerRange": 8,
        "jsonCheck": False,
        "retentionMs": None,
        "lingerBytes": 0,
    }


def test_a_topic_is_altered_by_what_is_given_and_deleted_by_its_name() -> None:
    altered = requests.alter_topic_request("a/b", json_check=False)

    assert altered == Request(
        "PATCH",
        "/v1/topics/a%2Fb",
        {"Content-Type": JSON_CONTENT_TYPE},
        b'{"jsonCheck": false}',
    )
    assert requests.alter_topic_request("t").body == b"{}"
    assert requests.delete_topic_request("a/b") == Request("DELETE", "/v1/topics/a%2Fb")
    with pytest.raises(TopicNotFoundError):
        requests.parse_deleted(answer({"type": "/v1/problems/topic-not-found"}, status=404))


def test_a_topic_of_a_broker_that_reports_fewer_settings_keeps_its_records() -> None:
    reported = (
        "name",
        "id",
        "partitionsPerRange",
        "jsonCheck",
        "durability",
        "partitions",
        "copies",
    )
    info = requests.parse_topic(answer({name: TOPIC[name] for name in reported}))

    assert info == TopicInfo("orders", "0a4c", 4, True, "written", 4, 1)
    assert (info.retention_ms, info.retention_bytes) == (None, None)


def test_topics_are_read() -> None:
    assert requests.parse_topics(answer({"topics": [TOPIC]})) == [INFO]
    assert requests.parse_topic(answer(TOPIC, status=201)) == INFO


def test_a_topic_is_read_with_its_partitions() -> None:
    details = requests.parse_topic_details(answer(DETAILS))

    [partition] = details.partition_details
    assert requests.topic_request("a/b").target == "/v1/topics/a%2Fb"
    assert details.topic == INFO
    assert (partition.range_id, partition.token_end, partition.isr) == (7, "-46", (0, 2))
    assert (partition.log_start, partition.size_bytes) == (None, None)
    assert partition.quarantined == (QuarantinedBatch(3, 9, "0.log", 4096, accepted=False),)


def test_the_ring_is_read_with_its_brokers_and_written_as_it_was() -> None:
    status = requests.parse_brokers(answer(RING))

    assert status.ring.under_replicated == 2
    assert status.now_us == 1_700_000_000_000_000
    assert [broker.durable_write_ms for broker in status.brokers] == [0.25, None]
    assert to_document(status) == RING


def test_a_value_is_named_in_json_as_the_broker_names_it() -> None:
    assert to_document(INFO) == TOPIC
    assert to_document(requests.parse_topic_details(answer(DETAILS)).partition_details[0]) == (
        PARTITION
    )


def test_offsets_are_read_one_element_a_partition() -> None:
    partition = {
        "partition": 2,
        "range": 0,
        "epoch": 1,
        "firstOffset": 0,
        "logStart": 5,
        "highWatermark": 16690,
        "logEnd": 16691,
        "state": "open",
        "parents": [],
    }
    document = {"topics": [{"topic": "flights", "partitions": [partition]}]}

    [offsets] = requests.parse_offsets(answer(document))

    assert offsets == PartitionOffsets("flights", 2, 0, 1, 0, 5, 16690, 16691, "open", ())
    assert offsets.readable() == range(5, 16690)


def test_a_sealed_partition_is_readable_and_names_its_children() -> None:
    partition = {
        "partition": 2,
        "range": 0,
        "epoch": 1,
        "firstOffset": 0,
        "logStart": 5,
        "highWatermark": 9,
        "logEnd": 9,
        "state": "sealed",
        "parents": [1],
        "children": [5, 6],
        "timestampOffset": 7,
    }
    document = {"topics": [{"topic": "flights", "partitions": [partition]}]}

    [offsets] = requests.parse_offsets(answer(document))

    assert offsets.readable() == range(5, 9)
    assert (offsets.parents, offsets.children) == ((1,), (5, 6))
    assert offsets.timestamp_offset == 7


def test_a_damaged_partition_has_no_ends_and_says_so_when_they_are_needed() -> None:
    partition: dict[str, object] = {
        "partition": 2,
        "range": 0,
        "epoch": 1,
        "firstOffset": 0,
        "logStart": None,
        "highWatermark": None,
        "logEnd": None,
        "state": "damaged",
        "parents": [],
    }
    document = {"topics": [{"topic": "flights", "partitions": [partition]}]}
    [offsets] = requests.parse_offsets(answer(document))

    assert offsets == PartitionOffsets("flights", 2, 0, 1, 0, None, None, None, "damaged", ())
    with pytest.raises(PartitionDamagedError, match='partition 2 of topic "flights" is damaged'):
        offsets.readable()


def test_what_was_produced_is_read_from_one_answer_or_a_list() -> None:
    one = {**STORED, "partition": 3}

    assert requests.parse_produced(answer(one)) == [Produced(3, 10, 2, "fsync", 1)]
    assert requests.parse_produced(answer([one, one])) == [Produced(3, 10, 2, "fsync", 1)] * 2


def test_a_created_topic_is_reported_by_the_answer_or_by_one_before_it() -> None:
    created = Produced(3, 10, 2, "fsync", 1, topic_created=True)
    one = {**STORED, "partition": 3}
    behind_another = replace(answer([one]), topic_created=True)

    assert requests.parse_produced(answer({**one, "topicCreated": True})) == [created]
    assert requests.parse_produced(behind_another) == [created]


def test_a_refused_produce_that_created_its_topic_says_so() -> None:
    part = {"topic": "flights", "partition": 1, "problem": FULL}
    refusals = [
        replace(answer(FULL), status=507),
        replace(answer({**FULL, "topicCreated": True}), status=507),
        replace(answer(FULL), status=507, topic_created=True),
        answer([{**part, "topicCreated": True}]),
        replace(answer([part]), topic_created=True),
    ]
    reported = []
    for refusal in refusals:
        with pytest.raises(ProblemError) as caught:
            requests.parse_produced(refusal)
        reported.append(caught.value.topic_created)

    assert reported == [False, True, True, True, True]


def test_a_refused_produce_that_a_broker_before_has_attempted_says_so() -> None:
    part = {"topic": "flights", "partition": 1, "problem": FULL}
    whole = replace(answer(FULL), status=507, write_attempted=True)
    parts = replace(answer([part, part]), write_attempted=True)
    for refusal in (whole, parts):
        with pytest.raises(ProblemError) as caught:
            requests.parse_produced(refusal)

        assert caught.value.write_attempted
        for each in caught.value.parts:
            assert isinstance(each, ProblemError)
            assert each.write_attempted


def test_a_part_that_may_be_stored_is_reported_whichever_it_is() -> None:
    part = {"topic": "flights", "partition": 1, "problem": FULL}
    attempted = {**part, "problem": {**FULL, "writeAttempted": True}}
    with pytest.raises(ProblemError) as caught:
        requests.parse_produced(answer([part, attempted]))

    assert caught.value.write_attempted
    parts = [each for each in caught.value.parts if isinstance(each, ProblemError)]
    assert [each.write_attempted for each in parts] == [False, True]


def test_an_answer_to_a_produce_without_any_partition_is_no_answer() -> None:
    with pytest.raises(UnexpectedAnswerError):
        requests.parse_produced(answer([]))


def test_a_partition_that_failed_fails_all_and_says_that_others_are_stored() -> None:
    elements = [
        {**STORED, "partition": 0},
        {"topic": "flights", "partition": 1, "problem": FULL},
    ]

    with pytest.raises(ProblemError, match="The disk is full") as caught:
        requests.parse_produced(answer(elements))

    assert caught.value.status == 507
    assert caught.value.members == {"partition": 1}
    assert caught.value.retriable
    assert caught.value.write_attempted
    stored, failed = caught.value.parts
    assert stored == Produced(0, 10, 2, "fsync", 1)
    assert isinstance(failed, ProblemError)
    assert failed.members == {"partition": 1}
    assert not failed.write_attempted


def test_when_every_partition_failed_a_retry_duplicates_nothing() -> None:
    with pytest.raises(ProblemError) as caught:
        requests.parse_produced(answer([{"topic": "t", "partition": 1, "problem": FULL}]))

    assert not caught.value.write_attempted


def test_a_read_keeps_the_body_and_takes_the_offsets_from_the_headers() -> None:
    headers = {
        "tailrace-next-offset": "12",
        "tailrace-high-watermark": "20",
        "tailrace-log-start": "3",
    }

    assert requests.parse_fetched(Answer(200, headers, b"raw")) == Fetched(b"raw", 12, 20, 3)


@pytest.mark.parametrize(("text", "children"), [("5,6", (5, 6)), ("", ())])
def test_a_read_reports_the_epoch_and_that_a_partition_ends_here(
    text: str, children: tuple[int, ...]
) -> None:
    headers = {
        "tailrace-next-offset": "20",
        "tailrace-high-watermark": "20",
        "tailrace-log-start": "3",
        "tailrace-epoch": "4",
        "tailrace-sealed": "true",
        "tailrace-children": text,
    }

    fetched = requests.parse_fetched(Answer(200, headers, b""))

    assert (fetched.epoch, fetched.is_sealed, fetched.children) == (4, True, children)


def test_a_refusal_is_raised_as_its_problem() -> None:
    document = {"type": "/v1/problems/topic-not-found", "title": "No such topic", "topic": "t"}

    with pytest.raises(TopicNotFoundError):
        requests.parse_fetched(answer(document, status=404))


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b"\xff"])
def test_a_refusal_without_a_problem_document_names_its_status(body: bytes) -> None:
    with pytest.raises(ProblemError, match="HTTP status 503"):
        requests.parse_topics(Answer(503, {}, body))


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"topics": [{}]}', b'{"topics": 3}'])
def test_a_success_of_another_server_is_not_taken_for_an_answer(body: bytes) -> None:
    with pytest.raises(UnexpectedAnswerError, match="name one, like http"):
        requests.parse_topics(Answer(200, {}, body))


@pytest.mark.parametrize("body", [b"<html>", b'{"type": "/v1/problems/not-found"}'])
def test_a_path_that_is_not_there_is_that_of_another_port(body: bytes) -> None:
    with pytest.raises(UnexpectedAnswerError, match="HTTP 404"):
        requests.parse_topics(Answer(404, {}, body))


def test_a_read_without_offsets_in_its_headers_is_not_an_answer() -> None:
    with pytest.raises(UnexpectedAnswerError):
        requests.parse_fetched(Answer(200, {}, b""))


def test_a_deleted_topic_is_restored_by_name_or_id() -> None:
    assert requests.deleted_topics_request() == Request("GET", "/v1/trash")
    assert requests.restore_topic_request("a/b").target == "/v1/trash/a%2Fb/restore"
    renamed = requests.restore_topic_request("t", new_name="ä b")
    assert (renamed.method, renamed.target) == ("POST", "/v1/trash/t/restore?as=%C3%A4+b")


def test_deleted_topics_are_read_as_the_broker_reports_them() -> None:
    reported = {
        "name": "t",
        "id": "4a0b5b0c-6f0a-4f3f-9f0c-0a1b2c3d4e5f",
        "partitions": 4,
        "sizeBytes": 8192,
        "deletedAt": "2026-01-02T03:04:05.000000Z",
        "purgeAt": "2026-01-03T03:04:05.000000Z",
        "sealedPartitions": 2,
    }
    (topic,) = requests.parse_deleted_topics(
        Answer(200, {}, json.dumps({"topics": [reported]}).encode())
    )

    assert to_document(topic) == reported
