"""A broker's part in the ring: scenarios of some brokers, reported step by step."""

from uuid import UUID

import pytest

from tailrace_broker.core.node.bootstrap import GIVE_UP_MS
from tailrace_broker.core.node.control import ControlTiming
from tailrace_broker.core.node.events import (
    AskRecovery,
    ControlEvent,
    Damaged,
    Health,
    Heard,
    Recovered,
)
from tailrace_broker.core.raft.state import NEVER_MS
from tailrace_broker.core.ring.arithmetic import ring_order
from tailrace_broker.model.commands import (
    AcceptLoss,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    Fence,
    Lead,
    Register,
)
from tailrace_broker.model.messages import (
    BootstrapAsked,
    CommandForwarded,
    Digest,
    Follow,
    ReadAnswered,
    ReadAsked,
)
from tailrace_broker.model.ring_state import RangeEnd, Refusal, Replica, Start
from tailrace_broker.model.topic import NEW_TOPIC
from tests.support.raft.control_world import TestDisk, World, founded


def new_topic(name: str) -> CreateTopic:
    return CreateTopic(name, UUID(int=hash(name) % 2**64), NEW_TOPIC)


def reason(refusal: Refusal | None) -> str:
    assert refusal is not None
    return refusal.reason


def leader_of(world: World) -> int:
    [leader] = [each for each, control in world.controls.items() if control.raft.is_established]
    return leader


def follower_of(world: World) -> int:
    return next(each for each, control in world.controls.items() if control.raft.role != "leader")


# --- bootstrap ---


def test_three_brokers_found_a_ring_and_lead_a_range_each() -> None:
    world = founded()

    for ordinal, control in world.controls.items():
        assert control.leads(ordinal) == 1
        assert control.leads((ordinal + 1) % 3) is None
        assert control.leads(99) is None
        assert control.registration is not None
        assert control.registration.number == 1


def test_a_broker_alone_founds_a_ring_at_once() -> None:
    world = World()
    world.start(0)

    assert world.answer(world.found(0, 1)) is None
    world.until(world.settled)
    assert world.now_ms < 50


def test_founded_twice_it_is_the_same_ring() -> None:
    world = founded()

    assert world.answer(world.found(1, 3)) is None
    assert reason(world.answer(world.found(1, 2))) == "ring-exists"


def test_a_broker_founds_no_ring_that_it_is_not_of() -> None:
    world = World()
    world.start(3)

    for broker_count, founders in (
        (3, "brokers 0 to 2 found the ring: ask one of them"),
        (1, "broker 0 founds the ring: ask it"),
    ):
        refusal = world.answer(world.found(3, broker_count))
        assert refusal == Refusal("invalid-parameter", founders)


def test_brokers_that_do_not_answer_are_named() -> None:
    world = World()
    world.start(0)
    world.start(2)

    refusal = world.answer(world.found(0, 3))
    assert reason(refusal) == "broker-unreachable"
    assert refusal is not None
    assert refusal.detail.startswith("broker 1 did not answer")


def test_of_two_bootstraps_at_once_one_comes_to_be() -> None:
    world = World()
    for ordinal in range(3):
        world.start(ordinal)
    numbers = [world.found(0, 3), world.found(1, 3)]

    outcomes = [world.answer(number) for number in numbers]
    world.until(world.settled)

    assert None in outcomes
    assert len({c.state.cluster_id for c in world.controls.values() if c.state is not None}) == 1


@pytest.mark.parametrize("founder", [1, 2])
@pytest.mark.parametrize("size", [1, 2])
def test_of_two_bootstraps_of_different_size_one_comes_to_be(founder: int, size: int) -> None:
    """Broker 0 has answered the larger one, which lacks another answer, and founds its own."""
    world = World()
    absent = 3 - founder
    for ordinal in (0, founder):
        world.start(ordinal)
    large = world.found(founder, 3)
    world.pass_ms(50)
    small = world.found(0, size)
    if size == 1:
        assert world.answer(small) is None
    world.start(absent)

    outcomes = [world.answer(number) for number in (small, large)]
    world.pass_ms(10_000)

    done = [refusal for refusal in outcomes if refusal is None]
    rings = {c.state.cluster_id for c in world.controls.values() if c.state is not None}
    assert len(done) == len(rings) == 1
    assert {reason(each) for each in outcomes if each is not None} <= {
        "ring-exists",
        "founding-under-way",
    }
    state = world.controls[0].state
    assert state is not None
    assert state.broker_count == (size if outcomes[0] is None else 3)
    assert {*state.brokers} == {0, 1, 2}  # whom it was not founded with it admits


