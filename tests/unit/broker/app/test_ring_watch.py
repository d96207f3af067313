"""What a broker has seen of its ring."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from tailrace_broker.app.ring_watch import CHANGES_MAX, RingWatch
from tailrace_broker.model.ring_state import RangeState, Registration, Replica, RingState

A, B, C = (Replica(each, 1) for each in range(3))
BROKERS = {
    each: Registration(each, 1, UUID(int=each), 1, UUID(int=each), "clean") for each in range(3)
}
RANGE = RangeState(0, 0, 9, 1, 0, (0, 1, 2), (A, B, C), 5, 3, A)
STATE = RingState(UUID(int=9), 3, 3, BROKERS, {0: RANGE})


class Watched:
    """The ring of broker 1, and two clocks."""

    def __init__(self) -> None:
        self.now_s = 10.0
        self.alive = {0: True, 2: True}
        self.ring = self._ring()
        self.watch = RingWatch(self.ring, 1, lambda: 7_000_000, lambda: self.now_s)
        self.apply(STATE)

    def _ring(self) -> Any:
        view = SimpleNamespace(alive=self.alive)
        return SimpleNamespace(on_applied=[], on_silent=[], state=None, view=lambda: view)

    def apply(self, after: RingState) -> None:
        before, self.ring.state = self.ring.state, after
        for call in self.ring.on_applied:
            call(before, after)

    def apply_range(self, **changed: Any) -> None:
        self.apply(replace(STATE, ranges={0: replace(RANGE, **changed)}))

    def silence(self, ordinal: int) -> None:
        self.alive[ordinal] = False
        for call in self.ring.on_silent:
            call(ordinal)


def test_the_state_at_the_start_is_no_change() -> None:
    watched = Watched()

    assert list(watched.watch.history) == []
    assert (watched.watch.leaderless_count, watched.watch.leaderless_seconds) == (0, 0.0)


def test_changes_are_numbered_and_counted_where_this_broker_leads() -> None:
    watched = Watched()
    watched.apply_range(isr=(A, B))
    watched.apply_range(isr=(B,), leader=B, epoch=6)
    watched.apply_range(isr=(B, C), leader=B, epoch=6)

    shown = [(each.number, each.at_us, each.change.kind) for each in watched.watch.history]
    assert shown == [
        (1, 7_000_000, "left"),
        (2, 7_000_000, "leads"),
        (3, 7_000_000, "left"),
        (4, 7_000_000, "joined"),
    ]
    assert dict(watched.watch.counts) == {"left": 1, "leads": 1, "joined": 1}


def test_the_oldest_changes_are_forgotten() -> None:
    watched = Watched()
    for epoch in range(6, 6 + CHANGES_MAX + 5):
        watched.apply_range(epoch=epoch)

    assert len(watched.watch.history) == CHANGES_MAX
    assert watched.watch.history[0].number == 6


def test_a_range_has_no_leader_from_when_it_seems_dead_until_another_leads() -> None:
    watched = Watched()
    watched.silence(0)
    watched.now_s += 2
    assert (watched.watch.leaderless_count, watched.watch.leaderless_seconds) == (1, 2.0)
    watched.apply_range(leader=B, epoch=6)
    watched.now_s += 5
    assert (watched.watch.leaderless_count, watched.watch.leaderless_seconds) == (0, 2.0)
    watched.apply_range(leader=None, epoch=6)
    watched.now_s += 1

    assert (watched.watch.leaderless_count, watched.watch.leaderless_seconds) == (1, 3.0)


def test_a_sealed_range_needs_no_leader() -> None:
    watched = Watched()
    watched.apply_range(leader=None, sealed_epoch=5)

    assert watched.watch.leaderless_count == 0
