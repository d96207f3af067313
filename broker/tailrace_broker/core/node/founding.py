"""How a ring begins: once, and only when every broker that it begins with is empty.

The founder asks all of them. An empty one answers when it has noted on its disk that it awaits this
founding; a later one takes its place, unless it is itself the founder of one with a greater id.
When all have answered, the founder makes the genesis: the state with all of them registered, and
who votes. Broker 0 takes it first, whoever the founder is, and hands it on; so does each other that
awaits this founding with the very disk that it answered with. One that is not empty is a veto, so
wiped brokers cannot found a ring beside the one that they were in; it shows the genesis if it has
nothing else yet, and when that names the disks of all who are asked, a founding whose founder died
is finished with it. Until the genesis is on its disk, it is silent.

Why there are never two, of whatever size: each needs broker 0, whose disk takes one genesis, and
what others take it has taken. (A founder that decided by itself could have the answer of a broker
that founds a smaller ring meanwhile, which that founder has no part in.) A founder that answers
another founding gives up its own.
"""

from collections import Counter
from dataclasses import dataclass, field
from uuid import UUID

from msgspec import structs

from tailrace_broker.codec.ring_snapshot import decode_state, encode_state
from tailrace_broker.core.node.events import Answer, AskFounding
from tailrace_broker.core.raft.events import Send
from tailrace_broker.core.ring.commands import founding_state
from tailrace_broker.model.agreement import GENESIS, Configuration, DiskId, Kept, Reserved, Snapshot
from tailrace_broker.model.errors import CorruptMetadataError
from tailrace_broker.model.generator import Generator
from tailrace_broker.model.messages import Founded, FoundingAnswered, FoundingAsked
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
    ask: AskFounding
    id: UUID
    give_up_ms: int
    ask_again_ms: int
    genesis: Snapshot | None = None  # of a founding that is to be finished
    made: Snapshot | None = None  # broker 0 is to take it
    answers: dict[int, FoundingAnswered] = field(default_factory=dict)


