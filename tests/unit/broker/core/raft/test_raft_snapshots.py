from msgspec.structs import replace

from tailrace_broker.core.raft.events import (
    Compact,
    Install,
    Keep,
    Propose,
    RecoverAlone,
    Replace,
    Send,
    Woken,
)
from tailrace_broker.core.raft.feeding import MESSAGE_BYTES_MAX
from tailrace_broker.core.raft.following import SNAPSHOT_BYTES_MAX
from tailrace_broker.model.agreement import (
    COMMAND,
    INITIAL_ID,
    NOTHING,
    Block,
    BlockId,
    Commit,
    Configuration,
    Head,
    Stored,
    Term,
)
from tailrace_broker.model.messages import (
    Append,
    AppendAnswered,
    Follow,
    RaftMessage,
    SliceTaken,
    SnapshotSlice,
)
from tests.support.raft.raft_world import (
    TIMING,
    MemoryDisk,
    Node,
    World,
    disk_id,
    hear,
    initial_of,
    sent,
)

A, B, C, D = map(disk_id, range(4))
FIRST = BlockId(1, 1)


def block(term: int, height: int, parent: BlockId, payload: bytes = b"") -> Block:
    return Block(BlockId(term, height), parent, COMMAND, payload)


def append(
    term: int, *blocks: Block, parent: BlockId = INITIAL_ID, commit: BlockId = INITIAL_ID
) -> Append:
    """Of A, a leader."""
    return Append(term, A, blocks[0].parent if blocks else parent, blocks, commit, round=1)


def state_of(node: Node, count: int, size_bytes: int = 1000) -> None:
    for number in range(count):
        node.world.propose(node.disk.id.ordinal, b"%d" % number + bytes(size_bytes))
        node.world.settle()


def test_what_lies_below_the_leaders_snapshot_comes_as_slices() -> None:
    world = World(1, compact_bytes=32)
    state_of(world.elect(), 200)
    world.add(MemoryDisk(B))

    world.run(1000)

    assert world.nodes[1].state == world.nodes[0].state
    assert world.rules["snapshot.sent"] == world.rules["snapshot.installed"] == 1
    assert len(world.nodes[0].state) > 3 * MESSAGE_BYTES_MAX


def test_slices_that_are_lost_doubled_or_late_do_no_harm() -> None:
    world = World(1, compact_bytes=32)
    state_of(world.elect(), 200)
    world.add(MemoryDisk(B))
    seen: list[RaftMessage] = []

    for number in range(400):
        world.wake()
        for _, ordinal, message in world.mail[:]:
            world.mail.pop(0)
            seen.append(message)
            if number % 3:
                hear(world, ordinal, message)
            if number % 2 and ordinal == 1:
                hear(world, ordinal, seen[-7:][0])
        for node in world.nodes.values():
            node.write(9)
        if number == 30:
            world.nodes[1].stop()
            world.nodes[1].start()

    assert world.nodes[1].state == world.nodes[0].state


def test_a_follower_that_lost_its_slices_gets_them_from_the_first_on() -> None:
    world = World(1, compact_bytes=32)
    state_of(world.elect(), 200)
    node = world.add(MemoryDisk(B))
    world.follow(node)
    for _ in range(4):
        world.deliver()
        node.write()
    node.stop()
    node.start()

    world.run(2000)

    assert node.state == world.nodes[0].state
    assert world.rules["slice.refused"] > 0


def test_a_follower_lets_go_of_slices_when_blocks_come_after_all(world: World) -> None:
    first = SnapshotSlice(1, A, BlockId(1, 8), Configuration((A, B, C)), 0, 2, b"x", 1)

    assert sent(hear(world, 1, first)) == [SliceTaken(1, B, first.id, 1, 1)]
    hear(world, 1, append(1, block(1, 2, FIRST)))
    second = replace(first, position=1)
    assert sent(hear(world, 1, second)) == [SliceTaken(1, B, first.id, 0, 1)]


def test_a_snapshot_is_in_force_when_it_is_on_disk() -> None:
    world = World()
    node = world.add(MemoryDisk(D))
    snapshot = initial_of(A, B, C, state=b"x\n")
    message = SnapshotSlice(1, A, INITIAL_ID, snapshot.configuration, 0, 2, b"x\n", 1)

    first = hear(world, 3, message)

    assert first == [Replace(1, snapshot, (Term(1),))]
    assert (world[3].applied, world[3].commit) == (NOTHING, INITIAL_ID)
    assert hear(world, 3, append(1, block(1, 1, INITIAL_ID))) == []  # nothing is built on it yet
    assert node.write() == [Install(snapshot), Send(0, SliceTaken(1, D, INITIAL_ID, 2, 1))]
    assert world[3].applied == INITIAL_ID


