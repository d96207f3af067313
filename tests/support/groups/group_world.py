"""A consumer group with its logs and consumers, all of which lose something, and what must hold.

The machine is the real one. Logs are lists of keys; what the group has dealt with are sets of
offsets. Group events are stored some time after they were decided, or never.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import NamedTuple
from uuid import UUID

from msgspec.structs import replace

from tailrace_broker.codec.groups import decode_group_event, encode_group_event
from tailrace_broker.core.groups.group import Group
from tailrace_broker.model.errors import (
    ConsumerExistsError,
    ConsumerNotRegisteredError,
    GroupKindError,
    GroupNotIdleError,
    StaleAssignmentError,
    StaleDeliveryError,
)
from tailrace_broker.model.group import (
    Committed,
    Confirmation,
    Deleted,
    GroupEvent,
    GroupsInherited,
    Joined,
    Left,
    Moved,
    OnNewGroup,
    Published,
    Subscription,
    TopicPartition,
)
from tailrace_broker.model.topic import Partition, Topic, TopicSettings

KEYS = range(6)
SESSION_MS = 1000
# Everything is read long before; a round is a poll of each consumer.
ROUNDS_MAX = 300

Ranges = dict[TopicPartition, tuple[int, int]]


@dataclass(slots=True)
class Log:
    """A partition: `records` are their keys; those below `log_start` cannot be read any more."""

    keys: frozenset[int]
    first_offset: int
    log_start: int
    records: list[int] = field(default_factory=list)
    gaps: list[range] = field(default_factory=list)  # lost for good, which was accepted

    @property
    def end(self) -> int:
        return self.first_offset + len(self.records)

    def end_from(self, offset: int) -> int:
        """Where a read from there on ends: at the next gap, or at the end."""
        return min((gap.start for gap in self.gaps if gap.start > offset), default=self.end)


class Poll(NamedTuple):
    """One that has read and not answered yet; `serial`: of all polls."""

    serial: int
    poll_number: int
    ranges: Ranges


@dataclass(slots=True)
class Process:
    """A client: `held` is what it got and has not named; `named` what it named last."""

    consumer_id: str
    topics: tuple[str, ...]
    on_new_group: OnNewGroup
    names_deliveries: bool = True
    epoch: int | None = None
    held: tuple[int, Ranges] | None = None
    named: int = 0
    poll: Poll | None = None

    def forget(self) -> None:
        """As a new process does not know."""
        self.epoch, self.held, self.named, self.poll = None, None, 0, None


def processes() -> list[Process]:
    """Two of them have the same id: one hangs, and is taken for gone."""
    return [
        Process("a", ("t1",), "startFromLatest"),
        Process("b", ("t1", "t2"), "startFromEarliest"),
        Process("c", ("t1", "t2"), "startFromLatest"),
        Process("a", ("t1",), "startFromLatest"),
        Process("d", ("t2",), "startFromEarliest", names_deliveries=False),
    ]


class GroupWorld:
    """Each method is something that happens; numbers choose, whatever they are."""

    def __init__(self) -> None:
        self.now_us = 0
        self.boot = 1
        self.group = Group("g", self.boot)
        self.processes = processes()
        self.topics: dict[str, Topic] = {}
        self.logs: dict[TopicPartition, Log] = {}
        self.by_key: dict[tuple[UUID, int], list[tuple[TopicPartition, int]]] = defaultdict(list)
        self.events: list[bytes] = []
        self.pending: list[GroupEvent] = []
        self.done: dict[TopicPartition, set[int]] = defaultdict(set)  # dealt with, or not asked for
        self.lost: dict[TopicPartition, set[int]] = defaultdict(set)
        self.open: dict[str, tuple[int, Ranges]] = {}  # deliveries, by consumer
        self.last_polls: dict[str, int] = {}  # the one of a consumer that may be answered
        self.numbers: set[int] = set()
        self.positions: dict[TopicPartition, int] = {}  # when they were looked at last
        self._topic_ids = count(1)
        self._serials = count(1)

    # --- logs ---

    def create_topic(self, name: str, partition_count: int) -> None:
        if name in self.topics:
            return
        topic_id = UUID(int=next(self._topic_ids))
        partitions = [Partition(index, 0, 1, 0, 1) for index in range(partition_count)]
        for index in range(partition_count):
            keys = frozenset(key for key in KEYS if key % partition_count == index)
            self.logs[TopicPartition(topic_id, index)] = Log(keys, 0, 0)
        self.topics[name] = Topic(name, topic_id, TopicSettings(), tuple(partitions))
        self.rebalance()

    def delete_topic(self, choice: int) -> None:
        if self.topics and not any(isinstance(event, Joined) for event in self.pending):
            del self.topics[sorted(self.topics)[choice % len(self.topics)]]
            self.rebalance()

    def produce(self, choice: int, keys: list[int]) -> None:
        if not self.topics:
            return
        topic = self.topics[sorted(self.topics)[choice % len(self.topics)]]
        for key in keys:
            for partition in topic.partitions:
                tp = TopicPartition(topic.topic_id, partition.partition)
                if not partition.is_sealed and key in self.logs[tp].keys:
                    self.by_key[topic.topic_id, key].append((tp, self.logs[tp].end))
                    self.logs[tp].records.append(key)

    def step(self, choice: int, child_count: int) -> None:
        """Seal a partition, or two that are joined, and let others follow."""
        if not self.topics:
            return
        topic = self.topics[sorted(self.topics)[choice % len(self.topics)]]
        unsealed = [
            partition.partition for partition in topic.partitions if not partition.is_sealed
        ]
        parents = [unsealed[choice % len(unsealed)]]
        if child_count == 1 and choice % 2:
            parents = sorted({*parents, unsealed[(choice + 1) % len(unsealed)]})
        logs = [self.logs[TopicPartition(topic.topic_id, parent)] for parent in parents]
        keys = sorted(key for log in logs for key in log.keys)
        first = max(log.end for log in logs)
        children = tuple(range(len(topic.partitions), len(topic.partitions) + child_count))
        partitions = list(topic.partitions)
        for parent, log in zip(parents, logs, strict=True):
            partitions[parent] = replace(partitions[parent], sealed_end=log.end, children=children)
        for index, child in enumerate(children):
            tp = TopicPartition(topic.topic_id, child)
            self.logs[tp] = Log(frozenset(keys[index::child_count]), first, first)
            partitions.append(
                Partition(child, 0, 1, 0, 1, first_offset=first, parents=tuple(parents))
            )
        self.topics[topic.name] = replace(topic, partitions=tuple(partitions))
        self.rebalance()

    def retain(self, choice: int, record_count: int) -> None:
        """Remove the oldest records of a partition."""
        if self.logs:
            log = self.logs[sorted(self.logs)[choice % len(self.logs)]]
            log.log_start = min(log.end, log.log_start + record_count)

    def lose(self, choice: int, record_count: int) -> None:
        """Somebody accepts that records are lost, which others follow, or none."""
        if self.logs:
            log = self.logs[sorted(self.logs)[choice % len(self.logs)]]
            first = log.log_start + choice % (log.end - log.log_start + 1)
            gap = range(first, min(log.end, first + record_count))
            if gap and all(each.stop < first or gap.stop < each.start for each in log.gaps):
                log.gaps.append(gap)

    # --- consumers ---

    def register(self, process: Process) -> None:
        """Its topics are made first."""
        for name in process.topics:
            self.create_topic(name, 2)
        wanted = Subscription(
            process.consumer_id, "g", process.topics, process.on_new_group, SESSION_MS
        )
        topics = {name: self.topics[name] for name in process.topics}
        logs = {tp: (log.log_start, log.end) for tp, log in self.logs.items()}
        try:
            joined = self.group.join(wanted, topics, logs, self.now_us)
        except ConsumerExistsError:
            return
        except GroupKindError:
            assert self.group.source == "spark"
            return
        process.forget()
        if joined is None:
            process.epoch = self.group.members[process.consumer_id].joined_epoch
            return
        self._check_starts(joined)
        process.epoch = joined.epoch
        self.pending.append(joined)

    def begin_poll(self, process: Process, record_count: int, choice: int) -> bool:
        """Name what was got before, unless `choice` is odd, and read; whether it is registered."""
        name = process.consumer_id
        process.poll = None
        said = self._dealt_with(process, has_dealt=choice % 2 == 0)
        try:
            poll_number = self.group.begin_poll(name, said, self.now_us)
        except (ConsumerNotRegisteredError, StaleAssignmentError):
            process.forget()
            return False
        self._confirmed(name, said)
        self.last_polls[name] = next(self._serials)
        ranges = self._read(name, record_count)
        if choice % 5 == 0 and len(ranges) > 1:  # something is damaged, or large
            del ranges[list(ranges)[choice % len(ranges)]]
        process.poll = Poll(self.last_polls[name], poll_number, ranges)
        return True

    def end_poll(self, process: Process, choice: int) -> None:
        """Answer, or not: the answer can be lost, and the broker may know that."""
        if process.poll is None:
            return
        name, (serial, poll_number, ranges) = process.consumer_id, process.poll
        process.poll = None
        number = self.group.deliver(name, poll_number, ranges)
        if number is None:
            return
        assert serial == self.last_polls.get(name), "an older poll was answered"
        self._check_delivery(name, number, ranges)
        self.open[name] = (number, ranges)
        if choice % 3:
            process.held = (number, ranges)
        elif choice % 2 or not process.names_deliveries:
            self.group.withdraw(name, poll_number, number)
            del self.open[name]

    def commit(self, process: Process) -> None:
        name = process.consumer_id
        said = self._dealt_with(process, has_dealt=True)
        is_open = name in self.open and self.open[name][0] == said.delivery
        try:
            self.group.confirm(name, said, self.now_us)
        except (ConsumerNotRegisteredError, StaleAssignmentError):
            process.forget()
            return
        except StaleDeliveryError:
            assert not is_open or not self._is_deliverable(name)
            return
        self._confirmed(name, said)
        self.save()

    def goodbye(self, process: Process) -> None:
        if process.consumer_id in self.group.members:
            self.pending.append(self.group.leave(process.consumer_id, "goodbye"))

    def crash(self, process: Process) -> None:
        """The client; its session goes on."""
        process.forget()

    def pass_time(self, ms: int) -> None:
        self.now_us += ms * 1000
        next_us = self.group.next_expiry_us()
        expired = self.group.expired(self.now_us)
        assert (next_us is not None and next_us <= self.now_us) == bool(expired)
        self.pending.extend(self.group.leave(name, "expired") for name in expired)

    # --- the coordinator ---

    def save(self) -> None:
        committed = self.group.uncommitted()
        if committed is not None:
            self.pending.append(committed)

    def reset(self, choice: int) -> None:
        """Back, forward, or as a reader says that keeps its offsets itself."""
        offsets = {
            tp: log.log_start + choice % (log.end - log.log_start + 1)
            for tp, log in self.logs.items()
        }
        is_published = choice % 3 == 0
        try:
            self.pending.append(
                self.group.publish("spark", offsets) if is_published else self.group.reset(offsets)
            )
        except GroupNotIdleError:
            assert self.group.members
        except GroupKindError:
            assert (self.group.source is None) == is_published

    def delete(self) -> None:
        if not self.group.members:
            self.pending.append(self.group.delete())

    def store(self, event_count: int) -> None:
        """The group events that were decided first are stored."""
        for event in self.pending[:event_count]:
            self._apply(event)
        del self.pending[:event_count]

    def snapshot(self, *, is_trimmed: bool) -> None:
        if not self.pending:
            snapshot = self.group.snapshot(self._gone())
            before = [] if is_trimmed else self.events
            self.events = [*before, encode_group_event(snapshot)]

    def restart(self, choice: int, *, is_power_lost: bool) -> None:
        """With some of what was under way; a power failure also takes the end of a log."""
        self.store(choice % (len(self.pending) + 1))
        self.pending.clear()
        self.boot += 1
        self.open.clear()
        self.last_polls.clear()
        for process in self.processes:
            process.poll = None
        if is_power_lost:
            self._cut(choice)
        self.group = self._replayed()
        self.positions.clear()
        self.rebalance()
        for tp in self.logs:
            if tp in self.group.positions:
                self._fit(tp)
        self.save()
        self.store(len(self.pending))

    def rebalance(self) -> None:
        names = self.group.topics_of_members()
        self.group.rebalance({name: it for name, it in self.topics.items() if name in names})

    def happen(self, chance: Random) -> None:
        """One thing of all that can, those that are dull or drastic not often."""
        choice = chance.randrange(1000)
        process = chance.choice(self.processes)
        few = chance.randrange(1, 6)
        keys = chance.choices(KEYS, k=few)
        things: list[tuple[float, Callable[[], object]]] = [
            (3, lambda: self.create_topic(chance.choice(["t1", "t2"]), 1 + choice % 3)),
            (0.3, lambda: self.delete_topic(choice)),
            (6, lambda: self.produce(choice, keys)),
            (1.5, lambda: self.step(choice, 1 + few % 2)),
            (0.7, lambda: self.retain(choice, few)),
            (0.7, lambda: self.lose(choice, few)),
            (3, lambda: self.register(process)),
            (9, lambda: self.begin_poll(process, few, choice)),
            (9, lambda: self.end_poll(process, choice)),
            (2, lambda: self.commit(process)),
            (0.5, lambda: self.goodbye(process)),
            (0.5, lambda: self.crash(process)),
            (1, lambda: self.pass_time(few * 200)),
            (2, self.save),
            (0.5, lambda: self.reset(choice)),
            (0.1, self.delete),
            (8, lambda: self.store(few)),
            (0.5, lambda: self.snapshot(is_trimmed=choice % 2 == 0)),
            (0.5, lambda: self.restart(choice, is_power_lost=choice % 3 == 0)),
            (0.3, self.settle),
        ]
        (happens,) = chance.choices([thing for _, thing in things], [often for often, _ in things])
        happens()
        self.check()

    # --- what must hold ---

    def check(self) -> None:
        """After whatever has happened."""
        self.group.validate()
        self._check_replay()
        for tp, position in self.group.positions.items():
            assert position >= self.positions.get(tp, 0), "a position has moved back"
            first = self.logs[tp].first_offset
            missing = {*range(first, position)} - self.done[tp] - self.lost[tp]
            assert not missing, f"{tp} is at {position} without {missing}"
        self.positions = dict(self.group.positions)
        lost = {
            (tp, offset)
            for tp, position in self.group.positions.items()
            for offset in self.lost[tp] - self.done[tp]
            if offset < position
        }
        assert self.group.lost >= len(lost)

    def settle(self) -> None:
        """When all consumers work, everything is read to the end."""
        self.store(len(self.pending))
        for process in self.processes[:3]:
            self.register(process)
        self.store(len(self.pending))
        waiting = ROUNDS_MAX
        while any(self._unread()):
            assert waiting, f"not read: {[*self._unread()]}"
            waiting -= 1
            for process in self._working():
                if not self.begin_poll(process, record_count=5, choice=2):
                    self.register(process)
                self.end_poll(process, choice=1)
                self.store(len(self.pending))
            self.check()

    def _working(self) -> list[Process]:
        """One process for each consumer."""
        return list({process.consumer_id: process for process in self.processes}.values())

    def _unread(self) -> Iterator[TopicPartition]:
        for name in self.group.topics_of_members() & self.topics.keys():
            topic = self.topics[name]
            for partition in topic.partitions:
                tp = TopicPartition(topic.topic_id, partition.partition)
                if self.group.position(topic, partition) < self.logs[tp].end:
                    yield tp

    def _check_starts(self, joined: Joined) -> None:
        """`latest` is where the log ends now, and only in topics that the group has not known."""
        for name in joined.subscription.topics:
            topic = self.topics.get(name)
            tps = [tp for tp in self.logs if topic and tp.topic_id == topic.topic_id]
            is_known = any(tp in self.group.positions for tp in tps)
            is_latest = joined.subscription.on_new_group == "startFromLatest"
            for tp in tps:
                start = joined.starts.get(tp.topic_id, {}).get(tp.partition)
                log = self.logs[tp]
                assert start == (None if is_known else log.end if is_latest else log.log_start)

    def _check_delivery(self, name: str, number: int, ranges: Ranges) -> None:
        for other, (_, theirs) in self.open.items():
            if other != name and self._is_deliverable(other):
                assert ranges.keys().isdisjoint(theirs), "two consumers have the same"
        if name in self.open and self._is_deliverable(name):
            assert number == self.open[name][0], "something else before it was confirmed"
            delivered = self.open[name][1]
            for tp, (start, end) in ranges.items():
                assert end <= delivered[tp][1], "more than before under its number"
                assert start >= delivered[tp][0]
        elif name not in self.open:
            assert number not in self.numbers, "a number was used again"
        self.numbers.add(number)
        for tp, (start, end) in ranges.items():
            for offset in range(start, end):
                self._check_order(tp, start, offset)

    def _check_order(self, tp: TopicPartition, start: int, offset: int) -> None:
        """What the key had before is dealt with, or comes with this, from the same partition."""
        log = self.logs[tp]
        of_key = self.by_key[tp.topic_id, log.records[offset - log.first_offset]]
        for before, earlier in of_key[: of_key.index((tp, offset))]:
            is_settled = earlier in self.done[before] or earlier in self.lost[before]
            assert is_settled or (before == tp and earlier >= start), (
                f"{tp} {offset} came before {before} {earlier}"
            )

    def _check_replay(self) -> None:
        """A start makes the same of what is stored."""
        replayed = self._replayed()
        assert replayed.positions == replayed.stored
        assert replayed.snapshot(self._gone()) == self.group.snapshot(self._gone())

    # --- how it is done ---

    def _gone(self) -> set[UUID]:
        """Topics that the group has read and that are no more."""
        living = {topic.topic_id for topic in self.topics.values()}
        return {tp.topic_id for tp in self.group.stored} - living

    def _replayed(self) -> Group:
        group = Group("g", self.boot)
        for stored in self.events:
            event = decode_group_event(stored)
            assert not isinstance(event, GroupsInherited)
            group.apply(event, self.now_us)
        return group

    def _apply(self, event: GroupEvent) -> None:
        self.events.append(encode_group_event(event))
        before, is_idle = {**self.group.positions}, not self.group.members
        names, epoch = {*self.group.members}, self.group.epoch
        if isinstance(event, Committed):
            self.group.saved(event)
        else:
            self.group.apply(event, self.now_us)
        assert names == {*self.group.members} or self.group.epoch > epoch
        match event:
            case Joined():
                for tp in self.group.positions.keys() - before.keys():
                    start = self.group.positions[tp]
                    self.done[tp] |= {*range(self.logs[tp].first_offset, start)}
            case Left(name) if name not in self.group.members:
                self.open.pop(name, None)
                self.last_polls.pop(name, None)
            case Moved(offsets) | Published(_, offsets) if is_idle:
                for topic_id, by_partition in offsets.items():
                    for partition, offset in by_partition.items():
                        tp = TopicPartition(topic_id, partition)
                        self.done[tp] = {*range(self.logs[tp].first_offset, offset)}
                        self.positions.pop(tp, None)
                        assert self.group.positions[tp] == offset
            case Deleted() if is_idle:
                self.done.clear()
                self.lost.clear()
                self.positions.clear()
        self.rebalance()

    def _dealt_with(self, process: Process, *, has_dealt: bool) -> Confirmation:
        """What a request names: what the process holds, when it has dealt with it."""
        if process.held is not None and has_dealt:
            process.named, ranges = process.held
            process.held = None
            self._deal(ranges)
        if process.names_deliveries:
            return Confirmation(process.named, process.epoch)
        if process.consumer_id in self.open:  # whatever it was
            self._deal(self.open[process.consumer_id][1])
        return Confirmation(None, process.epoch)

    def _deal(self, ranges: Ranges) -> None:
        for tp, (start, end) in ranges.items():
            self.done[tp] |= {*range(start, end)}

    def _confirmed(self, name: str, said: Confirmation) -> None:
        if name in self.open and said.delivery in (None, self.open[name][0]):
            del self.open[name]

    def _is_deliverable(self, name: str) -> bool:
        """Something of an open delivery can still be read."""
        return any(
            max(start, self.logs[tp].log_start) < end
            and any(tp.topic_id == topic.topic_id for topic in self.topics.values())
            for tp, (start, end) in self.open[name][1].items()
        )

    def _read(self, name: str, record_count: int) -> Ranges:
        """At most so many records of each partition; a delivery is read again as it was."""
        fetch_ranges = self.group.fetch_ranges(name, self.topics)
        misfits = [
            range_.tp
            for range_ in fetch_ranges
            if not self.logs[range_.tp].log_start <= range_.start <= self.logs[range_.tp].end
        ]
        for tp in misfits:
            self._fit(tp)
        if misfits:
            return self._read(name, record_count)
        gaps = {
            range_.tp: gap
            for range_ in fetch_ranges
            for gap in self.logs[range_.tp].gaps
            if range_.start in gap or range_.start < gap.start < (range_.end or 0)
        }
        for tp, gap in gaps.items():
            self._pass_over(tp, gap)
        if gaps:
            return self._read(name, record_count)
        ranges = {
            range_.tp: (
                range_.start,
                min(range_.start + record_count, self.logs[range_.tp].end_from(range_.start))
                if range_.end is None
                else range_.end,
            )
            for range_ in fetch_ranges
        }
        return {tp: (start, end) for tp, (start, end) in ranges.items() if start < end}

    def _fit(self, tp: TopicPartition) -> None:
        log, group = self.logs[tp], self.group
        position, lost = group.positions[tp], group.lost
        group.fit(tp, log.log_start, log.end)
        assert log.log_start <= group.positions[tp] <= log.end
        assert group.lost - lost == max(0, group.positions[tp] - position)
        self.lost[tp] |= {*range(position, group.positions[tp])}

    def _pass_over(self, tp: TopicPartition, gap: range) -> None:
        group, position, lost = self.group, self.group.positions[tp], self.group.lost
        assert group.pass_over(tp, gap), "a read would meet it again"
        moved = group.positions[tp]
        assert moved == (gap.stop if position in gap else position)
        assert group.lost - lost == moved - position
        self.lost[tp] |= {*range(position, moved)}
        for name, (number, ranges) in list(self.open.items()):
            delivery = group.members[name].delivery if name in group.members else None
            if delivery is None and tp in ranges:
                del self.open[name]
            elif delivery is not None and delivery.number == number and tp in delivery.ranges:
                self.open[name] = (number, ranges | {tp: delivery.ranges[tp]})

    def _cut(self, choice: int) -> None:
        """The end of a log that still takes records, and all that is known of it."""
        ends = [
            TopicPartition(topic.topic_id, partition.partition)
            for topic in self.topics.values()
            for partition in topic.partitions
            if not partition.is_sealed
        ]
        if not ends:
            return
        tp = ends[choice % len(ends)]
        log = self.logs[tp]
        end = max(log.log_start, log.end - 1 - choice % 7)
        for key in log.keys:
            of_key = self.by_key[tp.topic_id, key]
            of_key[:] = [each for each in of_key if each[0] != tp or each[1] < end]
        del log.records[end - log.first_offset :]
        log.gaps = [gap for gap in log.gaps if gap.stop <= end]
        self.done[tp] = {offset for offset in self.done[tp] if offset < end}
        self.lost[tp] = {offset for offset in self.lost[tp] if offset < end}
        for process in self.processes:
            if process.held is not None:
                number, ranges = process.held
                process.held = (
                    number,
                    {each: it for each, it in ranges.items() if each != tp},
                )
