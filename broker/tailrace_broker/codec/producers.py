"""Producer tables of batches, and `producers`, a partition's checkpoint of what its producers sent.

A table is `tailrace.wire.PRODUCER_ENTRY` records between a batch's header and its payload.

Checkpoint, version 1, little-endian: header of 24 bytes (magic u32 `TRLW`, version u32, end offset
i64: what it says holds for the log below it, producer count u32, CRC-32C u32 of the 20 bytes before
and of all behind), then for each producer, the one that has been silent longest first:

| type  | field          | meaning                                                               |
|-------|----------------|-----------------------------------------------------------------------|
| 16 B  | id             | BLAKE2b-128 of the name that it gave                                  |
| i64   | forgotten      | its highest sequence that is no longer among the rows; -1: none        |
| i64   | last_append_us | append time of its last batch                                         |
| u32   | row count      | 0 for a producer that has been silent for long                        |
| 28 B each | rows       | sequence i64, offset i64, append time i64 µs, record count u32, in the |
|       |                | order of the log                                                      |
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from tailrace.wire import PRODUCER_ENTRY
from tailrace_broker.codec.batch import BatchBody
from tailrace_broker.model.errors import CorruptBatchError

CHECKPOINT_MAGIC = int.from_bytes(b"TRLW", "little")
CHECKPOINT_VERSION = 1
NO_SEQUENCE = -1
ROW = struct.Struct("<qqqI")

_HEADER = struct.Struct("<IIqI")
_CRC = struct.Struct("<I")
_PRODUCER = struct.Struct("<16sqqI")


class TableEntry(NamedTuple):
    """Which of a batch's records one request of a producer brought."""

    id: bytes
    sequence: int
    first_record: int
    record_count: int


class Row(NamedTuple):
    """One append of a producer that is remembered."""

    sequence: int
    offset: int
    append_time_us: int
    record_count: int


class ProducerState(NamedTuple):
    """What is remembered of one producer; `rows`: `ROW` each."""

    id: bytes
    forgotten: int
    last_append_us: int
    rows: bytes


class Checkpoint(NamedTuple):
    """All producers of a partition, as the log below `end_offset` has them."""

    end_offset: int
    producers: Sequence[ProducerState]


def encode_table(entries: Sequence[TableEntry]) -> bytes:
    """A batch's producer table; empty for no entries."""
    return b"".join(PRODUCER_ENTRY.pack(*entry) for entry in entries)


def decode_table(table: bytes | memoryview) -> Iterator[TableEntry]:
    """The entries of a table, whose batch was verified."""
    return map(TableEntry._make, PRODUCER_ENTRY.iter_unpack(table))


def with_table(body: BatchBody, table: bytes) -> BatchBody:
    """A body that was made without a producer table, with this one."""
    assert not body.producer_table
    payload_crc = crc32c(body.payload, crc32c(table))
    return body._replace(producer_table=table, payload_crc=payload_crc)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the bytes of the checkpoint file."""
    producers = b"".join(
        _PRODUCER.pack(*state[:3], len(state.rows) // ROW.size) + state.rows
        for state in checkpoint.producers
    )
    count = len(checkpoint.producers)
    head = _HEADER.pack(CHECKPOINT_MAGIC, CHECKPOINT_VERSION, checkpoint.end_offset, count)
    return head + _CRC.pack(crc32c(producers, crc32c(head))) + producers


def decode_checkpoint(stored: bytes) -> Checkpoint:
    """Read a checkpoint file; CorruptBatchError when it is not whole (the log has it then)."""
    if len(stored) < _HEADER.size + _CRC.size:
        raise CorruptBatchError("producers file: too short")
    magic, version, end_offset, count = _HEADER.unpack_from(stored)
    (crc,) = _CRC.unpack_from(stored, _HEADER.size)
    if magic != CHECKPOINT_MAGIC or version != CHECKPOINT_VERSION:
        raise CorruptBatchError("producers file: magic or version does not fit")
    position = _HEADER.size + _CRC.size
    if crc != crc32c(stored[position:], crc32c(stored[: _HEADER.size])):
        raise CorruptBatchError("producers file: checksum does not match")
    producers = []
    for _ in range(count):
        if position + _PRODUCER.size > len(stored):
            raise CorruptBatchError("producers file: fewer producers than it says")
        *known, row_count = _PRODUCER.unpack_from(stored, position)
        position += _PRODUCER.size
        rows = stored[position : position + row_count * ROW.size]
        if len(rows) < row_count * ROW.size:
            raise CorruptBatchError("producers file: fewer rows than it says")
        position += len(rows)
        producers.append(ProducerState._make([*known, rows]))
    return Checkpoint(end_offset, producers)
