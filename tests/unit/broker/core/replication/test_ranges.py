import dataclasses
from collections import Counter
from typing import Any

from msgspec.structs import replace

from tailrace_broker.core.replication.events import (
    Advance,
    Append,
    Cut,
    CutDone,
    Feed,
    Flushed,
    HoldAppends,
    LeadProven,
    LogStartMoved,
    PeerView,
    ReplicationTiming,
    Stopping,
    Suspected,
    Woken,
    WriteFailed,
    Wrote,
)
from tailrace_broker.core.replication.follower import NEVER_MS
from tailrace_broker.core.replication.log_ends import LogEnds
from tailrace_broker.core.replication.progress import FollowerLag
from tailrace_broker.core.replication.range_events import (
    BeganLeading,
    EndedLeading,
    HeardPeer,
    LinkBroke,
    LogClosed,
    LogOpened,
    NeedLog,
    OfRange,
    ProposeCommand,
    ProveLead,
    RangeEffect,
    RangesEvent,
    RemoveLog,
    SendPeer,
    StateApplied,
)
from tailrace_broker.core.replication.range_replica import FAILOVER_MEMORY_MS
from tailrace_broker.core.replication.ranges import RangeReplicas, logs_of
from tailrace_broker.model.commands import (
    AbortStep,
    AlterTopic,
    ChangeIsr,
    DeleteTopic,
    Lead,
    Lost,
    PurgeTopics,
)
from tailrace_broker.model.replication import (
    Batches,
    Cuts,
    EpochStart,
    Heartbeat,
    LogCut,
    LogKey,
    LogReport,
    LogStanding,
    Reported,
    Run,
    Standing,
)
from tailrace_broker.model.ring_state import Replica, RingState
from tests.support.ring.states import begin, done, founded, led, sealed, with_topic

A, B, C = (Replica(each, 1) for each in range(3))
STATE = with_topic(led(), partitions=1)
TOPIC = STATE.topics["orders"]
# Partitions of ranges 0, 1, 2, led by brokers 0, 1, 2.
KEYS = {range_id: key for key, range_id in logs_of(TOPIC)}
KEY = KEYS[0]


class Process:
    """A broker's replicas, and what they did."""

    def __init__(self, me: Replica = A, ordinal: int = 0) -> None:
        self.me = me
        self.now_ms = 0
        self.rules: Counter[str] = Counter()
        self.replicas = RangeReplicas(ordinal, ReplicationTiming(), self.rules)
        self.ends: dict[LogKey, LogEnds] = {}

    def do(self, event: RangesEvent) -> list[OfRange]:
        effects = self.replicas.step(event, self.now_ms)
        self.replicas.validate()
        return effects

    def of(self, event: RangesEvent, range_id: int = 0) -> list[RangeEffect]:
        return [each.effect for each in self.do(event) if each.range_id == range_id]

    def open(self, key: LogKey = KEY, range_id: int = 0, **ends: Any) -> list[RangeEffect]:
        self.ends[key] = LogEnds(**ends)
        return self.of(LogOpened(key, self.ends[key]), range_id)

    def apply(self, state: RingState, range_id: int = 0) -> list[RangeEffect]:
        return self.of(StateApplied(state, self.me), range_id)

    def wrote(self, run: Run, key: LogKey = KEY) -> list[RangeEffect]:
        return self.of(Wrote(key, run, run.end, 10))

    def begin(self, run: Run, key: LogKey = KEY) -> Run:
        """Its log has handed out these offsets, and writes."""
        self.replicas.begin_write(key)
        return run

    def hear(self, message: Any, range_id: int = 0) -> list[RangeEffect]:
        return self.of(HeardPeer(message), range_id)


def leading(**ends: Any) -> Process:
    """Broker 0, which leads range 0 and follows in the others."""
    process = Process()
    for range_id, key in KEYS.items():
        process.open(key, range_id, **ends)
    process.apply(STATE)
    return process


def following() -> Process:
    """Broker 1, which follows broker 0 in range 0."""
    process = Process(B, 1)
    for range_id, key in KEYS.items():
        process.open(key, range_id)
    process.apply(STATE)
    session = process.replicas.ranges[0].follower.session
    process.hear(Cuts(0, 1, session, (LogCut(KEY, 0, 0, False, 0, 0),)))
    assert process.replicas.ranges[0].follower.is_following
    return process


