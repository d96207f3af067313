"""Brokers' answers about consumers and groups, as values; in JSON as `tailrace.values` says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

OnNewGroup = Literal["startFromEarliest", "startFromLatest"]


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """A partition of a topic."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Registered:
    """A consumer as the broker knows it; `assignment_epoch`: the one that it has joined in."""

    consumer_id: str
    group: str
    topics: tuple[str, ...]
    on_new_group: OnNewGroup
    session_ms: int
    assignment_epoch: int


@dataclass(frozen=True, slots=True)
class Polled:
    """A poll's body as sent. `delivery`: the number by which its records are confirmed.

    `start_offsets`, `end_offsets`: by topic and partition, in a binary body: records before the
    first, and from the second on, are no part of the delivery. Nothing came: the body is empty and
    `retry_after_s` says when to ask again.
    """

    body: bytes
    delivery: int
    assignment_epoch: int
    start_offsets: Mapping[tuple[str, int], int]
    retry_after_s: float | None
    end_offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group at a glance. `state`: active, idle, or who publishes its offsets ("spark").

    `lag`: records that it has not read; None when a partition is damaged. `oldest_unread`: the time
    of the oldest of these, a text as in records. `lost`: what was gone before it was read.
    """

    group: str
    state: str
    members: int
    topics: tuple[str, ...]
    lag: int | None
    oldest_unread: str | None
    lost: int


@dataclass(frozen=True, slots=True)
class GroupConsumer:
    """A consumer of a group; `idle_ms` since it was last seen, at `session_ms` it is removed."""

    consumer_id: str
    topics: tuple[str, ...]
    on_new_group: OnNewGroup
    session_ms: int
    idle_ms: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """How far a group is in a partition; ends and lag None when it is damaged.

    `position`: where it goes on; `committed`: where it would after the broker's restart. `state`:
    open, sealed, waiting (for its parents), done (sealed, and read to its end), damaged. `lost`:
    records from the position on that retention removed; None too when the broker is older.
    """

    topic: str
    partition: int
    consumer: str | None
    position: int
    committed: int
    log_start: int | None
    high_watermark: int | None
    lag: int | None
    state: str
    oldest_unread: str | None
    lost: int | None = None


@dataclass(frozen=True, slots=True)
class GroupDetails:
    """A group with its consumers and partitions.

    `assignment_epoch` grows whenever consumers come or go.
    """

    info: GroupInfo
    assignment_epoch: int
    consumers: tuple[GroupConsumer, ...]
    partitions: tuple[GroupPartition, ...]


@dataclass(frozen=True, slots=True)
class MovedPartition:
    """A partition in which a group goes on elsewhere."""

    topic: str
    partition: int
    from_offset: int
    to_offset: int


@dataclass(frozen=True, slots=True)
class GroupReset:
    """What a reset has moved, or with `dry_run` would; `moved_back`, `moved_forward`: records."""

    group: str
    dry_run: bool
    is_idle: bool
    partitions: tuple[MovedPartition, ...]
    moved_back: int
    moved_forward: int
