"""One broker's part in the ring: a machine that routes events to its parts, and their effects.

| part | what it does |
|---|---|
| `core.raft` | the consensus: terms, votes, blocks |
| `applied` | the replicated state that the committed blocks make |
| `gossip` | who seems to be alive |
| `bootstrap` | how an empty broker comes to be in a ring |
| `duties` | what this broker owes the ring |
| `requests` | what this broker has asked the ring for |
| `proposals` | what others ask of this broker while it leads |
"""

from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple, assert_never
from uuid import UUID

from tailrace_broker.core.node.applied import AppliedState, Identity
from tailrace_broker.core.node.bootstrap import Bootstrap, answer_at_once
from tailrace_broker.core.node.duties import Duties, Duty, ReadState, Submit, ToLeader, takeovers
from tailrace_broker.core.node.events import (
    Answer,
    Applied,
    AppliedUpTo,
    Ask,
    AskBootstrap,
    AskRecovery,
    AskState,
    BootstrapEvent,
    CompactState,
    ControlEffect,
    ControlEvent,
    Damaged,
    Health,
    Heard,
    KeepReserved,
    Noted,
    Recovered,
    Superseded,
    Take,
)
from tailrace_broker.core.node.gossip import Gossip, GossipTiming
from tailrace_broker.core.node.proposals import Proposals
from tailrace_broker.core.node.requests import Requests
from tailrace_broker.core.raft import events as raft_events
from tailrace_broker.core.raft.events import (
    ChangeVoters,
    Compacted,
    Durable,
    Keep,
    RaftEffect,
    RaftEvent,
    Send,
    Unreachable,
    Woken,
)
from tailrace_broker.core.raft.raft import COMPACT_BYTES, Raft, RaftTiming
from tailrace_broker.core.raft.state import NEVER_MS
from tailrace_broker.core.raft.ticks import TICK_MS
from tailrace_broker.core.ring.registrations import last_registration
from tailrace_broker.model.agreement import INITIAL_ID, Block, Kept, Snapshot
from tailrace_broker.model.commands import Command, Lead, Register
from tailrace_broker.model.generator import Generator
from tailrace_broker.model.messages import (
    Append,
    AppendAnswered,
    BootstrapAnswered,
    BootstrapAsked,
    Bootstrapped,
    CommandForwarded,
    Digest,
    Follow,
    Message,
    ReadAnswered,
    ReadAsked,
    SliceTaken,
    SnapshotSlice,
    VoteAnswered,
    VoteAsked,
)
from tailrace_broker.model.ring_state import Refusal, Registration, RingState


class ControlTiming(NamedTuple):
    """`session_ms`: a broker that the metadata's leader has not heard for this long is fenced.

    `ask_again_ms`: what got no answer is asked again; `give_up_ms`: and then no more.
    `compact_bytes`: about this much is kept until a snapshot takes its place.
    """

    raft: RaftTiming = RaftTiming()
    gossip: GossipTiming = GossipTiming()
    session_ms: int = 3000
    duty_ms: int = TICK_MS
    ask_again_ms: int = 300
    give_up_ms: int = 30_000
    compact_bytes: int = COMPACT_BYTES


