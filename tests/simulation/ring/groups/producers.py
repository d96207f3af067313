"""Producers with ids, who send again at any leader what they do not know to be stored.

Which request is new, a duplicate or unknown the shipped machines say (`core.log.producers`,
`core.log.leader_appends`, `core.log.parent_windows`), of the window that a leader has of its log,
and of those of the partitions that it follows. What must be true is the invariant 10: a producer's
sequence is at most once in a partition and in all that follow it, and is answered with the offset
where it is committed.
"""

import asyncio
from collections.abc import Iterable
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple, cast
from uuid import UUID

from tailrace.wire import BatchHeader
from tailrace_broker.codec.producers import TableEntry, encode_table
from tailrace_broker.core.log.derived_ids import derived_id
from tailrace_broker.core.log.leader_appends import LeaderAppends
from tailrace_broker.core.log.parent_windows import AncestorWindows, ParentWindows
from tailrace_broker.core.log.producers import Producer, ProducerWindows, WindowLimits
from tailrace_broker.core.log.replica_tail import ReplicaTail
from tailrace_broker.core.log.tail_events import Acknowledge, Fail, TailEffect
from tailrace_broker.core.ring.origins import masks_between, origins_of
from tailrace_broker.model.append_outcome import Appended, AppendFailed, AppendOutcome, OnAppended
from tailrace_broker.model.errors import NoLeaderError, SequenceUnknownError
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.topic import Partition, Topic
from tests.simulation.ring.data.host import Host
from tests.simulation.ring.data.model_log import ModelLog
from tests.simulation.ring.groups.records import GROUPS_ID
from tests.simulation.ring.violation import check

if TYPE_CHECKING:
    from tests.simulation.ring.groups.ring import GroupsOfRing

# Small, so that a retry comes too late now and then.
LIMITS = WindowLimits(rows_per_producer=2)
RECORD_BYTES = 100
PAUSE_SECONDS_MAX = 0.3
TIMEOUTS_SECONDS = (0.1, 0.5, 2.0)
TRAVEL_SECONDS_MAX = 0.003
LOSES = 0.1


class Request(NamedTuple):
    """Events of one token, whichever partition has it by now."""

    topic_id: UUID
    token: int
    producer: Producer