def test_who_takes_slices_on_a_disk_that_hangs_is_silent() -> None:
    world = World()
    node = world.add(MemoryDisk(D))
    first = SnapshotSlice(1, A, INITIAL_ID, Configuration((A, B, C)), 0, 3, b"x", 1)
    second = SnapshotSlice(1, A, INITIAL_ID, Configuration((A, B, C)), 1, 3, b"y", 2)
    hear(world, 3, first)
    world.now_ms += TIMING.disk_stall_ms + 1

    assert hear(world, 3, second) == []

    assert world.rules["disk.silent"] == 1
    assert sent(node.write()) == [SliceTaken(1, D, INITIAL_ID, 1, 1)]
    assert sent(hear(world, 3, second)) == [SliceTaken(1, D, INITIAL_ID, 2, 2)]


def test_who_has_taken_a_snapshot_while_its_data_stalls_is_silent() -> None:
    world = World()
    node = world.add(MemoryDisk(D))
    whole = SnapshotSlice(1, A, INITIAL_ID, Configuration((A, B, C)), 0, 2, b"x\n", 1)
    hear(world, 3, whole)
    world[3].note_data(is_stalled=True)

    assert sent(node.write()) == []

    assert world.rules["disk.silent"] == 1
    world[3].note_data(is_stalled=False)
    assert sent(hear(world, 3, whole)) == [SliceTaken(1, D, INITIAL_ID, 2, 1)]


def test_an_empty_snapshot_is_one_slice() -> None:
    world = World(1)
    world.elect()
    node = world.add(MemoryDisk(B))

    world.run(1000)

    assert node.applied == world.nodes[0].applied


def test_a_snapshot_of_blocks_that_are_there_only_reports_that_they_are_committed(
    world: World,
) -> None:
    second, third = block(1, 2, FIRST), block(1, 3, BlockId(1, 2))
    hear(world, 1, append(1, second, third))
    world.nodes[1].write()
    message = SnapshotSlice(1, A, second.id, Configuration((A, B, C)), 0, 9, b"", 1)

    hear(world, 1, message)

    assert (world[1].head, world[1].commit) == (third.id, second.id)
    assert sent(world.nodes[1].write()) == [SliceTaken(1, B, second.id, 9, 1)]
    assert sent(hear(world, 1, message)) == [SliceTaken(1, B, second.id, 9, 1)]


def test_a_snapshot_of_a_branch_moves_the_head_to_it(world: World) -> None:
    second = block(1, 2, FIRST)
    hear(world, 1, append(1, second))
    other = Block(BlockId(2, 2), FIRST)
    hear(world, 1, Append(2, C, FIRST, (other,), FIRST, 1))
    message = SnapshotSlice(3, A, second.id, Configuration((A, B, C)), 0, 9, b"", 1)

    hear(world, 1, message)

    assert world[1].head == world[1].commit == second.id


def test_a_snapshot_beyond_all_measure_is_not_taken() -> None:
    world = World()
    world.add(MemoryDisk(D))
    message = SnapshotSlice(
        1, A, INITIAL_ID, Configuration((A,)), 0, SNAPSHOT_BYTES_MAX + 1, b"x", 1
    )

    assert sent(hear(world, 3, message)) == []
    assert world.rules["snapshot.too_large"] == 1


def test_a_snapshot_waits_for_a_compaction_to_end() -> None:
    world = World(1, compact_bytes=32)
    node = world.nodes[0]
    node.step(Woken())
    while node.disk.compaction is None:
        node.write()
    message = SnapshotSlice(9, B, BlockId(8, 8), Configuration((B,)), 0, 1, b"\n", 1)

    assert sent(hear(world, 0, message)) == []
    node.write()
    node.end_compaction()
    assert [type(effect) for effect in hear(world, 0, message)] == [Replace]


def test_a_compaction_keeps_what_lies_above_what_is_applied() -> None:
    world = World(1, compact_bytes=150)
    node = world.nodes[0]
    node.step(Woken())
    node.write()
    node.write()
    effects = world.propose(0, b"one")

    compact = effects[-1]
    assert isinstance(compact, Compact)
    assert (compact.id, compact.configuration) == (FIRST, Configuration((A,)))
    command = Block(BlockId(1, 2), FIRST, COMMAND, b"one")
    assert compact.records == (Term(1, A), Stored(command), Head(command.id), Commit(FIRST))

    world.settle()
    node.stop()
    assert node.start().applied == command.id
    assert node.state == b"one\n"


