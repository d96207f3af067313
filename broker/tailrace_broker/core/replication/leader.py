"""The leader of one range in one epoch feeds followers, commits, proposes the ISR. A machine.

It is made when this process leads, all logs are added, and none of their writes is under way; it is
dropped with the epoch. What counts for the high watermark is in SAFETY 2, here in `_advance` and
`_count`:

- the smallest end of the ISR and of every member of an unanswered proposal;
- reported in this epoch, by the registered process, after its cut.
"""

from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import assert_never

from tailrace_broker.core.replication.events import (
    Advance,
    Applied,
    AskProof,
    Feed,
    Flushed,
    GiveUpEpoch,
    HeardFollower,
    LeaderEffect,
    LeaderEvent,
    LeadProven,
    LogAdded,
    LogAltered,
    LogRemoved,
    LogStartMoved,
    PeerView,
    Propose,
    RangeView,
    ReplicationTiming,
    SendFollower,
    SetLogStart,
    Stopping,
    Suspected,
    Woken,
    WriteFailed,
    Wrote,
)
from tailrace_broker.core.replication.isr import Proposal, admitted, shrunk, to_leave
from tailrace_broker.core.replication.lead_proof import LeadProof
from tailrace_broker.core.replication.progress import FollowerLag, LedLog, Progress
from tailrace_broker.core.replication.sealing import Sealing
from tailrace_broker.core.replication.succession import Succession
from tailrace_broker.model.commands import ChangeIsr
from tailrace_broker.model.replication import (
    Cuts,
    Heartbeat,
    LogHead,
    LogKey,
    Reported,
    Restart,
    Standing,
)
from tailrace_broker.model.ring_state import Replica


