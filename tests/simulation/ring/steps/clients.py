"""Producers that follow children: each sends the events of one token, one after the other.

A producer asks any broker who leads the partition of its token now, and sends the next event when
the one before was acknowledged, or its answer has not come for long. So over the whole lineage
offsets of what was acknowledged grow (7): a child begins where its parents end.
"""

import random
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from tailrace_broker.core.ring.arithmetic import TOKEN_END, TOKEN_MIN
from tailrace_broker.core.ring.topics import bounds_of
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import RingState
from tests.simulation.ring.faults import Happening
from tests.simulation.ring.schedule import US_PER_MS
from tests.simulation.ring.violation import check
from tests.simulation.ring.world import World

if TYPE_CHECKING:
    from tests.simulation.ring.data.host import Host

TOPICS = 3
PRODUCERS = 6
TRY_MS = 30
ANSWER_MS = 1500
SIZES = (100, 5000)


@dataclass(frozen=True, slots=True)
class Follow(Happening):
    """Such producers begin, and send until the end."""

    seed: int

    def happen(self, world: World) -> None:
        for number in range(PRODUCERS):
            TokenProducer(world, random.Random(f"{self.seed} {number}"))


class TokenProducer:
    """`_last`: what was acknowledged last: partition, offset, and value."""

    def __init__(self, world: World, generator: random.Random) -> None:
        self._world = world
        self._random = generator
        self._topic_id = UUID(int=generator.randint(1, TOPICS))
        self._token = generator.randrange(TOKEN_MIN, TOKEN_END)
        self._last: tuple[LogKey, int, int] | None = None
        self._sent = 0  # the event that waits for its answer
        self._waits_until_us: int | None = None
        self._try()

    def _try(self) -> None:
        world = self._world
        world.schedule.after(TRY_MS * US_PER_MS, self._try)
        now_us = world.schedule.now_us
        if self._waits_until_us is not None and now_us < self._waits_until_us:
            return
        self._waits_until_us = None
        process = world.newest(self._random.randrange(world.broker_count))
        if process is None or process.control is None or process.control.state is None:
            return
        found = self._find(process.control.state)
        if found is not None:
            self._send(*found)

    def _find(self, state: RingState) -> tuple[LogKey, int] | None:
        """The partition of the token, and who leads it, as some broker knows."""
        for topic in state.topics.values():
            if topic.id != self._topic_id:
                continue
            for slices in topic.slices:
                owner = state.ranges[slices.range_id]
                if owner.is_sealed or owner.leader is None:
                    continue
                for index, (start, end) in enumerate(bounds_of(slices, owner.end)):
                    if start <= self._token < end:
                        key = LogKey(topic.id, slices.first_partition + index)
                        return key, owner.leader.ordinal
        return None

    def _send(self, key: LogKey, leader: int) -> None:
        world, replicas = self._world, self._world.replicas
        assert replicas is not None
        process = world.newest(leader)
        if process is None or process.shell is None or process.is_paused:
            return
        self._sent += 1
        host, value = process.shell.host, replicas.records.add(None)
        answered = partial(self._answered, host, self._sent, key, value)
        if host.produce(key, value, self._random.choice(SIZES), answered):
            self._waits_until_us = world.schedule.now_us + ANSWER_MS * US_PER_MS

    def _answered(
        self, host: "Host", sent: int, key: LogKey, value: int, offset: int | None
    ) -> None:
        """Late answers are of no interest."""
        if sent != self._sent or self._waits_until_us is None:
            return
        self._waits_until_us = None
        replicas = self._world.replicas
        assert replicas is not None
        if offset is None:
            return
        if self._last is not None and replicas.truth.holds(*self._last):
            last_key, last, _ = self._last
            replicas.counts["followed a child"] += last_key != key
            check(
                last < offset,
                f"7: {host.name} acknowledges {offset} of {key} to token {self._token}, "
                f"{last} of {last_key} before",
            )
        self._last = key, offset, value
