"""A leader seals its range for a step of the ring: here range 0 of a ring of three that grows."""

from collections import Counter

from msgspec.structs import replace

from tailrace_broker.core.replication.events import (
    Advance,
    Applied,
    Flushed,
    HandOver,
    HeardFollower,
    HoldAppends,
    LeaderEffect,
    LeaderEvent,
    LogAdded,
    LogAltered,
    LogRemoved,
    PeerView,
    Propose,
    ReplicationTiming,
    Stopping,
    Woken,
    Wrote,
    view_of,
)
from tailrace_broker.core.replication.leader import RangeLeader
from tailrace_broker.core.replication.log_ends import LogEnds
from tailrace_broker.model.commands import (
    AbortStep,
    DeleteTopic,
    Fence,
    PurgeTopics,
    Sealed,
)
from tailrace_broker.model.replication import LogKey, LogReport, Reported, Run, Standing
from tailrace_broker.model.ring_state import Replica, RingState
from tests.support.ring.states import begin, done, led, with_topic

TIMING = ReplicationTiming()
A, B, C, NEW = (Replica(each, 1) for each in range(4))
STATE = with_topic(led(3, registered=1), partitions=1)
GROWN = begin(STATE, "grow")
TOPIC = STATE.topics["orders"]
EPOCH = 1


def parent_of(state: RingState) -> int:
    """The range that the step splits."""
    assert state.step is not None
    return state.step.parents[0]


RANGE = parent_of(GROWN)
KEY = LogKey(TOPIC.id, next(e.first_partition for e in TOPIC.slices if e.range_id == RANGE))
ME = GROWN.ranges[RANGE].leader
assert ME is not None
OTHERS = [each for each in GROWN.ranges[RANGE].isr if each != ME]
HEARD = frozenset(range(4)) - {ME.ordinal}
HOLD = HoldAppends(EPOCH)


