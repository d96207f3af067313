"""Constructors of batches, writes and logs, so that every option named in a test matters."""

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from crc32c import crc32c

from tailrace.arrow.batches import decode_batches
from tailrace.wire import (
    BATCH_ALIGNMENT_BYTES,
    HEADER,
    RECORDS_HEADER,
    RECORDS_MAGIC,
    BatchHeader,
    Codec,
    RecordsFlag,
)
from tailrace_broker.codec.batch import (
    BatchBody,
    BatchPlace,
    compress_columns,
    decompress_payload,
    stamp_batch,
    verify_batch,
)
from tailrace_broker.codec.columns import (
    HeaderColumns,
    RecordColumns,
    column_of_values,
    offsets_of_lengths,
    pack_columns,
)
from tailrace_broker.codec.records import CutColumns, Record, column_lines, unpack_columns
from tailrace_broker.codec.segment import encode_pad
from tailrace_broker.core.ring.arithmetic import TOKEN_END, TOKEN_MIN
from tailrace_broker.model.topic import Partition, Topic, TopicSettings

TOPIC_ID = UUID("0a4c6f52-8f3e-4d0b-9c1e-5a7b2d3e4f60")
PARTITION = 3
TIME_US = 1_764_000_000_000_000
WRITE_ALIGNMENT_BYTES = 4096

# One partition that was split in two: the parent is sealed and empty from offset 5 on.
SPLIT_TOPIC = Topic(
    "split",
    UUID("5c1f1b36-8c1c-4b5e-8d57-0f7d9e4d2a11"),
    TopicSettings(partitions_per_range=1),
    (
        Partition(0, 0, 1, TOKEN_MIN, TOKEN_END, sealed_end=5, children=(1, 2)),
        Partition(1, 1, 2, 0, TOKEN_END, first_offset=5, parents=(0,)),
        Partition(2, 2, 2, TOKEN_MIN, 0, first_offset=5, parents=(0,)),
    ),
)


class Event(NamedTuple):
    """What a producer sends; None is null."""

    value: bytes | None
    key: bytes | None = b"key"
    timestamp_us: int = TIME_US
    headers: list[tuple[bytes, bytes]] = []  # noqa: RUF012  no test changes it


def columns_of(events: Sequence[Event], *, flags: int = 0) -> RecordColumns:
    """The events as a payload, with header columns when one of them has headers."""
    pairs = [pair for event in events for pair in event.headers]
    headers = HeaderColumns(
        offsets_of_lengths(np.array([len(event.headers) for event in events], np.int32)),
        column_of_values([key for key, _ in pairs]),
        column_of_values([value for _, value in pairs]),
    )
    return pack_columns(
        column_of_values([event.value for event in events]),
        column_of_values([event.key for event in events]),
        np.array([event.timestamp_us for event in events], np.int64),
        headers=headers if pairs else None,
        flags=flags,
    )


def body_of(
    events: Sequence[Event],
    *,
    flags: int = 0,
    producer_table: bytes = b"",
    codec: Codec = Codec.LZ4,
) -> BatchBody:
    """The events compressed and checksummed."""
    return compress_columns(columns_of(events, flags=flags), producer_table, codec)


def place_of(**changes: Any) -> BatchPlace:
    """A partition's first batch, but for `changes`."""
    return BatchPlace(
        topic_id=TOPIC_ID,
        range_id=0,
        partition=PARTITION,
        epoch=1,
        previous_epoch=0,
        base_offset=0,
        append_time_us=TIME_US,
        high_watermark=0,
    )._replace(**changes)


def batch_of(events: Sequence[Event], **place: Any) -> bytes:
    """The whole batch; keywords as for `place_of`."""
    return b"".join(stamp_batch(body_of(events), place_of(**place)).buffers)


def forged_batch(payload: bytes, **fields: Any) -> bytes:
    """A batch of one record with these columns and right checksums, whatever else it says."""
    known = {
        "flags": 0,
        "payload_bytes": len(payload),
        "uncompressed_bytes": len(payload),
        "payload_crc": crc32c(payload),
        "producer_table_bytes": 0,
    }
    header = BatchHeader._make(HEADER.unpack(batch_of([Event(b"")])[: HEADER.size]))
    raw = HEADER.pack(*header._replace(header_crc=0, **{**known, **fields}))
    crc = struct.pack("<I", crc32c(raw[12:], crc32c(raw[:8])))
    return raw[:8] + crc + raw[12:] + payload + bytes(-len(payload) % BATCH_ALIGNMENT_BYTES)


