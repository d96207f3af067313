"""Segment files and their indexes as documents in JSON's terms (formats: docs/formats.md).

Total: what is no valid batch or pad is told as such, and reading goes on behind it.
"""

import base64
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO, NamedTuple

from tailrace.cli.lib.json_texts import parse_json
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


class Piece(NamedTuple):
    """What stands at a position of a segment: a batch, a pad, zeros or damage."""

    kind: str
    position: int
    size_bytes: int
    checksum: str
    header: BatchHeader | None = None  # of a batch; its own checksum is right


class Index(NamedTuple):
    """An index file; `rows`: relative offset, position, largest timestamp before it."""

    segment_bytes: int
    end_offset: int
    last_epoch: int
    last_append_time_us: int
    largest_timestamp_us: int
    checksum: str
    rows: list[tuple[int, int, int]]


def pieces(file: BinaryIO, size_bytes: int) -> Iterator[Piece]:
    """Everything in a segment, in order; together the whole file."""
    position = 0
    while position < size_bytes:
        piece = _piece_at(file, position, size_bytes)
        yield piece
        position += piece.size_bytes


def unchecked_note() -> str:
    """What a verb prints when it had to pass over checksums."""
    from tailrace.extras import install_command

    return f"note: checksums are not verified; for that: {install_command('arrow')}"


def entries(file: BinaryIO, size_bytes: int) -> Iterator[Document]:
    """`pieces` as documents."""
    for piece in pieces(file, size_bytes):
        header = {} if piece.header is None else header_document(piece.header)
        yield {
            "position": piece.position,
            "kind": piece.kind,
            **header,
            "bytes": piece.size_bytes,
            "checksum": piece.checksum,
        }


def records(file: BinaryIO, found: Iterable[Document]) -> Iterator[list[Document]]:
    """The records of each batch among these entries, as a read of a broker has them.

    Needs the extra `arrow`. CorruptBatchError names the first offset that cannot be read.
    """
    from tailrace.arrow.batches import decode_batches

    for entry in found:
        if entry["kind"] == "batch":
            stored = read_at(file, entry["position"], entry["bytes"])
            start = entry["firstOffset"]
            try:
                [batch] = decode_batches(stored, topic="", start=start, include_headers=True)
            except CorruptBatchError as error:
                raise CorruptBatchError(f"offset {start} cannot be read ({error})") from error
            # As numbers: Python has no time after the year 9999.
            times_us = batch["timestamp"].cast("int64").to_pylist()
            rows = batch.drop_columns(["timestamp"]).to_pylist()
            yield [
                _record(row | {"timestamp": time_us})
                for row, time_us in zip(rows, times_us, strict=True)
            ]


def read_index(stored: bytes) -> Document:
    """An index file as a document; CorruptBatchError as `parse_index`."""
    index = parse_index(stored)
    return {
        "segmentBytes": index.segment_bytes,
        "endOffset": index.end_offset,
        "lastEpoch": index.last_epoch,
        "lastAppendTime": time_text(index.last_append_time_us),
        "largestTimestamp": time_text(index.largest_timestamp_us),
        "checksum": index.checksum,
        "entries": [
            {
                "relativeOffset": relative_offset,
                "position": position,
                "largestTimestampBefore": time_text(before_us),
            }
            for relative_offset, position, before_us in index.rows
        ],
    }


def parse_index(stored: bytes) -> Index:
    """An index file. CorruptBatchError: it is none, is cut short, or of another version."""
    rows_start = INDEX_HEADER.size + CRC_BYTES
    if len(stored) < rows_start or stored[:4] != INDEX_MAGIC.to_bytes(4, "little"):
        raise CorruptBatchError(f"not an index: {INDEX_REMEDY}")
    _, version, *known, count = INDEX_HEADER.unpack_from(stored)
    if version != INDEX_VERSION:
        raise CorruptBatchError(
            f"of version {version}, and this reads {INDEX_VERSION}: {INDEX_REMEDY}"
        )
    rows = stored[rows_start:]
    if len(rows) != count * INDEX_ENTRY.size:
        raise CorruptBatchError(f"cut short: {INDEX_REMEDY}")
    crc = int.from_bytes(stored[INDEX_HEADER.size : rows_start], "little")
    checksum = verdict(stored[: INDEX_HEADER.size] + rows, crc)
    return Index._make([*known, checksum, list(INDEX_ENTRY.iter_unpack(rows))])