class Led:
    """The leader of the range, with one log, and two followers that are in sync."""

    def __init__(self, state: RingState = STATE, *, is_synced: bool = True) -> None:
        assert ME is not None
        self.now_ms = 0
        self.rules: Counter[str] = Counter()
        self.state = state
        self.ends = LogEnds()
        self.leader = RangeLeader(ME, view_of(state, RANGE), TIMING, 0, self.rules)
        self.do(LogAdded(KEY, self.ends, is_synced=is_synced, min_isr=2))
        for each in OTHERS:
            self.do(HeardFollower(Standing(RANGE, EPOCH, 1, each, ())))
            self.report(each, 0, 0, is_whole=True)
        self.do(PeerView(HEARD, HEARD))

    def do(self, event: LeaderEvent) -> list[LeaderEffect]:
        """The effects that are about holding, proposing and committing."""
        effects = self.leader.step(event, self.now_ms)
        self.leader.validate()
        return [e for e in effects if isinstance(e, HoldAppends | Propose | HandOver | Advance)]

    def apply(self, state: RingState) -> list[LeaderEffect]:
        self.state = state
        return self.do(Applied(view_of(state, RANGE)))

    def write(self, flushed: int | None = None) -> list[LeaderEffect]:
        end = self.ends.written + 1
        self.ends.under_way += 1
        durable = end if flushed is None else flushed
        return self.do(Wrote(KEY, Run(EPOCH, end - 1, end), durable, 10))

    def report(
        self, who: Replica, written: int, flushed: int, *, is_whole: bool = False
    ) -> list[LeaderEffect]:
        logs = (LogReport(KEY, written, flushed),)
        return self.do(HeardFollower(Reported(RANGE, EPOCH, 1, who, logs, is_whole)))

    def wake(self, after_ms: int = TIMING.heartbeat_ms) -> list[LeaderEffect]:
        """All followers answer meanwhile."""
        self.now_ms += after_ms
        effects: list[LeaderEffect] = []
        for each in OTHERS:
            effects += self.do(HeardFollower(Reported(RANGE, EPOCH, 1, each, ())))
        return [*effects, *self.do(Woken())]

    def pause(self, ms: int) -> list[LeaderEffect]:
        return [each for _ in range(ms // TIMING.heartbeat_ms) for each in self.wake()]


def sealed(
    led_: Led,
    end: int = 0,
    prepared: tuple[Replica, ...] = (A, B, C, NEW),
    *,
    held_after_ms: int = 0,
) -> Propose:
    assert led_.state.step is not None
    step = led_.state.step
    heirs = {each for child in step.children for each in child.replicas}
    mine = tuple(each for each in prepared if each.ordinal in heirs)
    return Propose(Sealed(step.id, RANGE, EPOCH, {TOPIC.id: (end,)}, mine, held_after_ms))


def abort(why: str) -> Propose:
    assert GROWN.step is not None
    return Propose(AbortStep(GROWN.step.id, RANGE, why))


def test_a_leader_that_is_near_holds_appends_and_proposes_its_ends_at_once() -> None:
    led_ = Led()

    assert led_.apply(GROWN) == [HOLD, sealed(led_)]
    assert led_.rules["leader.seals"] == led_.rules["leader.holds_for_step"] == 1


def test_what_it_proposes_is_what_the_state_machine_takes() -> None:
    led_ = Led()
    proposed = [each.command for each in led_.apply(GROWN) if isinstance(each, Propose)]

    after = done(GROWN, *proposed)

    assert after.step is None or RANGE in after.step.sealed


def test_it_waits_until_everything_is_committed_and_proposes_again_until_answered() -> None:
    led_ = Led()
    led_.write()

    assert led_.apply(GROWN) == [HOLD]
    assert led_.report(OTHERS[0], 1, 1) == []
    assert led_.report(OTHERS[1], 1, 1) == [Advance(KEY, 1), sealed(led_, 1)]
    assert led_.wake() == []
    assert led_.pause(TIMING.propose_ms - TIMING.heartbeat_ms) == [sealed(led_, 1)]


def test_a_write_under_way_is_waited_for() -> None:
    led_ = Led()
    led_.ends.under_way = 1

    assert led_.apply(GROWN) == [HOLD]
    assert led_.do(Wrote(KEY, Run(EPOCH, 0, 1), 1, 10)) == []


def test_a_written_topic_is_flushed_by_all_in_sync_replicas_first() -> None:
    led_ = Led(is_synced=False)
    led_.write(flushed=0)
    for each in OTHERS:
        led_.report(each, 1, 0)
    assert led_.ends.high_watermark == 1

    assert led_.apply(GROWN) == [HOLD]
    assert led_.report(OTHERS[0], 1, 1) == []
    assert led_.report(OTHERS[1], 1, 1) == []
    assert led_.do(Flushed(KEY, 1)) == [sealed(led_, 1)]


def test_what_lies_in_the_trash_is_waited_for_and_not_named() -> None:
    led_ = Led(is_synced=False)
    led_.write(flushed=0)
    for each in OTHERS:
        led_.report(each, 1, 1)
    state = done(GROWN, DeleteTopic("orders", 1))

    assert led_.apply(state) == [HOLD]
    assert led_.state.step is not None
    (proposal,) = led_.do(Flushed(KEY, 1))
    assert isinstance(proposal, Propose)
    assert isinstance(proposal.command, Sealed)
    assert proposal.command.ends == {}


def test_what_is_purged_meanwhile_is_not_waited_for() -> None:
    led_ = Led()
    led_.write()
    assert led_.apply(GROWN) == [HOLD]
    purged = done(GROWN, DeleteTopic("orders", 1), PurgeTopics({TOPIC.id: 1}))

    led_.do(LogRemoved(KEY))
    [proposed] = led_.apply(purged)
    assert isinstance(proposed, Propose)
    assert isinstance(proposed.command, Sealed)
    assert proposed.command.ends == {}


def test_appends_are_not_held_before_the_heirs_are_heard() -> None:
    led_ = Led()
    led_.do(PeerView(HEARD - {NEW.ordinal}, HEARD))

    assert led_.apply(GROWN) == []
    assert led_.do(PeerView(HEARD, HEARD)) == [HOLD, sealed(led_)]


def test_a_fenced_heir_is_not_waited_for() -> None:
    led_ = Led()
    led_.do(PeerView(HEARD - {NEW.ordinal}, HEARD))
    state = done(GROWN, Fence(NEW.ordinal, 1))

    assert led_.apply(state) == [HOLD, sealed(led_, prepared=(A, B, C))]


def test_appends_are_not_held_for_a_child_that_too_few_could_hold() -> None:
    led_ = Led()

    assert led_.apply(done(GROWN, *(Fence(each, 1) for each in sorted(HEARD)))) == []
    assert led_.rules["leader.holds_for_step"] == 0


def test_appends_are_not_held_while_much_is_uncommitted() -> None:
    led_ = Led()
    log = led_.leader._logs[KEY]
    led_.write()
    log.near_from = 1

    assert led_.apply(GROWN) == []
    led_.report(OTHERS[0], 1, 1)
    led_.report(OTHERS[1], 1, 1)
    assert led_.wake() == [HOLD, sealed(led_, 1, held_after_ms=TIMING.heartbeat_ms)]


def test_appends_are_not_held_while_a_replica_is_out_of_the_isr() -> None:
    led_ = Led()
    owner = GROWN.ranges[RANGE]
    shrunk = replace(owner, isr=tuple(e for e in owner.isr if e != OTHERS[0]), version=1)

    led_.apply(replace(GROWN, ranges={**GROWN.ranges, RANGE: shrunk}))

    assert led_.rules["leader.holds_for_step"] == 0


def test_appends_are_not_held_while_a_replica_seems_dead_or_stands_again() -> None:
    led_ = Led()
    found = led_.leader._progress[OTHERS[0].ordinal]
    found.is_suspected = True
    led_.apply(GROWN)
    found.is_suspected, found.is_following = False, False
    led_.wake()
    assert led_.rules["leader.holds_for_step"] == 0

    found.is_following = True
    held_after_ms = 2 * TIMING.heartbeat_ms
    assert led_.wake() == [HOLD, sealed(led_, held_after_ms=held_after_ms)]


def test_a_log_that_is_not_open_here_is_waited_for() -> None:
    led_ = Led()
    led_.do(LogRemoved(KEY))

    assert led_.apply(GROWN) == []
    assert led_.rules["leader.holds_for_step"] == 0


def test_a_log_that_is_set_aside_meanwhile_is_not_sealed() -> None:
    led_ = Led()
    led_.ends.under_way = 1
    assert led_.apply(GROWN) == [HOLD]

    led_.do(LogRemoved(KEY))

    assert led_.wake() == []


def test_a_step_that_cannot_begin_to_seal_is_aborted() -> None:
    led_ = Led()
    led_.pause(TIMING.step_wait_ms)  # time counts from when the step is there
    led_.do(PeerView(HEARD - {NEW.ordinal}, HEARD))
    led_.apply(GROWN)

    assert led_.pause(TIMING.step_wait_ms - TIMING.heartbeat_ms) == []
    assert led_.wake() == [abort(f"broker {NEW.ordinal} is not heard")]
    assert led_.rules["leader.aborts_step"] == 1


def test_appends_held_for_long_abort_the_step_and_nothing_more_is_proposed() -> None:
    led_ = Led()
    led_.ends.under_way = 1
    assert led_.apply(GROWN) == [HOLD]
    assert led_.pause(TIMING.step_ms - TIMING.heartbeat_ms) == []
    assert led_.wake() == [abort("its leader has not stored all of it")]

    led_.ends.under_way = 0

    assert led_.wake() == []
    assert led_.pause(TIMING.propose_ms - TIMING.heartbeat_ms) == [
        abort("its leader has not stored all of it")
    ]


def until_aborted(led_: Led, limit_ms: int) -> str:
    """Why; beside it the leader may leave a replica behind."""
    proposed = [each.command for each in led_.pause(limit_ms) if isinstance(each, Propose)]
    [why] = {each.why for each in proposed if isinstance(each, AbortStep)}
    return why


def test_a_step_that_is_aborted_says_who_was_waited_for() -> None:
    first = OTHERS[0].ordinal
    owner = GROWN.ranges[RANGE]
    shrunk = replace(owner, isr=tuple(e for e in owner.isr if e != OTHERS[0]), version=1)
    out_of_sync = Led()
    out_of_sync.apply(replace(GROWN, ranges={**GROWN.ranges, RANGE: shrunk}))
    fenced = Led()
    fenced.apply(done(GROWN, *(Fence(each, 1) for each in sorted(HEARD))))
    closed = Led()
    closed.do(LogRemoved(KEY))
    closed.apply(GROWN)
    far = Led()
    far.write()
    far.leader._logs[KEY].near_from = 1
    far.apply(GROWN)
    unfed = Led()
    unfed.leader._progress[first].is_following = False
    unfed.apply(GROWN)
    leaving = Led()
    leaving.leader._progress[first].is_stopping = True
    leaving.apply(GROWN)

    why = [
        until_aborted(led_, TIMING.step_wait_ms)
        for led_ in (out_of_sync, fenced, closed, far, unfed, leaving)
    ]
    assert why == [
        f"broker {first} is not in sync",
        "too few brokers are there",
        "not all of its partitions are open on its leader",
        "its replicas lack much of what its leader has",
        f"broker {first} does not follow its leader",
        f"broker {first} does not answer its leader",
    ]


def test_a_step_that_is_aborted_says_who_has_not_stored_what_was_held() -> None:
    led_ = Led()
    led_.write()
    led_.report(OTHERS[0], 1, 1)
    assert led_.apply(GROWN) == [HOLD]

    why = until_aborted(led_, TIMING.step_ms)
    assert why == f"broker {OTHERS[1].ordinal} has not stored all of it"


def test_a_range_that_has_reported_waits_for_the_others() -> None:
    led_ = Led()
    assert led_.apply(GROWN) == [HOLD, sealed(led_)]
    assert GROWN.step is not None
    led_.apply(replace(GROWN, step=replace(GROWN.step, sealed={RANGE: {}})))

    assert led_.pause(TIMING.step_ms - TIMING.heartbeat_ms) == []
    assert led_.wake() == [abort("its leader has not stored all of it")]


def test_a_leader_whose_step_is_gone_leads_on_in_a_new_epoch() -> None:
    led_ = Led()
    led_.apply(GROWN)
    assert ME is not None

    assert led_.apply(done(GROWN, AbortStep(GROWN.step.id if GROWN.step else -1))) == [
        HandOver(EPOCH, ME)
    ]
    assert led_.leader.succession.is_holding


def test_nobody_joins_the_isr_after_ends_were_proposed() -> None:
    led_ = Led(is_synced=False)
    led_.apply(GROWN)
    owner = GROWN.ranges[RANGE]
    shrunk = replace(owner, isr=tuple(e for e in owner.isr if e != OTHERS[0]), version=1)

    led_.apply(replace(GROWN, ranges={**GROWN.ranges, RANGE: shrunk}))
    led_.wake()

    assert led_.rules["leader.counts_candidate"] == 1
    assert led_.rules["leader.proposed_join"] == 0


def test_a_member_of_which_nothing_is_known_keeps_the_range_open() -> None:
    led_ = Led()
    led_.ends.under_way = 1
    led_.apply(GROWN)
    again = OTHERS[0]._replace(registration=2)
    owner = GROWN.ranges[RANGE]
    isr = tuple(again if e == OTHERS[0] else e for e in owner.isr)
    led_.apply(replace(GROWN, ranges={**GROWN.ranges, RANGE: replace(owner, isr=isr, version=1)}))
    led_.ends.under_way = 0

    assert [e for e in led_.wake() if isinstance(e, Propose)] == []


def test_who_begins_to_count_at_the_end_must_have_flushed_all_too() -> None:
    led_ = Led()
    led_.write()
    led_.report(OTHERS[0], 1, 1)
    assert led_.apply(GROWN) == [HOLD]
    sealing = led_.leader._sealing
    sealing._open_logs = []  # all were whole, before another member came to count

    assert led_.wake() == []
    assert led_.report(OTHERS[1], 1, 1) == [Advance(KEY, 1), sealed(led_, 1)]


def test_while_a_step_is_open_the_natural_leader_does_not_get_the_range_back() -> None:
    natural = replace(GROWN.ranges[RANGE], natural_leader=OTHERS[0].ordinal)
    led_ = Led()
    led_.do(PeerView(HEARD - {NEW.ordinal}, HEARD))
    led_.apply(replace(GROWN, ranges={**GROWN.ranges, RANGE: natural}))

    assert led_.pause(TIMING.step_wait_ms - TIMING.heartbeat_ms) == []
    led_.leader.succession._able_since_ms = -TIMING.failback_ms
    assert led_.wake() == [abort(f"broker {NEW.ordinal} is not heard")]


def test_a_leader_that_stops_hands_over_though_a_step_is_open() -> None:
    led_ = Led()
    led_.ends.under_way = 1
    led_.apply(GROWN)
    led_.ends.under_way = 0

    assert led_.do(Stopping()) == [HandOver(EPOCH, OTHERS[0])]


def test_a_settings_change_does_not_end_the_wait_for_flushes() -> None:
    led_ = Led(is_synced=False)
    led_.write(flushed=0)
    for each in OTHERS:
        led_.report(each, 1, 1)
    led_.apply(GROWN)

    assert led_.do(LogAltered(KEY, is_synced=False, min_isr=2)) == []
    assert led_.do(Flushed(KEY, 1)) == [sealed(led_, 1)]