class Producers:
    """Of a ring: who has sent which record, and what leaders remember of it."""

    def __init__(self, ring: "GroupsOfRing") -> None:
        self._ring = ring
        self._random = ring.replicas.generator
        # By record, with the id of the producer in the partition.
        self._sent: dict[int, tuple[Request, Producer]] = {}
        self._places: dict[Request, tuple[LogKey, int]] = {}
        self._led: dict[tuple[str, LogKey], LedWindow] = {}
        self.loses = LOSES  # so many answers do not arrive

    async def live(self, name: str) -> None:
        """Send one after the other, and now and then several at once."""
        sequence = 0
        while True:
            keys = [each for host in self._ring.replicas.hosts() for each in host.live]
            keys = [each for each in keys if each.topic_id != GROUPS_ID]
            await asyncio.sleep(PAUSE_SECONDS_MAX * self._random.random())
            if keys:
                key = self._random.choice(keys)
                count = self._random.choice((1, 1, 2, 4))
                topic = self._ring.topic(key.topic_id)
                if topic is None:
                    continue  # deleted, as that broker does not know yet
                token = topic.at(key.partition).token_start
                sends = [
                    self._send(Request(key.topic_id, token, Producer.named(name.encode(), each)))
                    for each in range(sequence, sequence + count)
                ]
                await asyncio.gather(*sends)
                sequence += count

    def wrote(self, host: Host, key: LogKey, offset: int) -> None:
        """A leader has written a record there."""
        window = self._led.get((host.name, key))
        if window is not None:
            window.learn(offset, self._stored_as(host.hosted[key].log, offset))

    def advanced(self, host: Host, key: LogKey, offsets: Iterable[int]) -> None:
        """Invariant 10: these are committed."""
        window = self._led.get((host.name, key))
        if window is not None:
            window.advanced()
        for offset in offsets:
            sent = self._sent_at(host.hosted[key].log, offset)
            if sent is not None:
                place = key, offset
                known = self._places.setdefault(sent[0], place)
                check(
                    known == place or self._is_gone(*known),
                    f"10: {sent[0]} is at {known} and at {place}",
                )

    def lost(self, key: LogKey, end: int) -> None:
        """A `written` topic has lost what is above."""
        lost = [each for each, (where, at) in self._places.items() if where == key and at >= end]
        for request in lost:
            del self._places[request]

    def _sent_at(self, log: ModelLog, offset: int) -> tuple[Request, Producer] | None:
        """What was sent as the record there."""
        return self._sent.get(log.entries[offset - log.start].value)

    def _stored_as(self, log: ModelLog, offset: int) -> Producer | None:
        """Who has sent the record there, by the id there."""
        sent = self._sent_at(log, offset)
        return None if sent is None else sent[1]

    def _is_gone(self, key: LogKey, offset: int) -> bool:
        """Retention has taken it, somewhere."""
        return any(
            key in host.logs and offset < host.logs[key].start
            for host in self._ring.replicas.hosts()
        )

    async def _send(self, request: Request) -> None:
        """Until it is stored, or is too old to be known."""
        while True:
            await asyncio.sleep(TRAVEL_SECONDS_MAX * self._random.random())
            outcome: asyncio.Future[AppendOutcome] = self._ring.loop.create_future()
            key = self._place_of(request)
            hosts = [] if key is None else self._ring.replicas.hosts()
            host = next((each for each in hosts if key and self._leads(each, key)), None)
            if host is not None and key is not None:
                answered = partial(self._answer, host, key, request, outcome)
                self._append(host, key, request, answered)
            try:
                async with asyncio.timeout(self._random.choice(TIMEOUTS_SECONDS)):
                    answer = await outcome
            except TimeoutError:
                self._ring.counts["produce unanswered"] += 1
                continue
            if isinstance(answer, Appended):
                return
            assert isinstance(answer, AppendFailed)
            if isinstance(answer.error, SequenceUnknownError):
                self._ring.rules["producers.unknown"] += 1
                return

    def _place_of(self, request: Request) -> LogKey | None:
        """The open partition of its token; None: the topic is gone."""
        topic = self._ring.topic(request.topic_id)
        for each in () if topic is None else topic.partitions:
            if not each.is_sealed and each.token_start <= request.token < each.token_end:
                return LogKey(request.topic_id, each.partition)
        return None

    def _leads(self, host: Host, key: LogKey) -> bool:
        hosted = host.hosted.get(key)
        is_up = host.is_alive and not host.is_paused
        return is_up and hosted is not None and hosted.range_id in host.led

    def _answer(
        self,
        host: Host,
        key: LogKey,
        request: Request,
        future: asyncio.Future[AppendOutcome],
        outcome: AppendOutcome,
    ) -> None:
        """What is answered is true; whether it arrives or not."""
        if isinstance(outcome, Appended):
            self._ring.counts["produce answered"] += 1
            self._ring.rules["producers.duplicate"] += outcome.is_duplicate
            if outcome.partition is not None:
                self._ring.rules["producers.inherited"] += 1
                key = LogKey(key.topic_id, outcome.partition)
            value = self._ring.replicas.truth.committed(key).get(outcome.offset)
            sent = None if value is None else self._sent.get(value)
            check(
                self._is_gone(key, outcome.offset) or (sent is not None and sent[0] == request),
                f"10: {host.name} answers {request} with {outcome} of {key}: that is {value}",
            )
        is_lost = not self._ring.is_calm and self._random.random() < self.loses
        if not future.done() and not is_lost:
            future.set_result(outcome)

    def _append(self, host: Host, key: LogKey, request: Request, done: OnAppended) -> None:
        topic = self._ring.topic(key.topic_id)
        assert topic is not None
        producer = _producer_in(topic, key.partition, request)
        epoch = host.led[host.hosted[key].range_id].machine.epoch
        window = self._led.get((host.name, key))
        if window is None or window.epoch != epoch:
            log = host.hosted[key].log
            if log.end != host.hosted[key].ends.written:
                return
            parents = self._parents_of(topic, topic.at(key.partition))
            if parents is None:
                return
            window = self._led[host.name, key] = LedWindow(host, key, epoch, parents)
            for offset in range(log.start, log.end):
                window.learn(offset, self._stored_as(log, offset))
        if window.admits(producer, done):
            number = self._ring.replicas.records.add(None)
            self._sent[number] = request, producer
            ended = partial(window.ended, producer, done)
            if not host.produce(key, number, RECORD_BYTES, ended):
                window.ended(producer, done, None)

    def _parents_of(self, topic: Topic, child: Partition) -> ParentWindows | None:
        """As `topics.parent_producers`; None: nobody with a whole copy of one is there."""
        found: list[AncestorWindows] = []
        waiting, seen = [*child.parents], set[int]()
        while waiting:
            number = waiting.pop()
            parent = topic.find(number)
            if parent is None or number in seen:
                continue  # it was gone before anybody numbered what he sends
            seen.add(number)
            copies = self._ring.replicas.state.ranges[parent.range_id].complete
            key = LogKey(topic.topic_id, number)
            hosts = self._ring.replicas.hosts()
            there = [each for each in hosts if each.ordinal in copies and key in each.logs]
            if not there:
                return None
            log, windows = there[0].logs[key], ProducerWindows(limits=LIMITS)
            for offset in range(log.start, log.end):
                _learn(windows, offset, self._stored_as(log, offset))
            producers = windows.checkpoint(log.end).producers
            found.append(AncestorWindows(number, masks_between(parent, child), producers))
            waiting += parent.parents
        return ParentWindows(found, LIMITS)


