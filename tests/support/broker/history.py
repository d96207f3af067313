"""A history of what producers sent and were reported, checked against what is read back. Pure.

Promises 1 and 2 (docs/architecture.md) as one function: `violations`. Events carry an id that is
sent once and never again, so an event whose acknowledgement did not come may be in the log once
or not at all; an acknowledged one is there once, at its offset.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple


class RecordPosition(NamedTuple):
    """Where a record is."""

    partition: int
    offset: int


SOMEWHERE = RecordPosition(-1, -1)


class Acknowledged(NamedTuple):
    """One event that a producer was reported is stored at `position`, which may be `SOMEWHERE`."""

    producer: str
    key: str | None
    event_id: str
    position: RecordPosition


class Read(NamedTuple):
    """One record as it was read back."""

    event_id: str
    position: RecordPosition


class Kind(StrEnum):
    """What can be wrong with a log."""

    LOST = "acknowledged and not there"
    MOVED = "not at its acknowledged offset"
    DOUBLED = "there more than once"
    GAP = "offsets are not dense from the first to the high watermark"
    REORDERED = "not in the order in which one producer's events of one key were acknowledged"
    INVENTED = "there and never sent"


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is wrong, and where to look."""

    kind: Kind
    detail: str


@dataclass(frozen=True, slots=True)
class History:
    """What was sent and acknowledged (each producer's in its order), and what is there now.

    `first_offsets` and `parents`: of partitions that follow others.
    """

    sent_ids: Set[str]
    acknowledged: Sequence[Acknowledged]
    read: Sequence[Read]
    high_watermarks: Mapping[int, int]
    first_offsets: Mapping[int, int] = field(default_factory=dict)
    parents: Mapping[int, Sequence[int]] = field(default_factory=dict)

    def is_before(self, earlier: RecordPosition, later: RecordPosition) -> bool:
        """Whether whoever reads a partition after its parents reads them in this order."""
        if earlier.partition == later.partition:
            return earlier.offset < later.offset
        return earlier.partition in self.ancestors(later.partition)

    def ancestors(self, partition: int) -> set[int]:
        """Return all partitions that are read before this one."""
        parents = self.parents.get(partition, ())
        return set(parents).union(*map(self.ancestors, parents))


def violations(history: History) -> list[Violation]:
    """Everything that is wrong; empty when the log kept its promises. O(n log n) in the records."""
    positions_by_id: dict[str, list[RecordPosition]] = defaultdict(list)
    for record in history.read:
        positions_by_id[record.event_id].append(record.position)
    return [
        *_lost_or_moved(history, positions_by_id),
        *_doubled_or_invented(history, positions_by_id),
        *_gaps(history),
        *_reordered(history, positions_by_id),
    ]


def _lost_or_moved(
    history: History, positions_by_id: Mapping[str, list[RecordPosition]]
) -> Iterator[Violation]:
    for event in history.acknowledged:
        positions = positions_by_id.get(event.event_id, [])
        if not positions:
            yield Violation(Kind.LOST, f"{event}")
        elif event.position not in [*positions, SOMEWHERE]:
            yield Violation(Kind.MOVED, f"{event} is at {positions}")


def _doubled_or_invented(
    history: History, positions_by_id: Mapping[str, list[RecordPosition]]
) -> Iterator[Violation]:
    for event_id, positions in positions_by_id.items():
        if len(positions) > 1:
            yield Violation(Kind.DOUBLED, f"{event_id} is at {positions}")
        if event_id not in history.sent_ids:
            yield Violation(Kind.INVENTED, f"{event_id} is at {positions}")


def _gaps(history: History) -> Iterator[Violation]:
    """A partition's offsets must be dense up to its high watermark, which is exclusive."""
    offsets_by_partition: dict[int, list[int]] = {p: [] for p in history.high_watermarks}
    for record in history.read:
        offsets_by_partition.setdefault(record.position.partition, []).append(
            record.position.offset
        )
    for partition, offsets in offsets_by_partition.items():
        first_offset = history.first_offsets.get(partition, 0)
        expected = range(first_offset, history.high_watermarks.get(partition, first_offset))
        if sorted(offsets) != list(expected):
            missing = sorted(set(expected) - set(offsets))[:5]
            extra = sorted(set(offsets) - set(expected))[:5]
            detail = f"partition {partition} to {expected.stop}: missing {missing}, extra {extra}"
            yield Violation(Kind.GAP, detail)


def _reordered(
    history: History, positions_by_id: Mapping[str, list[RecordPosition]]
) -> Iterator[Violation]:
    """Events without a key have no order among them; what is lost has no place."""
    streams: dict[tuple[str, str], list[tuple[Acknowledged, RecordPosition]]] = defaultdict(list)
    for event in history.acknowledged:
        position: RecordPosition | None = event.position
        if position == SOMEWHERE:
            position = next(iter(positions_by_id.get(event.event_id, ())), None)
        if event.key is not None and position is not None:
            streams[event.producer, event.key].append((event, position))
    for events in streams.values():
        for (earlier, before), (later, after) in pairwise(events):
            if not history.is_before(before, after):
                yield Violation(Kind.REORDERED, f"{later} came after {earlier}")
