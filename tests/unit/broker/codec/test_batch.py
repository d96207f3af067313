import random
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from crc32c import crc32c
from zstandard import ZstdCompressor

from tailrace.wire import BATCH_ALIGNMENT_BYTES, HEADER, HEADER_BYTES, PRODUCER_ENTRY, Codec, Flag
from tailrace_broker.codec.batch import (
    COMPRESS_BYTES_MIN,
    BatchBody,
    compress_columns,
    compressed,
    decompress_payload,
    read_header,
    stamp_batch,
    verified_batches,
    verify_batch,
)
from tailrace_broker.codec.columns import RecordColumns
from tailrace_broker.codec.producers import TableEntry, encode_table
from tailrace_broker.model.errors import CorruptBatchError
from tests.support.storage.batches import (
    PARTITION,
    TIME_US,
    TOPIC_ID,
    Event,
    batch_of,
    body_of,
    columns_of,
    forged_batch,
    place_of,
)

SMALL_BATCH = batch_of([Event(b'{"n":1}'), Event(b"22")])
LARGE_EVENTS = [Event(b"abcdefgh" * 100)]
NOISE = random.Random(1).randbytes(8_000)


def with_fields(batch: bytes, **changes: Any) -> bytes:
    """The batch with other header fields, as a faulty writer makes it: the checksum is right."""
    header = read_header(memoryview(batch))._replace(header_crc=0, **changes)
    raw = HEADER.pack(*header)
    crc = crc32c(raw[12:], crc32c(raw[:8]))
    return raw[:8] + struct.pack("<I", crc) + raw[12:] + batch[HEADER_BYTES:]


def refusal_of(stored: bytes, position: int = 0) -> str:
    with pytest.raises(CorruptBatchError) as refused:
        verify_batch(memoryview(stored), position)
    return refused.value.detail


def test_the_header_says_what_is_inside_and_where_it_is_appended() -> None:
    body = body_of(
        [Event(b"1", timestamp_us=5), Event(b"2", timestamp_us=9), Event(b"3", timestamp_us=7)],
        flags=Flag.JSON_VALUES,
    )
    place = place_of(
        range_id=7,
        epoch=4,
        previous_epoch=3,
        base_offset=1000,
        append_time_us=TIME_US + 1,
        high_watermark=990,
    )

    batch = stamp_batch(body, place)
    header = read_header(memoryview(b"".join(batch.buffers)))

    assert header == batch.header
    assert (header.record_count, header.flags, header.codec) == (3, Flag.JSON_VALUES, Codec.NONE)
    assert (header.first_timestamp_us, header.largest_timestamp_us) == (5, 9)
    assert (header.base_offset, header.end_offset) == (1000, 1003)
    assert (header.topic_id, header.partition) == (TOPIC_ID.bytes, PARTITION)
    assert (header.range_id, header.epoch, header.previous_epoch) == (7, 4, 3)
    assert (header.append_time_us, header.high_watermark) == (TIME_US + 1, 990)
    assert header.payload_bytes == header.uncompressed_bytes == len(body.payload)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_payload_that_shrinks_is_compressed(codec: Codec) -> None:
    payload = bytes(COMPRESS_BYTES_MIN)

    body = compress_columns(RecordColumns(1, 0, payload, 0, 0), codec=codec)

    assert body.codec == codec
    assert len(body.payload) < body.uncompressed_bytes == len(payload)


def test_what_is_compressed_already_stays_as_it_is() -> None:
    columns = RecordColumns(1, 0, bytes(COMPRESS_BYTES_MIN), 0, 0)
    body = compress_columns(columns)

    assert compressed([columns, body], Codec.LZ4) == [body, body]
    assert compressed([], Codec.LZ4) == []