def stalled_with_an_initial_state() -> tuple[World, int]:
    """Broker 0 has taken what broker 1 has made, and its disk has it not."""
    world = World()
    for ordinal in range(3):
        world.start(ordinal)
    number = world.found(1, 3)
    world.until(lambda: bool(world.disks[0].records))
    world.stall(0)
    world.until(lambda: world.rules["bootstrap.founded"] > 0)
    world.pass_ms(1000)
    return world, number


def test_what_broker_0_loses_nobody_has_taken() -> None:
    world, large = stalled_with_an_initial_state()
    world.kill(0)
    world.lose_writes(0)
    world.start(0)

    assert world.answer(world.found(0, 1)) is None
    assert reason(world.answer(large)) == "ring-exists"
    world.until(lambda: all(each.state is not None for each in world.controls.values()))
    assert len({c.state.cluster_id for c in world.controls.values() if c.state is not None}) == 1


def test_broker_0_is_asked_again_while_its_disk_takes_the_initial_state() -> None:
    world, first = stalled_with_an_initial_state()
    again = world.found(0, 3)
    world.pass_ms(300)
    world.end_stall(0)

    assert [world.answer(number) for number in (again, first)] == [None, None]
    assert world.rules["founded"] == 3


def test_what_its_founder_gave_up_may_come_to_be() -> None:
    world = World()
    for ordinal in range(3):
        world.start(ordinal)
    first = world.found(1, 3)
    world.until(lambda: world.disks[0].snapshot is not None)
    again = world.found(1, 3)
    asked_ms = world.now_ms

    assert reason(world.answer(first)) == "founding-under-way"
    assert world.answer(again) is None
    assert world.now_ms - asked_ms < GIVE_UP_MS


def test_an_attempt_is_given_up_for_another_of_the_same_broker() -> None:
    world = World()
    world.start(0)
    first = world.found(0, 3)
    second = world.found(0, 1)

    assert reason(world.answer(first)) == "founding-under-way"
    assert world.answer(second) is None


def test_who_was_asked_while_it_took_an_initial_state_is_not_empty() -> None:
    world = World()
    control = world.start(0)
    world.found(0, 1)
    asked = BootstrapAsked(TestDisk(1).id, UUID(int=2**128 - 1))
    world.do(control, Heard(asked))
    world.until(world.settled)

    assert control.state is not None
    assert control.state.broker_count == 1


def test_a_bootstrap_goes_on_when_its_founder_dies_with_the_initial_state() -> None:
    world = World()
    for ordinal in range(3):
        world.start(ordinal)
    world.found(0, 3)
    world.until(lambda: world.controls[0].state is not None)
    world.kill(0)
    world.cut = set()
    world.pass_ms(1000)
    restarted = world.start(0, "process")
    world.until(world.settled)

    assert {c.state.cluster_id for c in world.controls.values() if c.state is not None} == {
        restarted.state.cluster_id if restarted.state is not None else None
    }


def test_its_own_bootstrap_goes_first_when_its_id_is_the_greater() -> None:
    world = World()
    control = world.start(0)
    world.found(0, 3)

    for bootstrap in (UUID(int=0), UUID(int=2**128 - 1)):
        world.do(control, Heard(BootstrapAsked(TestDisk(1).id, bootstrap)))
    world.pass_ms(100)

    assert world.rules["bootstrap.own_first"] == 1
    assert world.rules["bootstrap.gave_way"] == 1


def test_a_reservation_that_was_overtaken_is_not_reported() -> None:
    world = World()
    control = world.start(0)
    world.do(control, Heard(BootstrapAsked(TestDisk(1).id, UUID(int=0))))
    world.found(0, 3)
    world.pass_ms(100)

    assert world.rules["bootstrap.gave_way"] == 0


