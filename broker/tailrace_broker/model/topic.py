"""Topics and partitions as values; in JSON their fields are camelCase."""

import re
from uuid import UUID

import msgspec

from tailrace_broker.model.errors import InvalidParameterError, InvalidTopicNameError

# Range ids are never reused; a ring of one owns everything with its first range.
FIRST_RANGE_ID = 0
# No record precedes a partition's first batch: its `previous_epoch`.
NO_EPOCH = 0
FIRST_EPOCH = 1

PARTITIONS_PER_RANGE_DEFAULT = 4
PARTITIONS_PER_RANGE_MAX = 256

# The bound is a file name's and Kafka's (249); no path characters, so a name is safe anywhere.
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)


class TopicSettings(msgspec.Struct, frozen=True, rename="camel"):
    """What the creator of a topic chose."""

    partitions_per_range: int = PARTITIONS_PER_RANGE_DEFAULT
    json_check: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot work: InvalidParameterError."""
        if not 1 <= self.partitions_per_range <= PARTITIONS_PER_RANGE_MAX:
            raise InvalidParameterError(
                f"partitionsPerRange is {self.partitions_per_range}; "
                f"it can be 1 to {PARTITIONS_PER_RANGE_MAX}",
                parameter="partitionsPerRange",
            )


class Partition(msgspec.Struct, frozen=True, rename="camel"):
    """One ordered log: a slice of a range of a topic, tokens `[start, end)`.

    `sealed_end`: the end of a sealed one, which takes no more records; they go on in `children`.
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

    @property
    def is_sealed(self) -> bool:
        """It takes no more records."""
        return self.sealed_end is not None


class Topic(msgspec.Struct, frozen=True, rename="camel"):
    """A topic with its partitions, sealed ones too; their ids are dense and in order."""

    name: str
    topic_id: UUID
    settings: TopicSettings
    partitions: tuple[Partition, ...]


def check_topic_name(name: str) -> None:
    """Refuse a name that users may not give: InvalidTopicNameError."""
    if _TOPIC_NAME.fullmatch(name) and name not in {".", ".."} and not name.startswith("__"):
        return
    raise InvalidTopicNameError(
        "a topic name is 1 to 249 of A-Z a-z 0-9 . _ -, not . or .., and does not start with __",
        topic=name,
    )
