"""Reads at the two listeners that have them: the form of records, where answers begin and end."""

import json
from typing import Any

import pytest

from tailrace.protocol.records_binary import encode_records
from tailrace.protocol.requests import Answer
from tailrace.wire import (
    BATCH_CONTENT_TYPE,
    HEADER,
    HEADER_BYTES,
    JSON_CONTENT_TYPE,
    NDJSON_CONTENT_TYPE,
    RECORDS_CONTENT_TYPE,
    BatchHeader,
)
from tests.support.broker.fixtures import RunningBroker
from tests.support.broker.stored import SPLIT_END, split
from tests.support.http.http11 import (
    Connection,
    document,
    get,
    messages,
    new_topic,
    problem,
    read_listeners,
    records,
    request,
)
from tests.support.storage.batches import Event, records_body_of

pytestmark = pytest.mark.integration

TIME_US = 1_764_000_000_123_456
TIME_TEXT = "2025-11-24T16:00:00.123456Z"


def one_partition(public: Connection, topic: str, **settings: bool) -> None:
    """Create a topic that has one partition."""
    assert public.exchange(new_topic(topic, **settings)).status == 201


def produce(public: Connection, topic: str, body: bytes, query: str = "", **headers: str) -> Any:
    """A produce that succeeds; what is said of it."""
    answer = public.exchange(request(messages(topic) + query, body, **headers))
    assert answer.status == 200, answer
    return document(answer)


def produce_lines(public: Connection, topic: str, body: bytes) -> None:
    produce(public, topic, body, content_type=NDJSON_CONTENT_TYPE)


def records_of(answer: Answer) -> list[dict[str, Any]]:
    """Of an answer in NDJSON."""
    assert answer.status == 200, answer
    return [json.loads(line) for line in answer.body.splitlines()]


# --- records as JSON ------------------------------------------------------------------------------

KEYS_AND_TEXTS: list[tuple[bytes | None, Any]] = [
    (None, None),
    (b"", ""),
    (b"SFO", "SFO"),
    ("Zürich \U0001f6eb".encode(), "Zürich \U0001f6eb"),
    (b'quote " back \\ line \n', 'quote " back \\ line \n'),
    (b"\xff\x00", {"base64": "/wA="}),
]
VALUES_AND_TEXTS: list[tuple[bytes | None, Any]] = [
    (None, None),
    (b'{"a": [1, 2.5, "x"]}', {"a": [1, 2.5, "x"]}),
    (b"null", None),
    (b'"text"', "text"),
    (b'{\n"a":\r\n1}', {"a": 1}),
    (b"not JSON", {"base64": "bm90IEpTT04="}),
    (b"", {"base64": ""}),
    (b"\xfe", {"base64": "/g=="}),
    (b'"\xff"', {"base64": "Iv8i"}),
    (b"1 2", {"base64": "MSAy"}),
]


@read_listeners
def test_keys_and_values_of_any_bytes_are_shown_in_json(
    public: Connection, connection: Connection, topic: str
) -> None:
    one_partition(public, topic)
    pairs = [
        (key, value, key_text, value_text)
        for key, key_text in KEYS_AND_TEXTS
        for value, value_text in VALUES_AND_TEXTS
    ]
    body = encode_records([key for key, *_ in pairs], [value for _, value, *_ in pairs])
    produce(public, topic, body, content_type=RECORDS_CONTENT_TYPE)
    read = records_of(connection.exchange(get(records(topic))))

    assert [(each["key"], each["value"]) for each in read] == [
        (key_text, value_text) for *_, key_text, value_text in pairs
    ]
    assert [each["offset"] for each in read] == list(range(len(pairs)))
    assert {each["partition"] for each in read} == {0}
    assert not any("headers" in each for each in read)


@read_listeners
def test_headers_are_shown_when_there_are_some(
    public: Connection, connection: Connection, topic: str
) -> None:
    one_partition(public, topic)
    header = (b"trace", b"\xff")
    body = records_body_of([Event(b"1", b"k", headers=[header]), Event(None, headers=[header] * 2)])
    produce(public, topic, body, content_type=RECORDS_CONTENT_TYPE)
    read = records_of(connection.exchange(get(records(topic))))

    shown = {"key": "trace", "value": {"base64": "/w=="}}
    assert [each["headers"] for each in read] == [[shown], [shown] * 2]


@read_listeners
@pytest.mark.parametrize("content_type", [JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE])
def test_without_the_json_check_any_line_is_a_value(
    public: Connection, connection: Connection, topic: str, content_type: str
) -> None:
    one_partition(public, topic, jsonCheck=False)
    for body in (b"not JSON", b'{"a":1}'):
        produce(public, topic, body, content_type=content_type)
    read = records_of(connection.exchange(get(records(topic))))

    assert [each["value"] for each in read] == [{"base64": "bm90IEpTT04="}, {"a": 1}]


