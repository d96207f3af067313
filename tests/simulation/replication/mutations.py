"""`python -m tests.simulation.replication.mutations`: walks find each rule that is taken away.

A function takes one rule from the shipped machines. `MUTATIONS` has a seed that finds it.
"""

import multiprocessing
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tailrace_broker.core.node import duties
from tailrace_broker.core.replication import leader
from tailrace_broker.core.replication.events import FollowerEffect, LeaderEffect
from tailrace_broker.core.replication.follower import FollowedLog, RangeFollower
from tailrace_broker.core.replication.leader import RangeLeader
from tailrace_broker.core.replication.log_ends import LogEnds
from tailrace_broker.core.replication.progress import LedLog, Progress
from tailrace_broker.core.ring import commands, range_commands, registrations
from tailrace_broker.model.commands import Lead, Register
from tailrace_broker.model.replication import Batches, LogKey, LogReport, ToFollower
from tailrace_broker.model.ring_state import (
    RangeState,
    Refusal,
    Registration,
    Replica,
    RingState,
)
from tests.simulation.replication import walk
from tests.simulation.replication.walk import Outcome, run
from tests.simulation.ring.mutations_of_the_ring import leader_resumes_its_epoch as resumes

Mutation = Callable[[pytest.MonkeyPatch], None]
SEEDS_MAX = 400


def leader_resumes_its_epoch(patch: pytest.MonkeyPatch) -> None:
    """A range is led on by its leader's next process."""
    resumes(patch)


def power_loss_stays_in_the_isr(patch: pytest.MonkeyPatch) -> None:
    """Though its topics are `written`."""
    patch.setattr(registrations, "_ranges_with_unflushed", lambda state, before: frozenset())


def class_of_the_last_start_only(patch: pytest.MonkeyPatch) -> None:
    """What starts since the last registration lost is not carried over."""

    def last(before: Registration | None, command: Register) -> str:
        is_known = before is not None and before.incarnation == command.incarnation
        return command.starts[-1].loss if is_known else "disk"

    patch.setattr(registrations, "loss_since", last)


def wiped_replica_stays_in_the_isr(patch: pytest.MonkeyPatch) -> None:
    """An empty disk is taken for the old one."""
    patch.setattr(registrations, "loss_since", lambda before, command: "process")


def pending_members_not_counted(patch: pytest.MonkeyPatch) -> None:
    """Neither a candidate nor who was proposed holds the high watermark back."""

    def count(self: RangeLeader) -> list[LeaderEffect]:
        candidates = {
            each: each.candidate_since_ms
            for each in self._progress.values()
            if each.candidate_since_ms is not None
        }
        proposal, self._proposal = self._proposal, None
        for each in candidates:
            each.candidate_since_ms = None
        effects = shipped(self)
        for each, since_ms in candidates.items():
            each.candidate_since_ms = since_ms
        self._proposal = proposal
        return effects

    shipped = RangeLeader._count
    patch.setattr(RangeLeader, "_count", count)


def admission_at_a_stale_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """The leader's end at the start of the epoch need not be reached."""

    def stale(self: LedLog) -> int:
        return self.ends.high_watermark

    patch.setattr(LedLog, "caught_up_end", property(stale))
    patch.setattr(LedLog, "near_from", property(lambda self: 0, lambda self, value: None))


def admission_by_written_ends(patch: pytest.MonkeyPatch) -> None:
    """Whatever the topic's durability."""

    def check(self: RangeLeader, found: Progress, key: LogKey, log: LedLog) -> None:
        if found.candidate_since_ms is None:
            return
        if found.written(key) < log.caught_up_end:
            found.lacking.add(key)
        else:
            found.lacking.discard(key)

    patch.setattr(RangeLeader, "_check_candidate", check)


def high_watermark_moves_below_min_isr(patch: pytest.MonkeyPatch) -> None:
    """And with the floor off, one replica acknowledges."""
    patch.setattr(LedLog, "min_isr", property(lambda self: 0, lambda self, value: None))
    patch.setattr(RingState, "floor", property(lambda self: 1))


def counts_members_that_have_not_reported(patch: pytest.MonkeyPatch) -> None:
    """Of this epoch: the own end is enough until they do."""

    def count(self: RangeLeader) -> list[LeaderEffect]:
        shipped(self)
        if self._counted is None:
            self._counted = [each for each in self._progress.values() if each.has_reported]
        return self._advance_all()

    shipped = RangeLeader._count
    patch.setattr(RangeLeader, "_count", count)


