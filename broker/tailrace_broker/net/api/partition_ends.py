"""Where partitions begin and end as their leaders say, whichever broker is asked."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple
from urllib.parse import quote

import msgspec
from msgspec import UNSET

from tailrace_broker.codec.records import format_timestamp
from tailrace_broker.model.errors import NoLeaderError, TailraceError
from tailrace_broker.model.group import TopicPartition
from tailrace_broker.net.api.range_states import server_of
from tailrace_broker.net.api.topics import OffsetsAnswer, PartitionState, log_or_none
from tailrace_broker.net.broker import Broker, OpenTopic
from tailrace_broker.net.logs import OpenLog


class PartitionEnds(NamedTuple):
    """`at_time`: the first offset of a record of a time that was asked for; None: there is none."""

    log_start: int
    high_watermark: int
    at_time: int | None = None


async def ends_of(
    broker: Broker, topics: Sequence[str], time_us: int | None = None
) -> dict[TopicPartition, PartitionEnds]:
    """Return the ends of all partitions of these topics; of a topic that is gone none.

    A broker alone leaves out what is damaged. NoLeaderError: a leader does not say.
    """
    present = _present(broker, topics)
    ends, has_asked = await _said_ends(broker, present, time_us)
    if has_asked:
        _check_all(present, ends)
    return ends


async def known_ends_of(
    broker: Broker, topics: Sequence[str]
) -> dict[TopicPartition, PartitionEnds]:
    """As `ends_of`; what no leader says is left out."""
    ends, _ = await _said_ends(broker, _present(broker, topics), None, TailraceError)
    return ends


def _present(broker: Broker, topics: Sequence[str]) -> list[OpenTopic]:
    return [hosted for name in topics if (hosted := broker.present(name)) is not None]


async def _said_ends(
    broker: Broker,
    present: Sequence[OpenTopic],
    time_us: int | None,
    *passed_over: type[TailraceError],
) -> tuple[dict[TopicPartition, PartitionEnds], bool]:
    """Return what leaders say, and whether there are others than this broker."""
    ends: dict[TopicPartition, PartitionEnds] = {}
    asked: defaultdict[int, list[str]] = defaultdict(list)
    for hosted in present:
        leaders = set()
        for partition in hosted.topic.partitions:
            log = log_or_none(hosted, partition.partition)
            with suppress(*passed_over):
                if log is None:
                    leaders.add(_leader_of(broker, hosted, partition.range_id))
                else:
                    tp = TopicPartition(hosted.topic.topic_id, partition.partition)
                    ends[tp] = await _local(broker, log, time_us)
        for leader in leaders - {broker.ordinal}:
            asked[leader].append(hosted.topic.name)
    ids = {hosted.topic.name: hosted.topic.topic_id for hosted in present}

    async def ask(leader: int, names: Sequence[str]) -> OffsetsAnswer:
        with suppress(*passed_over):
            return await _ask(broker, leader, names, time_us)
        return OffsetsAnswer([])

    try:
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(ask(*each)) for each in asked.items()]
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    for each in answers:
        for topic in each.result().topics:
            for state in topic.partitions:
                found = _said(state)
                if found is not None:
                    ends.setdefault(TopicPartition(ids[topic.topic], state.partition), found)
    return ends, bool(asked)


async def _local(broker: Broker, log: OpenLog, time_us: int | None) -> PartitionEnds:
    await log.check_end()
    at_time = None
    if time_us is not None:
        at_time = await broker.read_memory.run(partial(log.find_timestamp, time_us))
    return PartitionEnds(log.log_start, log.high_watermark, at_time)


async def _ask(
    broker: Broker, leader: int, names: Sequence[str], time_us: int | None
) -> OffsetsAnswer:
    query = "&".join(f"topic={quote(name, safe='')}" for name in names)
    if time_us is not None:
        query += f"&timestamp={format_timestamp(time_us).decode()}"
    answer = await broker.ask_broker(leader, f"/v1/offsets?{query}".encode())
    return msgspec.json.decode(answer, type=OffsetsAnswer)


def _said(state: PartitionState) -> PartitionEnds | None:
    """None: the broker that was asked does not lead it, or does not have it if it is sealed."""
    if state.log_start is None or state.high_watermark is None:
        return None
    if state.state == "sealed" and state.leader_url is not UNSET:
        return None  # what the ring knows: before its first decision the log may begin later
    at_time = state.timestamp_offset
    return PartitionEnds(
        state.log_start, state.high_watermark, at_time if isinstance(at_time, int) else None
    )


def _leader_of(broker: Broker, hosted: OpenTopic, range_id: int) -> int:
    """Return who leads it, or has it if it is sealed. NoLeaderError."""
    server = server_of(broker, range_id)
    if server is None:
        raise NoLeaderError(
            f'no broker leads range {range_id} of topic "{hosted.topic.name}" now; try again',
            topic=hosted.topic.name,
            range=range_id,
        )
    return server


def _check_all(present: Sequence[OpenTopic], ends: dict[TopicPartition, PartitionEnds]) -> None:
    """NoLeaderError: somebody else leads some partition by now, or does not know its end yet."""
    for hosted in present:
        for partition in hosted.topic.partitions:
            if TopicPartition(hosted.topic.topic_id, partition.partition) not in ends:
                raise NoLeaderError(
                    f'the leader of partition {partition.partition} of topic "{hosted.topic.name}" '
                    "has just changed; try again",
                    topic=hosted.topic.name,
                    partition=partition.partition,
                    range=partition.range_id,
                )
