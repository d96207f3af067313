"""Sans-IO: one request's records, sent to each broker that leads some of them.

Any broker takes records of the partitions that it leads, and refuses the others one by one (421),
so that only these are sent again, elsewhere: each is stored once, with a number or without. Until a
broker has refused some, all go to the URL that was given, as on a ring of one.

An answer may have several elements of one partition, when others before it had the records' keys.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from tailrace.errors import (
    ConnectionFailedError,
    ProblemError,
    TailraceError,
    UnexpectedAnswerError,
)
from tailrace.produced import Produced
from tailrace.protocol.murmur3 import token
from tailrace.protocol.records_binary import Header, encode_records
from tailrace.sansio.routing import Routing, shows_stale_routing
from tailrace.values import RingStatus, TopicDetails

# Leaders may change on the way; then it is the caller's to try again.
ROUNDS_MAX = 3


class Records(NamedTuple):
    """What `Client.produce_records` is given."""

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps_us: Sequence[int] | None
    headers: Sequence[Sequence[Header]] | None = None


class Scattering:
    """Sends records in rounds: `requests`, then what came of each; `learn` between two rounds."""

    def __init__(
        self, routing: Routing, topic: str, records: Records, producer_id: str | None
    ) -> None:
        """`producer_id`: decides the partition of records without a key."""
        self._routing = routing
        self._topic = topic
        self._records = records
        self._keyless = None if producer_id is None else producer_id.encode()
        self._pending: list[int] | None = None  # indices; None: all
        self._refused: list[tuple[Sequence[int], set[int]]] = []  # of these, in these partitions
        # Of one partition there are several on a ring that has shrunk, a part each.
        self._parts: list[Produced | ProblemError] = []
        self._may_be_stored = False  # what was sent to a broker, and then to another
        self._rounds = 0
        self._has_created = False  # by a request of which all was refused

    def requests(self) -> Iterator[tuple[str, bytes, Sequence[int]]]:
        """A broker's URL, a body for it, and which records that holds."""
        self._rounds += 1
        pending = range(len(self._records.keys)) if self._pending is None else self._pending
        if not self._routing.distinguishes_brokers(self._topic):
            yield self._routing.url, self._body(pending), pending
            return
        by_url: dict[str, list[int]] = {}
        for index in pending:
            by_url.setdefault(self._url_of(index), []).append(index)
        for url, indices in by_url.items():
            yield url, self._body(indices), indices

    def stored(self, parts: Sequence[Produced]) -> None:
        """All of a request's records."""
        self._parts += parts

    def failed(self, error: TailraceError, indices: Sequence[int]) -> None:
        """Of a request with these records. Raises what another broker cannot repair."""
        if isinstance(error, ConnectionFailedError):
            self._routing.forget_topic(self._topic)
        parts = error.parts if isinstance(error, ProblemError) else ()
        is_last, is_refused = self._rounds >= ROUNDS_MAX, self._is_refused(error)
        self._has_created = self._has_created or error.topic_created
        if not parts:
            self.cut_by(error)
            partition = error.members.get("partition") if isinstance(error, ProblemError) else None
            if is_last or not is_refused or not isinstance(partition, int):
                raise error
            self._may_be_stored |= error.write_attempted
            self._refused.append((indices, set()))
            return
        refused = set() if is_last else self._refused_partitions(parts)
        self._parts += (part for part in parts if _partition_of(part) not in refused)
        if refused:
            self._may_be_stored |= any(_may_be_stored(part) for part in parts)
            self._refused.append((indices, refused))

    def _refused_partitions(self, parts: Sequence[Produced | ProblemError]) -> set[int]:
        """Those whose records can be sent again: all of them, or each is stored once."""
        counts = Counter(map(_partition_of, parts))
        return {
            partition
            for part in parts
            if isinstance(part, ProblemError) and self._is_refused(part)
            if counts[partition := _partition_of(part)] == 1 or self._keyless is not None
        }

    def _is_refused(self, error: TailraceError) -> bool:
        """Others lead; and nothing of it may be stored already, or is stored once."""
        is_safe = self._keyless is not None or not error.write_attempted
        return is_safe and shows_stale_routing(error)

    def cut_by(self, error: TailraceError) -> None:
        """An error that ends it says what is stored."""
        error.write_attempted = error.write_attempted or bool(self._parts) or self._may_be_stored
        error.topic_created = self._topic_created
        error.parts = list(self._parts)

    @property
    def wants_routing(self) -> bool:
        """Some are to be sent to others; `learn` first to whom."""
        return bool(self._refused)

    def learn(self, ring: RingStatus, details: TopicDetails, now_s: float) -> None:
        """What brokers answered just now: the next round goes by it."""
        self._routing.learn_ring(ring)
        self._routing.learn_topic(details, now_s)
        self._pending = [
            index
            for indices, partitions in self._refused
            for index in indices
            if not partitions or self._partition_of(index) in partitions
        ]
        self._refused.clear()

    def outcome(self) -> list[Produced]:
        """What was stored, by partition; ProblemError, with `parts`, when some was not."""
        parts = sorted(self._parts, key=_partition_of)
        produced = [part for part in parts if isinstance(part, Produced)]
        if len(produced) == len(parts):
            return [replace(part, topic_created=self._topic_created) for part in produced]
        first = next(part for part in parts if isinstance(part, ProblemError))
        error = type(first)(
            type=first.type,
            title=first.title,
            status=first.status,
            detail=first.detail,
            members=first.members,
            retriable=first.retriable,
            write_attempted=self._may_be_stored or any(map(_may_be_stored, parts)),
        )
        error.topic_created = self._topic_created
        error.parts = parts
        raise error

    @property
    def _topic_created(self) -> bool:
        return self._has_created or any(part.topic_created for part in self._parts)

    def _body(self, indices: Sequence[int]) -> bytes:
        keys, values, times, headers = self._records
        if len(indices) == len(keys):
            return encode_records(keys, values, times, headers)
        return encode_records(
            [keys[index] for index in indices],
            [values[index] for index in indices],
            None if times is None else [times[index] for index in indices],
            None if headers is None else [headers[index] for index in indices],
        )

    def _token(self, index: int) -> int | None:
        key = self._records.keys[index]
        placing = self._keyless if key is None else key
        return None if placing is None else token(placing)

    def _url_of(self, index: int) -> str:
        key_token = self._token(index)
        if key_token is None:
            return self._routing.url
        return self._routing.destination(self._topic, key_token)

    def _partition_of(self, index: int) -> int | None:
        key_token = self._token(index)
        return None if key_token is None else self._routing.partition_of(self._topic, key_token)


def _may_be_stored(part: Produced | ProblemError) -> bool:
    return isinstance(part, Produced) or part.write_attempted


def _partition_of(part: Produced | ProblemError) -> int:
    if isinstance(part, Produced):
        return part.partition
    partition = part.members.get("partition")
    if not isinstance(partition, int):
        error = UnexpectedAnswerError(f"a part of an answer names no partition: {part}")
        error.write_attempted = True
        raise error
    return partition