def test_an_empty_broker_that_knows_of_a_ring_founds_none() -> None:
    world = World()
    empty = world.start(0)
    world.do(empty, Heard(Digest(TestDisk(1).id, (), 5, 1)))

    assert reason(world.answer(world.found(0, 1))) == "ring-exists"


# --- commands and reads ---


def test_a_command_is_applied_wherever_it_is_asked() -> None:
    world = founded()

    for ordinal in range(3):
        assert world.answer(world.ask(ordinal, new_topic(f"t{ordinal}"))) is None
        state = world.controls[ordinal].state
        assert state is not None
        assert f"t{ordinal}" in state.topics


def test_a_refusal_is_reported() -> None:
    world = founded()

    assert reason(world.answer(world.ask(1, DeleteTopic("nosuch", 0)))) == "topic-not-found"


def test_a_read_knows_what_was_committed_before_it() -> None:
    world = founded()
    leader, follower = leader_of(world), follower_of(world)

    assert world.answer(world.ask(leader, new_topic("t"))) is None
    for ordinal in (leader, follower):
        assert world.answer(world.ask_state(ordinal)) is None
        state = world.controls[ordinal].state
        assert state is not None
        assert "t" in state.topics


def test_without_a_majority_nothing_is_committed_and_that_is_said() -> None:
    world = founded()
    survivor = follower_of(world)
    for ordinal in {0, 1, 2} - {survivor}:
        world.kill(ordinal)

    number, read = world.ask(survivor, new_topic("t")), world.ask_state(survivor)

    assert reason(world.answer(number)) == "not-agreed"
    assert reason(world.answer(read)) == "not-agreed"


def test_a_command_outlives_the_leader_that_it_was_sent_to() -> None:
    world = founded()
    leader, follower = leader_of(world), follower_of(world)
    number = world.ask(follower, new_topic("t"))
    world.kill(leader)

    assert world.answer(number) is None
    assert leader_of(world) != leader


def test_the_same_command_twice_is_proposed_once() -> None:
    world = founded()
    follower = follower_of(world)
    head = world.controls[leader_of(world)].raft.head.height
    number = world.ask(follower, new_topic("t"))
    message = world.controls[follower]._requests.due(world.now_ms, everything=True)[0]
    world.do(world.controls[leader_of(world)], Heard(message))
    world.answer(number)

    assert world.controls[leader_of(world)].raft.head.height == head + 1
    assert world.rules["command.known"] > 0


def test_a_command_that_there_was_no_room_for_is_asked_again() -> None:
    world = founded(factor=1)
    large = AlterTopic("t", {"name": "x" * 400_000})
    numbers = [world.ask(leader_of(world), large) for _ in range(4)]

    assert world.rules["propose.refused"] > 0
    assert {reason(world.answer(number)) for number in numbers} == {"topic-not-found"}


def test_a_command_of_another_version_is_not_committed() -> None:
    world = founded()
    leader = leader_of(world)
    head = world.controls[leader].raft.head
    asker = world.disks[follower_of(world)].id

    world.do(world.controls[leader], Heard(CommandForwarded(asker, b"\x02")))

    assert world.controls[leader].raft.head == head
    assert world.rules["command.unknown"] == 1


def test_answers_to_nobody_are_passed_over() -> None:
    world = founded()
    leader, follower = leader_of(world), follower_of(world)
    asker = world.disks[follower].id

    world.do(world.controls[follower], Heard(CommandForwarded(asker, b"")))
    world.do(world.controls[follower], Heard(ReadAsked(asker, 1)))
    world.do(world.controls[follower], Heard(ReadAnswered(asker, 12345, 1)))
    world.do(world.controls[leader], Heard(ReadAsked(asker, 1)))
    world.do(world.controls[leader], Heard(ReadAsked(asker, 1)))
    world.pass_ms(1000)

    assert world.settled()


# --- registration ---


@pytest.mark.parametrize("loss", ["clean", "process", "power"])
def test_a_restarted_broker_registers_and_leads_in_another_epoch(loss: str) -> None:
    world = founded(factor=1)
    world.kill(1)
    restarted = world.start(1, loss)  # type: ignore[arg-type]
    world.until(world.settled)

    assert restarted.registration is not None
    assert (restarted.registration.number, restarted.registration.loss) == (2, loss)
    assert restarted.leads(1) == 2


