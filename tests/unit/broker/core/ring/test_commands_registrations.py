import pytest
from msgspec.structs import replace

from tailrace_broker.model.commands import (
    AlterTopic,
    ChangeIsr,
    DeleteTopic,
    Fence,
    Lead,
    Register,
    Retire,
)
from tailrace_broker.model.ring_state import Loss, RangeState, Replica, RingState, Start
from tests.support.ring.states import (
    begin,
    done,
    founded,
    incarnation,
    led,
    refusal_of,
    register,
    start_id,
    stepped,
    with_topic,
)


def entry(led: RangeState, ordinal: int) -> Replica:
    (found,) = (each for each in led.isr if each.ordinal == ordinal)
    return found


def entries(state: RingState, ordinal: int) -> set[Replica]:
    """What the broker is in the ISRs of the ranges that it has a copy of."""
    return {entry(each, ordinal) for each in state.ranges.values() if not each.is_sealed}


MOVED, GHOST = Replica(1, 2), Replica(1, 1, is_ghost=True, cause="power")
LOST = GHOST._replace(cause="disk")


# --- what the disk may have lost ---


@pytest.mark.parametrize(
    ("losses", "loss"),
    [
        (["clean"], "clean"),
        (["process"], "process"),
        (["power"], "power"),
        (["clean", "power", "process", "clean"], "power"),
        (["process", "disk", "clean"], "disk"),
    ],
)
def test_a_registration_tells_the_worst_of_all_starts_since_the_one_before(
    losses: list[Loss], loss: Loss
) -> None:
    state = done(led(), register(1, *losses, replaces=1))

    assert state.brokers[1].loss == loss
    assert state.brokers[1].number == 2
    assert state.brokers[1].boot == 1 + len(losses)


def test_a_loss_before_the_last_registration_does_not_count_again() -> None:
    state = done(led(), register(1, "power"))

    after = done(state, register(1, "power", "clean"))

    assert after.brokers[1].loss == "clean"


def test_a_disk_that_does_not_know_its_last_registration_is_a_copy_of_an_older_one() -> None:
    state = done(led(), register(1, "process"))
    copied = Register(
        1,
        incarnation(1),
        2,
        (Start(start_id(1, 1), "clean"), Start(start_id(1, 99), "clean")),
        replaces=2,
    )

    assert done(state, copied).brokers[1].loss == "disk"


def test_a_process_that_another_has_replaced_meanwhile_is_refused() -> None:
    first = register(1, "process")
    seen = 1  # by both, before either was registered
    other = Register(1, incarnation(1, 2), 1, (Start(start_id(1, 50), "disk"),), seen)
    state = done(led(), other)

    assert refusal_of(state, replace(first, replaces=seen)) == "stale-registration"
    assert done(state, replace(first, replaces=2)).brokers[1].number == 3
    assert done(state, replace(other)).brokers == state.brokers


def test_an_empty_disk_has_lost_all() -> None:
    empty = Register(1, incarnation(1, 2), 1, (Start(start_id(1, 50), "clean"),), 1)

    after = done(led(), empty)

    assert after.brokers[1].loss == "disk"
    assert entries(after, 1) == {LOST}


def test_a_broker_that_never_was_there_registers_as_its_first() -> None:
    state = done(led(), register(3))

    assert (state.brokers[3].number, state.brokers[3].loss) == (1, "disk")
    assert 3 not in {each.ordinal for led in state.ranges.values() for each in led.isr}


@pytest.mark.parametrize(
    ("losses", "is_written", "after"),
    [
        (["clean"], True, MOVED),
        (["process"], True, MOVED),
        (["power"], False, MOVED),
        (["power"], True, GHOST),
        (["disk"], False, LOST),
    ],
)
def test_who_has_lost_nothing_stays_in_sync_and_others_become_ghosts(
    losses: list[Loss], is_written: bool, after: Replica
) -> None:
    state = with_topic(led(), written=is_written)

    assert entries(done(state, register(1, *losses)), 1) == {after}


def test_with_power_back_after_two_seconds_nobody_elects_what_has_lost_a_record() -> None:
    """ISR A, B, C; B loses power and an acknowledged record with it; then A dies."""
    state = with_topic(led(), written=True)

    back = done(state, register(1, "power"), Fence(0, 1))

    assert refusal_of(back, Lead(0, 1, 1, 2, without=(0,))) == "not-in-isr"
    after = done(back, Lead(0, 1, 2, 1, without=(0,)))
    assert after.ranges[0].leader == Replica(2, 1)
    assert after.ranges[0].isr == (Replica(0, 1), GHOST, Replica(2, 1))  # the floor holds A


def test_a_ghost_stays_one_however_well_it_starts_again() -> None:
    state = done(with_topic(led(), written=True), register(1, "power"))

    after = done(state, register(1, "power", "clean"))

    assert entries(after, 1) == {GHOST}
    assert refusal_of(after, Lead(1, 1, 1, 3)) == "not-in-isr"


