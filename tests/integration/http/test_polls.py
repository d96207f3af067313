"""What polls deliver: in which form, and how much of it."""

import json
from operator import itemgetter
from typing import Any

import pytest

from tailrace.protocol.records_binary import encode_records
from tailrace.wire import (
    BATCH_CONTENT_TYPE,
    JSON_CONTENT_TYPE,
    NDJSON_CONTENT_TYPE,
    RECORDS_CONTENT_TYPE,
)
from tests.support.groups.consumers import (
    FORM_NAMES,
    FORMS,
    ask,
    by_partition,
    delivery_of,
    got,
    make,
    poll,
    produce,
    register,
    take_all,
    values,
)
from tests.support.http.http11 import (
    Connection,
    document,
    get,
    messages,
    new_topic,
    problem,
    read_listeners,
    request,
)
from tests.support.storage.batches import Event, records_body_of

pytestmark = pytest.mark.integration

TIME_US = 1_764_000_000_123_456
TIME_TEXT = "2025-11-24T16:00:00.123456Z"
MANY, PIPELINED = 100_000, 200
each_form = pytest.mark.parametrize("form", FORMS, ids=FORM_NAMES)


# --- the forms of an answer -----------------------------------------------------------------------


def odd_records() -> tuple[bytes, list[dict[str, Any]]]:
    """A body of records of all kinds, and how the lines of an answer show them."""
    header = (b"trace", b"\xff")
    events = [
        Event(b'{"a": [1, 2.5]}', b"SFO", TIME_US),
        Event(None, None, TIME_US),
        Event(b"not JSON", b"\xff\x00", TIME_US, [header]),
        Event(b'{\n"a":\r\n1}', "Zürich".encode(), TIME_US + 1_000_000),
    ]
    shown_header = {"key": "trace", "value": {"base64": "/w=="}}
    later = TIME_TEXT.replace("00.", "01.")
    shown: list[dict[str, Any]] = [
        {"timestamp": TIME_TEXT, "key": "SFO", "value": {"a": [1, 2.5]}},
        {"timestamp": TIME_TEXT, "key": None, "value": None},
        {
            "timestamp": TIME_TEXT,
            "key": {"base64": "/wA="},
            "value": {"base64": "bm90IEpTT04="},
            "valueEncoding": "base64",
            "headers": [shown_header],
        },
        {"timestamp": later, "key": "Zürich", "value": {"a": 1}},
    ]
    return records_body_of(events), shown


def make_odd(public: Connection, topic: str) -> list[dict[str, Any]]:
    """A topic with these records twice, in two batches."""
    assert public.exchange(new_topic(topic, jsonCheck=False)).status == 201
    body, shown = odd_records()
    for _ in range(2):
        sent = request(messages(topic), body, content_type=RECORDS_CONTENT_TYPE)
        assert public.exchange(sent).status == 200
    return shown * 2


@read_listeners
def test_a_poll_is_answered_in_json_unless_it_asks_for_another_form(
    public: Connection, connection: Connection, topic: str
) -> None:
    shown = make_odd(public, topic)
    register(connection, topic, topic, group=topic)
    answer = connection.exchange(poll(topic))

    assert answer.headers["content-type"] == JSON_CONTENT_TYPE
    assert document(answer) == [
        {
            "topic": topic,
            "partition": 0,
            "token": "-9223372036854775808",
            "rangeIndex": 0,
            "version": 1,
            "startOffset": "0",
            "values": [each["value"] for each in shown],
            "base64Values": [2, 6],
            "keys": [each["key"] for each in shown],
            "timestamps": [each["timestamp"] for each in shown],
        }
    ]


@read_listeners
def test_the_lines_of_a_poll_name_their_topic(
    public: Connection, connection: Connection, topic: str
) -> None:
    shown = make_odd(public, topic)
    register(connection, topic, topic, group=topic)
    answer = connection.exchange(poll(topic, accept=NDJSON_CONTENT_TYPE))

    assert answer.headers["content-type"] == NDJSON_CONTENT_TYPE
    lines = answer.body.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"topic": topic, "partition": 0, "offset": offset, **each}
        for offset, each in enumerate(shown)
    ]
    assert all(line.startswith(b'{"topic":"') for line in lines)