def test_a_payload_is_not_compressed_when_that_is_not_wanted() -> None:
    payload = bytes(COMPRESS_BYTES_MIN)

    body = compress_columns(RecordColumns(1, 0, payload, 0, 0), codec=Codec.NONE)

    assert (body.codec, body.payload) == (Codec.NONE, payload)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(bytes(COMPRESS_BYTES_MIN - 1), id="too short to try"),
        pytest.param(NOISE, id="does not shrink"),
        pytest.param(NOISE[:-400] + bytes(400), id="shrinks by a twentieth"),
    ],
)
def test_a_payload_that_gains_too_little_is_stored_as_it_is(payload: bytes, codec: Codec) -> None:
    body = compress_columns(RecordColumns(1, 0, payload, 0, 0), codec=codec)

    assert (body.codec, body.payload) == (Codec.NONE, payload)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_payload_that_shrinks_by_a_tenth_is_compressed(codec: Codec) -> None:
    body = compress_columns(RecordColumns(1, 0, NOISE[:-800] + bytes(800), 0, 0), codec=codec)

    assert body.codec == codec


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_threads_compress_and_inflate_at_the_same_time(codec: Codec) -> None:
    """Each payload is the only one of its kind: what another thread did to it would be seen."""
    payloads = [bytes([number]) * 20_000 + NOISE for number in range(32)]

    def there_and_back(payload: bytes) -> bytes:
        body = compress_columns(RecordColumns(1, 0, payload, 0, 0), codec=codec)
        stored = memoryview(b"".join(stamp_batch(body, place_of()).buffers))
        return bytes(decompress_payload(verify_batch(stored), stored))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(there_and_back, payloads)) == payloads


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("events", [[Event(b"1")], LARGE_EVENTS], ids=["short", "long"])
@pytest.mark.parametrize("entries", [0, 1, 2])
def test_the_columns_come_back_from_a_batch_amid_others(
    events: list[Event], entries: int, codec: Codec
) -> None:
    columns = columns_of(events)
    body = compress_columns(columns, bytes(range(PRODUCER_ENTRY.size)) * entries, codec)
    batch = b"".join(stamp_batch(body, place_of()).buffers)
    stored = memoryview(SMALL_BATCH + batch + SMALL_BATCH)

    header = verify_batch(stored, len(SMALL_BATCH))

    assert header.producer_table_bytes == entries * PRODUCER_ENTRY.size
    assert header.batch_bytes == len(batch)
    assert decompress_payload(header, stored[len(SMALL_BATCH) :]) == columns.payload
    assert decompress_payload(header, memoryview(batch)) == columns.payload


@pytest.mark.parametrize("value_bytes", range(17))
def test_every_batch_ends_on_its_alignment(value_bytes: int) -> None:
    body = BatchBody(1, 0, Codec.NONE, bytes(value_bytes), value_bytes, 0, 0, 0, b"")

    batch = b"".join(stamp_batch(body, place_of()).buffers)

    assert len(batch) % BATCH_ALIGNMENT_BYTES == 0
    assert len(batch) - HEADER_BYTES - value_bytes < BATCH_ALIGNMENT_BYTES


def test_every_truncation_is_refused() -> None:
    for size_bytes in range(len(SMALL_BATCH)):
        assert refusal_of(SMALL_BATCH[:size_bytes])


def test_every_flipped_bit_is_refused() -> None:
    for bit in range(len(SMALL_BATCH) * 8):
        damaged = bytearray(SMALL_BATCH)
        damaged[bit // 8] ^= 1 << bit % 8

        assert refusal_of(bytes(damaged))


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (SMALL_BATCH[:100], "100 bytes at 0: too short for a batch header"),
        (bytes(HEADER_BYTES), "no batch at 0: magic is 0x00000000"),
        (with_fields(SMALL_BATCH, version=2), "version 2 is not known"),
        (with_fields(SMALL_BATCH, codec=Codec.KAFKA_V2), "codec or record count is out of bounds"),
        (with_fields(SMALL_BATCH, record_count=0), "codec or record count is out of bounds"),
        (with_fields(SMALL_BATCH, producer_table_bytes=16), "its producer table is none"),
        (SMALL_BATCH[:-16], "ends 16 bytes too late"),
    ],
)
def test_a_refusal_says_what_is_wrong(stored: bytes, reason: str) -> None:
    assert reason in refusal_of(stored)


def test_a_refusal_says_where_the_batch_is() -> None:
    assert refusal_of(SMALL_BATCH, 16).startswith("no batch at 16")


def test_fill_that_is_not_zero_is_refused() -> None:
    batch = b"".join(stamp_batch(body_of([Event(b"1", key=None)]), place_of()).buffers)
    header = read_header(memoryview(batch))
    assert header.batch_bytes > HEADER_BYTES + header.payload_bytes

    assert refusal_of(batch[:-1] + b"\1").endswith("fill is not zero")


def long_batch(codec: Codec) -> bytes:
    return b"".join(stamp_batch(body_of(LARGE_EVENTS, codec=codec), place_of()).buffers)


