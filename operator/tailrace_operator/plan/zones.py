"""In which zone a broker belongs: a function of its ordinal, so that no broker ever moves.

The classes are those of `docs/ring.md`, "Copies and zones": the replicas of a range lie in three.
"""

from collections.abc import Sequence

FIRST_BROKERS = 3
ZONE_CLASSES = 3


def zone_class(ordinal: int) -> int:
    """0, 1 or 2; for ever."""
    assert ordinal >= 0, ordinal
    level = (ordinal // FIRST_BROKERS).bit_length()
    if level == 0:
        return ordinal
    position = 2 * (ordinal - (FIRST_BROKERS << (level - 1))) + 1  # in the ring of this doubling
    return (-position if level % 2 else position) % ZONE_CLASSES


def zone_of(ordinal: int, zones: Sequence[str]) -> str:
    """The broker's one of three zones."""
    assert len(zones) == ZONE_CLASSES, zones
    return zones[zone_class(ordinal)]


def is_balanced(broker_count: int) -> bool:
    """Return whether every range has the same part of the tokens: 1 broker, or 3 doubled."""
    thirds, rest = divmod(broker_count, FIRST_BROKERS)
    return broker_count == 1 or (rest == 0 and thirds.bit_count() == 1)
