"""A history of what a consumer group was given, checked against what producers were reported. Pure.

At least once, and in order per key (docs/protocol.md, "Consumers"), as one function: `violations`.
It knows nothing of how many brokers there are: times are of one clock for all, in ns. Each request
has a span, from before it was sent to after its answer came, so what the broker did lies within,
and a rule is broken only where no order of what overlaps would have kept it.

Events carry an id that is sent once and never again, as in `tests.support.broker.history`.
Consumers note a delivery before they confirm it; what was on its way to one that was killed is
not noted.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from typing import NamedTuple


class RecordPosition(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    offset: int


class Span(NamedTuple):
    """From before it began to after it ended; both count."""

    start_ns: int
    end_ns: int

    def overlaps(self, other: "Span") -> bool:
        """Whether they may have been at the same time."""
        return self.start_ns <= other.end_ns and other.start_ns <= self.end_ns


class Acknowledged(NamedTuple):
    """One event that a producer was reported is stored at `position`."""

    key: str
    event_id: str
    position: RecordPosition
    span: Span


class Record(NamedTuple):
    """One record of a delivery."""

    event_id: str
    position: RecordPosition


class Delivery(NamedTuple):
    """An answer to a poll, with its records in its order."""

    consumer: str
    number: int
    span: Span
    records: tuple[Record, ...]


class Confirmation(NamedTuple):
    """A request that named a delivery and was answered with success.

    `is_stored`: it was a commit, or a goodbye with one; a poll's is stored some time later.
    """

    number: int
    span: Span
    is_stored: bool


class Goodbye(NamedTuple):
    """A consumer asked to be removed, or gave back what it had."""

    consumer: str
    span: Span


# A coordinator numbers its deliveries from its epoch times this on.
NUMBERS_OF_AN_EPOCH = 2**40


class Kind(StrEnum):
    """What can be wrong with a group."""

    LOST = "acknowledged and never delivered"
    SKIPPED = "below the end of its partition and never delivered"
    INVENTED = "delivered and never sent"
    TWO_POSITIONS = "one event at two positions"
    TWO_RECORDS = "two records at one offset"
    NOT_DENSE = "a delivery's offsets of a partition do not follow each other"
    OUT_OF_ORDER = "first delivered before a lower offset of its partition was"
    REORDERED = "first delivered against the order in which a key's events were acknowledged"
    CHANGED = "a delivery's number came again with other records, or to another consumer"
    REPEATED = "delivered again after it was confirmed"
    TAKEN = "delivered with a new number while the consumer that had it was there"
    DEPOSED = "delivered by a coordinator after a later one had delivered it"


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is wrong, and where to look."""

    kind: Kind
    detail: str


@dataclass(frozen=True, slots=True)
class GroupHistory:
    """What was sent and acknowledged, and what one group got of it until it had read all.

    `readable`: the offsets of each partition, by topic and partition. `crashes`: when the broker
    that keeps the group died; of what was confirmed by polls it may have lost some, and open
    deliveries end. `goodbyes`: those that may have been heard, answered or not. `session_ns`: how
    long a consumer may be silent.
    """

    sent_ids: Set[str]
    acknowledged: Sequence[Acknowledged]
    deliveries: Sequence[Delivery]
    confirmations: Sequence[Confirmation]
    readable: Mapping[tuple[str, int], range]
    session_ns: int
    crashes: Sequence[Span] = ()
    goodbyes: Sequence[Goodbye] = ()


class _First(NamedTuple):
    """The first delivery of a record: where in it the record is."""

    delivery: Delivery
    rank: int


def violations(history: GroupHistory) -> list[Violation]:
    """Everything that is wrong; empty when the group got what it must.

    O(n log n) in the records, and quadratic in how often one of them was delivered.
    """
    firsts = _firsts(history.deliveries)
    return [
        *_missing(history, firsts),
        *_two_of_one(history),
        *_not_dense(history.deliveries),
        *_out_of_order(firsts),
        *_reordered(history.acknowledged, firsts),
        *_changed(history.deliveries),
        *_repeated(history),
    ]


def repeat_count(deliveries: Sequence[Delivery]) -> int:
    """Records that came again, each time counted: whether a history has any to be checked."""
    records = [record.position for delivery in deliveries for record in delivery.records]
    return len(records) - len(set(records))