class LedWindow:
    """What the leader of a log remembers of producers, in one epoch."""

    def __init__(self, host: Host, key: LogKey, epoch: int, parents: ParentWindows) -> None:
        self.epoch = epoch
        self._ends = host.hosted[key].ends
        self._windows = ProducerWindows(limits=LIMITS)
        self._tail = SimpleNamespace(
            windows=self._windows, stuck=None, orphaned=None, high_watermark=0
        )
        self._appends = LeaderAppends(cast(ReplicaTail, self._tail), epoch)
        self._appends.inherit(parents)

    def learn(self, offset: int, producer: Producer | None) -> None:
        """This record is in the log."""
        _learn(self._windows, offset, producer)

    def admits(self, producer: Producer, done: OnAppended) -> bool:
        """It is new, and to be written; else it is answered, now or later."""
        self._tail.high_watermark = self._ends.high_watermark
        effects = self._appends._admit(producer, 1, done, 1)
        _do(effects or ())
        return effects is None

    def advanced(self) -> None:
        """What is committed now may be what a retry waits for."""
        self._tail.high_watermark = self._ends.high_watermark
        _do(self._appends._committed())

    def ended(self, producer: Producer, done: OnAppended, offset: int | None) -> None:
        """It is committed; None: nobody knows."""
        assert self._appends._producers is not None
        self._tail.high_watermark = self._ends.high_watermark
        if offset is None:
            error = NoLeaderError("the epoch has ended")
            _do([Fail(done, error), *self._appends._producers.failed(producer, error)])
            _do(self._appends._fail_uncommitted(error))
            return
        retries = self._appends._producers.committed(producer, offset)
        _do([Acknowledge(done, offset), *retries, *self._appends._committed()])


def _learn(windows: ProducerWindows, offset: int, producer: Producer | None) -> None:
    table = b"" if producer is None else encode_table([TableEntry(*producer, 0, 1)])
    header = SimpleNamespace(base_offset=offset, end_offset=offset + 1, append_time_us=1)
    windows.replay(cast(BatchHeader, header), table)


def _producer_in(topic: Topic, partition: int, request: Request) -> Producer:
    """By the id that names whence its token has come to the partition."""
    origins = origins_of(topic).get(partition)
    producer = request.producer
    if origins is None:
        return producer
    return producer._replace(id=derived_id(producer.id, origins.of(request.token)))


def _do(effects: Iterable[TailEffect]) -> None:
    for each in effects:
        if isinstance(each, Acknowledge):
            each.done(Appended(each.offset, each.is_duplicate, partition=each.partition))
        else:
            assert isinstance(each, Fail)
            each.done(AppendFailed(each.error))