class Control:
    """The machine."""

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
        self.disk = identity.disk
        self.ordinal = identity.disk.ordinal
        self.rules = rules
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
        self._applied = AppliedState(identity)
        self._duties = Duties(
            identity,
            self._applied,
            self.raft,
            self.gossip,
            self._bootstrap,
            duty_ms=timing.duty_ms,
            session_ms=timing.session_ms,
            now_ms=now_ms,
        )
        self._requests = Requests(
            self.disk,
            generator,
            rules,
            ask_again_ms=timing.ask_again_ms,
            give_up_ms=timing.give_up_ms,
        )
        self._proposals = Proposals(rules)
        self._asked_term = -1  # of the leader that was last asked for everything
        # The writes under way, by our number: the events that follow when each is durable.
        self._written_number = 0
        self._writes: deque[tuple[int, Durable | Noted]] = deque()
        self._is_superseded = False
        if kept.snapshot is not None:
            self._applied.install(kept.snapshot)
            self._applied.apply(self.raft.applied_blocks_at_start())
            assert self.state is not None
            self.gossip.set_ring(self.state.broker_count)

    # --- views ---

    @property
    def state(self) -> RingState | None:
        """What is committed and applied; None: this disk belongs to no ring."""
        return self._applied.state

    @property
    def registration(self) -> Registration | None:
        """The one of this very process, once it is committed and applied."""
        return self._applied.registration

    @property
    def leader_ordinal(self) -> int | None:
        """The metadata's leader: as gossip has it, if that is newer than what this disk knows."""
        hint, known = self.gossip.leader_hint(), self.raft.leader
        if hint is not None and (known is None or hint[0] > self.raft.term):
            return hint[1]
        return None if known is None else known.ordinal

    def leads(self, range_id: int) -> int | None:
        """The epoch in which this process leads the range; None: it does not."""
        return self._applied.leads(range_id)

    def silent(self, now_ms: int) -> set[int]:
        """The other brokers that seem dead: leaders have them leave their ISR."""
        return self._duties.silent(now_ms)

    def heard(self, now_ms: int) -> frozenset[int]:
        """The other brokers that serve, as far as gossip says: leaders may leave ranges to them."""
        return self._duties.heard(now_ms)

    @property
    def wake_at_ms(self) -> int:
        """When `Woken` is due."""
        if self._is_superseded:
            return NEVER_MS
        parts = (self.raft, self.gossip, self._bootstrap, self._duties)
        return min(part.wake_at_ms for part in parts)

    def validate(self) -> None:
        """What is always true."""
        self.raft.validate()
        self._bootstrap.validate()
        assert (self.state is None) == (self.raft.applied < INITIAL_ID)

    # --- the machine ---

    def step(self, event: ControlEvent, now_ms: int) -> list[ControlEffect]:
        """Take in what happened; the effects are to be applied in their order."""
        if self._is_superseded:
            return []
        return self._to_itself(self._routed(event, now_ms), now_ms)

    def _routed(self, event: ControlEvent, now_ms: int) -> list[ControlEffect]:
        match event:
            case Woken():
                return self._wake(now_ms)
            case Heard(message):
                return self._heard(message, now_ms)
            case Durable(number):
                return self._durable(number, now_ms)
            case Unreachable(ordinal):
                self.gossip.unreachable(ordinal, now_ms)
                self._duties.hurry(now_ms)
                return self._raft(event, now_ms)
            case Compacted():
                return self._raft(event, now_ms)
            case Ask(request, command):
                return self._ask(command, request, now_ms)
            case AskState(request):
                return self._ask_state(request, now_ms)
            case AskBootstrap():
                return self._ask_bootstrap(event, now_ms)
            case AskRecovery(request):
                return self._recover(request, now_ms)
            case Recovered():
                self._duties.recovered(event, now_ms)
                return []
            case Damaged(range_id):
                self._duties.damaged(range_id, now_ms)
                return []
            case Health():
                self.raft.note_data(is_stalled=event.is_stalled)
                self.gossip.set_fit(is_fit=event.is_fit)
                self._duties.set_health(event, now_ms)
                return []
            case _:
                assert_never(event)

    def _to_itself(self, effects: list[ControlEffect], now_ms: int) -> list[ControlEffect]:
        """Hear at once what it sends to itself, as founder."""
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
            digests = self.gossip.wake(now_ms)
            if not self.raft.is_silent:  # else it is not to pass for alive
                effects += digests
        effects += self._step_bootstrap(Woken(), now_ms)
        if now_ms >= self._duties.wake_at_ms:
            effects += self._do_duties(now_ms)
        return effects

    def _heard(self, message: Message, now_ms: int) -> list[ControlEffect]:
        self.gossip.spoke(message.sender.ordinal, now_ms)
        match message:
            case Digest():
                self.gossip.heard(message, now_ms)
                return []
            case CommandForwarded(sender, command):
                return self._propose(command, sender.ordinal, now_ms)
            case ReadAsked():
                return self._read_asked(message, now_ms)
            case ReadAnswered(_, request, height):
                self._requests.read_answered(request, height)
                if self.registration is None:
                    self._duties.hurry(now_ms)  # it may know the current state now
                return [] if self.state is None else self._answers()
            case BootstrapAsked() | BootstrapAnswered() | Bootstrapped():
                return self._step_bootstrap(message, now_ms)
            case (
                VoteAsked()
                | VoteAnswered()
                | Append()
                | AppendAnswered()
                | SnapshotSlice()
                | SliceTaken()
                | Follow()
            ):
                return self._raft(raft_events.Received(message), now_ms)
            case _:
                assert_never(message)

    # --- the consensus machine ---

    def _raft(self, event: RaftEvent, now_ms: int) -> list[ControlEffect]:
        was_leader = self.raft.is_established
        effects: list[ControlEffect] = []
        for effect in self.raft.step(event, now_ms):
            effects += self._of_raft(effect, now_ms)
        if not self.raft.is_established:
            self._proposals.forget_readers()
        elif not was_leader:
            self._duties.elected(now_ms)
            effects += self._ask_again(now_ms, everything=True)
        return effects

    def _of_raft(self, effect: RaftEffect, now_ms: int) -> list[ControlEffect]:
        match effect:
            case Send():
                return [effect]
            case Keep(number, records):
                return [Keep(self._written(Durable(number)), records)]
            case raft_events.Replace(number, snapshot, records):
                mine = self._written(Durable(number))
                return [raft_events.Replace(mine, snapshot, records)]
            case raft_events.Compact(number, block_id, configuration, records):
                assert self.state is not None
                self._bootstrap.compacted()
                mine = self._written(Durable(number))
                return [CompactState(mine, block_id, configuration, self.state, records)]
            case raft_events.Apply(blocks):
                return self._changed(lambda: self._apply(blocks), now_ms)
            case raft_events.Install(snapshot):
                return self._changed(lambda: self._install(snapshot), now_ms)
            case raft_events.ReadReady(request, height):
                answer = ReadAnswered(self.disk, request, height)
                return [Send(self._proposals.pop_reader(request), answer)]
            case _:
                assert_never(effect)

    def _written(self, then: Durable | Noted) -> int:
        """The number of one more write, and the event that follows when it is durable."""
        self._written_number += 1
        self._writes.append((self._written_number, then))
        return self._written_number

    def _durable(self, number: int, now_ms: int) -> list[ControlEffect]:
        effects: list[ControlEffect] = []
        while self._writes and self._writes[0][0] <= number:
            _, event = self._writes.popleft()
            if isinstance(event, Durable):
                effects += self._raft(event, now_ms)
            else:
                effects += self._step_bootstrap(event, now_ms)
        return effects

    # --- the state ---

    def _apply(self, blocks: tuple[Block, ...]) -> None:
        self._proposals.applied(self._applied.apply(blocks))

    def _install(self, snapshot: Snapshot) -> None:
        self._applied.install(snapshot)
        self._bootstrap.installed(snapshot)

    def _changed(self, change: Callable[[], None], now_ms: int) -> list[ControlEffect]:
        before = self.state
        change()
        after = self.state
        assert after is not None
        effects: list[ControlEffect] = []
        if self.raft.applied.term != self._asked_term:  # its leader takes requests from now on
            self._asked_term = self.raft.applied.term
            effects += self._ask_again(now_ms, everything=True)
        if after is not before:
            self.gossip.set_ring(after.broker_count)
            for leader in takeovers(before, after):
                self.gossip.took_over(leader.ordinal, leader.registration, now_ms)
            effects.append(Applied(before, after))
            if self._applied.is_superseded_since(before):
                detail = "another process is broker {} now, or it was retired: this one ends"
                effects += self._end(detail.format(self.ordinal))
        effects += self._step_bootstrap(AppliedUpTo(self.raft.applied), now_ms)
        effects += self._answers()
        self._duties.hurry(now_ms)
        return effects

    def _end(self, detail: str, *, is_retired: bool = False) -> list[ControlEffect]:
        self._is_superseded = True
        self.rules["superseded"] += 1
        return [Superseded(detail, is_retired)]

    # --- requests ---

    def _ask(self, command: Command, number: int | None, now_ms: int) -> list[ControlEffect]:
        return self._to_leader(self._requests.command(command, number, now_ms), now_ms)

    def _ask_state(self, number: int | None, now_ms: int) -> list[ControlEffect]:
        return self._to_leader(self._requests.read(number, now_ms), now_ms)

    def _ask_again(self, now_ms: int, *, everything: bool = False) -> list[ControlEffect]:
        effects: list[ControlEffect] = [*self._requests.given_up(now_ms)]
        for message in self._requests.due(now_ms, everything=everything):
            effects += self._to_leader(message, now_ms)
        return effects

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

    def _answers(self) -> list[ControlEffect]:
        """To all that was asked here and is settled."""
        assert self.state is not None
        effects: list[ControlEffect] = []
        applied_height = self.raft.applied.height
        for number, command, refusal in self._requests.settled(self.state, applied_height):
            if number is not None:
                effects.append(Answer(number, refusal))
            elif command is None:
                self._duties.replaces = last_registration(self.state, self.ordinal)
            elif isinstance(command, Register) and refusal is not None:
                effects += self._end(refusal.detail, is_retired=refusal.reason == "retired")
        return effects

    # --- as the metadata's leader ---

    def _propose(self, command: bytes, sender: int, now_ms: int) -> list[ControlEffect]:
        if not self.raft.is_established:
            return []
        assert self.state is not None
        stamped = self._proposals.new(command, self.raft.term, self.state.recent)
        if stamped is None or self._is_hasty(stamped.command, sender, now_ms):
            return []
        head = self.raft.head
        effects = self._raft(raft_events.Propose(command), now_ms)
        if self.raft.head != head:  # else there was no room: it is asked again
            self._proposals.proposed(stamped.id)
        return effects

    def _is_hasty(self, command: Command, sender: int, now_ms: int) -> bool:
        """A takeover from a broker that this one hears itself: it is asked again if need be.

        A leader may depose itself.
        """
        assert self.state is not None
        if not isinstance(command, Lead):
            return False
        owner = self.state.ranges.get(command.range_id)
        leader = None if owner is None else owner.leader
        if leader is None or leader.ordinal not in command.without or sender == leader.ordinal:
            return False
        known = self.state.brokers[leader.ordinal]
        is_known_dead = known.is_fenced or self.gossip.is_replaced(
            leader.ordinal, known.incarnation, known.boot
        )
        is_heard = self.gossip.is_heard_itself(leader.ordinal, now_ms)
        if is_known_dead or not (is_heard or leader.ordinal == self.ordinal):
            return False
        self.rules["takeover.hasty"] += 1
        return True

    def _read_asked(self, message: ReadAsked, now_ms: int) -> list[ControlEffect]:
        if not self.raft.is_established or not self._proposals.add_reader(message):
            return []
        return self._raft(raft_events.AskRead(message.request), now_ms)

    # --- duties ---

    def _do_duties(self, now_ms: int) -> list[ControlEffect]:
        self._duties.begin_pass(now_ms)
        if self.raft.is_silent:
            self.rules["control.silent"] += 1
            return []
        effects = self._ask_again(now_ms)
        for duty in self._duties.due(now_ms):
            effects += self._do(duty, now_ms)
        return effects

    def _do(self, duty: Duty, now_ms: int) -> list[ControlEffect]:
        match duty:
            case Send():
                return [duty]
            case ToLeader(message):
                return self._to_leader(message, now_ms)
            case ReadState():
                is_under_way = self._requests.is_under_way(None)
                return [] if is_under_way else self._ask_state(None, now_ms)
            case Submit(command):
                is_under_way = self._requests.is_under_way(command)
                return [] if is_under_way else self._ask(command, None, now_ms)
            case ChangeVoters():
                return self._raft(duty, now_ms)
            case _:
                assert_never(duty)

    # --- bootstrap and recovery ---

    def _ask_bootstrap(self, ask: AskBootstrap, now_ms: int) -> list[ControlEffect]:
        is_ring_heard = self.gossip.leader_hint() is not None
        answer = answer_at_once(ask, self.disk, self.state, is_ring_heard=is_ring_heard)
        return self._step_bootstrap(ask, now_ms) if answer is None else [answer]

    def _step_bootstrap(self, event: BootstrapEvent, now_ms: int) -> list[ControlEffect]:
        effects: list[ControlEffect] = []
        for effect in self._bootstrap.step(event, now_ms):
            match effect:
                case Send() | Answer():
                    effects.append(effect)
                case KeepReserved(reserved, asked):
                    effects.append(Keep(self._written(Noted(asked)), (reserved,)))
                case Take(initial):
                    effects += self._raft(raft_events.Initialize(initial), now_ms)
                    effects += self._step_bootstrap(AppliedUpTo(self.raft.applied), now_ms)
                case _:
                    assert_never(effect)
        return effects

    def _recover(self, request: int, now_ms: int) -> list[ControlEffect]:
        if self.state is None:
            detail = "this broker belongs to no ring: recover at one that has its state"
            return [Answer(request, Refusal("not-in-a-ring", detail))]
        effects = self._raft(raft_events.RecoverAlone(), now_ms)
        return effects + self._ask_state(request, now_ms)
