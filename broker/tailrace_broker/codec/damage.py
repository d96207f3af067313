"""`damage`: what is known of a partition's damage beside its segments.

Version 1, little-endian: header of 28 bytes (magic u32 `TRLD`, version u32, proven end i64: the log
was durable to there at least, largest end i64: no record was ever at this offset or above when that
was found, loss count u32), CRC-32C u32 of all else, then for each loss, in the order of offsets:

| type | field        | meaning                                                    |
|------|--------------|------------------------------------------------------------|
| i64  | first offset | of the records that are lost                               |
| i64  | end offset   | where the log goes on                                      |
| i64  | accepted     | µs: when a person had accepted it; 0: nobody has           |
"""

import struct
from typing import NamedTuple

from crc32c import crc32c

from tailrace.wire import DAMAGE_HEADER, DAMAGE_LOSS, DAMAGE_MAGIC, DAMAGE_VERSION
from tailrace_broker.model.damage import Loss, RecordedDamage
from tailrace_broker.model.errors import CorruptBatchError

_CRC = struct.Struct("<I")
_ENTRIES_START = DAMAGE_HEADER.size + _CRC.size


class _Head(NamedTuple):
    magic: int
    version: int
    proven_end: int
    largest_end: int
    loss_count: int


def encode_damage(known: RecordedDamage) -> bytes:
    """Return the bytes of the file."""
    losses = b"".join(DAMAGE_LOSS.pack(*loss) for loss in known.losses)
    head = DAMAGE_HEADER.pack(
        DAMAGE_MAGIC, DAMAGE_VERSION, known.proven_end, known.largest_end, len(known.losses)
    )
    return head + _CRC.pack(crc32c(losses, crc32c(head))) + losses


def decode_damage(stored: bytes) -> RecordedDamage:
    """Read the file; CorruptBatchError when it is not whole."""
    if len(stored) < _ENTRIES_START:
        raise CorruptBatchError("damage file: too short")
    head = _Head._make(DAMAGE_HEADER.unpack_from(stored))
    losses = stored[_ENTRIES_START:]
    is_known = (head.magic, head.version) == (DAMAGE_MAGIC, DAMAGE_VERSION)
    if not is_known or len(losses) != head.loss_count * DAMAGE_LOSS.size:
        raise CorruptBatchError("damage file: magic, version or size does not fit")
    (crc,) = _CRC.unpack_from(stored, DAMAGE_HEADER.size)
    if crc != crc32c(losses, crc32c(stored[: DAMAGE_HEADER.size])):
        raise CorruptBatchError("damage file: checksum does not match")
    return RecordedDamage(
        head.proven_end,
        head.largest_end,
        tuple(Loss._make(loss) for loss in DAMAGE_LOSS.iter_unpack(losses)),
    )
