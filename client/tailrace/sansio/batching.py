"""Sans-IO: gathers records into produce requests, and keeps those of one key in their order.

A *lane* is what goes to one broker for one topic. Records gather in it until they are enough or
the first has waited `linger_ms`; of each lane one request is under way at a time, and it stays so
through all its retries. So no record ever overtakes an earlier one of its key, and while a request
is under way the next one grows: the slower the broker, the larger the requests. (More than one in
flight would be stored once just as well, since requests are numbered; but one that fails would be
overtaken by the next.)

When keys move to other brokers (`reroute`) what is gathered is sorted into the new lanes, which
start when all that is under way of the topic has its outcome.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Generic, TypeVar

from tailrace.protocol.records_binary import Header, encode_records
from tailrace.sansio.retries import Retries

# Far below a broker's 500,000 events a request, for records of a few bytes.
BATCH_RECORDS_MAX = 10_000
# What a body has of each record beside its bytes: two lengths and a time.
_RECORD_COLUMNS_BYTES = 16

Ticket = TypeVar("Ticket")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a request is due, and how much memory all that has no outcome may take."""

    linger_s: float
    batch_bytes: int
    buffer_bytes: int
    record_bytes: int  # what a record takes of the buffer beside its own bytes


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Outgoing(Generic[Ticket]):
    """A record on its way; `ticket` gets its outcome. `token` None: the broker decides."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp_us: int | None
    headers: Sequence[Header]
    token: int | None
    ticket: Ticket
    size_bytes: int = field(init=False)  # in a request's body

    def __post_init__(self) -> None:
        size_bytes = _RECORD_COLUMNS_BYTES + len(self.key or b"") + len(self.value or b"")
        for name, value in self.headers:
            size_bytes += _RECORD_COLUMNS_BYTES + len(name) + len(value)
        object.__setattr__(self, "size_bytes", size_bytes)


@dataclass(eq=False, slots=True)
class Batch(Generic[Ticket]):
    """Records of one request, in the order in which they were sent; `url`: to which broker."""

    topic: str
    url: str
    opened_s: float
    numbers: list[int] = field(default_factory=list)  # of the records among all, growing
    records: list[Outgoing[Ticket]] = field(default_factory=list)
    size_bytes: int = 0
    sequence: int | None = None
    retries: Retries | None = None
    is_astray: bool = False  # its records may belong to other brokers than `url`
    _body: bytes | None = None

    def body(self) -> bytes:
        """As records+binary; a retry has the very same."""
        if self._body is None:
            records = self.records
            self._body = encode_records(
                [record.key for record in records],
                [record.value for record in records],
                # All have one, or none has: see `Batching.add`.
                [record.timestamp_us for record in records if record.timestamp_us is not None]
                or None,
                [record.headers for record in records] if any(r.headers for r in records) else None,
            )
        return self._body

    def append(self, number: int, record: Outgoing[Ticket]) -> None:
        """Behind the others."""
        self.numbers.append(number)
        self.records.append(record)
        self.size_bytes += record.size_bytes

    def takes(self, record: Outgoing[Ticket], batch_bytes: int) -> bool:
        """Whether this record can be sent with the others, of which there is one at least."""
        return (
            self.size_bytes + record.size_bytes <= batch_bytes
            and len(self.records) < BATCH_RECORDS_MAX
            and (self.records[-1].timestamp_us is None) == (record.timestamp_us is None)
        )


@dataclass(eq=False, slots=True)
class _Lane(Generic[Ticket]):
    """Batches that wait, the last of them open; and the one that is under way.

    `scattered`: the other parts of one that was, each to another broker, in its place.
    """

    batches: deque[Batch[Ticket]] = field(default_factory=deque)
    under_way: Batch[Ticket] | None = None
    scattered: deque[Batch[Ticket]] = field(default_factory=deque)
    again_s: float | None = None  # when a failed one is sent again

    def all_batches(self) -> Iterator[Batch[Ticket]]:
        """Oldest first."""
        return chain(self.begun(), self.batches)

    def begun(self) -> Iterator[Batch[Ticket]]:
        """What is under way, or was and goes on in parts."""
        return chain([] if self.under_way is None else [self.under_way], self.scattered)


class Batching(Generic[Ticket]):
    """Times are seconds by the caller's steady clock. `used_bytes`: of all without an outcome."""

    def __init__(self, limits: Limits) -> None:
        self.used_bytes = 0
        self._limits = limits
        self._next_number = 0
        self._hurried_to = 0  # records below this number do not linger
        self._lanes: dict[tuple[str, str], _Lane[Ticket]] = {}
        self._draining: dict[str, set[Batch[Ticket]]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether every record that was added has its outcome."""
        return not self._lanes

    @property
    def lane_count(self) -> int:
        """How many requests can be under way at once."""
        return len(self._lanes)

    @property
    def record_count(self) -> int:
        """How many have no outcome."""
        return sum(
            len(batch.records) for lane in self._lanes.values() for batch in lane.all_batches()
        )

    def topics(self) -> set[str]:
        """Those of records without an outcome."""
        return {topic for topic, _ in self._lanes}

    def has_room(self, size_bytes: int) -> bool:
        """For one record more, of so many bytes; always when there is none."""
        needed_bytes = self.used_bytes + size_bytes + self._limits.record_bytes
        return self.is_empty or needed_bytes <= self._limits.buffer_bytes

    def add(self, record: Outgoing[Ticket], url: str, now_s: float) -> bool:
        """Whether this changes when a request is due (else nobody needs to check)."""
        self.used_bytes += record.size_bytes + self._limits.record_bytes
        self._next_number += 1
        return self._gather(self._next_number - 1, record, url, now_s)

    def hurry(self) -> int:
        """All that was added is due at once; the number that `is_done_to` takes for it."""
        self._hurried_to = self._next_number
        return self._next_number

    def is_done_to(self, number: int) -> bool:
        """Whether every record that was added before that `hurry` has its outcome."""
        return all(
            batch.numbers[0] >= number
            for lane in self._lanes.values()
            for batch in islice(lane.all_batches(), 1)
        )

    def take(self, now_s: float) -> Batch[Ticket] | None:
        """A request that is due, the one with the oldest record; it is under way from now on."""
        due = [
            (batch.numbers[0], lane)
            for lane in self._lanes.values()
            for batch in islice(lane.all_batches(), 1)
            if (due_s := self._due_s(lane)) is not None and due_s <= now_s
        ]
        if not due:
            return None
        _, lane = min(due, key=lambda each: each[0])
        lane.again_s = None
        if lane.under_way is None:
            lane.under_way = (lane.scattered or lane.batches).popleft()
        return lane.under_way

    def due_s(self) -> float | None:
        """When `take` has something next if nothing happens before; None: never."""
        known = [due_s for lane in self._lanes.values() if (due_s := self._due_s(lane)) is not None]
        return min(known, default=None)

    def send_again(self, batch: Batch[Ticket], at_s: float) -> None:
        """The request that is under way failed, and is due again then."""
        lane = self._lane_of(batch)
        lane.again_s = at_s

    def finish(self, batch: Batch[Ticket]) -> None:
        """Its records have their outcome."""
        lane = self._lane_of(batch)
        lane.under_way = None
        self._forget(batch)
        self._drop_empty(batch.topic)

    def overdue(self, batch: Batch[Ticket], opened_before_s: float) -> list[Batch[Ticket]]:
        """What waited behind a request that was given up, as long as it: taken out, to fail too."""
        lane = self._lane_of(batch)
        due = []
        while lane.batches and lane.batches[0].opened_s <= opened_before_s:
            due.append(lane.batches.popleft())
            self._forget(due[-1])
        return due

    def split(self, batch: Batch[Ticket]) -> None:
        """Two requests in place of one that is under way and was refused as a whole, in order."""
        assert len(batch.records) > 1, "a request of one record cannot be split"
        lane = self._lane_of(batch)
        lane.under_way = None
        middle = len(batch.records) // 2
        # Not to be taken further apart than the limits ask: they go at once, one after the other.
        for part in (slice(middle, None), slice(0, middle)):
            half = Batch[Ticket](batch.topic, batch.url, batch.opened_s)
            for number, record in zip(batch.numbers[part], batch.records[part], strict=True):
                half.append(number, record)
            lane.batches.appendleft(half)
        self._hurried_to = max(self._hurried_to, batch.numbers[-1] + 1)
        self._drained(batch)

    def scatter(self, batch: Batch[Ticket], url_of: Callable[[Outgoing[Ticket]], str]) -> None:
        """In place of a request under way one to each broker that its records belong to now.

        They have its sequence: what of it was stored is known there by that.
        """
        lane = self._lane_of(batch)
        lane.under_way = None
        parts: dict[str, Batch[Ticket]] = {}
        for number, record in zip(batch.numbers, batch.records, strict=True):
            url = url_of(record)
            if url not in parts:
                parts[url] = Batch[Ticket](batch.topic, url, batch.opened_s)
                parts[url].sequence, parts[url].retries = batch.sequence, batch.retries
            parts[url].append(number, record)
        lane.scattered.extendleft(reversed(parts.values()))
        if batch.topic in self._draining:
            self._draining[batch.topic].update(parts.values())
            self._drained(batch)

    def reroute(self, topic: str, url_of: Callable[[Outgoing[Ticket]], str]) -> None:
        """Sort what is gathered again; the new lanes wait for what is under way."""
        lanes = {key: lane for key, lane in self._lanes.items() if key[0] == topic}
        if all(
            url_of(record) == url
            for (_, url), lane in lanes.items()
            for batch in lane.all_batches()
            for record in batch.records
        ):
            return
        gathered = [
            (number, record, batch.opened_s)
            for lane in lanes.values()
            for batch in lane.batches
            for number, record in zip(batch.numbers, batch.records, strict=True)
        ]
        for lane in lanes.values():
            lane.batches.clear()
        under_way = {batch for lane in lanes.values() for batch in lane.begun()}
        if under_way:
            self._draining[topic] = under_way
        for number, record, opened_s in sorted(gathered, key=lambda each: each[0]):
            self._gather(number, record, url_of(record), opened_s)
        self._drop_empty(topic)

    def take_all(self) -> list[Outgoing[Ticket]]:
        """Every record without an outcome; forgets them."""
        batches = [batch for lane in self._lanes.values() for batch in lane.all_batches()]
        self._lanes.clear()
        self._draining.clear()
        self.used_bytes = 0
        return [record for batch in batches for record in batch.records]

    def _gather(self, number: int, record: Outgoing[Ticket], url: str, now_s: float) -> bool:
        lane = self._lanes.setdefault((record.topic, url), _Lane())
        is_first = not lane.batches
        if is_first or not lane.batches[-1].takes(record, self._limits.batch_bytes):
            lane.batches.append(Batch(record.topic, url, now_s))
            is_news = len(lane.batches) <= 2  # a timer to set, or the first is due now
        else:
            is_news = False
        lane.batches[-1].append(number, record)
        is_news |= len(lane.batches) == 1 and self._is_full(lane.batches[0])
        return is_news and lane.under_way is None

    def _due_s(self, lane: _Lane[Ticket]) -> float | None:
        """None: never without another event."""
        if lane.under_way is not None:
            return lane.again_s
        if lane.scattered:
            return lane.scattered[0].opened_s
        first = lane.batches[0]
        if first.topic in self._draining:
            return None
        is_ready = (
            len(lane.batches) > 1 or self._is_full(first) or first.numbers[0] < self._hurried_to
        )
        return first.opened_s if is_ready else first.opened_s + self._limits.linger_s

    def _is_full(self, batch: Batch[Ticket]) -> bool:
        return (
            batch.size_bytes >= self._limits.batch_bytes or len(batch.records) >= BATCH_RECORDS_MAX
        )

    def _lane_of(self, batch: Batch[Ticket]) -> _Lane[Ticket]:
        """Of a batch that is under way."""
        for (topic, _), lane in self._lanes.items():
            if topic == batch.topic and lane.under_way is batch:
                return lane
        raise AssertionError("the batch is not under way")

    def _forget(self, batch: Batch[Ticket]) -> None:
        self.used_bytes -= batch.size_bytes + len(batch.records) * self._limits.record_bytes
        self._drained(batch)
        assert self.used_bytes >= 0, self.used_bytes

    def _drained(self, batch: Batch[Ticket]) -> None:
        """The new lanes of its topic may start when it was the last of the old ones' requests."""
        waited_for = self._draining.get(batch.topic)
        if waited_for is not None:
            waited_for.discard(batch)
            if not waited_for:
                del self._draining[batch.topic]

    def _drop_empty(self, topic: str) -> None:
        for key in [key for key in self._lanes if key[0] == topic]:
            lane = self._lanes[key]
            if not any(True for _ in lane.all_batches()):
                del self._lanes[key]
