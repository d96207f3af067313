"""A leader dies: how long until another one leads, in one of many schedules, in virtual time?

The machines are the real ones (`tests.support.raft.raft_world`). A schedule draws how long each
message and each write takes, when the others notice the death, and which of the last messages are
lost by it.
Links keep their order; a disk does a write at a time, with all that waits for it.
"""

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

from tailrace_broker.core.raft.events import Received, Unreachable, Woken
from tailrace_broker.model.messages import RaftMessage
from tests.support.raft.raft_world import Node, World

US_PER_MS = 1000
GIVE_UP_US = 10_000 * US_PER_MS
ELECTED_US_MAX = 1000 * US_PER_MS
MESSAGE_US = (100, 5000)
WRITE_US = (200, 20_000)
NOTICE_US = (0, 50_000)


class Death(NamedTuple):
    """How the leader dies.

    `is_early`: as soon as it leads, when perhaps nobody else knows it. `is_asked_to_all`: else one
    of the others hears of it only from others. `write_us`: how long writes take, of all disks.
    """

    voter_count: int = 3
    is_early: bool = False
    is_asked_to_all: bool = True
    write_us: tuple[int, int] = WRITE_US


class Race:
    """One schedule; `run` runs it."""

    def __init__(self, seed: int, death: Death) -> None:
        self._random = Random(f"race {seed}")
        self._death = death
        self.world = World(death.voter_count, seed=self._random.getrandbits(32))
        self._now_us = self.world.now_ms * US_PER_MS
        self._due: list[tuple[int, int, Callable[[], object]]] = []
        self._due_count = 0
        self._arrived_us: dict[tuple[int, int], int] = {}  # by sender and receiver, the last
        self._lost: set[tuple[int, int]] = set()  # what is under way between them
        self._writing: set[int] = set()

    def run(self) -> float:
        """The ms from the leader's death until another leads and knows all that was committed."""
        if self._death.is_early:
            self._until(lambda: self._any_leader() is not None)
        else:
            self._until(lambda: self.world.leader is not None)
            self._pass(self._random.randrange(ELECTED_US_MAX))
        self._kill()
        killed_us = self._now_us
        self._until(lambda: self.world.leader is not None)
        return (self._now_us - killed_us) / US_PER_MS

    @property
    def term(self) -> int:
        """The newest that anybody has entered."""
        return max(node.raft.term for node in self.world.nodes.values() if node.raft is not None)

    def _any_leader(self) -> Node | None:
        nodes = self.world.nodes.values()
        return next((node for node in nodes if node.raft and node.raft.role == "leader"), None)

    def _kill(self) -> None:
        """Perhaps with a block that not all have."""
        leader = self._any_leader()
        assert leader is not None
        dead = leader.disk.id.ordinal
        if self._random.random() < 0.5:
            self.world.propose(dead, b"last words")
            self._follow_up()
            self._pass(self._draw(MESSAGE_US))
        leader.stop()
        others = [ordinal for ordinal in self.world.nodes if ordinal != dead]
        self._random.shuffle(others)
        for ordinal in others:
            if self._random.random() < 0.5:
                self._lost.add((dead, ordinal))
        for ordinal in others if self._death.is_asked_to_all else others[1:]:
            noticed_us = self._now_us + self._draw(NOTICE_US)
            self._at(
                max(noticed_us, self._arrived_us.get((dead, ordinal), 0)),
                partial(self.world.nodes[ordinal].step, Unreachable(dead)),
            )

    # --- time ---

    def _until(self, is_so: Callable[[], bool]) -> None:
        end_us = self._now_us + GIVE_UP_US
        while not is_so():
            assert self._now_us < end_us, "nobody leads"
            self._go_on(end_us)

    def _pass(self, duration_us: int) -> None:
        end_us = self._now_us + duration_us
        while self._now_us < end_us:
            self._go_on(end_us)

    def _go_on(self, end_us: int) -> None:
        """To what is due first, and do it."""
        running = [node for node in self.world.nodes.values() if node.raft is not None]
        wake_ms, ordinal = min((self.world[o].wake_at_ms, o) for o in map(_ordinal, running))
        wake_us = wake_ms * US_PER_MS
        due_us = self._due[0][0] if self._due else end_us
        self._now_us = max(self._now_us, min(end_us, wake_us, due_us))
        self.world.now_ms = self._now_us // US_PER_MS
        if self._due and due_us <= self._now_us:
            heappop(self._due)[2]()
        elif wake_us <= self._now_us:
            self.world.nodes[ordinal].step(Woken())
        self._follow_up()

    def _at(self, due_us: int, action: Callable[[], object]) -> None:
        self._due_count += 1
        heappush(self._due, (due_us, self._due_count, action))

    def _draw(self, between_us: tuple[int, int]) -> int:
        return self._random.randint(*between_us)

    # --- what happens ---

    def _follow_up(self) -> None:
        """What was sent is under way, and what is to be kept is written."""
        for sender, ordinal, message in self.world.mail:
            link = sender, ordinal
            arrives_us = self._now_us + self._draw(MESSAGE_US)
            self._arrived_us[link] = max(arrives_us, self._arrived_us.get(link, 0))
            self._at(self._arrived_us[link], partial(self._deliver, sender, ordinal, message))
        self.world.mail.clear()
        for ordinal, node in self.world.nodes.items():
            if node.disk.writes and ordinal not in self._writing:
                self._writing.add(ordinal)
                written = partial(self._written, ordinal, len(node.disk.writes))
                self._at(self._now_us + self._draw(self._death.write_us), written)

    def _deliver(self, sender: int, ordinal: int, message: RaftMessage) -> None:
        if (sender, ordinal) not in self._lost:
            self.world.nodes[ordinal].step(Received(message))

    def _written(self, ordinal: int, count: int) -> None:
        self._writing.discard(ordinal)
        self.world.nodes[ordinal].write(count)


def _ordinal(node: Node) -> int:
    return node.disk.id.ordinal
