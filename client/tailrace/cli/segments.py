"""Segment files and their indexes as documents in JSON's terms (formats: docs/formats.md).

Total: what is no valid batch or pad is told as such, and reading goes on behind it.
"""

import base64
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO

from tailrace.cli.ndjson import parse_json
from tailrace.errors import CorruptBatchError
from tailrace.wire import (
    BATCH_MAGIC,
    FORMAT_VERSION,
    HEADER,
    HEADER_BYTES,
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_MAGIC,
    INDEX_VERSION,
    PAD_HEADER,
    PAD_MAGIC,
    BatchHeader,
    Codec,
    Flag,
)

crc32c: Callable[..., int] | None = None
with suppress(ImportError):
    from crc32c import crc32c

BLOCK_BYTES = 4096  # every write starts on a multiple of it
OK, BAD, UNCHECKED = "ok", "bad", "unchecked"
EPOCH = datetime.fromtimestamp(0, UTC)
CRC_BYTES = 4
INDEX_REMEDY = "a broker writes it anew at its next start"

Document = dict[str, Any]


def entries(file: BinaryIO, size_bytes: int) -> Iterator[Document]:
    """Everything in a segment, in order; together the whole file."""
    position = 0
    while position < size_bytes:
        entry = _entry_at(file, position, size_bytes)
        yield {"position": position, **entry}
        position += entry["bytes"]


def records(file: BinaryIO, found: Iterable[Document]) -> Iterator[list[Document]]:
    """The records of each batch among these entries, as a read of a broker has them.

    Needs the extra `arrow`. CorruptBatchError names the first offset that cannot be read.
    """
    from tailrace.arrow import decode_batches

    for entry in found:
        if entry["kind"] == "batch":
            stored = _read(file, entry["position"], entry["bytes"])
            start = entry["firstOffset"]
            try:
                [batch] = decode_batches(stored, topic="", start=start, include_headers=True)
            except CorruptBatchError as error:
                raise CorruptBatchError(f"offset {start} cannot be read ({error})") from error
            yield [_record(row) for row in batch.to_pylist()]


def read_index(stored: bytes) -> Document:
    """An index file. CorruptBatchError: it is none, is cut short, or of another version."""
    entries_start = INDEX_HEADER.size + CRC_BYTES
    if len(stored) < entries_start or stored[:4] != INDEX_MAGIC.to_bytes(4, "little"):
        raise CorruptBatchError(f"not an index: {INDEX_REMEDY}")
    _, version, size_bytes, end_offset, last_epoch, append_us, largest_us, count = (
        INDEX_HEADER.unpack_from(stored)
    )
    if version != INDEX_VERSION:
        raise CorruptBatchError(
            f"of version {version}, and this reads {INDEX_VERSION}: {INDEX_REMEDY}"
        )
    rows = stored[entries_start:]
    if len(rows) != count * INDEX_ENTRY.size:
        raise CorruptBatchError(f"cut short: {INDEX_REMEDY}")
    head = stored[: INDEX_HEADER.size]
    crc = int.from_bytes(stored[INDEX_HEADER.size : entries_start], "little")
    return {
        "segmentBytes": size_bytes,
        "endOffset": end_offset,
        "lastEpoch": last_epoch,
        "lastAppendTime": time_text(append_us),
        "largestTimestamp": time_text(largest_us),
        "checksum": _verdict(head + rows, crc),
        "entries": [
            {
                "relativeOffset": relative_offset,
                "position": position,
                "largestTimestampBefore": time_text(before_us),
            }
            for relative_offset, position, before_us in INDEX_ENTRY.iter_unpack(rows)
        ],
    }


def time_text(timestamp_us: int) -> str | None:
    """RFC 3339 in UTC; None for what is no time of this calendar."""
    try:
        time = EPOCH + timedelta(microseconds=timestamp_us)
    except OverflowError:
        return None
    return f"{time:%Y-%m-%dT%H:%M:%S.%f}Z"