def standing(who: Replica, epoch: int = 1, session: int = 1) -> Standing:
    return Standing(0, epoch, session, who, (LogStanding(KEY, 0, 0, ()),))


def joined(process: Process, who: Replica) -> list[RangeEffect]:
    process.hear(standing(who))
    return process.hear(Reported(0, 1, 1, who, (LogReport(KEY, 0, 0),), is_whole=True))


def takeover(state: RingState, broker: Replica, *without: int) -> RingState:
    epoch = state.ranges[0].epoch
    return done(state, Lead(0, epoch, broker.ordinal, broker.registration, without))


# --- registration and logs ---


def test_nothing_is_done_before_the_process_is_registered() -> None:
    process = Process()
    process.open()

    assert process.do(StateApplied(STATE, None)) == []
    assert process.replicas.ranges == {}
    assert process.replicas.wake_at_ms == NEVER_MS
    assert process.replicas.leads(0) is None
    assert process.hear(standing(B)) == []
    assert process.rules["replicas.other_range"] == 1


def test_logs_that_were_not_recovered_are_asked_for() -> None:
    process = Process()
    process.open()

    effects = process.do(StateApplied(STATE, A))

    asked = [each.effect for each in effects if isinstance(each.effect, NeedLog)]
    assert asked == [NeedLog(KEYS[1]), NeedLog(KEYS[2])]


def test_only_ranges_of_which_there_is_a_replica_are_held() -> None:
    state = with_topic(led(6), partitions=1)
    process = Process()
    process.apply(state)

    held = {each.id for each in state.ranges.values() if 0 in each.replicas}
    assert process.replicas.ranges.keys() == held
    assert len(held) < len(state.ranges)


def test_ranges_can_be_left_to_others() -> None:
    process = Process()
    process.replicas = RangeReplicas(0, ReplicationTiming(), Counter(), lambda each: each.id != 1)
    process.apply(STATE)

    assert process.replicas.ranges.keys() == {0, 2}


def test_a_write_whose_log_has_its_own_offsets_is_counted() -> None:
    process = leading()
    process.replicas.begin_write(KEY)
    process.apply(takeover(STATE, A))
    assert process.replicas.leads(0) is None

    assert process.wrote(Run(1, 0, 1)) == [BeganLeading(2)]
    process.replicas.begin_write(LogKey(KEY.topic_id, 99))  # of a topic that was purged


def test_a_log_of_a_new_topic_is_opened_while_the_range_is_led() -> None:
    process = leading()
    state = with_topic(STATE, "more", partitions=1)
    new = next(key for key, range_id in logs_of(state.topics["more"]) if range_id == 0)

    assert process.apply(state) == [NeedLog(new)]
    assert process.open(new) == []
    assert process.replicas.leads(0) == 1


def test_a_purged_log_is_removed_and_what_is_under_way_for_it_is_ignored() -> None:
    process = leading()
    run = process.begin(Run(1, 0, 1))
    state = done(STATE, DeleteTopic("orders", 1), PurgeTopics({TOPIC.id: 1}))

    assert RemoveLog(KEY) in process.apply(state)
    assert process.wrote(run) == []


def test_a_log_that_is_purged_while_it_is_opened_is_removed() -> None:
    process = Process()
    process.apply(STATE)
    state = done(STATE, DeleteTopic("orders", 1), PurgeTopics({TOPIC.id: 1}))

    effects = process.apply(state)

    assert effects[:2] == [RemoveLog(KEY), BeganLeading(1)]  # it waited for that log
    assert process.open() == []
    assert process.replicas.range_of(KEY) is None


def test_another_durability_is_passed_on_and_other_settings_are_not() -> None:
    process = leading()
    joined(process, B)
    joined(process, C)
    run = process.begin(Run(1, 0, 1))
    process.of(Wrote(KEY, run, 0, 10))
    for who in (B, C):
        process.hear(Reported(0, 1, 1, who, (LogReport(KEY, 1, 0),)))
    retained = done(STATE, AlterTopic("orders", {"retentionMs": 100_000}))
    written = done(retained, AlterTopic("orders", {"durability": "written"}))

    assert process.apply(retained) == []
    assert process.apply(written) == [Advance(KEY, 1)]


