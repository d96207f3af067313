"""Sans-IO: a consumer of a group; what it asks next, what an answer means. `consumer` asks.

At least once. A delivery is confirmed by the poll after it, which is asked when all its records are
handed out and more are wanted. Each poll names the delivery that is dealt with, so that one whose
answer was lost is asked again and gives the same records. A consumer that the broker has removed
registers again; what it had not confirmed comes again, to it or to another.

A shell calls `ask`, carries out one `next_step` after the other, and tells what came of each:
`registered`, `listed`, `polled`, `described`, or `failed`. Then it takes what is to be handed out.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Literal, TypedDict
from uuid import UUID

from tailrace.errors import (
    ConsumerNotRegisteredError,
    StaleAssignmentError,
    StaleDeliveryError,
    TailraceError,
)
from tailrace.group_requests import Named, PollParameters
from tailrace.group_values import GroupDetails, OnNewGroup, Polled, Registered, TopicPartition
from tailrace.records_ndjson import Record, decode_lines
from tailrace.retries import PATIENCE_S, Retries
from tailrace.values import TopicInfo

if TYPE_CHECKING:
    import pyarrow as pa

SESSION_MS_DEFAULT = 30_000
WAIT_MS_DEFAULT = 5_000
_SIGNS_PER_SESSION = 3

Form = Literal["batch", "ndjson"]


class ConsumerOptions(TypedDict, total=False):
    """What every consumer takes.

    `consumer_id`: its name in the group, the same after a restart or a new one each time (default:
    new). `on_new_group`: where a group starts in topics that it has not read yet (default:
    "startFromEarliest"). `session_ms`: after so long without a request the broker takes it for
    dead, and others get its partitions (default 30,000; the consumer makes requests itself as long
    as records are asked of it). `max_records` (of records) and `max_bytes` bound a delivery
    (default: the broker's, 1,000 and 1 MiB). `wait_ms`: how long a poll may wait for the first
    record (default 5,000; well below the client's `timeout_s`). `patience_s`: how long a broker
    that does not answer is asked again (default 30).
    """

    consumer_id: str | None
    on_new_group: OnNewGroup
    session_ms: int
    max_records: int | None
    max_bytes: int | None
    wait_ms: int
    patience_s: float


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a consumer registers with."""

    consumer_id: str
    group: str
    topics: tuple[str, ...]
    on_new_group: OnNewGroup
    session_ms: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one poll; None is the broker's default. `patience_s`: of one request with its retries."""

    max_records: int | None
    max_bytes: int | None
    wait_ms: int
    patience_s: float


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
        self, subscription: Subscription, limits: Limits, *, wants_assignment: bool = False
    ) -> None:
        self.subscription = subscription
        self._limits = limits
        self._wants_assignment = wants_assignment
        self._form: Form = "ndjson"
        self._include_headers = False
        self._epoch: int | None = None  # None: it is not registered
        self._told_epoch: int | None = None
        self._partitions: frozenset[TopicPartition] = frozenset()
        self._topics: dict[bytes, str] = {}
        self._undecoded: Polled | None = None
        self._delivery = 0
        self._is_confirmed = True
        self._items: deque[Any] = deque()
        self._is_due = False
        self._has_answered = False
        self._retries: Retries | None = None
        self._asked_s = 0.0
        self._retry_after_s = 0.0

    @classmethod
    def of(
        cls,
        group: str,
        topics: str | Iterable[str],
        options: ConsumerOptions,
        *,
        new_id: str,
        wants_assignment: bool,
    ) -> "Consuming":
        """With the defaults; `new_id`: for a consumer that has none of its own."""
        subscription = Subscription(
            consumer_id=options.get("consumer_id") or new_id,
            group=group,
            topics=(topics,) if isinstance(topics, str) else tuple(topics),
            on_new_group=options.get("on_new_group", "startFromEarliest"),
            session_ms=options.get("session_ms", SESSION_MS_DEFAULT),
        )
        limits = Limits(
            max_records=options.get("max_records"),
            max_bytes=options.get("max_bytes"),
            wait_ms=options.get("wait_ms", WAIT_MS_DEFAULT),
            patience_s=options.get("patience_s", PATIENCE_S),
        )
        return cls(subscription, limits, wants_assignment=wants_assignment)

    @property
    def is_registered(self) -> bool:
        """As far as it is known."""
        return self._epoch is not None

    # --- what to ask ---

    def ask(self, form: Form, *, include_headers: bool = False) -> None:
        """More is wanted; nothing is polled while there is something to hand out.

        ValueError: what there is has another form.
        """
        if self._items and (form, include_headers) != (self._form, self._include_headers):
            raise ValueError(
                "the last delivery is not handed out to its end: take the rest of it as before, "
                "then change between records and batches"
            )
        self._form, self._include_headers = form, include_headers
        self._is_due = not self._items
        self._undecoded = None  # of a call that was cancelled: it comes again

    def next_step(self) -> Step | None:
        """None: all is asked; what there is can be handed out."""
        if self._epoch is None:
            return Step.REGISTER
        if self._undecoded is not None:
            return Step.LIST_TOPICS
        if self._wants_assignment and self._told_epoch != self._epoch:
            return Step.DESCRIBE
        return Step.POLL if self._is_due else None

    def poll_parameters(self) -> PollParameters:
        """Of `Step.POLL`."""
        return {
            "form": self._form,
            "max_records": self._limits.max_records,
            "max_bytes": self._limits.max_bytes,
            "wait_ms": self._limits.wait_ms,
            "delivery": self._delivery,
            "assignment_epoch": self._epoch,
        }

    def commit_parameters(self) -> Named | None:
        """What a commit names; None: nothing waits for one, or not all of it is handed out."""
        if self._items or self._is_confirmed:
            return None
        return {"delivery": self._delivery, "assignment_epoch": self._epoch}

    def asked(self, now_s: float) -> None:
        """A request is sent: the broker sees that the consumer is there."""
        self._asked_s = now_s

    def is_sign_due(self, now_s: float) -> bool:
        """Whether to register again, so that a caller that takes its time is not taken for dead."""
        sign_after_s = self.subscription.session_ms / 1000 / _SIGNS_PER_SESSION
        return self.is_registered and now_s - self._asked_s >= sign_after_s

    def idle_s(self, now_s: float) -> float:
        """How long to wait before polling again when nothing came."""
        return max(0.0, self._asked_s + self._retry_after_s - now_s)

    # --- what came of it ---

    def registered(self, registered: Registered) -> None:
        """It is; or still is, after a sign of life."""
        self._epoch = max(self._epoch or 0, registered.assignment_epoch)
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
        elif self._form == "ndjson":
            self._take(polled, decode_lines(polled.body))
        else:
            self._take_batches(polled)

    def listed(self, topics: Iterable[TopicInfo]) -> None:
        """The topics that there are, for the delivery that has batches of one not heard of yet."""
        assert self._undecoded is not None
        polled, self._undecoded = self._undecoded, None
        self._topics = {UUID(each.id).bytes: each.name for each in topics}
        self._take(polled, self._decoded(polled))

    def described(self, details: GroupDetails) -> Assignment:
        """What the caller is told of its partitions."""
        partitions = frozenset(
            partition
            for consumer in details.consumers
            if consumer.consumer_id == self.subscription.consumer_id
            for partition in consumer.partitions
        )
        before, self._partitions = self._partitions, partitions
        self._epoch = self._told_epoch = details.assignment_epoch
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
            self.forget()
            error.retriable = True  # by registering
        return self._pause_s(error, now_s)

    def commit_failed(self, error: TailraceError, now_s: float) -> float:
        """As `failed`; what can no more be confirmed comes again, and the caller must know."""
        if isinstance(error, ConsumerNotRegisteredError):
            self.forget()
            raise error
        if isinstance(error, StaleDeliveryError):
            self._is_confirmed = True
            raise error
        return self._pause_s(error, now_s)

    def forget(self) -> None:
        """It is not registered any more; what it has not confirmed comes again."""
        self._epoch = None
        self._undecoded = None
        self._delivery = 0
        self._is_confirmed = True

    # --- what is handed out ---

    def has_items(self) -> bool:
        """Whether something of the last delivery is not handed out yet."""
        return bool(self._items)

    def take_record(self) -> Record | None:
        """The next one; None: ask."""
        return self._items.popleft() if self._items else None

    def take_batch(self) -> "pa.RecordBatch | None":
        """The next one; None: ask."""
        return self._items.popleft() if self._items else None

    def take_records(self) -> list[Record]:
        """All of them."""
        records = list(self._items)
        self._items.clear()
        return records

    def drop(self) -> None:
        """What is not handed out yet will not be."""
        self._items.clear()

    # --- how it is done ---

    def _take(self, polled: Polled, items: Iterable[Any]) -> None:
        """A delivery is there once all of it could be read."""
        self._items = deque(items)
        self._delivery = polled.delivery
        self._is_confirmed = False
        self._is_due = False
        self._retry_after_s = 0.0

    def _take_batches(self, polled: Polled) -> None:
        """At once when the names of its topics are known."""
        from tailrace.arrow_deliveries import topic_ids

        unknown = topic_ids(polled.body) - self._topics.keys()
        if unknown and len(self.subscription.topics) > 1:
            self._undecoded = polled
            return
        self._topics |= dict.fromkeys(unknown, self.subscription.topics[0])
        self._take(polled, self._decoded(polled))

    def _decoded(self, polled: Polled) -> "Iterable[pa.RecordBatch]":
        from tailrace.arrow_deliveries import decode_delivery

        return decode_delivery(
            polled.body,
            topics=self._topics,
            start_offsets=polled.start_offsets,
            include_headers=self._include_headers,
        )

    def _pause_s(self, error: TailraceError, now_s: float) -> float:
        if self._retries is None:
            deadline_s = now_s + self._limits.patience_s
            self._retries = Retries(deadline_s, is_numbered=True, is_patient=self._has_answered)
        pause_s = self._retries.pause_s(error, now_s)
        if pause_s is None:
            self._retries = self._undecoded = None
            if isinstance(error, StaleAssignmentError):
                self.forget()  # another process is this consumer now: no goodbye in its name
            raise error
        return pause_s
