"""Brokers' answers about a ring and its topics, as values with the members that routing reads."""

from tailrace.values import (
    BrokerStatus,
    PartitionDetails,
    Ring,
    RingStatus,
    TopicDetails,
    TopicInfo,
)

BROKER = BrokerStatus(
    ordinal=0,
    token="-9223372036854775808",
    leads=4,
    replicates=4,
    damaged=0,
    quarantined=0,
    lag_max=0,
    data_bytes=1024**3,
    disk_used_bytes=10 * 1024**3,
    disk_bytes=100 * 1024**3,
    direct_io=True,
    durable_write_ms=0.21,
    incarnation="7f3a",
    started_at="2026-11-21T10:09:23.114502Z",
    up_seconds=120,
)


def partition(
    partition: int,
    start: int,
    leader: int | None,
    state: str = "open",
    children: tuple[int, ...] = (),
) -> PartitionDetails:
    return PartitionDetails(
        partition=partition,
        range_id=0,
        slice=0,
        slices=1,
        token_start=str(start),
        token_end="",
        leader=leader,
        isr=(),
        epoch=1,
        first_offset=0,
        log_start=0,
        high_watermark=0,
        log_end=0,
        size_bytes=0,
        parents=(),
        children=children,
        state=state,
    )


def topic(*partitions: PartitionDetails, name: str = "t") -> TopicDetails:
    return TopicDetails(TopicInfo(name, "id", 1, True, "fsync", len(partitions), 1), partitions)


def ring(*names: str) -> RingStatus:
    reported = Ring("local", "id", "0.1.0", len(names), 0, 0, 1)
    return RingStatus(len(names), names, 9251, 0, 9252, reported, 0, ())
