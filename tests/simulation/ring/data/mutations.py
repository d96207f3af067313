"""Mutations of replication: each function takes one rule from the shipped machines."""

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tailrace_broker.core.node import duties
from tailrace_broker.core.node.control import Control
from tailrace_broker.core.node.events import Health
from tailrace_broker.core.node.gossip import Gossip
from tailrace_broker.core.replication import progress, ranges
from tailrace_broker.core.replication.events import FollowerEffect, LeaderEffect, Wrote
from tailrace_broker.core.replication.follower import FollowedLog, RangeFollower
from tailrace_broker.core.replication.lead_proof import LeadProof
from tailrace_broker.core.replication.leader import RangeLeader
from tailrace_broker.core.replication.log_ends import LogEnds
from tailrace_broker.core.replication.progress import LedLog, Progress
from tailrace_broker.core.replication.range_replica import RangeReplica
from tailrace_broker.core.replication.succession import Succession
from tailrace_broker.core.ring import range_commands, registrations
from tailrace_broker.model.commands import Command
from tailrace_broker.model.replication import Batches, LogKey, LogReport, ToFollower
from tailrace_broker.model.ring_state import RangeState, Registration, RingState
from tests.simulation.ring.data.host import Host
from tests.simulation.ring.data.model_log import Entry
from tests.simulation.ring.disk import Crash, Disk


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

    def check(self: Progress, key: LogKey, log: LedLog) -> None:
        if self.candidate_since_ms is None:
            return
        if self.written(key) < log.caught_up_end:
            self.lacking.add(key)
        else:
            self.lacking.discard(key)

    patch.setattr(Progress, "check_candidate", check)


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

    def on_standing(self: RangeLeader, standing: Any, clock_ms: int) -> list[LeaderEffect]:
        effects = shipped(self, standing, clock_ms)
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

    patch.setattr(progress, "common_end", common)


def cut_at_the_end_of_the_last_epoch(patch: pytest.MonkeyPatch) -> None:
    """Only the leader's end of the follower's last epoch counts, not the largest common epoch."""

    def common(mine: Any, my_end: int, theirs: Any, their_end: int) -> int | None:
        last = theirs[-1].epoch
        later = [each.first for each in mine if each.epoch > last]
        return min(their_end, later[0] if later else my_end)

    patch.setattr(progress, "common_end", common)


def takeover_needs_min_isr(patch: pytest.MonkeyPatch) -> None:
    """A broker takes over only when another member of the ISR has all, too."""

    def candidates(
        state: RingState, owner: RangeState, mine: Registration, is_alive: Callable[[int], bool]
    ) -> set[int]:
        able = shipped(state, owner, mine, is_alive)
        return able if len(able) >= 2 or not owner.epoch else set()

    shipped = duties._candidates
    patch.setattr(duties, "_candidates", candidates)


def the_floor_counts_ghosts(patch: pytest.MonkeyPatch) -> None:
    """A member that may have lost records keeps others from being missed."""
    patch.setattr(range_commands, "_count_whole", lambda isr: len(tuple(isr)))


def floor_off(patch: pytest.MonkeyPatch) -> None:
    """The last but one may leave."""
    patch.setattr(RingState, "floor", property(lambda self: 1))
    patch.setattr(LedLog, "min_isr", property(lambda self: 1, lambda self, value: None))


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


def leader_counts_what_it_has_not_flushed(patch: pytest.MonkeyPatch) -> None:
    """Of an `fsync` topic its own written end counts."""
    patch.setattr(LogEnds, "counted", lambda self, is_synced: self.written)