def ends_counted_as_written(patch: pytest.MonkeyPatch) -> None:
    """An `fsync` topic's followers count when they have written."""
    patch.setattr(Progress, "counted", lambda self, key, is_synced: self.written(key))


def end_reported_before_the_cut(patch: pytest.MonkeyPatch) -> None:
    """Where it stands is counted as what it has."""

    def on_standing(self: RangeLeader, standing: Any) -> list[LeaderEffect]:
        effects = shipped(self, standing)
        found = self._sender(standing.replica, standing.epoch)
        if found is not None and effects:
            for each in standing.logs:
                found.report(LogReport(each.log, each.end, each.end))
            found.has_reported = True
            effects += self._count()
        return effects

    shipped = RangeLeader._on_standing
    patch.setattr(RangeLeader, "_on_standing", on_standing)


def epoch_checks_off(patch: pytest.MonkeyPatch) -> None:
    """A follower takes frames of any epoch and session, whatever they follow."""

    def on_heard(self: RangeFollower, message: ToFollower, now_ms: int) -> list[FollowerEffect]:
        return [] if self._step is None else self._step(message, now_ms)

    def last_epoch(self: LogEnds) -> int:
        return self.epochs[-1].epoch if self.epochs else self.base_epoch

    def on_batches(self: RangeFollower, batches: Batches, now_ms: int) -> list[FollowerEffect]:
        log = self._logs.get(batches.log)
        if log is not None and batches.runs[0].epoch >= last_epoch(log.ends):
            batches = batches._replace(previous_epoch=last_epoch(log.ends))
        return shipped(self, batches, now_ms)

    shipped = RangeFollower._on_batches
    patch.setattr(RangeFollower, "_on_heard", on_heard)
    patch.setattr(RangeFollower, "_on_batches", on_batches)


def no_cut(patch: pytest.MonkeyPatch) -> None:
    """A follower goes on at its own end, whatever epochs it has."""

    def common(mine: Any, my_end: int, theirs: Any, their_end: int) -> int:
        return min(my_end, their_end)

    patch.setattr(leader, "common_end", common)


def cut_at_the_end_of_the_last_epoch(patch: pytest.MonkeyPatch) -> None:
    """Only the leader's end of the follower's last epoch counts, not the largest common epoch."""

    def common(mine: Any, my_end: int, theirs: Any, their_end: int) -> int | None:
        last = theirs[-1].epoch
        later = [each.first for each in mine if each.epoch > last]
        return min(their_end, later[0] if later else my_end)

    patch.setattr(leader, "common_end", common)


def takeover_needs_min_isr(patch: pytest.MonkeyPatch) -> None:
    """A broker takes over only when another member of the ISR has all, too."""

    def lead(state: RingState, command: Lead) -> RingState | Refusal:
        owner = state.ranges[command.range_id]
        gone = {*command.without}
        left = [each for each in owner.isr if not each.is_ghost and each.ordinal not in gone]
        if len(left) < 2 and owner.epoch:
            return Refusal("not-in-isr", "min ISR")
        return shipped(state, command)

    shipped = range_commands.lead
    patch.setitem(commands._APPLY, Lead, lead)


def the_floor_counts_ghosts(patch: pytest.MonkeyPatch) -> None:
    """A member that may have lost records keeps others from being missed."""
    patch.setattr(range_commands, "_count_whole", lambda isr: len(tuple(isr)))


def floor_off(patch: pytest.MonkeyPatch) -> None:
    """The last but one may leave."""
    patch.setattr(RingState, "floor", property(lambda self: 1))
    patch.setattr(LedLog, "min_isr", property(lambda self: 1, lambda self, value: None))


def proposal_forgotten_when_refused(patch: pytest.MonkeyPatch) -> None:
    """After a while nobody counts who was proposed, though a late copy may commit."""

    def on_woken(self: RangeLeader, now_ms: int, clock_ms: int) -> list[LeaderEffect]:
        if self._proposal is not None and clock_ms >= self._proposal.again_ms:
            for each in self._progress.values():
                if each.replica in self._proposal.joins:
                    each.end_candidacy()
                    each.not_before_ms = clock_ms + 5000
            self._proposal = None
            self._count()
        return shipped(self, now_ms, clock_ms)

    shipped = RangeLeader._on_woken
    patch.setattr(RangeLeader, "_on_woken", on_woken)


def log_start_falls_at_a_failover(patch: pytest.MonkeyPatch) -> None:
    """A follower does not keep where the partition starts."""

    def learn(
        self: RangeFollower, key: LogKey, log: FollowedLog, high_watermark: int, log_start: int
    ) -> list[FollowerEffect]:
        return shipped(self, key, log, high_watermark, 0)

    shipped = RangeFollower._learn
    patch.setattr(RangeFollower, "_learn", learn)


