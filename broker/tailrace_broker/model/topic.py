"""Topics and partitions as values; in JSON their fields are camelCase."""

import re
from bisect import bisect_left
from collections.abc import Mapping
from itertools import groupby
from operator import attrgetter
from typing import Literal, NamedTuple
from uuid import UUID

import msgspec

from tailrace.wire import Codec
from tailrace_broker.model.errors import (
    InvalidParameterError,
    InvalidTopicNameError,
    PartitionNotFoundError,
)

# No record precedes a partition's first batch: its `previous_epoch`.
NO_EPOCH = 0

PARTITIONS_PER_RANGE_DEFAULT = 4
PARTITIONS_PER_RANGE_MAX = 256

_MEBIBYTE = 1024 * 1024
_INT64_MAX = 2**63 - 1

# The bound is a file name's and Kafka's (249); no path characters, so a name is safe anywhere.
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)


class Bounds(NamedTuple):
    """What a setting can be, `most` included; `otherwise`: what else it can be, in an error."""

    least: int
    most: int
    otherwise: str = ""


CODECS = {"lz4": Codec.LZ4, "zstd": Codec.ZSTD, "none": Codec.NONE}
DURABILITIES = ("fsync", "written")
_FOR_EVER = ", or null, which keeps records for ever"
BOUNDS = {
    "partitions_per_range": Bounds(1, PARTITIONS_PER_RANGE_MAX),
    "flush_ms": Bounds(1, 3_600_000),  # above an hour nothing would be flushed by time
    "flush_bytes": Bounds(4096, _INT64_MAX),  # a block
    "linger_ms": Bounds(0, 60_000),  # who waits must not have given up meanwhile
    "linger_bytes": Bounds(0, 16 * _MEBIBYTE),
    "retention_ms": Bounds(60_000, _INT64_MAX, _FOR_EVER),
    "retention_bytes": Bounds(_MEBIBYTE, _INT64_MAX, _FOR_EVER),
    "min_in_sync_replicas": Bounds(2, 3),
}


class RetentionBounds(NamedTuple):
    """How long, or how much of a partition, a topic keeps; None: no such bound."""

    retention_ms: int | None = None
    retention_bytes: int | None = None


class TopicSettings(msgspec.Struct, frozen=True, rename="camel"):
    """What holds for a topic; its creator chose it, and all of it can be altered.

    A default is what a stored topic without the field means: an upgrade changes nothing. What a
    new topic gets is `NEW_TOPIC`.
    """

    partitions_per_range: int = PARTITIONS_PER_RANGE_DEFAULT
    json_check: bool = True
    compression: Literal["lz4", "zstd", "none"] = "lz4"
    durability: Literal["fsync", "written"] = "fsync"
    flush_ms: int = 1000
    flush_bytes: int = 16 * _MEBIBYTE
    linger_ms: int = 0
    linger_bytes: int = 0
    retention_ms: int | None = None
    retention_bytes: int | None = None
    min_in_sync_replicas: int = 2  # in force: at most the ring's copies

    def __post_init__(self) -> None:
        """Refuse what cannot work: InvalidParameterError."""
        for field, bounds in BOUNDS.items():
            value = getattr(self, field)
            if value is not None and not bounds.least <= value <= bounds.most:
                bound = f"{bounds.least} to {bounds.most}{bounds.otherwise}"
                raise _refused(field, f"{value}; it can be {bound}")
        for field, words in (("compression", tuple(CODECS)), ("durability", DURABILITIES)):
            value = getattr(self, field)
            if value not in words:
                raise _refused(field, f'"{value}"; it can be {" or ".join(words)}')

    @property
    def codec(self) -> Codec:
        """Return the codec that `compression` names."""
        return CODECS[self.compression]

    @property
    def kept(self) -> RetentionBounds:
        """Return what retention leaves of the topic."""
        return RetentionBounds(self.retention_ms, self.retention_bytes)


# What a topic gets whose creator says nothing.
NEW_TOPIC = TopicSettings(retention_ms=7 * 24 * 3_600_000)
_WIRE_NAMES = {field.name: field.encode_name for field in msgspec.structs.fields(TopicSettings)}


