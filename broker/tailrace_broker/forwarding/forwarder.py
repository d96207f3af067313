"""Appends of requests that this broker took, wherever their partitions are led.

An append for a log that this broker leads goes to it at once. All others wait in a queue for their
partition (`core.forwarding`), and go to its leader on a link of their own kind. So do those that
the own log refuses since its range is led elsewhere by now.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import count
from typing import Any
from uuid import UUID

import structlog

from tailrace_broker.codec.batch import BatchBody, compress_columns
from tailrace_broker.codec.columns import RecordColumns, pack_event
from tailrace_broker.codec.forwarded_errors import error_of
from tailrace_broker.codec.replication import LinkFrame
from tailrace_broker.core.forwarding.partition_queue import (
    NEVER_MS,
    Contents,
    EventContents,
    PartitionQueue,
    WaitingAppend,
    is_refusal,
    is_role_end,
    is_sealed,
)
from tailrace_broker.core.log.producers import Producer
from tailrace_broker.forwarding.call_forwarder import CallForwarder
from tailrace_broker.forwarding.leader_route import LeaderRoute
from tailrace_broker.forwarding.waiting_requests import WaitingRequests
from tailrace_broker.memory.read_memory import ReadMemory
from tailrace_broker.model.append_outcome import (
    Appended,
    AppendFailed,
    AppendOutcome,
    OnAppended,
)
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.errors import (
    NoLeaderError,
    NotReadyError,
    OutcomeUnknownError,
    TailraceError,
    TopicNotFoundError,
)
from tailrace_broker.model.forwarding import AppendAnswers
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import RingState
from tailrace_broker.model.topic import Topic
from tailrace_broker.net.broker import OpenTopic
from tailrace_broker.net.logs import Appends
from tailrace_broker.net.replication.link import Link
from tailrace_broker.net.replication.links import ReplicationLinks
from tailrace_broker.node.ring import RingNode
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.topics.hosted_topic import HostedTopic

# A larger event is a batch of its own: it gains nothing from sharing one.
EVENT_BYTES_MAX = 64 * 1024
# Above this a batch is compressed in an I/O thread.
INLINE_BYTES_MAX = 256 * 1024
# Between two checks of what has waited too long.
WATCH_SECONDS = 0.1
# How long a stop waits for answers.
STOP_SECONDS = 1.0

_log = structlog.get_logger()


class Forwarder:
    """State changes on the event loop only."""

    def __init__(
        self,
        ordinal: int,
        ring: RingNode,
        hosted_of: Callable[[UUID], HostedTopic | None],
        io: IoThreads,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        counters: Counters,
        waiting: WaitingRequests,
        memory: ReadMemory,
        *,
        seconds: float,
    ) -> None:
        """`seconds`: until a request is given up."""
        self.reads = CallForwarder(ordinal, self._link_to, waiting, memory, seconds)
        self._waiting = waiting
        self._ordinal = ordinal
        self._ring = ring
        self._hosted_of = hosted_of
        self._io = io
        self._spawn = spawn
        self._counters = counters
        self._timeout_ms = int(seconds * 1000)
        self._loop = asyncio.get_running_loop()
        self._links: ReplicationLinks | None = None
        self._routes: dict[int, LeaderRoute] = {}
        self._turns = count(1)
        self._here_number = 0  # of those that go to an own log
        self._queues: dict[LogKey, PartitionQueue] = {}
        self._to_pump: dict[PartitionQueue, None] = {}
        # What is appended to the children of its partition now, and what says so.
        self._moving: tuple[TailraceError, WaitingAppend] | None = None
        # Children by the parents whose requests must go first, and are not all answered or moved.
        self._blocked: dict[LogKey, set[LogKey]] = {}
        self._watch_timer: asyncio.TimerHandle | None = None
        ring.on_applied.append(self._on_applied)

    # --- life ---

    def begin(self, links: ReplicationLinks) -> None:
        """Keep links to all other brokers from now on."""
        self._links = links
        if self._ring.state is not None:
            self._link_to_others(self._ring.state)
        self._watch()

    async def stop(self) -> None:
        """Take nothing more, wait a little for the answers of leaders, answer what is left."""
        self._waiting.is_stopping = True
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._waiting.all_answered()
        except TimeoutError:
            _log.warning("forwards.unanswered", requests=self._waiting.count)
        if self._watch_timer is not None:
            self._watch_timer.cancel()
        for queue in self._queues.values():
            for append in queue.expired(NEVER_MS):
                self._give_up(queue, append, NotReadyError("the broker stops; send it again"))

    # --- appends ---

    def appends_to(self, hosted: OpenTopic, partition: int, moved: TailraceError | None) -> Appends:
        """Where to append to the partition. NotLeaderError: it is sealed.

        `moved`: what a request was answered that waited for a parent of it.
        """
        assert isinstance(hosted, HostedTopic)
        hosted.check_open(partition)
        if moved is not None and self._moving is not None and self._moving[0] is moved:
            return MovedLog(self, hosted, partition, self._moving[1])
        return ForwardedLog(self, hosted, partition)

    def append(
        self,
        hosted: HostedTopic,
        partition: int,
        contents: Contents,
        done: OnAppended,
        producer: Producer | None,
    ) -> None:
        """Append to a partition, whoever leads it. `done` is called once."""
        key = LogKey(hosted.topic.topic_id, partition)
        append = WaitingAppend(contents, done, producer, self._now_ms() + self._timeout_ms)
        queue = self._queues.get(key) if self._queues else None
        if queue is None and not (self._blocked and key in self._blocked):
            log = hosted.logs[partition]
            if isinstance(log, PartitionLog) and log.role.elsewhere is None:
                _append_to(log, contents, partial(self._ended_here, key, append), producer)
                return
        refusal = self._waiting.refusal()
        if refusal is not None:
            done(AppendFailed(refusal))
            return
        queue = self._queue_of(key)
        queue.add(append)
        self._pump(queue)

    def _ended_here(self, key: LogKey, append: WaitingAppend, outcome: AppendOutcome) -> None:
        """An own log has answered; it may lead no more."""
        if isinstance(outcome, Appended):
            append.done(outcome)
            return
        error = outcome.error
        if is_sealed(error):
            self._move(append, error)
            return
        is_in_doubt = is_role_end(error) and append.producer is not None
        if self._waiting.is_stopping or not (is_refusal(error) or is_in_doubt):
            append.done(outcome)
            return
        append.may_be_stored, append.error = is_in_doubt, error
        queue = self._queue_of(key)
        queue.add(append)
        self._pump_soon(queue)

    def _queue_of(self, key: LogKey) -> PartitionQueue:
        """The partition's queue, in which another append waits."""
        self._waiting.count += 1
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = PartitionQueue(key, self._turns)
        return queue

    # --- sealed partitions ---

    def _move_sealed(self) -> None:
        """In the turn in which partitions are sealed, so that nothing passes what they have."""
        for key in sorted({*self._queues, *self._blocked}):  # parents first
            hosted = self._hosted_of(key.topic_id)
            found = None if hosted is None else hosted.topic.find(key.partition)
            if hosted is None or found is None or not found.is_sealed:
                continue
            if key in self._queues:
                self._move_all(self._queues[key], hosted)
            else:
                self._block_children(key, hosted.topic)

    def _move_all(self, queue: PartitionQueue, hosted: HostedTopic) -> None:
        """Have what waits for a sealed partition appended to its children, by who has its events.

        They wait for it: no request of a key passes an earlier one.
        """
        key = queue.key
        if queue.has_sent or key in self._blocked:
            queue.seal(self._now_ms())
            self._block_children(key, hosted.topic)
            return
        error = hosted.sealed_error(key.partition)
        for append in queue.take_waiting():
            if append.is_ready_made and append.may_be_stored:
                self._give_up(queue, append)
            else:
                self._waiting.end_one()
                self._move(append, error)
        self._unblock(key)

    def _block_children(self, key: LogKey, topic: Topic) -> None:
        """Have them wait, and theirs where they are sealed by now."""
        for each in topic.at(key.partition).children:
            child, found = LogKey(key.topic_id, each), topic.find(each)
            self._blocked.setdefault(child, set()).add(key)
            if found is not None and found.is_sealed and child not in self._queues:
                self._block_children(child, topic)

    def _move(self, append: WaitingAppend, error: TailraceError) -> None:
        self._moving = error, append
        append.done(AppendFailed(error))
        self._moving = None

    def append_moved(
        self,
        hosted: HostedTopic,
        partition: int,
        contents: Contents,
        done: OnAppended,
        producer: Producer | None,
        moved: WaitingAppend,
    ) -> None:
        """Append what waited for a parent of the partition, or a part of it."""
        append = WaitingAppend(contents, done, producer, moved.deadline_ms)
        append.may_be_stored, append.error = moved.may_be_stored, moved.error
        queue = self._queue_of(LogKey(hosted.topic.topic_id, partition))
        queue.add_moved(append)
        self._pump_soon(queue)

    def _unblock(self, parent: LogKey) -> None:
        """All that came to it is answered or moved."""
        done = [parent]
        while done:
            parent = done.pop()
            for child, parents in list(self._blocked.items()):
                parents.discard(parent)
                if not parents:
                    del self._blocked[child]
                    if child in self._queues:
                        self._pump_soon(self._queues[child])
                    else:
                        done.append(child)

    # --- sending ---

    def _pump_soon(self, queue: PartitionQueue) -> None:
        """At the end of this turn: what comes back together goes out together."""
        if not self._to_pump:
            self._loop.call_soon(self._pump_due)
        self._to_pump[queue] = None

    def _pump_due(self) -> None:
        queues, self._to_pump = self._to_pump, {}
        for queue in queues:
            self._pump(queue)

    def _pump(self, queue: PartitionQueue) -> None:
        """Send what may be sent."""
        partition = queue.key.partition
        hosted = self._hosted_of(queue.key.topic_id)
        found = None if hosted is None else hosted.topic.find(partition)
        if hosted is None or found is None:
            gone: TailraceError = TopicNotFoundError("the topic was deleted meanwhile")
            if hosted is not None:
                gone = hosted.topic.no_partition(partition)
            for waiting in queue.take_waiting():
                self._give_up(queue, waiting, gone)
            return
        if found.is_sealed:
            self._move_all(queue, hosted)
            return
        if self._blocked and queue.key in self._blocked:
            return
        leader = self._leader_of(hosted, partition)
        route = None if leader is None else self._routes.get(leader)
        is_here = leader == self._ordinal
        target = leader if is_here or route is not None else None
        now_ms = self._now_ms()
        while (append := queue.next(target, now_ms)) is not None:
            if append.error is not None:
                self._counters.forwards_repeated += 1
            if is_here:
                self._append_here(hosted, queue, append)
            elif self._is_encoded(hosted, queue, append):
                assert route is not None
                route.send(queue, append)
                self._counters.forwarded_requests += 1
            else:
                return
        if queue.has_unsent and queue.resume_at_ms > now_ms:
            self._loop.call_at((queue.resume_at_ms + 0.5) / 1000, self._pump_soon, queue)

    def _append_here(
        self, hosted: HostedTopic, queue: PartitionQueue, append: WaitingAppend
    ) -> None:
        self._here_number += 1
        number = self._here_number
        queue.sent(number)
        ended = partial(self._ended, self._ordinal, queue, number)
        try:
            log = hosted.open_log_of(queue.key.partition)
        except TailraceError as error:
            ended(AppendFailed(error))
        else:
            _append_to(log, append.contents, ended, append.producer)

    def _is_encoded(
        self, hosted: HostedTopic, queue: PartitionQueue, append: WaitingAppend
    ) -> bool:
        """Whether it can be sent now; else the queue is pumped when it can."""
        contents = append.contents
        if isinstance(contents, EventContents) and len(contents.value) > EVENT_BYTES_MAX:
            key, value, timestamp_us, flags = contents
            contents = append.contents = pack_event(value, key, timestamp_us, flags=flags)
        if isinstance(contents, RecordColumns):
            compress = partial(compress_columns, contents, codec=hosted.topic.settings.codec)
            if len(contents.payload) > INLINE_BYTES_MAX:
                if not append.is_in_work:
                    append.is_in_work = True
                    self._spawn(self._encode(queue, append, compress))
                return False
            append.contents = compress()
        return True

    async def _encode(
        self, queue: PartitionQueue, append: WaitingAppend, compress: Callable[[], BatchBody]
    ) -> None:
        append.contents = await self._io.run(compress)
        self._pump_soon(queue)

    # --- answers ---

    def on_leader(self, link: Link, ordinal: int, frame: LinkFrame) -> None:
        """A leader's answers."""
        route = self._routes.get(ordinal)
        if route is None or route.link is not link:
            return
        message = frame.message
        route.heard_s = self._loop.time()
        if not isinstance(message, AppendAnswers):
            self.reads.received(link, frame)
            return
        for number, offset, is_duplicate, copies in message.stored:
            queue = route.under_way.pop(number, None)
            if queue is not None:
                self._ended(ordinal, queue, number, Appended(offset, is_duplicate, copies))
        for number, partition, offset in message.inherited:
            queue = route.under_way.pop(number, None)
            if queue is not None:
                outcome = Appended(offset, is_duplicate=True, partition=partition)
                self._ended(ordinal, queue, number, outcome)
        for failed in message.failed:
            queue = route.under_way.pop(failed.number, None)
            if queue is not None:
                self._ended(ordinal, queue, failed.number, AppendFailed(error_of(failed)))

    def _ended(
        self, ordinal: int, queue: PartitionQueue, number: int, outcome: AppendOutcome
    ) -> None:
        """An append has its outcome at that broker, unless it was given up before.

        Another broker's numbers say nothing of what was sent here since.
        """
        if ordinal != queue.target:
            return
        if isinstance(outcome, Appended):
            append = queue.stored(number)
            if append is not None:
                self._finish(append, outcome)
        else:
            append = queue.failed(number, outcome.error, self._now_ms())
            if append is not None:
                self._give_up(queue, append, outcome.error)
        if queue.has_unsent or self._blocked:
            self._pump_soon(queue)

    def _finish(self, append: WaitingAppend, outcome: AppendOutcome) -> None:
        self._waiting.end_one()
        append.done(outcome)

    def _give_up(
        self, queue: PartitionQueue, append: WaitingAppend, error: TailraceError | None = None
    ) -> None:
        """Answer with the error, without one with the reason for which it still waits."""
        if append.may_be_stored and not (error and error.write_attempted):
            self._counters.forwards_unknown += 1
            error = self._unknown(queue)
        error = error or append.error or self._not_led(queue)
        self._finish(append, AppendFailed(error))

    def _unknown(self, queue: PartitionQueue) -> TailraceError:
        topic, partition = self._name_of(queue), queue.key.partition
        return OutcomeUnknownError(
            f'the leader of partition {partition} of topic "{topic}" was sent the events and is '
            "not heard any more: they may be stored. Send them again; with Tailrace-Producer-Id "
            "and Tailrace-Sequence they are stored once",
            topic=topic,
            partition=partition,
        )

    def _not_led(self, queue: PartitionQueue) -> TailraceError:
        topic, partition = self._name_of(queue), queue.key.partition
        hosted = self._hosted_of(queue.key.topic_id)
        if hosted is not None and self._leader_of(hosted, partition) is None:
            try:
                hosted.log_of(partition)
            except NoLeaderError as error:  # it says where to look
                return error
        return NoLeaderError(
            f'the leader of partition {partition} of topic "{topic}" could not be reached within '
            f"{self._timeout_ms / 1000:g} s; nothing was stored, send it again",
            topic=topic,
            partition=partition,
        )

    # --- what changes ---

    def on_link_changed(self, ordinal: int) -> None:
        """The link to that leader is there, or was lost."""
        assert self._links is not None
        link = self._links.forwarding_link(ordinal)
        self._lose(ordinal)
        if link is not None:
            self._routes[ordinal] = LeaderRoute(link, self._loop)
        self._pump_all()

    def _lose(self, ordinal: int) -> None:
        """What was sent on the link to that broker has no answer."""
        route = self._routes.pop(ordinal, None)
        if route is not None:
            self.reads.lost(route.link)
            for queue in dict.fromkeys(route.under_way.values()):
                for append in queue.lost(ordinal, route.link.handed_over):
                    self._give_up(queue, append)

    def _on_applied(self, _: RingState | None, after: RingState) -> None:
        if self._links is not None and not self._waiting.is_stopping:
            self._move_sealed()
            self._link_to_others(after)
            self._pump_all()

    def _link_to_others(self, state: RingState) -> None:
        """Whoever leads nothing now may do so soon, or has led and not answered all yet."""
        assert self._links is not None
        others = state.brokers.keys() - {self._ordinal}
        self._links.forward_to(others)
        for ordinal in self._routes.keys() - others:
            self._lose(ordinal)

    def _pump_all(self) -> None:
        for queue in self._queues.values():
            if len(queue):
                self._pump_soon(queue)

    def _watch(self) -> None:
        """Give up what has waited too long, and forget queues that are empty."""
        now_ms = self._now_ms()
        given_up_count = 0
        for key, queue in list(self._queues.items()):
            for append in queue.expired(now_ms):
                self._give_up(queue, append)
                given_up_count += 1
            if not len(queue):
                del self._queues[key]
                self._unblock(key)
            elif queue.has_unsent or self._blocked:
                self._pump_soon(queue)
        if given_up_count:
            _log.warning("forwards.unheard", requests=given_up_count)
        self._end_silent_links()
        self._watch_timer = self._loop.call_later(WATCH_SECONDS, self._watch)

    def _end_silent_links(self) -> None:
        """Nobody counts what waits on a link to a broker that answers nothing: no more may wait."""
        silent_s = self._loop.time() - self._timeout_ms / 1000
        for ordinal, route in list(self._routes.items()):
            if route.under_way and route.heard_s < silent_s:
                _log.warning("leader.silent", peer=ordinal, requests=len(route.under_way))
                route.link.abort()

    def _link_to(self, ordinal: int) -> Link | None:
        route = self._routes.get(ordinal)
        return None if route is None else route.link

    def _leader_of(self, hosted: HostedTopic, partition: int) -> int | None:
        """As this broker has applied it; None: nobody, or the partition is gone."""
        state, found = self._ring.state, hosted.topic.find(partition)
        assert state is not None
        owner = None if found is None else state.ranges.get(found.range_id)
        leader = None if owner is None else owner.leader
        return None if leader is None else leader.ordinal

    def _name_of(self, queue: PartitionQueue) -> str:
        hosted = self._hosted_of(queue.key.topic_id)
        return str(queue.key.topic_id) if hosted is None else hosted.topic.name

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)


