"""What a disk knows in the consensus machine, whatever its role; and what a step does with it."""

from collections import Counter
from typing import NamedTuple

from tailrace_broker.core.raft.chain import Chain, recover_chain
from tailrace_broker.core.raft.disk import Disk, Reply
from tailrace_broker.core.raft.events import Apply, Install, RaftEffect, Send
from tailrace_broker.core.raft.ticks import TICK_MS
from tailrace_broker.model.agreement import (
    NOTHING,
    Block,
    BlockId,
    Configuration,
    DiskId,
    Kept,
    Snapshot,
    Term,
)
from tailrace_broker.model.generator import Generator
from tailrace_broker.model.messages import AppendAnswered, RaftMessage

NEVER_MS = 2**62
LONG_AGO_MS = -NEVER_MS


class RaftTiming(NamedTuple):
    """All in ms. Without a leader for `election_ms` to twice that, a voter asks for votes.

    A disk that has not ended a write within `disk_stall_ms` is stalled: who leads leads no more,
    and who follows is silent, so that it is fenced.
    """

    heartbeat_ms: int = TICK_MS
    election_ms: int = 1000
    disk_stall_ms: int = 10_000


class RaftState:
    """The blocks, the term and the vote, and what this step has done so far.

    `commit`: the last committed block; `applied`: the durable part. `installing`: a snapshot
    is on its way to the disk; until it is there, nothing is built on it.
    """

    def __init__(
        self,
        me: DiskId,
        kept: Kept,
        timing: RaftTiming,
        generator: Generator,
        now_ms: int,
        rules: Counter[str],
    ) -> None:
        self.me = me
        self.timing = timing
        self.rules = rules
        self.now_ms = now_ms
        self.term = kept.term.term
        self.vote = kept.term.vote
        self.snapshot = kept.snapshot
        self.chain = _recover(kept)
        self.commit = self.applied = kept.commit
        self.disk = Disk(self.chain.head, kept.blocks)
        self.is_installing = False
        self.is_data_stalled = False  # a write of data does not end, as the shell says
        self.leader: DiskId | None = None
        self.heard_at_ms = LONG_AGO_MS  # the leader
        self.effects: list[RaftEffect] = []
        self._generator = generator
        self.election_at_ms = now_ms
        if self.chain.configuration.disks != {me}:
            self.wait_for_leader()

    @property
    def is_voter(self) -> bool:
        """Return whether it votes by the configuration in force."""
        return self._votes_in(self.chain.configuration)

    @property
    def may_stand(self) -> bool:
        """Return whether it may be a candidate.

        A removed voter may until its removal is committed.
        """
        chain = self.chain
        if self._votes_in(chain.configuration):
            return True
        height = chain.configuration_height
        return height > self.commit.height and self._votes_in(chain.configuration_at(height - 1))

    @property
    def is_alone(self) -> bool:
        """It votes alone, and that is committed: before, others may count votes in another way."""
        chain = self.chain
        return (
            chain.configuration.disks == {self.me}
            and chain.configuration_height <= self.commit.height
        )

    def _votes_in(self, configuration: Configuration) -> bool:
        return self.me in configuration.voters or self.me in configuration.next_voters

    # --- time ---

    def wait_for_leader(self) -> None:
        """Wait for a leader, for an election's time from now on."""
        wait_ms = self._generator.randint(self.timing.election_ms, 2 * self.timing.election_ms)
        self.election_at_ms = self.now_ms + wait_ms

    def miss_leader(self) -> None:
        """It seems to be gone: wait just long enough that not all begin at once."""
        self.leader = None
        self.heard_at_ms = LONG_AGO_MS
        self.hurry()

    def hurry(self) -> None:
        """Hold an election soon."""
        wait_ms = self._generator.randint(0, self.timing.heartbeat_ms // 2)
        self.election_at_ms = min(self.election_at_ms, self.now_ms + wait_ms)

    def retry_soon(self, least_ms: int = 0) -> None:
        """Draw the time of the next candidacy, not before `least_ms`."""
        heartbeat_ms = self.timing.heartbeat_ms
        wait_ms = least_ms + self._generator.randint(heartbeat_ms // 2, heartbeat_ms)
        self.election_at_ms = min(self.election_at_ms, self.now_ms + wait_ms)

    @property
    def hears_leader(self) -> bool:
        """It has spoken within an election's time."""
        return self.now_ms - self.heard_at_ms < self.timing.election_ms

    @property
    def is_disk_stalled(self) -> bool:
        """A write does not end, of data or metadata; who votes alone waits for it, however long."""
        since_ms = self.disk.waits_since_ms
        if self.is_alone:
            return False
        is_old = since_ms is not None and self.now_ms - since_ms > self.timing.disk_stall_ms
        return is_old or self.is_data_stalled

    # --- term and vote ---

    def enter_term(self, term: int, vote: DiskId | None = None) -> None:
        """A newer one, or the vote in this one."""
        assert term > self.term or (term == self.term and self.vote is None), (self.term, term)
        if term > self.term:
            self.leader = None
            self.heard_at_ms = LONG_AGO_MS
        self.term, self.vote = term, vote
        self.disk.keep_term(Term(term, vote))

    # --- the chain ---

    def append(self, block: Block) -> None:
        """Append a block to the head."""
        self.chain.add(block)
        self.disk.keep_block(block)
        self.move_head(block.id)

    def move_head(self, head: BlockId) -> None:
        """Move the head to a known block."""
        if self.chain.move_head(head):
            self.rules["head.switched"] += 1
        self.disk.keep_head(head)

    def advance_commit(self, commit: BlockId) -> None:
        """Advance the commit: the chain up to there is committed."""
        assert commit.height > self.commit.height, (self.commit, commit)
        assert self.chain.has(commit), (self.chain.head, commit)
        self.disk.keep_commit(commit, self.chain.between(self.commit, commit))
        self.commit = commit
        collected_count = self.chain.collect(commit)
        if collected_count:
            self.rules["branch.collected"] += collected_count

    def install(self, snapshot: Snapshot) -> None:
        """Replace all blocks; no promise of this disk names any that the snapshot lacks."""
        self.snapshot = snapshot
        self.chain = Chain(snapshot.id, snapshot.configuration)
        self.commit = snapshot.id
        self.is_installing = True
        self.disk.replace(snapshot, Term(self.term, self.vote))

    # --- messages ---

    def send(self, ordinal: int, message: RaftMessage) -> None:
        """Send a message at once: it promises nothing."""
        self.effects.append(Send(ordinal, message))

    def promise(self, ordinal: int, message: RaftMessage) -> None:
        """Send a message once all that this disk has to keep is durable."""
        self.disk.hold(self.term, Send(ordinal, message))

    def send_term(self, ordinal: int, message: RaftMessage) -> None:
        """A message that promises the term and nothing more."""
        if self.disk.is_term_durable:
            self.send(ordinal, message)
        else:
            self.promise(ordinal, message)

    def reply(self, ordinal: int, round: int, *, is_accepted: bool) -> None:
        """Reply to an Append with what is durable now: the leader learns how far this disk is."""
        reply = Reply(ordinal, self.term, round, is_accepted)
        if self.disk.is_term_durable:
            self._answer(reply)
        else:
            self.disk.hold_reply(reply)

    def promise_reply(self, ordinal: int, round: int) -> None:
        """Reply to an Append whose blocks are still being written."""
        self.disk.hold_reply(Reply(ordinal, self.term, round, True))

    # --- the end of a step ---

    def written(self, number: int) -> None:
        """Note that all is durable up to there."""
        blocks: tuple[Block, ...] = ()
        reply: Reply | None = None
        for write in self.disk.done(number):
            if write.snapshot is not None:
                self._apply(blocks)
                blocks = ()
                self.is_installing = False
                self.applied = write.snapshot.id
                self.effects.append(Install(write.snapshot))
            if write.blocks:
                blocks += write.blocks
                self.applied = blocks[-1].id
            self._release(write.messages)
            reply = write.reply or reply
        self._apply(blocks)
        self._answer_held(reply)

    def close_step(self) -> list[RaftEffect]:
        """Return the effects of the step. Writes come first."""
        kept, free = self.disk.close(self.chain.head, self.now_ms)
        if free is not None:
            self._release(free.messages)
            self._answer_held(free.reply)
        effects = self.effects
        self.effects = []
        if kept is not None:
            effects.insert(0, kept)
        return effects

    def _apply(self, blocks: tuple[Block, ...]) -> None:
        if blocks:
            self.effects.append(Apply(blocks))

    def _release(self, messages: list[tuple[int, Send]]) -> None:
        """Send the messages that waited; not those of an earlier term, nor while a disk stalls."""
        for term, message in messages:
            if self.is_disk_stalled:
                self.rules["disk.silent"] += 1
            elif term == self.term:
                self.effects.append(message)
            else:
                self.rules["promise.dropped"] += 1

    def _answer_held(self, reply: Reply | None) -> None:
        if reply is not None and reply.term == self.term:
            self._answer(reply)

    def _answer(self, reply: Reply) -> None:
        if self.is_disk_stalled:
            self.rules["disk.silent"] += 1
            return
        message = AppendAnswered(
            reply.term, self.me, reply.is_accepted, self.disk.head, self.applied, reply.round
        )
        self.send(reply.ordinal, message)


def _recover(kept: Kept) -> Chain:
    if kept.snapshot is None:
        return Chain(NOTHING, Configuration(()))
    return recover_chain(
        kept.snapshot.id,
        kept.snapshot.configuration,
        kept.blocks,
        head=kept.head,
        commit=kept.commit,
    )
