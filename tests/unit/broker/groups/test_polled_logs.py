"""When a log says that a group's position must move."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tailrace_broker.core.groups.group import FetchRange, Group
from tailrace_broker.groups.polled_logs import PolledLogs, fits, pass_over_losses
from tailrace_broker.groups.remote_log import Fetched, RemoteLog, Wanted
from tailrace_broker.model.errors import (
    CorruptPartitionError,
    NotReadyError,
    StorageFailedError,
    TailraceError,
)
from tailrace_broker.model.group import TopicPartition
from tailrace_broker.model.topic import Partition, Topic, TopicSettings

PLACE = TopicPartition(UUID(int=1), 0)


async def never(_: Wanted) -> Fetched:
    raise AssertionError


def log_of(start: int, end: int, *, is_served: bool = False, knows_end: bool = False) -> RemoteLog:
    log = RemoteLog("t", 0, never)
    log.log_start, log.high_watermark = start, end
    log.is_served, log.knows_end = is_served, knows_end
    return log


@pytest.mark.parametrize(
    ("position", "is_served", "knows_end", "is_fitting"),
    [
        (2, False, False, True),
        (5, False, False, True),
        (1, False, False, False),  # retention has removed it, whoever leads
        (6, False, False, True),  # the replica has not heard yet that it is committed
        (6, True, False, True),  # the new leader has not either
        (6, True, True, False),  # the log has lost its end
    ],
)
def test_a_position_moves_back_only_by_what_a_leader_knows(
    position: int, *, is_served: bool, knows_end: bool, is_fitting: bool
) -> None:
    log = log_of(2, 5, is_served=is_served, knows_end=knows_end)

    assert fits(log, position) == is_fitting


@pytest.mark.parametrize(
    ("error", "position"),
    [
        (CorruptPartitionError("lost", firstOffset=3, nextOffset=9, accepted=True), 9),
        (CorruptPartitionError("lost", firstOffset=6, nextOffset=9, accepted=True), 5),
        (CorruptPartitionError("lost", firstOffset=3, nextOffset=9, accepted=False), 5),
        (CorruptPartitionError("lost", firstOffset="3", nextOffset=9, accepted=True), 5),
        (CorruptPartitionError("lost", firstOffset=3, accepted=True), 5),
        (CorruptPartitionError("the end"), 5),
        (StorageFailedError("of a newer broker", firstOffset=3, nextOffset=9, accepted=True), 5),
    ],
)
def test_only_a_loss_that_was_accepted_moves_a_group(error: TailraceError, position: int) -> None:
    group = Group("g", 1)
    group.positions[PLACE] = 5

    left = pass_over_losses(group, {PLACE: error})

    assert left == ({PLACE: error} if position == 5 else {})
    assert (group.positions[PLACE], group.lost) == (position, position - 5)


def test_a_partition_that_is_gone_is_asked_for_later() -> None:
    """The group has not heard of it yet."""
    gone = Topic("t", UUID(int=1), TopicSettings(), ())
    topics: Any = SimpleNamespace(by_name={"t": SimpleNamespace(topic=gone)})
    remote: Any = SimpleNamespace(heard=None)
    ring: Any = None
    wanted = FetchRange(gone, Partition(0, 0, 1, 0, 1), PLACE, 0, None)

    with pytest.raises(NotReadyError, match="gone"):
        PolledLogs(topics, ring, remote).of(wanted)
