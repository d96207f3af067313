"""Whatever is appended comes back, to the broker's reader and to the client's."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from tailrace.wire import HEADER_BYTES, PRODUCER_ENTRY, BatchHeader, Codec, Flag
from tailrace_broker.codec.batch import (
    BASE_OFFSET_MAX,
    decompress_payload,
    stamp_batch,
    verify_batch,
)
from tailrace_broker.codec.records import unpack_columns
from tailrace_broker.model.errors import CorruptBatchError
from tests.support.storage.batches import (
    Event,
    body_of,
    place_of,
    read_by_broker,
    read_by_client,
    records_of,
)

INT64_MAX = 2**63 - 1
data = st.binary(max_size=20) | st.binary(min_size=300, max_size=400)
headers = st.lists(
    st.tuples(st.text(max_size=5).map(str.encode), st.binary(max_size=9)), max_size=3
)
events = st.builds(
    Event,
    value=st.none() | data,
    key=st.none() | data,
    timestamp_us=st.integers(-INT64_MAX - 1, INT64_MAX),
    headers=headers,
)
event_lists = st.lists(events, min_size=1, max_size=6)
base_offsets = st.integers(0, BASE_OFFSET_MAX)
codecs = st.sampled_from([Codec.NONE, Codec.LZ4, Codec.ZSTD])


@given(
    event_lists,
    st.integers(0, 3),
    base_offsets,
    st.sampled_from([0, Flag.JSON_VALUES, Flag.BROKER_TIMESTAMPS]),
    codecs,
)
def test_events_survive_a_batch(
    given_events: list[Event], entries: int, base_offset: int, flags: int, codec: Codec
) -> None:
    table = bytes(PRODUCER_ENTRY.size * entries)
    body = body_of(given_events, flags=flags, producer_table=table, codec=codec)
    stored = b"".join(stamp_batch(body, place_of(base_offset=base_offset)).buffers)
    header = verify_batch(memoryview(stored))

    assert header.batch_bytes == len(stored)
    assert header.flags & flags == flags
    assert header.largest_timestamp_us == max(event.timestamp_us for event in given_events)
    assert read_by_broker(stored) == records_of(given_events, base_offset)


@given(event_lists, base_offsets, codecs)
def test_the_client_reads_the_records_that_the_broker_reads(
    given_events: list[Event], base_offset: int, codec: Codec
) -> None:
    body = body_of(given_events, codec=codec)
    batch = b"".join(stamp_batch(body, place_of(base_offset=base_offset)).buffers)

    assert read_by_client(batch, base_offset) == read_by_broker(batch)


@given(st.integers(1, 2**32 - 1), st.integers(0, 2**16 - 1), st.binary(max_size=200))
def test_any_payload_is_read_or_refused(record_count: int, flags: int, payload: bytes) -> None:
    header = BatchHeader._make([0] * 20)._replace(record_count=record_count, flags=flags)

    with contextlib.suppress(CorruptBatchError):
        assert len(unpack_columns(header, memoryview(payload))) == record_count


@given(event_lists, codecs, st.data())
def test_a_payload_with_a_spoilt_byte_is_read_or_refused(
    given_events: list[Event], codec: Codec, draw: st.DataObject
) -> None:
    """Behind a right checksum, as a faulty writer leaves it."""
    stored = bytearray(
        b"".join(stamp_batch(body_of(given_events, codec=codec), place_of()).buffers)
    )
    header = verify_batch(memoryview(stored))
    index = draw.draw(st.integers(HEADER_BYTES, len(stored) - 1))
    stored[index] ^= draw.draw(st.integers(1, 255))

    with contextlib.suppress(CorruptBatchError):
        records = unpack_columns(header, decompress_payload(header, memoryview(stored)))
        assert len(records) == len(given_events)
