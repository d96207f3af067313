"""The blocks that a disk holds above its snapshot: a tree, and in it the chain up to the head.

The chain is kept as a list too, so that "what is at this height" and "is this block on it" cost the
same at any length. Blocks are added behind known ones only: who knows a block knows its ancestors.
"""

from collections.abc import Iterable, Iterator

from tailrace_broker.codec.configuration import decode_configuration
from tailrace_broker.model.agreement import VOTERS, Block, BlockId, Configuration

# What a block takes in a message or on disk beside its payload, about.
BLOCK_OVERHEAD_BYTES = 32
VALIDATED_COUNT = 16


class Chain:
    """Blocks above `base`, which represents all that a snapshot holds."""

    def __init__(self, base: BlockId, configuration: Configuration) -> None:
        self.base = base
        self.head = base
        self._base_configuration = configuration
        self._blocks: dict[BlockId, Block] = {}  # parents before their children
        self._path: list[Block] = []  # from the base, which is not in it, to the head
        self._voters: list[tuple[int, Configuration]] = []  # of the path, by height

    def __iter__(self) -> Iterator[Block]:
        """All blocks of all branches, parents before their children."""
        return iter(self._blocks.values())

    # --- what is there ---

    def knows(self, block_id: BlockId) -> bool:
        """Return whether the block is known, on whatever branch."""
        return block_id in self._blocks or block_id == self.base

    def has(self, block_id: BlockId) -> bool:
        """Return whether the head is the block or descends from it; below the base nobody knows."""
        index = block_id.height - self.base.height
        if index == 0:
            return block_id == self.base
        return 0 < index <= len(self._path) and self._path[index - 1].id == block_id

    def at(self, height: int) -> BlockId:
        """The block of the chain at this height, which is not below the base."""
        index = height - self.base.height
        return self._path[index - 1].id if index else self.base

    def between(self, low: BlockId, high: BlockId) -> tuple[Block, ...]:
        """The chain above `low` up to `high`; both are on it."""
        base_height = self.base.height
        return tuple(self._path[low.height - base_height : high.height - base_height])

    def after(self, block_id: BlockId, bytes_max: int) -> tuple[tuple[Block, ...], int]:
        """The chain behind a block of it, at least one and at most `bytes_max`; and their size."""
        start = block_id.height - self.base.height
        size_bytes = 0
        end = start
        for end in range(start, len(self._path)):
            block_bytes = len(self._path[end].payload) + BLOCK_OVERHEAD_BYTES
            if size_bytes and size_bytes + block_bytes > bytes_max:
                break
            size_bytes += block_bytes
        else:
            end += 1
        return tuple(self._path[start:end]), size_bytes

    # --- who votes ---

    @property
    def configuration(self) -> Configuration:
        """Return the configuration in force: the chain's latest, committed or not."""
        return self._voters[-1][1] if self._voters else self._base_configuration

    @property
    def configuration_height(self) -> int:
        """Return the height of the block that the configuration in force comes from."""
        return self._voters[-1][0] if self._voters else self.base.height

    def configuration_at(self, height: int) -> Configuration:
        """Return the configuration in force after the chain's block at this height."""
        for voters_height, configuration in reversed(self._voters):
            if voters_height <= height:
                return configuration
        return self._base_configuration

    # --- changes ---

    def add(self, block: Block) -> None:
        """Add a block to the tree; the head does not move."""
        assert self.knows(block.parent), (block.id, block.parent)
        assert block.id not in self._blocks, block.id
        self._blocks[block.id] = block

    def move_head(self, head: BlockId) -> bool:
        """Move the head; return whether the chain has lost blocks by it."""
        added: list[Block] = []
        fork = head
        while not self.has(fork):
            block = self._blocks[fork]
            added.append(block)
            fork = block.parent
        is_cut = fork != self.head
        del self._path[fork.height - self.base.height :]
        while self._voters and self._voters[-1][0] > fork.height:
            self._voters.pop()
        for block in reversed(added):
            self._path.append(block)
            if block.kind == VOTERS:
                self._voters.append((block.id.height, decode_configuration(block.payload)))
        self.head = head
        return is_cut

    def collect(self, committed: BlockId) -> int:
        """Forget the branches that do not descend from it; how many blocks that were."""
        if len(self._blocks) == len(self._path):
            return 0
        alive = {committed}
        kept: dict[BlockId, Block] = {}
        for block in self._blocks.values():
            if block.parent in alive:
                alive.add(block.id)
            elif not self.has(block.id):
                continue
            kept[block.id] = block
        collected_count = len(self._blocks) - len(kept)
        self._blocks = kept
        return collected_count

    def rebase(self, base: BlockId) -> None:
        """A snapshot holds all up to here, from which all branches descend."""
        index = base.height - self.base.height
        self._base_configuration = self.configuration_at(base.height)
        for block in self._path[:index]:
            del self._blocks[block.id]
        del self._path[:index]
        self._voters = [entry for entry in self._voters if entry[0] > base.height]
        self.base = base

    def validate(self) -> None:
        """The list is the tree's branch that ends at the head; of a long one, its end."""
        assert self.head == (self._path[-1].id if self._path else self.base), self.head
        assert len(self._path) == self.head.height - self.base.height
        assert len(self._blocks) >= len(self._path)
        start = max(0, len(self._path) - VALIDATED_COUNT)
        parent = self.at(self.base.height + start)
        for block in self._path[start:]:
            assert block.parent == parent, block.id
            assert block.id.height == parent.height + 1, block.id
            assert block.id.term >= parent.term, block.id
            parent = block.id


def recover_chain(
    base: BlockId,
    configuration: Configuration,
    blocks: Iterable[Block],
    *,
    head: BlockId,
    commit: BlockId,
) -> Chain:
    """Return the chain of a disk's blocks. Blocks may be there twice, and below the base."""
    chain = Chain(base, configuration)
    for block in blocks:
        if chain.knows(block.parent) and not chain.knows(block.id):
            chain.add(block)
    chain.move_head(head)
    assert chain.has(commit), (head, commit)
    chain.collect(commit)
    return chain
