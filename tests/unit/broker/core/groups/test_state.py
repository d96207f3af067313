"""How far a group is in the partitions of a topic: docs/protocol.md, "Groups"."""

from collections.abc import Callable

import msgspec
import pytest

from tailrace_broker.core.groups.state import UNKNOWN, LogBounds, progress, readable
from tailrace_broker.model.topic import Partition, Topic
from tests.support.storage.batches import SPLIT_TOPIC

PARENT, UPPER, LOWER = SPLIT_TOPIC.partitions
# The upper child was split in two again, after five records; the others go on.
GRANDCHILDREN = tuple(
    Partition(number, number, 3, UPPER.token_start, UPPER.token_end, 10, parents=(1,))
    for number in (3, 4)
)
TOPIC = msgspec.structs.replace(
    SPLIT_TOPIC,
    partitions=(
        PARENT,
        msgspec.structs.replace(UPPER, sealed_end=10, children=(3, 4)),
        LOWER,
        *GRANDCHILDREN,
    ),
)
LOGS = [LogBounds(0, 5), LogBounds(5, 10), LogBounds(5, 20), LogBounds(10, 10), LogBounds(10, 30)]


def at(*positions: int) -> Callable[[Topic, Partition], int]:
    """Where a group is, by partition."""
    return lambda _, partition: positions[partition.partition]


@pytest.mark.parametrize(
    ("positions", "states", "readable_ids"),
    [
        ((0, 5, 5, 10, 10), ["sealed", *["waiting"] * 4], [0]),
        ((5, 5, 5, 10, 10), ["done", "sealed", "open", "waiting", "waiting"], [0, 1, 2]),
        ((5, 10, 5, 10, 10), ["done", "done", "open", "open", "open"], [0, 1, 2, 3, 4]),
        ((0, 10, 5, 10, 10), ["sealed", "done", "waiting", "waiting", "waiting"], [0]),
    ],
    ids=["at the parent", "at a child", "at its children", "moved back to the parent"],
)
def test_what_is_read_and_what_waits(
    positions: tuple[int, ...], states: list[str], readable_ids: list[int]
) -> None:
    """A child waits for its parents, and theirs, to be read to their ends."""
    assert [each.state for each in progress(TOPIC, at(*positions), LOGS)] == states
    assert [each.partition for each in readable(TOPIC, at(*positions))] == readable_ids


@pytest.mark.parametrize(
    ("position", "log", "lag"),
    [
        (5, LogBounds(5, 20), 15),
        (20, LogBounds(5, 20), 0),
        (5, LogBounds(12, 20), 8),
        (21, LogBounds(5, 20), 0),
    ],
    ids=["all", "none", "what retention has left", "behind the end"],
)
def test_the_lag_is_what_can_still_be_read(position: int, log: LogBounds, lag: int) -> None:
    topic = msgspec.structs.replace(SPLIT_TOPIC, partitions=(LOWER,))
    (found,) = progress(topic, lambda _, __: position, [log])

    assert (found.position, found.lag) == (position, lag)


@pytest.mark.parametrize("log", [None, LogBounds(0, 3, has_lost_end=True)])
def test_damage_hides_the_lag(log: LogBounds | None) -> None:
    found = progress(TOPIC, at(0, 5, 5, 10, 10), [log, *LOGS[1:]])

    assert [each.state for each in found] == ["damaged", *["waiting"] * 4]
    assert [each.lag for each in found] == [None, 5, 15, 0, 20]


def test_what_nobody_says_is_no_damage() -> None:
    found = progress(TOPIC, at(5, 7, 5, 10, 10), [LOGS[0], UNKNOWN, *LOGS[2:]])

    assert [each.state for each in found] == ["done", "sealed", "open", "waiting", "waiting"]
    assert [each.lag for each in found] == [0, None, 15, 0, 20]
