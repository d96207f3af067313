"""One process's side of consumer groups: the shipped shell, from the routes to the coordinators.

Shipped are the routing of requests to coordinators, the forwarding of requests to other brokers,
the handlers, the coordinators with their logs, writers and sessions, and what they use of topics.
Not shipped are the event loop, the connections, and the logs (`groups.logs`).
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tailrace.wire import BATCH_CONTENT_TYPE
from tailrace_broker.codec.replication import LinkFrame
from tailrace_broker.core.groups.group import Group
from tailrace_broker.core.ring.topics import topic_of
from tailrace_broker.forwarding.call_forwarder import CallForwarder
from tailrace_broker.forwarding.forwarded_calls import ForwardedCalls
from tailrace_broker.forwarding.waiting_requests import WaitingRequests
from tailrace_broker.groups.bounds import GroupBounds
from tailrace_broker.groups.coordinator import PartitionCoordinator
from tailrace_broker.groups.groups import Groups
from tailrace_broker.groups.remote_reads import fetch
from tailrace_broker.memory.pool import Quota
from tailrace_broker.memory.read_memory import ReadMemory
from tailrace_broker.model.commands import CreateTopic, InheritedAll
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.errors import NotAgreedError, TailraceError
from tailrace_broker.model.group import TopicPartition
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import Registration, RingState
from tailrace_broker.net.api.partition_ends import ends_of, known_ends_of
from tailrace_broker.net.api.routes import forwarded_matcher
from tailrace_broker.net.http.router import Call, Match, Response
from tests.simulation.ring.groups.links import CallFrame, Links, SimulatedLink
from tests.simulation.ring.groups.local_topics import LocalTopics
from tests.simulation.ring.groups.loop import ProcessLoop

if TYPE_CHECKING:
    from tests.simulation.ring.data.host import Host
    from tests.simulation.ring.groups.ring import GroupsOfRing
    from tests.simulation.ring.process import Process

FORWARD_SECONDS = 3.0
MEMORY_BYTES = 1 << 30
CHANGE_SECONDS = 0.3
COUNT_MAX = 1000
# A connection that has ended is an open one for who took it, now and then, for a while.
NOTICED_LATE = 0.5
NOTICED_SECONDS_MAX = 4.0
match_target: Callable[[], Match] = cache(forwarded_matcher)


async def _no_producers(_: bytes) -> bytes:
    raise AssertionError("no partition is sealed here")


class Answer(NamedTuple):
    """What a client gets. `on_lost`: when it does not get it."""

    headers: Mapping[str, str]
    body: bytes
    on_lost: Callable[[], None] | None


class GroupBroker:
    """What routes and groups need of `net.broker.Broker`; on the loop of its process."""

    def __init__(self, process: "Process", host: "Host", ring: "GroupsOfRing") -> None:
        replicas = ring.replicas
        self.ordinal = process.ordinal
        self.counters = Counters()
        self.loop = ProcessLoop(replicas.world.schedule, host.do)
        self._process = process
        self._generator = replicas.generator
        self._has_begun = False
        topics = self.topics = LocalTopics(
            host, replicas.records, replicas.generator, self.loop, partial(self._create, ring)
        )
        self.hosted, self.hosted_for_brokers = topics.find, topics.find_any
        self.present, self.check_ready = topics.present, topics.check_ready
        self.ring = AppliedRing(process, ring)
        world = replicas.world
        self.links = Links(
            process.ordinal,
            process.number,
            ring.next_link,
            lambda ordinal, frame: world.network.send(process, ordinal, "data", frame),
            lambda ordinal: None if (peer := world.newest(ordinal)) is None else peer.number,
            dialled=self,
            taken=_Taken(self),
        )
        with self.loop.running():
            self.read_memory = ReadMemory(Quota(MEMORY_BYTES), 1.0)
            waiting = WaitingRequests(self.counters, COUNT_MAX)
            self._forwarder = CallForwarder(
                self.ordinal, self.links.to, waiting, self.read_memory, FORWARD_SECONDS
            )
            self.calls = ForwardedCalls(
                cast(Any, self), match_target, self.loop.spawn, _no_producers
            )
            self.groups = Groups(
                cast(Any, topics),
                cast(Any, self.ring),
                self.loop.spawn,
                lambda: world.schedule.now_us,
                self.counters,
                self._ends_of,
                self._known_ends_of,
                partial(fetch, cast(Any, self)),
                bounds=GroupBounds(COUNT_MAX, COUNT_MAX),
                clock_us=lambda: world.schedule.now_us,
            )
        self.read_at_leader = self._forwarder.read_at_leader
        self.ask_broker = self._forwarder.ask
        self.forward_call = self._forwarder.forward

    # --- what the process does ---

    def take_roles(self) -> None:
        """Of the state that `Control` has applied, before the replicas take it."""
        control = self._process.control
        assert control is not None
        assert control.state is not None
        before, self.ring.state = self.ring.state, control.state
        self.ring.registration = control.registration
        with self.loop.running():
            self.topics.apply(control.state, control.registration)
            for call in self.ring.on_applied:
                call(before, control.state)

    def applied(self) -> None:
        """The replicas have taken it."""
        with self.loop.running():
            self.topics.hosts()
            if not self._has_begun and self.ring.registration is not None:
                self._has_begun = self.topics.is_ready = True
                self.loop.spawn(self.groups.open())

    def hosts(self) -> None:
        """The host's logs are others, or begin or end to be led."""
        with self.loop.running():
            self.topics.hosts()

    def lead(self, range_id: int, epoch: int | None) -> None:
        """Take appends in this epoch; None: take none."""
        with self.loop.running():
            self.topics.roles.lead(range_id, epoch)
            if epoch is None:
                self.topics.proofs.ended(range_id)

    def proven(self, range_id: int) -> None:
        """This process led when somebody asked whether it does."""
        with self.loop.running():
            self.topics.proofs.proven(range_id)

    def hold(self, range_id: int) -> None:
        """Append nothing more in this epoch."""
        with self.loop.running():
            self.topics.roles.of(range_id).hold()

    def advanced(self, key: LogKey) -> None:
        """A high watermark has moved."""
        with self.loop.running():
            self.topics.advanced(key)

    def stop(self, then: Callable[[], None]) -> None:
        """The process stops: positions are stored, before others lead."""

        async def close() -> None:
            await self.groups.close()
            self.topics.is_ready = False
            then()

        self.loop.spawn(close())

    def receive(self, frame: CallFrame) -> None:
        """Something that another broker forwards, or its answer."""
        with self.loop.running():
            self.links.receive(frame)

    def link_broke(self, ordinal: int) -> None:
        """All connections with that broker ended."""
        with self.loop.running():
            self.links.broke(ordinal, later=self._later)

    def _later(self, notice: Callable[[], None]) -> None:
        is_late = self._generator.random() < NOTICED_LATE
        seconds = NOTICED_SECONDS_MAX * self._generator.random() if is_late else 0
        self.loop.call_later(seconds, notice)

    def coordinators(self) -> list[PartitionCoordinator]:
        """That this process has, and that still lead."""
        return [each for each in self.groups._by_partition.values() if each.log.is_led]

    def group(self, name: str) -> Group | None:
        """As this process coordinates it; None: it does not."""
        for each in self.coordinators():
            if name in each.by_name:
                return each.by_name[name].group
        return None

    # --- requests of clients ---

    def process_does(self, work: Coroutine[Any, Any, None]) -> None:
        """What a client asks for, unless the process is dead."""
        if self._process.is_alive:
            self.loop.spawn(work)
        else:
            work.close()

    async def serve(self, method: str, target: bytes, headers: Mapping[bytes, bytes]) -> Answer:
        """Answer a client's request. TailraceError."""
        matched = match_target()(method.encode(), target)
        handle = matched.route.handle
        assert handle is not None
        assert not isinstance(matched.parameters, TailraceError), matched.parameters
        call = Call(matched.parameters, "", BATCH_CONTENT_TYPE, b"", headers, target, False, method)
        response: Response = await handle(cast(Any, self), call)
        body = response.body
        parts = [bytes(p) async for p in body] if hasattr(body, "__aiter__") else list(body)
        return Answer(response.headers, b"".join(parts), response.on_lost)

    def address_of(self, ordinal: int) -> tuple[str, int]:
        """Of a broker's public port."""
        return f"broker-{ordinal}", 9250

    # --- of the links ---

    def heard(self, link: SimulatedLink, frame: LinkFrame) -> None:
        """An answer."""
        self._forwarder.received(link.as_shipped, frame)

    def lost(self, link: SimulatedLink) -> None:
        """Answers do not come any more."""
        self._forwarder.lost(link.as_shipped)

    def _create(self, ring: "GroupsOfRing", command: CreateTopic) -> None:
        ring.replicas.request += 1
        request = partial(self._process.ask, ring.replicas.request, command)
        ring.world.schedule.after(1, request)

    async def _ends_of(self, topics: "Any") -> dict[TopicPartition, tuple[int, int]]:
        ends = await ends_of(cast(Any, self), topics)
        return {tp: (each.log_start, each.high_watermark) for tp, each in ends.items()}

    async def _known_ends_of(self, topics: "Any") -> dict[TopicPartition, tuple[int, int]]:
        ends = await known_ends_of(cast(Any, self), topics)
        return {tp: (each.log_start, each.high_watermark) for tp, each in ends.items()}


