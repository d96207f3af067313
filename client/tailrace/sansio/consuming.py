"""Sans-IO: a consumer of a group; what it asks next, what an answer means. `consumer` asks.

At least once. A delivery is confirmed by the poll after it, which is asked when all its records are
handed out and more are wanted. Each poll names the delivery that is dealt with, so that one whose
answer was lost is asked again and gives the same records. A consumer that the broker has removed
registers again; what it had not confirmed comes again, to it or to another. A process whose name
another has taken gets a StaleAssignmentError: whatever it asks names the epoch that it was
named itself, and it takes over no other.

A shell calls `ask`, applies one `next_step` after the other, and reports the outcome of each:
`registered`, `listed`, `polled`, `described`, or `failed`. Then it takes what is to be handed out;
when a heartbeat is due in between, it registers again, and reports the outcome of that.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from enum import Enum, auto
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, get_args
from uuid import UUID

from tailrace.errors import (
    ConsumerNotRegisteredError,
    StaleAssignmentError,
    StaleDeliveryError,
    TailraceError,
)
from tailrace.protocol.group_requests import Form, Named, PollParameters
from tailrace.protocol.group_values import (
    GroupDetails,
    OnNewGroup,
    Polled,
    Registered,
    TopicPartition,
)
from tailrace.protocol.records_ndjson import Record, decode_lines
from tailrace.sansio.retries import PATIENCE_S, Retries
from tailrace.values import TopicInfo

if TYPE_CHECKING:
    import pyarrow as pa

_SIGNS_PER_SESSION = 3
_NAME_CHARACTERS_MAX = 249

Items = Literal["records", "batches", "lines"]  # what is handed out; lines: a record each, unread
_FORMS: Mapping[Items, Form] = {"records": "ndjson", "batches": "batch", "lines": "ndjson"}


class ConsumerOptions(TypedDict, total=False):
    """What every consumer takes; what is left out is as in `_ConsumerSettings`.

    `consumer_id`: its name in the group, the same after a restart or a new one each time (None).
    `on_new_group`: where a group starts in topics that it has not read yet. `session_ms`: after so
    long without a request the broker takes it for dead, and others get its partitions; the consumer
    makes requests itself as long as records are asked of it. `create_topics`: topics that do not
    exist are created, where the broker creates topics automatically. `max_records` (of records) and
    `max_bytes` bound a delivery (None: the broker's, 1,000 and 1 MiB). `wait_ms`: how long a poll
    may wait for the first record. `patience_s`: how long a broker that does not answer is asked
    again.
    """

    consumer_id: str | None
    on_new_group: OnNewGroup
    session_ms: int
    create_topics: bool
    max_records: int | None
    max_bytes: int | None
    wait_ms: int
    patience_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConsumerSettings:
    """ValueError names the option that is out of bounds; the upper ones are the broker's."""

    consumer_id: str | None = None
    on_new_group: OnNewGroup = "startFromEarliest"
    session_ms: int = 30_000
    create_topics: bool = False
    max_records: int | None = None
    max_bytes: int | None = None
    wait_ms: int = 5_000
    patience_s: float = PATIENCE_S

    def __post_init__(self) -> None:
        least = {"session_ms": 1_000, "max_records": 1, "max_bytes": 1, "wait_ms": 0}
        for name in (*least, "patience_s"):
            value = getattr(self, name)
            if value is not None and not value >= least.get(name, 0):
                raise ValueError(f"{name} is {value}; give {least.get(name, 0)} or more")
        if self.on_new_group not in get_args(OnNewGroup):
            raise ValueError(
                f"on_new_group is {self.on_new_group!r}; give {' or '.join(get_args(OnNewGroup))}"
            )
        if self.consumer_id is not None:
            _check_name("consumer_id", self.consumer_id)


class RegisterParameters(TypedDict):
    """Of `Step.REGISTER`, and of a heartbeat."""

    consumer_id: str
    group: str
    topics: tuple[str, ...]
    on_new_group: OnNewGroup
    session_ms: int
    create_topics: bool
    assignment_epoch: int | None


@dataclass(frozen=True, slots=True)
class Assignment:
    """The partitions that are this consumer's now, and what of them has come and gone."""

    epoch: int
    partitions: tuple[TopicPartition, ...]
    added: tuple[TopicPartition, ...]
    removed: tuple[TopicPartition, ...]


class Step(Enum):
    """What to ask the broker."""

    REGISTER = auto()
    LIST_TOPICS = auto()
    DESCRIBE = auto()
    POLL = auto()


class Consuming:
    """One consumer's state; each `now_s` is by the caller's clock, one that only goes forward."""

    def __init__(
        self,
        group: str,
        topics: str | Iterable[str],
        *,
        new_id: str,
        wants_assignment: bool = False,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """`new_id`: for a consumer that has none of its own. ValueError."""
        _check_name("group", group)
        self._settings = _ConsumerSettings(**options)
        self.consumer_id = self._settings.consumer_id or new_id
        self.group = group
        self.topics = (topics,) if isinstance(topics, str) else tuple(topics)
        if not self.topics:
            raise ValueError("topics is empty; give one or more")
        self._wants_assignment = wants_assignment
        self._wanted: Items = "records"
        self._include_headers = False
        self._max_records = self._settings.max_records
        self._epoch: int | None = None  # None: it is not registered
        self._reported_epoch: int | None = None
        self._partitions: frozenset[TopicPartition] = frozenset()
        self._topics: dict[bytes, str] = {}
        self._undecoded: Polled | None = None
        self._delivery = 0
        self._is_confirmed = True
        self._comes_again = False  # it was not committed, since the coordinator has changed
        self._items: deque[Any] = deque()
        self._is_due = False
        self._has_answered = False
        self._retries: Retries | None = None
        self._asked_s = 0.0
        self._retry_after_s = 0.0

    @property
    def is_registered(self) -> bool:
        """As far as it is known."""
        return self._epoch is not None

    # --- what to ask ---

    def ask(
        self, wanted: Items, *, include_headers: bool = False, max_records: int | None = None
    ) -> None:
        """More is wanted; nothing is polled while there is something to hand out.

        `max_records`: at most so many, None: as the options say. ValueError: what there is has
        another form.
        """
        if self._items and (wanted, include_headers) != (self._wanted, self._include_headers):
            raise ValueError(
                "the last delivery is not handed out to its end: take the rest of it as before, "
                "then change between records and batches"
            )
        self._wanted, self._include_headers = wanted, include_headers
        self._max_records = max_records or self._settings.max_records
        self._is_due = not self._items
        self._undecoded = None  # of a call that was cancelled: it comes again

    def next_step(self) -> Step | None:
        """None: all is asked; what there is can be handed out."""
        if self._epoch is None:
            return Step.REGISTER
        if self._undecoded is not None:
            return Step.LIST_TOPICS
        if self._wants_assignment and (
            self._reported_epoch is None or self._reported_epoch < self._epoch
        ):
            return Step.DESCRIBE
        return Step.POLL if self._is_due else None

    def register_parameters(self) -> RegisterParameters:
        """With an epoch they ask whether it is still registered, and join nothing again."""
        return {
            "consumer_id": self.consumer_id,
            "group": self.group,
            "topics": self.topics,
            "on_new_group": self._settings.on_new_group,
            "session_ms": self._settings.session_ms,
            "create_topics": self._settings.create_topics,
            "assignment_epoch": self._epoch,
        }

    def poll_parameters(self) -> PollParameters:
        """Of `Step.POLL`."""
        return {
            "form": _FORMS[self._wanted],
            "max_records": self._max_records,
            "max_bytes": self._settings.max_bytes,
            "wait_ms": self._settings.wait_ms,
            **self._named(),
        }

    def commit_parameters(self) -> Named | None:
        """What a commit names; None: nothing waits for one, or not all of it is handed out."""
        return None if self._items or self._is_confirmed else self._named()

    def goodbye_parameters(self) -> Named | None:
        """What a goodbye names; None: there is nothing to leave."""
        return self._named() if self.is_registered else None

    def asked(self, now_s: float) -> None:
        """A request is sent: the broker sees that the consumer is there."""
        self._asked_s = now_s

    def is_sign_due(self, now_s: float) -> bool:
        """Whether to register again: the caller takes its time with what it still has in hand."""
        sign_after_s = self._settings.session_ms / 1000 / _SIGNS_PER_SESSION
        is_waiting = self.is_registered and bool(self._items)
        return is_waiting and now_s - self._asked_s >= sign_after_s

    def idle_s(self, now_s: float) -> float:
        """How long to wait before polling again when nothing came."""
        return max(0.0, self._asked_s + self._retry_after_s - now_s)

    # --- what came of it ---

    def registered(self, registered: Registered) -> None:
        """It is; or still is, after a heartbeat, which names no epoch of its own."""
        if self._epoch is None:
            self._epoch = registered.assignment_epoch
        self._has_answered = True

    def polled(self, polled: Polled) -> None:
        """Records, or nothing yet.

        CorruptBatchError, UnexpectedAnswerError: the same records come again when asked again.
        """
        self._epoch = polled.assignment_epoch
        self._retries = None
        if polled.retry_after_s is not None:
            self._retry_after_s = polled.retry_after_s
            self._is_confirmed = True
            self._is_due = False
        elif self._wanted == "records":
            self._take(polled, decode_lines(polled.body))
        elif self._wanted == "lines":
            self._take(polled, BytesIO(polled.body))  # by LF alone, as `decode_lines`
        else:
            self._take_batches(polled)

    def listed(self, topics: Iterable[TopicInfo]) -> None:
        """The topics that there are, for the delivery that has batches of one not heard of yet."""
        assert self._undecoded is not None
        polled, self._undecoded = self._undecoded, None
        self._topics = {UUID(topic.id).bytes: topic.name for topic in topics}
        self._take(polled, self._decoded(polled))

    def described(self, details: GroupDetails) -> Assignment:
        """The assignment as the caller gets it."""
        partitions = frozenset(
            partition
            for consumer in details.consumers
            if consumer.consumer_id == self.consumer_id
            for partition in consumer.partitions
        )
        before, self._partitions = self._partitions, partitions
        self._reported_epoch = details.assignment_epoch
        return Assignment(
            details.assignment_epoch,
            tuple(sorted(partitions)),
            tuple(sorted(partitions - before)),
            tuple(sorted(before - partitions)),
        )

    def committed(self) -> None:
        """All that was handed out is confirmed."""
        self._is_confirmed = True
        self._retries = None

    def failed(self, error: TailraceError, now_s: float) -> float:
        """How long to wait before the next step; raises `error` when trying again is of no use."""
        if isinstance(error, ConsumerNotRegisteredError):
            self._unregister()
            error.retriable = True  # by registering
        return self._pause_s(error, now_s)

    def sign_failed(self, error: TailraceError) -> None:
        """Of a heartbeat. What is in hand is not handed out when another consumer has it by now.

        Raises `error` when this consumer belongs to a different process; of all else the next poll
        informs.
        """
        if isinstance(error, ConsumerNotRegisteredError | StaleAssignmentError):
            self.drop()
            self.forget()
        if isinstance(error, StaleAssignmentError):
            raise error

    def commit_failed(self, error: TailraceError, now_s: float) -> float:
        """As `failed`; what can no more be confirmed comes again, and the caller must know."""
        if isinstance(error, ConsumerNotRegisteredError):
            self.forget()
            raise error
        if isinstance(error, StaleDeliveryError):
            self._is_confirmed = True
            if error.coordinator_changed:  # after a failover, or a step of the ring
                self._comes_again = True
                return 0.0
            raise error
        return self._pause_s(error, now_s)

    def take_comes_again(self) -> bool:
        """Whether what was to be committed comes again, as the next poll says."""
        comes_again, self._comes_again = self._comes_again, False
        return comes_again

    def forget(self) -> None:
        """It is not registered any more; what it has not confirmed comes again."""
        self._unregister()
        self._retries = None

    # --- what is handed out ---

    def has_items(self) -> bool:
        """Whether something of the last delivery is not handed out yet."""
        return bool(self._items)

    def take(self) -> Any | None:
        """The next one of what was asked for; None: ask."""
        return self._items.popleft() if self._items else None

    def take_records(self) -> list[Record]:
        """All of them."""
        records = list(self._items)
        self._items.clear()
        return records

    def lines(self, *, size_bytes: int) -> list[bytes]:
        """The next ones, at most so large or one; they count as handed out when they are taken."""
        found: list[bytes] = []
        for line in self._items:
            size_bytes -= len(line)
            if found and size_bytes < 0:
                break
            found.append(line)
        return found

    def take_lines(self, count: int) -> None:
        """So many were dealt with."""
        for _ in range(count):
            self._items.popleft()

    def skip_lines(self, lines: Set[bytes]) -> None:
        """These were dealt with before."""
        self._items = deque(item for item in self._items if item not in lines)

    def drop(self) -> None:
        """What is not handed out yet will not be."""
        self._items.clear()

    # --- how it is done ---

    def _named(self) -> Named:
        return {"delivery": self._delivery, "assignment_epoch": self._epoch}

    def _unregister(self) -> None:
        self._epoch = self._reported_epoch = None
        self._undecoded = None
        self._delivery = 0
        self._is_confirmed = True

    def _take(self, polled: Polled, items: Iterable[Any]) -> None:
        """A delivery is there once all of it could be read."""
        self._items = deque(items)
        self._delivery = polled.delivery
        self._is_confirmed = False
        self._is_due = False
        self._retry_after_s = 0.0

    def _take_batches(self, polled: Polled) -> None:
        """At once when the names of its topics are known."""
        from tailrace.arrow.deliveries import topic_ids

        unknown = topic_ids(polled.body) - self._topics.keys()
        if unknown and len(self.topics) > 1:
            self._undecoded = polled
            return
        self._topics |= dict.fromkeys(unknown, self.topics[0])
        self._take(polled, self._decoded(polled))

    def _decoded(self, polled: Polled) -> "Iterable[pa.RecordBatch]":
        from tailrace.arrow.deliveries import decode_delivery

        return decode_delivery(
            polled.body,
            topics=self._topics,
            start_offsets=polled.start_offsets,
            end_offsets=polled.end_offsets,
            include_headers=self._include_headers,
        )

    def _pause_s(self, error: TailraceError, now_s: float) -> float:
        if self._retries is None:
            deadline_s = now_s + self._settings.patience_s
            self._retries = Retries(deadline_s, is_numbered=True, is_patient=self._has_answered)
        pause_s = self._retries.pause_s(error, now_s)
        if pause_s is None:
            self._retries = self._undecoded = None
            if isinstance(error, StaleAssignmentError):
                self.forget()  # another process is this consumer now: no goodbye in its name
            raise error
        return pause_s


def _check_name(option: str, name: str) -> None:
    """As brokers take it; ValueError."""
    is_visible = name.isprintable() and not any(each.isspace() for each in name)
    if not (is_visible and 1 <= len(name) <= _NAME_CHARACTERS_MAX and "/" not in name):
        raise ValueError(
            f"{option} {name!r} is no name; give 1 to {_NAME_CHARACTERS_MAX} visible characters, "
            "none of them a /"
        )
