"""Inputs that are almost right: mutations of good ones, with their checksums corrected again."""

import random
import struct
from collections.abc import Sequence

from crc32c import crc32c

from tailrace.wire import (
    BATCH_MAGIC,
    HEADER,
    HEADER_BYTES,
    INDEX_HEADER,
    INDEX_MAGIC,
    JOURNAL_FILE_HEADER,
    JOURNAL_FILE_MAGIC,
    JOURNAL_FRAME_HEADER,
    JOURNAL_FRAME_MAGIC,
    PAD_MAGIC,
    BatchHeader,
)
from tailrace_broker.codec.producers import CHECKPOINT_MAGIC

INPUT_BYTES_MAX = 64 * 1024
CHANGES_MAX = 6
# Sizes, counts and offsets go wrong at these.
NUMBERS = [0, 1, 2, 7, 8, 127, 128, 255, 4095, 4096, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1]
NUMBER_FORMATS = ["<B", "<H", "<I", "<Q"]
PIECES = [b"\r\n", b"\r\n\r\n", b" ", b":", b"-", b"%", b"%00", b";", b"?", b"&", b"\0" * 16]
PIECES += [b"\xff" * 8, b"\n", b'"', b"{", b"]", b"TRLB", b"TRLP", b"1e999", b"\xf0\x9f\x98\x80"]
_U32 = struct.Struct("<I")


def mutate(generator: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds, changed in a few places."""
    data = bytearray(generator.choice(seeds))
    for _ in range(generator.randint(1, CHANGES_MAX)):
        _change(generator, data, seeds)
    if generator.random() < 0.7:
        put_checksums_right(data)
    return bytes(data[:INPUT_BYTES_MAX])


def put_checksums_right(data: bytearray) -> None:
    """Of all batches, pads and index files in it, so that what lies behind them is reached."""
    for magic, correct in _CHECKSUMS.items():
        position = data.find(_U32.pack(magic))
        while position >= 0:
            correct(data, position)
            position = data.find(_U32.pack(magic), position + 1)


def _change(generator: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    place = generator.randint(0, len(data))
    length = generator.choice([0, 1, 4, 16, generator.randint(0, len(data))])
    match generator.randrange(7):
        case 0 if data:
            data[place % len(data)] ^= 1 << generator.randrange(8)
        case 1:
            number_format = generator.choice(NUMBER_FORMATS)
            size_bytes = struct.calcsize(number_format)
            number = generator.choice([*NUMBERS, len(data), generator.getrandbits(64)])
            start = place // size_bytes * size_bytes if generator.random() < 0.7 else place
            data[start : start + size_bytes] = (number % (1 << (8 * size_bytes))).to_bytes(
                size_bytes, "little"
            )
        case 2:
            del data[place : place + length]
        case 3:
            data[place:place] = generator.choice(PIECES)
        case 4:
            data[place : place + length] = generator.randbytes(min(length, 256))
        case 5:
            data[place:place] = data[max(0, place - length) : place]
        case _:
            other = generator.choice(seeds)
            start = generator.randint(0, len(other))
            data[place : place + length] = other[start : start + length]
    del data[INPUT_BYTES_MAX:]


def _batch(data: bytearray, position: int) -> None:
    raw = data[position : position + HEADER_BYTES]
    if len(raw) == HEADER_BYTES:
        header = BatchHeader._make(HEADER.unpack(raw))
        start = position + HEADER_BYTES
        end = start + header.producer_table_bytes + header.payload_bytes
        raw[12:16] = _U32.pack(crc32c(bytes(data[start:end])))
        raw[8:12] = _U32.pack(crc32c(bytes(raw[12:]), crc32c(bytes(raw[:8]))))
        data[position : position + HEADER_BYTES] = raw


def _pad(data: bytearray, position: int) -> None:
    if len(data) >= position + 12:
        data[position + 8 : position + 12] = _U32.pack(crc32c(bytes(data[position : position + 8])))


def _index(data: bytearray, position: int) -> None:
    crc = position + INDEX_HEADER.size
    head, rows = bytes(data[position:crc]), bytes(data[crc + 4 :])
    if len(data) >= crc + 4:
        data[crc : crc + 4] = _U32.pack(crc32c(rows, crc32c(head)))


def _journal_file(data: bytearray, position: int) -> None:
    _journal_header(data, position, JOURNAL_FILE_HEADER.size)


def _journal_frame(data: bytearray, position: int) -> None:
    _journal_header(data, position, JOURNAL_FRAME_HEADER.size)


def _journal_header(data: bytearray, position: int, size_bytes: int) -> None:
    raw = data[position : position + size_bytes]
    if len(raw) == size_bytes:
        crc = crc32c(bytes(raw[12:]), crc32c(bytes(raw[:8])))
        data[position + 8 : position + 12] = _U32.pack(crc)


def _checkpoint(data: bytearray, position: int) -> None:
    head, rows = bytes(data[position : position + 20]), bytes(data[position + 24 :])
    if len(data) >= position + 24:
        data[position + 20 : position + 24] = _U32.pack(crc32c(rows, crc32c(head)))


_CHECKSUMS = {
    BATCH_MAGIC: _batch,
    PAD_MAGIC: _pad,
    INDEX_MAGIC: _index,
    JOURNAL_FRAME_MAGIC: _journal_frame,
    JOURNAL_FILE_MAGIC: _journal_file,
    CHECKPOINT_MAGIC: _checkpoint,
}