def test_a_topic_that_wants_three_in_sync_commits_nothing_with_two() -> None:
    """Two are enough again when it is altered, and for what is written already."""
    wanting = done(STATE, AlterTopic("orders", {"minInSyncReplicas": 3}))
    process = leading()
    joined(process, B)
    shrunk = done(wanting, ChangeIsr(0, 1, wanting.ranges[0].version, (A, B)))
    process.apply(shrunk)
    run = process.begin(Run(1, 0, 1))
    process.of(Wrote(KEY, run, 1, 10))

    assert process.hear(Reported(0, 1, 1, B, (LogReport(KEY, 1, 1),))) == []
    two = done(shrunk, AlterTopic("orders", {"minInSyncReplicas": 2}))
    assert process.apply(two) == [Advance(KEY, 1)]


def test_a_closed_log_takes_no_part_until_it_is_open_again() -> None:
    process = following()
    process.wrote(Run(1, 0, 4))

    assert process.of(LogClosed(KEY)) == []
    assert process.wrote(Run(1, 4, 5)) == []
    assert process.of(LogClosed(KEY)) == []

    (stood,) = process.open()
    assert isinstance(stood, SendPeer)
    assert isinstance(stood.message, Standing)
    assert stood.message.logs == (LogStanding(KEY, 0, 0, ()),)


def test_who_has_lost_something_leads_when_its_log_is_open_again() -> None:
    process = leading()
    state = done(STATE, Lost(0, 0, 1, 0))
    lossless = takeover(state, B)
    process.do(LogClosed(KEY))

    assert EndedLeading(1) in process.apply(lossless)

    owner = lossless.ranges[0]
    again = Replica(0, 1, losses=1)
    led_again = replace(owner, leader=again, isr=(again, B), epoch=3)
    state = replace(lossless, ranges={**lossless.ranges, 0: led_again})
    assert BeganLeading(3) not in process.apply(state)
    assert BeganLeading(3) in process.open()


def test_a_range_that_has_other_replicas_is_not_led_any_more() -> None:
    process = leading()
    moved = replace(STATE.ranges[0], replicas=(1, 2))
    elsewhere = replace(STATE, ranges={**STATE.ranges, 0: moved})

    assert process.replicas.ranges.keys() == {0, 1, 2}
    effects = process.replicas.step(StateApplied(elsewhere, A), 0)
    assert OfRange(0, 1, EndedLeading(1)) in effects
    assert process.replicas.ranges.keys() == {1, 2}
    assert process.replicas.range_of(KEY) is None

    assert process.apply(STATE) == [NeedLog(KEY)]
    assert process.open() == [BeganLeading(1)]


def test_a_follower_leaves_a_range_without_an_effect() -> None:
    process = following()
    moved = replace(STATE.ranges[0], replicas=(0, 2))

    assert process.apply(replace(STATE, ranges={**STATE.ranges, 0: moved})) == []
    assert process.replicas.ranges.keys() == {1, 2}


# --- leading ---


def test_a_range_is_led_when_its_logs_are_open() -> None:
    process = Process()

    assert BeganLeading(1) not in process.apply(STATE)
    assert process.replicas.leads(0) is None
    assert process.rules["replica.waits_to_lead"] > 0
    assert process.open() == [BeganLeading(1)]
    assert process.replicas.leads(0) == 1


def test_after_a_failed_write_the_epoch_is_given_up() -> None:
    process = leading()
    process.begin(Run(1, 0, 1))

    assert process.of(WriteFailed(KEY)) == [ProposeCommand(Lead(0, 1, 0, 1))]
    assert process.replicas.leads(0) is None


def test_the_next_epoch_begins_when_the_writes_of_the_last_have_ended() -> None:
    process = leading()
    first = process.begin(Run(1, 0, 1))
    process.begin(Run(1, 1, 3))

    assert process.apply(takeover(STATE, A)) == [EndedLeading(1)]
    assert process.wrote(first) == []
    assert process.of(WriteFailed(KEY)) == [BeganLeading(2)]


def test_a_deposed_leader_follows_in_the_step_that_applies_it() -> None:
    process = leading()

    effects = process.apply(takeover(STATE, B))

    assert effects[0] == EndedLeading(1)
    assert isinstance(effects[1], SendPeer)
    assert effects[1].ordinal == 1