class Partition(msgspec.Struct, frozen=True, rename="camel"):
    """One ordered log: a slice of a range of a topic, tokens `[start, end)`.

    `sealed_end`: the end of a sealed one, which takes no more records; they go on in `children`.
    `parents` may be gone; then there is nothing to be read before this one but what else they name.
    `log_start`: of a sealed one: what is below it is removed from all copies. `cuts`: tokens in it,
    ascending, at which partitions before it met (`core.ring.origins`).
    """

    partition: int
    range_id: int
    epoch: int
    token_start: int
    token_end: int
    first_offset: int = 0
    parents: tuple[int, ...] = ()
    sealed_end: int | None = None
    children: tuple[int, ...] = ()
    log_start: int | None = None
    cuts: tuple[int, ...] = ()

    @property
    def known_start(self) -> int:
        """No copy has a record below, as the ring knows."""
        return self.first_offset if self.log_start is None else self.log_start

    @property
    def is_sealed(self) -> bool:
        """It takes no more records."""
        return self.sealed_end is not None


class Sliced(NamedTuple):
    """How a range was sliced: ids from `first_partition` on, in the order of the tokens."""

    first_partition: int
    range_start: int
    slices: int


class Topic(msgspec.Struct, frozen=True, rename="camel"):
    """A topic with its partitions, sealed ones too, in the order of their ids.

    Ids of partitions that are gone are missing; `gone_ends`: where those ended that this process
    has seen go. `sliced`: by id ranges of which only some are gone.
    """

    name: str
    topic_id: UUID
    settings: TopicSettings
    partitions: tuple[Partition, ...]
    gone_ends: Mapping[int, int] = {}
    sliced: Mapping[int, Sliced] = {}

    def find(self, partition: int) -> Partition | None:
        """Return the partition with this id; None: there is none, or none any more."""
        index = bisect_left(self.partitions, partition, key=attrgetter("partition"))
        found = self.partitions[index] if index < len(self.partitions) else None
        return None if found is None or found.partition != partition else found

    def at(self, partition: int) -> Partition:
        """Return the partition with this id. PartitionNotFoundError."""
        found = self.find(partition)
        if found is None:
            raise self.no_partition(partition)
        return found

    def no_partition(self, partition: int) -> PartitionNotFoundError:
        """Return the error for a partition that the topic does not have."""
        if not self.partitions:
            detail = (
                f'topic "{self.name}" has no partitions until the open step of the ring is over'
            )
        elif 0 <= partition < self.partitions[-1].partition:
            detail = (
                f'partition {partition} of topic "{self.name}" is gone: the ring grew or shrank '
                "since, and no record of it is left; read the partitions that the topic has"
            )
        else:
            first, last = self.partitions[0].partition, self.partitions[-1].partition
            detail = f'topic "{self.name}" has partitions {first} to {last}'
        return PartitionNotFoundError(detail, topic=self.name, partition=partition)


class Slice(NamedTuple):
    """Which part of its range a partition is; `number` from 0 on, by the tokens."""

    range_start: int
    number: int
    slices: int


def slices_of(topic: Topic) -> Mapping[int, Slice]:
    """Return the slices by partition. O(n log n) of the topic's partitions: do it once a topic."""
    by_range = sorted(topic.partitions, key=lambda each: (each.range_id, each.token_start))
    found: dict[int, Slice] = {}
    for range_id, same in groupby(by_range, key=lambda each: each.range_id):
        parts = list(same)
        sliced = topic.sliced.get(range_id)
        for number, partition in enumerate(parts):
            place = Slice(parts[0].token_start, number, len(parts))
            if sliced is not None:
                number = partition.partition - sliced.first_partition
                place = Slice(sliced.range_start, number, sliced.slices)
            found[partition.partition] = place
    return found


def is_internal(name: str) -> bool:
    """A name of the broker's own topics, which users may not give."""
    return name.startswith("__")


def check_topic_name(name: str) -> None:
    """Refuse a name that users may not give: InvalidTopicNameError."""
    if _TOPIC_NAME.fullmatch(name) and name not in {".", ".."} and not is_internal(name):
        return
    raise InvalidTopicNameError(
        "a topic name is 1 to 249 of A-Z a-z 0-9 . _ -, not . or .., and does not start with __",
        topic=name,
    )


def _refused(field: str, what: str) -> InvalidParameterError:
    name = _WIRE_NAMES[field]
    return InvalidParameterError(f"{name} is {what}", parameter=name)