def _entry_at(file: BinaryIO, position: int, size_bytes: int) -> Document:
    """What starts at `position`: a batch, a pad, zeros, or damage."""
    head = _read(file, position, HEADER_BYTES)
    magic = int.from_bytes(head[:4], "little")
    rest_bytes = size_bytes - position
    if magic == PAD_MAGIC and len(head) >= PAD_HEADER.size:
        _, pad_bytes, crc = PAD_HEADER.unpack_from(head)
        checksum = _verdict(head[:8], crc)
        if checksum != BAD and PAD_HEADER.size <= pad_bytes <= rest_bytes:
            return {"kind": "pad", "bytes": pad_bytes, "checksum": checksum}
    if magic == BATCH_MAGIC and len(head) == HEADER_BYTES:
        header = BatchHeader._make(HEADER.unpack(head))
        is_right = _verdict(head[:8] + head[12:], header.header_crc) != BAD
        if is_right and header.version == FORMAT_VERSION and header.batch_bytes <= rest_bytes:
            return _batch(header, _read(file, position + HEADER_BYTES, header.batch_bytes))
    return _gap(file, position, size_bytes)


def _batch(header: BatchHeader, body: bytes) -> Document:
    """A batch whose header is right; its payload need not be."""
    payload = body[: header.producer_table_bytes + header.payload_bytes]
    return {
        "kind": "batch",
        "firstOffset": header.base_offset,
        "lastOffset": header.end_offset - 1,
        "count": header.record_count,
        "codec": Codec(header.codec).name.lower() if header.codec in _CODECS else header.codec,
        "bytes": header.batch_bytes,
        "uncompressedBytes": header.uncompressed_bytes,
        "firstTimestamp": time_text(header.first_timestamp_us),
        "largestTimestamp": time_text(header.largest_timestamp_us),
        "appendTime": time_text(header.append_time_us),
        "epoch": header.epoch,
        "highWatermark": header.high_watermark,
        "flags": [str(flag.name).lower() for flag in Flag(header.flags)],
        "checksum": _verdict(payload, header.payload_crc),
    }


def _gap(file: BinaryIO, position: int, size_bytes: int) -> Document:
    """Zeros, or damage, up to where a batch or a pad can start again."""
    is_zero: bool | None = None
    end = position
    while end < size_bytes:
        block = _read(file, end, BLOCK_BYTES - end % BLOCK_BYTES)
        if is_zero is None:
            is_zero = not any(block)
        elif is_zero == any(block) or int.from_bytes(block[:4], "little") in _MAGICS:
            break
        end += len(block)
    kind, checksum = ("zeros", OK) if is_zero else ("damage", BAD)
    return {"kind": kind, "bytes": end - position, "checksum": checksum}


def _record(row: Document) -> Document:
    """As docs/protocol.md, "Read"."""
    headers = [
        {"key": each["key"], "value": _encoded(each["value"])} for each in row["headers"] or []
    ]
    document = {
        "partition": row["partition"],
        "offset": row["offset"],
        "timestamp": f"{row['timestamp']:%Y-%m-%dT%H:%M:%S.%f}Z",
        "key": _text(row["key"]),
        "value": _value(row["value"]),
    }
    return {**document, "headers": headers} if headers else document


def _text(stored: bytes | None) -> object:
    """A key."""
    if stored is None:
        return None
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return _encoded(stored)


def _value(stored: bytes | None) -> object:
    if stored is None:
        return None
    try:
        return parse_json(stored)
    except ValueError:
        return _encoded(stored)


def _encoded(stored: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(stored).decode()}


def _verdict(stored: bytes, crc: int) -> str:
    if crc32c is None:
        return UNCHECKED
    return OK if crc32c(stored) == crc else BAD


def _read(file: BinaryIO, position: int, size_bytes: int) -> bytes:
    file.seek(position)
    return file.read(size_bytes)


_MAGICS = frozenset({BATCH_MAGIC, PAD_MAGIC})
_CODECS = frozenset(Codec)
