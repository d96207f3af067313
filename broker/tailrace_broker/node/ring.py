"""This broker's part in the ring, run on its disk, its clock and its connections.

`core.control` decides; here its effects are applied in their order, and what comes of them is
given to it. All of it runs on the event loop.
"""

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, assert_never
from uuid import UUID

import structlog

from tailrace_broker.codec.ring_snapshot import encode_slices
from tailrace_broker.core.node.applied import Identity
from tailrace_broker.core.node.control import Control, ControlTiming
from tailrace_broker.core.node.duties import next_voters
from tailrace_broker.core.node.events import (
    Answer,
    Applied,
    Ask,
    AskBootstrap,
    AskRecovery,
    AskState,
    CompactState,
    ControlEffect,
    ControlEvent,
    Damaged,
    Health,
    Heard,
    Recovered,
    Superseded,
)
from tailrace_broker.core.raft.events import (
    Compacted,
    Durable,
    Keep,
    Replace,
    Send,
    Unreachable,
    Woken,
)
from tailrace_broker.core.replication.events import PeerView
from tailrace_broker.model.agreement import DiskId, Kept, Snapshot
from tailrace_broker.model.commands import Command
from tailrace_broker.model.errors import (
    BrokerUnreachableError,
    NotAgreedError,
    NotReadyError,
    RingExistsError,
    RingRefusedError,
    StoredDataError,
    SupersededError,
    TailraceError,
)
from tailrace_broker.model.messages import Hint, Message
from tailrace_broker.model.ring_state import Refusal, Registration, RingState
from tailrace_broker.net.broker import RingView
from tailrace_broker.net.peers.peers import Peers
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.metadata.files import MetadataFiles

CHANGE_S_MAX = 10.0
LEAD_S_MAX = 2.0
# What the agreement's refusals of a bootstrap are to callers.
BOOTSTRAP_ERRORS = {
    "ring-exists": RingExistsError,
    "broker-unreachable": BrokerUnreachableError,
    "founding-under-way": NotAgreedError,
}

# Of a change whose outcome is not known.
DOUBT = "; what was asked for may still come to be"

_log = structlog.get_logger()


class _Request(NamedTuple):
    """`doubt`: what is added when nobody answers."""

    future: asyncio.Future[None]
    doubt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RingSettings:
    """How this broker reaches the others of its ring.

    `is_alone`: it has no peers and bootstraps a ring of one. It listens for peers at `host` and
    `peer_port`; `peer_address_of` returns that address of any broker, by its ordinal; likewise for
    followers. `copies`: of each range of a ring that is founded here, if there are enough brokers.
    `failback_ms`: how long a natural leader must be in sync before it leads again.
    """

    is_alone: bool
    host: str
    peer_port: int
    peer_address_of: Callable[[int], tuple[str, int]]
    replication_port: int
    replication_address_of: Callable[[int], tuple[str, int]]
    secret: bytes
    copies: int
    failback_ms: int


