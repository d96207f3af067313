"""One broker's part in the ring: what it does so that the brokers agree, and what follows.

It joins the consensus machine (`core.raft`), the agreed state (`core.ring_commands`), gossip and
the bootstrap, and adds a broker's duties: to register before it does anything else, to lead what it
should, and, as the metadata's leader, to fence who is silent and to let the right disks vote.

Duties are done by looking, not by remembering: every `duty_ms`, and whenever the state changes,
what is not as it should be is asked for (`core.duties`). Asking twice does no harm: commands are
conditional, and carry an id.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import NamedTuple
from uuid import UUID

from tailrace_broker.codec.commands import decode_command
from tailrace_broker.codec.ring_snapshot import decode_state
from tailrace_broker.core.node.bootstrap import Bootstrap, spread
from tailrace_broker.core.node.duties import (
    brokers_to_fence,
    ranges_to_lead,
    takeovers,
    wanted_voters,
)
from tailrace_broker.core.node.events import (
    Answer,
    Applied,
    Ask,
    AskBootstrap,
    AskState,
    CompactState,
    ControlEffect,
    ControlEvent,
    Heard,
    Superseded,
)
from tailrace_broker.core.node.gossip import Gossip, GossipTiming
from tailrace_broker.core.node.requests import Requests
from tailrace_broker.core.raft import events as raft_events
from tailrace_broker.core.raft.events import (
    Compacted,
    Durable,
    Keep,
    RaftEffect,
    RaftEvent,
    Send,
    Unreachable,
    Woken,
)
from tailrace_broker.core.raft.leading import READS_MAX
from tailrace_broker.core.raft.raft import COMPACT_BYTES, Raft, RaftTiming
from tailrace_broker.core.raft.state import NEVER_MS
from tailrace_broker.core.raft.ticks import TICK_MS, next_tick_ms
from tailrace_broker.core.ring.commands import carry_out
from tailrace_broker.core.ring.registrations import last_registration
from tailrace_broker.model.agreement import (
    COMMAND,
    INITIAL_ID,
    Block,
    DiskId,
    Kept,
    Reserved,
    Snapshot,
)
from tailrace_broker.model.commands import Command, Register
from tailrace_broker.model.errors import CorruptMetadataError
from tailrace_broker.model.generator import Generator
from tailrace_broker.model.messages import (
    BootstrapAnswered,
    BootstrapAsked,
    Bootstrapped,
    CommandForwarded,
    Digest,
    Follow,
    Message,
    ReadAnswered,
    ReadAsked,
)
from tailrace_broker.model.ring_state import Refusal, Registration, RingState, Start

FOLLOW_MS = 1000


class ControlTiming(NamedTuple):
    """`session_ms`: a broker that the metadata's leader has not heard for so long is fenced.

    `ask_again_ms`: what got no answer is asked again; `give_up_ms`: and then no more.
    `compact_bytes`: so much is kept, about, until a snapshot takes its place.
    """

    raft: RaftTiming = RaftTiming()
    gossip: GossipTiming = GossipTiming()
    session_ms: int = 3000
    duty_ms: int = TICK_MS
    ask_again_ms: int = 300
    give_up_ms: int = 30_000
    compact_bytes: int = COMPACT_BYTES


class Identity(NamedTuple):
    """A process: its disk, which start of it this is, and the starts to register it by."""

    disk: DiskId
    boot: int
    starts: tuple[Start, ...]


class Control:
    """The machine. `state` is what is agreed and applied; None: this disk belongs to no ring."""

    def __init__(
        self,
        identity: Identity,
        kept: Kept,
        timing: ControlTiming,
        generator: Generator,
        now_ms: int,
        rules: Counter[str],
    ) -> None:
        """`generator`: of ids and of the moments of elections; `rules` counts what was needed."""
        self.identity = identity
        self.disk = identity.disk
        self.ordinal = identity.disk.ordinal
        self.state: RingState | None = None
        self.rules = rules
        self._timing = timing
        self._generator = generator
        self.raft = Raft(
            self.disk,
            kept,
            timing.raft,
            generator,
            now_ms,
            rules,
            compact_bytes=timing.compact_bytes,
        )
        self.gossip = Gossip(self.disk, identity.boot, timing.gossip, generator, now_ms, rules)
        start = identity.starts[-1].id
        me = BootstrapAnswered(self.disk, UUID(int=0), identity.boot, start, is_empty=True)
        self._bootstrap = Bootstrap(me, kept, generator, rules)
        self._founded_request: int | None = None
        # The registration of this broker that the process replaces; None: it is not current yet.
        self._replaces: int | None = None
        self._in_office_ms = now_ms  # as the metadata's leader, since then
        self._next_duty_ms = now_ms
        self._next_follow_ms = now_ms
        self._readers: dict[int, int] = {}  # as the leader: ordinals by the id of a read
        self._requests = Requests(
            self.disk,
            generator,
            rules,
            ask_again_ms=timing.ask_again_ms,
            give_up_ms=timing.give_up_ms,
        )
        self._proposed: set[int] = set()  # ids of commands, by this broker in its term as leader
        self._proposed_term = -1
        self._asked_term = -1  # of the leader that was last asked for everything
        self._kept_number = 0
        # What waits for a disk, in order: what to do when it is durable, by our number.
        self._keeping: deque[tuple[int, Callable[[int], list[ControlEffect]]]] = deque()
        self._is_superseded = False
        if kept.snapshot is not None:
            self.state = decode_state(kept.snapshot.state)
            self._carry_out(self.raft.applied_blocks_at_start())
            self.gossip.set_ring(self.state.broker_count)

    # --- views ---

    @property
    def registration(self) -> Registration | None:
        """Of this very process, once it is agreed and applied."""
        if self.state is None:
            return None
        found = self.state.brokers.get(self.ordinal)
        if found is None or found.start != self.identity.starts[-1].id:
            return None
        return found

    def leads(self, range_id: int) -> int | None:
        """The epoch in which this process leads the range; None: it does not."""
        mine = self.registration
        if mine is None or self.state is None:
            return None
        found = self.state.ranges.get(range_id)
        leader = found.leader if found is not None else None
        if leader is None or leader[:2] != (self.ordinal, mine.number):
            return None
        assert found is not None
        return found.epoch

    @property
    def wake_at_ms(self) -> int:
        """When `Woken` is due."""
        if self._is_superseded:
            return NEVER_MS
        wakes = [self.raft.wake_at_ms, self.gossip.wake_at_ms, self._next_duty_ms]
        bootstrap = self._bootstrap.wake_at_ms
        return min(wakes) if bootstrap is None else min(*wakes, bootstrap)

    def validate(self) -> None:
        """What is always true; for the simulator."""
        self.raft.validate()
        assert (self.state is None) == (self.raft.applied < INITIAL_ID)

    # --- the machine ---

    def step(self, event: ControlEvent, now_ms: int) -> list[ControlEffect]:
        """Take in what happened; the effects are to be done in their order."""
        if self._is_superseded:
            return []
        effects: list[ControlEffect] = []
        match event:
            case Woken():
                effects += self._wake(now_ms)
            case Heard(message):
                effects += self._heard(message, now_ms)
            case Durable(number):
                effects += self._durable(number, now_ms)
            case Unreachable(ordinal):
                self.gossip.unreachable(ordinal, now_ms)
                self._next_duty_ms = now_ms
                effects += self._raft(event, now_ms)
            case Compacted():
                effects += self._raft(event, now_ms)
            case Ask(request, command):
                effects += self._ask(command, request, now_ms)
            case AskState(request):
                effects += self._ask_state(request, now_ms)
            case AskBootstrap():
                effects += self._found(event, now_ms)
            case _:
                effects += self._recover(event.request, now_ms)
        return self._to_itself(effects, now_ms)

    def _to_itself(self, effects: list[ControlEffect], now_ms: int) -> list[ControlEffect]:
        """What it sends to itself, as founder, it hears at once."""
        done: list[ControlEffect] = []
        pending = deque(effects)
        while pending:
            effect = pending.popleft()
            if isinstance(effect, Send) and effect.ordinal == self.ordinal:
                pending.extend(self._heard(effect.message, now_ms))
            else:
                done.append(effect)
        return done

    def _wake(self, now_ms: int) -> list[ControlEffect]:
        effects: list[ControlEffect] = []
        if now_ms >= self.raft.wake_at_ms:
            effects += self._raft(Woken(), now_ms)
        if now_ms >= self.gossip.wake_at_ms:
            leader = self.raft.leader
            self.gossip.set_self(
                height=self.raft.applied.height,
                term=self.raft.term,
                leader=None if leader is None else leader.ordinal,
            )
            effects += self.gossip.wake(now_ms)
        sends, answer = self._bootstrap.wake(now_ms)
        effects += sends
        if answer is not None:
            effects.append(answer)
        if now_ms >= self._next_duty_ms:
            effects += self._do_duties(now_ms)
        return effects

    def _heard(self, message: Message, now_ms: int) -> list[ControlEffect]:
        match message:
            case Digest():
                self.gossip.heard(message, now_ms)
                return []
            case CommandForwarded(_, command):
                return self._propose(command, now_ms)
            case ReadAsked():
                return self._read_asked(message, now_ms)
            case ReadAnswered(_, request, height):
                self._requests.read_answered(request, height)
                if self.registration is None:
                    self._next_duty_ms = now_ms  # it may be current now
                return self._answers() if self.state is not None else []
            case BootstrapAsked():
                return self._bootstrap_asked(message)
            case BootstrapAnswered():
                return self._bootstrap_answered(message, now_ms)
            case Bootstrapped():
                return self._founded(message, now_ms)
            case _:
                return self._raft(raft_events.Received(message), now_ms)

    # --- the consensus machine ---

    def _raft(self, event: RaftEvent, now_ms: int) -> list[ControlEffect]:
        was_leader = self.raft.is_established
        effects: list[ControlEffect] = []
        for effect in self.raft.step(event, now_ms):
            effects += self._of_raft(effect, now_ms)
        if not self.raft.is_established:
            self._readers.clear()
        elif not was_leader:
            self._in_office_ms = now_ms
            self._next_duty_ms = now_ms
            effects += self._ask_again(now_ms, everything=True)
        return effects

    def _of_raft(self, effect: RaftEffect, now_ms: int) -> list[ControlEffect]:
        match effect:
            case raft_events.Keep(number, records):
                return [Keep(self._keep(self._raft_durable(number)), records)]
            case raft_events.Replace(number, snapshot, records):
                mine = self._keep(self._raft_durable(number))
                return [raft_events.Replace(mine, snapshot, records)]
            case raft_events.Compact(number, block_id, configuration, records):
                assert self.state is not None
                self._bootstrap.initial = None
                mine = self._keep(self._raft_durable(number))
                return [CompactState(mine, block_id, configuration, self.state, records)]
            case raft_events.Apply(blocks):
                return self._apply(lambda: self._carry_out(blocks), now_ms)
            case raft_events.Install(snapshot):
                return self._apply(lambda: self._install(snapshot), now_ms)
            case raft_events.ReadReady(request, height):
                return self._read_ready(request, height)
            case _:
                return [effect]

    def _raft_durable(self, number: int) -> Callable[[int], list[ControlEffect]]:
        return lambda now_ms: self._raft(Durable(number), now_ms)

    def _keep(self, then: Callable[[int], list[ControlEffect]]) -> int:
        """The number by which a disk will say that something is durable."""
        self._kept_number += 1
        self._keeping.append((self._kept_number, then))
        return self._kept_number

    def _durable(self, number: int, now_ms: int) -> list[ControlEffect]:
        effects: list[ControlEffect] = []
        while self._keeping and self._keeping[0][0] <= number:
            _, then = self._keeping.popleft()
            effects += then(now_ms)
        return effects

    # --- the state ---

    def _carry_out(self, blocks: Iterable[Block]) -> None:
        state = self.state
        assert state is not None
        for block in blocks:
            if block.kind == COMMAND:
                stamped = decode_command(block.payload)
                state = carry_out(state, stamped)
                self._proposed.discard(stamped.id)
        self.state = state

    def _install(self, snapshot: Snapshot) -> None:
        self.state = decode_state(snapshot.state)
        self._bootstrap.initial = snapshot if snapshot.id == INITIAL_ID else None
        self._bootstrap.is_member = True

    def _apply(self, change: Callable[[], None], now_ms: int) -> list[ControlEffect]:
        before = self.state
        change()
        after = self.state
        assert after is not None
        effects: list[ControlEffect] = []
        if self.raft.applied.term != self._asked_term:  # a leader that takes what it is asked now
            self._asked_term = self.raft.applied.term
            effects += self._ask_again(now_ms, everything=True)
        if after is not before:
            self.gossip.set_ring(after.broker_count)
            for each in takeovers(before, after):
                self.gossip.took_over(each, now_ms)
            effects.append(Applied(before, after))
            effects += self._superseded(before)
        effects += self._say_founded()
        effects += self._answers()
        self._next_duty_ms = now_ms
        return effects

    def _superseded(self, before: RingState | None) -> list[ControlEffect]:
        """Another process has been registered as this broker since this one was."""
        state, start = self.state, self.identity.starts[-1].id
        was = None if before is None else before.brokers.get(self.ordinal)
        assert state is not None
        now = state.brokers.get(self.ordinal)
        if was is None or was.start != start or (now is not None and now.start == start):
            return []
        return self._end(
            f"another process is broker {self.ordinal} now, or it was retired: this one ends"
        )

    def _end(self, detail: str) -> list[ControlEffect]:
        self._is_superseded = True
        self.rules["superseded"] += 1
        return [Superseded(detail)]

    def _answers(self) -> list[ControlEffect]:
        """To what was asked here, and is settled."""
        assert self.state is not None
        effects: list[ControlEffect] = []
        for number, command, refusal in self._requests.settled(
            self.state, self.raft.applied.height
        ):
            if number is not None:
                effects.append(Answer(number, refusal))
            elif command is None:
                self._replaces = last_registration(self.state, self.ordinal)
            elif isinstance(command, Register) and refusal is not None:
                effects += self._end(refusal.detail)
        return effects

    # --- commands and reads ---

    def _ask(self, command: Command, number: int | None, now_ms: int) -> list[ControlEffect]:
        """Have a command carried out wherever the leader is."""
        return self._to_leader(self._requests.command(command, number, now_ms), now_ms)

    def _ask_state(self, number: int | None, now_ms: int) -> list[ControlEffect]:
        return self._to_leader(self._requests.read(number, now_ms), now_ms)

    def _to_leader(
        self, message: CommandForwarded | ReadAsked | Follow, now_ms: int
    ) -> list[ControlEffect]:
        """To itself, if it is the leader; to nobody while there is none: it is asked again."""
        if self.raft.is_established:
            return self._heard(message, now_ms)
        leader = self.leader_ordinal
        if leader is None or leader == self.ordinal:
            return []
        return [Send(leader, message)]

    @property
    def leader_ordinal(self) -> int | None:
        """The metadata's leader: as gossip has it, if that is newer than what this disk knows."""
        hint, known = self.gossip.leader_hint(), self.raft.leader
        if hint is not None and (known is None or hint[0] > self.raft.term):
            return hint[1]
        return None if known is None else known.ordinal

    def _ask_again(self, now_ms: int, *, everything: bool = False) -> list[ControlEffect]:
        effects: list[ControlEffect] = [*self._requests.given_up(now_ms)]
        for message in self._requests.due(now_ms, everything=everything):
            effects += self._to_leader(message, now_ms)
        return effects

    def _propose(self, command: bytes, now_ms: int) -> list[ControlEffect]:
        """As leader; each command once a term, unless it is known already."""
        if not self.raft.is_established:
            return []
        assert self.state is not None
        if self._proposed_term != self.raft.term:
            self._proposed_term = self.raft.term
            self._proposed.clear()
        try:
            command_id = decode_command(command).id
        except CorruptMetadataError:  # of a newer version; once agreed, nobody here could read it
            self.rules["command.unknown"] += 1
            return []
        if command_id in self._proposed or command_id in self.state.recent:
            self.rules["command.known"] += 1
            return []
        head = self.raft.head
        effects = self._raft(raft_events.Propose(command), now_ms)
        if self.raft.head != head:  # else there was no room: it is asked again
            self._proposed.add(command_id)
        return effects

    def _read_asked(self, message: ReadAsked, now_ms: int) -> list[ControlEffect]:
        """As leader: the answer is `ReadReady`'s, with the same id, to that ordinal."""
        is_asked = message.request in self._readers
        if not self.raft.is_established or is_asked or len(self._readers) >= READS_MAX:
            return []
        self._readers[message.request] = message.sender.ordinal
        return self._raft(raft_events.AskRead(message.request), now_ms)

    def _read_ready(self, request: int, height: int) -> list[ControlEffect]:
        answer = ReadAnswered(self.disk, request, height)
        return [Send(self._readers.pop(request), answer)]

    # --- duties ---

    def _do_duties(self, now_ms: int) -> list[ControlEffect]:
        self._next_duty_ms = next_tick_ms(now_ms, self._timing.duty_ms)
        effects = self._ask_again(now_ms)
        is_fed = self.raft.is_voter and self.raft.leader is not None
        if not is_fed and now_ms >= self._next_follow_ms:
            self._next_follow_ms = now_ms + FOLLOW_MS
            follow = Follow(self.raft.term, self.disk, self.raft.applied)
            effects += self._to_leader(follow, now_ms)
        if self.state is None:
            return effects
        if self._bootstrap.initial is not None and self.raft.leader is None:
            effects += spread(self._bootstrap.initial, self.disk, self.state)
        is_late = self.registration is None and self._replaces is None
        if is_late and not self._requests.is_under_way(None):
            effects += self._ask_state(None, now_ms)
        for command in self._commands_due(self.state, now_ms):
            if not self._requests.is_under_way(command):
                effects += self._ask(command, None, now_ms)
        if self.raft.is_established:
            voters = wanted_voters(self.state, self.raft.configuration)
            if voters is not None:
                effects += self._raft(raft_events.ChangeVoters(voters), now_ms)
        return effects

    def _commands_due(self, state: RingState, now_ms: int) -> list[Command]:
        commands: list[Command] = []
        mine = self.registration
        if mine is None:
            commands += self._registration_due()
        elif not mine.is_fenced:
            commands += ranges_to_lead(state, mine, lambda o: self.gossip.is_alive(o, now_ms))
        if self.raft.is_established:
            commands += brokers_to_fence(
                state,
                self.raft.heard_at_ms,
                me=self.ordinal,
                since_ms=self._in_office_ms,
                session_ms=self._timing.session_ms,
                now_ms=now_ms,
            )
        return commands

    def _registration_due(self) -> list[Command]:
        """Once the process is current: what it asks for while it only catches up may be long over.

        A refusal then says that another process has become this broker since: this one ends.
        """
        if self._replaces is None:
            return []
        incarnation, boot, starts = self.disk.incarnation, self.identity.boot, self.identity.starts
        return [Register(self.ordinal, incarnation, boot, starts, self._replaces)]

    # --- bootstrap and recovery ---

    def _found(self, ask: AskBootstrap, now_ms: int) -> list[ControlEffect]:
        if not self._bootstrap.is_member:
            if not self.ordinal < ask.broker_count:
                last = ask.broker_count - 1
                detail = f"brokers 0 to {last} found the ring: ask one of them"
                if last == 0:
                    detail = "broker 0 founds the ring: ask it"
                return [Answer(ask.request, Refusal("invalid-parameter", detail))]
            if self.gossip.leader_hint() is not None:
                detail = "there is a ring, and this broker waits to be admitted to it"
                return [Answer(ask.request, Refusal("ring-exists", detail))]
            sends, gave_way = self._bootstrap.begin(ask, now_ms)
            return [*sends, *([] if gave_way is None else [gave_way])]
        assert self.state is not None
        if self.state.broker_count != ask.broker_count:
            size = f"of {self.state.broker_count} brokers"
            detail = f"this broker belongs to a ring {size}; nothing was changed"
            return [Answer(ask.request, Refusal("ring-exists", detail))]
        return [Answer(ask.request)]

    def _bootstrap_asked(self, message: BootstrapAsked) -> list[ControlEffect]:
        match self._bootstrap.asked(message):
            case Reserved() as reserved:
                number = self._keep(lambda _: [*self._bootstrap.noted(message)])
                return [Keep(number, (reserved,))]
            case None:
                return []
            case veto:
                return [veto]

    def _bootstrap_answered(self, message: BootstrapAnswered, now_ms: int) -> list[ControlEffect]:
        initial, answer = self._bootstrap.answered(message)
        if initial is None:
            return [] if answer is None else [answer]
        return self._take_initial(initial, message.bootstrap, now_ms)

    def _founded(self, message: Bootstrapped, now_ms: int) -> list[ControlEffect]:
        if not self._bootstrap.is_named(message):
            self.rules["bootstrap.refused"] += 1
            return []
        return self._take_initial(message.initial, message.bootstrap, now_ms)

    def _take_initial(self, initial: Snapshot, bootstrap: UUID, now_ms: int) -> list[ControlEffect]:
        self._founded_request = self._bootstrap.request_of(bootstrap)
        self._bootstrap.initial = initial
        self.rules["bootstrap.founded"] += 1
        return [*self._raft(raft_events.Initialize(initial), now_ms), *self._say_founded()]

    def _say_founded(self) -> list[ControlEffect]:
        """Once the ring has agreed on something; it may have before this founder knew."""
        request = self._founded_request
        if request is None or self.raft.applied <= INITIAL_ID:
            return []
        self._founded_request = None
        return [Answer(request)]

    def _recover(self, request: int, now_ms: int) -> list[ControlEffect]:
        if self.state is None:
            detail = "this broker belongs to no ring: recover at one that has its state"
            return [Answer(request, Refusal("not-in-a-ring", detail))]
        effects = self._raft(raft_events.RecoverAlone(), now_ms)
        return effects + self._ask_state(request, now_ms)