def test_brokers_of_a_ring_speak_to_their_neighbours() -> None:
    """Also to those that are no founders, whom a broker asks that knows no ring."""
    world = founded(7, factor=1)
    order = ring_order(7)

    for ordinal, control in world.controls.items():
        index = order.index(ordinal)
        neighbours = {order[index - 1], order[(index + 1) % 7]}
        assert neighbours <= {send.ordinal for send in control.gossip.wake(world.now_ms + 1000)}


def test_a_restarted_broker_knows_its_neighbours_at_once() -> None:
    world = founded(7, factor=1)
    world.kill(3)
    restarted = world.start(3, "process")

    assert ring_order(7)[1:4] == [6, 3, 1]
    assert {6, 1} <= {send.ordinal for send in restarted.gossip.wake(world.now_ms + 1000)}


def test_all_brokers_restarted_at_once_agree_again() -> None:
    world = founded()
    for ordinal in range(3):
        world.kill(ordinal)
    for ordinal in range(3):
        world.start(ordinal, "process")
    world.until(world.settled)

    assert [world.controls[each].registration.number for each in range(3)] == [2, 2, 2]  # type: ignore[union-attr]


def test_the_worst_of_all_starts_since_the_last_registration_counts() -> None:
    world = founded(factor=1)
    world.kill(1)
    world.cut = {1}
    world.start(1, "power")
    world.pass_ms(500)
    world.kill(1)
    world.cut = set()
    restarted = world.start(1, "process")
    world.until(lambda: restarted.registration is not None)

    assert restarted.registration is not None
    assert restarted.registration.loss == "power"


def test_another_process_of_the_broker_ends_the_older_one() -> None:
    world = founded()
    old = world.controls[1]
    new = world.start(1, "disk", TestDisk(1, generation=1))
    world.until(lambda: new.registration is not None)
    world.controls[1] = old
    world.until(lambda: world.superseded == [1])

    assert old.step(Heard(BootstrapAsked(TestDisk(2).id, UUID(int=1))), world.now_ms) == []
    assert old.wake_at_ms == NEVER_MS


def test_a_process_that_comes_late_does_not_take_its_broker_back() -> None:
    """Both have seen whom they would replace; the newer one is registered first."""
    world = founded()
    world.kill(1)
    world.lost = (CommandForwarded,)
    older = world.start(1, "disk", TestDisk(1, generation=1))
    world.pass_ms(1000)
    world.lost = ()
    newer = world.start(1, "disk", TestDisk(1, generation=2))
    world.until(lambda: newer.registration is not None)
    world.controls[1] = older
    world.until(lambda: world.superseded == [1])

    state = world.controls[0].state
    assert state is not None
    assert state.brokers[1] == newer.registration


def test_a_process_whose_registration_is_refused_ends() -> None:
    world = founded()
    incarnation = world.disks[1].id.incarnation
    newer = Register(1, incarnation, 9, (Start(UUID(int=900), "process"),), 1)
    world.kill(1)
    assert world.answer(world.ask(0, newer)) is None
    world.start(1, "process")
    world.until(lambda: world.superseded == [1])


def test_a_broker_registers_with_what_it_has_recovered_and_votes_before() -> None:
    """Of a ring that has lost power nobody would be elected else."""
    world = founded()
    for ordinal in range(3):
        world.kill(ordinal)
    for ordinal in range(3):
        world.start(ordinal, "power", recovered=None)
    world.until(lambda: any(each.raft.is_established for each in world.controls.values()))
    world.pass_ms(5000)
    state = world.controls[0].state
    assert state is not None
    assert {each.number for each in state.brokers.values()} == {1}
    assert all(control.registration is None for control in world.controls.values())

    ends = (RangeEnd(0, 1, 7),)
    world.do(world.controls[1], Recovered(ends, damaged=(0,)))
    world.do(world.controls[0], Recovered())
    world.do(world.controls[2], Recovered())
    world.until(world.settled)

    registered = world.controls[1].registration
    assert registered is not None
    assert (registered.number, registered.ends) == (2, ends)
    state = world.controls[0].state
    assert state is not None
    assert Replica(1, 1, is_ghost=True, cause="damage") in state.ranges[0].isr
    assert Replica(1, 2) in state.ranges[1].isr