class Founding:
    """A broker's part in founding a ring, as founder and as one of the founded, while it is empty.

    `reserved`: the founding that its disk awaits. `genesis`: the one that it has taken, while that
    is all it has. `is_member`: it is in a ring, as far as its disk goes.
    """

    def __init__(
        self,
        me: FoundingAnswered,
        kept: Kept,
        generator: Generator,
        rules: Counter[str],
    ) -> None:
        """`me`: what this broker answers, but for the id."""
        snapshot = kept.snapshot
        self.reserved = kept.reserved
        self.genesis = snapshot if snapshot is not None and snapshot.id == GENESIS else None
        self.is_member = snapshot is not None
        self._me = me
        self._generator = generator
        self._rules = rules
        self._attempt: _Attempt | None = None
        self._given_up: UUID | None = None  # its own, for another of its own

    @property
    def wake_at_ms(self) -> int | None:
        """When `wake` has something to do."""
        attempt = self._attempt
        return None if attempt is None else min(attempt.ask_again_ms, attempt.give_up_ms)

    def begin(self, ask: AskFounding, now_ms: int) -> tuple[list[Send], Answer | None]:
        """Ask all; an attempt under way gives way."""
        self._given_up = None if self._attempt is None else self._attempt.id
        answer = self._gave_way()
        self._attempt = _Attempt(
            ask,
            UUID(int=self._generator.getrandbits(128), version=4),
            now_ms + GIVE_UP_MS,
            now_ms + ASK_AGAIN_MS,
        )
        return self._ask(), answer

    def wake(self, now_ms: int) -> tuple[list[Send], Answer | None]:
        """Ask again who has not answered; give up at last."""
        attempt = self._attempt
        if attempt is None:
            return [], None
        if now_ms >= attempt.give_up_ms:
            self._attempt = None
            if attempt.made is not None:
                return [], Answer(attempt.ask.request, _undecided())
            missing = sorted({*range(attempt.ask.broker_count)} - {*attempt.answers})
            who = ", ".join(map(str, missing))
            detail = f"broker {who} did not answer; start it, or look at its log, and found again"
            return [], Answer(attempt.ask.request, Refusal("broker-unreachable", detail))
        if now_ms < attempt.ask_again_ms:
            return [], None
        attempt.ask_again_ms = now_ms + ASK_AGAIN_MS
        return self._ask(), None

    def asked(self, message: FoundingAsked) -> Reserved | Send | None:
        """What the disk is to note before this broker answers; or a veto; or its own goes first."""
        if self.is_member:
            return self._veto(message)
        if self.is_taken:  # whoever saw it now could keep what this disk may still lose
            return None
        if not self._may_reserve(message.founding):
            self._rules["founding.own_first"] += 1
            return None
        return Reserved(message.founding)

    def noted(self, message: FoundingAsked) -> list[Send | Answer]:
        """It is on disk: the answer, and one to whoever asked for an attempt that ends by this."""
        founding = message.founding
        if self.is_taken or not self._may_reserve(founding):  # meanwhile
            return []
        self.reserved = founding
        answered = Send(message.sender.ordinal, structs.replace(self._me, founding=founding))
        is_own = self._attempt is None or self._attempt.id == founding
        gave_way = None if is_own else self._gave_way()
        return [answered] if gave_way is None else [gave_way, answered]

    @property
    def is_taken(self) -> bool:
        """It is in a ring, or about to be: it has taken a genesis that is not on disk yet."""
        return self.is_member or self.genesis is not None

    def _may_reserve(self, founding: UUID) -> bool:
        """Whether this empty broker is to await that founding; else its own goes first."""
        attempt = self._attempt
        if attempt is None or founding == attempt.id:
            return True
        return founding > attempt.id and founding != self._given_up

    def _veto(self, message: FoundingAsked) -> Send:
        veto = structs.replace(
            self._me, founding=message.founding, is_empty=False, genesis=self.genesis
        )
        return Send(message.sender.ordinal, veto)

    def answered(self, answer: FoundingAnswered) -> tuple[Snapshot | None, Answer | None]:
        """The genesis, when that was the last answer missing; or why there is none."""
        attempt, ordinal = self._attempt, answer.sender.ordinal
        is_asked = attempt is not None and 0 <= ordinal < attempt.ask.broker_count
        if attempt is None or answer.founding != attempt.id or not is_asked:
            self._rules["founding.late_answer"] += 1
            return None, None
        shows_genesis = attempt.genesis is not None and answer.genesis == attempt.genesis
        if not answer.is_empty and not shows_genesis:
            return None, self._vetoed(attempt, answer)
        attempt.answers[ordinal] = answer
        if len(attempt.answers) < attempt.ask.broker_count or attempt.made is not None:
            return None, None
        genesis = self._made_genesis(attempt)
        if genesis is None:
            return None, self._refused(attempt, ordinal)
        if attempt.genesis is None and not self.decides:
            attempt.made, attempt.ask_again_ms = genesis, 0
            return None, None
        return genesis, None

    def is_named(self, founded: Founded) -> bool:
        """Whether this broker awaits that genesis, which knows this very disk."""
        if self.is_taken or self.reserved != founded.founding:
            return False
        return _names(founded.genesis, self._me.sender)

    @property
    def decides(self) -> bool:
        """What this broker makes is the genesis; what another makes is, once broker 0 has it."""
        return self._me.sender.ordinal == DECIDER

    def request_of(self, founding: UUID) -> int | None:
        """Who asked here for the founding that has come to be."""
        attempt = self._attempt
        if attempt is None or attempt.id != founding:
            return None
        self._attempt = None
        return attempt.ask.request

    def _ask(self) -> list[Send]:
        attempt = self._attempt
        assert attempt is not None
        asked = FoundingAsked(self._me.sender, attempt.id)
        if attempt.made is not None:  # a veto says that it has taken another, or just this one
            founded = Founded(self._me.sender, attempt.id, attempt.made)
            return [Send(DECIDER, asked), Send(DECIDER, founded)]
        missing = [each for each in range(attempt.ask.broker_count) if each not in attempt.answers]
        return [Send(ordinal, asked) for ordinal in missing]

    def _gave_way(self) -> Answer | None:
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return None
        self._rules["founding.gave_way"] += 1
        detail = "another founding is under way; look at GET /v1/ring, and found again if need be"
        return Answer(attempt.ask.request, Refusal("founding-under-way", detail))

    def _vetoed(self, attempt: _Attempt, answer: FoundingAnswered) -> Answer | None:
        """Finish the founding that the other broker shows, or give up."""
        genesis = answer.genesis
        founded = None if genesis is None else _state_of(genesis)
        if founded is not None and self._can_finish(attempt, founded):
            self._rules["founding.finished"] += 1
            attempt.id = founded.cluster_id
            attempt.genesis = genesis
            attempt.made = None
            attempt.answers = {answer.sender.ordinal: answer}
            attempt.ask_again_ms = 0
            return None
        return self._refused(attempt, answer.sender.ordinal)

    def _refused(self, attempt: _Attempt, ordinal: int) -> Answer:
        """There is a ring, which broker `ordinal` is not empty for, or not in with its disk."""
        self._attempt = None
        self._rules["founding.vetoed"] += 1
        detail = (
            f"there is a ring, as broker {ordinal} shows; an empty broker is admitted to it by "
            "itself. To begin anew, stop all brokers and move their data directories away"
        )
        return Answer(attempt.ask.request, Refusal("ring-exists", detail))

    def _can_finish(self, attempt: _Attempt, founded: RingState) -> bool:
        disks = {DiskId(each.ordinal, each.incarnation) for each in founded.brokers.values()}
        known = {each.sender for each in attempt.answers.values()} | {self._me.sender}
        return founded.broker_count == attempt.ask.broker_count and known <= disks

    def _made_genesis(self, attempt: _Attempt) -> Snapshot | None:
        """None: the one that is to be finished with does not name one of these disks."""
        disks = tuple(attempt.answers[each].sender for each in range(attempt.ask.broker_count))
        if attempt.genesis is not None:
            if all(_names(attempt.genesis, disk) for disk in disks):
                return attempt.genesis
            return None
        registrations = [
            Registration(ordinal, 1, each.sender.incarnation, each.boot, each.start, "disk")
            for ordinal, each in sorted(attempt.answers.items())
        ]
        ask = attempt.ask
        state = founding_state(attempt.id, ask.broker_count, ask.factor, registrations)
        voters = disks[: voter_count(ask.broker_count)]
        return Snapshot(GENESIS, Configuration(voters), encode_state(state))


def spread(genesis: Snapshot, me: DiskId, state: RingState) -> list[Send]:
    """While there is no leader, which would send what it has to those that have nothing.

    A voter that the founding never reached could not vote, and its vote may be needed. They are
    asked to await it, too: one may by now await another founding, which has ended.
    """
    messages = (FoundingAsked(me, state.cluster_id), Founded(me, state.cluster_id, genesis))
    others = [ordinal for ordinal in state.brokers if ordinal != me.ordinal]
    return [Send(ordinal, message) for ordinal in others for message in messages]


def _undecided() -> Refusal:
    detail = (
        "broker 0, which takes a ring's state first, has not said that it did; look at "
        "GET /v1/ring, and found again if need be"
    )
    return Refusal("founding-under-way", detail)


def _names(genesis: Snapshot, disk: DiskId) -> bool:
    """Whether the genesis knows the broker with this disk."""
    founded = _state_of(genesis)
    registration = None if founded is None else founded.brokers.get(disk.ordinal)
    return registration is not None and registration.incarnation == disk.incarnation


def _state_of(genesis: Snapshot) -> RingState | None:
    """None: it is of another version, and so of no ring that this broker can be in."""
    try:
        return decode_state(genesis.state)
    except CorruptMetadataError:
        return None
