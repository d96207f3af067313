"""Votes: whom a disk gives its own, and how a candidate counts those that it gets."""

from tailrace_broker.core.raft.quorum import is_quorum
from tailrace_broker.core.raft.state import RaftState
from tailrace_broker.model.agreement import DiskId
from tailrace_broker.model.messages import VoteAnswered, VoteAsked


class Election:
    """A candidate's. First it asks who would vote for it (`is_pre`): nobody's term changes by that.

    Then it enters the term, votes for itself, and asks for votes when that is on disk.
    """

    def __init__(self, state: RaftState) -> None:
        self.is_pre = True
        self._state = state
        self._votes: set[DiskId] = {state.me}
        self._begun_ms = state.now_ms
        state.leader = None
        state.wait_for_leader()
        state.retry_soon()  # who still hears the leader may be about to miss it
        state.rules["prevote.begun"] += 1
        self._ask(VoteAsked(state.term + 1, state.me, state.chain.head, is_pre=True))

    def begin(self) -> None:
        """Enter the next term and ask for votes in it."""
        state = self._state
        self.is_pre = False
        self._votes.clear()  # its own counts when it is durable
        self._begun_ms = state.now_ms
        state.enter_term(state.term + 1, state.me)
        state.wait_for_leader()
        state.rules["election.begun"] += 1
        self._ask(VoteAsked(state.term, state.me, state.chain.head))

    def count(self, answer: VoteAnswered) -> None:
        """A vote that was given, or refused; of any term."""
        state = self._state
        asked_term = state.term + self.is_pre
        if answer.is_pre != self.is_pre or answer.term != asked_term:
            return
        if answer.is_granted:
            self._votes.add(answer.sender)
        else:
            # Split votes, perhaps: this term may never have a leader. But others may be writing
            # theirs down, which takes about as long as this one's has taken.
            state.retry_soon(state.now_ms - self._begun_ms)

    def written(self) -> None:
        """Its own vote is perhaps durable now."""
        if self._state.disk.is_term_durable:
            self._votes.add(self._state.me)

    @property
    def is_won(self) -> bool:
        """Return whether enough disks have voted, or promised to."""
        return is_quorum(self._state.chain.configuration, self._votes)

    def _ask(self, message: VoteAsked) -> None:
        state = self._state
        for disk in sorted(state.chain.configuration.disks):
            if disk.ordinal == state.me.ordinal:
                continue
            if message.is_pre:
                state.send(disk.ordinal, message)
            else:
                state.promise(disk.ordinal, message)


def answer_pre_vote(state: RaftState, message: VoteAsked, *, is_standing: bool) -> None:
    """Yes, or silence; or the newer term, which the candidate has to know."""
    ordinal = message.sender.ordinal
    if message.term <= state.term:
        state.rules["prevote.stale"] += 1
        state.send_term(ordinal, VoteAnswered(state.term, state.me, False, is_pre=True))
    elif state.hears_leader:
        state.rules["prevote.refused"] += 1
    elif state.is_disk_stalled:  # the vote itself would not be there soon
        state.rules["disk.silent"] += 1
    elif message.head < state.chain.head:
        state.rules["prevote.old_head"] += 1
        state.hurry()
    elif is_standing and message.head == state.chain.head and message.sender < state.me:
        state.rules["prevote.tie"] += 1  # else both would win, and then split the votes
    else:
        state.rules["prevote.granted"] += 1
        state.send(ordinal, VoteAnswered(message.term, state.me, True, is_pre=True))


def answer_vote(state: RaftState, message: VoteAsked) -> None:
    """Answer in this disk's term; a leader or candidate of it has voted for itself."""
    ordinal, me = message.sender.ordinal, state.me
    if state.is_disk_stalled:  # whoever leads by it could not count on it
        state.rules["disk.silent"] += 1
    elif state.vote == message.sender:
        state.promise(ordinal, VoteAnswered(state.term, me, True))
    elif state.vote is None and message.head >= state.chain.head:
        state.enter_term(state.term, message.sender)
        state.wait_for_leader()
        state.rules["vote.granted"] += 1
        state.promise(ordinal, VoteAnswered(state.term, me, True))
    else:
        state.rules["vote.refused"] += 1
        state.send_term(ordinal, VoteAnswered(state.term, me, False))
