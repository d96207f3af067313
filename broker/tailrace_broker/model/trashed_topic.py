"""A deleted topic whose data is still there."""

from typing import NamedTuple

from tailrace_broker.model.topic import Topic


class TrashedTopic(NamedTuple):
    """`purge_us`: from when on its data is removed; on a full disk sooner."""

    topic: Topic
    deleted_us: int
    purge_us: int
    size_bytes: int
