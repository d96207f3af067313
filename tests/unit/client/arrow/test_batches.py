"""The decoder against a writer of its own: record by record, from the tables in `tailrace.wire`."""

import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import lz4.block
import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tailrace.arrow.batches import (
    SCHEMA,
    SCHEMA_WITH_HEADERS,
    coalesce,
    decode_batches,
    split_batches,
)
from tailrace.errors import CorruptBatchError
from tailrace.wire import HEADER, BatchHeader, Codec, Flag
from tailrace_broker.codec.batch import BatchPlace, compress_columns, stamp_batch
from tailrace_broker.codec.columns import (
    HeaderColumns,
    column_of_values,
    offsets_of_lengths,
    pack_columns,
)

TOPIC = "flights"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Record(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp_us: int = 1_764_000_000_000_000
    headers: tuple[tuple[str, bytes], ...] = ()


def padded(column: bytes) -> bytes:
    return column + bytes(-len(column) % 8)


def offsets_of(values: list[bytes]) -> bytes:
    ends = [sum(map(len, values[:index])) for index in range(len(values) + 1)]
    return struct.pack(f"<{len(ends)}i", *ends)


def bitmap_of(values: list[bytes | None]) -> bytes:
    bits = sum(1 << index for index, value in enumerate(values) if value is not None)
    return bits.to_bytes(-(-len(values) // 8), "little")


def write_payload(records: list[Record], flags: Flag) -> bytes:
    values = [record.value or b"" for record in records]
    keys = [record.key or b"" for record in records]
    headers = [header for record in records for header in record.headers]
    header_keys = [key.encode() for key, _ in headers]
    header_values = [value for _, value in headers]
    columns = [offsets_of(values), offsets_of(keys)]
    columns.append(struct.pack(f"<{len(records)}q", *[record.timestamp_us for record in records]))
    if Flag.NULL_VALUES in flags:
        columns.append(bitmap_of([record.value for record in records]))
    if Flag.NULL_KEYS in flags:
        columns.append(bitmap_of([record.key for record in records]))
    if Flag.HEADERS in flags:
        columns.append(offsets_of([bytes(len(record.headers)) for record in records]))
        columns += [offsets_of(header_keys), offsets_of(header_values)]
    columns += [b"".join(values), b"".join(keys)]
    if Flag.HEADERS in flags:
        columns += [b"".join(header_keys), b"".join(header_values)]
    return b"".join(map(padded, columns))


def flags_of(records: list[Record]) -> Flag:
    flags = Flag(0)
    if any(record.key is None for record in records):
        flags |= Flag.NULL_KEYS
    if any(record.value is None for record in records):
        flags |= Flag.NULL_VALUES
    if any(record.headers for record in records):
        flags |= Flag.HEADERS
    return flags


def compress(payload: bytes, codec: int) -> bytes:
    if codec == Codec.LZ4:
        return bytes(lz4.block.compress(payload, store_size=False))
    return bytes(pa.Codec("zstd").compress(payload)) if codec == Codec.ZSTD else payload


def write_batch(
    records: list[Record],
    *,
    base_offset: int = 0,
    codec: int = Codec.NONE,
    flags: int | None = None,
    payload: bytes | None = None,
    producer_table: bytes = b"",
    version: int = 1,
    record_count: int | None = None,
    partition: int = 3,
    uncompressed_bytes: int | None = None,
) -> bytes:
    """A batch with right checksums, whatever else a test makes it say."""
    flags = int(flags_of(records) if flags is None else flags)
    columns = write_payload(records, Flag(flags & 7)) if payload is None else payload
    stored = compress(columns, codec)
    timestamps = [record.timestamp_us for record in records]
    rest = struct.pack(
        "<IIIB3xIq16sQIIQQqqqq8x",
        crc32c(producer_table + stored),
        len(stored),
        len(columns) if uncompressed_bytes is None else uncompressed_bytes,
        codec,
        len(records) if record_count is None else record_count,
        base_offset,
        bytes(range(16)),
        0,
        partition,
        len(producer_table),
        1,
        1,
        timestamps[0],
        timestamps[0],
        max(timestamps),
        base_offset,
    )
    start = b"TRLB" + struct.pack("<HH", version, flags)
    batch = start + struct.pack("<I", crc32c(start + rest)) + rest + producer_table + stored
    return batch + bytes(-len(batch) % 16)


def rows_of(records: list[Record], base_offset: int = 0) -> list[dict[str, object]]:
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": TOPIC,
            "partition": 3,
            "offset": base_offset + index,
            "timestamp": EPOCH + timedelta(microseconds=record.timestamp_us),
            "timestampType": 0,
            "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
        }
        for index, record in enumerate(records)
    ]


def decode(
    answer: bytes, *, start: int = 0, end: int | None = None, include_headers: bool = True
) -> list[dict[str, object]]:
    batches = decode_batches(
        answer, topic=TOPIC, start=start, end=end, include_headers=include_headers
    )
    return [row for batch in batches for row in batch.to_pylist()]


def written_batches(groups: list[list[Record]], codec: int = Codec.NONE) -> Iterator[bytes]:
    base_offset = 0
    for records in groups:
        yield write_batch(records, base_offset=base_offset, codec=codec)
        base_offset += len(records)


RECORDS = [
    Record(b"SFO", b'{"delayMinutes":4}', headers=(("trace", b"\x01"), ("", b""))),
    Record(None, b""),
    Record(b"", None, timestamp_us=1),
]
PLAIN_RECORDS = [Record(b"k%d" % index, b"value %d" % index) for index in range(5)]

record_lists = st.lists(
    st.builds(
        Record,
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=50),
        st.integers(0, 4_000_000_000_000_000),
        st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=5,
)


@given(record_lists, st.sampled_from([Codec.NONE, Codec.LZ4, Codec.ZSTD]))
def test_a_batch_decodes_to_the_records_that_were_written(
    records: list[Record], codec: Codec
) -> None:
    answer = write_batch(records, base_offset=7, codec=codec)

    assert decode(answer, start=7) == rows_of(records, base_offset=7)


def encode_by_broker(records: list[Record], base_offset: int) -> bytes:
    entries = [header for record in records for header in record.headers]
    counts = np.array([len(record.headers) for record in records], np.int32)
    columns = pack_columns(
        column_of_values([record.value for record in records]),
        column_of_values([record.key for record in records]),
        np.array([record.timestamp_us for record in records], np.int64),
        headers=HeaderColumns(
            offsets_of_lengths(counts),
            column_of_values([key.encode() for key, _ in entries]),
            column_of_values([value for _, value in entries]),
        )
        if entries
        else None,
    )
    place = BatchPlace(
        topic_id=UUID(bytes=bytes(range(16))),
        range_id=0,
        partition=3,
        epoch=1,
        previous_epoch=1,
        base_offset=base_offset,
        append_time_us=records[0].timestamp_us,
        high_watermark=base_offset,
    )
    return b"".join(stamp_batch(compress_columns(columns), place).buffers)


@given(record_lists)
def test_the_brokers_encoder_writes_the_same_bytes(records: list[Record]) -> None:
    batch = encode_by_broker(records, base_offset=7)
    codec = BatchHeader._make(HEADER.unpack_from(batch)).codec

    assert decode(batch, start=7) == rows_of(records, base_offset=7)
    assert batch == write_batch(records, base_offset=7, codec=codec)


@given(st.lists(record_lists, min_size=1, max_size=3), st.data())
def test_only_records_in_the_asked_range_are_decoded(
    groups: list[list[Record]], data: st.DataObject
) -> None:
    records = [record for group in groups for record in group]
    start = data.draw(st.integers(0, len(groups[0]) - 1))
    end = data.draw(st.none() | st.integers(start, len(records) + 2))

    rows = decode(b"".join(written_batches(groups)), start=start, end=end)

    assert rows == rows_of(records)[start:end]


@given(st.lists(record_lists, min_size=1, max_size=3), st.integers(1, 9))
def test_coalescing_keeps_every_row_and_fills_all_record_batches_but_the_last(
    groups: list[list[Record]], rows: int
) -> None:
    answer = b"".join(written_batches(groups))
    batches = list(coalesce(decode_batches(answer, topic=TOPIC, start=0), rows=rows))

    count = sum(map(len, groups))
    assert [row["offset"] for batch in batches for row in batch.to_pylist()] == list(range(count))
    assert [batch.num_rows for batch in batches[:-1]] == [rows] * (-(-count // rows) - 1)
    assert all(batch.schema == SCHEMA for batch in batches)


def test_coalescing_hands_on_long_values_before_they_add_up() -> None:
    groups = [[Record(None, bytes(9 * 1024 * 1024))] for _ in range(4)]
    batches = decode_batches(b"".join(written_batches(groups)), topic=TOPIC, start=0)

    assert [batch.num_rows for batch in coalesce(batches, rows=20_000)] == [2, 2]


def test_an_uncompressed_payload_is_used_in_place() -> None:
    answer = write_batch(PLAIN_RECORDS)
    start = pa.py_buffer(answer).address

    (batch,) = decode_batches(answer, topic=TOPIC, start=0)

    addresses = [
        buffer.address
        for name in ("key", "value", "timestamp")
        for buffer in batch.column(name).buffers()
        if buffer is not None
    ]
    assert all(start <= address < start + len(answer) for address in addresses)


def test_headers_are_left_out_unless_asked_for() -> None:
    answer = write_batch(RECORDS)

    (without,) = decode_batches(answer, topic=TOPIC, start=0)
    (with_headers,) = decode_batches(answer, topic=TOPIC, start=0, include_headers=True)

    assert without.schema == SCHEMA
    assert with_headers.schema == SCHEMA_WITH_HEADERS


def test_a_producer_table_is_stepped_over() -> None:
    answer = write_batch(PLAIN_RECORDS, producer_table=bytes(range(32)))

    assert decode(answer) == rows_of(PLAIN_RECORDS)


@pytest.mark.parametrize(("flags", "expected"), [(0, 0), (Flag.BROKER_TIMESTAMPS, 1)])
def test_timestamp_type_says_whose_clock_it_was(flags: int, expected: int) -> None:
    rows = decode(write_batch(PLAIN_RECORDS, flags=flags | Flag.JSON_VALUES))

    assert {row["timestampType"] for row in rows} == {expected}


def test_an_empty_answer_holds_no_batch() -> None:
    assert decode(b"", start=5) == []


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
def test_every_single_bit_flip_is_refused(codec: Codec) -> None:
    batch = write_batch(RECORDS, codec=codec, producer_table=bytes(32))

    for bit in range(len(batch) * 8):
        flipped = bytearray(batch)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBatchError):
            decode(bytes(flipped))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
def test_every_truncation_is_refused(codec: Codec) -> None:
    first, second = written_batches([RECORDS, PLAIN_RECORDS], codec)
    answer = first + second

    assert decode(first) == rows_of(RECORDS)
    for size_bytes in set(range(1, len(answer))) - {len(first)}:
        with pytest.raises(CorruptBatchError):
            decode(answer[:size_bytes])


def test_a_truncated_batch_behind_the_end_is_refused_too() -> None:
    first, second = written_batches([RECORDS, PLAIN_RECORDS])

    with pytest.raises(CorruptBatchError, match="16 bytes are missing"):
        decode((first + second)[:-16], end=1)


def with_int32(column: int, index: int, value: int) -> Callable[[bytes], bytes]:
    """A lie in one offset of PLAIN_RECORDS' payload; columns 0 and 1 take 24 bytes each."""

    def edit(payload: bytes) -> bytes:
        position = 24 * column + 4 * index
        return payload[:position] + struct.pack("<i", value) + payload[position + 4 :]

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(with_int32(0, 2, 3), id="value offsets go back"),
        pytest.param(with_int32(0, 2, 2**31 - 1), id="value offset after the column"),
        pytest.param(with_int32(0, 0, 1), id="value offsets start late"),
        pytest.param(with_int32(0, 5, -1), id="value offsets end negative"),
        pytest.param(with_int32(0, 5, 4096), id="values end after the payload"),
        pytest.param(with_int32(1, 1, -5), id="key offset negative"),
        pytest.param(lambda payload: payload + bytes(8), id="bytes behind the last column"),
        pytest.param(lambda payload: payload[:-8], id="last column is missing"),
        pytest.param(lambda payload: payload[:-4], id="last column is not filled"),
        pytest.param(lambda payload: b"", id="nothing"),
    ],
)
def test_columns_that_contradict_themselves_are_refused(edit: Callable[[bytes], bytes]) -> None:
    payload = edit(write_payload(PLAIN_RECORDS, Flag(0)))

    with pytest.raises(CorruptBatchError):
        decode(write_batch(PLAIN_RECORDS, payload=payload))