def _firsts(deliveries: Sequence[Delivery]) -> dict[RecordPosition, _First]:
    firsts: dict[RecordPosition, _First] = {}
    for delivery in sorted(deliveries, key=lambda each: each.span.end_ns):
        for rank, record in enumerate(delivery.records):
            firsts.setdefault(record.position, _First(delivery, rank))
    return firsts


def _missing(history: GroupHistory, firsts: Mapping[RecordPosition, _First]) -> Iterator[Violation]:
    for event in history.acknowledged:
        if event.position not in firsts:
            yield Violation(Kind.LOST, f"{event}")
    acknowledged = {event.position for event in history.acknowledged}
    for (topic, partition), offsets in history.readable.items():
        for offset in offsets:
            position = RecordPosition(topic, partition, offset)
            if position not in firsts and position not in acknowledged:
                yield Violation(Kind.SKIPPED, f"{position}")


def _two_of_one(history: GroupHistory) -> Iterator[Violation]:
    """Of what producers were reported and what was delivered, together."""
    positions_by_id: dict[str, set[RecordPosition]] = defaultdict(set)
    ids_by_position: dict[RecordPosition, set[str]] = defaultdict(set)
    delivered = [record for delivery in history.deliveries for record in delivery.records]
    reported = [Record(event.event_id, event.position) for event in history.acknowledged]
    for event_id, position in [*delivered, *reported]:
        positions_by_id[event_id].add(position)
        ids_by_position[position].add(event_id)
    for event_id, positions in positions_by_id.items():
        if len(positions) > 1:
            yield Violation(Kind.TWO_POSITIONS, f"{event_id} is at {sorted(positions)}")
        if event_id not in history.sent_ids:
            yield Violation(Kind.INVENTED, f"{event_id} is at {sorted(positions)}")
    for position, ids in ids_by_position.items():
        if len(ids) > 1:
            yield Violation(Kind.TWO_RECORDS, f"{position} has {sorted(ids)}")


def _not_dense(deliveries: Sequence[Delivery]) -> Iterator[Violation]:
    for delivery in deliveries:
        nexts: dict[tuple[str, int], int] = {}
        for _, (topic, partition, offset) in delivery.records:
            wanted = nexts.get((topic, partition), offset)
            if offset != wanted:
                detail = f"{_named(delivery)}: {topic}/{partition} {offset} in place of {wanted}"
                yield Violation(Kind.NOT_DENSE, detail)
            nexts[topic, partition] = offset + 1


def _out_of_order(firsts: Mapping[RecordPosition, _First]) -> Iterator[Violation]:
    """No offset arrived before one below it in the partition was asked for."""
    latest: dict[tuple[str, int], _First] = {}
    for position in sorted(firsts):
        first, partition = firsts[position], (position.topic, position.partition)
        below = latest.get(partition, first)
        if first.delivery.span.end_ns < below.delivery.span.start_ns:
            detail = (
                f"{position} came with {_named(first.delivery)}, below it {_named(below.delivery)}"
            )
            yield Violation(Kind.OUT_OF_ORDER, detail)
        if first.delivery.span.start_ns >= below.delivery.span.start_ns:
            latest[partition] = first


def _reordered(
    acknowledged: Sequence[Acknowledged], firsts: Mapping[RecordPosition, _First]
) -> Iterator[Violation]:
    """An event that was sent after another of its key was acknowledged comes after it.

    Whoever sent them, and in whichever partitions they are.
    """
    by_key: dict[str, list[Acknowledged]] = defaultdict(list)
    for event in acknowledged:
        if event.position in firsts:
            by_key[event.key].append(event)
    for events in by_key.values():
        by_answer = sorted(events, key=lambda event: event.span.end_ns)
        earlier_count = 0
        latest: Acknowledged | None = None  # of the earlier ones, the one delivered latest
        last_in: dict[int, Acknowledged] = {}  # the same within a delivery, by its identity
        for later in sorted(events, key=lambda event: event.span.start_ns):
            while by_answer[earlier_count].span.end_ns < later.span.start_ns:
                earlier = by_answer[earlier_count]
                first = firsts[earlier.position]
                if latest is None or first.delivery.span > firsts[latest.position].delivery.span:
                    latest = earlier
                last = last_in.setdefault(id(first.delivery), earlier)
                if firsts[last.position].rank < first.rank:
                    last_in[id(first.delivery)] = earlier
                earlier_count += 1
            delivery, rank = firsts[later.position]
            before = last_in.get(id(delivery))
            if before is not None and rank < firsts[before.position].rank:
                yield Violation(Kind.REORDERED, f"{before} came after {later}")
            if latest and delivery.span.end_ns < firsts[latest.position].delivery.span.start_ns:
                yield Violation(Kind.REORDERED, f"{latest} came after {later}")