def test_a_founded_broker_leads_when_its_logs_are_recovered() -> None:
    world = World()
    control = world.start(0, recovered=None)
    assert world.answer(world.found(0, 1)) is None
    world.pass_ms(2000)
    assert control.registration is not None
    assert control.leads(0) is None

    world.do(control, Recovered())
    world.until(lambda: control.leads(0) == 1)


def test_who_recovers_its_logs_does_not_pass_for_the_leader_that_it_was() -> None:
    """Its connections were never found to be reset."""
    world = founded()
    del world.controls[0]
    world.start(0, "process", recovered=None)
    world.until(lambda: world.controls[1].leads(0) == 2)

    assert world.rules["gossip.reset"] == 0


# --- damage ---


def test_a_leader_that_finds_damage_tells_the_ring_and_another_leads() -> None:
    world = founded()
    world.do(world.controls[0], Damaged(0))
    world.until(lambda: world.controls[1].leads(0) == 2)

    state = world.controls[1].state
    assert state is not None
    assert state.ranges[0].losses == {0: 1}
    ghost = Replica(0, 1, is_ghost=True, cause="damage")
    assert ghost in state.ranges[0].isr
    world.pass_ms(2000)
    assert world.controls[0].state.ranges[0].losses == {0: 1}  # type: ignore[union-attr]
    assert world.controls[0].leads(0) is None


def test_damage_of_the_only_copy_changes_nothing() -> None:
    world = founded(factor=1)
    world.do(world.controls[0], Damaged(0))
    world.do(world.controls[0], Damaged(99))
    world.pass_ms(1000)

    state = world.controls[0].state
    assert state is not None
    assert not state.ranges[0].losses
    assert world.controls[0].leads(0) == 1
    assert None in state.recent.values()
    assert not any(each and each.reason == "only-copy" for each in state.recent.values())


def test_damage_that_is_found_before_the_registration_is_in_it() -> None:
    world = founded()
    world.kill(1)
    restarted = world.start(1, "clean", recovered=None)
    world.do(restarted, Damaged(0))
    world.do(restarted, Recovered(damaged=(2,)))
    world.until(lambda: restarted.registration is not None)

    state = restarted.state
    assert state is not None
    causes = [{r.ordinal: r.cause for r in each.isr}.get(1) for each in state.ranges.values()]
    assert causes[0] == causes[2] == "damage"


# --- failures ---


def test_a_killed_broker_s_range_is_led_by_the_next_in_the_ring() -> None:
    world = founded()
    world.kill(0)
    world.until(lambda: world.controls[1].leads(0) == 2)

    state = world.controls[1].state
    assert state is not None
    assert [each.ordinal for each in state.ranges[0].isr] == [1, 2]
    assert world.rules["gossip.damped"] > 0


def test_a_killed_broker_is_silent_until_it_is_registered_again() -> None:
    world = founded()
    world.pass_ms(1000)
    other = world.controls[1]
    assert other.silent(world.now_ms) == set()

    world.kill(0)
    world.until(lambda: other.silent(world.now_ms) == {0})
    restarted = world.start(0, "process", recovered=None)
    world.pass_ms(2000)
    assert other.gossip.is_alive(0, world.now_ms)
    assert other.silent(world.now_ms) == {0}
    assert restarted.silent(world.now_ms) == set()

    world.do(restarted, Recovered())
    world.until(lambda: other.silent(world.now_ms) == set())


def test_nobody_is_silent_to_a_process_that_has_just_begun_to_listen() -> None:
    world = World()
    control = world.start(0)
    assert control.silent(world.now_ms) == set()
    assert world.answer(world.found(0, 1)) is None
    world.kill(0)
    assert world.start(0, "process").silent(world.now_ms) == set()