@read_listeners
def test_a_binary_poll_is_whole_batches_as_a_read_gives_them(
    public: Connection, connection: Connection, topic: str
) -> None:
    make_odd(public, topic)
    register(connection, topic, topic, group=topic)
    answer = connection.exchange(poll(topic, accept=BATCH_CONTENT_TYPE))

    records = f"/v1/topic/{topic}/partitions/0/records"
    assert answer.headers["content-type"] == BATCH_CONTENT_TYPE
    assert answer.body == connection.exchange(get(records, accept=BATCH_CONTENT_TYPE)).body
    assert "tailrace-start-offsets" not in answer.headers


def test_a_poll_that_accepts_nothing_that_there_is_confirms_nothing(
    public: Connection, topic: str
) -> None:
    make(public, topic, b"1")
    register(public, topic, topic, group=topic)
    first = public.exchange(poll(topic))
    refused = public.exchange(poll(topic, accept="text/html"))
    again = public.exchange(poll(topic, delivery=0))

    assert problem(refused) == (406, "not-acceptable")
    assert again.body == first.body


@each_form
def test_records_of_several_topics_and_partitions_come_in_one_answer(
    public: Connection, topic: str, form: str
) -> None:
    names = [f"{topic}{letter}" for letter in "ab"]
    for name in names:
        make(public, name, partitions=4)
        for number in range(20):
            produce(public, name, b"%d" % number, partitionKey=str(number))
    register(public, topic, *names, group=topic)
    records = got(public.exchange(poll(topic, accept=form)))

    assert sorted(values(records)) == sorted([*range(20)] * 2)
    assert {record.partition for record in records} == {0, 1, 2, 3}
    for partition in by_partition(records).values():
        offsets = [each.offset for each in partition]
        assert sorted(offsets) == sorted([*range(len(offsets) // 2)] * 2)


# --- bounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS[:2], ids=FORM_NAMES[:2])
@pytest.mark.parametrize("size", [1, 3, 4, 7, 100])
def test_a_text_answer_has_at_most_so_many_records(
    public: Connection, topic: str, form: str, size: int
) -> None:
    make(public, topic, b"0\n1\n2\n3\n", b"4\n5\n6\n7\n", b"8\n9\n")
    register(public, topic, topic, group=topic)
    sizes, taken, confirmed = [], [], 0
    while records := got(
        answer := public.exchange(poll(topic, delivery=confirmed, accept=form, maxRecords=size))
    ):
        confirmed = delivery_of(answer)
        sizes.append(len(records))
        taken += records

    assert values(taken) == [*range(10)]
    assert [each.offset for each in taken] == [*range(10)]
    assert sizes == [size] * (10 // size) + [10 % size] * (10 % size > 0)


@pytest.mark.parametrize(("records_max", "batches"), [(1, 1), (4, 1), (5, 2), (None, 3)])
def test_a_binary_answer_ends_with_the_batch_that_reaches_its_records(
    public: Connection, topic: str, records_max: int | None, batches: int
) -> None:
    make(public, topic, *[b"1\n2\n3\n4\n"] * 3)
    register(public, topic, topic, group=topic)
    bound = {} if records_max is None else {"maxRecords": records_max}
    answer = public.exchange(poll(topic, accept=BATCH_CONTENT_TYPE, **bound))

    assert len(got(answer)) == batches * 4


@each_form
def test_an_answer_has_at_least_one_batch_and_no_more_than_its_bytes(
    public: Connection, topic: str, form: str
) -> None:
    assert public.exchange(new_topic(topic, partitions=4, compression="none")).status == 201
    for number in range(12):
        produce(public, topic, b'"%s"' % (b"x" * 1_000), partitionKey=str(number))
    register(public, topic, topic, group=topic)
    counts = {}
    for bytes_max in (1, 2_500, 100_000):
        answer = public.exchange(poll(topic, delivery=0, accept=form, maxBytes=bytes_max))
        counts[bytes_max] = len(got(answer))
        gone = ask("goodbye", topic, commit="false")
        assert public.exchange(gone).status == 200
        register(public, topic, topic, group=topic)

    assert counts == {1: 1, 2_500: 2, 100_000: 12}


def test_a_binary_answer_reports_where_its_new_records_begin(
    public: Connection, topic: str
) -> None:
    make(public, topic, b"0\n1\n2\n3\n4\n", b"5\n")
    register(public, topic, topic, group=topic)
    text = public.exchange(poll(topic, maxRecords=2))
    binary = public.exchange(poll(topic, accept=BATCH_CONTENT_TYPE))

    assert values(got(text)) == [0, 1]
    assert binary.headers["tailrace-start-offsets"] == f"{topic}/0:2"
    assert values(got(binary)) == [2, 3, 4, 5]


def test_a_binary_answer_reports_where_a_delivery_ends_that_was_text(
    public: Connection, topic: str
) -> None:
    """Its first answer has cut a batch."""
    make(public, topic, b"0\n1\n2\n3\n4\n", b"5\n")
    register(public, topic, topic, group=topic)
    assert len(got(public.exchange(poll(topic, maxRecords=1)))) == 1
    text = public.exchange(poll(topic, maxRecords=2))
    again = public.exchange(poll(topic, delivery=0, accept=BATCH_CONTENT_TYPE))
    rest = public.exchange(poll(topic, accept=BATCH_CONTENT_TYPE))

    assert delivery_of(again) == delivery_of(text)
    assert again.headers["tailrace-start-offsets"] == f"{topic}/0:1"
    assert again.headers["tailrace-end-offsets"] == f"{topic}/0:3"
    assert values(got(again)) == values(got(text)) == [1, 2]
    assert rest.headers["tailrace-start-offsets"] == f"{topic}/0:3"
    assert "tailrace-end-offsets" not in rest.headers
    assert values(got(rest)) == [3, 4, 5]


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("maxRecords=0", "maxRecords"),
        ("maxRecords=100001", "maxRecords"),
        ("maxBytes=16777217", "maxBytes"),
        ("waitMs=60001", "waitMs"),
        ("topic=t", "topic"),
    ],
)
def test_a_poll_s_bounds_are_checked(public: Connection, query: str, parameter: str) -> None:
    answer = public.exchange(request(f"/v1/consumer/poll?consumerId=c&{query}"))

    assert problem(answer) == (400, "invalid-parameter")
    assert document(answer)["parameter"] == parameter


# --- much -----------------------------------------------------------------------------------------


def test_a_large_json_answer_is_whole(public: Connection, topic: str) -> None:
    """Of some batches with much in them, and records that are cut from one."""
    assert public.exchange(new_topic(topic, partitions=2)).status == 201
    texts = [f"{number}-{'x' * 2_000}" for number in range(6_000)]
    for start in range(0, len(texts), 2_000):
        some = [text.encode() for text in texts[start : start + 2_000]]
        body = encode_records(some, [json.dumps(each.decode()).encode() for each in some])
        sent = request(messages(topic), body, content_type=RECORDS_CONTENT_TYPE)
        assert public.exchange(sent).status == 200
    register(public, topic, topic, group=topic)
    answer = public.exchange(poll(topic, maxRecords=100_000, maxBytes=16 * 1024 * 1024))
    elements = document(answer)

    assert len(answer.body) > 20 * 1024 * 1024
    assert len(elements) > 2
    records = got(answer)
    assert sorted(values(records)) == sorted(texts)
    assert all(record.key == record.value for record in records)
    for partition in by_partition(records).values():
        assert [each.offset for each in partition] == [*range(len(partition))]


@pytest.mark.timeout(180)
def test_many_events_of_their_own_are_read_as_they_were_sent(
    public: Connection, topic: str
) -> None:
    """A batch each; a group a form."""
    make(public, topic, partitions=4)
    sent: list[dict[str, Any]] = [
        {"number": number, "text": "x" * (number % 50)} for number in range(MANY)
    ]
    for start in range(0, MANY, PIPELINED):
        some = sent[start : start + PIPELINED]
        public.send(
            b"".join(
                request(
                    messages(topic, partitionKey=each["number"] % 100), json.dumps(each).encode()
                )
                for each in some
            )
        )
        assert {public.receive().status for _ in some} == {200}
    for form, name in zip(FORMS, FORM_NAMES, strict=True):
        register(public, f"{topic}-{name}", topic, group=f"{topic}-{name}")
        taken = take_all(
            public, f"{topic}-{name}", accept=form, maxRecords=100_000, maxBytes=4 * 1024 * 1024
        )
        assert sorted(values(taken), key=itemgetter("number")) == sent
        for partition in by_partition(taken).values():
            assert [each.offset for each in partition] == [*range(len(partition))]
            assert all(each.key == str(each.value["number"] % 100) for each in partition)
