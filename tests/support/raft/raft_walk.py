"""A random walk of consensus machines through losses, crashes and changes of voters.

What must hold is checked at every step (`tests.support.raft.raft_world`); at the end all is
healed, and then all must get the same.
"""

from random import Random

from tailrace_broker.core.raft.events import Received, Unreachable, Woken
from tests.support.raft.raft_world import MemoryDisk, Node, World, disk_id

ORDINALS_MAX = 7
# One of three voters may be waiting for its timers ten times in a row.
HEALING_MS = 20_000


class Walk:
    """One world; `steps` says how long it goes wrong before it is healed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World(
            self.random.choice([1, 2, 3, 3, 3, 5]),
            seed=seed,
            compact_bytes=self.random.choice([500, 65536]),
        )
        self._fill = bytes(self.random.choice([0, 0, 3000]))
        self._tick_ms = self.random.choice([1, 5, 20])
        self._asked = 0
        # Each walk has its own mixture: a rare fault is common in some.
        often = self.random.choice
        self._actions = (
            [self.deliver] * often([10, 45])
            + [self.deliver_all] * often([0, 10, 30])
            + [self.write] * often([3, 20])
            + [self.write_all] * often([0, 5, 20])
            + [self.wake] * often([5, 15])
            + [self.propose] * often([2, 10])
            + [self.end_compaction] * 2
            + [self.crash] * often([1, 3])
            + [self.restart] * often([5, 10])
            + [self.lose_power] * often([0, 1])
            + [self.lose_mail] * often([0, 3])
            + [self.cut, self.repair] * often([0, 2])
            + [self.ask_read, self.follow, self.lose_connection]
            + [self.change_voters] * often([0, 1, 5])
            + [self.join_or_wipe]
        )

    def go_wrong(self, steps: int) -> None:
        for _ in range(steps):
            self.random.choice(self._actions)()

    def heal(self) -> None:
        """Nothing fails any more: there is a leader soon, and all apply what it takes then."""
        world = self.world
        world.cut.clear()
        for node in world.nodes.values():
            if node.raft is None:
                node.start()
        end_ms = world.now_ms + HEALING_MS
        while world.leader is None and world.now_ms < end_ms:
            world.run(500)
        world.run(3000)
        leader = world.leader
        assert leader is not None
        world.propose(leader.disk.id.ordinal, b"last")
        world.run(2000)
        for node in world.nodes.values():
            assert node.state == leader.state, node.disk.id
        assert leader.state.endswith(b"last\n")

    # --- what happens ---

    def any_node(self) -> Node:
        return self.random.choice(list(self.world.nodes.values()))

    def leader(self) -> int:
        """Whoever leads, or may think that it does."""
        return (self.world.leader or self.any_node()).disk.id.ordinal

    def deliver(self) -> None:
        mail = self.world.mail
        if not mail:
            return
        index = self.random.choice([0, 0, 0, self.random.randrange(len(mail))])
        _, ordinal, message = mail[index]
        chance = self.random.random()
        if chance > 0.05:  # else it comes again
            mail.pop(index)
        if chance < 0.9:
            self.world.nodes[ordinal].step(Received(message))

    def deliver_all(self) -> None:
        self.world.deliver(len(self.world.mail))

    def write_all(self) -> None:
        for node in self.world.nodes.values():
            node.write(len(node.disk.writes))

    def lose_power(self) -> None:
        """All at once."""
        for node in self.world.nodes.values():
            node.stop()
            node.start()

    def write(self) -> None:
        self.any_node().write(self.random.choice([1, 1, 2, 100]))

    def wake(self) -> None:
        node = self.any_node()
        if node.raft is None:
            return
        due_ms = node.raft.wake_at_ms
        if due_ms < self.world.now_ms + 5000:
            soon_ms = self.world.now_ms + self._tick_ms
            self.world.now_ms = max(self.world.now_ms, self.random.choice([due_ms, soon_ms]))
        node.step(Woken())

    def propose(self) -> None:
        self._asked += 1
        self.world.propose(self.leader(), b"%d" % self._asked + self._fill)

    def end_compaction(self) -> None:
        self.any_node().end_compaction()

    def crash(self) -> None:
        self.any_node().stop()

    def restart(self) -> None:
        node = self.any_node()
        if node.raft is None:
            node.start()

    def ask_read(self) -> None:
        self._asked += 1
        self.world.ask_read(self.leader(), self._asked)

    def follow(self) -> None:
        self.world.follow(self.any_node())

    def lose_connection(self) -> None:
        self.any_node().step(Unreachable(self.random.randrange(len(self.world.nodes))))

    def lose_mail(self) -> None:
        """All that is under way to somebody."""
        lost = self.any_node().disk.id.ordinal
        self.world.mail[:] = [each for each in self.world.mail if each[1] != lost]

    def cut(self) -> None:
        """From now on somebody hears nobody, and nobody hears it."""
        ordinal = self.any_node().disk.id.ordinal
        for other in self.world.nodes:
            self.world.cut |= {(ordinal, other), (other, ordinal)}

    def repair(self) -> None:
        self.world.cut.clear()

    def change_voters(self) -> None:
        disks = [node.disk.id for node in self.world.nodes.values()]
        voters = self.random.sample(disks, self.random.randint(1, len(disks)))
        self.world.change_voters(self.leader(), *voters)

    def join_or_wipe(self) -> None:
        """A disk is lost only if it never had a vote: more would be too much for any ring."""
        world = self.world
        if len(world.nodes) < ORDINALS_MAX and self.random.random() < 0.5:
            world.add(MemoryDisk(disk_id(len(world.nodes))))
            return
        found = self.any_node().disk.id
        if found not in world.voters:
            world.add(MemoryDisk(disk_id(found.ordinal, found.incarnation.int % 100 + 1)))
