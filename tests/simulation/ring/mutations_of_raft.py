"""Mutations of the consensus machine: each takes one of its rules away."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tailrace_broker.codec.configuration import encode_configuration
from tailrace_broker.core.raft import election as raft_election
from tailrace_broker.core.raft import leading as raft_leading
from tailrace_broker.core.raft import quorum, raft
from tailrace_broker.core.raft import state as raft_state
from tailrace_broker.core.raft.disk import Disk
from tailrace_broker.core.raft.election import Election
from tailrace_broker.core.raft.events import Apply
from tailrace_broker.core.raft.following import Following
from tailrace_broker.core.raft.leading import Leading
from tailrace_broker.core.raft.quorum import is_quorum
from tailrace_broker.core.raft.raft import Raft
from tailrace_broker.core.raft.state import RaftState
from tailrace_broker.model.agreement import BlockId, Configuration, DiskId, Kept
from tailrace_broker.model.messages import AppendAnswered, VoteAsked


def vote_not_synced(patch: pytest.MonkeyPatch) -> None:
    """What is promised is sent at once."""
    patch.setattr(RaftState, "promise", RaftState.send)


def term_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Disk, "keep_term", lambda self, term: None)


def own_term_commit_rule_off(patch: pytest.MonkeyPatch) -> None:
    """A leader commits blocks of older terms by counting them."""
    count = Leading._count

    def counted(self: Leading) -> None:
        state = self._state
        height = quorum.quorum_height(state.chain.configuration, self._height_of)
        if height > state.commit.height and state.chain.at(height).term != state.term:
            state.advance_commit(state.chain.at(height))
            return
        count(self)

    patch.setattr(Leading, "_count", counted)
    patch.setattr(Leading, "is_established", property(lambda self: True))


def commit_by_height_instead_of_block(patch: pytest.MonkeyPatch) -> None:
    """An acknowledgement counts for the leader's block at that height, whatever it names."""
    appended = Leading.appended

    def by_height(self: Leading, message: AppendAnswered) -> None:
        chain = self._state.chain
        height = max(chain.base.height, min(message.head.height, chain.head.height))
        appended(self, replace(message, head=chain.at(height)))

    patch.setattr(Leading, "appended", by_height)


def voters_changed_at_once(patch: pytest.MonkeyPatch) -> None:
    """Without joint consensus."""
    patch.setattr(
        raft_leading,
        "encode_configuration",
        lambda new: encode_configuration(Configuration(new.next_voters or new.voters)),
    )


def only_next_voters_count(patch: pytest.MonkeyPatch) -> None:
    """While voters change, the majority of those before is not asked."""

    def after(configuration: Configuration) -> Configuration:
        return Configuration(configuration.next_voters or configuration.voters)

    for module in (raft_election, raft_leading):
        patch.setattr(module, "is_quorum", lambda conf, disks: quorum.is_quorum(after(conf), disks))
    patch.setattr(
        raft_leading,
        "quorum_height",
        lambda conf, height_of: quorum.quorum_height(after(conf), height_of),
    )


def promise_from_an_uncommitted_block(patch: pytest.MonkeyPatch) -> None:
    """A follower takes all that it hears for committed."""
    learn = Following._learn_commit
    patch.setattr(Following, "_learn_commit", lambda self, commit, last: learn(self, last, last))


def promise_not_synced(patch: pytest.MonkeyPatch) -> None:
    """A block is applied before the disk knows that it is committed."""
    advance = RaftState.advance_commit

    def advanced(self: RaftState, commit: BlockId) -> None:
        blocks = self.chain.between(self.commit, commit)
        advance(self, commit)
        self.disk._now.blocks = ()
        self.applied = commit
        self.effects.append(Apply(blocks))

    patch.setattr(RaftState, "advance_commit", advanced)


def leader_counts_its_unfinished_write(patch: pytest.MonkeyPatch) -> None:
    height_of = Leading._height_of

    def height(self: Leading, disk: DiskId) -> int:
        state = self._state
        return state.chain.head.height if disk == state.me else height_of(self, disk)

    patch.setattr(Leading, "_height_of", height)


def follower_answers_before_its_write(patch: pytest.MonkeyPatch) -> None:
    def answer(self: RaftState, ordinal: int, round: int) -> None:
        head = self.chain.head
        self.send(ordinal, AppendAnswered(self.term, self.me, True, head, self.applied, round))

    patch.setattr(RaftState, "promise_reply", answer)


def head_is_commit_at_restart(patch: pytest.MonkeyPatch) -> None:
    """What is not known to be committed is forgotten."""
    recover = raft_state._recover
    patch.setattr(raft_state, "_recover", lambda kept: recover(_without_tail(kept)))


def stale_leaders_accepted(patch: pytest.MonkeyPatch) -> None:
    """A leader of an older term is followed."""
    from_leader = Raft._from_leader

    def accepted(self: Raft, message: Any) -> None:
        if message.term < self.term and self._leading is None:
            self._state.leader = None
            message = replace(message, term=self.term)
        from_leader(self, message)

    patch.setattr(Raft, "_from_leader", accepted)


def votes_counted_by_ordinal(patch: pytest.MonkeyPatch) -> None:
    """A disk that has lost its vote votes again."""

    def is_won(self: Election) -> bool:
        configuration = self._state.chain.configuration
        ordinals = {disk.ordinal for disk in self._votes}
        return is_quorum(configuration, {d for d in configuration.disks if d.ordinal in ordinals})

    patch.setattr(Election, "is_won", property(is_won))


def vote_compared_with_commit(patch: pytest.MonkeyPatch) -> None:
    """A candidate needs no more than what the voter knows to be committed."""

    def lenient(answer: Callable[..., None]) -> Callable[..., None]:
        def answered(state: RaftState, message: VoteAsked, **others: bool) -> None:
            if message.head >= state.commit:
                message = replace(message, head=max(message.head, state.chain.head))
            answer(state, message, **others)

        return answered

    for name in ("answer_vote", "answer_pre_vote"):
        patch.setattr(raft, name, lenient(getattr(raft_election, name)))


def _without_tail(kept: Kept) -> Kept:
    return replace(kept, head=kept.commit)