def test_a_takeover_is_dropped_while_the_metadata_s_leader_hears_the_leader() -> None:
    world = founded()
    leader = leader_of(world)
    led = (leader + 1) % 3  # another broker, which speaks to it all the time
    asker = (leader + 2) % 3
    world.pass_ms(1000)
    takeover = Lead(led, 1, asker, 1, without=(led,))
    number = world.ask(asker, takeover)
    world.pass_ms(3000)

    assert number not in world.answers
    assert world.rules["takeover.hasty"] > 0
    assert world.controls[led].leads(led) == 1
    own = world.ask(asker, Lead(leader, 1, asker, 1, without=(leader,)))
    world.pass_ms(1000)
    assert own not in world.answers  # it knows itself to be there

    world.kill(led)
    world.until(lambda: world.controls[asker].state.ranges[led].epoch == 2)  # type: ignore[union-attr]


def test_a_leader_that_lives_may_depose_itself() -> None:
    world = founded()
    led = (leader_of(world) + 1) % 3
    successor = (led + 1) % 3
    world.pass_ms(1000)

    assert world.answer(world.ask(led, Lead(led, 1, successor, 1, without=(led,)))) is None
    assert world.controls[successor].leads(led) == 2


def test_a_hand_over_is_no_takeover() -> None:
    world = founded()
    assert world.answer(world.ask(1, Lead(0, 1, 1, 1))) is None
    assert world.controls[1].leads(0) == 2
    assert world.answer(world.ask(1, Lead(99, 1, 1, 1))) is not None
    assert world.rules["gossip.damped"] == 0


def test_a_restarted_broker_deposes_nobody_that_it_has_not_heard_yet() -> None:
    world = founded()
    world.kill(0)
    world.until(lambda: world.controls[1].leads(0) == 2)
    world.lost = (Digest,)
    restarted = world.start(0, "process")
    world.pass_ms(900)

    assert restarted.registration is not None
    state = restarted.state
    assert state is not None
    assert [each.epoch for each in state.ranges.values()] == [2, 1, 1]


def test_the_only_copy_is_waited_for() -> None:
    world = founded(factor=1)
    world.kill(0)
    world.pass_ms(10_000)

    state = world.controls[1].state
    assert state is not None
    assert state.ranges[0].leader is not None
    assert state.brokers[0].is_fenced
    world.start(0, "process")
    world.until(lambda: world.controls[0].leads(0) == 2)


def test_a_silent_broker_is_fenced_and_let_in_again() -> None:
    world = founded(factor=1)
    leader, follower = leader_of(world), follower_of(world)
    world.cut = {follower}
    world.until(lambda: world.controls[leader].state.brokers[follower].is_fenced)  # type: ignore[union-attr]
    world.cut = set()
    world.until(lambda: not world.controls[leader].state.brokers[follower].is_fenced)  # type: ignore[union-attr]


@pytest.mark.parametrize("stalled", [pytest.param(2, id="voter"), pytest.param(3, id="learner")])
def test_a_broker_whose_disk_stalls_is_fenced_until_it_writes_again(stalled: int) -> None:
    """It hears its leader and could answer, but promises nothing any more: another leads for it."""
    world = founded(4)
    assert leader_of(world) != stalled
    watcher = world.controls[leader_of(world)]
    began_ms = world.now_ms
    world.stall(stalled)
    assert world.answer(world.ask(watcher.ordinal, new_topic("a"))) is None

    world.until(lambda: watcher.state.brokers[stalled].is_fenced)  # type: ignore[union-attr]

    timing = world.timing
    least_ms = timing.raft.disk_stall_ms + timing.session_ms
    assert least_ms - timing.duty_ms <= world.now_ms - began_ms <= least_ms + 5 * timing.duty_ms
    assert world.rules["disk.silent"] > 0
    world.until(lambda: watcher.state.ranges[stalled].leader.ordinal != stalled)  # type: ignore[union-attr]
    world.end_stall(stalled)
    world.until(lambda: not watcher.state.brokers[stalled].is_fenced)  # type: ignore[union-attr]
    assert world.controls[stalled].leads(stalled) is None


