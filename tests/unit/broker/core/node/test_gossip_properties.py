"""Many gossips in one ring: who is alive is known to all, and who is not, too."""

import random
from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_broker.codec.peer import encode_frame
from tailrace_broker.core.node.gossip import DIGEST_BYTES_MAX, Gossip, GossipTiming
from tailrace_broker.core.raft.events import Send
from tailrace_broker.model.agreement import DiskId
from tailrace_broker.model.messages import Digest

INTERVAL_MS, SUSPICION_MS = GossipTiming()
TICK_MS = 20


class Ring:
    """Gossips that wake at their own times; digests travel for a tick, unless they are lost."""

    def __init__(self, broker_count: int, seed: int) -> None:
        self.generator = random.Random(seed)
        self.now_ms = 0
        self.loss = 0.0
        self.rules: Counter[str] = Counter()
        self.alive = {
            ordinal: self.start(ordinal, boot=1, broker_count=broker_count)
            for ordinal in range(broker_count)
        }
        self.bytes_max = 0
        self._travelling: list[Send] = []

    def start(self, ordinal: int, *, boot: int, broker_count: int | None) -> Gossip:
        begin_ms = self.now_ms + self.generator.randrange(INTERVAL_MS)
        disk = DiskId(ordinal, UUID(int=ordinal + 1))
        made = Gossip(disk, boot, GossipTiming(), self.generator, begin_ms, self.rules)
        if broker_count is not None:
            made.set_ring(broker_count)
        return made

    def run(self, duration_ms: int) -> None:
        for _ in range(0, duration_ms, TICK_MS):
            self.now_ms += TICK_MS
            arriving, self._travelling = self._travelling, []
            for send in arriving:
                assert isinstance(send.message, Digest)
                if send.ordinal in self.alive:
                    self.alive[send.ordinal].heard(send.message, self.now_ms)
            for gossip in self.alive.values():
                if self.now_ms >= gossip.wake_at_ms:
                    sends = gossip.wake(self.now_ms)
                    self.bytes_max = max(
                        self.bytes_max, *(len(encode_frame(each.message)) for each in sends[:1]), 0
                    )
                    self._travelling += [
                        each for each in sends if self.generator.random() >= self.loss
                    ]

    def suspected(self) -> set[tuple[int, int]]:
        """Who takes whom for dead."""
        return {
            (ordinal, other)
            for ordinal, gossip in self.alive.items()
            for other in gossip.hints
            if not gossip.is_alive(other, self.now_ms)
        }

    def validate(self) -> None:
        for gossip in self.alive.values():
            gossip.validate()

    def around_ms(self) -> int:
        """News has got everywhere along the ring, if all messages arrive."""
        return (len(self.alive) // 2 + 2) * (INTERVAL_MS + 2 * TICK_MS)


rings = st.builds(Ring, st.integers(3, 12), st.integers(0, 2**32))


@given(rings)
def test_while_messages_arrive_no_living_broker_is_suspected(ring: Ring) -> None:
    everybody = set(ring.alive)
    ring.run(ring.around_ms())
    for _ in range(30):
        ring.run(100)
        assert ring.suspected() == set()
    assert all(set(gossip.hints) == everybody for gossip in ring.alive.values())
    ring.validate()


@given(rings, st.floats(0, 0.9), st.data())
def test_a_dead_broker_is_suspected_by_all_within_a_bound(
    ring: Ring, loss: float, data: st.DataObject
) -> None:
    """Whatever was lost before."""
    ring.run(ring.around_ms())
    ring.loss = loss
    ring.run(1000)
    dead = data.draw(st.sampled_from(sorted(ring.alive)))
    del ring.alive[dead]
    ring.loss = 0
    longest_ms = max(each.suspicion_ms(dead, ring.now_ms) for each in ring.alive.values())
    ring.run(ring.around_ms() + longest_ms)

    for _ in range(5):
        ring.run(200)
        assert ring.suspected() == {(ordinal, dead) for ordinal in ring.alive}
    ring.validate()


@given(rings, st.floats(0, 0.9))
def test_after_any_loss_all_know_each_other_again(ring: Ring, loss: float) -> None:
    ring.loss = loss
    ring.run(5000)
    ring.loss = 0
    ring.run(2 * ring.around_ms())

    assert ring.suspected() == set()
    assert all(len(gossip.hints) == len(ring.alive) for gossip in ring.alive.values())
    ring.validate()


@given(rings, st.integers(0, 2000), st.data())
def test_a_broker_that_starts_again_is_alive_for_all(
    ring: Ring, down_ms: int, data: st.DataObject
) -> None:
    ring.run(ring.around_ms())
    ordinal = data.draw(st.sampled_from(sorted(ring.alive)))
    count = len(ring.alive)
    del ring.alive[ordinal]
    for gossip in ring.alive.values():
        gossip.unreachable(ordinal, ring.now_ms)
    ring.run(down_ms)
    ring.alive[ordinal] = ring.start(ordinal, boot=2, broker_count=count)
    ring.run(2 * ring.around_ms())

    assert ring.suspected() == set()
    assert {gossip.hints[ordinal].boot for gossip in ring.alive.values()} == {2}
    ring.validate()


@given(rings)
def test_a_broker_that_does_not_know_the_ring_gets_to_know_it(ring: Ring) -> None:
    ring.run(ring.around_ms())
    newcomer = len(ring.alive)
    ring.alive[newcomer] = ring.start(newcomer, boot=1, broker_count=None)
    ring.alive[1].set_self(height=9, term=3, leader=1)
    ring.run(2 * ring.around_ms())

    hints = ring.alive[newcomer].hints
    assert len(hints) == newcomer + 1
    assert all(ring.alive[newcomer].is_alive(ordinal, ring.now_ms) for ordinal in hints)
    assert ring.alive[newcomer].leader_hint() == (3, 1)


@pytest.mark.timeout(20)
def test_in_a_ring_of_48_all_are_known_and_a_digest_fits_into_a_packet() -> None:
    ring = Ring(48, seed=5)
    for gossip in ring.alive.values():
        gossip.set_self(height=10**6, term=10**5, leader=40)
    ring.run(6000)

    assert ring.suspected() == set()
    assert {len(gossip.hints) for gossip in ring.alive.values()} == {48}
    assert DIGEST_BYTES_MAX * 0.8 < ring.bytes_max <= DIGEST_BYTES_MAX
