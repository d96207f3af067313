"""What brokers wrote before rings agreed on their topics: all of them in one file."""

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import msgspec

from tailrace_broker.core.ring.arithmetic import TOKEN_MIN, UNITS, slice_bounds
from tailrace_broker.model.topic import (
    FIRST_EPOCH,
    FIRST_RANGE_ID,
    Partition,
    Topic,
    TopicSettings,
)


def new_topic(name: str, settings: TopicSettings, topic_id: UUID) -> Topic:
    """A topic whose partitions slice the one range of a ring of one: all tokens."""
    bounds = slice_bounds(TOKEN_MIN, UNITS, settings.partitions_per_range)
    partitions = tuple(
        Partition(index, FIRST_RANGE_ID, FIRST_EPOCH, start, end)
        for index, (start, end) in enumerate(bounds)
    )
    return Topic(name, topic_id, settings, partitions)


def encode_topics(topics: Sequence[Topic]) -> bytes:
    """`metadata/topics.json`."""
    document = {"topics": topics, "version": 1}
    return msgspec.json.format(msgspec.json.encode(document)) + b"\n"


def make_earlier(root: Path, *topics: Topic) -> None:
    """The disk of a stopped broker as one of an earlier version left it."""
    meta = root / "data" / "meta.json"
    known = msgspec.json.decode(meta.read_bytes())
    del known["starts"]
    known |= {"clusterId": str(UUID(int=1)), "registration": 1, "version": 1}
    meta.write_bytes(msgspec.json.format(msgspec.json.encode(known)) + b"\n")
    for path in (root / "data" / "metadata").iterdir():
        path.unlink()
    (root / "data" / "metadata" / "topics.json").write_bytes(encode_topics(topics))