def test_the_cause_of_a_ghost_only_worsens() -> None:
    state = done(with_topic(led(), written=True), register(1, "power"))

    assert entries(done(state, register(1, "power", "process")), 1) == {GHOST}
    assert entries(done(state, register(1, "power", "disk")), 1) == {LOST}


@pytest.mark.parametrize("loss", ["clean", "process", "power"])
def test_what_a_start_finds_damaged_makes_a_ghost_in_that_range_alone(loss: Loss) -> None:
    damaged = replace(register(1, loss), damaged=(2,))

    after = done(led(), damaged)

    assert entry(after.ranges[2], 1) == GHOST._replace(cause="damage")
    assert entry(after.ranges[0], 1) == MOVED


def test_damage_stays_the_cause_when_power_is_lost_later() -> None:
    state = done(led(), replace(register(1, "clean"), damaged=(2,)))

    again = done(with_topic(state, written=True), register(1, "clean", "power"))

    assert entry(again.ranges[2], 1).cause == "damage"


def test_damage_makes_a_ghost_of_power_worse() -> None:
    state = done(with_topic(led(), written=True), register(1, "power"))

    again = done(state, replace(register(1, "power", "clean"), damaged=(2,)))

    assert entry(again.ranges[2], 1).cause == "damage"
    assert entry(again.ranges[0], 1).cause == "power"


def test_the_only_copy_of_a_range_leads_what_is_left_of_it() -> None:
    """Nobody else has what is damaged in it."""
    state = done(founded(1, factor=1), Lead(0, 0, 0, 1))

    after = done(state, replace(register(0, "process"), damaged=(0,)), Lead(0, 1, 0, 2))

    assert after.ranges[0].leader == Replica(0, 2)


def test_a_registration_that_meets_its_own_ghost_raises_the_version() -> None:
    """What was proposed for the process before is over."""
    state = done(with_topic(led(), written=True), register(1, "power"))

    after = done(state, register(1, "power", "clean"))

    assert after.ranges[0].version == state.ranges[0].version + 1


def test_a_lost_start_in_between_is_not_forgotten() -> None:
    """Power is lost, the start after that dies before it is registered, the next is well."""
    state = with_topic(led(), written=True)

    assert entries(done(state, register(1, "power", "process", replaces=1)), 1) == {GHOST}


def test_power_takes_from_a_topic_what_was_written_before_it_was_altered() -> None:
    state = with_topic(led(), written=True)
    altered = done(state, AlterTopic("orders", {"durability": "fsync"}))

    assert entries(done(altered, register(1, "power")), 1) == {GHOST}
    restarted = done(altered, register(1, "process"))
    assert entries(restarted, 1) == {MOVED}
    assert entries(done(restarted, register(1, "process", "power")), 1) == {
        Replica(1, 2, is_ghost=True, cause="power")
    }
    flushed = done(altered, register(1, "clean"))
    assert entries(done(flushed, register(1, "clean", "power")), 1) == {Replica(1, 3)}


def test_power_takes_from_a_deleted_topic_what_may_be_restored() -> None:
    state = with_topic(led(), written=True)
    deleted = done(state, AlterTopic("orders", {"durability": "fsync"}), DeleteTopic("orders", 5))

    assert entries(done(deleted, register(1, "power")), 1) == {GHOST}
    restarted = done(deleted, register(1, "clean"))
    assert entries(done(restarted, register(1, "clean", "power")), 1) == {Replica(1, 3)}


def test_what_the_only_copy_has_lost_nobody_has() -> None:
    state = with_topic(led(factor=1), written=True)

    after = done(state, register(1, "power"))

    assert after.ranges[1].isr == (MOVED,)
    assert done(after, Lead(1, 1, 1, 2)).ranges[1].epoch == 2


def test_a_lost_disk_takes_its_sealed_copies_along() -> None:
    state = stepped(with_topic(led(registered=1)))

    after = done(state, register(1, "disk"))

    assert state.ranges[0].complete == (0, 1, 2)
    assert after.ranges[0].complete == (0, 2)
    assert done(state, register(1, "power")).ranges[0].complete == (0, 1, 2)
    assert done(state, register(3, "disk")).ranges[0].complete == (0, 1, 2)


# --- which process a broker is ---


def test_registering_ends_what_the_broker_led_in_the_same_epoch() -> None:
    after = done(led(), register(1, "process"))

    assert after.ranges[1].leader is None
    assert after.ranges[1].epoch == 1
    assert after.ranges[0].leader == Replica(0, 1)
    assert done(after, Lead(1, 1, 1, 2)).ranges[1].leader == MOVED


def test_a_leader_that_is_back_at_once_does_not_go_on_in_its_epoch() -> None:
    """It was killed with its own write in flight, which may be another record now."""
    after = done(led(), register(1, "process"))

    assert refusal_of(after, ChangeIsr(1, 1, 1, after.ranges[1].isr)) == "no-leader"
    assert refusal_of(after, Lead(1, 1, 1, 1)) == "stale-registration"