class ForwardedLog:
    """A partition to append to, whoever leads it."""

    __slots__ = ("_forwarder", "_hosted", "_partition")

    def __init__(self, forwarder: Forwarder, hosted: HostedTopic, partition: int) -> None:
        self._forwarder = forwarder
        self._hosted = hosted
        self._partition = partition

    def append_event(
        self,
        key: bytes | None,
        value: bytes,
        timestamp_us: int,
        flags: int,
        done: OnAppended,
        producer: Producer | None,
    ) -> None:
        """Append one event, which shares a batch with others."""
        contents = EventContents(key, value, timestamp_us, flags)
        self._append(contents, done, producer)

    def append_records(
        self,
        contents: RecordColumns | BatchBody,
        done: OnAppended,
        producer: Producer | None,
    ) -> None:
        """Append a request's records as a batch of their own."""
        self._append(contents, done, producer)

    def _append(self, contents: Contents, done: OnAppended, producer: Producer | None) -> None:
        self._forwarder.append(self._hosted, self._partition, contents, done, producer)


class MovedLog(ForwardedLog):
    """A partition to which a request goes on whose partition was sealed before it took it."""

    __slots__ = ("_moved",)

    def __init__(
        self, forwarder: Forwarder, hosted: HostedTopic, partition: int, moved: WaitingAppend
    ) -> None:
        super().__init__(forwarder, hosted, partition)
        self._moved = moved

    def _append(self, contents: Contents, done: OnAppended, producer: Producer | None) -> None:
        place = self._hosted, self._partition
        self._forwarder.append_moved(*place, contents, done, producer, self._moved)


def _append_to(
    log: PartitionLog, contents: Contents, done: OnAppended, producer: Producer | None
) -> None:
    if isinstance(contents, EventContents):
        log.append_event(*contents, done, producer)
    else:
        log.append_records(contents, done, producer)
