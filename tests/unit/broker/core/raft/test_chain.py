import pytest

from tailrace_broker.codec.configuration import decode_configuration, encode_configuration
from tailrace_broker.core.raft.chain import BLOCK_OVERHEAD_BYTES, Chain, recover_chain
from tailrace_broker.core.raft.quorum import is_quorum, quorum_height
from tailrace_broker.model.agreement import (
    INITIAL_ID,
    VOTERS,
    Block,
    BlockId,
    Configuration,
    DiskId,
)
from tailrace_broker.model.errors import CorruptMetadataError
from tests.support.raft.raft_world import disk_id

A, B, C, D, E = map(disk_id, range(5))
CONFIGURATION = Configuration((A, B, C), (A, B, D))


def block(term: int, height: int, parent: tuple[int, int], **fields: object) -> Block:
    return Block(BlockId(term, height), BlockId(*parent), **fields)  # type: ignore[arg-type]


def voters(term: int, height: int, parent: tuple[int, int], *disks: DiskId) -> Block:
    payload = encode_configuration(Configuration(disks))
    return block(term, height, parent, kind=VOTERS, payload=payload)


def chain_of(*blocks: Block, head: tuple[int, int]) -> Chain:
    chain = Chain(INITIAL_ID, Configuration((A,)))
    for each in blocks:
        chain.add(each)
    chain.move_head(BlockId(*head))
    chain.validate()
    return chain


# 0.0 - 1.1 - 1.2 - 1.3
#          \- 2.2 - 2.3
TREE = [
    block(1, 1, (0, 0)),
    block(1, 2, (1, 1)),
    block(1, 3, (1, 2)),
    block(2, 2, (1, 1)),
    block(2, 3, (2, 2)),
]


def test_a_chain_has_the_ancestors_of_its_head_and_knows_all_branches() -> None:
    chain = chain_of(*TREE, head=(1, 3))

    on_chain = [BlockId(*each) for each in ((0, 0), (1, 1), (1, 2), (1, 3))]
    beside = [BlockId(2, 2), BlockId(2, 3)]
    assert [chain.at(height) for height in range(4)] == on_chain
    assert all(map(chain.has, on_chain))
    assert not any(map(chain.has, [*beside, BlockId(1, 0), BlockId(1, 4), BlockId(-1, -1)]))
    assert all(map(chain.knows, on_chain + beside))
    assert list(chain) == TREE


def test_a_head_that_moves_to_another_branch_cuts_the_chain_there() -> None:
    chain = chain_of(*TREE, head=(1, 2))

    assert not chain.move_head(BlockId(1, 3))
    assert chain.move_head(BlockId(2, 3))
    assert chain.between(INITIAL_ID, chain.head) == (TREE[0], TREE[3], TREE[4])
    chain.validate()


def test_branches_that_do_not_descend_from_what_is_committed_are_forgotten() -> None:
    chain = chain_of(*TREE, head=(2, 3))

    assert chain.collect(BlockId(1, 1)) == 0
    assert chain.collect(BlockId(2, 2)) == 2
    assert list(chain) == [TREE[0], TREE[3], TREE[4]]
    assert chain.collect(BlockId(2, 3)) == 0


def test_branches_from_above_what_is_committed_stay() -> None:
    chain = chain_of(*TREE, block(3, 4, (2, 3)), head=(1, 3))

    chain.move_head(BlockId(2, 2))

    assert chain.collect(BlockId(2, 2)) == 2
    assert [each.id for each in chain] == [(1, 1), (2, 2), (2, 3), (3, 4)]


def test_blocks_behind_one_come_in_messages_of_bounded_size() -> None:
    blocks = [
        block(1, each, (min(each - 1, 1), each - 1), payload=bytes(100)) for each in range(1, 6)
    ]
    chain = chain_of(*blocks, head=(1, 5))
    each_bytes = 100 + BLOCK_OVERHEAD_BYTES

    assert chain.after(INITIAL_ID, 1) == ((blocks[0],), each_bytes)
    assert chain.after(INITIAL_ID, 2 * each_bytes) == (tuple(blocks[:2]), 2 * each_bytes)
    assert chain.after(BlockId(1, 2), 10_000) == (tuple(blocks[2:]), 3 * each_bytes)
    assert chain.after(BlockId(1, 5), 10_000) == ((), 0)