def test_a_disk_without_a_ring_compacts_nothing() -> None:
    world = World(compact_bytes=32)
    world.add(MemoryDisk(D))

    assert [type(effect) for effect in hear(world, 3, append(1))] == [Keep]


def test_who_lags_behind_a_compaction_gets_the_snapshot() -> None:
    world = World(compact_bytes=200)
    leader = world.elect(0)
    world.settle()
    world.nodes[2].stop()
    state_of(leader, 20)
    world.nodes[2].start()

    world.run(2000)

    assert world.nodes[2].state == leader.state
    assert world.rules["snapshot.installed"] == 1


def test_a_late_answer_that_it_has_the_blocks_ends_the_sending_of_a_snapshot(world: World) -> None:
    first = hear(world, 0, Follow(1, D, NOTHING))
    assert [type(message) for message in sent(first)] == [SnapshotSlice]

    effects = hear(world, 0, AppendAnswered(1, D, True, FIRST, FIRST, 0))

    assert world[0].matched[D] == FIRST
    assert not any(isinstance(message, SnapshotSlice) for message in sent(effects))


def test_a_snapshot_that_the_leader_has_replaced_meanwhile_is_followed_by_the_next() -> None:
    world = World(1, compact_bytes=32)
    leader = world.elect()
    state_of(leader, 100)
    node = world.add(MemoryDisk(B))
    world.follow(node)
    world.deliver()
    world.mail.clear()
    slices_before = world.rules["snapshot.sent"]
    world.nodes[1].stop()
    state_of(leader, 10)
    node.start()

    world.run(3000)

    assert node.state == leader.state
    assert world.rules["snapshot.sent"] > slices_before


def test_a_disk_that_is_replaced_gets_no_more_of_a_snapshot(world: World) -> None:
    hear(world, 0, Follow(1, D, NOTHING))
    hear(world, 0, Follow(1, disk_id(3, 2), NOTHING))
    world.now_ms = world[0].wake_at_ms

    slices = [
        each for each in sent(world.nodes[0].step(Woken())) if isinstance(each, SnapshotSlice)
    ]

    assert len(slices) == 1


def test_an_answer_about_another_snapshot_is_old(world: World) -> None:
    hear(world, 0, Follow(1, D, NOTHING))

    assert hear(world, 0, SliceTaken(1, D, BlockId(7, 7), 5, 0)) == []
    assert hear(world, 0, SliceTaken(1, B, INITIAL_ID, 5, 0)) == []


# --- rings ---


def test_an_empty_disk_begins_with_an_initial_state() -> None:
    world = World(0)
    node = world.add(MemoryDisk(A))
    initial = initial_of(A, state=b"x\n")

    assert world.found(0, initial) == [Replace(1, initial, (Term(0),))]
    assert node.step(Woken()) == []
    assert node.write() == [Install(initial)]
    assert world.found(0, initial) == []
    world.settle()
    node.step(Woken())
    assert world[0].role == "leader"


def test_some_found_a_ring_together() -> None:
    world = World(0)
    for disk in (A, B, C):
        world.add(MemoryDisk(disk))
    for ordinal in range(3):
        world.found(ordinal, initial_of(A, B, C))

    assert world.elect().applied == FIRST
    assert world.rules["founded"] == 3


def test_the_last_voter_goes_on_alone_with_all_that_it_has(world: World) -> None:
    world.propose(0, b"one")
    world.settle_node(0)
    world.nodes[1].stop()
    world.nodes[2].stop()

    world.nodes[0].step(RecoverAlone())
    world.settle()

    assert (world[0].role, world[0].term) == ("leader", 1001)
    assert world[0].configuration == Configuration((A,))
    assert world.nodes[0].state == b"one\n"


def test_a_learner_goes_on_alone() -> None:
    world = World(1)
    world.elect()
    world.add(MemoryDisk(B))
    world.run(1000)
    world.nodes[0].stop()

    world.nodes[1].step(RecoverAlone())
    world.settle()

    assert world[1].is_established
    assert world[1].configuration == Configuration((B,))


def test_a_disk_without_a_ring_has_nothing_to_go_on_with() -> None:
    world = World()
    world.add(MemoryDisk(D))

    assert world.nodes[3].step(RecoverAlone()) == []
    assert world.nodes[3].step(Propose(b"")) == []


def test_who_votes_alone_says_nothing_of_a_term_that_is_not_on_its_disk() -> None:
    world = World(1)
    node = world.nodes[0]
    world.add(MemoryDisk(B))
    node.step(Woken())

    hear(world, 0, Follow(0, B, NOTHING))
    world.now_ms = world[0].wake_at_ms
    node.step(Woken())

    assert world.mail == []
    node.write()
    assert [type(message) for _, _, message in world.mail] == [SnapshotSlice]