@read_listeners
def test_an_array_holds_the_same_records_as_the_lines(
    public: Connection, connection: Connection, topic: str
) -> None:
    one_partition(public, topic)
    assert connection.exchange(get(records(topic), accept=JSON_CONTENT_TYPE)).body == b"[]"
    produce_lines(public, topic, b"1\n\n2\r\n[3]")
    array = connection.exchange(get(records(topic), accept=JSON_CONTENT_TYPE))
    lines = connection.exchange(get(records(topic), accept=NDJSON_CONTENT_TYPE))

    assert document(array) == records_of(lines)
    assert [each["value"] for each in document(array)] == [1, 2, [3]]
    assert array.headers["content-type"] == JSON_CONTENT_TYPE
    assert lines.headers["content-type"] == NDJSON_CONTENT_TYPE


@read_listeners
def test_the_answer_is_of_the_type_that_is_preferred(
    public: Connection, connection: Connection, topic: str
) -> None:
    """More cases: tests/unit/broker/net/api/test_accept.py."""
    one_partition(public, topic)
    preferred = {
        None: NDJSON_CONTENT_TYPE,
        "*/*": NDJSON_CONTENT_TYPE,
        "text/html, */*;q=0.1": NDJSON_CONTENT_TYPE,
        "application/json": JSON_CONTENT_TYPE,
        f"{NDJSON_CONTENT_TYPE};q=0.4, {BATCH_CONTENT_TYPE};q=0.5": BATCH_CONTENT_TYPE,
        "Application/JSON; Q=0.3, */*;q=0.2": JSON_CONTENT_TYPE,
    }
    for accept, content_type in preferred.items():
        answer = connection.exchange(get(records(topic), accept=accept))
        assert (answer.status, answer.headers["content-type"]) == (200, content_type), accept
    for accept in ("text/html", f"{NDJSON_CONTENT_TYPE};q=0", "text/*"):
        answer = connection.exchange(get(records(topic), accept=accept))
        assert problem(answer) == (406, "not-acceptable"), accept


@read_listeners
def test_a_preference_may_be_in_two_lines(
    public: Connection, connection: Connection, topic: str
) -> None:
    one_partition(public, topic)
    sent = get(records(topic), accept="text/html", Accept="application/json")
    answer = connection.exchange(sent)

    assert (answer.status, answer.headers["content-type"]) == (200, JSON_CONTENT_TYPE)


# --- where reads begin and end --------------------------------------------------------------------

BATCH_COUNTS = [1, 3, 5, 1, 7, 2]


def produce_batches(public: Connection, topic: str) -> int:
    """Batches of these sizes in one partition; how many records."""
    one_partition(public, topic)
    numbers = iter(range(sum(BATCH_COUNTS)))
    for count in BATCH_COUNTS:
        produce_lines(public, topic, b"".join(b"%d\n" % next(numbers) for _ in range(count)))
    return sum(BATCH_COUNTS)


@read_listeners
def test_exactly_as_many_records_as_wanted_are_read(
    public: Connection, connection: Connection, topic: str
) -> None:
    """Wherever batches begin and end."""
    end = produce_batches(public, topic)
    for offset in range(end + 1):
        for count in range(1, end - offset + 3):
            answer = connection.exchange(get(records(topic, offset=offset, maxRecords=count)))
            last = min(offset + count, end)
            assert [record["value"] for record in records_of(answer)] == list(range(offset, last))
            assert answer.headers["tailrace-next-offset"] == str(last)
            assert answer.headers["tailrace-high-watermark"] == str(end)
            assert answer.headers["tailrace-log-start"] == "0"
            assert answer.headers["tailrace-epoch"] == "1"


@read_listeners
def test_1000_records_are_read_unless_reported_otherwise(
    public: Connection, connection: Connection, topic: str
) -> None:
    one_partition(public, topic)
    produce_lines(public, topic, b"1\n" * 1_500)

    assert len(records_of(connection.exchange(get(records(topic))))) == 1_000
    assert len(records_of(connection.exchange(get(records(topic, maxRecords=100_000))))) == 1_500


@read_listeners
@pytest.mark.parametrize("isolation", [None, "committed", "uncommitted"])
def test_offsets_may_be_words_or_counted_from_the_end(
    public: Connection, connection: Connection, topic: str, isolation: str | None
) -> None:
    """On a ring of one both isolations end at the same offset."""
    end = produce_batches(public, topic)
    first_by_text = {
        "earliest": 0,
        "latest": end,
        "0": 0,
        "-0": end,
        "-1": end - 1,
        "-5": end - 5,
        f"-{end}": 0,
        f"-{end + 1}": 0,
        "-9999999999999999999": 0,
    }
    for text, first in first_by_text.items():
        answer = connection.exchange(get(records(topic, offset=text, isolation=isolation)))
        assert [record["offset"] for record in records_of(answer)] == list(range(first, end)), text
        assert answer.headers["tailrace-next-offset"] == str(end)


