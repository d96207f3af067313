"""Consumer groups, to inspect and to reset (docs/protocol.md, "Consumer groups")."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from operator import attrgetter
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from tailrace_broker.codec.records import format_timestamp
from tailrace_broker.core.groups.group import Group
from tailrace_broker.core.groups.kind import check_consumer_group
from tailrace_broker.core.groups.state import (
    UNKNOWN,
    LogBounds,
    PartitionProgress,
    progress,
)
from tailrace_broker.model.errors import (
    CorruptPartitionError,
    InvalidBodyError,
    InvalidParameterError,
    NoLeaderError,
    NotLeaderError,
    NotReadyError,
    OffsetOutOfRangeError,
    OverloadError,
    ReadFailedError,
    StoredDataError,
    TopicNotFoundError,
)
from tailrace_broker.model.group import GROUPS_TOPIC, TopicPartition
from tailrace_broker.model.topic import Partition, Topic
from tailrace_broker.net.api.consumers import check_name
from tailrace_broker.net.api.group_bodies import (
    AssignedPartition,
    ConsumerAnswer,
    Coordinator,
    GroupAnswer,
    GroupDescription,
    GroupPartition,
    GroupReset,
    GroupResetAnswer,
    GroupsAnswer,
    MovedPartition,
    PublishedOffsets,
)
from tailrace_broker.net.api.group_routing import other_coordinators
from tailrace_broker.net.api.partition_ends import PartitionEnds, ends_of
from tailrace_broker.net.api.topics import is_damaged, json_response, parse_body
from tailrace_broker.net.broker import Broker, GroupView, OpenTopic
from tailrace_broker.net.http.router import Call, Response
from tailrace_broker.net.http.timestamps import read_timestamp
from tailrace_broker.net.logs import OpenLog, ReadLog

# What a group's state can be without being its source.
_STATES = ("active", "idle")
# Of the partitions of one group; a group has at most so many reads under way.
_READS_AT_ONCE = 16
_Ends = Mapping[TopicPartition, PartitionEnds]
_LISTED = tuple(field.name for field in msgspec.structs.fields(GroupAnswer))


async def list_groups(broker: Broker, call: Call) -> Response:
    """Return all groups; to another broker those that are coordinated here."""
    broker.groups.check_loaded()  # what is being read is not left out
    await broker.groups.check_surely_led()
    answers, known = [], dict[str, _Ends]()
    for view in broker.groups.views():
        whole = await _described(broker, view, known)
        answers.append(GroupAnswer(**{name: getattr(whole, name) for name in _LISTED}))
        await asyncio.sleep(0)  # others' requests come in between
    for ordinal in () if call.is_forwarded else other_coordinators(broker):
        answer = await broker.ask_broker(ordinal, b"/v1/groups")
        answers += msgspec.json.decode(answer, type=GroupsAnswer).groups
    return json_response(GroupsAnswer(sorted(answers, key=attrgetter("group"))))


async def describe_group(broker: Broker, call: Call) -> Response:
    """A group with its consumers and partitions."""
    name = call.parameters.group
    await broker.groups.check_surely_led(name)
    return json_response(await _described(broker, broker.groups.view(name), {}))


async def reset_group(broker: Broker, call: Call) -> Response:
    """Move a group that has no consumers."""
    name = call.parameters.group
    await broker.groups.check_surely_led(name)
    group = broker.groups.view(name).group
    wanted = parse_body(call.body, GroupReset)
    check_consumer_group(name, group.source)
    if not wanted.dry_run:
        group.check_idle()  # before the logs are asked
    targets = await _targets(broker, broker.groups.view(name), wanted)
    moved = [
        MovedPartition(
            topic=each.topic.name,
            partition=each.partition.partition,
            from_=each.position(group),
            to=offset,
        )
        for each, offset in targets
    ]
    if not wanted.dry_run:
        await broker.groups.reset(name, {each.topic_partition: offset for each, offset in targets})
    return json_response(
        GroupResetAnswer(
            group=name,
            dry_run=wanted.dry_run,
            is_idle=not group.members,
            partitions=moved,
            moved_back=sum(max(0, each.from_ - each.to) for each in moved),
            moved_forward=sum(max(0, each.to - each.from_) for each in moved),
        )
    )


async def publish_offsets(broker: Broker, call: Call) -> Response:
    """204 when what a reader says of itself is stored."""
    name = call.parameters.group
    check_name(name, "group")
    wanted = parse_body(call.body, PublishedOffsets)
    check_name(wanted.source, "source")
    if wanted.source in _STATES:
        raise InvalidParameterError(
            f"source is {wanted.source}, which is said of groups with consumers; it is the name of "
            "what reads",
            parameter="source",
        )
    offsets = {}
    for each, offset in await _partitions_of(broker, wanted.offsets):
        if offset > each.ends.high_watermark:
            raise _outside(each, offset)
        offsets[each.topic_partition] = offset
    await broker.groups.publish(name, wanted.source, offsets)
    return Response(content_type="", status=204)


async def delete_group(broker: Broker, call: Call) -> Response:
    """204 when the group is forgotten."""
    await broker.groups.delete(call.parameters.group)
    return Response(content_type="", status=204)


# --- what a group looks like ----------------------------------------------------------------------


class _Found(NamedTuple):
    """How far a group is in a partition; `bounds` None: it is damaged. `log`: the replica here."""

    topic: Topic
    progress: PartitionProgress
    bounds: LogBounds | None
    log: OpenLog | None


class GroupTotals(NamedTuple):
    """Records of all partitions of a group.

    `lag`: not dealt with, None when that of a partition is not known. `lost`: gone before the group
    read them, those at its positions that retention has removed included. `lags`: of each topic.
    """

    lag: int | None
    lost: int
    lags: Mapping[str, int | None]


def totals_of(view: GroupView) -> GroupTotals:
    """Return the totals of a group at one moment, as far as this broker has heard."""
    return _totals(view.group, _found(view, {}))


def _found(view: GroupView, ends: _Ends) -> list[_Found]:
    """Return all its partitions at one moment; `ends`: of those that are elsewhere."""
    found: list[_Found] = []
    for _, hosted in sorted(view.topics.items()):
        topic = hosted.topic
        logs = [_replica_or_none(hosted, each.partition) for each in topic.partitions]
        bounds = [
            _bounds_of(hosted, partition, view, ends)
            if log is None
            else LogBounds(log.log_start, log.high_watermark, log.lost_end is not None)
            for partition, log in zip(topic.partitions, logs, strict=True)
        ]
        rows = progress(topic, view.group.position, bounds)
        found += map(_Found, repeat(topic), rows, bounds, logs)
    return found


def _bounds_of(
    hosted: OpenTopic, partition: Partition, view: GroupView, ends: _Ends
) -> LogBounds | None:
    """Of a partition that has no replica here, or a damaged one."""
    if is_damaged(hosted, partition):
        return None
    tp = TopicPartition(hosted.topic.topic_id, partition.partition)
    known = ends.get(tp)
    if known is not None:
        return LogBounds(known.log_start, known.high_watermark)
    if partition.sealed_end is not None:
        return LogBounds(partition.known_start, partition.sealed_end)
    heard = view.heard(tp)
    return UNKNOWN if heard is None else LogBounds(*heard)


async def _ends_elsewhere(broker: Broker, view: GroupView, known: dict[str, _Ends]) -> _Ends:
    """Ask who leads partitions of its topics that have no replica here; `known`: by topic."""
    ends: dict[TopicPartition, PartitionEnds] = {}
    for name, hosted in view.topics.items():
        partitions = hosted.topic.partitions
        if name not in known and any(
            _replica_or_none(hosted, each.partition) is None and not is_damaged(hosted, each)
            for each in partitions
        ):
            known[name] = {}
            with suppress(OverloadError):  # what some leader does not say is not known
                known[name] = await ends_of(broker, [name])
        ends |= known.get(name, {})
    return ends


def _replica_or_none(hosted: OpenTopic, partition: int) -> OpenLog | None:
    """None: there is no replica here, or it is damaged."""
    try:
        return hosted.replica_of(partition)
    except (OverloadError, StoredDataError):
        return None


def _totals(group: Group, found: Sequence[_Found]) -> GroupTotals:
    lags = [each.progress.lag for each in found]
    lag = None if None in lags else sum(lag for lag in lags if lag is not None)
    by_topic: dict[str, int | None] = {}
    for each in found:
        known, more = by_topic.get(each.topic.name, 0), each.progress.lag
        by_topic[each.topic.name] = None if known is None or more is None else known + more
    lost = group.lost + sum(_lost_at_position(group, each) for each in found)
    return GroupTotals(lag, lost, by_topic)


def _lost_at_position(group: Group, each: _Found) -> int:
    """Records that retention removed since the group is where it is; a poll counts them."""
    if each.bounds is None:
        return 0
    partition = TopicPartition(each.topic.topic_id, each.progress.partition.partition)
    log_start = each.bounds.log_start
    return max(0, log_start - group.positions.get(partition, log_start))


async def _described(broker: Broker, view: GroupView, known: dict[str, _Ends]) -> GroupDescription:
    """A group at one moment, then the times of what it has not read. ReadMemoryFullError.

    `known`: ends of topics that were asked for already.
    """
    rows = _found(view, await _ends_elsewhere(broker, view, known))
    description = _description(view, rows)
    reads = asyncio.Semaphore(_READS_AT_ONCE)

    async def find(partition: GroupPartition, log: ReadLog, log_start: int) -> None:
        async with reads:
            offset = max(partition.position, log_start)
            partition.oldest_unread = await _append_time(broker, log, offset)

    try:
        async with asyncio.TaskGroup() as tasks:
            for partition, row in zip(description.partitions, rows, strict=True):
                if row.bounds is not None and partition.lag:
                    log = row.log or broker.groups.log_elsewhere(row.topic, partition.partition)
                    tasks.create_task(find(partition, log, row.bounds.log_start))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    times = [each.oldest_unread for each in description.partitions]
    # Texts of one length and zone.
    description.oldest_unread = min((time_ for time_ in times if time_ is not None), default=None)
    return description


def _description(view: GroupView, found: Sequence[_Found]) -> GroupDescription:
    """Describe the group without the times."""
    group, totals = view.group, _totals(view.group, found)
    return GroupDescription(
        group=group.name,
        state="active" if group.members else group.source or "idle",
        members=len(group.members),
        topics=sorted(view.topics),
        lag=totals.lag,
        oldest_unread=None,
        lost=totals.lost,
        assignment_epoch=group.epoch,
        coordinator=Coordinator(GROUPS_TOPIC, view.coordinator),
        consumers=_consumers(view),
        partitions=[_partition(group, each) for each in found],
    )


def _partition(group: Group, found: _Found) -> GroupPartition:
    topic, each, bounds, _ = found
    is_known = bounds is not None and bounds is not UNKNOWN
    partition = TopicPartition(topic.topic_id, each.partition.partition)
    return GroupPartition(
        topic=topic.name,
        partition=each.partition.partition,
        consumer=group.owners.get(partition),
        position=each.position,
        committed=group.stored.get(partition, each.partition.first_offset),
        log_start=bounds.log_start if bounds and is_known else None,
        high_watermark=bounds.high_watermark if bounds and is_known else None,
        lag=each.lag,
        lost=_lost_at_position(group, found) if is_known else None,
        state=each.state,
        oldest_unread=None,
    )


def _consumers(view: GroupView) -> list[ConsumerAnswer]:
    names = {hosted.topic.topic_id: name for name, hosted in view.topics.items()}
    owned: dict[str, list[AssignedPartition]] = {}
    for partition, owner in view.group.owners.items():
        if partition.topic_id in names:
            assigned = AssignedPartition(names[partition.topic_id], partition.partition)
            owned.setdefault(owner, []).append(assigned)
    return [
        ConsumerAnswer(
            consumer_id=name,
            topics=member.subscription.topics,
            on_new_group=member.subscription.on_new_group,
            session_ms=member.subscription.session_ms,
            idle_ms=max(0, view.now_us - member.seen_us) // 1000,
            partitions=sorted(owned.get(name, ()), key=lambda each: (each.topic, each.partition)),
        )
        for name, member in sorted(view.group.members.items())
    ]


async def _append_time(broker: Broker, log: ReadLog, offset: int) -> str | None:
    """Return when the record was appended; None when it cannot be read."""

    async def read() -> int | None:
        batches = await log.read(offset, 1)
        return batches[0].header.append_time_us if batches else None

    try:
        append_time_us = await broker.read_memory.run(read)
    except (CorruptPartitionError, ReadFailedError, OffsetOutOfRangeError, TopicNotFoundError):
        return None
    except (NoLeaderError, NotLeaderError, NotReadyError):  # nobody says now
        return None
    return None if append_time_us is None else format_timestamp(append_time_us).decode()


# --- where a group is to go on --------------------------------------------------------------------


class _Reset(NamedTuple):
    """A partition that a group is moved in."""

    topic: Topic
    partition: Partition
    ends: PartitionEnds

    @property
    def topic_partition(self) -> TopicPartition:
        """Return the key of the partition."""
        return TopicPartition(self.topic.topic_id, self.partition.partition)

    def position(self, group: Group) -> int:
        """Return where the group would go on now."""
        position = group.position(self.topic, self.partition)
        return min(max(position, self.ends.log_start), self.ends.high_watermark)


async def _targets(broker: Broker, view: GroupView, wanted: GroupReset) -> list[tuple[_Reset, int]]:
    """Each partition with the offset to go on at. InvalidParameterError, InvalidBodyError."""
    given = [name for name in ("to", "timestamp", "offsets") if getattr(wanted, name) is not UNSET]
    if len(given) != 1:
        raise InvalidBodyError(
            f"a reset has one of to, timestamp and offsets; {', '.join(given) or 'none'} is given"
        )
    if wanted.offsets is not UNSET:
        if wanted.topics is not UNSET:
            raise InvalidParameterError(
                "topics beside offsets, which name their topics themselves", parameter="topics"
            )
        targets = await _partitions_of(broker, wanted.offsets)
        for each, offset in targets:
            if not each.ends.log_start <= offset <= each.ends.high_watermark:
                raise _outside(each, offset)
        return targets
    names = sorted(view.topics) if wanted.topics is UNSET else sorted(set(wanted.topics))
    topics = [broker.hosted(name) for name in names]
    time_us = None if wanted.timestamp is UNSET else read_timestamp(wanted.timestamp)
    ends = await ends_of(broker, names, time_us)
    resets = [
        _reset_of(hosted, partition.partition, ends)
        for hosted in topics
        for partition in hosted.topic.partitions
    ]
    return [(reset, _end_of(reset.ends, wanted)) for reset in resets]


def _end_of(ends: PartitionEnds, wanted: GroupReset) -> int:
    if wanted.to == "earliest":
        return ends.log_start
    return ends.high_watermark if ends.at_time is None else ends.at_time


async def _partitions_of(
    broker: Broker, offsets: Mapping[str, Mapping[int, int]]
) -> list[tuple[_Reset, int]]:
    """Return the partitions. TopicNotFoundError, PartitionNotFoundError, CorruptPartitionError."""
    topics = {name: broker.hosted(name) for name in sorted(offsets)}
    ends = await ends_of(broker, list(topics))
    return [
        (_reset_of(hosted, partition, ends), offset)
        for name, hosted in topics.items()
        for partition, offset in sorted(offsets[name].items())
    ]


def _reset_of(
    hosted: OpenTopic, partition: int, ends: Mapping[TopicPartition, PartitionEnds]
) -> _Reset:
    """PartitionNotFoundError; CorruptPartitionError."""
    found = ends.get(TopicPartition(hosted.topic.topic_id, partition))
    if found is None:
        log = hosted.log_of(partition)  # else it says why there is none
        found = PartitionEnds(log.log_start, log.high_watermark)
    return _Reset(hosted.topic, hosted.topic.at(partition), found)


def _outside(reset: _Reset, offset: int) -> InvalidParameterError:
    ends, partition = reset.ends, reset.partition.partition
    return InvalidParameterError(
        f'offset {offset} of partition {partition} of topic "{reset.topic.name}" is not in '
        f"[{ends.log_start}, {ends.high_watermark}]",
        parameter="offsets",
        topic=reset.topic.name,
        partition=partition,
        logStart=ends.log_start,
        highWatermark=ends.high_watermark,
    )