@pytest.mark.parametrize("stalled", ["leader", "voter", "learner"])
def test_a_broker_whose_data_stalls_is_silent_until_the_write_ends(stalled: str) -> None:
    """Though its metadata has nothing to write."""
    world = founded(4)
    world.pass_ms(1000)
    voters = (leader_of(world), follower_of(world), 3)
    ordinal = dict(zip(("leader", "voter", "learner"), voters, strict=True))[stalled]
    watcher = world.controls[next(each for each in range(4) if each not in {ordinal, voters[0]})]
    world.do(world.controls[ordinal], Health(is_stalled=True))
    world.until(lambda: watcher.state.brokers[ordinal].is_fenced)  # type: ignore[union-attr]

    assert not watcher.gossip.is_alive(ordinal, world.now_ms)
    assert world.rules["control.silent"] > 0
    world.until(lambda: watcher.state.ranges[ordinal].leader.ordinal != ordinal)  # type: ignore[union-attr]
    assert leader_of(world) != ordinal
    world.do(world.controls[ordinal], Health())
    world.until(lambda: not watcher.state.brokers[ordinal].is_fenced)  # type: ignore[union-attr]


def test_a_broker_whose_data_stalls_gives_no_vote_and_does_not_register() -> None:
    world = founded()
    leader = leader_of(world)
    other = (leader + 1) % 3
    world.kill(other)
    restarted = world.start(other, "process", recovered=None)
    world.do(restarted, Health(is_stalled=True))
    world.do(restarted, Recovered())
    world.pass_ms(2000)
    assert restarted.registration is None
    world.kill(leader)
    world.pass_ms(10_000)
    assert not any(each.raft.is_established for each in world.controls.values())

    world.do(restarted, Health())
    world.until(lambda: restarted.registration is not None)


def test_a_broker_that_recovers_its_logs_is_not_heard_as_the_process_that_it_was() -> None:
    """A leader must not leave its range to what is gone."""
    world = founded()
    world.pass_ms(500)
    observer = world.controls[0]
    world.until(lambda: observer.heard(world.now_ms) == {1, 2})
    world.kill(1)
    restarted = world.start(1, "process", recovered=None)
    world.pass_ms(5000)
    assert observer.gossip.is_beating(1, world.now_ms)
    assert observer.heard(world.now_ms) == {2}

    world.do(restarted, Recovered())
    world.until(lambda: observer.heard(world.now_ms) == {1, 2})


def test_a_fenced_broker_is_not_heard_until_it_is_back() -> None:
    world = founded()
    world.pass_ms(500)
    follower = follower_of(world)
    control = world.controls[leader_of(world)]
    assert world.answer(world.ask(follower, Fence(follower, 1))) is None
    assert follower not in control.heard(world.now_ms)

    world.until(lambda: follower in control.heard(world.now_ms))


def test_who_is_in_no_ring_hears_nobody() -> None:
    world = World()

    assert world.start(0).heard(world.now_ms) == frozenset()


UNFIT = [Health(is_full=True), Health(is_stopping=True), Health(is_isolated=True)]


@pytest.mark.parametrize("health", UNFIT)
def test_a_broker_that_is_not_fit_leaves_a_range_to_others(health: Health) -> None:
    """They do not wait for it, though it is alive and comes first."""
    world = founded()
    world.do(world.controls[1], health)
    world.pass_ms(1000)
    world.kill(0)
    world.until(lambda: world.controls[2].leads(0) == 2)

    assert world.controls[1].leads(1) == 1


@pytest.mark.parametrize("health", [Health(is_full=True), Health(is_stopping=True)])
def test_the_only_copy_is_led_by_who_is_full(health: Health) -> None:
    world = founded(factor=1)
    world.kill(0)
    restarted = world.start(0, "process", recovered=None)
    world.do(restarted, health)
    world.do(restarted, Recovered())
    world.until(lambda: restarted.leads(0) == 2)


def test_a_range_whose_copies_are_all_on_full_disks_waits_for_room() -> None:
    world = founded()
    world.kill(0)
    rest = list(world.controls.values())
    for control in rest:
        world.do(control, Health(is_full=True))
    world.pass_ms(20_000)
    assert [control.leads(0) for control in rest] == [None, None]

    world.do(rest[1], Health())
    world.until(lambda: rest[1].leads(0) == 2)