def records_of(events: Sequence[Event], base_offset: int) -> list[Record]:
    """The records that the events become."""
    return [
        Record(base_offset + index, event.timestamp_us, event.key, event.value, event.headers)
        for index, event in enumerate(events)
    ]


def read_by_broker(stored: bytes, position: int = 0) -> list[Record]:
    """The records of the batch at a position, by the broker's reader."""
    view = memoryview(stored)
    header = verify_batch(view, position)
    return unpack_columns(header, decompress_payload(header, view[position:]))


def read_by_client(batch: bytes, base_offset: int) -> list[Record]:
    """The records of one batch, by the client's Arrow decoder."""
    (rows,) = decode_batches(batch, topic="flights", start=base_offset, include_headers=True)
    headers = [
        [(entry["key"].encode(), entry["value"]) for entry in entries or []]
        for entries in rows["headers"].to_pylist()
    ]
    return list(
        map(
            Record,
            rows["offset"].to_pylist(),
            rows["timestamp"].cast("int64").to_pylist(),
            rows["key"].to_pylist(),
            rows["value"].to_pylist(),
            headers,
        )
    )


class Piece(NamedTuple):
    """A batch or a pad of a log, and where the log ends when it is the last."""

    start: int
    end: int
    end_offset: int
    header: BatchHeader | None  # None: a pad


class Log(NamedTuple):
    """A segment's bytes and the pieces that they are made of; `write_ends`: positions."""

    stored: bytes
    pieces: list[Piece]
    write_ends: list[int]


def log_of(writes: Sequence[Sequence[BatchBody]]) -> Log:
    """What a broker stores when it appends each of `writes` after the one before is durable."""
    stored = bytearray()
    pieces: list[Piece] = []
    write_ends: list[int] = []
    end_offset = 0
    for bodies in writes:
        high_watermark = end_offset
        for body in bodies:
            place = place_of(
                base_offset=end_offset,
                previous_epoch=1 if end_offset else 0,
                high_watermark=high_watermark,
            )
            batch = stamp_batch(body, place).contents()
            header = BatchHeader._make(HEADER.unpack_from(batch))
            start = len(stored)
            stored += batch
            end_offset = header.end_offset
            pieces.append(Piece(start, len(stored), end_offset, header))
        start = len(stored)
        stored += encode_pad(-len(stored) % WRITE_ALIGNMENT_BYTES)
        if len(stored) > start:
            pieces.append(Piece(start, len(stored), end_offset, None))
        write_ends.append(len(stored))
    return Log(bytes(stored), pieces, write_ends)


def records_body_of(
    events: Sequence[Event], *, has_timestamps: bool = True, has_headers: bool = True
) -> bytes:
    """The events as a records+binary body, from the table in `tailrace.wire`."""
    keys, values = [event.key for event in events], [event.value for event in events]
    pairs = [pair for event in events for pair in event.headers] if has_headers else []
    header_keys, header_values = [key for key, _ in pairs], [value for _, value in pairs]
    flags = has_timestamps * RecordsFlag.TIMESTAMPS | has_headers * RecordsFlag.HEADERS
    columns = [_lengths_of(keys), _lengths_of(values)]
    if has_timestamps:
        columns.append(struct.pack(f"<{len(events)}q", *[event.timestamp_us for event in events]))
    if has_headers:
        columns.append(struct.pack(f"<{len(events)}i", *[len(event.headers) for event in events]))
        columns += [_lengths_of(header_keys), _lengths_of(header_values)]
    data = [b"".join(filter(None, column)) for column in (keys, values, header_keys, header_values)]
    columns += data if has_headers else data[:2]
    sizes = [len(data[0]), len(data[1]), len(pairs), len(data[2]), len(data[3])]
    header = RECORDS_HEADER.pack(RECORDS_MAGIC, 1, flags, len(events), *sizes)
    filled = [column + bytes(-len(column) % 8) for column in columns[:-1]]
    return b"".join([header, *filled, columns[-1]])


def _lengths_of(values: Sequence[bytes | None]) -> bytes:
    return struct.pack(f"<{len(values)}i", *[-1 if v is None else len(v) for v in values])


def json_lines(
    partition: int, records: Sequence[Record], *, values_are_json: bool, topic: str | None = None
) -> Iterator[bytes]:
    """Records as lines, each made separately."""
    for offset, timestamp_us, key, value, headers in records:
        columns = CutColumns([timestamp_us], [key], [value], [headers])
        yield from column_lines(
            partition, offset, columns, values_are_json=values_are_json, topic=topic
        )