def test_who_is_deposed_before_its_logs_are_open_never_led() -> None:
    process = Process()
    process.apply(STATE)
    process.apply(takeover(STATE, B))

    assert BeganLeading(1) not in process.open()
    assert process.replicas.ranges[0].leader is None


def test_a_standing_that_comes_before_its_epoch_is_applied_is_answered_then() -> None:
    process = following()
    state = takeover(STATE, B)
    process.hear(standing(A, epoch=2, session=4))
    process.hear(standing(C, epoch=2, session=9))
    process.hear(Reported(0, 2, 9, C, ()))  # of no use before its standing

    effects = process.apply(state)

    answers = [each for each in effects if isinstance(each, SendPeer)]
    assert [(each.ordinal, type(each.message), each.message.session) for each in answers] == [
        (0, Cuts, 4),
        (2, Cuts, 9),
    ]


def test_a_standing_of_an_older_epoch_is_forgotten() -> None:
    process = following()

    process.hear(standing(A, epoch=0))

    assert process.rules["replica.early_standing"] == 0


def test_the_leader_answers_feeds_and_commits() -> None:
    process = leading()
    joined(process, B)
    joined(process, C)
    run = process.begin(Run(1, 0, 1))

    fed = process.wrote(run)
    assert [each.ordinal for each in fed if isinstance(each, Feed)] == [1, 2]
    assert process.of(Flushed(KEY, 1)) == []
    assert process.hear(Reported(0, 1, 1, B, (LogReport(KEY, 1, 1),))) == []
    assert process.hear(Reported(0, 1, 1, C, (LogReport(KEY, 1, 1),))) == [Advance(KEY, 1)]
    assert process.of(LogStartMoved(KEY, 1)) == []
    assert process.ends[KEY].start == 1


def test_lags_are_those_of_ranges_that_this_process_leads() -> None:
    process = leading()
    joined(process, B)

    assert process.replicas.lags(process.now_ms) == {
        0: [FollowerLag(1, 0, 0), FollowerLag(2, None, None)]
    }


def test_who_joined_the_isr_counts_when_that_is_applied() -> None:
    alone = replace(STATE.ranges[0], isr=(A, B))
    process = Process()
    process.open()
    process.apply(replace(STATE, ranges={**STATE.ranges, 0: alone}))
    joined(process, B)
    effects = joined(process, C)
    assert effects == [ProposeCommand(ChangeIsr(0, 1, alone.version, (A, B, C)))]

    process.apply(STATE)

    assert process.rules["leader.admitted"] == 1


def test_a_state_that_differs_in_nothing_of_the_ranges_changes_nothing() -> None:
    process = leading()

    assert process.do(StateApplied(replace(STATE, recent={7: None}), A)) == []


def test_a_suspected_broker_is_to_leave_the_isr_where_this_process_leads() -> None:
    process = leading()
    joined(process, B)
    joined(process, C)

    effects = process.do(Suspected(1))

    assert effects == [
        OfRange(0, 1, ProposeCommand(ChangeIsr(0, 1, STATE.ranges[0].version, (A, C))))
    ]


# --- the next leader ---


def test_a_leader_that_stops_hands_its_range_over_and_appends_nothing_meanwhile() -> None:
    process = leading()
    joined(process, B)
    joined(process, C)
    run = process.begin(Run(1, 0, 1))

    assert process.of(Stopping()) == [HoldAppends(1)]
    assert process.replicas.is_needed
    assert process.replicas.ranges[0].is_holding
    assert process.replicas.leads(0) == 1  # it feeds
    process.wrote(run)
    process.hear(Reported(0, 1, 1, B, (LogReport(KEY, 1, 1),)))
    effects = process.hear(Reported(0, 1, 1, C, (LogReport(KEY, 1, 1),)))
    assert effects == [Advance(KEY, 1), ProposeCommand(Lead(0, 1, 1, 1))]
    effects = process.apply(takeover(STATE, B))
    assert effects[0] == EndedLeading(1)


def test_a_leader_that_can_write_no_more_hands_its_range_over() -> None:
    process = leading()
    joined(process, B)
    joined(process, C)
    process.now_ms = process.replicas.wake_at_ms

    assert process.do(PeerView(frozenset({1, 2}), frozenset({2}), can_store=False)) == []
    effects = process.of(Woken())

    assert [each for each in effects if isinstance(each, HoldAppends)] == [HoldAppends(1)]
    assert ProposeCommand(Lead(0, 1, 2, 1)) in effects


