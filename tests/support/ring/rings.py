"""What brokers tell of a ring and its topics, as values with the members that routing reads."""

from tailrace.values import PartitionDetails, Ring, RingStatus, TopicDetails, TopicInfo


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
    told = Ring("local", "id", "0.1.0", len(names), 0, 0, 1)
    return RingStatus(len(names), names, 9251, 0, 9252, told, 0, ())
