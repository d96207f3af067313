"""The public byte formats, version 1: what producers send, brokers store and readers get.

Pure: no I/O, standard library only. A batch is stored, replicated and served unchanged, so this
layout is at once the disk format, the replication format and the answer to a binary read.

Batch: `header (128 B) | producer table | payload | zero fill to a multiple of 16 bytes`, all
little-endian. Header:

| at  | type | field              | meaning                                                        |
|-----|------|--------------------|----------------------------------------------------------------|
| 0   | u32  | magic              | `TRLB`                                                         |
| 4   | u16  | version            | 1                                                              |
| 6   | u16  | flags              | `Flag`                                                         |
| 8   | u32  | header_crc         | CRC-32C of header bytes [0, 8) and [12, 128)                   |
| 12  | u32  | payload_crc        | CRC-32C of producer table and payload as stored                |
| 16  | u32  | payload_bytes      | payload as stored (compressed)                                 |
| 20  | u32  | uncompressed_bytes | payload before compression                                     |
| 24  | u8   | codec              | `Codec`; 3 zero bytes follow                                   |
| 28  | u32  | record_count       | at least 1                                                     |
| 32  | i64  | base_offset        | offset of the first record; the others follow densely          |
| 40  | 16 B | topic_id           | UUID bytes                                                     |
| 56  | u64  | range_id           | the range that the batch was appended to                       |
| 64  | u32  | partition          | partition id within the topic                                  |
| 68  | u32  | producer_table_bytes | a multiple of 32: `PRODUCER_ENTRY` each                      |
| 72  | u64  | epoch              | of the leader that appended                                    |
| 80  | u64  | previous_epoch     | of the batch before; 0 for a partition's first                 |
| 88  | i64  | append_time_us     | leader's clock, never decreasing within a partition            |
| 96  | i64  | first_timestamp_us | of the first record                                            |
| 104 | i64  | largest_timestamp_us | largest of the batch                                         |
| 112 | i64  | high_watermark     | the partition's when the batch was appended, as far as it was  |
|     |      |                    | durable then: what recovery may never cut                      |
|     |      |                    | (docs/decisions/003-high-watermark-in-the-header.md)           |
| 120 | 8 B  | reserved           | zero                                                           |

Payload (before compression), n = record_count, h = number of record headers; each column is in
Arrow's memory layout, little-endian, zero filled to a multiple of 8 bytes (the last one too):

| column               | type       | when                |
|----------------------|------------|---------------------|
| value_offsets        | i32[n + 1] | always              |
| key_offsets          | i32[n + 1] | always              |
| timestamps           | i64[n]     | always; µs since epoch |
| value_validity       | bitmap[n]  | `Flag.NULL_VALUES`  |
| key_validity         | bitmap[n]  | `Flag.NULL_KEYS`    |
| header_offsets       | i32[n + 1] | `Flag.HEADERS`: of each record's list |
| header_key_offsets   | i32[h + 1] | `Flag.HEADERS`      |
| header_value_offsets | i32[h + 1] | `Flag.HEADERS`      |
| values               | bytes      | always              |
| keys                 | bytes      | always              |
| header_keys          | bytes      | `Flag.HEADERS`; UTF-8 |
| header_values        | bytes      | `Flag.HEADERS`      |

Source of the column layouts: Arrow columnar format 1.5, "Physical memory layout".
"""

import struct
from enum import IntEnum, IntFlag
from typing import NamedTuple