def test_the_chains_latest_block_of_voters_is_in_force() -> None:
    second = voters(1, 2, (1, 1), A, B)
    fourth = voters(1, 4, (1, 3), A, B, C)
    blocks = [block(1, 1, (0, 0)), second, block(1, 3, (1, 2)), fourth, block(2, 2, (1, 1))]
    chain = chain_of(*blocks, head=(1, 4))

    assert (chain.configuration.voters, chain.configuration_height) == ((A, B, C), 4)
    by_height = [chain.configuration_at(height).voters for height in range(5)]
    assert by_height == [(A,), (A,), (A, B), (A, B), (A, B, C)]
    chain.move_head(BlockId(1, 3))
    assert (chain.configuration.voters, chain.configuration_height) == ((A, B), 2)
    chain.move_head(BlockId(2, 2))
    assert (chain.configuration.voters, chain.configuration_height) == ((A,), 0)


def test_a_snapshot_takes_the_place_of_the_chain_up_to_it() -> None:
    chain = chain_of(
        block(1, 1, (0, 0)),
        voters(1, 2, (1, 1), B),
        *[voters(1, 3, (1, 2), C), block(1, 4, (1, 3)), block(2, 4, (1, 3))],
        head=(1, 4),
    )

    chain.rebase(BlockId(1, 2))

    chain.validate()
    assert (chain.base, chain.head) == ((1, 2), (1, 4))
    assert [each.id for each in chain] == [(1, 3), (1, 4), (2, 4)]
    assert (chain.configuration.voters, chain.configuration_at(2).voters) == ((C,), (B,))
    assert not chain.knows(BlockId(1, 1))

    chain.collect(chain.head)
    chain.rebase(chain.head)
    assert (chain.configuration.voters, chain.configuration_height) == ((C,), 4)


def test_a_start_finds_the_chain_among_dead_branches_and_blocks_reported_twice() -> None:
    old = block(0, 0, (0, -1))
    chain = recover_chain(
        INITIAL_ID,
        Configuration((A,)),
        [old, *TREE, *TREE[:2]],
        head=BlockId(2, 3),
        commit=BlockId(2, 2),
    )

    chain.validate()
    assert chain.head == BlockId(2, 3)
    assert [each.id for each in chain] == [(1, 1), (2, 2), (2, 3)]


# --- voters ---


def test_a_configuration_comes_back() -> None:
    assert decode_configuration(encode_configuration(CONFIGURATION)) == CONFIGURATION
    assert CONFIGURATION.is_joint
    assert CONFIGURATION.disks == {A, B, C, D}


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"\x90", encode_configuration(Configuration(()))]
)
def test_what_is_no_configuration_is_refused(payload: bytes) -> None:
    with pytest.raises(CorruptMetadataError, match="a block of voters"):
        decode_configuration(payload)


@pytest.mark.parametrize(("voter_count", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_majority_is_more_than_half(voter_count: int, needed: int) -> None:
    disks = (A, B, C, D, E)[:voter_count]
    configuration = Configuration(disks)

    for count in range(voter_count + 1):
        assert is_quorum(configuration, set(disks[:count])) == (count >= needed)
        heights = {disk: 7 if disk in disks[:count] else 3 for disk in disks}
        assert quorum_height(configuration, heights.__getitem__) == (7 if count >= needed else 3)


def test_while_voters_change_both_majorities_are_needed() -> None:
    configuration = Configuration((A, B, C), (C, D, E))

    assert is_quorum(configuration, {A, C, D})
    assert not is_quorum(configuration, {A, B})
    assert not is_quorum(configuration, {C, D, E})
    assert quorum_height(configuration, {A: 9, B: 8, C: 5, D: 4, E: 1}.__getitem__) == 4


def test_nobody_is_a_majority_of_nobody() -> None:
    assert not is_quorum(Configuration(()), {A})