@pytest.mark.parametrize(
    "lie",
    [
        {"version": 2},
        {"flags": 32},
        {"codec": Codec.KAFKA_V2},
        {"codec": 9},
        {"record_count": 0},
        {"record_count": 6},
        {"record_count": 2**32 - 1},
        {"partition": 2**31},
        {"base_offset": -1},
        {"base_offset": 2**63 - 2},
        {"producer_table": bytes(31)},
        {"uncompressed_bytes": 8},
        {"codec": Codec.LZ4, "uncompressed_bytes": 8},
        {"codec": Codec.ZSTD, "uncompressed_bytes": 8},
    ],
    ids=str,
)
def test_headers_out_of_bounds_are_refused(lie: dict[str, int]) -> None:
    answer = write_batch(PLAIN_RECORDS, **lie)  # type: ignore[arg-type]

    with pytest.raises(CorruptBatchError):
        decode(answer, start=max(0, lie.get("base_offset", 0)))


def test_a_batch_without_records_is_refused() -> None:
    first = write_batch(PLAIN_RECORDS)

    with pytest.raises(CorruptBatchError, match="out of bounds"):
        decode(first + write_batch(PLAIN_RECORDS, base_offset=5, record_count=0))


def test_a_header_key_that_is_not_utf8_is_refused() -> None:
    records = [Record(None, b"v", headers=(("key", b""),))]
    payload = write_payload(records, flags_of(records)).replace(b"key", b"\xffey")

    with pytest.raises(CorruptBatchError, match="UTF8"):
        decode(write_batch(records, payload=payload))


@pytest.mark.parametrize("start", [0, 1, 7])
def test_an_answer_that_does_not_cover_the_asked_offset_is_refused(start: int) -> None:
    with pytest.raises(CorruptBatchError, match=f"does not cover {start}"):
        decode(write_batch(PLAIN_RECORDS, base_offset=2), start=start)


@pytest.mark.parametrize("second_base_offset", [4, 6])
def test_an_offset_missing_or_twice_between_two_batches_is_refused(second_base_offset: int) -> None:
    first = write_batch(PLAIN_RECORDS)
    second = write_batch(PLAIN_RECORDS, base_offset=second_base_offset)

    with pytest.raises(CorruptBatchError, match="offset 5 is missing"):
        decode(first + second)


def test_split_batches_gives_every_header_and_payload() -> None:
    first, second = written_batches([RECORDS, PLAIN_RECORDS])

    batches = list(split_batches(first + second))

    assert [batch.header.base_offset for batch in batches] == [0, len(RECORDS)]
    assert batches[1].payload.to_pybytes() == write_payload(PLAIN_RECORDS, Flag(0))
