"""A history of what producers sent and were reported, checked against what is read back. Pure.

Promises 1 and 2 (docs/architecture.md) as one function: `violations`. Events carry an id that is
sent once and never again, so an event whose acknowledgement did not come may be in the log once
or not at all; an acknowledged one is there once, at its offset.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple


class Place(NamedTuple):
    """Where a record is."""

    partition: int
    offset: int


class Acknowledged(NamedTuple):
    """One event that a producer was reported is stored at `place`."""

    producer: str
    key: str | None
    event_id: str
    place: Place


class Read(NamedTuple):
    """One record as it was read back."""

    event_id: str
    place: Place


class Kind(StrEnum):
    """What can be wrong with a log."""

    LOST = "acknowledged and not there"
    MOVED = "not at its acknowledged offset"
    DOUBLED = "there more than once"
    GAP = "offsets are not dense from 0 to the high watermark"
    REORDERED = "not in the order in which one producer's events of one key were acknowledged"
    INVENTED = "there and never sent"


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is wrong, and where to look."""

    kind: Kind
    detail: str


@dataclass(frozen=True, slots=True)
class History:
    """What was sent and acknowledged (each producer's in its order), and what is there now."""

    sent_ids: Set[str]
    acknowledged: Sequence[Acknowledged]
    read: Sequence[Read]
    high_watermarks: Mapping[int, int]


def violations(history: History) -> list[Violation]:
    """Everything that is wrong; empty when the log kept its promises. O(n log n) in the records."""
    places_by_id: dict[str, list[Place]] = defaultdict(list)
    for record in history.read:
        places_by_id[record.event_id].append(record.place)
    return [
        *_lost_or_moved(history, places_by_id),
        *_doubled_or_invented(history, places_by_id),
        *_gaps(history),
        *_reordered(history),
    ]


def _lost_or_moved(
    history: History, places_by_id: Mapping[str, list[Place]]
) -> Iterator[Violation]:
    for event in history.acknowledged:
        places = places_by_id.get(event.event_id, [])
        if not places:
            yield Violation(Kind.LOST, f"{event}")
        elif event.place not in places:
            yield Violation(Kind.MOVED, f"{event} is at {places}")


def _doubled_or_invented(
    history: History, places_by_id: Mapping[str, list[Place]]
) -> Iterator[Violation]:
    for event_id, places in places_by_id.items():
        if len(places) > 1:
            yield Violation(Kind.DOUBLED, f"{event_id} is at {places}")
        if event_id not in history.sent_ids:
            yield Violation(Kind.INVENTED, f"{event_id} is at {places}")


def _gaps(history: History) -> Iterator[Violation]:
    """A partition's offsets must be 0, 1, … up to its high watermark, which is exclusive."""
    offsets_by_partition: dict[int, list[int]] = {p: [] for p in history.high_watermarks}
    for record in history.read:
        offsets_by_partition.setdefault(record.place.partition, []).append(record.place.offset)
    for partition, offsets in offsets_by_partition.items():
        expected = range(history.high_watermarks.get(partition, 0))
        if sorted(offsets) != list(expected):
            missing = sorted(set(expected) - set(offsets))[:5]
            extra = sorted(set(offsets) - set(expected))[:5]
            detail = f"partition {partition} to {expected.stop}: missing {missing}, extra {extra}"
            yield Violation(Kind.GAP, detail)


def _reordered(history: History) -> Iterator[Violation]:
    """Events without a key have no order among them."""
    streams: dict[tuple[str, str], list[Acknowledged]] = defaultdict(list)
    for event in history.acknowledged:
        if event.key is not None:
            streams[event.producer, event.key].append(event)
    for events in streams.values():
        for earlier, later in pairwise(events):
            same_partition = earlier.place.partition == later.place.partition
            if not same_partition or earlier.place.offset >= later.place.offset:
                yield Violation(Kind.REORDERED, f"{later} came after {earlier}")
