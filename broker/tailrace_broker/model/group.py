"""Consumer groups as values: what consumers ask for, and the events that the log of groups keeps.

The group events are the records of the internal topic `__groups`, as JSON (docs/formats.md). A
group is the result of its events, applied in the order of the log.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple
from uuid import UUID

import msgspec

# The internal topic that keeps the groups.
GROUPS_TOPIC = "__groups"

SESSION_MS_DEFAULT = 120_000
SESSION_MS_MIN = 1_000
SESSION_MS_MAX = 3_600_000

OnNewGroup = Literal["startFromLatest", "startFromEarliest"]
# By topic and partition.
Offsets = Mapping[UUID, Mapping[int, int]]


class TopicPartition(NamedTuple):
    """A partition by its topic's id, whatever that is called now."""

    topic_id: UUID
    partition: int


class Subscription(msgspec.Struct, frozen=True, rename="camel"):
    """What a consumer registers with; `topics` sorted, each once.

    One that is not seen for `session_ms` is removed. `on_new_group`: where the group starts in
    topics that it has not read yet.
    """

    consumer_id: str
    group: str
    topics: tuple[str, ...]
    on_new_group: OnNewGroup = "startFromLatest"
    session_ms: int = SESSION_MS_DEFAULT


class Confirmation(NamedTuple):
    """What a request says about what the consumer got before.

    `delivery`: the one that it has dealt with; None: it does not say. `epoch`: the assignment that
    it knows of; None: it does not say.
    """

    delivery: int | None = None
    epoch: int | None = None


class Joined(msgspec.Struct, frozen=True, rename="camel", tag="joined"):
    """A consumer has registered. `starts`: of the topics that the group had not known."""

    subscription: Subscription
    epoch: int
    starts: Offsets


class Left(msgspec.Struct, frozen=True, rename="camel", tag="left"):
    """A consumer has said goodbye, or was not seen for too long."""

    consumer_id: str
    epoch: int
    reason: Literal["goodbye", "expired"]


class Committed(msgspec.Struct, frozen=True, rename="camel", tag="committed"):
    """The group has dealt with everything below these offsets. `lost`: records that it never got,
    since retention was faster, or their loss was accepted; all so far. `confirmed`: by consumer the
    delivery that it has confirmed last, of those that have since the last such event.
    """

    offsets: Offsets
    lost: int = 0
    confirmed: Mapping[str, int] = {}


class Moved(msgspec.Struct, frozen=True, rename="camel", tag="moved"):
    """A reset, forwards or backwards."""

    offsets: Offsets


class Published(msgspec.Struct, frozen=True, rename="camel", tag="published"):
    """How far a reader is that keeps its offsets itself; `source` says what it is ("spark")."""

    source: str
    offsets: Offsets


class Deleted(msgspec.Struct, frozen=True, rename="camel", tag="deleted"):
    """The group is forgotten."""


class GroupSnapshot(msgspec.Struct, frozen=True, rename="camel", tag="snapshot"):
    """All of a group; it supersedes what is before it in the log."""

    epoch: int
    members: tuple[tuple[Subscription, int], ...]  # each with the epoch that it joined in
    offsets: Offsets
    lost: int = 0
    source: str | None = None
    confirmed: Mapping[str, int] = {}


class GroupsInherited(msgspec.Struct, frozen=True, rename="camel", tag="inherited"):
    """Of no group: before it are snapshots of all groups of the parents that go on here."""


GroupEvent = Joined | Left | Committed | Moved | Published | Deleted | GroupSnapshot
GroupRecord = GroupEvent | GroupsInherited