__all__ = [
    "BATCH_ALIGNMENT_BYTES",
    "BATCH_CONTENT_TYPE",
    "BATCH_MAGIC",
    "CLEAN_STOP_FILE",
    "COLUMN_ALIGNMENT_BYTES",
    "DAMAGED_SUFFIX",
    "DAMAGE_FILE",
    "DAMAGE_HEADER",
    "DAMAGE_LOSS",
    "DAMAGE_MAGIC",
    "DAMAGE_VERSION",
    "DELETED_TOPIC_FILE",
    "FORMAT_VERSION",
    "HEADER",
    "HEADER_BYTES",
    "INDEX_ENTRY",
    "INDEX_EPOCH",
    "INDEX_HEADER",
    "INDEX_MAGIC",
    "INDEX_VERSION",
    "INTEGER_US_MIN",
    "INVENTORY_FILE",
    "JOURNAL_BLOCK_BYTES",
    "JOURNAL_CUT",
    "JOURNAL_CUT_MAGIC",
    "JOURNAL_FILE_HEADER",
    "JOURNAL_FILE_MAGIC",
    "JOURNAL_FRAME_HEADER",
    "JOURNAL_FRAME_MAGIC",
    "JOURNAL_VERSION",
    "JSON_CONTENT_TYPE",
    "LARGEST_REQUEST_BYTES",
    "LOG_START_FILE",
    "METADATA_LOGS",
    "META_FILE",
    "NDJSON_CONTENT_TYPE",
    "PAD_HEADER",
    "PAD_MAGIC",
    "PRODUCER_ENTRY",
    "PURGED_SUFFIX",
    "RECORDS_CONTENT_TYPE",
    "RECORDS_HEADER",
    "RECORDS_JSON_CONTENT_TYPE",
    "RECORDS_MAGIC",
    "TIMESTAMP_US_MAX",
    "TRASH",
    "BatchHeader",
    "Codec",
    "Flag",
    "RecordsFlag",
    "align_up",
    "check_integer_us",
]

FORMAT_VERSION = 1
BATCH_MAGIC = int.from_bytes(b"TRLB", "little")
HEADER = struct.Struct("<IHHIIIIB3xIq16sQIIQQqqqq8x")
HEADER_BYTES = 128
PRODUCER_ENTRY = struct.Struct("<16sqII")  # producer id, sequence, first record, record count
BATCH_ALIGNMENT_BYTES = 16  # so that a pad header (16 B) always fits behind a batch
COLUMN_ALIGNMENT_BYTES = 8  # Arrow's minimum; buffers can be used in place

JSON_CONTENT_TYPE = "application/json"
NDJSON_CONTENT_TYPE = "application/x-ndjson"
BATCH_CONTENT_TYPE = "application/vnd.tailrace.batch"
RECORDS_CONTENT_TYPE = "application/vnd.tailrace.records+binary"
RECORDS_JSON_CONTENT_TYPE = "application/vnd.tailrace.records+json"
# 2001-01-01: a request's integer below it most likely counts seconds or milliseconds.
INTEGER_US_MIN = 978_307_200_000_000
# Six digits more than now: about the year 33,000.
TIMESTAMP_US_MAX = 10**18 - 1
# 2100-01-01: an integer of another unit is taken for a time up to here.
_MEANT_US_MAX = 4_102_444_800_000_000
# What a broker takes in one request at most, however high its own bound is set.
LARGEST_REQUEST_BYTES = 16 * 1024 * 1024

assert HEADER.size == HEADER_BYTES
assert PRODUCER_ENTRY.size == 32


class Flag(IntFlag):
    """What a batch's columns hold; the header's `flags`."""

    NULL_KEYS = 1
    NULL_VALUES = 2
    HEADERS = 4
    JSON_VALUES = 8  # every value was checked to be one JSON text in UTF-8
    BROKER_TIMESTAMPS = 16  # the broker stamped every record; none came with its own time


class Codec(IntEnum):
    """How a payload is compressed. LZ4 is one raw block, as Arrow's `lz4_raw` reads it."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2
    KAFKA_V2 = 3  # reserved: a Kafka record batch, passed through


class BatchHeader(NamedTuple):
    """A batch's header in the order of its bytes; `BatchHeader._make(HEADER.unpack(...))`."""

    magic: int
    version: int
    flags: int
    header_crc: int
    payload_crc: int
    payload_bytes: int
    uncompressed_bytes: int
    codec: int
    record_count: int
    base_offset: int
    topic_id: bytes
    range_id: int
    partition: int
    producer_table_bytes: int
    epoch: int
    previous_epoch: int
    append_time_us: int
    first_timestamp_us: int
    largest_timestamp_us: int
    high_watermark: int

    @property
    def end_offset(self) -> int:
        """The offset after the last record."""
        return self.base_offset + self.record_count

    @property
    def batch_bytes(self) -> int:
        """The whole batch on disk and on the wire, zero fill included."""
        size_bytes = HEADER_BYTES + self.producer_table_bytes + self.payload_bytes
        return size_bytes + -size_bytes % BATCH_ALIGNMENT_BYTES


# --- records+binary: a produce request in which each record has its own key -----------------------
#
# header (32 B), then columns, each at a multiple of 8 bytes from the body's start, zero filled:
#   key lengths i32[n] (-1: null) | value lengths i32[n] (-1: null) | timestamps i64[n] (µs, not
#   negative; flag)
#   | header counts i32[n], header key lengths i32[h], header value lengths i32[h] (flag)
#   | key bytes | value bytes | header key bytes | header value bytes (the last without fill)

