"""Chained Raft: brokers agree on one chain of blocks. A machine; its events: `core.raft_events`.

Raft's rules, on a tree of blocks in place of a list of entries:

- A term and a vote are on disk before they are sent, and so is a block before it is acknowledged. A
  vote needs a head at least as new, first by term, then by height.
- A leader's first block is its own and empty. A block is committed when it is of the leader's own
  term and enough voters have it, and with it are its ancestors. Votes and acknowledgements count by
  the disk that gives them, and acknowledgements by the block that they name.
- A head moves for the leader of the current term only. A branch is never overwritten: it is
  forgotten when something else is committed.
- Whoever is to be a candidate asks first whether it would win; a leader that enough voters do
  not answer steps down. A restarted voter never leads in the term that it finds on its disk.
- Voters change by way of both majorities, to disks that have all that is committed.

This file decides what a message's term means and who takes what; `raft_following`, `raft_election`
and `raft_leading` are the roles, `raft_state` and `raft_disk` what they share.
"""

from collections import Counter
from collections.abc import Mapping
from typing import assert_never

from tailrace_broker.codec.configuration import encode_configuration
from tailrace_broker.core.raft.election import Election, answer_pre_vote, answer_vote
from tailrace_broker.core.raft.events import (
    AskRead,
    ChangeVoters,
    Compacted,
    Durable,
    Initialize,
    Propose,
    RaftEffect,
    RaftEvent,
    Received,
    RecoverAlone,
    Unreachable,
    Woken,
)
from tailrace_broker.core.raft.following import Following
from tailrace_broker.core.raft.leading import Leading
from tailrace_broker.core.raft.state import NEVER_MS, RaftState
from tailrace_broker.core.raft.state import RaftTiming as RaftTiming
from tailrace_broker.model.agreement import (
    EMPTY,
    VOTERS,
    Block,
    BlockId,
    Configuration,
    DiskId,
    Kept,
    Snapshot,
    Term,
)
from tailrace_broker.model.generator import Generator
from tailrace_broker.model.messages import (
    Append,
    AppendAnswered,
    Follow,
    RaftMessage,
    SliceTaken,
    SnapshotSlice,
    VoteAnswered,
    VoteAsked,
)

COMPACT_BYTES = 1024 * 1024
# A recovery by hand is above all terms that the lost voters may have entered meanwhile.
RECOVERY_TERMS = 1000


