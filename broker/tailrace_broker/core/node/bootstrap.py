"""The bootstrap of a ring: it happens once, and only when every broker of the ring is empty.

The founder asks all brokers. An empty one notes on its disk that it awaits this bootstrap, and then
answers. A later bootstrap takes its place, unless the broker is the founder of one with a greater
id. When all have answered, the founder makes the initial state: all of them registered, and the
voters. Broker 0 takes it first, whoever the founder is, and sends it on; so does each other broker
that awaits this bootstrap with the disk that it answered with. A broker that is not empty is a
veto, so wiped brokers cannot found a ring beside the one that they were in. It shows the initial
state if it has nothing else yet; when that names the disks of all who are asked, a bootstrap whose
founder died is finished with it. Until the initial state is on its disk, a broker does not answer.

There are never two rings, of whatever size, while broker 0 has its disk: each bootstrap needs
broker 0, whose disk takes one initial state, and all others take the same. (A founder that decided
alone could have the answer of a broker that founds a smaller ring meanwhile, in which that founder
has no part.) With an empty disk broker 0 knows of no ring that it was in. What keeps a second one
away then are the others of that ring: one that is to be founded with is a veto, and where a leader
is heard nothing begins (`answer_at_once`). Founded for fewer brokers than before, while it hears
none of the others, it begins a second ring. A founder that answers another bootstrap gives up its
own.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import assert_never
from uuid import UUID

from msgspec import structs

from tailrace_broker.codec.ring_snapshot import decode_state, encode_state
from tailrace_broker.core.node.events import (
    Answer,
    AppliedUpTo,
    AskBootstrap,
    BootstrapEffect,
    BootstrapEvent,
    KeepReserved,
    Noted,
    Take,
)
from tailrace_broker.core.raft.events import Send, Woken
from tailrace_broker.core.raft.state import NEVER_MS
from tailrace_broker.core.ring.commands import initial_state
from tailrace_broker.model.agreement import (
    INITIAL_ID,
    BlockId,
    Configuration,
    DiskId,
    Kept,
    Reserved,
    Snapshot,
)
from tailrace_broker.model.errors import CorruptMetadataError
from tailrace_broker.model.generator import Generator
from tailrace_broker.model.messages import BootstrapAnswered, BootstrapAsked, Bootstrapped
from tailrace_broker.model.ring_state import Refusal, Registration, RingState

ASK_AGAIN_MS = 200
GIVE_UP_MS = 5000
VOTERS_BELOW = ((3, 1), (9, 3))  # in a ring of fewer brokers than the first, so many vote
VOTERS_MAX = 5
DECIDER = 0  # of every ring


def voter_count(broker_count: int) -> int:
    """How many brokers vote: those of the lowest ordinals."""
    for below, voters in VOTERS_BELOW:
        if broker_count < below:
            return voters
    return VOTERS_MAX


@dataclass(slots=True)
class _Attempt:
    ask: AskBootstrap
    id: UUID
    give_up_ms: int
    ask_again_ms: int
    initial: Snapshot | None = None  # of a bootstrap that is to be finished
    made: Snapshot | None = None  # broker 0 is to take it
    answers: dict[int, BootstrapAnswered] = field(default_factory=dict)


class Bootstrap:
    """A machine: a broker's part, as founder and as one of the founded, while it is empty.

    `reserved`: the bootstrap that its disk awaits. `initial`: the state that it has taken, while
    that is all it has. `is_member`: it is in a ring, as far as its disk goes.
    """

    def __init__(
        self,
        me: BootstrapAnswered,
        kept: Kept,
        generator: Generator,
        rules: Counter[str],
    ) -> None:
        """`me`: what this broker answers, but for the id."""
        snapshot = kept.snapshot
        self.reserved = kept.reserved
        self.initial = snapshot if snapshot is not None and snapshot.id == INITIAL_ID else None
        self.is_member = snapshot is not None
        self._me = me
        self._generator = generator
        self._rules = rules
        self._attempt: _Attempt | None = None
        self._given_up: UUID | None = None  # its own, for another of its own
        self._done_request: int | None = None  # to be answered once a block is committed

    @property
    def wake_at_ms(self) -> int:
        """When `Woken` is due."""
        attempt = self._attempt
        return NEVER_MS if attempt is None else min(attempt.ask_again_ms, attempt.give_up_ms)

    @property
    def is_taken(self) -> bool:
        """Whether it is in a ring, or has taken an initial state that is not on disk yet."""
        return self.is_member or self.initial is not None

    @property
    def decides(self) -> bool:
        """Whether this broker is broker 0: others need it to take their initial state first."""
        return self._me.sender.ordinal == DECIDER

    def validate(self) -> None:
        """What is always true."""
        assert self._done_request is None or self.is_taken

    def installed(self, snapshot: Snapshot) -> None:
        """The disk is in a ring; it has the initial state alone, or a later one."""
        self.initial = snapshot if snapshot.id == INITIAL_ID else None
        self.is_member = True

    def compacted(self) -> None:
        """A later snapshot takes the place of the initial state."""
        self.initial = None

    def step(self, event: BootstrapEvent, now_ms: int) -> list[BootstrapEffect]:
        """Take in what happened; the effects are to be applied in their order."""
        match event:
            case Woken():
                return self._wake(now_ms)
            case AskBootstrap():
                return self._begin(event, now_ms)
            case BootstrapAsked():
                return self._asked(event)
            case Noted(asked):
                return self._noted(asked)
            case BootstrapAnswered():
                return self._answered(event)
            case Bootstrapped():
                return self._bootstrapped(event)
            case AppliedUpTo(block_id):
                return self._applied(block_id)
            case _:
                assert_never(event)

    # --- as the founder ---

    def _begin(self, ask: AskBootstrap, now_ms: int) -> list[BootstrapEffect]:
        """Ask all brokers; an attempt under way gives way."""
        self._given_up = None if self._attempt is None else self._attempt.id
        answers = self._give_way()
        self._attempt = _Attempt(
            ask,
            UUID(int=self._generator.getrandbits(128), version=4),
            now_ms + GIVE_UP_MS,
            now_ms + ASK_AGAIN_MS,
        )
        return [*self._ask(), *answers]

    def _wake(self, now_ms: int) -> list[BootstrapEffect]:
        """Ask again who has not answered; give up at last."""
        attempt = self._attempt
        if attempt is None:
            return []
        if now_ms >= attempt.give_up_ms:
            self._attempt = None
            return [Answer(attempt.ask.request, _given_up(attempt))]
        if now_ms < attempt.ask_again_ms:
            return []
        attempt.ask_again_ms = now_ms + ASK_AGAIN_MS
        return [*self._ask()]

    def _answered(self, answer: BootstrapAnswered) -> list[BootstrapEffect]:
        """The last answer that was missing makes the initial state, unless one is a veto."""
        attempt, ordinal = self._attempt, answer.sender.ordinal
        is_asked = attempt is not None and 0 <= ordinal < attempt.ask.broker_count
        if attempt is None or answer.bootstrap != attempt.id or not is_asked:
            self._rules["bootstrap.late_answer"] += 1
            return []
        shows_initial = attempt.initial is not None and answer.initial == attempt.initial
        if not answer.is_empty and not shows_initial:
            return self._vetoed(attempt, answer)
        attempt.answers[ordinal] = answer
        if len(attempt.answers) < attempt.ask.broker_count or attempt.made is not None:
            return []
        initial = self._made_initial(attempt)
        if initial is None:
            return [self._refused(attempt, ordinal)]
        if attempt.initial is None and not self.decides:
            attempt.made, attempt.ask_again_ms = initial, 0
            return []
        return [self._take(initial, answer.bootstrap)]

    # --- as one of the founded ---

    def _asked(self, message: BootstrapAsked) -> list[BootstrapEffect]:
        """Await this bootstrap on disk before answering; or veto it; or the own one goes first."""
        if self.is_member:
            return [self._veto(message)]
        if self.is_taken:  # whoever saw it now could keep what this disk may still lose
            return []
        if not self._may_reserve(message.bootstrap):
            self._rules["bootstrap.own_first"] += 1
            return []
        return [KeepReserved(Reserved(message.bootstrap), message)]

    def _noted(self, message: BootstrapAsked) -> list[BootstrapEffect]:
        """It is on disk: the answer, and one to whoever asked for an attempt that ends by this."""
        bootstrap = message.bootstrap
        if self.is_taken or not self._may_reserve(bootstrap):  # meanwhile
            return []
        self.reserved = bootstrap
        answered = Send(message.sender.ordinal, structs.replace(self._me, bootstrap=bootstrap))
        is_own = self._attempt is None or self._attempt.id == bootstrap
        return [answered] if is_own else [*self._give_way(), answered]

    def _bootstrapped(self, message: Bootstrapped) -> list[BootstrapEffect]:
        """Take the initial state that this broker awaits, if it knows this very disk."""
        is_awaited = not self.is_taken and self.reserved == message.bootstrap
        if not is_awaited or not _names(message.initial, self._me.sender):
            self._rules["bootstrap.refused"] += 1
            return []
        return [self._take(message.initial, message.bootstrap)]

    def _take(self, initial: Snapshot, bootstrap: UUID) -> Take:
        attempt = self._attempt
        if attempt is not None and attempt.id == bootstrap:
            self._attempt, self._done_request = None, attempt.ask.request
        self.initial = initial
        self._rules["bootstrap.founded"] += 1
        return Take(initial)

    def _applied(self, block_id: BlockId) -> list[BootstrapEffect]:
        """Answer once the ring has committed something; it may have before this founder knew."""
        request = self._done_request
        if request is None or block_id <= INITIAL_ID:
            return []
        self._done_request = None
        return [Answer(request)]

    def _may_reserve(self, bootstrap: UUID) -> bool:
        """Whether this empty broker is to await that bootstrap; else its own goes first."""
        attempt = self._attempt
        if attempt is None or bootstrap == attempt.id:
            return True
        return bootstrap > attempt.id and bootstrap != self._given_up

    def _veto(self, message: BootstrapAsked) -> Send:
        veto = structs.replace(
            self._me, bootstrap=message.bootstrap, is_empty=False, initial=self.initial
        )
        return Send(message.sender.ordinal, veto)

    def _ask(self) -> list[Send]:
        attempt = self._attempt
        assert attempt is not None
        asked = BootstrapAsked(self._me.sender, attempt.id)
        if attempt.made is not None:  # a veto says that it has taken another, or just this one
            founded = Bootstrapped(self._me.sender, attempt.id, attempt.made)
            return [Send(DECIDER, asked), Send(DECIDER, founded)]
        missing = [each for each in range(attempt.ask.broker_count) if each not in attempt.answers]
        return [Send(ordinal, asked) for ordinal in missing]

    def _give_way(self) -> list[Answer]:
        """End the attempt under way, if there is one."""
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return []
        self._rules["bootstrap.gave_way"] += 1
        detail = "another founding is under way; look at GET /v1/ring, and found again if need be"
        return [Answer(attempt.ask.request, Refusal("founding-under-way", detail))]

    def _vetoed(self, attempt: _Attempt, answer: BootstrapAnswered) -> list[BootstrapEffect]:
        """Finish the bootstrap that the other broker shows, or give up."""
        initial = answer.initial
        founded = None if initial is None else _state_of(initial)
        if founded is None or not self._can_finish(attempt, founded):
            return [self._refused(attempt, answer.sender.ordinal)]
        self._rules["bootstrap.finished"] += 1
        attempt.id = founded.cluster_id
        attempt.initial = initial
        attempt.made = None
        attempt.answers = {answer.sender.ordinal: answer}
        attempt.ask_again_ms = 0
        return []

    def _refused(self, attempt: _Attempt, ordinal: int) -> Answer:
        """There is a ring, which broker `ordinal` is not empty for, or not in with its disk."""
        self._attempt = None
        self._rules["bootstrap.vetoed"] += 1
        detail = (
            f"there is a ring, as broker {ordinal} shows; an empty broker is admitted to it by "
            "itself. To begin again, stop all brokers and move their data directories away"
        )
        return Answer(attempt.ask.request, Refusal("ring-exists", detail))

    def _can_finish(self, attempt: _Attempt, founded: RingState) -> bool:
        disks = {DiskId(each.ordinal, each.incarnation) for each in founded.brokers.values()}
        known = {each.sender for each in attempt.answers.values()} | {self._me.sender}
        return founded.broker_count == attempt.ask.broker_count and known <= disks

    def _made_initial(self, attempt: _Attempt) -> Snapshot | None:
        """None: the one that is to be finished with does not name one of these disks."""
        disks = tuple(attempt.answers[each].sender for each in range(attempt.ask.broker_count))
        if attempt.initial is not None:
            if all(_names(attempt.initial, disk) for disk in disks):
                return attempt.initial
            return None
        registrations = [
            Registration(ordinal, 1, each.sender.incarnation, each.boot, each.start, "disk")
            for ordinal, each in sorted(attempt.answers.items())
        ]
        ask = attempt.ask
        state = initial_state(attempt.id, ask.broker_count, ask.factor, registrations)
        voters = disks[: voter_count(ask.broker_count)]
        return Snapshot(INITIAL_ID, Configuration(voters), encode_state(state))


def spread(initial: Snapshot, me: DiskId, state: RingState) -> list[Send]:
    """While there is no leader, which would send what it has to those that have nothing.

    A voter that the bootstrap never reached could not vote, and its vote may be needed. They are
    asked to await it, too: one may by now await another bootstrap, which has ended.
    """
    messages = (BootstrapAsked(me, state.cluster_id), Bootstrapped(me, state.cluster_id, initial))
    others = [ordinal for ordinal in state.brokers if ordinal != me.ordinal]
    return [Send(ordinal, message) for ordinal in others for message in messages]


def answer_at_once(
    ask: AskBootstrap, me: DiskId, state: RingState | None, *, is_ring_heard: bool
) -> Answer | None:
    """What this broker answers without asking others; None: it is to bootstrap the ring.

    `is_ring_heard`: gossip says that a ring has a leader.
    """
    if state is not None and state.broker_count == ask.broker_count:
        return Answer(ask.request)
    if state is not None:
        size = f"of {state.broker_count} brokers"
        detail = f"this broker belongs to a ring {size}; nothing was changed"
        return Answer(ask.request, Refusal("ring-exists", detail))
    if me.ordinal >= ask.broker_count:
        last = ask.broker_count - 1
        detail = f"brokers 0 to {last} found the ring: ask one of them"
        if last == 0:
            detail = "broker 0 founds the ring: ask it"
        return Answer(ask.request, Refusal("invalid-parameter", detail))
    if is_ring_heard:
        detail = "there is a ring, and this broker waits to be admitted to it"
        return Answer(ask.request, Refusal("ring-exists", detail))
    return None


def _given_up(attempt: _Attempt) -> Refusal:
    if attempt.made is None:
        missing = sorted({*range(attempt.ask.broker_count)} - {*attempt.answers})
        who = ", ".join(map(str, missing))
        detail = f"broker {who} did not answer; start it, or look at its log, and found again"
        return Refusal("broker-unreachable", detail)
    detail = (
        "broker 0, which takes a ring's state first, has not said that it did; look at "
        "GET /v1/ring, and found again if need be"
    )
    return Refusal("founding-under-way", detail)


def _names(initial: Snapshot, disk: DiskId) -> bool:
    """Whether the initial state knows the broker with this disk."""
    founded = _state_of(initial)
    registration = None if founded is None else founded.brokers.get(disk.ordinal)
    return registration is not None and registration.incarnation == disk.incarnation


def _state_of(initial: Snapshot) -> RingState | None:
    """None: it is of another version, and so of no ring that this broker can be in."""
    try:
        return decode_state(initial.state)
    except CorruptMetadataError:
        return None
