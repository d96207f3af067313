"""Topic resources and topics of a ring, as the operator sees them."""

from typing import Any

from tailrace_operator.api.spec import parse_topic_spec
from tailrace_operator.plan.observed import LiveTopic, Owner, Topic

DEFAULTS = {
    "partitionsPerRange": 4,
    "jsonCheck": True,
    "durability": "fsync",
    "compression": "lz4",
    "flushMs": 1000,
    "flushBytes": 16 * 2**20,
    "lingerMs": 0,
    "lingerBytes": 0,
    "minInSyncReplicas": 2,
    "retentionMs": None,
    "retentionBytes": None,
}


def a_topic(live: LiveTopic | None = None, **spec: Any) -> Topic:
    """The Topic `flights` of the ring `events`."""
    return Topic(
        owner=Owner(namespace="shop", name="flights", uid="topic-1", generation=3),
        spec=parse_topic_spec({"spec": {"cluster": "events", **spec}}),
        status={},
        has_finalizer=False,
        cluster_problem=None,
        live=live,
    )


def live_topic(partition_count: int = 12, **settings: Any) -> LiveTopic:
    """All of its partitions are led by broker 0."""
    return LiveTopic(
        id="7f3a",
        settings={**DEFAULTS, **settings},
        partition_count=partition_count,
        partitions=tuple(
            {
                "id": number,
                "leader": 0,
                "isr": [0],
                "highWatermark": 5,
                "logEnd": 5,
                "sizeBytes": None,
            }
            for number in range(partition_count)
        ),
        size_bytes=0,
    )