class Raft:
    """One disk's part. `Woken` is due at `wake_at_ms`.

    `rules` counts what was needed, so that tests show what they reach.
    """

    def __init__(
        self,
        me: DiskId,
        kept: Kept,
        timing: RaftTiming,
        generator: Generator,
        now_ms: int,
        rules: Counter[str],
        *,
        compact_bytes: int,
    ) -> None:
        """`compact_bytes`: a snapshot is asked for when about so much has been kept since."""
        self._state = RaftState(me, kept, timing, generator, now_ms, rules)
        self._following = Following(self._state)
        self._election: Election | None = None
        self._leading: Leading | None = None
        self._compact_bytes = compact_bytes
        self._at_start = self._state.chain.between(self._state.chain.base, self._state.commit)
        self.wake_at_ms = self._next_wake_ms()

    # --- views ---

    @property
    def term(self) -> int:
        """The newest that it has seen."""
        return self._state.term

    @property
    def role(self) -> str:
        """follower, candidate or leader; a learner is a follower."""
        if self._leading is not None:
            return "leader"
        return "follower" if self._election is None else "candidate"

    @property
    def leader(self) -> DiskId | None:
        """Return the leader of this term, as long as it is heard."""
        return self._state.leader

    @property
    def configuration(self) -> Configuration:
        """Return who votes; without a ring nobody does."""
        return self._state.chain.configuration

    @property
    def head(self) -> BlockId:
        """The end of its chain."""
        return self._state.chain.head

    @property
    def commit(self) -> BlockId:
        """Return up to where this disk knows that its chain is committed."""
        return self._state.commit

    @property
    def applied(self) -> BlockId:
        """Return the last block that is durably committed here and was handed out to be applied."""
        return self._state.applied

    @property
    def is_established(self) -> bool:
        """It leads, and all that was committed before is committed in its chain."""
        return self._leading is not None and self._leading.is_established

    @property
    def is_voter(self) -> bool:
        """Return whether it votes by the configuration in force."""
        return self._state.is_voter

    @property
    def is_silent(self) -> bool:
        """Its disk has stalled, as of the last step: others are not to count on it."""
        return self._state.is_disk_stalled

    def note_data(self, *, is_stalled: bool) -> None:
        """Whether a write of the data is too old; the metadata's own it knows itself."""
        self._state.is_data_stalled = is_stalled

    @property
    def heard_at_ms(self) -> Mapping[DiskId, int]:
        """Return, of a leader, when each other disk last answered.

        Before it did: when this one began to lead for a voter, ages ago for a learner.
        """
        if self._leading is None:
            return {}
        return {disk: its.heard_at_ms for disk, its in self._leading.progress.items()}

    @property
    def matched(self) -> Mapping[DiskId, BlockId]:
        """Return, of a leader, the last block of its chain that is durable on each other disk."""
        if self._leading is None:
            return {}
        return {disk: its.matched for disk, its in self._leading.progress.items()}

    def applied_blocks_at_start(self) -> tuple[Block, ...]:
        """Return the blocks above the snapshot on disk at the start, up to the commit there."""
        return self._at_start

    def validate(self) -> None:
        """Check what is always true."""
        state = self._state
        state.chain.validate()
        assert state.chain.has(state.commit), (state.chain.head, state.commit)
        assert state.applied.height <= state.commit.height, (state.applied, state.commit)
        assert state.disk.durable <= state.disk.number
        assert self._leading is None or self._election is None
        if self._leading is not None:
            assert state.chain.head.term == state.term, (state.chain.head, state.term)
            assert state.leader == state.me
            for progress in self._leading.progress.values():
                is_old = progress.matched.height < state.chain.base.height
                assert is_old or state.chain.has(progress.matched), progress.matched
        if self._election is not None:
            assert state.leader is None

    # --- the machine ---

    def step(self, event: RaftEvent, now_ms: int) -> list[RaftEffect]:
        """Take in what happened; the effects are to be done in their order."""
        state = self._state
        assert now_ms >= state.now_ms, (state.now_ms, now_ms)
        state.now_ms = now_ms
        match event:
            case Received(message):
                self._received(message)
            case Durable(number):
                self._written(number)
            case Woken():
                self._wake()
            case Unreachable(ordinal):
                self._unreachable(ordinal)
            case Compacted(snapshot):
                self._compacted(snapshot)
            case Initialize(initial):
                self._found(initial)
            case RecoverAlone():
                self._recover_alone()
            case Propose() | ChangeVoters() | AskRead():
                self._asked(event)
            case _:
                assert_never(event)
        if self._leading is not None and self._leading.is_over:
            self._step_down()
        effects = state.close_step()
        if state.disk.size_bytes >= self._compact_bytes:
            self._compact(effects)
        self.wake_at_ms = self._next_wake_ms()
        return effects

    def _next_wake_ms(self) -> int:
        state = self._state
        if self._leading is not None:
            return self._leading.heartbeat_at_ms
        if (state.leader is not None or state.may_stand) and not state.is_installing:
            return state.election_at_ms
        return NEVER_MS

    def _asked(self, event: Propose | ChangeVoters | AskRead) -> None:
        leading = self._leading
        if leading is None:
            self._state.rules["asked.no_leader"] += 1
            return
        match event:
            case Propose(payload):
                leading.propose(payload)
            case ChangeVoters(voters):
                leading.change_voters(voters)
            case AskRead(request):
                leading.ask_read(request)
            case _:
                assert_never(event)

    def _wake(self) -> None:
        state = self._state
        if state.now_ms < self.wake_at_ms:
            return
        if self._leading is not None:
            self._leading.wake()
        elif state.may_stand and not state.is_disk_stalled:
            self._stand()
        else:
            state.leader = None
            state.wait_for_leader()

    def _unreachable(self, ordinal: int) -> None:
        state = self._state
        # Who has this one's vote may have died before it could say that it leads.
        awaited = state.vote if state.leader is None else state.leader
        if self._leading is not None:
            self._leading.unreachable(ordinal)
        elif awaited is not None and awaited.ordinal == ordinal:
            state.rules["leader.unreachable"] += 1
            state.miss_leader()

    def _written(self, number: int) -> None:
        self._state.written(number)
        if self._leading is not None:
            self._leading.written()
        elif self._election is not None:
            self._election.written()
            self._count_votes()

    # --- terms and elections ---

    def _stand(self) -> None:
        """Ask for votes; who votes alone leads at once, since nobody else can in that term."""
        state = self._state
        self._election = Election(state)
        self._count_votes()

    def _count_votes(self) -> None:
        election = self._election
        assert election is not None
        if not election.is_won:
            return
        if election.is_pre:
            election.begin()
            if not self._state.is_alone:
                return
        self._lead()

    def _lead(self, kind: int = EMPTY, payload: bytes = b"") -> None:
        state = self._state
        self._election = None
        # Of a term that a restart may not find, nobody else must hear.
        number = 0 if state.disk.is_term_durable else state.disk.number + 1
        self._leading = Leading(state, kind=kind, payload=payload, number=number)

    def _step_down(self) -> None:
        state = self._state
        state.rules["leader.stepped_down"] += 1
        self._leading = None
        state.leader = None
        state.wait_for_leader()

    def _enter_term(self, term: int) -> None:
        """Somebody is in a newer one; whoever leads it will say so."""
        self._election = None
        if self._leading is not None:
            self._step_down()
        self._state.enter_term(term)

    def _hear_leader(self, leader: DiskId) -> bool:
        """Return whether this term's leader sent it; a message of an older term is ignored."""
        state = self._state
        if self._leading is not None or state.leader not in (None, leader):
            state.rules["leader.second"] += 1
            return False
        self._election = None
        state.leader = leader
        state.heard_at_ms = state.now_ms
        state.wait_for_leader()
        return True

    # --- messages ---

    def _received(self, message: RaftMessage) -> None:
        state = self._state
        if message.sender.ordinal == state.me.ordinal:
            state.rules["own.refused"] += 1  # of this broker's disk before, at best
            return
        if isinstance(message, VoteAsked):
            self._vote_asked(message)
            return
        if isinstance(message, VoteAnswered) and message.is_pre and message.is_granted:
            self._vote_answered(message)
            return
        if message.term > state.term:
            self._enter_term(message.term)
            if isinstance(message, VoteAnswered):
                state.hurry()
        match message:
            case Append() | SnapshotSlice():
                self._from_leader(message)
            case VoteAnswered():
                self._vote_answered(message)
            case AppendAnswered() | SliceTaken() | Follow():
                self._to_leader(message)
            case _:
                assert_never(message)

    def _vote_asked(self, message: VoteAsked) -> None:
        state = self._state
        if state.snapshot is None:
            state.rules["vote.no_ring"] += 1
        elif message.is_pre:
            if self._leading is None:
                answer_pre_vote(state, message, is_standing=self._election is not None)
            else:
                state.rules["prevote.refused"] += 1
                self._leading.missed(message.sender)
        elif message.term < state.term:
            self._refuse_stale(message.sender, VoteAnswered(state.term, state.me, False))
        else:
            if message.term > state.term:
                self._enter_term(message.term)
            answer_vote(state, message)
            if state.vote == message.sender:
                self._election = None  # it has only been asking whether it would win

    def _vote_answered(self, message: VoteAnswered) -> None:
        if self._election is None:
            return
        self._election.count(message)
        self._count_votes()

    def _from_leader(self, message: Append | SnapshotSlice) -> None:
        state = self._state
        if message.term < state.term:
            # No round: it could lead again by now, and count what it asked in an older term.
            refusal = AppendAnswered(state.term, state.me, False, state.disk.head, state.applied, 0)
            self._refuse_stale(message.sender, refusal)
        elif not self._hear_leader(message.sender):
            return
        elif isinstance(message, Append):
            self._following.append(message)
        else:
            self._following.take_slice(message)

    def _to_leader(self, message: AppendAnswered | SliceTaken | Follow) -> None:
        leading = self._leading
        if leading is None:
            self._state.rules["asked.no_leader"] += 1
        elif isinstance(message, Follow):
            leading.follow(message)
        elif message.term < self._state.term:
            self._state.rules["stale.dropped"] += 1
        elif isinstance(message, AppendAnswered):
            leading.appended(message)
        else:
            leading.slice_taken(message)

    def _refuse_stale(self, disk: DiskId, refusal: AppendAnswered | VoteAnswered) -> None:
        if self._state.is_disk_stalled and isinstance(refusal, AppendAnswered):
            self._state.rules["disk.silent"] += 1  # an answer to a leader is a heartbeat
            return
        self._state.rules["stale.refused"] += 1
        self._state.send_term(disk.ordinal, refusal)

    # --- snapshots and rings ---

    def _compact(self, effects: list[RaftEffect]) -> None:
        state = self._state
        is_busy = self._following.is_compacting or state.is_installing
        if is_busy or state.snapshot is None or state.applied.height <= state.snapshot.id.height:
            return
        state.rules["compaction.begun"] += 1
        self._following.is_compacting = True
        compact = state.disk.compact(
            base=state.applied,
            commit=state.commit,
            configuration=state.chain.configuration_at(state.applied.height),
            term=Term(state.term, state.vote),
            chain=state.chain,
            now_ms=state.now_ms,
        )
        effects.append(compact)

    def _compacted(self, snapshot: Snapshot) -> None:
        state = self._state
        assert self._following.is_compacting
        self._following.is_compacting = False
        state.rules["compaction.done"] += 1
        state.snapshot = snapshot
        state.chain.rebase(snapshot.id)

    def _found(self, initial: Snapshot) -> None:
        state = self._state
        if state.snapshot is not None:
            state.rules["found.refused"] += 1
            return
        state.rules["founded"] += 1
        state.install(initial)
        if initial.configuration.disks == {state.me}:
            state.election_at_ms = state.now_ms
        else:
            state.wait_for_leader()
            state.hurry()  # there is none to wait for

    def _recover_alone(self) -> None:
        """Recover from all that it has, committed or not: no other disk has more."""
        state = self._state
        if state.snapshot is None or state.is_installing:
            state.rules["recover.refused"] += 1
            return
        state.rules["recovered.alone"] += 1
        self._enter_term(state.term + RECOVERY_TERMS)
        state.enter_term(state.term, state.me)
        self._lead(VOTERS, encode_configuration(Configuration((state.me,))))
