"""The metadata on disk: frames of records in two log files, and snapshots of the replicated state.

A log file is blocks of 4 KiB, zero-written once and then used in generations. A frame starts on a
block and what is left of its last block is zeros. All numbers are little-endian.

Frame, version 1: a header of 48 bytes, then its records as one msgpack array (`model.agreement`),
of which all count or none:

| type | field           | meaning                                                              |
|------|-----------------|----------------------------------------------------------------------|
| u32  | magic           | `TRLM`                                                               |
| u16  | version         | 1                                                                    |
| u16  |                 | 0                                                                    |
| u32  | CRC-32C         | of all else of the frame, without the zeros behind it                |
| u32  | frame bytes     | this header included                                                 |
| u64  | generation      | grows by one with each use of a file                                 |
| u64  | sequence        | grows by one with each frame, over all generations                   |
| i64  | snapshot term   | of the snapshot on which the generation rests; -1: there is none    |
| i64  | snapshot height | the same                                                             |

Snapshot, version 1: a header of 12 bytes (magic u32 `TRLS`, version u16, 2 zero bytes, size u32 of
what follows), the block's id and the configuration as one msgpack array, the state
(`codec.ring_snapshot`), and 12 bytes that say that it is whole: state bytes u64, CRC-32C u32 of
everything before.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from tailrace.wire import align_up
from tailrace_broker.model.agreement import BlockId, Configuration, Record, Snapshot
from tailrace_broker.model.errors import CorruptMetadataError

# The unit of direct writes.
BLOCK_BYTES = 4096
FRAME_MAGIC = b"TRLM"
SNAPSHOT_MAGIC = b"TRLS"
VERSION = 1

_FRAME = struct.Struct("<4sHHIIQQqq")
_CRC_FIELD = slice(8, 12)
_SNAPSHOT = struct.Struct("<4sHHI")
_STATE_BYTES = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_ARRAY = struct.Struct(">BI")  # msgpack's array 32
_ARRAY_32 = 0xDD
# What a frame has besides its encoded records, but for the zeros behind it.
FRAME_OVERHEAD_BYTES = _FRAME.size + _ARRAY.size

encode_record = msgspec.msgpack.Encoder().encode
_decode_records = msgspec.msgpack.Decoder(tuple[Record, ...]).decode
_decode_place = msgspec.msgpack.Decoder(tuple[BlockId, Configuration]).decode


class Frame(NamedTuple):
    """A whole frame as it was read; `end`: where the next one begins."""

    generation: int
    sequence: int
    snapshot_id: BlockId
    records: memoryview
    position: int
    end: int


def frame_bytes(records_bytes: int) -> int:
    """Return how much of a file a frame of so many encoded bytes takes."""
    return align_up(FRAME_OVERHEAD_BYTES + records_bytes, BLOCK_BYTES)


def encode_frame(
    encoded: Sequence[bytes], *, generation: int, sequence: int, snapshot_id: BlockId
) -> bytes:
    """A frame of records (`encode_record`), in whole blocks."""
    payload = _ARRAY.pack(_ARRAY_32, len(encoded)) + b"".join(encoded)
    size_bytes = _FRAME.size + len(payload)
    header = _FRAME.pack(
        FRAME_MAGIC, VERSION, 0, 0, size_bytes, generation, sequence, *snapshot_id
    )  # fmt: skip
    crc = _CRC.pack(_frame_crc(header, payload))
    padding = bytes(align_up(size_bytes, BLOCK_BYTES) - size_bytes)
    return header[: _CRC_FIELD.start] + crc + header[_CRC_FIELD.stop :] + payload + padding


def read_frames(name: str, stored: bytes) -> Iterator[Frame]:
    """All whole frames of a file, of whatever generation, in the order of their positions."""
    view = memoryview(stored)
    position = 0
    while position + _FRAME.size <= len(stored):
        frame = _read_frame(name, view, position)
        if frame is not None:
            yield frame
        position = position + BLOCK_BYTES if frame is None else frame.end


def decode_records(name: str, frame: Frame) -> tuple[Record, ...]:
    """Return the records of a whole frame; CorruptMetadataError."""
    try:
        return _decode_records(frame.records)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(name, f"the frame at {frame.position} cannot be read: {error}") from error


def encode_snapshot(
    snapshot_id: BlockId, configuration: Configuration, state: Iterable[bytes]
) -> Iterator[bytes]:
    """A snapshot file, slice by slice: a head, the slices of `state`, an end."""
    place = msgspec.msgpack.encode((snapshot_id, configuration))
    head = _SNAPSHOT.pack(SNAPSHOT_MAGIC, VERSION, 0, len(place)) + place
    yield head
    crc, state_bytes = crc32c(head), 0
    for each in state:
        yield each
        crc = crc32c(each, crc)
        state_bytes += len(each)
    end = _STATE_BYTES.pack(state_bytes)
    yield end + _CRC.pack(crc32c(end, crc))


def decode_snapshot(name: str, stored: bytes) -> Snapshot:
    """Read a snapshot file; CorruptMetadataError."""
    end = len(stored) - _STATE_BYTES.size - _CRC.size
    if end < _SNAPSHOT.size:
        raise damaged(name, "it is too short")
    magic, version, _, place_bytes = _SNAPSHOT.unpack_from(stored)
    (crc,) = _CRC.unpack_from(stored, len(stored) - _CRC.size)
    if magic != SNAPSHOT_MAGIC or crc != crc32c(memoryview(stored)[: -_CRC.size]):
        raise damaged(name, "its checksum does not match")
    _check_version(name, version)
    start = _SNAPSHOT.size + place_bytes
    if _STATE_BYTES.unpack_from(stored, end) != (end - start,):
        raise damaged(name, "it is shorter than it says")
    try:
        snapshot_id, configuration = _decode_place(stored[_SNAPSHOT.size : start])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(name, f"it cannot be read: {error}") from error
    return Snapshot(snapshot_id, configuration, stored[start:end])


def damaged(name: str, what: str) -> CorruptMetadataError:
    """Return the error of a disk that may have lost promises: it must not vote again."""
    return CorruptMetadataError(
        f"metadata/{name}: {what}; this disk's metadata is damaged: in a ring of several brokers "
        "move the data directory away, and the ring admits the broker again with a new one; else "
        "restore the file from a copy"
    )


def _read_frame(name: str, stored: memoryview, position: int) -> Frame | None:
    """None unless a whole one begins here."""
    if stored[position : position + len(FRAME_MAGIC)] != FRAME_MAGIC:
        return None
    header = stored[position : position + _FRAME.size]
    _, version, _, crc, size_bytes, generation, sequence, *snapshot_id = _FRAME.unpack(header)
    payload = stored[position + _FRAME.size : position + size_bytes]
    if _FRAME.size + len(payload) != size_bytes or crc != _frame_crc(header, payload):
        return None
    _check_version(name, version)
    end = position + align_up(size_bytes, BLOCK_BYTES)
    return Frame(generation, sequence, BlockId(*snapshot_id), payload, position, end)


def _frame_crc(header: bytes | memoryview, payload: bytes | memoryview) -> int:
    """Over all of a frame but the checksum itself."""
    crc = crc32c(header[_CRC_FIELD.stop :], crc32c(header[: _CRC_FIELD.start]))
    return int(crc32c(payload, crc))


def _check_version(name: str, version: int) -> None:
    """Check the version of a frame whose checksum is right."""
    if version != VERSION:
        raise CorruptMetadataError(
            f"metadata/{name}: format version {version}; this broker reads {VERSION}: start the "
            "version of Tailrace that wrote it"
        )
