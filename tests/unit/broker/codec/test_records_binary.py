import struct

import pytest

from tailrace_broker.codec.columns import EVENTS_MAX, RECORD_HEADERS_MAX
from tailrace_broker.codec.records_binary import parse_records
from tailrace_broker.model.errors import BodyTooLargeError, InvalidBodyError
from tests.support.storage.batches import Event, records_body_of

INT32_MAX = 2**31 - 1
PLAIN = [Event(b"1", key=b"a"), Event(None, key=None), Event(b"", key=b"")]
WITH_HEADERS = [
    Event(b"1", headers=[(b"trace", b"\x00\xff"), ("ü".encode(), b"")]),
    Event(b"2"),
    Event(b"3", headers=[(b"", b"x")]),
]


def refusal_of(body: bytes) -> str:
    with pytest.raises(InvalidBodyError) as refused:
        parse_records(body)
    return refused.value.detail


def body_with(body: bytes, position: int, field: str, *values: int) -> bytes:
    """The body with other numbers at a position."""
    changed = bytearray(body)
    struct.pack_into("<" + field, changed, position, *values)
    return bytes(changed)


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_records_are_read_from_any_buffer(buffer: type) -> None:
    records = parse_records(buffer(records_body_of(PLAIN)))

    assert records.keys == [b"a", None, b""]
    assert records.values == [b"1", None, b""]


def test_columns_that_are_left_out_are_none() -> None:
    records = parse_records(records_body_of(PLAIN, has_timestamps=False, has_headers=False))

    assert records.timestamps_us is None
    assert records.headers is None


def test_headers_are_read_in_order_with_how_many_each_record_has() -> None:
    headers = parse_records(records_body_of(WITH_HEADERS)).headers

    assert headers is not None
    assert headers.counts.tolist() == [2, 0, 1]
    assert headers.keys == [b"trace", "ü".encode(), b""]
    assert headers.values == [b"\x00\xff", b"", b"x"]


def test_no_record_needs_to_have_a_header() -> None:
    headers = parse_records(records_body_of(PLAIN)).headers

    assert headers is not None
    assert (headers.counts.tolist(), headers.keys, headers.values) == ([0, 0, 0], [], [])


@pytest.mark.parametrize("events", [PLAIN, WITH_HEADERS, [Event(b"", key=b"abc")]])
@pytest.mark.parametrize("has_headers", [True, False])
def test_every_truncation_is_refused(events: list[Event], has_headers: bool) -> None:
    body = records_body_of(events, has_headers=has_headers)
    for size_bytes in range(len(body)):
        assert refusal_of(body[:size_bytes])


def test_bytes_behind_the_last_column_are_refused() -> None:
    refusal = refusal_of(records_body_of(PLAIN) + b"\0")

    assert refusal == "records+binary: 1 bytes behind the last column"


def test_fill_that_is_not_zero_is_refused() -> None:
    body = records_body_of(PLAIN)
    assert body[44:48] == bytes(4)  # behind three key lengths

    assert "fill is not zero" in refusal_of(body_with(body, 47, "B", 1))


BODY = records_body_of(WITH_HEADERS)
KEY_LENGTHS, VALUE_LENGTHS, TIMESTAMPS, HEADER_COUNTS, HEADER_KEY_LENGTHS = 32, 48, 64, 88, 104


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (body_with(BODY, 0, "I", 0), "does not start as records+binary version 1"),
        (body_with(BODY, 4, "H", 2), "does not start as records+binary version 1"),
        (body_with(BODY, 6, "H", 4), "flags 0x4 are not known"),
        (body_with(BODY, 8, "I", 0), "holds no event"),
        (body_with(BODY, 8, "I", EVENTS_MAX), "key lengths: the body ends early"),
        (body_with(BODY, 12, "I", 2**32 - 1), "keys: the body ends early"),
        (body_with(BODY, 16, "I", 2**32 - 1), "values: the body ends early"),
        (body_with(BODY, 20, "I", 2**32 - 1), "header counts do not add up"),
        (body_with(BODY, 24, "I", 2**32 - 1), "header keys: the body ends early"),
        (body_with(BODY, 28, "I", 2**32 - 1), "header values: the body ends early"),
        (body_with(BODY, KEY_LENGTHS, "i", -2), "key lengths: a length is negative"),
        (body_with(BODY, VALUE_LENGTHS, "i", -2), "value lengths: a length is negative"),
        (body_with(BODY, TIMESTAMPS, "q", -1), "timestamps: a time is before 1970"),
        (body_with(BODY, HEADER_COUNTS, "i", -1), "header counts: a length is negative"),
        (body_with(BODY, HEADER_COUNTS, "i", 1), "header counts do not add up"),
        (body_with(BODY, HEADER_KEY_LENGTHS, "i", -1), "header key lengths: a length is negative"),
        (body_with(BODY, KEY_LENGTHS, "i", 2), "keys: lengths do not add up"),
        (body_with(BODY, VALUE_LENGTHS, "i", -1), "values: lengths do not add up"),
        (body_with(BODY, HEADER_KEY_LENGTHS, "i", 6), "header keys: lengths do not add up"),
        (BODY.replace(b"trace", b"tra\xffe"), "header keys: not UTF-8"),
    ],
)
def test_a_refusal_says_what_does_not_fit(body: bytes, reason: str) -> None:
    assert reason in refusal_of(body)


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param((INT32_MAX, INT32_MAX, 5), id="sum 2**32 + 3, as i32 3"),
        pytest.param((INT32_MAX, 1, 3 - 2**31), id="as i32 3 with a negative one"),
    ],
)
def test_lengths_whose_sum_only_fits_by_overflow_are_refused(lengths: tuple[int, ...]) -> None:
    body = records_body_of([Event(b"1")] * 3)

    assert refusal_of(body_with(body, VALUE_LENGTHS, "3i", *lengths))


def test_header_counts_whose_sum_only_fits_by_overflow_are_refused() -> None:
    counts = (INT32_MAX, INT32_MAX, 5)

    assert "do not add up" in refusal_of(body_with(BODY, HEADER_COUNTS, "3i", *counts))


def test_headers_without_their_flag_are_refused_not_lost() -> None:
    body = records_body_of(PLAIN, has_headers=False)
    for position in (20, 24, 28):
        assert "the flag is not" in refusal_of(body_with(body, position, "I", 1))


def test_more_events_than_a_request_may_hold_are_refused_by_the_header_alone() -> None:
    body = body_with(records_body_of(PLAIN), 8, "I", EVENTS_MAX + 1)

    with pytest.raises(BodyTooLargeError):
        parse_records(body)


def test_more_record_headers_than_a_request_may_hold_are_refused_before_they_are_read() -> None:
    count = RECORD_HEADERS_MAX + 1
    body = body_with(body_with(BODY, 20, "I", count), HEADER_COUNTS, "3i", count, 0, 0)

    with pytest.raises(BodyTooLargeError, match=f"{RECORD_HEADERS_MAX} record headers"):
        parse_records(body)