class RangeLeader:
    """`wake_at_ms`: when `Woken` is due. `succession`: who is to lead next."""

    def __init__(
        self,
        me: Replica,
        view: RangeView,
        timing: ReplicationTiming,
        now_ms: int,
        rules: Counter[str],
    ) -> None:
        assert view.range.leader == me, (view.range, me)
        self.epoch = view.range.epoch
        self.wake_at_ms = self._heartbeat_at_ms = now_ms + timing.heartbeat_ms
        self._me = me
        self._view = view
        self._timing = timing
        self._rules = rules
        self._logs: dict[LogKey, LedLog] = {}
        self._progress: dict[int, Progress] = {}  # of the other replicas, by ordinal
        self._proposal: Proposal | None = None
        # Whose ends are counted beside the own; None: of one of them none is known.
        self._counted: list[Progress] | None = None
        self._isr_count = 0  # in force for min ISR
        self._changed: set[LogKey] = set()  # heads that followers were not told
        self._proof = LeadProof()
        self.is_given_up = False
        self.succession = Succession(me, timing, now_ms, rules)
        self._sealing = Sealing(me, timing, rules)
        self._seen_ms = now_ms
        self._stood_still_ms = 0
        self._meet(now_ms)
        self._count()

    @property
    def proposed(self) -> tuple[Replica, ...]:
        """Those that an unanswered proposal adds."""
        return () if self._proposal is None else self._proposal.joins

    def validate(self) -> None:
        """Assert what always holds."""
        for key, log in self._logs.items():
            log.ends.validate()
            assert log.ends.last_epoch <= self.epoch, log.ends
            for each in self._counted or ():
                assert each.has_reported, (key, each.replica)
        for each in self._progress.values():
            assert each.has_reported or not each.is_following
            assert each.candidate_since_ms is None or each.has_reported
        if self._proposal is not None:
            assert self._proposal.command.epoch == self.epoch
        self.succession.validate()

    def lags(self, now_ms: int) -> list[FollowerLag]:
        """How far the other replicas are behind. O(followers * logs)."""
        clock_ms = now_ms - self._stood_still_ms
        return [each.lag(self._logs, clock_ms) for each in self._progress.values()]

    def is_heard(self, now_ms: int) -> bool | None:
        """Whether another replica answers; None: not known yet, or gossip hears none of them."""
        return self.succession.is_heard(self._progress, now_ms - self._stood_still_ms)

    def step(self, event: LeaderEvent, now_ms: int) -> list[LeaderEffect]:
        """Take in an event. A write costs O(followers), a report O(logs in it)."""
        clock_ms = self._listen(now_ms)
        effects = self._routed(event, now_ms, clock_ms)
        is_due = self.succession.has_begun or isinstance(event, Woken)
        if self._view.step is not None:
            is_due |= isinstance(event, Applied | PeerView)
        if is_due and not self.is_given_up:
            effects += self._close(clock_ms)
        if self._changed:
            self.wake_at_ms = min(self.wake_at_ms, now_ms + self._timing.heads_ms)
        return effects

    def _routed(self, event: LeaderEvent, now_ms: int, clock_ms: int) -> list[LeaderEffect]:
        match event:
            case Wrote():
                return self._on_wrote(event, clock_ms)
            case Flushed(key, end):
                return self._on_flushed(key, end)
            case HeardFollower(message):
                if isinstance(message, Standing):
                    return self._on_standing(message, clock_ms)
                return self._on_reported(message, clock_ms)
            case Woken():
                return self._on_woken(now_ms, clock_ms)
            case Applied(view):
                return self._on_applied(view, clock_ms)
            case Suspected(ordinal):
                return self._on_suspected(ordinal, clock_ms)
            case WriteFailed(key):
                self._logs[key].ends.under_way -= 1
                return self._give_up()
            case LogAdded():
                return self._on_added(event)
            case LogAltered(key, is_synced, min_isr):
                return self._on_altered(key, is_synced=is_synced, min_isr=min_isr)
            case LogRemoved(key):
                return self._on_removed(key, clock_ms)
            case LogStartMoved(key, start):
                self._logs[key].ends.move_start(start)
                self._changed.add(key)
                return []
            case Stopping() | PeerView():
                self.succession.note(event)
                return []
            case AskProof():
                replicas = self._view.range.replicas
                asked = self._proof.ask(self._progress.values(), len(replicas))
                return [*self._say((), asked), *self._proven()]
            case _:
                assert_never(event)

    def _close(self, clock_ms: int) -> list[LeaderEffect]:
        """Seal the range for a step, or have somebody else lead it."""
        effects: list[LeaderEffect] = []
        view, succession, progress = self._view, self.succession, self._progress
        if view.step is not None and not succession.is_stopping:
            effects += self._sealing.step(
                view, succession, progress, self._counted, self._logs, clock_ms
            )
            if succession.is_holding:
                return effects
        return [*effects, *succession.step(view, progress, self._logs.values(), clock_ms)]

    # --- the clock ---

    def _listen(self, now_ms: int) -> int:
        """The own clock: without the time for which this process stood still.

        So nobody is taken for lagging because the leader was paused.
        """
        gap_ms = now_ms - self._seen_ms
        if gap_ms > 2 * self._timing.heartbeat_ms:
            self._stood_still_ms += gap_ms - self._timing.heartbeat_ms
            self._rules["leader.stood_still"] += 1
        self._seen_ms = max(self._seen_ms, now_ms)
        return now_ms - self._stood_still_ms

    # --- the own log ---

    def _on_wrote(self, wrote: Wrote, clock_ms: int) -> list[LeaderEffect]:
        """Feed what the own write has completed: so the leader is ahead of every follower."""
        key, run = wrote.log, wrote.run
        log = self._logs[key]
        assert run.first == log.ends.written, (run, log.ends)
        assert run.epoch == self.epoch, (run, self.epoch)
        log.ends.under_way -= 1
        log.ends.begin_epoch(run.epoch, run.first)
        log.wrote(run.end, wrote.size_bytes)
        log.ends.flushed = max(log.ends.flushed, wrote.flushed)
        effects = self._advance(key, log)
        for each in self._progress.values():
            if each.is_member:
                each.owed.append((clock_ms, key, run.end))
            if each.is_following:
                effects += self._feed(each, key, log)
        self._changed.discard(key)  # it went with the batches
        return effects

    def _on_flushed(self, key: LogKey, end: int) -> list[LeaderEffect]:
        log = self._logs[key]
        log.ends.flushed = max(log.ends.flushed, end)
        return self._advance(key, log)

    def _give_up(self) -> list[LeaderEffect]:
        """An offset is never handed out twice in an epoch."""
        if self.is_given_up:
            return []
        self.is_given_up = True
        self._rules["leader.gave_up"] += 1
        return [GiveUpEpoch(self.epoch)]

    def _on_added(self, added: LogAdded) -> list[LeaderEffect]:
        key = added.log
        assert key not in self._logs, key
        log = self._logs[key] = LedLog(
            added.ends,
            is_synced=added.is_synced,
            min_isr=added.min_isr,
            near_bytes_max=self._timing.near_bytes,
        )
        effects: list[LeaderEffect] = []
        for each in self._progress.values():
            if key in each.uncompared:
                effects.append(self._restart(each))
            elif each.is_following:
                each.sent[key] = log.ends.start  # a follower that gets the log stands again
            each.check_candidate(key, log)
            if each.written(key) < log.near_from:
                each.far.add(key)
        return [*effects, *self._advance(key, log)]  # of a lone copy nothing else may ever happen

    def _restart(self, found: Progress) -> SendFollower:
        """Have it say again where it is: nothing is fed to it until then."""
        found.is_following = False
        restart = Restart(self._view.range.id, self.epoch, found.session)
        return SendFollower(found.replica.ordinal, restart)

    def _on_altered(self, key: LogKey, *, is_synced: bool, min_isr: int) -> list[LeaderEffect]:
        log = self._logs[key]
        log.is_synced, log.min_isr = is_synced, min_isr
        for each in self._progress.values():
            each.check_candidate(key, log)
        return self._advance(key, log)

    def _on_removed(self, key: LogKey, clock_ms: int) -> list[LeaderEffect]:
        del self._logs[key]
        self._changed.discard(key)
        effects: list[LeaderEffect] = []
        for each in self._progress.values():
            each.remove(key)
            effects += self._consider(each, clock_ms)
        return effects

    # --- committing ---

    def _advance(self, key: LogKey, log: LedLog) -> list[LeaderEffect]:
        """Move the high watermark to the smallest counted end. O(followers)."""
        counted = self._counted
        if counted is None or self._isr_count < log.min_isr or self.is_given_up:
            return []
        is_synced = log.is_synced
        end = log.ends.counted(is_synced=is_synced)
        for each in counted:
            end = min(end, each.counted(key, is_synced=is_synced))
        if end <= log.ends.high_watermark:
            return []
        log.ends.high_watermark = end
        self._changed.add(key)
        return [Advance(key, end), *self._take_start(key, log)]

    def _take_start(self, key: LogKey, log: LedLog) -> list[LeaderEffect]:
        """Keep the start that an earlier leader decided and a follower has: it never falls."""
        start = min(log.known_start, log.ends.high_watermark)
        if start <= log.ends.start:
            return []
        self._rules["leader.took_log_start"] += 1
        log.ends.move_start(start)
        self._changed.add(key)
        return [SetLogStart(key, start)]

    def _advance_all(self) -> list[LeaderEffect]:
        effects: list[LeaderEffect] = []
        for key, log in self._logs.items():
            effects += self._advance(key, log)
        return effects

    def _count(self) -> list[LeaderEffect]:
        """Find again whose ends count; a ghost's never do, and nobody commits without it."""
        isr = self._view.range.isr
        members = {*isr, *self.proposed}
        members |= {
            each.replica for each in self._progress.values() if each.candidate_since_ms is not None
        }
        members.discard(self._me)
        known = {each.replica: each for each in self._progress.values() if each.has_reported}
        self._isr_count = len(isr)
        if members <= known.keys():
            self._counted = [known[each] for each in sorted(members)]
            return self._advance_all()
        self._counted = None
        self._rules["leader.waits_for_member"] += 1
        return []

    # --- followers ---

    def _sender(self, replica: Replica, epoch: int) -> Progress | None:
        """Of the registered process alone."""
        found = self._progress.get(replica.ordinal)
        if epoch != self.epoch or found is None or found.replica != replica:
            self._rules["leader.refused_sender"] += 1
            return None
        return found

    def _on_standing(self, standing: Standing, clock_ms: int) -> list[LeaderEffect]:
        found = self._sender(standing.replica, standing.epoch)
        if found is None or standing.session <= found.session:
            return []
        found.begin_session(standing.session, clock_ms)
        found.is_suspected = False
        cuts = []
        effects: list[LeaderEffect] = []
        for each in standing.logs:
            log = self._logs.get(each.log)
            if log is None:
                found.uncompared.add(each.log)
            else:
                log.learn_start(each)
                effects += self._take_start(each.log, log)
                cut = log.cut_of(each)
                cuts.append(cut)
                if cut.is_reset or cut.end < each.end:
                    what = "reset" if cut.is_reset else "cut"
                    self._rules[f"leader.{what}_follower"] += 1
        answer = Cuts(standing.range_id, self.epoch, standing.session, tuple(cuts))
        return [*effects, SendFollower(found.replica.ordinal, answer)]

    def _on_reported(self, reported: Reported, clock_ms: int) -> list[LeaderEffect]:
        found = self._sender(reported.replica, reported.epoch)
        if found is None:
            return []
        found.heard_ms = max(found.heard_ms, clock_ms)  # in whatever session
        if reported.session != found.session or not (found.is_following or reported.is_whole):
            return []  # what it answers the cuts with comes later, or again
        found.round = reported.round
        found.is_suspected = False
        effects = self._proven()
        for each in reported.logs:
            if each.log in found.uncompared:
                continue
            found.report(each)
            log = self._logs.get(each.log)
            if log is not None:
                effects += self._on_report(found, each.log, log)
        owed = found.owed
        while owed:
            _, key, end = owed[0]
            if found.counted(key, is_synced=self._logs[key].is_synced) < end:
                break
            owed.popleft()
        if reported.is_whole and not found.is_following:
            effects += self._begin_feeding(found, clock_ms)
        if reported.is_stopping and not found.is_stopping:
            found.is_stopping = True
            self._rules["leader.follower_stops"] += 1
            return effects + self._drop(found, clock_ms)
        return effects + self._consider(found, clock_ms)

    def _on_report(self, found: Progress, key: LogKey, log: LedLog) -> list[LeaderEffect]:
        written = found.written(key)
        if written >= log.near_from:
            found.far.discard(key)
        if key in found.lacking:
            found.check_candidate(key, log)
        effects = self._advance(key, log)
        if key in found.fetching and written > found.sent[key]:
            found.fetching.discard(key)
            found.sent[key] = written
            effects += self._feed(found, key, log)
        return effects

    def _begin_feeding(self, found: Progress, clock_ms: int) -> list[LeaderEffect]:
        """Its cuts are durable: feed each log from its end on."""
        is_first = not found.has_reported
        found.is_following = found.has_reported = True
        effects = self._count() if is_first else []
        for key, log in self._logs.items():
            written = found.written(key)
            found.sent[key] = max(written, log.ends.start)
            if written < log.near_from:
                found.far.add(key)
            else:
                found.far.discard(key)
            if is_first and found.is_member and written < log.ends.written:
                found.owed.append((clock_ms, key, log.ends.written))
            effects += self._feed(found, key, log)
        return effects

    def _feed(self, found: Progress, key: LogKey, log: LedLog) -> list[LeaderEffect]:
        """Send what it lacks: all that is near at once, else one piece at a time."""
        first, ends = found.sent[key], log.ends
        if first >= ends.written or key in found.fetching:
            return []
        ordinal, session = found.replica.ordinal, found.session
        if first < ends.start:
            self._rules["leader.restarted_follower"] += 1
            return [self._restart(found)]
        end: int | None = ends.written
        if first < log.near_from:
            found.fetching.add(key)
            self._rules["leader.catch_up"] += 1
            end = None
        else:
            found.sent[key] = ends.written
        return [Feed(ordinal, session, key, first, end, ends.high_watermark, ends.start)]

    # --- in sync or not ---

    def _consider(self, found: Progress, clock_ms: int) -> list[LeaderEffect]:
        """Admit a replica: near, then counted, then caught up, then proposed."""
        if not found.is_following or found.is_member or self.is_given_up:
            return []
        effects: list[LeaderEffect] = []
        if found.candidate_since_ms is None:
            is_dead = found.seems_dead(clock_ms, self._timing.silence_ms)
            if found.far or clock_ms < found.not_before_ms or is_dead:
                return []
            found.far.update(
                key for key, log in self._logs.items() if found.written(key) < log.near_from
            )
            if found.far:
                return []
            found.candidate_since_ms = clock_ms
            for key, log in self._logs.items():
                found.check_candidate(key, log)
            self._rules["leader.counts_candidate"] += 1
            effects += self._count()
        if not found.lacking and self._proposal is None:
            effects += self._propose((found,), clock_ms)
        return effects

    def _propose(self, joins: tuple[Progress, ...], clock_ms: int) -> list[LeaderEffect]:
        """One change at a time: who is caught up joins, who lags leaves as far as the floor lets.

        A follower that has joined takes its own ghost's place. Where ends were proposed for a step
        nobody joins: it may not have flushed them all.
        """
        owner = self._view.range
        joins = () if self._sealing.has_reported else joins
        replicas = tuple(each.replica for each in joins)
        isr = admitted(owner.isr, replicas)
        gone = to_leave(isr, self._me, self._progress, partial(self._lags, clock_ms))
        isr = shrunk(isr, self._me, gone, self._view.floor)
        if isr == owner.isr:
            return []
        joining = tuple(each for each in replicas if each in isr)
        command = ChangeIsr(owner.id, self.epoch, owner.version, isr)
        self._proposal = Proposal(command, joining, clock_ms + self._timing.propose_ms)
        self._rules["leader.proposed_join" if joining else "leader.proposed_shrink"] += 1
        return [Propose(command), *self._count()]

    def _lags(self, clock_ms: int, found: Progress) -> bool:
        return found.is_going or clock_ms - found.lags_since_ms() > self._timing.lag_ms

    def _on_suspected(self, ordinal: int, clock_ms: int) -> list[LeaderEffect]:
        found = self._progress.get(ordinal)
        if found is None:
            return []
        found.is_suspected = True
        self._rules["leader.suspects"] += 1
        return self._drop(found, clock_ms)

    def _drop(self, found: Progress, clock_ms: int) -> list[LeaderEffect]:
        """Have it leave the ISR."""
        effects: list[LeaderEffect] = []
        if found.candidate_since_ms is not None and found.replica not in self.proposed:
            effects += self._drop_candidate(found, clock_ms)
        return effects + self._reconsider(clock_ms)

    def _reconsider(self, clock_ms: int) -> list[LeaderEffect]:
        """Propose what is due, unless a proposal is unanswered."""
        if self._proposal is not None or self.is_given_up:
            return []
        ready = tuple(
            each
            for each in self._progress.values()
            if each.candidate_since_ms is not None and not each.lacking and each.is_following
        )
        return self._propose(ready, clock_ms)

    def _on_woken(self, now_ms: int, clock_ms: int) -> list[LeaderEffect]:
        if now_ms < self.wake_at_ms:
            return []
        effects: list[LeaderEffect] = self._heartbeats()
        if now_ms < self._heartbeat_at_ms:  # only heads were due
            self.wake_at_ms = self._heartbeat_at_ms
            return effects
        self.wake_at_ms = self._heartbeat_at_ms = now_ms + self._timing.heartbeat_ms
        if self.is_given_up:
            return [*effects, GiveUpEpoch(self.epoch)]
        for each in self._progress.values():
            is_late = each.is_late_candidate(clock_ms, self._timing.lag_ms)
            if is_late and each.replica not in self.proposed:
                effects += self._drop_candidate(each, clock_ms)
            effects += self._consider(each, clock_ms)
        proposal = self._proposal
        if proposal is None:
            return effects + self._reconsider(clock_ms)
        if clock_ms >= proposal.again_ms:
            proposal.again_ms = clock_ms + self._timing.propose_ms
            effects.append(Propose(proposal.command))
        return effects

    def _drop_candidate(self, found: Progress, clock_ms: int) -> list[LeaderEffect]:
        self._rules["leader.dropped_candidate"] += 1
        found.end_candidacy()
        found.not_before_ms = clock_ms + self._timing.lag_ms
        return self._count()

    def _heartbeats(self) -> list[LeaderEffect]:
        heads = tuple(
            LogHead(key, self._logs[key].ends.high_watermark, self._logs[key].ends.start)
            for key in sorted(self._changed)
        )
        self._changed.clear()
        return self._say(heads, self._progress.values())

    def _say(self, heads: tuple[LogHead, ...], followers: Iterable[Progress]) -> list[LeaderEffect]:
        range_id = self._view.range.id
        return [
            SendFollower(
                each.replica.ordinal,
                Heartbeat(range_id, self.epoch, each.session, heads, self._proof.round),
            )
            for each in followers
            if each.is_following
        ]

    def _proven(self) -> list[LeaderEffect]:
        rounds = [each.round for each in self._progress.values()]
        is_given = self._proof.is_given(rounds, len(self._view.range.replicas))
        return [LeadProven(self.epoch)] if is_given and not self.is_given_up else []

    # --- the applied state ---

    def _on_applied(self, view: RangeView, clock_ms: int) -> list[LeaderEffect]:
        assert view.range.epoch == self.epoch, "the epoch has ended, and its leader with it"
        self._view = view
        self._meet(clock_ms)
        proposal = self._proposal
        if proposal is not None and self._is_over(proposal):
            self._proposal = None
        for each in self._progress.values():
            if each.candidate_since_ms is not None and each.is_member:
                self._rules["leader.admitted"] += 1
                each.end_candidacy()
        return [*self._count(), *self._reconsider(clock_ms)]

    def _is_over(self, proposal: Proposal) -> bool:
        """Answered, or it can never commit; a refusal alone is no answer: a copy may be late."""
        if self._view.range.version != proposal.command.version:
            return True
        current = self._view.current
        if any(current.get(each.ordinal) != each for each in proposal.joins):
            self._rules["leader.proposal_outlived"] += 1
            return True
        return False

    def _meet(self, clock_ms: int) -> None:
        """Of a replica in a new registration nothing is known."""
        for ordinal, replica in self._view.current.items():
            known = self._progress.get(ordinal)
            if ordinal != self._me.ordinal and (known is None or known.replica != replica):
                self._progress[ordinal] = Progress(replica, clock_ms)
        for each in self._progress.values():
            each.is_member = each.replica in self._view.range.isr
            if not each.is_member:
                each.owed.clear()
