"""Sans-IO: what both producers of records do alike: take them, number requests, read outcomes.

A shell (`producer`, `aio_producer`) takes a request that is due, sends it, and reports
the outcome; it gets back which records have their outcome, settles them, and finishes the
request. Only then does the next one of the same lane go (`batching`). A request that failed goes
again under the same number, to whichever broker takes it, until its outcome is known or the
delivery timeout ends (`retries`); the broker stores it once.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypedDict, TypeVar, Unpack
from uuid import uuid4

from tailrace.errors import ConnectionFailedError, NotStoredError, ProblemError, TailraceError
from tailrace.produced import Produced
from tailrace.protocol.murmur3 import token
from tailrace.protocol.records_binary import Header
from tailrace.protocol.requests import Numbered
from tailrace.sansio.batching import Batch, Batching, Limits, Outgoing
from tailrace.sansio.retries import PATIENCE_S, Retries, first_sequence
from tailrace.sansio.routing import Routing, shows_stale_routing
from tailrace.values import RingStatus, TopicDetails

# What Python needs for a record on its way beside its bytes: itself, its future, its places.
RECORD_BYTES = 2048
# A topic that brokers do not explain is not asked for with each request.
ASK_AGAIN_S = 1.0
_ID = re.compile(r"[!-~]{1,128}")

Ticket = TypeVar("Ticket")
Headers = Iterable[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Stored:
    """A record is stored at `offset` of `partition`, as durably as its topic promises.

    Both are None in the rare case that partitions were replaced while it was on its way; `offset`
    alone when its request is stored in several parts of a partition that follows several others.
    `duplicate`: an attempt before had stored it.
    """

    topic: str
    partition: int | None
    offset: int | None
    duplicate: bool = False


Outcome = Stored | TailraceError
Settled = list[tuple[Outgoing[Ticket], Outcome]]


class ProducerOptions(TypedDict, total=False):
    """How a producer gathers and how long it tries; what is left out is as in `_ProducerSettings`.

    `id`: what brokers know it by, that nobody else has (None: a random one).
    `linger_ms`: how long a record waits at most for others to share its request, while none is
    under way. `batch_bytes`: of a request; a larger record goes alone. `buffer_bytes`: memory of
    all records without an outcome, about 2 KiB each beside their bytes; when it is full a send
    waits `block_s`. `patience_s`: how long a request is tried again, from its first attempt.
    `idempotent`: requests are numbered, so that each is stored once; else what may have been
    stored is not sent again. `connections_max`: requests under way at once, at most one a topic
    and broker.
    """

    id: str | None
    linger_ms: float
    batch_bytes: int
    buffer_bytes: int
    block_s: float
    patience_s: float
    idempotent: bool
    connections_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProducerSettings:
    """ValueError names the option that is out of bounds."""

    id: str | None = None
    linger_ms: float = 5.0
    batch_bytes: int = 960 * 1024
    buffer_bytes: int = 32 * 1024 * 1024
    block_s: float = 60.0
    patience_s: float = PATIENCE_S
    idempotent: bool = True
    connections_max: int = 4

    def __post_init__(self) -> None:
        least = {"batch_bytes": 1, "buffer_bytes": 1, "connections_max": 1}
        for name in (*least, "linger_ms", "block_s", "patience_s"):
            value = getattr(self, name)
            if not value >= least.get(name, 0):
                raise ValueError(f"{name} is {value}; give {least.get(name, 0)} or more")
        if self.id is not None and not _ID.fullmatch(self.id):
            raise ValueError(f"id {self.id!r} is not 1 to 128 visible ASCII characters")


class Sending(Generic[Ticket]):
    """A producer without its connections. Times are seconds by the shell's steady clock."""

    def __init__(self, url: str, *, now_us: int, **options: Unpack[ProducerOptions]) -> None:
        """`now_us`: since the epoch."""
        settings = _ProducerSettings(**options)
        self.id = settings.id or uuid4().hex
        self.settings = settings
        self.failed_count = 0  # since the last `take_failure`
        self.batching = Batching[Ticket](
            Limits(
                linger_s=settings.linger_ms / 1000,
                batch_bytes=settings.batch_bytes,
                buffer_bytes=settings.buffer_bytes,
                record_bytes=RECORD_BYTES,
            )
        )
        self._routing = Routing(url)
        self._ask_again_s: dict[str, float] = {}  # by topic
        self._sequences = count(first_sequence(settings.id, now_us))
        self._keyless_token = token(self.id.encode()) if settings.idempotent else None
        self._first_failure: TailraceError | None = None

    def outgoing(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | str | None,
        timestamp_us: int | None,
        headers: Headers,
        ticket: Ticket,
    ) -> Outgoing[Ticket]:
        """A record that can be sent; TypeError, ValueError: it cannot be one."""
        if not isinstance(topic, str) or not topic.isascii() or not topic:
            raise ValueError(f"topic {topic!r} is no name of a topic")
        key_bytes = key.encode() if isinstance(key, str) else key
        for name, given in (("key", key_bytes), ("value", value)):
            if given is not None and not isinstance(given, bytes):
                raise TypeError(f"{name} is {type(given).__name__}; give bytes")
        if timestamp_us is not None and (
            not isinstance(timestamp_us, int) or not 0 <= timestamp_us < 2**63
        ):
            raise ValueError(f"timestamp_us is {timestamp_us}; give whole µs since 1970")
        outgoing = Outgoing(
            topic=topic,
            key=key_bytes,
            value=value,
            timestamp_us=timestamp_us,
            headers=tuple(_encoded(headers)),
            token=self._keyless_token if key_bytes is None else token(key_bytes),
            ticket=ticket,
        )
        if outgoing.size_bytes > self.settings.buffer_bytes:
            raise ValueError(
                f"the record has {outgoing.size_bytes:,} bytes; "
                f"buffer_bytes is {self.settings.buffer_bytes:,}: give the producer more"
            )
        return outgoing

    def add(self, record: Outgoing[Ticket], now_s: float) -> bool:
        """Whether this changes when a request is due."""
        return self.batching.add(record, self._url_of(record), now_s)

    def take(self, now_s: float) -> Batch[Ticket] | None:
        """A request that is due, to be sent now."""
        batch = self.batching.take(now_s)
        if batch is not None and batch.retries is None:
            batch.sequence = next(self._sequences) if self.settings.idempotent else None
            batch.retries = Retries(
                now_s + self.settings.patience_s,
                is_numbered=self.settings.idempotent,
                is_patient=True,
            )
        return batch

    def numbered(self, batch: Batch[Ticket]) -> Numbered:
        """What names the request, so that it is stored once."""
        if batch.sequence is None:
            return Numbered()
        return Numbered(producer_id=self.id, sequence=batch.sequence)

    @property
    def url(self) -> str:
        """Of a broker, for what any can answer."""
        return self._routing.url

    # --- the ring ---------------------------------------------------------------------------------

    def wants_routing(
        self, batch: Batch[Ticket], parts: Sequence[Produced | ProblemError], now_s: float
    ) -> bool:
        """Whether to ask brokers and `learn` first: before `batch` is sent, with the `parts` of its
        answer before it is `stored` or has `failed`. Once in a while only where it does not help.
        """
        topic = batch.topic
        if parts:
            is_wanted = self._places(batch, parts) is None
        else:  # a topic's first request goes at once: perhaps the topic is made by it
            is_known = self._routing.knows(topic) or not self.settings.idempotent
            is_wanted = is_known and not self._routing.is_current(topic, now_s)
        if not is_wanted or now_s < self._ask_again_s.get(topic, now_s):
            return False
        self._ask_again_s[topic] = now_s + ASK_AGAIN_S
        return True

    def learn(self, ring: RingStatus, details: TopicDetails, now_s: float) -> None:
        """What brokers answered just now; records that wait go where they belong."""
        self._routing.learn_ring(ring)
        self._routing.learn_topic(details, now_s)
        self._reroute()

    def aim(self, batch: Batch[Ticket], *, has_learned: bool) -> bool:
        """Whether `batch` can be sent to its URL, now that leaders may be others.

        False: there are several requests in its place, to be taken as any.
        """
        if not batch.is_astray and not has_learned:
            return True
        batch.is_astray = False
        urls = {self._url_of(record) for record in batch.records}
        if len(urls) > 1:
            self.batching.scatter(batch, self._url_of)
            return False
        [batch.url] = urls
        return True

    # --- outcomes ---------------------------------------------------------------------------------

    def stored(self, batch: Batch[Ticket], parts: Sequence[Produced]) -> Settled[Ticket]:
        """All of it is stored: the outcome of each record."""
        return self._settled(batch, parts)

    def failed(
        self, batch: Batch[Ticket], error: TailraceError, now_s: float
    ) -> Settled[Ticket] | None:
        """The outcomes; None: none yet, it is sent again later."""
        assert batch.retries is not None, "only what was taken can fail"
        if isinstance(error, ConnectionFailedError):
            self._routing.mark_unreachable(batch.url)
            self._reroute()
        if shows_stale_routing(error):
            self._routing.expire_topic(batch.topic)
        batch.url = self._routing.url  # which knows who leads
        batch.is_astray = True
        parts = error.parts if isinstance(error, ProblemError) else ()
        may_be_stored = error.write_attempted or batch.retries.may_be_stored
        if _is_one_records_fault(error) and len(batch.records) > 1 and not may_be_stored:
            self.batching.split(batch)
            self._reroute()
            return None
        for part in parts:
            if isinstance(part, ProblemError):
                part.write_attempted = part.write_attempted or batch.retries.may_be_stored
                error.retriable = error.retriable or part.retriable
        pause_s = batch.retries.pause_s(error, now_s)
        if pause_s is not None:
            self.batching.send_again(batch, now_s + pause_s)
            return None
        settled = self._settled(batch, parts, error)
        if error.retriable:  # the delivery timeout has passed: for what waited as long, too
            for late in self.batching.overdue(batch, now_s - self.settings.patience_s):
                settled += self._settled(late, (), _never_sent(error))
        return settled

    def take_failure(self) -> NotStoredError | None:
        """What was not stored since the last call."""
        failed_count, first = self.failed_count, self._first_failure
        self.failed_count, self._first_failure = 0, None
        return None if first is None else NotStoredError(failed_count, first)

    def abandon(self, reason: str) -> Settled[Ticket]:
        """Nothing is sent any more: the outcome of every record that has none."""
        error = TailraceError(reason)
        error.write_attempted = True
        return self._counted([(record, error) for record in self.batching.take_all()])

    def _settled(
        self,
        batch: Batch[Ticket],
        parts: Sequence[Produced | ProblemError],
        error: TailraceError | None = None,
    ) -> Settled[Ticket]:
        """By the partitions of an answer; where they say nothing, all share one outcome."""
        places = self._places(batch, parts) if parts else None
        if places is not None:
            self._ask_again_s.pop(batch.topic, None)  # asking has helped, and may be of use again
            return self._counted(list(zip(batch.records, places, strict=True)))
        duplicate = any(isinstance(part, Produced) and part.duplicate for part in parts)
        outcome = error or Stored(batch.topic, None, None, duplicate)
        return self._counted([(record, outcome) for record in batch.records])

    def _counted(self, settled: Settled[Ticket]) -> Settled[Ticket]:
        for _, outcome in settled:
            if isinstance(outcome, TailraceError):
                self.failed_count += 1
                self._first_failure = self._first_failure or outcome
        return settled

    def _places(
        self, batch: Batch[Ticket], parts: Sequence[Produced | ProblemError]
    ) -> list[Outcome] | None:
        """What became of each record; None when what is known of partitions does not fit."""
        partitions = self._partitions(batch, parts)
        if partitions is None:
            return None
        parts_by_partition: defaultdict[int, list[Produced | ProblemError]] = defaultdict(list)
        for part in parts:
            parts_by_partition[_partition_of(part)].append(part)
        expected = Counter(partitions)
        if expected.keys() != parts_by_partition.keys():
            return None
        places = {
            partition: _places_in(batch.topic, parts_by_partition[partition], count)
            for partition, count in expected.items()
        }
        if any(in_partition is None for in_partition in places.values()):
            return None
        next_of = {partition: iter(found or ()) for partition, found in places.items()}
        return [next(next_of[partition]) for partition in partitions]

    def _partitions(
        self, batch: Batch[Ticket], parts: Sequence[Produced | ProblemError]
    ) -> list[int] | None:
        """Of each record; those that a broker placed are where the answer has more than known."""
        of_records = [
            None if record.token is None else self._routing.partition_of(batch.topic, record.token)
            for record in batch.records
        ]
        placed = None
        if any(record.token is None for record in batch.records):
            keyed = Counter(of_record for of_record in of_records if of_record is not None)
            more = [
                part.partition
                for part in parts
                if isinstance(part, Produced) and part.count > keyed[part.partition]
            ]
            placed = more[0] if len(more) == 1 else None
        partitions = [
            placed if record.token is None else partition
            for record, partition in zip(batch.records, of_records, strict=True)
        ]
        known = [each for each in partitions if each is not None]
        return known if len(known) == len(partitions) else None

    def _url_of(self, record: Outgoing[Ticket]) -> str:
        if record.token is None:
            return self._routing.url
        return self._routing.destination(record.topic, record.token)

    def _reroute(self) -> None:
        for topic in self.batching.topics():
            self.batching.reroute(topic, self._url_of)


