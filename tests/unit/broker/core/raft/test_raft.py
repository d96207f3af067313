import pytest

from tailrace_broker.codec.configuration import encode_configuration
from tailrace_broker.core.raft.events import (
    Apply,
    Keep,
    RaftEffect,
    ReadReady,
    Send,
    Unreachable,
    Woken,
)
from tailrace_broker.core.raft.feeding import MESSAGE_BYTES_MAX
from tailrace_broker.core.raft.leading import OPEN_BYTES_MAX, READS_MAX
from tailrace_broker.model.agreement import (
    COMMAND,
    INITIAL_ID,
    NOTHING,
    VOTERS,
    Block,
    BlockId,
    Configuration,
    Head,
    Stored,
    Term,
)
from tailrace_broker.model.messages import (
    Append,
    AppendAnswered,
    Follow,
)
from tests.support.raft.raft_world import TIMING, World, disk_id, hear, sent

A, B, C, D = map(disk_id, range(4))
FIRST = BlockId(1, 1)


def replies(effects: list[RaftEffect]) -> list[tuple[bool, BlockId]]:
    return [
        (message.is_accepted, message.head)
        for message in sent(effects)
        if isinstance(message, AppendAnswered)
    ]


def block(term: int, height: int, parent: BlockId, payload: bytes = b"") -> Block:
    return Block(BlockId(term, height), parent, COMMAND, payload)


def append(
    term: int, *blocks: Block, parent: BlockId = INITIAL_ID, commit: BlockId = INITIAL_ID
) -> Append:
    """Of A, a leader."""
    return Append(term, A, blocks[0].parent if blocks else parent, blocks, commit, round=1)


# --- what is committed ---


def test_a_command_is_applied_by_all(world: World) -> None:
    world.propose(0, b"one")
    world.propose(0, b"two")
    world.settle()

    assert {node.state for node in world.nodes.values()} == {b"one\ntwo\n"}
    assert world[0].matched == {B: BlockId(1, 3), C: BlockId(1, 3)}
    assert world[0].heard_at_ms == {B: world.now_ms, C: world.now_ms}


def test_a_block_is_committedly_when_enough_disks_have_it(world: World) -> None:
    world.propose(0, b"one")
    world.deliver()

    assert world.nodes[0].write() == []
    assert replies(world.nodes[1].write()) == [(True, BlockId(1, 2))]
    assert world[0].commit == FIRST
    world.deliver()
    assert world[0].commit == BlockId(1, 2)
    assert world[0].applied == FIRST
    assert [type(effect) for effect in world.nodes[0].write()] == [Apply]


def test_the_leaders_own_block_counts_only_when_it_is_durable(world: World) -> None:
    world.nodes[2].stop()
    world.propose(0, b"one")
    world.deliver()
    world.nodes[1].write()
    world.deliver()

    assert world[0].commit == FIRST
    world.nodes[0].write()
    assert world[0].commit == BlockId(1, 2)


def test_what_a_disk_has_by_another_branch_is_not_counted(world: World) -> None:
    world.propose(0, b"one")
    world.nodes[0].write()

    hear(world, 0, AppendAnswered(1, B, True, BlockId(0, 2), FIRST, 1))

    assert world[0].commit == world[0].matched[B] == FIRST


def test_a_block_of_an_older_term_is_committedly_with_one_of_the_leaders_own(world: World) -> None:
    """Figure 8 of the Raft paper."""
    world.propose(0, b"one")
    world.settle_node(0)
    world.nodes[0].stop()
    world.nodes[0].start()
    world.now_ms = world[0].wake_at_ms
    world.nodes[0].step(Woken())
    while world[0].role != "leader":
        world.deliver()
        for node in world.nodes.values():
            node.write()
    world.mail.clear()

    hear(world, 0, AppendAnswered(2, B, True, BlockId(1, 2), FIRST, 1))

    assert world[0].commit == FIRST
    assert world.rules["commit.own_term_only"] == 1
    world.settle_node(0)
    hear(world, 0, AppendAnswered(2, B, True, BlockId(2, 3), FIRST, 1))
    assert world[0].commit == BlockId(2, 3)


def test_acknowledgements_come_in_bunches(world: World) -> None:
    for number in range(3):
        world.propose(0, b"%d" % number)
    world.deliver()

    effects = world.nodes[1].write(3)

    assert replies(effects) == [(True, BlockId(1, 4))]


# --- following ---


