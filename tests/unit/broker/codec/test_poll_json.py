"""Records as a JSON poll shows them: columns of texts, and the elements that they become."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tailrace.wire import Flag
from tailrace_broker.codec.batch import decompress_payload, stamp_batch, verify_batch
from tailrace_broker.codec.poll_json import TextColumns, element, element_head, text_columns
from tailrace_broker.model.topic import Partition, Slice
from tests.support.storage.batches import SPLIT_TOPIC, TIME_US, Event, body_of, place_of

TIME_TEXT = "2025-11-24T16:00:00.000000Z"
HEAD = element_head("split", SPLIT_TOPIC.partitions[0], Slice(-(2**63), 0, 1))


def columns_of(
    events: Sequence[Event], *, flags: int = 0, first: int = 0, last: int | None = None
) -> TextColumns:
    """Of a batch of these events, as they come from a log."""
    stored = stamp_batch(body_of(events, flags=flags), place_of()).contents()
    header = verify_batch(stored)
    columns = decompress_payload(header, stored)
    return text_columns(header, columns, first=first, last=len(events) if last is None else last)


def shown(*rows: TextColumns, start_offset: int = 0) -> dict[str, Any]:
    """The element that these rows become."""
    document: dict[str, Any] = json.loads(element(HEAD, start_offset, rows))
    return document


def test_checked_values_are_embedded_as_they_are() -> None:
    values = [b'{"a": [1,\r\n2.50]}', b'"text"', b"null", None]
    columns = columns_of([Event(value) for value in values], flags=Flag.JSON_VALUES)

    assert columns.values == b'{"a": [1,\r\n2.50]},"text",null,null'


def test_values_that_were_not_checked_are_embedded_when_they_are_json() -> None:
    values = [b'{"a": 1}', b"not JSON", b"", b'"\xff"', None]

    assert shown(columns_of([Event(value) for value in values]))["values"] == [
        {"a": 1},
        {"base64": "bm90IEpTT04="},
        {"base64": ""},
        {"base64": "Iv8i"},
        None,
    ]


def test_an_element_says_which_of_its_values_are_bytes_in_base64() -> None:
    rows = [
        columns_of([Event(b'{"base64":"/w=="}'), Event(b"\xff")]),
        columns_of([Event(b"1")], flags=Flag.JSON_VALUES),
        columns_of([Event(b"\xff")]),
    ]

    element_of_bytes = shown(*rows)
    assert element_of_bytes["values"][:2] == [{"base64": "/w=="}] * 2
    assert element_of_bytes["base64Values"] == [1, 3]
    assert "base64Values" not in shown(*rows[1:2])


def test_keys_are_texts_or_null() -> None:
    keys = ["SFO", "Zürich \U0001f6eb", 'quote " back \\ line \n', ""]
    events = [*[Event(b"1", key.encode()) for key in keys], Event(b"1", None)]

    assert shown(columns_of(events))["keys"] == [*keys, None]


def test_a_key_that_is_no_utf_8_changes_no_other() -> None:
    keys = [b"SFO", b"\xff\x00", None, "Zürich".encode()]

    shown_keys = shown(columns_of([Event(b"1", key) for key in keys]))["keys"]
    assert shown_keys == ["SFO", {"base64": "/wA="}, None, "Zürich"]


@pytest.mark.parametrize("step_us", [0, 1], ids=["one time", "different times"])
def test_timestamps_are_texts(step_us: int) -> None:
    events = [Event(b"1", timestamp_us=TIME_US + index * step_us) for index in range(3)]

    times = [TIME_TEXT.replace("00Z", f"0{index * step_us}Z") for index in range(3)]
    assert shown(columns_of(events))["timestamps"] == times


def test_some_records_are_shown_as_they_are_with_all() -> None:
    events = [
        Event(b"%d" % n, b"k%d" % n, TIME_US + n, headers=[(b"h", b"%d" % n)] * (n % 3))
        for n in range(9)
    ]
    whole = shown(columns_of(events))

    for first in range(9):
        for last in range(first + 1, 10):
            some = shown(columns_of(events, first=first, last=last))
            for column in ("values", "keys", "timestamps"):
                assert some[column] == whole[column][first:last]


def test_rows_of_several_batches_become_one_element() -> None:
    rows = [columns_of([Event(b"1"), Event(b"2")]), columns_of([Event(b"3", None)])]

    assert shown(*rows, start_offset=2**53 + 1) == {
        "topic": "split",
        "partition": 0,
        "token": "-9223372036854775808",
        "rangeIndex": 0,
        "version": 1,
        "startOffset": "9007199254740993",
        "values": [1, 2, 3],
        "keys": ["key", "key", None],
        "timestamps": [TIME_TEXT] * 3,
    }


def test_an_element_names_its_range_and_its_slice_of_it() -> None:
    partition = Partition(4, range_id=1, epoch=7, token_start=2**61, token_end=2**62)

    head = json.loads(element_head("split", partition, Slice(5, 1, 3)) + b"}")
    assert head == {"topic": "split", "partition": 4, "token": "5", "rangeIndex": 1, "version": 7}