def test_a_process_that_stops_is_needed_until_others_can_do_without_it() -> None:
    process = following()
    assert process.of(Stopping()) == [
        SendPeer(0, Reported(0, 1, process.replicas.ranges[0].follower.session, B, (), False, True))
    ]
    assert process.replicas.is_needed
    state = STATE
    for range_id, owner in STATE.ranges.items():
        isr = tuple(each for each in owner.isr if each.ordinal != 1)
        if owner.leader == B:
            state = done(state, Lead(range_id, owner.epoch, 2, 1, (1,)))
        else:
            state = done(state, ChangeIsr(range_id, owner.epoch, owner.version, isr))

    process.apply(state)
    assert not process.replicas.is_needed


def test_nobody_who_stops_waits_for_a_leader_that_does_not_answer() -> None:
    process = following()
    process.do(Stopping())
    process.apply(takeover(STATE, C))
    needed = []
    for _ in range(4):
        needed.append(process.replicas.ranges[0].is_needed)
        process.now_ms = process.replicas.ranges[0].follower.wake_at_ms
        process.do(Woken())

    assert needed == [True, True, True, False]


def test_a_range_that_nobody_leads_needs_nobody_who_stops() -> None:
    process = Process()
    process.apply(STATE)
    replica = process.replicas.ranges[0]
    view = replica.view
    assert view is not None

    needed = []
    for each in (view, None, dataclasses.replace(view, range=replace(view.range, leader=None))):
        replica.view = each
        needed.append(replica.is_needed)
    assert needed == [True, False, False]  # in the first it is about to lead


def test_a_range_that_comes_to_a_leader_that_stops_is_handed_over_as_well() -> None:
    process = Process(B, 1)
    for range_id, key in KEYS.items():
        process.open(key, range_id)
    process.apply(STATE)
    process.do(Stopping())
    process.apply(takeover(STATE, B))

    process.hear(standing(C, 2))
    effects = process.hear(Reported(0, 2, 1, C, (LogReport(KEY, 0, 0),), is_whole=True))

    assert HoldAppends(2) in effects


