"""What the doors need of the broker; `app.broker` provides it."""

from collections.abc import Callable, Sequence
from typing import Protocol

from tailrace.wire import BatchHeader
from tailrace_broker.codec.columns import RecordColumns
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.errors import TailraceError
from tailrace_broker.model.topic import Topic, TopicSettings

Appended = Callable[[int, TailraceError | None], None]


class ReadableBatch(Protocol):
    """A stored batch: its header, and its bytes as buffers one after the other."""

    @property
    def header(self) -> BatchHeader:
        """The batch's header."""

    @property
    def buffers(self) -> tuple[bytes, ...]:
        """The whole batch."""


class PartitionLog(Protocol):
    """An open partition."""

    @property
    def log_start(self) -> int:
        """The first offset that can be read."""

    @property
    def high_watermark(self) -> int:
        """The end of what can be read."""

    @property
    def log_end(self) -> int:
        """The end of this replica's log."""

    def append_event(
        self, key: bytes | None, value: bytes, timestamp_us: int, flags: int, done: Appended
    ) -> None:
        """Append one event; `done` once it is durable."""

    def append_columns(self, columns: RecordColumns, done: Appended) -> None:
        """Append a batch; `done` once it is durable."""

    async def read(self, offset: int, max_bytes: int) -> Sequence[ReadableBatch]:
        """Committed batches from the one that holds `offset`."""


class HostedTopic(Protocol):
    """A topic with its open partitions."""

    @property
    def topic(self) -> Topic:
        """The topic."""

    def log_of(self, partition: int) -> PartitionLog:
        """PartitionNotFoundError; CorruptPartitionError when its data is damaged."""

    def partition_of_key(self, key: bytes | None) -> int:
        """The partition that a key belongs to; without a key, each undamaged in turn."""


class Broker(Protocol):
    """The broker behind the doors."""

    @property
    def is_ready(self) -> bool:
        """Recovery has ended and the broker is not stopping."""

    @property
    def counters(self) -> Counters:
        """What the doors count."""

    @property
    def max_request_bytes(self) -> int:
        """Bound of one body."""

    @property
    def request_seconds(self) -> float:
        """A whole request arrives in this time."""

    def now_us(self) -> int:
        """The broker's clock, µs since the epoch."""

    def hosted(self, topic: str) -> HostedTopic:
        """TopicNotFoundError, InvalidTopicNameError."""

    def with_topic(
        self, topic: str, use: Callable[[HostedTopic | None, TailraceError | None], None]
    ) -> None:
        """Call `use` with the topic, at once when it is there, else when it has been created."""

    async def create_topic(self, name: str, settings: TopicSettings) -> tuple[Topic, bool]:
        """The topic, and whether it is new."""

    def topics(self) -> Sequence[HostedTopic]:
        """All topics by name."""

    def take_produce_memory(self, size_bytes: int) -> None:
        """Count a body in flight; ProduceMemoryFullError when the bound is reached."""

    def return_produce_memory(self, size_bytes: int) -> None:
        """The body has been answered."""