def test_a_head_moves_to_the_leaders_branch_and_the_other_one_is_forgotten(world: World) -> None:
    world.propose(0, b"lost")
    world.deliver()
    world.settle_node(1)
    assert world[1].head == BlockId(1, 2)
    other = Block(BlockId(2, 2), FIRST)

    effects = hear(world, 1, Append(2, C, FIRST, (other,), FIRST, 1))

    assert effects == [Keep(effects[0].number, (Term(2), Stored(other), Head(other.id)))]  # type: ignore[union-attr]
    assert (world[1].head, world.rules["head.switched"]) == (other.id, 1)
    hear(world, 1, Append(2, C, other.id, (), other.id, 1))
    assert world.rules["branch.collected"] == 1


def test_blocks_on_an_unknown_one_are_refused_with_what_is_durable(world: World) -> None:
    unknown = block(1, 5, BlockId(1, 4))

    assert replies(hear(world, 1, append(1, unknown))) == [(False, FIRST)]
    assert world.rules["append.refused"] == 1


@pytest.mark.parametrize(
    "blocks",
    [
        (block(1, 3, FIRST),),
        (block(1, 2, BlockId(1, 0)),),
        (block(0, 2, FIRST),),
        (Block(BlockId(1, 2), FIRST, VOTERS, b"x"),),
        (Block(BlockId(1, 2), FIRST, VOTERS, encode_configuration(Configuration(()))),),
    ],
)
def test_what_is_no_chain_is_not_answered(world: World, blocks: tuple[Block, ...]) -> None:
    assert hear(world, 1, Append(1, A, FIRST, blocks, INITIAL_ID, 1)) == []
    assert world.rules["append.malformed"] == 1


def test_a_late_message_moves_nothing_back(world: World) -> None:
    world.propose(0, b"one")
    late = world.mail[0][2]
    world.propose(0, b"two")
    world.settle()

    first = Append(1, A, INITIAL_ID, (), INITIAL_ID, 1)
    assert replies(hear(world, 1, first)) == [(True, BlockId(1, 3))]
    assert replies(hear(world, 1, late)) == [(True, BlockId(1, 3))]
    assert world.rules["append.old"] == 2
    assert world[1].head == BlockId(1, 3)


def test_blocks_that_are_known_in_part_are_taken_from_there_on(world: World) -> None:
    first = world.nodes[1].disk.kept().blocks[0]
    second = block(1, 2, FIRST)

    effects = hear(world, 1, append(1, first, second))

    assert [effect.records for effect in effects if isinstance(effect, Keep)] == [
        (Stored(second), Head(second.id))
    ]


def test_blocks_that_are_on_their_way_to_the_disk_are_not_kept_again(world: World) -> None:
    second = block(1, 2, FIRST)
    third = block(1, 3, second.id)
    hear(world, 1, append(1, second))

    effects = hear(world, 1, append(1, second, third))

    assert [effect.records for effect in effects if isinstance(effect, Keep)] == [
        (Stored(third), Head(third.id))
    ]
    assert replies(hear(world, 1, append(1, second, third))) == [(True, FIRST)]


def test_what_contradicts_what_is_committed_is_refused(world: World) -> None:
    other = block(0, 1, INITIAL_ID)

    assert replies(hear(world, 1, append(1, other))) == [(False, FIRST)]
    assert replies(hear(world, 1, append(1, parent=other.id))) == [(False, FIRST)]
    assert world.rules["commit.refused"] == 2


def test_only_what_is_on_the_own_chain_is_learnt_to_be_committed(world: World) -> None:
    """A heartbeat may name a block of a branch that the head is not on yet."""
    hear(world, 1, append(1, block(1, 2, FIRST)))
    side = Block(BlockId(2, 2), FIRST)
    hear(world, 1, Append(2, C, FIRST, (side,), FIRST, 1))

    hear(world, 1, Append(2, C, BlockId(1, 2), (), BlockId(2, 5), 1))

    assert world[1].commit == FIRST


# --- feeding ---


def test_lost_blocks_are_sent_again_from_where_the_follower_stands(world: World) -> None:
    world.propose(0, b"one")
    world.mail.clear()
    world.propose(0, b"two")
    world.settle()

    assert {node.state for node in world.nodes.values()} == {b"one\ntwo\n"}


def test_what_was_sent_to_others_is_not_lost_with_a_connection(world: World) -> None:
    world.propose(0, b"one")
    world.mail.clear()
    world.nodes[0].step(Unreachable(B.ordinal))
    world.propose(0, b"two")

    appends = [(to, each) for _, to, each in world.mail if isinstance(each, Append)]
    assert {to: len(each.blocks) for to, each in appends} == {1: 2, 2: 1}


