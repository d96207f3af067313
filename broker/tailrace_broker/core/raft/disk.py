"""What the consensus machine has on disk, and what may be said or done only when it is there.

All that a step keeps is one write. Writes have numbers that grow by one; a promise waits for the
last of them, so that it never says more than a restart would find.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from tailrace_broker.core.raft.chain import BLOCK_OVERHEAD_BYTES, Chain
from tailrace_broker.core.raft.events import Compact, Keep, RaftEffect, Replace, Send
from tailrace_broker.model.agreement import (
    Block,
    BlockId,
    Commit,
    Configuration,
    Head,
    Record,
    Snapshot,
    Stored,
    Term,
)


class Reply(NamedTuple):
    """An answer to the leader of `term`; what it says of the disk is looked up when it goes."""

    ordinal: int
    term: int
    round: int
    is_accepted: bool


@dataclass(slots=True)
class PendingWrite:
    """A write, and what waits for it. `blocks` are applied then, after `snapshot` is installed."""

    head: BlockId
    number: int = 0
    asked_ms: int = 0
    snapshot: Snapshot | None = None
    blocks: tuple[Block, ...] = ()
    reply: Reply | None = None
    messages: list[tuple[int, Send]] = field(default_factory=list)  # with the term they belong to


class Disk:
    """Numbers the writes. `head`: what is durable; `durable`: the number up to which all is."""

    def __init__(self, head: BlockId, blocks: tuple[Block, ...]) -> None:
        """`blocks`: that it has at the start."""
        self.head = head
        self.number = 0
        self.durable = 0
        # Written since the last compaction, about.
        self.size_bytes = size_of(tuple(map(Stored, blocks)))
        self._term: Term | None = None
        self._term_number = 0
        self._records: list[Record] = []
        self._now = PendingWrite(head)  # of the step under way
        self._writes: deque[PendingWrite] = deque()

    # --- during a step ---

    @property
    def is_term_durable(self) -> bool:
        """The term and vote of now are on disk, so that others may hear of them."""
        return self._term is None and self._term_number <= self.durable

    @property
    def waits_since_ms(self) -> int | None:
        """Return when the oldest write that has not ended was requested; None: all is durable."""
        return self._writes[0].asked_ms if self._writes else None

    def keep_term(self, term: Term) -> None:
        """Keep this term, in place of any other that this step has set."""
        self._term = term

    def keep_block(self, block: Block) -> None:
        """It is in the chain's tree."""
        self._records.append(Stored(block))

    def keep_head(self, head: BlockId) -> None:
        """The chain ends there now."""
        self._records.append(Head(head))

    def keep_commit(self, commit: BlockId, blocks: tuple[Block, ...]) -> None:
        """These, up to `commit`, are applied as soon as that is durable."""
        self._records.append(Commit(commit))
        self._now.blocks += blocks

    def replace(self, snapshot: Snapshot, term: Term) -> None:
        """Replace all that is kept."""
        self._term = term
        self._records.clear()
        self._now.snapshot = snapshot

    def hold(self, term: int, message: Send) -> None:
        """Send it when all that has been kept, by this step too, is durable."""
        self._now.messages.append((term, message))

    def hold_reply(self, reply: Reply) -> None:
        """The same; a later one says all that those before it would."""
        self._now.reply = reply

    # --- at its end ---

    def close(self, head: BlockId, now_ms: int) -> tuple[RaftEffect | None, PendingWrite | None]:
        """End a step: what to write, and what need not wait since all is durable already."""
        now = self._now
        self._now = PendingWrite(head)
        if not self._has_records and now.snapshot is None:
            if not self._writes:
                return None, now
            last = self._writes[-1]
            last.messages += now.messages
            last.reply = now.reply or last.reply
            return None, None
        self.number += 1
        now.number, now.head, now.asked_ms = self.number, head, now_ms
        self._writes.append(now)
        records: tuple[Record, ...] = tuple(self._records)
        self._records.clear()
        if self._term is not None:
            records = (self._term, *records)
            self._term, self._term_number = None, self.number
        self.size_bytes += size_of(records)
        if now.snapshot is None:
            return Keep(self.number, records), None
        return Replace(self.number, now.snapshot, records), None

    def compact(
        self,
        *,
        base: BlockId,
        commit: BlockId,
        configuration: Configuration,
        term: Term,
        chain: Chain,
        now_ms: int,
    ) -> Compact:
        """Compact between steps: keep what is needed on top of a snapshot up to `base`."""
        assert not self._has_records
        blocks = (Stored(block) for block in chain if block.id.height > base.height)
        records: tuple[Record, ...] = (term, *blocks, Head(chain.head), Commit(commit))
        self.number += 1
        self._writes.append(PendingWrite(chain.head, self.number, now_ms))
        self.size_bytes = size_of(records)
        return Compact(self.number, base, configuration, records)

    def done(self, number: int) -> list[PendingWrite]:
        """It is durable up to there; what waited for that, in order."""
        done: list[PendingWrite] = []
        while self._writes and self._writes[0].number <= number:
            write = self._writes.popleft()
            self.durable, self.head = write.number, write.head
            done.append(write)
        return done

    @property
    def _has_records(self) -> bool:
        return bool(self._records) or self._term is not None


def size_of(records: tuple[Record, ...]) -> int:
    """About what they take on disk."""
    return sum(
        BLOCK_OVERHEAD_BYTES + (len(record.block.payload) if isinstance(record, Stored) else 0)
        for record in records
    )