RECORDS_MAGIC = int.from_bytes(b"TRLR", "little")
# magic, version u16, flags u16, record count, key bytes, value bytes, header count,
# header key bytes, header value bytes
RECORDS_HEADER = struct.Struct("<IHHIIIIII")

assert RECORDS_HEADER.size == 32


class RecordsFlag(IntFlag):
    """Which optional columns a records+binary body has."""

    TIMESTAMPS = 1
    HEADERS = 2


# --- the parts of a broker's files beside batches; layouts: docs/formats.md -----------------------

PAD_MAGIC = int.from_bytes(b"TRLP", "little")
PAD_HEADER = struct.Struct("<III4x")  # magic, pad bytes with this header, CRC-32C of these two
INDEX_MAGIC = int.from_bytes(b"TRLI", "little")
INDEX_VERSION = 3
# magic, version, segment bytes, end offset, last epoch, last append time, largest timestamp, entry
# count, epoch count; behind it the CRC-32C u32 of all else
INDEX_HEADER = struct.Struct("<IIQqQqqII")
# relative offset, position, largest timestamp of the segment before that position
INDEX_ENTRY = struct.Struct("<IIq")
# epoch, offset of its first batch in the segment
INDEX_EPOCH = struct.Struct("<Qq")
JOURNAL_BLOCK_BYTES = 4096
DAMAGE_MAGIC = int.from_bytes(b"TRLD", "little")
DAMAGE_VERSION = 1
# `codec/damage.py` has the table.
DAMAGE_HEADER = struct.Struct("<IIqqI")
DAMAGE_LOSS = struct.Struct("<qqq")

JOURNAL_FILE_MAGIC = int.from_bytes(b"TRLK", "little")
JOURNAL_FRAME_MAGIC = int.from_bytes(b"TRLJ", "little")
JOURNAL_CUT_MAGIC = int.from_bytes(b"TRLC", "little")
JOURNAL_VERSION = 3
# magic, version, CRC-32C of all else, boot of the journal, its id, sequence of the first frame
JOURNAL_FILE_HEADER = struct.Struct("<IH2xIIQQQ")
# magic, version, CRC-32C of all else, frame bytes, journal id, sequence, durable sequence, entries
JOURNAL_FRAME_HEADER = struct.Struct("<IH2xIIQQQI4x")
# magic, CRC-32C of all behind it, topic id, partition, end offset
JOURNAL_CUT = struct.Struct("<II16sI4xq8x")

assert JOURNAL_FILE_HEADER.size == 40
assert JOURNAL_FRAME_HEADER.size == 48
assert JOURNAL_CUT.size == 48


def align_up(size_bytes: int, alignment_bytes: int) -> int:
    """Round up to a whole multiple of `alignment_bytes`."""
    assert size_bytes >= 0, size_bytes
    return -(-size_bytes // alignment_bytes) * alignment_bytes


# --- names in a broker's data directory; what each holds: docs/formats.md -------------------------

META_FILE = "meta.json"
CLEAN_STOP_FILE = "clean-stop.json"
INVENTORY_FILE = "inventory.json"
LOG_START_FILE = "log-start.json"
DAMAGE_FILE = "damage"
DELETED_TOPIC_FILE = "topic.json"
METADATA_LOGS = ("0.blocks", "1.blocks")
TRASH = "trash"
PURGED_SUFFIX = ".purged"
DAMAGED_SUFFIX = ".damaged"


def check_integer_us(value: int) -> None:
    """Check the unit of a time that somebody wrote as an integer. ValueError: it is no µs."""
    if INTEGER_US_MIN <= value <= TIMESTAMP_US_MAX:
        return
    meant = (value * 1_000, value * 1_000_000, value // 1_000)  # ms, s, ns
    likely = [each for each in meant if INTEGER_US_MIN <= each <= _MEANT_US_MAX]
    if likely:
        raise ValueError(f"{value}; it is in microseconds; did you mean {likely[0]}?")
    if value > TIMESTAMP_US_MAX:
        raise ValueError(f"{value}; it is at most {TIMESTAMP_US_MAX}, in microseconds")
    raise ValueError(
        f"{value}, in microseconds before 2001; write such a time as text, like "
        "1999-12-31T00:00:00Z"
    )
