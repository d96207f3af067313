"""What this broker lacks of a range, as a person sees it before the loss is accepted.

Of a log that is open here what is known of its damage; of any other of a sealed range what a start
would find on the disk, where nothing is changed. Of a range that takes events and has other copies
nobody can say it: all that is known is whether more was set aside.
"""

from collections.abc import Callable, Iterator
from functools import partial
from uuid import UUID

from tailrace_broker.core.ring.topics import topic_of
from tailrace_broker.model.damage import Accepted, is_accepted
from tailrace_broker.model.errors import RingRefusedError
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import LostOffsets, Refusal, RingState
from tailrace_broker.model.topic import Partition, Topic
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.inspection.logs import NotedRepairs
from tailrace_broker.storage.log.damage_file import accepted_losses
from tailrace_broker.storage.log.damaged_logs import DamagedLogs
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.storage.log.recovery import LogEvidence, RecoveredLog, recover_with
from tailrace_broker.storage.log.rescued_tail import load_rescued
from tailrace_broker.storage.log.resources import LogResources
from tailrace_broker.storage.segments.writer import LogPlace
from tailrace_broker.topics.hosted_topic import HostedTopic, LogOrError, log_in


async def lost_here(
    state: RingState,
    range_id: int,
    hosted_of: Callable[[UUID], HostedTopic | None],
    directory: DataDirectory,
    resources: LogResources,
) -> list[LostOffsets]:
    """By topic and partition, of topics that are not deleted; nothing where others may have it.

    CorruptPartitionError, ReadFailedError: a log cannot be opened at all. RingRefusedError: what
    was set aside of one may hold what it lacks, and accepting the loss would remove it.
    """
    found: list[LostOffsets] = []
    owner = state.ranges.get(range_id)
    if owner is None:
        return found
    for known in state.topics.values():
        if not any(slices.range_id == range_id for slices in known.slices):
            continue
        topic, hosted = topic_of(state, known), hosted_of(known.id)
        for partition in topic.partitions:
            if partition.range_id == range_id:
                log = log_in(hosted, partition.partition)
                spans: Accepted = ()
                if owner.is_sealed:
                    spans = await _spans(topic, partition, log, directory, resources)
                elif len(owner.replicas) == 1 and isinstance(log, PartitionLog):
                    spans = _damages(log)
                if spans or not owner.is_sealed:
                    _check_nothing_aside(directory.damaged, topic, partition)
                found += (LostOffsets(known.id, partition.partition, *span) for span in spans)
    return found


def _check_nothing_aside(damaged: DamagedLogs, topic: Topic, partition: Partition) -> None:
    aside = damaged.set_aside_path(LogKey(topic.topic_id, partition.partition))
    if aside.exists():
        raise RingRefusedError(
            Refusal(
                "set-aside",
                f'partition {partition.partition} of topic "{topic.name}" is not whole, and '
                f"{aside} holds what was set aside of it: wait until it has been fetched from "
                "another broker; or, to give up what is missing, move that directory away first",
            )
        )


async def _spans(
    topic: Topic,
    partition: Partition,
    log: LogOrError | None,
    directory: DataDirectory,
    resources: LogResources,
) -> Accepted:
    end = partition.sealed_end
    assert end is not None, partition
    if isinstance(log, PartitionLog):
        first = end if log.lost_end is None else log.lost_end.first_offset
        return _joined([*_damages(log), (first, end)])
    read = partial(_read, topic, partition, directory, resources)
    recovered, accepted = await resources.io.run(read)
    lost = [
        (each.first_offset, each.end_offset)
        for each in (*recovered.damages, *recovered.losses)
        if each.end_offset > recovered.start.log_start
    ]
    last = (recovered.pending or recovered.segments)[-1]
    here = last.end_offset if recovered.lost_end is None else recovered.lost_end.first_offset
    missing = [*lost, (here, end)]
    return _joined([each for each in missing if not is_accepted(accepted, *each)])


def _damages(log: PartitionLog) -> Accepted:
    """What of it cannot be read, and nobody has given up."""
    damages = (each for each in log.quarantined if not each.is_accepted)
    return _joined([(each.first_offset, each.end_offset) for each in damages])


def _read(
    topic: Topic, partition: Partition, directory: DataDirectory, resources: LogResources
) -> tuple[RecoveredLog, Accepted]:
    """Blocks."""
    path = directory.partition_path(topic.topic_id, partition.partition)
    place = LogPlace.of(path, topic, partition)
    evidence = LogEvidence(
        partition.first_offset,
        directory.inventory.newest_segment(topic.topic_id, partition.partition),
        load_rescued(path),
        exact_end=partition.sealed_end,
    )
    repairs = NotedRepairs()
    recovered = recover_with(repairs, place, evidence, resources.pool, is_direct=False)
    return recovered, accepted_losses(path)


def _joined(spans: Accepted) -> Accepted:
    """In order, each offset once, none empty."""
    return list(_joining(sorted(each for each in spans if each[0] < each[1])))


def _joining(spans: Accepted) -> Iterator[tuple[int, int]]:
    first, end = 0, 0
    for span in spans:
        if span[0] > end:
            if end > first:
                yield first, end
            first = span[0]
        end = max(end, span[1])
    if end > first:
        yield first, end
