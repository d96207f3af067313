"""What a broker's logs hold of each range when a start has opened them: for its registration."""

from collections.abc import Collection, Iterable

from tailrace_broker.core.node.events import Recovered
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import RangeEnd, RingState
from tailrace_broker.model.topic import NO_EPOCH
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.topics.hosted_topic import HostedTopic, is_damaged


def recovered(
    state: RingState, ordinal: int, topics: Iterable[HostedTopic], marked: Collection[LogKey]
) -> Recovered:
    """By range what the logs hold, also of one without logs; where they lack committed data.

    `topics`: deleted ones too; `marked`: logs that were found damaged, now or earlier.
    """
    ends = {
        owner.id: RangeEnd(owner.id, NO_EPOCH, 0)
        for owner in state.ranges.values()
        if ordinal in owner.replicas and not owner.is_sealed
    }
    damaged: set[int] = set()
    for hosted in topics:
        for partition in hosted.topic.partitions:
            log, range_id = hosted.logs[partition.partition], partition.range_id
            key = LogKey(hosted.topic.topic_id, partition.partition)
            if range_id not in ends:  # it is sealed, maybe since the topic was deleted
                if key in marked:
                    damaged.add(range_id)
                continue
            if isinstance(log, PartitionLog):
                known = ends[range_id]
                last_epoch = log.end_of_epoch(partition.epoch).epoch or NO_EPOCH
                epoch = max(known.last_epoch, last_epoch)
                ends[range_id] = RangeEnd(range_id, epoch, known.end + log.log_end)
            if is_damaged(log) or key in marked:
                damaged.add(range_id)
    return Recovered(tuple(ends.values()), tuple(sorted(damaged)))