def leader_sends_before_its_write_and_reuses_offsets(patch: pytest.MonkeyPatch) -> None:
    """Together: each alone is masked by the other rule."""

    def produce(self: Host, key: LogKey, value: int, size_bytes: int) -> bool:
        run = self.hand_out(key)
        if run is None:
            return False
        hosted = self.hosted[key]
        log, ends = hosted.log, hosted.ends
        log.entries.append(Entry(run.epoch, value, ends.high_watermark, size_bytes))
        self._waiting.setdefault(key, deque()).append(run.end)
        self._step(Wrote(key, run, ends.flushed, size_bytes))

        def written() -> None:
            if log.failures and log.end == run.end and hosted.range_id in self.led:
                log.failures -= 1
                log.entries.pop()
                ends.cut(run.first)
                self._waiting[key] = deque(each for each in self._waiting[key] if each < run.end)
                self._handed[key] = self._handed[key]._replace(end=run.first)
            elif log.end >= run.end:
                self._flush(key)

        self._around.schedule.after(2000, lambda: self.do(written))
        return True

    patch.setattr(Host, "produce", produce)


def own_writes_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """A follower says where it stands while it writes what an earlier leader sent."""
    patch.setattr(RangeFollower, "_stand_when_idle", RangeFollower._stand)


def leads_before_its_logs_are_idle(patch: pytest.MonkeyPatch) -> None:
    """It leads while its logs are opened, and writes of its last epoch are under way."""
    patch.setattr(RangeReplica, "_is_ready", True)


def trash_purged_by_one_replica(patch: pytest.MonkeyPatch) -> None:
    """What is deleted is removed at once, though it can be restored."""

    def wanted(state: RingState, range_ids: Any) -> Any:
        return shipped(msgspec.structs.replace(state, deleted={}), range_ids)

    shipped = ranges._wanted
    patch.setattr(ranges, "_wanted", wanted)


def appends_though_it_holds_appends(patch: pytest.MonkeyPatch) -> None:
    """A leader goes on appending while it hands over."""
    patch.setattr(RangeReplica, "is_holding", False)


def hands_over_what_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    """A leader proposes its successor while appends wait for the high watermark."""
    patch.setattr(LedLog, "is_committed", True)


def set_aside_forgotten_by_a_crash(patch: pytest.MonkeyPatch) -> None:
    """What a start has set aside the next one does not know of."""

    def crashed(self: Disk, crash: Crash) -> None:
        self.damaged.clear()
        shipped(self, crash)

    shipped = Disk.crashed
    patch.setattr(Disk, "crashed", crashed)


def a_leader_is_sure_of_its_lead(patch: pytest.MonkeyPatch) -> None:
    """It gives its ends without an answer of others."""
    shipped = LeadProof.is_given
    patch.setattr(LeadProof, "is_given", lambda self, _, __: shipped(self, (), 1))


def an_isolated_leader_stays(patch: pytest.MonkeyPatch) -> None:
    """It leads on, though nobody answers it."""
    patch.setattr(Succession, "_leave", lambda self, view, known, clock_ms: [])


def recovering_brokers_pass_for_heard(patch: pytest.MonkeyPatch) -> None:
    """Its gossip is heard, and its process is not yet the registered one."""
    patch.setattr(Gossip, "is_process", lambda self, ordinal, incarnation, boot: True)


def busy_followers_say_nothing(patch: pytest.MonkeyPatch) -> None:
    """Whoever waits for its disk is not heard until that is over."""

    def on_woken(self: RangeFollower, now_ms: int) -> list[FollowerEffect]:
        effects = shipped(self, now_ms)
        return [] if self._under_way or self._cutting else effects

    shipped = RangeFollower._on_woken
    patch.setattr(RangeFollower, "_on_woken", on_woken)


def isolated_brokers_pass_for_fit(patch: pytest.MonkeyPatch) -> None:
    """Others leave their ranges to them."""
    patch.setattr(Health, "is_fit", property(lambda self: self.can_store))


def an_isolated_leader_is_not_let_go(patch: pytest.MonkeyPatch) -> None:
    """The metadata's leader hears it, so it passes for well."""

    def is_hasty(self: Control, command: Command, sender: int, now_ms: int) -> bool:
        return shipped(self, command, -1, now_ms)

    shipped = Control._is_hasty
    patch.setattr(Control, "_is_hasty", is_hasty)
