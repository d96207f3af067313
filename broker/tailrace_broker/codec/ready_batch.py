"""A ready-made batch, as a producer's client compressed it -> the body that is stored unchanged.

Everything that a reader relies on is checked here, once: nobody checks the columns again before
they are read. What only the leader may say is not taken over: offsets, epochs, append time, topic,
and the flags that promise something of the values or the times.
"""

import numpy as np

from tailrace.wire import HEADER_BYTES, BatchHeader, Codec, Flag
from tailrace_broker.codec.batch import BatchBody, decompress_payload, verify_batch
from tailrace_broker.codec.column_reader import ColumnReader
from tailrace_broker.codec.columns import (
    PAYLOAD_BYTES_MAX,
    Buffer,
    Int32s,
    Int64s,
    check_event_count,
    check_header_count,
)
from tailrace_broker.model.errors import BodyTooLargeError, CorruptBatchError, InvalidBodyError

_LAYOUT_FLAGS = int(Flag.NULL_KEYS | Flag.NULL_VALUES | Flag.HEADERS)
_KNOWN_FLAGS = int(sum(Flag))
_CONTINUATION_MASK, _CONTINUATION = 0xC0, 0x80  # a byte inside a character (RFC 3629)


def parse_ready_batch(body: Buffer) -> BatchBody:
    """Read a body that is one whole batch, of any codec, without a producer table.

    InvalidBodyError says what does not fit; BodyTooLargeError before anything is inflated.
    """
    stored = memoryview(body)
    try:
        header = verify_batch(stored)
        _check_header(header, len(stored))
        timestamps_us = _check_columns(header, decompress_payload(header, stored))
    except CorruptBatchError as error:
        raise InvalidBodyError(f"the body is not one whole batch: {error}") from error
    if timestamps_us.min() < 0:
        raise InvalidBodyError("the batch's timestamps: a time is before 1970")
    return BatchBody(
        record_count=header.record_count,
        flags=header.flags & _LAYOUT_FLAGS,
        codec=Codec(header.codec),
        payload=bytes(stored[HEADER_BYTES : HEADER_BYTES + header.payload_bytes]),
        uncompressed_bytes=header.uncompressed_bytes,
        payload_crc=header.payload_crc,
        first_timestamp_us=int(timestamps_us[0]),
        largest_timestamp_us=int(timestamps_us.max()),
        producer_table=b"",
    )


def _check_header(header: BatchHeader, body_bytes: int) -> None:
    """Check what the header alone proves."""
    if header.batch_bytes != body_bytes:
        raise CorruptBatchError(f"{body_bytes - header.batch_bytes} bytes follow it")
    if header.producer_table_bytes:
        raise CorruptBatchError("it has a producer table, which only brokers write")
    if header.flags & ~_KNOWN_FLAGS:
        raise CorruptBatchError(f"its flags {header.flags:#x} are not known")
    check_event_count(header.record_count)
    if header.uncompressed_bytes > PAYLOAD_BYTES_MAX:
        raise BodyTooLargeError(
            f"the batch's payload is over {PAYLOAD_BYTES_MAX} bytes before compression; "
            "send fewer events a batch",
            maxPayloadBytes=PAYLOAD_BYTES_MAX,
        )


def _check_columns(header: BatchHeader, payload: memoryview) -> Int64s:
    """Every column inside its bounds, header keys UTF-8; the timestamps. CorruptBatchError."""
    reader = ColumnReader(payload)
    count = header.record_count
    value_offsets = reader.offsets(count)
    key_offsets = reader.offsets(count)
    timestamps_us = reader.timestamps(count)
    for flag in (Flag.NULL_VALUES, Flag.NULL_KEYS):
        if header.flags & flag:
            reader.bitmap(count)
    if header.flags & Flag.HEADERS:
        header_count = int(reader.offsets(count)[-1])
        check_header_count(header_count)
        header_key_offsets = reader.offsets(header_count)
        header_value_offsets = reader.offsets(header_count)
    reader.take(int(value_offsets[-1]))
    reader.take(int(key_offsets[-1]))
    if header.flags & Flag.HEADERS:
        _check_utf8(header_key_offsets, reader.take(int(header_key_offsets[-1])))
        reader.take(int(header_value_offsets[-1]))
    reader.expect_end()
    return timestamps_us


def _check_utf8(offsets: Int32s, keys: memoryview) -> None:
    """Each header key separately: all together are UTF-8, and none starts within a character."""
    try:
        str(keys, "utf-8")
    except UnicodeDecodeError as error:
        raise CorruptBatchError(f"its header keys are not UTF-8: {error}") from error
    starts = offsets[offsets < len(keys)]
    if ((np.frombuffer(keys, np.uint8)[starts] & _CONTINUATION_MASK) == _CONTINUATION).any():
        raise CorruptBatchError("its header keys are not UTF-8: one ends within a character")