def batch_at(file: BinaryIO, position: int, end: int) -> Piece | None:
    """A batch whose header is right and that ends at `end` at most; its payload need not be."""
    head = read_at(file, position, HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        return None
    header = BatchHeader._make(HEADER.unpack(head))
    is_right = verdict(head[:8] + head[12:], header.header_crc) != BAD
    known = (header.magic, header.version) == (BATCH_MAGIC, FORMAT_VERSION)
    if not (is_right and known and position + header.batch_bytes <= end):
        return None
    body = read_at(file, position + HEADER_BYTES, header.batch_bytes - HEADER_BYTES)
    return Piece("batch", position, header.batch_bytes, _body_verdict(header, body), header)


def verdict(stored: bytes, crc: int) -> str:
    """Of a checksum."""
    if crc32c is None:
        return UNCHECKED
    return OK if crc32c(stored) == crc else BAD


def header_document(header: BatchHeader) -> Document:
    """What a batch's header says."""
    return {
        "firstOffset": header.base_offset,
        "lastOffset": header.end_offset - 1,
        "count": header.record_count,
        "codec": Codec(header.codec).name.lower() if header.codec in _CODECS else header.codec,
        "uncompressedBytes": header.uncompressed_bytes,
        "firstTimestamp": time_text(header.first_timestamp_us),
        "largestTimestamp": time_text(header.largest_timestamp_us),
        "appendTime": time_text(header.append_time_us),
        "epoch": header.epoch,
        "highWatermark": header.high_watermark,
        "flags": [str(flag.name).lower() for flag in Flag(header.flags)],
    }


def read_at(file: BinaryIO, position: int, size_bytes: int) -> bytes:
    """Fewer bytes only at the end."""
    file.seek(position)
    return file.read(size_bytes)


def time_text(timestamp_us: int) -> str | None:
    """RFC 3339 in UTC; None for what is no time of this calendar."""
    try:
        time = EPOCH + timedelta(microseconds=timestamp_us)
    except OverflowError:
        return None
    return f"{time:%Y-%m-%dT%H:%M:%S.%f}Z"


def _piece_at(file: BinaryIO, position: int, size_bytes: int) -> Piece:
    """What starts at `position`."""
    head = read_at(file, position, PAD_HEADER.size)
    if len(head) == PAD_HEADER.size:
        magic, pad_bytes, crc = PAD_HEADER.unpack(head)
        checksum = verdict(head[:8], crc) if magic == PAD_MAGIC else BAD
        if checksum != BAD and PAD_HEADER.size <= pad_bytes <= size_bytes - position:
            fill = read_at(file, position + 12, pad_bytes - 12)
            return Piece("pad", position, pad_bytes, BAD if any(fill) else checksum)
    return batch_at(file, position, size_bytes) or _gap(file, position, size_bytes)


def _body_verdict(header: BatchHeader, body: bytes) -> str:
    """Of what stands behind a header that is right: producer table, payload and fill."""
    stored_bytes = header.producer_table_bytes + header.payload_bytes
    if any(body[stored_bytes:]):
        return BAD
    return verdict(body[:stored_bytes], header.payload_crc)


def _gap(file: BinaryIO, position: int, size_bytes: int) -> Piece:
    """Zeros, or damage, up to where a batch or a pad can start again."""
    is_zero: bool | None = None
    end = position
    while end < size_bytes:
        block = read_at(file, end, BLOCK_BYTES - end % BLOCK_BYTES)
        if not block:  # a broker has cut the file meanwhile
            end = size_bytes
        elif is_zero is None:
            is_zero = not any(block)
        elif is_zero == any(block) or int.from_bytes(block[:4], "little") in _MAGICS:
            break
        end += len(block)
    kind, checksum = ("damage", BAD) if is_zero is False else ("zeros", OK)
    return Piece(kind, position, end - position, checksum)


def _record(row: Document) -> Document:
    """As docs/protocol.md, "Read"."""
    headers = [
        {"key": each["key"], "value": _encoded(each["value"])} for each in row["headers"] or []
    ]
    return {
        "partition": row["partition"],
        "offset": row["offset"],
        "timestamp": time_text(row["timestamp"]),
        "key": _text(row["key"]),
        **_value(row["value"]),
        **({"headers": headers} if headers else {}),
    }


def _text(stored: bytes | None) -> object:
    """A key."""
    if stored is None:
        return None
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return _encoded(stored)


def _value(stored: bytes | None) -> Document:
    if stored is None:
        return {"value": None}
    try:
        return {"value": parse_json(stored)}
    except ValueError:
        return {"value": _encoded(stored), "valueEncoding": "base64"}


def _encoded(stored: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(stored).decode()}


_MAGICS = frozenset({BATCH_MAGIC, PAD_MAGIC})
_CODECS = frozenset(Codec)