def test_refusals_of_what_was_sent_before_are_old_news(world: World) -> None:
    world.propose(0, b"one")
    refusal = AppendAnswered(1, B, False, FIRST, FIRST, 0)

    first = sent(hear(world, 0, refusal))
    second = sent(hear(world, 0, refusal))

    assert [len(each.blocks) for each in first if isinstance(each, Append)] == [1]
    assert second == []


def test_a_connection_that_breaks_loses_what_was_on_its_way(world: World) -> None:
    world.propose(0, b"one")
    world.mail.clear()
    world.lose_connection(0, 1)
    world.propose(0, b"two")

    to_b = [message for _, ordinal, message in world.mail if ordinal == 1]
    assert [len(each.blocks) for each in to_b if isinstance(each, Append)] == [2]


def test_so_much_is_on_its_way_and_no_more(world: World) -> None:
    payload = bytes(MESSAGE_BYTES_MAX // 2)
    for _ in range(12):
        world.propose(0, payload)
    world.settle()
    world.nodes[1].stop()
    count = OPEN_BYTES_MAX // len(payload) + 9

    for _ in range(count):
        world.propose(0, payload)
        world.settle()

    assert len(world.nodes[2].state) == (count + 12) * (len(payload) + 1)
    progress = world[0]._leading.progress[B]  # type: ignore[union-attr]
    assert not progress.has_room


def test_more_is_not_taken_while_too_much_is_open(world: World) -> None:
    world.nodes[1].stop()
    world.nodes[2].stop()
    payload = bytes(OPEN_BYTES_MAX // 4)
    heads = []
    for _ in range(5):
        world.propose(0, payload)
        heads.append(world[0].head.height)

    assert heads == [2, 3, 4, 4, 4]
    assert world.rules["propose.refused"] == 2


def test_an_idle_leader_says_one_thing_to_each_in_an_interval(world: World) -> None:
    world.run(TIMING.heartbeat_ms)
    world.mail.clear()
    world.now_ms = world[0].wake_at_ms

    effects = world.nodes[0].step(Woken())

    assert [
        (effect.ordinal, type(effect.message)) for effect in effects if isinstance(effect, Send)
    ] == [
        (1, Append),
        (2, Append),
    ]
    assert world[0].wake_at_ms == world.now_ms + TIMING.heartbeat_ms
    assert world.nodes[0].step(Woken()) == []


def test_who_follows_none_is_asked_in_vain(world: World) -> None:
    assert world.propose(1, b"one") == []
    assert world.ask_read(1, 7) == []
    assert world.change_voters(1, B) == []
    assert hear(world, 1, Follow(1, D, NOTHING)) == []
    assert world.rules["asked.no_leader"] >= 4


def test_an_acknowledgement_of_an_older_term_is_not_counted(world: World) -> None:
    assert hear(world, 0, AppendAnswered(0, B, True, FIRST, FIRST, 1)) == []
    assert world.rules["stale.dropped"] == 1


def test_who_has_committed_something_else_is_not_fed(world: World) -> None:
    strange = BlockId(9, 1)
    hear(world, 0, AppendAnswered(1, D, False, strange, strange, 5))

    assert world.rules["commit.unknown"] == 1
    assert world[0].matched[D] == NOTHING


# --- reads ---


def test_a_read_waits_for_a_round_that_began_after_it(world: World) -> None:
    assert len(sent(world.ask_read(0, 1))) == 2
    assert world.ask_read(0, 2) == []
    answers = [message for _, _, message in world.mail]
    world.mail.clear()
    assert {message.round for message in answers if isinstance(message, Append)} == {1}

    first = hear(world, 0, AppendAnswered(1, B, True, FIRST, FIRST, 1))
    assert ReadReady(1, 1) in first
    assert {message.round for message in sent(first) if isinstance(message, Append)} == {2}
    assert ReadReady(2, 1) in hear(world, 0, AppendAnswered(1, C, True, FIRST, FIRST, 2))


def test_who_votes_alone_reads_at_once() -> None:
    world = World(1)
    world.nodes[0].step(Woken())
    assert world.ask_read(0, 1) == []  # nothing of its own term is committed yet

    world.settle()

    assert world.nodes[0].reads == {1: 1}
    assert world.ask_read(0, 2) == [ReadReady(2, 1)]


def test_more_reads_are_not_taken_while_too_many_wait(world: World) -> None:
    for request in range(READS_MAX + 1):
        world.ask_read(0, request)
    world.settle()

    assert len(world.nodes[0].reads) == READS_MAX
    assert world.rules["read.refused"] == 1
