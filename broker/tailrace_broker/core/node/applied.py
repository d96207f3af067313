"""The replicated state as far as this broker has applied it, and what this process is in it."""

from collections.abc import Iterable
from typing import NamedTuple

from tailrace_broker.codec.commands import decode_command
from tailrace_broker.codec.ring_snapshot import decode_state
from tailrace_broker.core.ring.commands import apply_command
from tailrace_broker.model.agreement import COMMAND, Block, DiskId, Kept, Snapshot
from tailrace_broker.model.errors import CorruptMetadataError
from tailrace_broker.model.ring_state import Registration, RingState, Start


class Identity(NamedTuple):
    """A process: its disk, which start of it this is, and the starts to register it by."""

    disk: DiskId
    boot: int
    starts: tuple[Start, ...]


class AppliedState:
    """`state` is None while the disk belongs to no ring."""

    def __init__(self, identity: Identity) -> None:
        self.state: RingState | None = None
        self._ordinal = identity.disk.ordinal
        self._start = identity.starts[-1].id

    @property
    def registration(self) -> Registration | None:
        """The one of this very process, once it is applied."""
        known = None if self.state is None else self.state.brokers.get(self._ordinal)
        return known if known is not None and known.start == self._start else None

    def leads(self, range_id: int) -> int | None:
        """The epoch in which this process leads the range; None: it does not."""
        mine = self.registration
        if mine is None or self.state is None:
            return None
        wanted = self.state.ranges.get(range_id)
        if wanted is None or wanted.leader is None:
            return None
        return wanted.epoch if wanted.leader == wanted.replica_of(mine) else None

    def is_superseded_since(self, before: RingState | None) -> bool:
        """Whether another process took this one's registration, or it was retired, since then."""
        was = None if before is None else before.brokers.get(self._ordinal)
        return was is not None and was.start == self._start and self.registration is None

    def apply(self, blocks: Iterable[Block]) -> list[int]:
        """Apply committed blocks in their order; the ids of their commands."""
        state = self.state
        assert state is not None
        ids = []
        for block in blocks:
            if block.kind == COMMAND:
                stamped = decode_command(block.payload)
                state = apply_command(state, stamped)
                ids.append(stamped.id)
        self.state = state
        return ids

    def install(self, snapshot: Snapshot) -> None:
        """Replace the state by the one of a snapshot."""
        self.state = decode_state(snapshot.state)


def state_at(kept: Kept) -> RingState | None:
    """The state as a disk has it committed; None: it belongs to no ring. CorruptMetadataError."""
    if kept.snapshot is None:
        return None
    blocks = {block.id: block for block in kept.blocks}
    chain: list[Block] = []
    block_id = kept.commit
    while block_id != kept.snapshot.id:
        block = blocks.get(block_id)
        if block is None:
            raise CorruptMetadataError(f"the block {block_id} is missing of what the ring agreed")
        chain.append(block)
        block_id = block.parent
    state = decode_state(kept.snapshot.state)
    for block in reversed(chain):
        if block.kind == COMMAND:
            state = apply_command(state, decode_command(block.payload))
    return state