def _encoded(headers: Headers) -> Iterator[Header]:
    for name, value in headers:
        if not isinstance(name, str) or not isinstance(value, bytes):
            raise TypeError("headers are pairs of a name as text and a value as bytes")
        yield name.encode(), value


def _partition_of(part: Produced | ProblemError) -> int:
    """-1, which is no partition, when a broken broker left it out."""
    if isinstance(part, Produced):
        return part.partition
    partition = part.members.get("partition")
    return partition if isinstance(partition, int) else -1


def _places_in(
    topic: str, parts: Sequence[Produced | ProblemError], count: int
) -> list[Outcome] | None:
    """Of the `count` records of a partition, in their order; None: the parts do not say."""
    first, *others = parts
    if isinstance(first, ProblemError):
        return None if others else [first] * count
    stored = [part for part in parts if isinstance(part, Produced)]
    if len(stored) < len(parts) or sum(part.count for part in stored) != count:
        return None
    if others:  # which of them has a record is not known
        duplicate = any(part.duplicate for part in stored)
        return [Stored(topic, first.partition, None, duplicate)] * count
    offsets = range(first.offset, first.offset + count)
    return [Stored(topic, first.partition, offset, first.duplicate) for offset in offsets]


def _is_one_records_fault(error: TailraceError) -> bool:
    """Refused before anything was stored, for what a part of the request may not have."""
    return isinstance(error, ProblemError) and (
        error.type in ("body-too-large", "invalid-record")
        or (error.type == "invalid-parameter" and error.members.get("parameter") == "timestamp")
    )


def _never_sent(error: TailraceError) -> TailraceError:
    """For records behind those that this error ended: nothing of them was attempted."""
    behind = TailraceError(f"not sent, since what came before could not be stored: {error}")
    behind.retriable = True
    return behind