@read_listeners
def test_a_start_that_cannot_be_is_refused(
    public: Connection, connection: Connection, topic: str
) -> None:
    end = produce_batches(public, topic)
    for offset in (end + 1, 2**63, 10**19 - 1):
        answer = connection.exchange(get(records(topic, offset=offset, waitMs=60_000)))
        assert problem(answer) == (416, "offset-out-of-range")
        assert {"logStart": 0, "highWatermark": end}.items() <= document(answer).items()
    for query in (
        *("offset=", "offset=-", "offset=+1", "offset=--1", "offset=1e3", "offset=%D9%A1"),
        *("offset=0&timestamp=0", "timestamp=-1", "timestamp=now", "timestamp=", "offset=Earliest"),
        *("waitMs=60001", "waitMs=-1", "isolation=", "isolation=none", "last=1"),
        *("maxRecords=0", "maxRecords=100001", "maxBytes=0", "maxBytes=16777217"),
    ):
        answer = connection.exchange(get(f"{records(topic)}?{query}"))
        assert problem(answer) == (400, "invalid-parameter"), query
        assert query.rpartition("&")[2].startswith(document(answer)["parameter"])


@read_listeners
@pytest.mark.parametrize("name", ["maxRecords", "maxBytes", "offset", "timestamp", "waitMs"])
def test_a_number_of_many_digits_is_refused_and_harms_nobody(
    connection: Connection, public: Connection, topic: str, name: str
) -> None:
    produce(public, topic, b"1")
    for digits in ("0" * 18 + "1" + "9" * 5000, "0" * 18 + "1999999999999"):
        assert connection.exchange(get(f"{records(topic)}?{name}={digits}")).status == 400
    target = f"/v1/topic/{topic}/partitions/{'0' * 19}2/records"
    assert connection.exchange(get(target)).status == 400
    assert public.exchange(get("/ready")).status == 200


def headers_of(batches: bytes) -> list[BatchHeader]:
    """The headers of whole batches back to back."""
    headers = []
    while batches:
        header = BatchHeader._make(HEADER.unpack(batches[:HEADER_BYTES]))
        assert header.batch_bytes <= len(batches)
        headers.append(header)
        batches = batches[header.batch_bytes :]
    return headers


@read_listeners
def test_binary_reads_give_whole_batches_from_the_one_that_covers_the_offset(
    public: Connection, connection: Connection, topic: str
) -> None:
    end = produce_batches(public, topic)
    everything = connection.exchange(get(records(topic), accept=BATCH_CONTENT_TYPE))
    assert everything.headers["content-type"] == BATCH_CONTENT_TYPE
    assert [header.record_count for header in headers_of(everything.body)] == BATCH_COUNTS
    for offset in range(end):
        for max_bytes in (1, 400, 1_000_000):
            target = records(topic, offset=offset, maxBytes=max_bytes)
            answer = connection.exchange(get(target, accept=BATCH_CONTENT_TYPE))
            read = headers_of(answer.body)
            assert read[0].base_offset <= offset < read[0].end_offset
            assert len(answer.body) <= max_bytes or len(read) == 1
            assert answer.headers["tailrace-next-offset"] == str(read[-1].end_offset)
    at_end = connection.exchange(get(records(topic, offset=end), accept=BATCH_CONTENT_TYPE))
    assert (at_end.body, at_end.headers["tailrace-next-offset"]) == (b"", str(end))


def test_reads_are_the_same_after_a_restart(broker: RunningBroker, topic: str) -> None:
    """Then they come from the disk."""
    asked = [
        get(records(topic, offset=offset, maxRecords=4), accept=accept)
        for offset in range(sum(BATCH_COUNTS))
        for accept in (NDJSON_CONTENT_TYPE, BATCH_CONTENT_TYPE)
    ]
    with Connection(broker.port) as public:
        produce_batches(public, topic)
        before = [public.exchange(each).body for each in asked]
    broker.restart()
    with Connection(broker.port) as public:
        assert [public.exchange(each).body for each in asked] == before


# --- by time --------------------------------------------------------------------------------------


@read_listeners
def test_a_read_by_time_begins_at_the_first_record_of_that_time_or_later(
    public: Connection, connection: Connection, topic: str
) -> None:
    """Times need not be in order: the lowest offset counts."""
    one_partition(public, topic)
    times_us = [TIME_US, TIME_US + 5, TIME_US + 3, TIME_US + 9]
    for time_us in times_us:
        produce(public, topic, b"1", f"?timestamp={time_us}")
    wanted: dict[int | str, int] = {TIME_US: 0, TIME_US + 1: 1, TIME_US + 5: 1, TIME_US + 6: 3}
    wanted |= {TIME_US + 10: 4, "1970-01-01T00:00Z": 0, "2025-11-24T16:00:00.123461Z": 1}
    for time, offset in wanted.items():
        answer = connection.exchange(get(records(topic, timestamp=time)))
        offsets = connection.exchange(get(f"/v1/offsets?topic={topic}&timestamp={time}"))
        (row,) = document(offsets)["topics"][0]["partitions"]

        assert [record["offset"] for record in records_of(answer)] == list(range(offset, 4))
        assert row["timestampOffset"] == (offset if offset < 4 else None)


