import contextlib

from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol.records_binary import encode_records
from tailrace_broker.codec.records_binary import parse_records
from tailrace_broker.model.errors import BodyTooLargeError, InvalidBodyError
from tests.support.storage.batches import Event, records_body_of

maybe_bytes = st.none() | st.binary(max_size=20)
timestamps = st.integers(0, 2**63 - 1)
headers = st.lists(
    st.tuples(st.text(max_size=5).map(str.encode), st.binary(max_size=9)), max_size=3
)
events = st.builds(
    Event, value=maybe_bytes, key=maybe_bytes, timestamp_us=timestamps, headers=headers
)
event_lists = st.lists(events, min_size=1, max_size=12)


def check_is_read_or_refused(body: bytes) -> None:
    """Whatever it is: refused, or records that fit together."""
    with contextlib.suppress(InvalidBodyError, BodyTooLargeError):
        records = parse_records(body)
        assert len(records.keys) == len(records.values) >= 1
        assert records.timestamps_us is None or len(records.timestamps_us) == len(records.keys)
        if records.headers:
            assert len(records.headers.counts) == len(records.keys)
            assert records.headers.counts.sum() == len(records.headers.keys)
            assert len(records.headers.keys) == len(records.headers.values)


@given(event_lists, st.booleans(), st.booleans())
def test_events_survive_a_body(
    given_events: list[Event], has_timestamps: bool, has_headers: bool
) -> None:
    records = parse_records(
        records_body_of(given_events, has_timestamps=has_timestamps, has_headers=has_headers)
    )

    assert records.keys == [event.key for event in given_events]
    assert records.values == [event.value for event in given_events]
    if has_timestamps:
        assert records.timestamps_us is not None
        assert records.timestamps_us.tolist() == [event.timestamp_us for event in given_events]
    else:
        assert records.timestamps_us is None
    if has_headers:
        assert records.headers is not None
        pairs = list(zip(records.headers.keys, records.headers.values, strict=True))
        assert records.headers.counts.tolist() == [len(event.headers) for event in given_events]
        assert pairs == [pair for event in given_events for pair in event.headers]
    else:
        assert records.headers is None


@given(
    st.lists(st.tuples(maybe_bytes, maybe_bytes, timestamps), min_size=1, max_size=12),
    st.booleans(),
)
def test_what_the_client_encodes_the_broker_parses(
    given_records: list[tuple[bytes | None, bytes | None, int]], has_timestamps: bool
) -> None:
    keys, values, times_us = map(list, zip(*given_records, strict=True))

    records = parse_records(encode_records(keys, values, times_us if has_timestamps else None))

    assert (records.keys, records.values) == (keys, values)
    if has_timestamps:
        assert records.timestamps_us is not None
        assert records.timestamps_us.tolist() == times_us
    else:
        assert records.timestamps_us is None
    assert records.headers is None


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    check_is_read_or_refused(body)


@given(event_lists, st.booleans(), st.booleans(), st.data())
def test_any_body_with_a_spoilt_byte_is_read_or_refused(
    given_events: list[Event], has_timestamps: bool, has_headers: bool, draw: st.DataObject
) -> None:
    body = bytearray(
        records_body_of(given_events, has_timestamps=has_timestamps, has_headers=has_headers)
    )
    # The header's fields matter most, and are few among the bytes.
    index = draw.draw(st.integers(0, min(100, len(body) - 1)) | st.integers(0, len(body) - 1))
    body[index] ^= draw.draw(st.integers(1, 255))

    check_is_read_or_refused(bytes(body))
