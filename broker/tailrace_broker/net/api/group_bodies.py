"""What requests for consumer groups hold, and their answers: net/api/groups.py."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tailrace_broker.net.http.router import INT64_MAX, Parameters
from tailrace_broker.net.http.timestamps import TIMESTAMP_FORMS

Offset = Annotated[int, Meta(ge=0, le=INT64_MAX)]
# By topic and partition.
OffsetsByName = dict[str, dict[int, Offset]]


class GroupPath(Parameters, frozen=True):
    """Of `/v1/groups/{group}`."""

    group: Annotated[str, Meta(description="The group's name.")]


class GroupAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """A group."""

    group: str
    state: Annotated[
        str,
        Meta(
            description="active: it has consumers; idle; or what reads and keeps its offsets itself"
        ),
    ]
    members: int
    topics: list[str]
    lag: Annotated[
        int | None, Meta(description="Records not dealt with; null: a partition is damaged.")
    ]
    oldest_unread: Annotated[
        str | None, Meta(description="When the oldest of them was appended; null: there is none.")
    ]
    lost: Annotated[int, Meta(description="Records that were gone before they were read.")]


class GroupsAnswer(msgspec.Struct):
    """All groups, sorted by name."""

    groups: list[GroupAnswer]


class Coordinator(msgspec.Struct):
    """Where a group is kept."""

    topic: str
    partition: int


class AssignedPartition(msgspec.Struct):
    """A partition that is a consumer's."""

    topic: str
    partition: int


class ConsumerAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """A consumer of a group."""

    consumer_id: str
    topics: tuple[str, ...]
    on_new_group: str
    session_ms: int
    idle_ms: Annotated[int, Meta(description="Since its last request.")]
    partitions: list[AssignedPartition]


class GroupPartition(msgspec.Struct, rename="camel", kw_only=True):
    """How far a group is in a partition; null where damage hides it."""

    topic: str
    partition: int
    consumer: str | None
    position: Annotated[int, Meta(description="Up to here it has dealt with all.")]
    committed: Annotated[int, Meta(description="As far as this is stored.")]
    log_start: int | None
    high_watermark: int | None
    lag: int | None
    lost: Annotated[
        int | None,
        Meta(description="Records from the position on that retention removed; a poll skips them."),
    ]
    state: Annotated[
        str,
        Meta(
            description="open; sealed; waiting: for its parents to be read to their ends; done: "
            "sealed and read to its end; damaged"
        ),
    ]
    oldest_unread: str | None


class GroupDescription(GroupAnswer, kw_only=True):
    """A group with its consumers and partitions."""

    assignment_epoch: int
    coordinator: Coordinator
    consumers: list[ConsumerAnswer]
    partitions: list[GroupPartition]


class GroupReset(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /v1/groups/{group}/reset`: one of `to`, `timestamp` and `offsets`."""

    to: Literal["earliest", "latest"] | UnsetType = UNSET
    timestamp: (
        Annotated[
            int | str,
            Meta(description=f"To the first record of this time or later; {TIMESTAMP_FORMS}."),
        ]
        | UnsetType
    ) = UNSET
    offsets: (
        Annotated[
            OffsetsByName,
            Meta(description="By topic and partition.", examples=[{"flights": {"0": 12}}]),
        ]
        | UnsetType
    ) = UNSET
    topics: Annotated[
        list[str] | UnsetType, Meta(description="With `to` or `timestamp`: these alone.")
    ] = UNSET
    dry_run: Annotated[bool, Meta(description="Only say what would be moved.")] = False


class MovedPartition(msgspec.Struct, kw_only=True):
    """Where a group was, and where it goes on."""

    topic: str
    partition: int
    from_: int = msgspec.field(name="from")
    to: int


class GroupResetAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """What a reset has moved, or would move."""

    group: str
    dry_run: bool
    is_idle: bool
    partitions: list[MovedPartition]
    moved_back: Annotated[int, Meta(description="Records that will be read again.")]
    moved_forward: Annotated[int, Meta(description="Records that will not be read.")]


class PublishedOffsets(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """The body of `PUT /v1/groups/{group}/offsets`."""

    source: Annotated[str, Meta(description="What reads.", examples=["spark"])]
    offsets: Annotated[
        OffsetsByName,
        Meta(description="By topic and partition.", examples=[{"flights": {"0": 12}}]),
    ]