def _changed(deliveries: Sequence[Delivery]) -> Iterator[Violation]:
    known: dict[int, Delivery] = {}
    for delivery in deliveries:
        before = known.setdefault(delivery.number, delivery)
        has_changed = sorted(before.records) != sorted(delivery.records)
        if has_changed or before.consumer != delivery.consumer:
            yield Violation(Kind.CHANGED, f"{_named(delivery)} was {_named(before)}")


def _repeated(history: GroupHistory) -> Iterator[Violation]:
    """Each two deliveries that share a record are judged once."""
    in_order = sorted(history.deliveries, key=lambda delivery: delivery.span)
    confirmations: dict[int, list[Confirmation]] = defaultdict(list)
    for confirmation in history.confirmations:
        confirmations[confirmation.number].append(confirmation)
    seen_ns = {each.number: each.span.start_ns for each in in_order}  # with it in hand, last
    polled_ns = _polled_before(in_order)
    for (one, other), position in _pairs(in_order).items():
        earlier, later = in_order[one], in_order[other]
        between = Span(earlier.span.start_ns, max(earlier.span.end_ns, later.span.end_ns))
        detail = f"{position}: {_named(later)} after {_named(earlier)}"
        if _epoch(later) < _epoch(earlier):
            if earlier.span.end_ns < later.span.start_ns:
                yield Violation(Kind.DEPOSED, detail)
            continue
        has_crashed = _epoch(earlier) < _epoch(later) or any(
            crash.overlaps(between) for crash in history.crashes
        )
        if any(
            confirmation.span.end_ns < later.span.start_ns
            and (confirmation.is_stored or not has_crashed)
            for confirmation in confirmations[earlier.number]
        ):
            yield Violation(Kind.REPEATED, detail)
        elif earlier.number != later.number and not has_crashed:
            orders = [(earlier, later)]
            if earlier.span.overlaps(later.span):  # nobody knows which was first
                orders.append((later, earlier))
            if all(
                then.span.end_ns < seen_ns[before.number] + history.session_ns
                and before.span.end_ns < polled_ns[id(before)] + history.session_ns
                and not _may_have_left(before.consumer, between, history.goodbyes)
                for before, then in orders
            ):
                yield Violation(Kind.TAKEN, detail)


def _polled_before(in_order: Sequence[Delivery]) -> dict[int, int]:
    """Of each delivery when its consumer asked for the one before; of its first when it asked.

    A request can be delayed on its way, so that the session had ended when it was heard.
    """
    asked_ns: dict[str, int] = {}
    found: dict[int, int] = {}
    for delivery in in_order:
        start_ns = delivery.span.start_ns
        found[id(delivery)] = asked_ns.get(delivery.consumer, start_ns)
        asked_ns[delivery.consumer] = start_ns
    return found


def _pairs(in_order: Sequence[Delivery]) -> dict[tuple[int, int], RecordPosition]:
    """The deliveries that share a record, by their indices, with one such record."""
    indices_by_position: dict[RecordPosition, list[int]] = defaultdict(list)
    for index, delivery in enumerate(in_order):
        for record in delivery.records:
            indices_by_position[record.position].append(index)
    return {
        pair: position
        for position, indices in indices_by_position.items()
        for pair in combinations(indices, 2)
    }


def _may_have_left(consumer: str, between: Span, goodbyes: Sequence[Goodbye]) -> bool:
    return any(
        goodbye.consumer == consumer and goodbye.span.overlaps(between) for goodbye in goodbyes
    )


def _epoch(delivery: Delivery) -> int:
    return delivery.number // NUMBERS_OF_AN_EPOCH


def _named(delivery: Delivery) -> str:
    return f"delivery {delivery.number} of {delivery.consumer} at {delivery.span.end_ns}"