class AppliedRing:
    """The ring as the process has applied it."""

    def __init__(self, process: "Process", ring: "GroupsOfRing") -> None:
        self.state: RingState | None = None
        self.registration: Registration | None = None
        self.on_applied: list[Callable[[RingState | None, RingState], None]] = []
        self._process = process
        self._ring = ring

    async def change(self, command: InheritedAll) -> None:
        """Ask for it. NotAgreedError: it is not applied soon."""
        replicas = self._ring.replicas
        replicas.request += 1
        request = partial(self._process.ask, replicas.request, command)
        replicas.world.schedule.after(1, request)
        await asyncio.sleep(CHANGE_SECONDS)
        topics = () if self.state is None else self.state.topics.values()
        for each in topics:
            if each.id == command.topic_id and self.state is not None:
                found = topic_of(self.state, each).find(command.partition)
                if found is None or not found.parents:
                    return
        raise NotAgreedError("it is not applied yet")


class _Taken:
    """The links that others have dialled."""

    def __init__(self, broker: GroupBroker) -> None:
        self._broker = broker

    def heard(self, link: SimulatedLink, frame: LinkFrame) -> None:
        self._broker.calls.received(link.as_shipped, cast(Any, frame.message))

    def lost(self, link: SimulatedLink) -> None:
        self._broker.calls.lost(link.as_shipped)