def test_a_fenced_broker_asks_for_no_range() -> None:
    world = founded()
    follower = follower_of(world)
    control = world.controls[follower]
    assert world.answer(world.ask(follower, Fence(follower, 1))) is None
    world.cut = {follower}
    world.pass_ms(5000)

    assert control.registration is not None
    assert control.registration.is_fenced
    assert not control._requests.due(world.now_ms, everything=True)


def test_a_wiped_voter_is_admitted_with_its_new_disk() -> None:
    world = founded(factor=1)
    world.kill(1)
    disk = TestDisk(1, generation=1)
    wiped = world.start(1, "disk", disk)
    world.until(lambda: disk.id in wiped.raft.configuration.voters)

    assert not wiped.raft.configuration.is_joint
    state = wiped.state
    assert state is not None
    assert [each.is_ghost for each in state.ranges[1].isr] == [True]
    number = world.ask(0, AcceptLoss(1, 1, 1, 2))
    assert world.answer(number) is None
    world.until(lambda: wiped.leads(1) == 2)


def test_two_wiped_voters_found_nothing() -> None:
    world = founded()
    for ordinal in (0, 1):
        world.kill(ordinal)
    for ordinal in (0, 1):
        world.start(ordinal, "disk", TestDisk(ordinal, generation=1))

    refusal = world.answer(world.found(0, 3))

    assert reason(refusal) == "ring-exists"
    world.pass_ms(20_000)
    assert world.controls[0].state is None
    assert world.controls[1].state is None


def test_by_hand_one_voter_goes_on_alone() -> None:
    world = founded(factor=1)
    assert world.answer(world.ask(2, new_topic("t"))) is None
    for ordinal in (0, 1):
        world.kill(ordinal)
    world.do(world.controls[2], AskRecovery(77))

    assert world.answer(77) is None
    assert world.answer(world.ask(2, new_topic("u"))) is None
    for ordinal in (0, 1):
        world.start(ordinal, "disk", TestDisk(ordinal, generation=1))
    world.until(lambda: all(each.registration is not None for each in world.controls.values()))
    state = world.controls[0].state
    assert state is not None
    assert sorted(state.topics) == ["t", "u"]


def test_who_is_in_no_ring_recovers_nothing() -> None:
    world = World()
    control = world.start(0)
    world.do(control, AskRecovery(77))

    assert reason(world.answer(77)) == "not-in-a-ring"


def test_a_fourth_broker_learns_all_and_does_not_vote() -> None:
    world = founded()
    learner = world.start(3)
    world.until(lambda: learner.registration is not None)

    assert not learner.raft.is_voter
    assert world.answer(world.ask(3, new_topic("t"))) is None


def test_what_is_kept_stays_small() -> None:
    world = founded(1, compact_bytes=4096)
    world.ask(0, new_topic("t"))
    for number in range(100):
        assert world.answer(world.ask(0, AlterTopic("t", {"lingerMs": number % 2}))) is None
    world.pass_ms(1000)

    disk = world.disks[0]
    assert disk.snapshot is not None
    assert disk.snapshot.id.height > 0
    world.kill(0)
    world.start(0, "process")
    world.until(world.settled)


def test_timing_is_given() -> None:
    assert ControlTiming().session_ms == 3000


# --- the metadata's leader ---


def test_a_voter_that_its_leader_feeds_does_not_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = founded()
    asked: list[int] = []
    deliver = world._deliver

    def noted(ordinal: int, event: ControlEvent) -> None:
        if isinstance(event, Heard) and isinstance(event.message, Follow):
            asked.append(ordinal)
        deliver(ordinal, event)

    monkeypatch.setattr(world, "_deliver", noted)
    world.pass_ms(5_000)
    assert asked == []


def test_gossip_names_a_leader_that_is_newer_than_the_known_one() -> None:
    world = founded()
    known = leader_of(world)
    control = world.controls[follower_of(world)]
    newer = 1 if known == 0 else 0
    assert control.leader_ordinal == known

    digest = Digest(world.disks[known].id, (), control.raft.term + 1, newer)
    control.gossip.heard(digest, world.now_ms)
    assert control.leader_ordinal == newer