def test_the_natural_leader_leads_again_later_after_each_loss_of_the_lead() -> None:
    process, state = following(), STATE
    waits_ms = []
    for _ in range(9):
        state = takeover(state, B)
        process.apply(state)
        leader = process.replicas.ranges[0].leader
        assert leader is not None
        waits_ms.append(leader._timing.failback_ms)
        process.now_ms += waits_ms[-1]
        state = takeover(state, A)
        process.apply(state)

    assert [each // 30_000 for each in waits_ms] == [1, 2, 4, 8, 16, 32, 32, 32, 32]
    process.now_ms += FAILOVER_MEMORY_MS
    process.apply(takeover(state, B))
    leader = process.replicas.ranges[0].leader
    assert leader is not None
    assert leader._timing.failback_ms == 30_000


# --- following ---


def test_a_follower_appends_cuts_and_reports_by_range() -> None:
    process = following()
    session = process.replicas.ranges[0].follower.session
    batches = Batches(0, 1, session, KEY, 0, (Run(1, 0, 2),), 0, 0)

    assert process.hear(batches) == [Append(batches)]
    assert process.of(LogStartMoved(KEY, 1)) == []  # retention is the leader's
    report = Reported(0, 1, session, B, (LogReport(KEY, 2, 2),))
    assert process.wrote(Run(1, 0, 2)) == [SendPeer(0, report)]
    process.apply(takeover(STATE, C))
    session = process.replicas.ranges[0].follower.session
    cut = LogCut(KEY, 1, 1, False, 0, 0)
    assert process.hear(Cuts(0, 2, session, (cut,))) == [Cut(cut)]
    assert [type(each) for each in process.of(CutDone(KEY))] == [SendPeer]


def test_a_broken_link_to_the_leader_has_a_follower_stand_again() -> None:
    process = following()

    assert process.of(LinkBroke(2)) == []
    assert [type(each) for each in process.of(LinkBroke(0))] == [SendPeer]


def test_a_link_concerns_no_range_without_a_leader() -> None:
    process = Process()
    process.apply(with_topic(founded(), partitions=1))

    assert process.do(LinkBroke(1)) == []
    assert process.hear(standing(B)) == []


def test_leaders_send_heartbeats_and_silent_followers_stand_again() -> None:
    process = leading()
    joined(process, B)
    assert process.do(Woken()) == []
    process.now_ms = process.replicas.wake_at_ms

    beats = process.of(Woken())

    assert beats == [SendPeer(1, Heartbeat(0, 1, 1, ()))]
    process.now_ms = process.replicas.ranges[1].wake_at_ms
    assert [each.ordinal for each in process.of(Woken(), 1) if isinstance(each, SendPeer)] == [1]


def test_events_of_logs_that_are_unknown_or_not_open_are_ignored() -> None:
    process = leading()
    unknown = LogKey(TOPIC.id, 99)
    waiting = Process()
    waiting.apply(STATE)

    assert waiting.do(Flushed(KEY, 3)) == []
    assert process.do(Flushed(unknown, 3)) == []
    assert process.replicas.range_of(unknown) is None


def test_a_log_that_is_recovered_and_of_no_topic_stays_as_it_is() -> None:
    process = Process()
    unknown = LogKey(TOPIC.id, 99)

    assert process.open(unknown) == []
    process.apply(STATE)
    assert process.replicas.range_of(unknown) is None


def test_a_log_whose_topic_was_gone_at_the_first_state_is_asked_for_again() -> None:
    process = Process()
    for range_id, key in KEYS.items():
        process.open(key, range_id)
    process.apply(replace(STATE, topics={}))

    assert process.apply(STATE) == [NeedLog(KEY)]
    process.open()
    assert process.replicas.leads(0) == 1


def test_a_lone_copy_is_committed_as_far_as_it_is_flushed_when_it_is_led_again() -> None:
    process = Process()
    process.open(written=5, flushed=5, high_watermark=3, epochs=[EpochStart(1, 0)])
    lone = with_topic(led(1, 1), partitions=1)
    state = replace(lone, topics={"orders": replace(TOPIC, slices=TOPIC.slices[:1])})

    assert process.apply(state) == [BeganLeading(1), Advance(KEY, 5)]


# --- isolation ---

HEARD = PeerView(frozenset({1, 2}), frozenset({1, 2}))
SILENCE_MS = ReplicationTiming().silence_ms
ISOLATED_MS = ReplicationTiming().isolated_ms


def pass_ms(process: Process, ms: int, peers: PeerView = HEARD) -> list[RangeEffect]:
    """What follows from gossip, and from nothing else that is heard."""
    end_ms = process.now_ms + ms
    effects: list[RangeEffect] = []
    while process.now_ms < end_ms:
        process.now_ms += 100
        process.do(peers)
        effects += process.of(Woken())
    return effects


def is_isolated(process: Process) -> bool:
    return process.replicas.is_isolated


def leads_to(effects: list[RangeEffect]) -> list[Lead]:
    commands = (each.command for each in effects if isinstance(each, ProposeCommand))
    return [each for each in commands if isinstance(each, Lead)]


def test_an_isolated_leader_has_another_replica_lead_without_it() -> None:
    process = leading()
    joined(process, B)
    joined(process, C)
    assert leads_to(pass_ms(process, SILENCE_MS)) == []
    assert not is_isolated(process)

    found = leads_to(pass_ms(process, ISOLATED_MS - SILENCE_MS + 100))

    assert found == [Lead(0, 1, 1, 1, without=(0,))]
    assert is_isolated(process)
    assert process.rules["replicas.isolated"] == 1
    state = takeover(STATE, B, 0)
    assert process.apply(state)[0] == EndedLeading(1)
    process.do(HEARD)
    assert is_isolated(process)  # until it hears somebody as a follower


def test_a_broker_is_isolated_until_somebody_is_heard() -> None:
    process = leading()
    pass_ms(process, SILENCE_MS + 100)
    assert is_isolated(process)
    joined(process, B)
    process.do(HEARD)
    assert not is_isolated(process)

    pass_ms(process, SILENCE_MS + 100)
    assert is_isolated(process)
    process.apply(takeover(STATE, B, 0))
    session = process.replicas.ranges[0].follower.session
    process.hear(Cuts(0, 2, session, (LogCut(KEY, 0, 0, False, 0, 0),)))
    process.do(HEARD)
    assert not is_isolated(process)


def test_a_broker_is_not_isolated_where_nobody_leads_it_whom_gossip_hears() -> None:
    process = leading()
    pass_ms(process, SILENCE_MS + 100)
    process.apply(takeover(STATE, B, 0))
    process.do(HEARD)
    assert is_isolated(process)

    process.do(PeerView())
    assert not is_isolated(process)


def test_a_leader_whose_followers_stand_again_and_again_is_not_isolated() -> None:
    """New topics have them do so: they answer in between."""
    process = leading()
    for session in range(1, 2 * ISOLATED_MS // 100):
        process.hear(standing(B, session=session))
        process.hear(Reported(0, 1, session - 1, B, ()))
        assert leads_to(pass_ms(process, 100)) == []

    assert not is_isolated(process)


def test_a_follower_is_not_isolated_for_that_its_leader_is() -> None:
    process = following()
    state = takeover(STATE, C)
    process.apply(done(state, Lead(1, 1, 2, 1)))
    pass_ms(process, SILENCE_MS + 100, PeerView(frozenset({0, 2})))

    assert not is_isolated(process)


def test_the_leader_of_the_next_epoch_knows_what_gossip_has_said() -> None:
    process = leading()
    process.do(HEARD)
    process.now_ms = SILENCE_MS
    process.apply(takeover(STATE, A))
    leader = process.replicas.ranges[0].leader
    assert leader is not None

    assert leader.succession.peers == HEARD


def test_who_is_isolated_again_and_again_leaves_as_soon_each_time() -> None:
    """No outage is longer for that there was one before."""
    process, state = leading(), STATE
    waited_ms = []
    for _ in range(6):
        began_ms = process.now_ms
        while not leads_to(pass_ms(process, 100)):
            pass
        waited_ms.append(process.now_ms - began_ms)
        state = takeover(state, B)
        process.apply(state)
        state = takeover(state, A)
        process.apply(state)

    assert waited_ms == [ISOLATED_MS + 100] * 6


def test_a_leader_proves_that_it_leads_and_nobody_else() -> None:
    process = leading()
    replica = process.replicas.ranges[0]
    process.hear(Standing(0, replica.epoch, 1, B, ()))
    process.hear(Reported(0, replica.epoch, 1, B, (), is_whole=True))

    [heartbeat] = process.of(ProveLead(0))
    assert isinstance(heartbeat, SendPeer)
    assert process.hear(Reported(0, replica.epoch, 1, B, (), round=1)) == [
        LeadProven(replica.epoch)
    ]
    assert process.do(ProveLead(1)) == []  # it follows there
    assert process.do(ProveLead(77)) == []


# --- steps ---


def test_a_follower_that_knows_a_child_before_its_leader_is_answered_when_that_knows_it() -> None:
    process = Process()
    for range_id, key in KEYS.items():
        process.open(key, range_id)
    begun = begin(with_topic(led(registered=1), partitions=1))
    process.apply(begun)
    assert begun.step is not None
    child = next(each for each in begun.step.children if each.natural_leader == 0)
    after = done(begun, sealed(begun, 0, 0))
    (born,) = (key for key, range_id in logs_of(after.topics["orders"]) if range_id == child.id)
    early = Standing(child.id, 2, 1, B, (LogStanding(born, 0, 0, ()),))

    assert process.hear(early, child.id) == []
    assert process.hear(early._replace(range_id=99), child.id) == []
    assert process.rules["replicas.early_standing"] == 1
    assert process.rules["replicas.other_range"] == 1
    altered = done(begun, AlterTopic("orders", {"lingerMs": 1}))
    assert process.apply(altered, child.id) == []  # the step is open still

    process.apply(after)
    effects = process.open(born, child.id)
    assert BeganLeading(2) in effects
    assert any(isinstance(each, SendPeer) and each.ordinal == 1 for each in effects)


def test_what_came_early_for_a_step_that_was_cancelled_is_forgotten() -> None:
    process = Process()
    process.open()
    begun = begin(with_topic(led(registered=1), partitions=1))
    process.apply(begun)
    assert begun.step is not None
    child = begun.step.children[0]
    process.hear(Standing(child.id, 2, 1, B, ()), child.id)

    process.apply(done(begun, AbortStep(begun.step.id)))
    assert process.replicas._early == []