# --- the newest of a topic ------------------------------------------------------------------------


def newest(topic: str, last: int | str | None = None, **headers: str) -> bytes:
    query = "" if last is None else f"?last={last}"
    return get(f"/v1/topic/{topic}/records{query}", **headers)


@read_listeners
def test_the_newest_records_of_a_topic_come_by_their_time(
    public: Connection, connection: Connection, topic: str
) -> None:
    """Whichever partition they are in; in each they are in order, as is usual."""
    assert public.exchange(new_topic(topic, partitions=3)).status == 201
    assert records_of(connection.exchange(newest(topic, 5))) == []
    times_us = [TIME_US + step for step in (1, 3, 2, 4, 5, 6, 8, 9, 7)]
    for time_us in times_us:
        produce(public, topic, b"%d" % (time_us - TIME_US), f"?timestamp={time_us}")
    for last in (1, 2, 3):
        answer = connection.exchange(newest(topic, last))
        assert [record["value"] for record in records_of(answer)] == [9, 8, 7][:last][::-1]
    everything = records_of(connection.exchange(newest(topic, 1_000)))

    assert [each["value"] for each in everything] == list(range(1, 10))
    assert {each["partition"] for each in everything} == {0, 1, 2}
    assert records_of(connection.exchange(newest(topic))) == everything[-1:]
    as_array = connection.exchange(newest(topic, 4, accept=JSON_CONTENT_TYPE))
    assert document(as_array) == everything[-4:]


@read_listeners
def test_the_newest_records_are_found_in_large_batches_too(
    public: Connection, connection: Connection, topic: str
) -> None:
    for start in range(0, 40_000, 10_000):
        lines = b"".join(b"%d\n" % number for number in range(start, start + 10_000))
        produce_lines(public, topic, lines)
    read = records_of(connection.exchange(newest(topic, 1_000)))

    assert [each["value"] for each in read] == list(range(39_000, 40_000))


@read_listeners
def test_newest_records_that_cannot_be_are_refused(
    public: Connection, connection: Connection, topic: str
) -> None:
    one_partition(public, topic)
    for last in ("0", "1001", "x", "-1", ""):
        assert problem(connection.exchange(newest(topic, last))) == (400, "invalid-parameter")
    refused = connection.exchange(newest(topic, accept=BATCH_CONTENT_TYPE))
    assert problem(refused) == (406, "not-acceptable")
    assert problem(connection.exchange(newest("none"))) == (404, "topic-not-found")


# --- sealed partitions ----------------------------------------------------------------------------


@read_listeners
def test_the_end_of_a_sealed_partition_says_where_to_go_on(
    broker: RunningBroker, listener: int, topic: str
) -> None:
    values = split(broker, topic)
    with Connection(broker.port) as public, Connection(broker.port + listener) as reader:
        child = produce(public, topic, b'"child"', "?partitionKey=k")
        for accept in (NDJSON_CONTENT_TYPE, JSON_CONTENT_TYPE, BATCH_CONTENT_TYPE):
            before = reader.exchange(get(records(topic, offset=0, maxRecords=2), accept=accept))
            if accept != BATCH_CONTENT_TYPE:
                assert "tailrace-sealed" not in before.headers
            for offset in (0, SPLIT_END):
                target = records(topic, offset=offset, waitMs=60_000)
                at_end = reader.exchange(get(target, accept=accept))
                assert at_end.headers["tailrace-next-offset"] == str(SPLIT_END)
                assert at_end.headers["tailrace-sealed"] == "true"
                assert at_end.headers["tailrace-children"] == "1,2"
        after = reader.exchange(get(records(topic, child["partition"], offset="earliest")))
        rows = document(reader.exchange(get(f"/v1/offsets?topic={topic}")))["topics"][0][
            "partitions"
        ]
        last = records_of(reader.exchange(newest(topic, 10)))

    assert [record["offset"] for record in records_of(after)] == [SPLIT_END]
    assert after.headers["tailrace-epoch"] == "2"
    assert [(row["state"], row["children"], row["parents"]) for row in rows] == [
        ("sealed", [1, 2], []),
        ("open", [], [0]),
        ("open", [], [0]),
    ]
    assert [json.dumps(each["value"]).encode() for each in last] == [*values, b'"child"']
