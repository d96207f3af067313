"""What a step does to hosted topics, in the turn in which the ring has agreed on its end.

The logs of sealed partitions stay open; they are read up to their ends. The children are known at
once, so that keys go to them; their logs are opened after.
"""

from collections.abc import Callable

import structlog
from msgspec.structs import replace

from tailrace_broker.core.ring.topics import topic_of
from tailrace_broker.model.errors import CorruptBatchError, NotReadyError
from tailrace_broker.model.ring_state import RingState, TopicState
from tailrace_broker.model.topic import Partition, Topic
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.segments.writer import LogPlace
from tailrace_broker.topics.hosted_topic import HostedTopic

_log = structlog.get_logger()


class SealedRanges:
    """Those that this process has seen sealed."""

    def __init__(self) -> None:
        self._known: frozenset[int] = frozenset()

    def take_new(self, state: RingState) -> frozenset[int]:
        """Return those that this state has sealed since the last call. O(ranges)."""
        before = self._known
        self._known = frozenset(each.id for each in state.ranges.values() if each.is_sealed)
        return self._known - before


def sealed_starts(topic: Topic) -> dict[int, int]:
    """Return where the sealed partitions that are left begin, as the ring knows."""
    return {each.partition: each.known_start for each in topic.partitions if each.is_sealed}


def follow(
    hosted: HostedTopic,
    state: RingState,
    found: TopicState,
    ordinal: int,
    on_damaged: Callable[[LogPlace], None],
) -> None:
    """Have a topic the partitions of this state, and seal the logs of this broker that it seals.

    `on_damaged` is called with a copy that does not end where its partition was sealed.
    """
    before = hosted.topic
    topic = replace(topic_of(state, found), settings=before.settings)
    ids = [each.partition for each in topic.partitions]
    hosted.alter(topic, [hosted.logs.get(each) or not_open_yet(topic.name) for each in ids])
    for old in before.partitions:
        new, log = topic.find(old.partition), hosted.logs.get(old.partition)
        if new is None or not new.is_sealed or old.is_sealed:
            continue
        if ordinal in state.ranges[new.range_id].holders and isinstance(log, PartitionLog):
            _seal(hosted, log, new, on_damaged)


def _seal(
    hosted: HostedTopic,
    log: PartitionLog,
    partition: Partition,
    on_damaged: Callable[[LogPlace], None],
) -> None:
    assert partition.sealed_end is not None
    try:
        log.seal(partition.sealed_end, hosted.sealed_error(partition.partition))
    except CorruptBatchError as error:
        _log.error(
            "partition.unsealed",
            topic=log.place.topic,
            partition=partition.partition,
            detail=str(error),
        )
        log.withhold(log.place.damaged(str(error)))
        on_damaged(log.place)


def not_open_yet(topic: str) -> NotReadyError:
    """Stand for a log until it is open."""
    return NotReadyError(f'the broker is opening topic "{topic}"')
