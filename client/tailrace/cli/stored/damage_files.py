"""`damage` files: what a broker has recorded of a partition's damage (formats: docs/formats.md)."""

from pathlib import Path
from typing import Any, NamedTuple

from tailrace.cli.stored.segments import BAD, CRC_BYTES, time_text, verdict
from tailrace.errors import CorruptBatchError
from tailrace.wire import DAMAGE_FILE, DAMAGE_HEADER, DAMAGE_LOSS, DAMAGE_MAGIC, DAMAGE_VERSION


class RecordedLoss(NamedTuple):
    """Offsets `[first_offset, end_offset)` that no file has; `accepted_us` 0: nobody had to."""

    first_offset: int
    end_offset: int
    accepted_us: int


class RecordedDamage(NamedTuple):
    """The log was durable to `proven_end`; `largest_end`: none was there or above (0: not said)."""

    proven_end: int
    largest_end: int
    losses: tuple[RecordedLoss, ...]


def parse_damage(stored: bytes) -> RecordedDamage:
    """CorruptBatchError: it is none, is cut short, of another version, or damaged."""
    start = DAMAGE_HEADER.size + CRC_BYTES
    if len(stored) < start or stored[:4] != DAMAGE_MAGIC.to_bytes(4, "little"):
        raise CorruptBatchError("not a record of damage")
    _, version, proven_end, largest_end, count = DAMAGE_HEADER.unpack_from(stored)
    if version != DAMAGE_VERSION:
        raise CorruptBatchError(f"of version {version}, and this reads {DAMAGE_VERSION}")
    rows = stored[start:]
    if len(rows) != count * DAMAGE_LOSS.size:
        raise CorruptBatchError("cut short")
    crc = int.from_bytes(stored[DAMAGE_HEADER.size : start], "little")
    if verdict(stored[: DAMAGE_HEADER.size] + rows, crc) == BAD:
        raise CorruptBatchError("damaged itself: the checksum does not match")
    losses = tuple(RecordedLoss._make(row) for row in DAMAGE_LOSS.iter_unpack(rows))
    return RecordedDamage(proven_end, largest_end, losses)


def read_damage(directory: Path) -> RecordedDamage | None:
    """Of a partition; None: nothing is recorded, or it cannot be read, which its own check says."""
    try:
        return parse_damage((directory / DAMAGE_FILE).read_bytes())
    except (FileNotFoundError, CorruptBatchError):
        return None


def damage_document(found: RecordedDamage) -> dict[str, Any]:
    """In JSON's terms."""
    return {
        "provenEnd": found.proven_end,
        "largestEnd": found.largest_end or None,
        "losses": [
            {
                "firstOffset": each.first_offset,
                "nextOffset": each.end_offset,
                "accepted": time_text(each.accepted_us) if each.accepted_us else None,
            }
            for each in found.losses
        ],
    }
