"""What is taken of a client's batch can be read by everybody; whatever else it sends is refused."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.wire import Codec, Flag
from tailrace_broker.codec.batch import stamp_batch
from tailrace_broker.codec.ready_batch import parse_ready_batch
from tailrace_broker.model.errors import BodyTooLargeError, InvalidBodyError
from tests.support.storage.batches import (
    Event,
    batch_of,
    body_of,
    columns_of,
    forged_batch,
    place_of,
    read_by_broker,
    read_by_client,
    records_of,
)

data = st.none() | st.binary(max_size=20) | st.binary(min_size=300, max_size=400)
headers = st.lists(
    st.tuples(st.text(max_size=5).map(str.encode), st.binary(max_size=9)), max_size=3
)
events = st.builds(
    Event,
    value=data,
    key=data,
    timestamp_us=st.integers(0, 2**63 - 1),
    headers=headers,
)
event_lists = st.lists(events, min_size=1, max_size=6)
codecs = st.sampled_from([Codec.NONE, Codec.LZ4, Codec.ZSTD])
flags = st.integers(0, sum(Flag)) | st.integers(0, 2**16 - 1)


def check_refused_or_readable(batch: bytes) -> None:
    with suppress(InvalidBodyError, BodyTooLargeError):
        stored = b"".join(stamp_batch(parse_ready_batch(batch), place_of(base_offset=7)).buffers)
        assert read_by_broker(stored) == read_by_client(stored, 7)


@given(event_lists, flags, codecs)
def test_any_whole_batch_is_taken(given_events: list[Event], promised: int, codec: Codec) -> None:
    promises = promised & int(Flag.JSON_VALUES | Flag.BROKER_TIMESTAMPS)
    sent = b"".join(
        stamp_batch(body_of(given_events, flags=promises, codec=codec), place_of()).buffers
    )
    body = parse_ready_batch(sent)
    stored = b"".join(stamp_batch(body, place_of()).buffers)

    assert body == body_of(given_events, codec=codec)
    assert read_by_broker(stored) == read_by_client(stored, 0) == records_of(given_events, 0)


@given(event_lists, st.data())
def test_a_damaged_batch_is_refused(given_events: list[Event], draw: st.DataObject) -> None:
    batch = bytearray(batch_of(given_events))
    bit = draw.draw(st.integers(0, len(batch) * 8 - 1))
    with pytest.raises(InvalidBodyError):
        parse_ready_batch(bytes(batch[: bit // 8]))
    batch[bit // 8] ^= 1 << bit % 8
    with pytest.raises(InvalidBodyError):
        parse_ready_batch(batch)


@given(event_lists, st.data())
def test_a_forged_batch_is_refused_or_can_be_read(
    given_events: list[Event], draw: st.DataObject
) -> None:
    """Checksums right, anything else wrong: columns, counts, flags, sizes."""
    true = columns_of(given_events)
    payload = bytearray(true.payload)
    for index in draw.draw(st.lists(st.integers(0, len(payload) - 1), max_size=3)):
        payload[index] = draw.draw(st.integers(0, 255))
    cut = draw.draw(st.sampled_from([0, 0, 0, 1, 8]))
    fields: dict[str, Any] = {"record_count": true.record_count, "flags": true.flags}
    lies = {
        "record_count": st.integers(1, 10),
        "flags": flags,
        "codec": st.integers(0, 3),
        "uncompressed_bytes": st.integers(0, 2**32 - 1),
        "producer_table_bytes": st.sampled_from([0, 32]),
        "largest_timestamp_us": st.integers(-(2**63), 2**63 - 1),
    }
    for name in draw.draw(st.lists(st.sampled_from(sorted(lies)), max_size=2)):
        fields[name] = draw.draw(lies[name])

    check_refused_or_readable(forged_batch(bytes(payload[: len(payload) - cut]), **fields))


@given(
    st.binary(max_size=200),
    st.integers(1, 4),
    flags,
    codecs,
    st.integers(0, 300),
)
def test_any_payload_is_refused_or_can_be_read(
    payload: bytes, record_count: int, given_flags: int, codec: Codec, size_bytes: int
) -> None:
    forged = forged_batch(
        payload,
        record_count=record_count,
        flags=given_flags,
        codec=codec,
        uncompressed_bytes=len(payload) if codec == Codec.NONE else size_bytes,
    )

    check_refused_or_readable(forged)


@given(st.binary(max_size=300))
def test_any_body_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidBodyError):
        parse_ready_batch(body)