def any_ghost_leads(patch: pytest.MonkeyPatch) -> None:
    """Of ghosts one leads, whatever it has recovered."""

    def any_of(state: RingState, led: RangeState) -> set[int]:
        ghosts = all(
            each.is_ghost and state.brokers[each.ordinal].number > each.registration
            for each in led.isr
        )
        return {each.ordinal for each in led.isr} if ghosts else set()

    patch.setattr(range_commands, "greatest_ghosts", any_of)
    patch.setattr(duties, "greatest_ghosts", any_of)


def a_ghost_leads_beside_a_whole_member(patch: pytest.MonkeyPatch) -> None:
    """That lost power: it is not waited for those that have all."""

    def ghosts(state: RingState, led: RangeState) -> set[int]:
        return {each.ordinal for each in led.isr if each.is_ghost and each.cause == "power"}

    patch.setattr(range_commands, "greatest_ghosts", ghosts)
    patch.setattr(duties, "greatest_ghosts", ghosts)


def loss_is_not_recorded(patch: pytest.MonkeyPatch) -> None:
    """No epoch is known to have begun with loss."""
    patch.setattr(range_commands, "_lossy", lambda led: led)


def ends_reported_before_the_damage_count(patch: pytest.MonkeyPatch) -> None:
    """`Lost` gives no other number: what the replica reported before names it still."""

    def replica_of(self: RangeState, broker: Registration) -> Replica:
        return Replica(broker.ordinal, broker.number)

    patch.setattr(RangeState, "replica_of", replica_of)


def set_aside_forgotten_by_a_crash(patch: pytest.MonkeyPatch) -> None:
    """A process that dies before `Lost` is agreed leaves no note of the damage."""
    patch.setattr(walk, "set_aside", lambda disk, range_id: None)


def a_power_ghost_with_damage_leads(patch: pytest.MonkeyPatch) -> None:
    """What is found later does not worsen the cause of a ghost."""

    def damaged(member: Replica) -> Replica:
        return member._replace(is_ghost=True, cause=member.cause or "damage")

    patch.setattr(range_commands, "_damaged", damaged)


def the_last_cause_wins(patch: pytest.MonkeyPatch) -> None:
    """A loss of power takes the place of damage."""
    for module in (registrations, range_commands):
        patch.setattr(module, "worse", lambda one, other: other)


def find(seeds: Iterable[int]) -> Outcome | None:
    """The first walk that fails, of those seeds in their order."""
    with multiprocessing.get_context("fork").Pool() as pool:
        return next((each for each in pool.imap(run, seeds) if each.failure is not None), None)


# By bug a seed that finds it; when it does so no more, another will. `main` prints the first.
MUTATIONS: dict[Mutation, int] = {
    leader_resumes_its_epoch: 0,
    power_loss_stays_in_the_isr: 3,
    class_of_the_last_start_only: 33,
    wiped_replica_stays_in_the_isr: 0,
    pending_members_not_counted: 1,
    admission_at_a_stale_high_watermark: 199,
    admission_by_written_ends: 65,
    high_watermark_moves_below_min_isr: 8,
    counts_members_that_have_not_reported: 0,
    ends_counted_as_written: 0,
    end_reported_before_the_cut: 1,
    epoch_checks_off: 63,
    no_cut: 1,
    cut_at_the_end_of_the_last_epoch: 10,
    takeover_needs_min_isr: 2,
    the_floor_counts_ghosts: 2,
    floor_off: 8,
    proposal_forgotten_when_refused: 11,
    log_start_falls_at_a_failover: 0,
    any_ghost_leads: 7,
    a_ghost_leads_beside_a_whole_member: 7,
    loss_is_not_recorded: 8,
    ends_reported_before_the_damage_count: 0,
    set_aside_forgotten_by_a_crash: 29,
    a_power_ghost_with_damage_leads: 60,
    the_last_cause_wins: 13,
}


def main(names: list[str]) -> int:
    """0 when every bug was found; `names`: of these alone."""
    missed = 0
    for mutation in MUTATIONS:
        if names and mutation.__name__ not in names:
            continue
        with pytest.MonkeyPatch.context() as patch:
            mutation(patch)
            found = find(range(SEEDS_MAX))
        missed += found is None
        what = f"NOT FOUND in {SEEDS_MAX}" if found is None else f"{found.seed:4}"
        print(f"{mutation.__name__:40} {what}  {found.failure if found else ''}"[:200], flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