class RingNode:
    """`on_applied`: called with the state before and after each change, in their order.

    `on_silent`: called with a broker that seems dead, once until it is heard again.
    """

    def __init__(
        self,
        settings: RingSettings,
        directory: DataDirectory,
        io: IoThreads,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        """`on_failed`: what this process cannot go on with; it must end."""
        self.on_applied: list[Callable[[RingState | None, RingState], None]] = []
        self.on_silent: list[Callable[[int], None]] = []
        self.rules: Counter[str] = Counter()
        self.files = MetadataFiles(
            directory.path / "metadata",
            io,
            is_direct=directory.is_direct,
            write_file=directory.trash.spares.write,
        )
        self.peers: Peers | None = None
        self._settings = settings
        self._directory = directory
        self._spawn = spawn
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._kept_at_start: Kept | None = None
        self._control: Control | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._events: deque[ControlEvent] = deque()
        self._requests: dict[int, _Request] = {}
        self._request_count = 0
        self._changed = asyncio.Event()
        self._silent: set[int] = set()
        self._is_recovered = False
        self._health = Health()
        self._is_stopped = False

    # --- views ---

    @property
    def state(self) -> RingState | None:
        """Return the committed state that this broker has applied; None: it is in no ring yet."""
        return None if self._control is None else self._control.state

    @property
    def registration(self) -> Registration | None:
        """Return this process's registration; None until that is committed."""
        return None if self._control is None else self._control.registration

    @property
    def is_loaded(self) -> bool:
        """Its disk is read: without a state it is in no ring."""
        return self._control is not None

    @property
    def is_joining(self) -> bool:
        """Its logs are recovered; it waits to be founded, admitted or registered."""
        return self._is_recovered and self.registration is None

    @property
    def failback_ms(self) -> int:
        """How long a natural leader must be in sync before it leads again."""
        return self._settings.failback_ms

    @property
    def is_isolated(self) -> bool:
        """Gossip hears other brokers, and replication none of them."""
        return self._health.is_isolated

    @property
    def is_metadata_leader(self) -> bool:
        """This broker leads the metadata now, or believes so."""
        return self._control is not None and self._control.raft.is_established

    def view(self) -> RingView:
        """Return how consensus proceeds."""
        control = self._control
        if control is None:
            return RingView(0, None, False, (), (), -1, -1, {}, {}, 0)
        raft, gossip, now_ms = control.raft, control.gossip, self._now_ms()
        return RingView(
            term=raft.term,
            leader=control.leader_ordinal if self.state is None else _ordinal(raft.leader),
            is_established=raft.is_established,
            voters=tuple(disk.ordinal for disk in raft.configuration.voters),
            next_voters=tuple(disk.ordinal for disk in next_voters(self.state, raft.configuration)),
            commit=raft.commit.height,
            applied=raft.applied.height,
            alive={
                each: gossip.is_alive(each, now_ms) and self._is_registered_disk(hint)
                for each, hint in gossip.hints.items()
            },
            hints=gossip.hints,
            log_bytes=self.files.size_bytes,
        )

    def peer_view(self) -> PeerView:
        """Return which other brokers gossip hears now, and which of them may lead."""
        control = self._control
        if control is None:
            return PeerView()
        heard = control.heard(self._now_ms())
        able = frozenset(filter(control.gossip.is_fit, heard))
        return PeerView(heard, able, can_store=self._health.can_store)

    def silent(self) -> set[int]:
        """Return the other brokers that seem dead; none before this one has listened enough."""
        return set() if self._control is None else self._control.silent(self._now_ms())

    def _is_registered_disk(self, hint: Hint) -> bool:
        """An empty disk in a broker's place is not that broker until it is admitted."""
        known = None if self.state is None else self.state.brokers.get(hint.ordinal)
        return known is None or known.incarnation == hint.incarnation

    # --- life ---

    async def start(self) -> None:
        """Vote, and apply what is committed. `state` is the disk's at first.

        A broker without peers founds a ring of one. CorruptMetadataError, StorageFailedError,
        PortInUseError, NotAgreedError.
        """
        settings, identity = self._settings, self._directory.identity
        kept, self._kept_at_start = self._kept_at_start or await self.files.load(), None
        disk = DiskId(identity.ordinal, identity.incarnation)
        generator = random.Random()  # noqa: S311  # of moments and of ids, not of secrets
        self._control = Control(
            Identity(disk, identity.boot, identity.starts),
            kept,
            ControlTiming(),
            generator,
            self._now_ms(),
            self.rules,
        )
        if not settings.is_alone:
            if not settings.secret:
                _log.warning(
                    "secret.missing",
                    reason=f"port {settings.peer_port}, and the requests that change the "
                    "ring, are open to whoever reaches them",
                    remedy="set TAILRACE_RING_SECRET, the same for all brokers",
                )
            self.peers = Peers(
                disk.ordinal,
                address_of=settings.peer_address_of,
                secret=settings.secret,
                cluster_id=self.cluster_id,
                on_message=self._heard,
                on_unreachable=lambda ordinal: self._step(Unreachable(ordinal)),
                spawn=self._spawn,
            )
            await self.peers.listen(settings.host, settings.peer_port)
        self._step(Woken())
        if settings.is_alone and kept.snapshot is None:
            await self.found(1)

    async def register(self, recovered: Recovered) -> None:
        """Until this process is registered, and leads what it should lead at once.

        `recovered`: its logs, by a state that this broker has applied. One with peers waits to be
        founded or admitted.
        """
        self._is_recovered = True
        self._step(recovered)
        await self._until(lambda: self.registration is not None)
        await self._lead()
        _log.info("ring.joined", registration=self._registered().number, term=self.view().term)

    def set_health(self, health: Health) -> None:
        """What the disk lets this process do now; nothing happens while that is the same."""
        self._set_health(replace(health, is_isolated=self._health.is_isolated))

    def set_isolated(self, *, is_isolated: bool) -> None:
        """Whether replication hears nobody."""
        self._set_health(replace(self._health, is_isolated=is_isolated))

    def _set_health(self, health: Health) -> None:
        if self._control is not None and health != self._health:
            if not health.is_stopping:
                _log.warning(
                    "health.changed",
                    stalled=health.is_stalled,
                    full=health.is_full,
                    isolated=health.is_isolated,
                )
            self._health = health
            self._step(health)

    def note_damage(self, range_id: int) -> None:
        """The ring is to know that this broker's logs of the range lack committed records."""
        self._step(Damaged(range_id))

    async def load(self) -> None:
        """Read what the disk keeps, before anything of this start is written there.

        CorruptMetadataError, ReadFailedError, DiskFullError, StorageFailedError.
        """
        self._kept_at_start = await self.files.load()

    async def stop(self) -> None:
        """Say nothing more, and write what is being written to its end."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for request in self._requests.values():
            if not request.future.done():
                request.future.set_exception(NotAgreedError(f"the broker stops{request.doubt}"))
        if self.peers is not None:
            await self.peers.close()
        await self.files.close()

    # --- requests ---

    async def change(self, command: Command) -> None:
        """Carry a command out; on return it is in `state`.

        RingRefusedError, NotAgreedError, NotReadyError.
        """
        await self._request(partial(Ask, command=command))

    async def current(self) -> RingState:
        """A state that holds all that was committed when this was asked.

        NotAgreedError, NotReadyError.
        """
        await self._request(AskState, doubt="")
        assert self.state is not None
        return self.state

    async def found(self, broker_count: int) -> None:
        """Found a ring of brokers 0 to `broker_count` - 1; done when it is this ring already.

        RingExistsError, BrokerUnreachableError, RingRefusedError, NotAgreedError, NotReadyError.
        """
        try:
            factor = self._settings.copies
            await self._request(partial(AskBootstrap, broker_count=broker_count, factor=factor))
        except RingRefusedError as error:
            kind = BOOTSTRAP_ERRORS.get(error.refusal.reason)
            if kind is None:
                raise
            raise kind(error.detail) from error

    async def recover_alone(self) -> None:
        """Go on without the other voters, by hand: most of them are lost for good.

        RingRefusedError, NotAgreedError, NotReadyError.
        """
        _log.warning("metadata.recovering", reason="asked by hand to go on alone")
        await self._request(AskRecovery)

    async def _request(self, ask: Callable[[int], ControlEvent], doubt: str = DOUBT) -> None:
        if self._control is None or self._is_stopped:
            raise NotReadyError("the broker is starting, or stopping")
        self._request_count += 1
        number = self._request_count
        request = self._requests[number] = _Request(self._loop.create_future(), doubt)
        try:
            self._step(ask(number))
            async with asyncio.timeout(CHANGE_S_MAX):
                await request.future
        except TimeoutError:
            raise NotAgreedError(
                f"the brokers have not committed it within {CHANGE_S_MAX:.0f} s: a majority of the "
                f"voters must be up and reach each other{doubt}"
            ) from None
        finally:
            del self._requests[number]

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Wait for changes of the state until it is so."""
        while not is_so():
            self._changed.clear()
            await self._changed.wait()

    async def _lead(self) -> None:
        """A range whose only copy is here has no other leader: it is not waited for in vain."""

        def leads_all() -> bool:
            assert self.state is not None
            ordinal = self._directory.identity.ordinal
            return all(
                range_.leader is not None
                for range_ in self.state.ranges.values()
                if not range_.is_sealed and range_.natural_leader == ordinal
            )

        try:
            async with asyncio.timeout(LEAD_S_MAX):
                await self._until(leads_all)
        except TimeoutError:
            _log.warning("ring.leaderless", reason="a range of this broker waits for its replicas")

    # --- the machine's shell ---

    def _step(self, event: ControlEvent) -> None:
        """One event at a time: what an effect brings about comes after the effects beside it."""
        if self._control is None or self._is_stopped:
            return
        self._events.append(event)
        if len(self._events) > 1:
            return
        while self._events and not self._is_stopped:
            for effect in self._control.step(self._events[0], self._now_ms()):
                self._do(effect)
            self._events.popleft()
        self._report_silent(self._control)
        wake_at_ms = self._control.wake_at_ms
        if self._timer is None or wake_at_ms != self._timer_at_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at_ms = wake_at_ms
            # Half a millisecond later: `_now_ms` is cut, and would be below it.
            self._timer = self._loop.call_at((wake_at_ms + 0.5) / 1000, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._step(Woken())

    def _report_silent(self, control: Control) -> None:
        before, self._silent = self._silent, control.silent(self._now_ms())
        for ordinal in sorted(self._silent - before):
            for call in self.on_silent:
                call(ordinal)

    def _do(self, effect: ControlEffect) -> None:
        match effect:
            case Send(ordinal, message):
                if self.peers is not None:
                    self.peers.send(ordinal, message)
            case Keep(number, records):
                self.files.keep(number, records, self._kept)
            case Replace(number, snapshot, records):
                self.files.replace(number, snapshot, records, self._kept)
            case CompactState(number, block_id, configuration, state, records):
                self.files.compact(
                    number,
                    block_id,
                    configuration,
                    encode_slices(state),
                    records,
                    self._kept,
                    self._compacted,
                )
            case Applied(before, after):
                self._changed.set()
                for call in self.on_applied:
                    call(before, after)
            case Answer(request, refusal):
                self._answer(request, refusal)
            case Superseded(detail, is_retired):
                if is_retired:
                    detail += self._set_aside_at_next_start()
                self._on_failed(SupersededError(detail))
            case _:
                assert_never(effect)

    def _set_aside_at_next_start(self) -> str:
        """What becomes of the disk of a broker that has left with it, for people."""
        try:
            self._directory.mark_retired()
        except StoredDataError as error:
            return f"; its directory cannot be marked so: {error.detail}"
        return "; the next start sets its data aside and begins with an empty one"

    def _answer(self, request: int, refusal: Refusal | None) -> None:
        waiter = self._requests.get(request)
        if waiter is None or waiter.future.done():
            return
        future = waiter.future
        if refusal is None:
            future.set_result(None)
        elif refusal.reason == "not-agreed":
            future.set_exception(NotAgreedError(refusal.detail))
        else:
            future.set_exception(RingRefusedError(refusal))

    def _heard(self, message: Message) -> None:
        self._step(Heard(message))

    def _kept(self, number: int, error: TailraceError | None) -> None:
        if error is not None:
            self._on_failed(error)  # what this disk was to promise it cannot: it starts again
        else:
            self._step(Durable(number))

    def _compacted(self, snapshot: Snapshot) -> None:
        self._step(Compacted(snapshot))

    def cluster_id(self) -> UUID | None:
        """Return the id of the ring that this broker is in."""
        state = self.state
        return None if state is None else state.cluster_id

    def _registered(self) -> Registration:
        assert self.registration is not None
        return self.registration

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)


def _ordinal(disk: DiskId | None) -> int | None:
    return None if disk is None else disk.ordinal