def test_the_same_start_registers_once() -> None:
    state = done(led(), register(1, "process"))

    assert done(state, register(1, "process")).brokers == state.brokers


def test_of_two_processes_the_newer_boot_is_the_broker() -> None:
    state = done(led(), register(1, "process", "process", replaces=1))

    assert refusal_of(state, register(1, "process")) == "superseded"


def test_a_registration_without_a_start_or_of_no_broker_is_refused() -> None:
    assert refusal_of(led(), Register(1, incarnation(1), 2, (), 1)) == "invalid-parameter"
    assert refusal_of(led(), register(12288)) == "invalid-parameter"
    assert refusal_of(led(), replace(register(1), ordinal=-1)) == "invalid-parameter"


def test_a_start_of_a_broker_in_a_step_cancels_the_step() -> None:
    state = with_topic(led(registered=2))
    begun = begin(state)

    after = done(begun, register(3, "process"))

    assert after.step is None
    assert all(each.step is None for each in after.ranges.values())
    assert done(begun, register(4, "process")).step == begun.step


# --- fencing ---


def test_a_fenced_broker_cannot_lead_until_it_is_heard_again() -> None:
    state = done(led(), Fence(1, 1))

    assert refusal_of(state, Lead(0, 1, 1, 1)) == "fenced"
    assert done(state, Fence(1, 1)).brokers == state.brokers
    heard = done(state, Fence(1, 1, is_fenced=False))
    assert done(heard, Lead(0, 1, 1, 1)).ranges[0].leader == Replica(1, 1)


def test_a_fence_is_for_one_registration() -> None:
    state = done(led(), register(1, "process"))

    assert refusal_of(state, Fence(1, 1)) == "stale-registration"
    assert refusal_of(state, Fence(7, 1)) == "stale-registration"


# --- leaving ---


def test_a_broker_leaves_that_no_range_names_and_its_disk_never_comes_back() -> None:
    state = founded(registered=1)

    after = done(state, Retire(3, 1))

    assert 3 not in after.brokers
    assert refusal_of(after, register(3, "clean")) == "retired"
    assert refusal_of(after, Retire(3, 1)) == "broker-not-found"


def test_a_new_disk_in_its_place_does_not_get_a_number_that_was_there() -> None:
    state = done(founded(registered=1), register(3, "clean"), Retire(3, 2))

    after = done(state, Register(3, incarnation(3, 2), 1, (Start(start_id(3, 50), "disk"),), 2))

    assert after.brokers[3].number == 3


def test_a_late_retirement_does_not_take_who_has_come_since() -> None:
    """It is asked for again and again until it is agreed on, and a new disk is another broker."""
    state = done(founded(registered=1), Retire(3, 1))

    state = done(state, Register(3, incarnation(3, 2), 1, (Start(start_id(3, 50), "disk"),), 1))

    assert refusal_of(state, Retire(3, 1)) == "stale-registration"
    assert 3 not in done(state, Retire(3, 2)).brokers


def test_a_broker_of_the_ring_or_of_a_step_cannot_leave() -> None:
    assert refusal_of(led(), Retire(2, 1)) == "in-the-ring"
    assert refusal_of(begin(led(registered=1)), Retire(3, 1)) == "step-open"
    assert done(begin(led(registered=2)), Retire(4, 1)).step is not None


def test_a_broker_with_copies_leaves_only_when_their_loss_is_accepted() -> None:
    state = with_topic(led(4, 1))
    shrunk = stepped(state, "shrink")
    (held,) = (each for each in shrunk.ranges.values() if each.complete == (3,))

    assert refusal_of(shrunk, Retire(3, 1)) == "holds-ranges"
    after = done(shrunk, Retire(3, 1, accept_loss=True))
    assert 3 not in after.ranges[held.id].replicas
    assert after.ranges[held.id].complete == ()
    (accepted,) = after.accepted_losses
    assert accepted == (f"range {held.id}: broker 3 has left, and no other has a whole copy")


def test_the_loss_of_a_copy_whose_disk_is_gone_is_noted_when_its_broker_leaves() -> None:
    shrunk = stepped(with_topic(led(4, 1)), "shrink")
    (held,) = (each for each in shrunk.ranges.values() if each.complete == (3,))
    new_disk = Register(3, incarnation(3, 2), 1, (Start(start_id(3, 50), "disk"),), 1)
    without = done(shrunk, new_disk)
    assert without.ranges[held.id].complete == ()

    after = done(without, Retire(3, 2, accept_loss=True))
    assert [each.split(":")[0] for each in after.accepted_losses] == [f"range {held.id}"]


def test_a_copy_that_others_have_too_is_no_loss() -> None:
    shrunk = stepped(with_topic(led(4)), "shrink")

    after = done(shrunk, Retire(3, 1, accept_loss=True))

    assert after.accepted_losses == ()
    assert 3 not in {ordinal for each in after.ranges.values() for ordinal in each.replicas}
