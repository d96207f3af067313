"""Where sealed partitions begin and end, when the broker that has them is away."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock
from uuid import UUID

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from tailrace_broker.model.errors import (
    CorruptPartitionError,
    NoLeaderError,
    NotReadyError,
    TailraceError,
)
from tailrace_broker.model.group import TopicPartition
from tailrace_broker.model.topic import Partition, Topic, TopicSettings
from tailrace_broker.net.api import partition_ends
from tailrace_broker.net.api.partition_ends import PartitionEnds, _said, ends_of, known_ends_of
from tailrace_broker.net.api.topics import PartitionState, _state
from tailrace_broker.net.broker import Broker, OpenTopic

SEALED = Partition(0, 0, 1, 0, 100, sealed_end=10, children=(1,), log_start=3)


class Hosted:
    """A topic of one partition whose log is not here."""

    def __init__(self, partition: Partition, error: TailraceError) -> None:
        self.topic = Topic("t", UUID(int=1), TopicSettings(), (partition,))
        self.error = error

    def log_of(self, _: int) -> None:
        raise self.error


def state_of(partition: Partition, error: TailraceError) -> dict[str, Any]:
    """What a broker says that knows of no holder."""
    broker = SimpleNamespace(ordinal=0, ring=SimpleNamespace(state=None))
    hosted = cast(OpenTopic, Hosted(partition, error))
    return _state(cast(Broker, broker), hosted, partition, (), str)


def test_a_sealed_partition_whose_holder_is_away_begins_where_the_ring_says() -> None:
    away = NotReadyError("it is on another broker")

    found = state_of(SEALED, away)
    undecided = state_of(replace(SEALED, log_start=None), away)

    assert (found["state"], found["log_start"], found["high_watermark"]) == ("sealed", 3, 10)
    assert undecided["log_start"] == 0


def test_damage_hides_where_a_sealed_partition_begins() -> None:
    damaged = state_of(SEALED, CorruptPartitionError("it is damaged"))

    assert (damaged["state"], damaged["log_start"]) == ("damaged", None)


def test_what_a_broker_says_of_a_sealed_partition_that_another_has_is_not_its_start() -> None:
    row = PartitionState(
        partition=0,
        range=0,
        epoch=1,
        leader=None,
        first_offset=0,
        log_start=0,
        high_watermark=10,
        log_end=10,
        state="sealed",
        parents=[],
        children=[1],
    )

    assert _said(replace(row, leader_url="http://other:9250")) is None
    assert _said(replace(row, leader_url=UNSET)) == PartitionEnds(0, 10)
    assert _said(replace(row, log_start=None)) is None
    assert _said(replace(row, state="open", leader_url="http://other:9250")) is not None


def test_ends_that_no_leader_says_are_left_out_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Partition 0 is here, 1 at a broker that does not answer, 2 led by nobody."""
    partitions = tuple(Partition(each, each, 1, 0, 100) for each in range(3))
    here = SimpleNamespace(log_start=2, high_watermark=7, check_end=AsyncMock())

    class Here(Hosted):
        def log_of(self, partition: int) -> Any:
            return here if partition == 0 else super().log_of(partition)

    hosted = Here(SEALED, NotReadyError("it is on another broker"))
    hosted.topic = Topic("t", UUID(int=1), TopicSettings(), partitions)
    ask = AsyncMock(side_effect=NotReadyError("it does not answer"))
    broker = cast(Broker, SimpleNamespace(ordinal=0, present=lambda _: hosted, ask_broker=ask))
    monkeypatch.setattr(partition_ends, "server_of", lambda _, range_id: {1: 1}.get(range_id))

    ends = asyncio.run(known_ends_of(broker, ["t"]))
    assert ends == {TopicPartition(UUID(int=1), 0): PartitionEnds(2, 7)}
    ask.assert_awaited_once()
    with pytest.raises(NoLeaderError, match="no broker leads range 2"):
        asyncio.run(ends_of(broker, ["t"]))

    here.check_end = AsyncMock(side_effect=NoLeaderError("not sure"))
    assert asyncio.run(known_ends_of(broker, ["t"])) == {}
