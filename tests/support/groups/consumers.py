"""Consumers of groups as tests have them: requests by hand, and what their answers hold."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tailrace.protocol.requests import Answer
from tailrace.wire import BATCH_CONTENT_TYPE, JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE
from tailrace_broker.codec.batch import decompress_payload, read_header
from tailrace_broker.codec.records import unpack_columns
from tests.support.http.http11 import Connection, document, messages, new_topic, request

FORMS = (JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE, BATCH_CONTENT_TYPE)
FORM_NAMES = ("json", "ndjson", "batch")


class Got(NamedTuple):
    """A record of a poll's answer; a binary one names no topic."""

    partition: int
    offset: int
    key: Any
    value: Any


def produce(public: Connection, topic: str, body: bytes, **query: Any) -> Any:
    """Events, one a line; where they are."""
    sent = request(messages(topic, **query), body, content_type=NDJSON_CONTENT_TYPE)
    answer = public.exchange(sent)
    assert answer.status == 200, answer
    return document(answer)


def make(public: Connection, topic: str, *bodies: bytes, partitions: int = 1) -> None:
    """A topic, with a batch of each body."""
    assert public.exchange(new_topic(topic, partitions=partitions)).status == 201
    for body in bodies:
        produce(public, topic, body)


def ask(verb: str, consumer: str, /, *, headers: Mapping[str, Any] = {}, **query: Any) -> bytes:
    """A whole request of a consumer; lists are repeated."""
    pairs = urlencode({"consumerId": consumer, **query}, doseq=True)
    return request(f"/v1/consumer/{verb}?{pairs}", **headers)


def poll(
    consumer: str,
    /,
    *,
    delivery: int | str | None = None,
    epoch: int | str | None = None,
    accept: str | None = None,
    **query: Any,
) -> bytes:
    """A whole poll; what is None is left out."""
    headers = {
        "tailrace_delivery": delivery,
        "tailrace_assignment_epoch": epoch,
        "accept": accept,
    }
    return ask("poll", consumer, headers=headers, **query)


def register(connection: Connection, consumer: str, *topics: str, **query: Any) -> Any:
    """Register from the earliest record on, unless `query` says otherwise; what is answered.

    Topics that do not exist are created.
    """
    known = {"onNewGroup": "startFromEarliest", "createTopics": "true", **query}
    answer = connection.exchange(ask("register", consumer, topic=topics, **known))
    assert answer.status == 200, answer
    return document(answer)


def got(answer: Answer) -> list[Got]:
    """The records of a poll's answer, whatever its form; none of 204."""
    if answer.status == 204:
        return []
    assert answer.status == 200, answer
    form = answer.headers["content-type"]
    if form == BATCH_CONTENT_TYPE:
        return _in_batches(answer)
    if form == NDJSON_CONTENT_TYPE:
        lines = map(json.loads, answer.body.splitlines())
        return [
            Got(line["partition"], line["offset"], line["key"], line["value"]) for line in lines
        ]
    return [
        Got(each["partition"], int(each["startOffset"]) + index, key, value)
        for each in document(answer)
        for index, (key, value) in enumerate(zip(each["keys"], each["values"], strict=True))
    ]


def values(records: Iterable[Got]) -> list[Any]:
    """Of records."""
    return [record.value for record in records]


def delivery_of(answer: Answer) -> int:
    """Its number."""
    return int(answer.headers["tailrace-delivery"])


def by_partition(records: Iterable[Got]) -> dict[int, list[Got]]:
    """The same, each partition's separately."""
    found: dict[int, list[Got]] = {}
    for record in records:
        found.setdefault(record.partition, []).append(record)
    return found


def take_all(connection: Connection, consumer: str, **options: Any) -> list[Got]:
    """Poll until there is nothing, each poll naming the delivery before."""
    taken: list[Got] = []
    answer = connection.exchange(poll(consumer, delivery=0, **options))
    while answer.status != 204:
        taken += got(answer)
        answer = connection.exchange(poll(consumer, delivery=delivery_of(answer), **options))
    return taken


def _in_batches(answer: Answer) -> list[Got]:
    """Keys and values as they are shown in JSON, of what is delivered of the batches."""
    starts = _by_partition(answer.headers.get("tailrace-start-offsets", ""))
    ends = _by_partition(answer.headers.get("tailrace-end-offsets", ""))
    view = memoryview(answer.body)
    position = 0
    records = []
    while position < len(view):
        header = read_header(view, position)
        for unpack_column in unpack_columns(header, decompress_payload(header, view[position:])):
            end = ends.get(header.partition, header.end_offset)
            if starts.get(header.partition, 0) <= unpack_column.offset < end:
                key = None if unpack_column.key is None else unpack_column.key.decode()
                value = None if unpack_column.value is None else json.loads(unpack_column.value)
                records.append(Got(header.partition, unpack_column.offset, key, value))
        position += header.batch_bytes
    return records


def _by_partition(text: str) -> dict[int, int]:
    """The offsets of a header."""
    pairs = [each.rpartition(":") for each in text.split(",") if each]
    return {int(path.rpartition("/")[2]): int(offset) for path, _, offset in pairs}