@pytest.mark.parametrize(
    ("batch", "uncompressed_bytes"),
    [
        pytest.param(long_batch(codec), uncompressed_bytes, id=f"{codec.name} {what}")
        for codec in (Codec.NONE, Codec.LZ4, Codec.ZSTD)
        for what, uncompressed_bytes in (
            ("larger than it says", 8),
            ("smaller than it says", 4096),
            ("says more than LZ4 can hold", 2**32 - 1),
        )
    ],
)
def test_a_payload_of_another_size_than_its_header_says_is_refused(
    batch: bytes, uncompressed_bytes: int
) -> None:
    stored = memoryview(with_fields(batch, uncompressed_bytes=uncompressed_bytes))
    header = verify_batch(stored)

    with pytest.raises(CorruptBatchError):
        decompress_payload(header, stored)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_payload_that_is_not_compressed_as_its_header_says_is_refused(codec: Codec) -> None:
    stored = memoryview(with_fields(SMALL_BATCH, codec=codec))

    with pytest.raises(CorruptBatchError, match=f"{codec.name} fails"):
        decompress_payload(verify_batch(stored), stored)


FRAME = ZstdCompressor().compress(bytes(1000))
# A frame's header: magic (4), descriptor (1), content size minus 256 (2) (RFC 8878, 3.1.1.1).
LYING_FRAME = FRAME[:5] + (100).to_bytes(2, "little") + FRAME[7:]


@pytest.mark.parametrize(
    ("payload", "uncompressed_bytes", "reason"),
    [
        pytest.param(
            ZstdCompressor(write_content_size=False).compress(bytes(1000)),
            1000,
            "states -1 bytes, not 1000",
            id="size not stated",
        ),
        pytest.param(FRAME, 1001, "states 1000 bytes, not 1001", id="another size stated"),
        pytest.param(FRAME * 2, 1000, "unused data", id="two frames"),
        pytest.param(FRAME + b"x", 1000, "unused data", id="something behind"),
        pytest.param(FRAME[:-1], 1000, "ZSTD fails", id="cut short"),
        pytest.param(LYING_FRAME, 356, "ZSTD fails", id="inflates to more than it states"),
        pytest.param(b"", 0, "ZSTD fails", id="empty"),
    ],
)
def test_what_is_not_exactly_one_frame_of_that_size_is_refused(
    payload: bytes, uncompressed_bytes: int, reason: str
) -> None:
    stored = forged_batch(payload, codec=Codec.ZSTD, uncompressed_bytes=uncompressed_bytes)

    with pytest.raises(CorruptBatchError, match=reason):
        decompress_payload(verify_batch(memoryview(stored)), memoryview(stored))


def test_a_frame_is_inflated_again_after_one_that_failed() -> None:
    good = memoryview(forged_batch(FRAME, codec=Codec.ZSTD, uncompressed_bytes=1000))
    bad = memoryview(forged_batch(FRAME[:-1], codec=Codec.ZSTD, uncompressed_bytes=1000))

    for _ in range(3):
        with pytest.raises(CorruptBatchError):
            decompress_payload(verify_batch(bad), bad)
        assert decompress_payload(verify_batch(good), good) == bytes(1000)


@pytest.mark.parametrize(("value_bytes", "buffer_count"), [(100, 1), (8192, 4)])
def test_a_small_batch_is_one_buffer(value_bytes: int, buffer_count: int) -> None:
    batch = stamp_batch(body_of([Event(random.Random(1).randbytes(value_bytes))]), place_of())

    assert len(batch.buffers) == buffer_count
    assert verify_batch(batch.contents()) == batch.header


# --- batches back to back -------------------------------------------------------------------------


def test_batches_of_a_message_are_views_of_it() -> None:
    table = encode_table([TableEntry(bytes(16), 7, 0, 1)])
    first = b"".join(stamp_batch(body_of([Event(b"1")], producer_table=table), place_of()).buffers)
    second = batch_of([Event(b"2")], base_offset=1, previous_epoch=1)
    found = verified_batches(memoryview(first + second))

    assert [bytes(each.contents()) for each in found] == [first, second]
    assert [bytes(each.buffers[1]) for each in found] == [table, b""]
    assert verified_batches(memoryview(b"")) == []


@pytest.mark.parametrize("position", [20, 200])
def test_a_message_with_a_damaged_batch_is_refused(position: int) -> None:
    stored = bytearray(batch_of([Event(b"1")]) + batch_of([Event(bytes(range(200)))]))
    stored[-position] ^= 1
    for damaged in (stored, stored[:-16]):
        with pytest.raises(CorruptBatchError):
            verified_batches(memoryview(bytes(damaged)))
