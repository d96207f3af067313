import pytest
from msgspec.structs import replace

from tailrace_broker.core.ring.range_commands import greatest_ghosts, lead
from tailrace_broker.model.commands import AcceptLoss, ChangeIsr, Fence, Lead, Lost
from tailrace_broker.model.ring_state import Loss, RangeEnd, Refusal, Replica, RingState
from tests.support.ring.states import (
    begin,
    done,
    founded,
    led,
    refusal_of,
    register,
    sealed,
    stepped,
    with_topic,
)

A, B, C = (Replica(each, 1) for each in range(3))
GHOST_A, GHOST_B, GHOST_C = (each._replace(is_ghost=True, cause="disk") for each in (A, B, C))


def ghosts(*ordinals: int, factor: int = 3) -> RingState:
    """A ring in which these brokers have lost their disks."""
    return done(led(factor=factor), *(register(each, "disk") for each in ordinals))


# --- leading ---


def test_who_leads_begins_an_epoch() -> None:
    state = done(led(), Lead(0, 1, 1, 1))

    assert state.ranges[0].leader == B
    assert state.ranges[0].epoch == 2
    assert state.ranges[0].isr == (A, B, C)
    assert state.ranges[0].version == 0


def test_two_that_want_to_lead_in_one_epoch_do_not_both() -> None:
    state = done(led(), Lead(0, 1, 1, 1, without=(0,)))

    assert refusal_of(state, Lead(0, 1, 2, 1, without=(0,))) == "stale-epoch"


def test_the_old_leader_leaves_the_isr_in_the_same_command() -> None:
    state = done(led(), Lead(0, 1, 1, 1, without=(0,)))

    assert state.ranges[0].isr == (B, C)
    assert state.ranges[0].version == 1


def test_the_old_leader_stays_where_the_floor_would_be_broken_until_it_is_replaced() -> None:
    """ISR A, B; A's disk dies; B leads although its ISR is A and B, and C takes A's place."""
    state = done(led(), ChangeIsr(0, 1, 0, (A, B)))

    taken = done(state, Lead(0, 1, 1, 1, without=(0, 2)))
    assert taken.ranges[0].isr == (A, B)

    replaced = done(taken, ChangeIsr(0, 2, 1, (B, C)))
    assert replaced.ranges[0].isr == (B, C)


def test_who_leads_does_not_leave_its_own_isr() -> None:
    assert done(led(), Lead(0, 1, 1, 1, without=(1, 0, 2))).ranges[0].isr == (B, C)


def test_a_ghost_that_is_taken_for_dead_leaves_when_enough_others_have_all() -> None:
    state = ghosts(2)

    assert done(state, Lead(0, 1, 1, 1, without=(2,))).ranges[0].isr == (A, B)
    assert done(state, Lead(0, 1, 1, 1, without=(0, 2))).ranges[0].isr == (A, B)
    lone = ghosts(1, 2)
    assert done(lone, Lead(0, 1, 0, 1, without=(1, 2))).ranges[0].isr == (A, GHOST_B, GHOST_C)


def test_with_two_of_two_in_sync_replicas_down_the_third_does_not_take_over() -> None:
    state = done(led(), ChangeIsr(0, 1, 0, (A, B)))

    assert refusal_of(state, Lead(0, 1, 2, 1, without=(0, 1))) == "not-in-isr"


def test_who_may_not_lead_is_refused_with_the_fenced_brokers_that_have_all() -> None:
    """They may run, and acknowledge what is lost when a person accepts the loss."""
    fenced = done(led(), ChangeIsr(0, 1, 0, (A, B)), Fence(0, 1), Fence(1, 1))
    outcome = lead(fenced, Lead(0, 1, 2, 1))

    assert isinstance(outcome, Refusal)
    assert "brokers 0, 1 have all of it and are fenced" in outcome.detail


def test_a_ghost_never_leads() -> None:
    state = ghosts(1)

    assert refusal_of(state, Lead(0, 1, 1, 2)) == "not-in-isr"
    assert refusal_of(ghosts(0, 1, 2), Lead(0, 1, 1, 2)) == "all-ghosts"


def test_what_is_not_there_is_not_led() -> None:
    state = stepped(with_topic(led(registered=1)))

    assert refusal_of(state, Lead(17, 1, 1, 1)) == "range-not-found"
    assert refusal_of(state, Lead(0, 1, 1, 1)) == "range-sealed"
    assert refusal_of(state, Lead(1, 1, 9, 1)) == "stale-registration"


def test_another_epoch_cancels_the_step_of_its_range() -> None:
    begun = begin(led(registered=1))

    after = done(begun, Lead(0, 1, 1, 1))

    assert after.step is None
    assert after.ranges[0].step is None
    assert done(begun, Lead(1, 1, 2, 1)).step == begun.step


# --- who is in sync ---


def test_a_leader_changes_the_isr_of_its_epoch_and_version() -> None:
    state = done(led(), ChangeIsr(0, 1, 0, (A, B)))

    assert state.ranges[0].isr == (A, B)
    assert state.ranges[0].version == 1
    assert done(state, ChangeIsr(0, 1, 1, (A, B))).ranges[0].version == 1


def test_a_late_change_of_the_isr_is_refused() -> None:
    state = done(led(), ChangeIsr(0, 1, 0, (A, B)), Lead(1, 1, 2, 1))

    assert refusal_of(state, ChangeIsr(0, 1, 0, (A, C))) == "stale-version"
    assert refusal_of(state, ChangeIsr(1, 1, 0, (B, C))) == "stale-epoch"
    assert refusal_of(founded(), ChangeIsr(0, 0, 0, (A, B))) == "no-leader"


def test_members_are_replaced_not_removed() -> None:
    state = done(led(), ChangeIsr(0, 1, 0, (A, B)))

    assert refusal_of(state, ChangeIsr(0, 1, 1, (A,))) == "below-floor"
    assert done(state, ChangeIsr(0, 1, 1, (A, C))).ranges[0].isr == (A, C)


def test_a_ghost_is_replaced_by_itself_when_it_has_caught_up() -> None:
    state = ghosts(1)

    after = done(state, ChangeIsr(0, 1, 1, (A, Replica(1, 2), C)))

    assert after.ranges[0].isr == (A, Replica(1, 2), C)
    assert done(after, Lead(0, 1, 1, 2)).ranges[0].leader == Replica(1, 2)


def test_a_ghost_leaves_only_when_enough_others_have_all() -> None:
    assert done(ghosts(1), ChangeIsr(0, 1, 1, (A, C))).ranges[0].isr == (A, C)
    assert refusal_of(ghosts(1, 2), ChangeIsr(0, 1, 2, (A, GHOST_B))) == "below-floor"


@pytest.mark.parametrize(
    ("isr", "reason"),
    [
        pytest.param((B, C), "invalid-isr", id="without the leader"),
        pytest.param((A, B, B), "invalid-isr", id="one twice"),
        pytest.param((A, B, GHOST_C), "invalid-isr", id="a new ghost"),
        pytest.param((A, B, Replica(7, 1)), "invalid-isr", id="no replica"),
        pytest.param((A, B, Replica(2, 2)), "stale-registration", id="no such registration"),
        pytest.param((GHOST_A, B, C), "invalid-isr", id="the leader as a ghost"),
    ],
)
def test_an_isr_that_cannot_be_is_refused(isr: tuple[Replica, ...], reason: str) -> None:
    assert refusal_of(led(), ChangeIsr(0, 1, 0, isr)) == reason


def test_who_registers_while_it_is_asked_for_is_not_in_sync() -> None:
    state = done(led(), ChangeIsr(0, 1, 0, (A, B)), register(2, "process"))

    assert refusal_of(state, ChangeIsr(0, 1, 1, (A, B, C))) == "stale-registration"


# --- accepted losses ---


def test_a_loss_is_accepted_when_nobody_has_all() -> None:
    state = ghosts(0, 1, 2)

    after = done(state, AcceptLoss(0, 1, 1, 2))

    assert after.ranges[0].leader == Replica(1, 2)
    assert after.ranges[0].epoch == 2
    assert after.ranges[0].isr == (Replica(1, 2), GHOST_A, GHOST_C)
    assert after.accepted_losses == ("range 0, epoch 2: what broker 1 has in registration 2",)


def test_the_only_copy_is_the_isr_when_its_loss_is_accepted() -> None:
    after = done(ghosts(0, factor=1), AcceptLoss(0, 1, 0, 2))

    assert after.ranges[0].isr == (Replica(0, 2),)


def test_a_loss_is_not_accepted_while_somebody_has_all() -> None:
    assert refusal_of(ghosts(0, 1), AcceptLoss(0, 1, 1, 2)) == "not-lost"


def test_who_has_all_but_is_not_heard_can_be_given_up() -> None:
    state = done(ghosts(0, 1), Fence(2, 1))

    after = done(state, AcceptLoss(0, 1, 1, 2))

    assert after.ranges[0].isr == (Replica(1, 2), GHOST_A, GHOST_C)


# --- a range of ghosts ---


def after_power(*ends: tuple[int, int] | None, of_disk: tuple[int, ...] = ()) -> RingState:
    """A ring with a `written` topic whose brokers have all lost power, or their disks."""
    state = with_topic(led(), written=True)
    for ordinal, end in enumerate(ends):
        found = () if end is None else (RangeEnd(0, *end), RangeEnd(1, 9, 9))
        loss: Loss = "disk" if ordinal in of_disk else "power"
        state = done(state, replace(register(ordinal, loss), ends=found))
    return state


def test_of_ghosts_the_one_that_has_most_leads_and_the_epoch_began_with_loss() -> None:
    state = after_power((3, 90), (4, 50), (4, 60))
    assert refusal_of(state, Lead(0, 1, 0, 2)) == "all-ghosts"
    assert refusal_of(state, Lead(0, 1, 1, 2)) == "all-ghosts"

    after = done(state, Lead(0, 1, 2, 2))

    ghosts_left = (each._replace(is_ghost=True, cause="power") for each in (A, B))
    assert after.ranges[0].isr == (*ghosts_left, Replica(2, 2))
    assert (after.ranges[0].epoch, after.ranges[0].lossy_epochs) == (2, (2,))
    assert after.ranges[1].lossy_epochs == ()


def test_ghosts_that_have_the_same_may_both_lead() -> None:
    state = after_power((4, 60), (4, 60), (4, 60))

    assert greatest_ghosts(state, state.ranges[0]) == {0, 1, 2}


def test_a_ghost_that_lost_its_disk_or_what_it_found_does_not_compare() -> None:
    state = after_power((4, 60), (4, 50), None, of_disk=(0,))

    assert greatest_ghosts(state, state.ranges[0]) == {1}
    nobody = after_power(None, None, None, of_disk=(0, 1, 2))
    assert greatest_ghosts(nobody, nobody.ranges[0]) == set()


def test_a_child_is_led_again_when_all_lost_power_before_they_knew_of_it() -> None:
    """They recovered by the state before the step, whose end they had agreed on already."""
    state = stepped(with_topic(led(registered=1), written=True))
    child = max(state.ranges.values(), key=lambda each: each.id)
    for ordinal in child.replicas:
        of_parents = replace(register(ordinal, "power"), ends=(RangeEnd(0, 1, 100),))
        state = done(state, of_parents)
    led_child = state.ranges[child.id]
    assert all(each.cause == "power" for each in led_child.isr)

    assert greatest_ghosts(state, led_child) == {*child.replicas}
    first = child.replicas[0]
    after = done(state, Lead(child.id, led_child.epoch, first, state.brokers[first].number))
    assert after.ranges[child.id].leader == Replica(first, state.brokers[first].number)


def test_a_ghost_that_has_stored_something_leads_before_one_that_did_not_know_of_the_range() -> (
    None
):
    state = after_power((1, 5), None, None)

    assert greatest_ghosts(state, state.ranges[0]) == {0}


def test_ghosts_wait_for_a_member_that_is_whole() -> None:
    state = after_power((4, 60), (4, 50))

    assert greatest_ghosts(state, state.ranges[0]) == set()
    assert refusal_of(state, Lead(0, 1, 0, 2)) == "not-in-isr"


def test_an_accepted_loss_begins_an_epoch_with_loss() -> None:
    assert done(ghosts(0, 1, 2), AcceptLoss(0, 1, 1, 2)).ranges[0].lossy_epochs == (2,)


def test_a_loss_is_accepted_of_a_replica_that_is_there() -> None:
    state = done(ghosts(0, 1, 2), register(5), register(4), Fence(4, 1))

    assert refusal_of(state, AcceptLoss(0, 1, 5, 1)) == "not-a-replica"
    assert refusal_of(state, AcceptLoss(0, 1, 1, 1)) == "stale-registration"
    assert refusal_of(state, AcceptLoss(0, 1, 4, 1)) == "fenced"
    assert refusal_of(state, AcceptLoss(0, 7, 1, 2)) == "stale-epoch"


# --- damage that is found later ---


def test_who_finds_damage_is_a_ghost_and_has_another_number() -> None:
    state = done(led(), Lost(0, 1, 1, 0))

    assert state.ranges[0].isr == (A, B._replace(is_ghost=True, cause="damage"), C)
    assert state.ranges[0].version == 1
    assert state.ranges[0].leader == A
    assert state.ranges[0].replica_of(state.brokers[1]) == B._replace(losses=1)
    assert state.ranges[1].isr == led().ranges[1].isr


def test_a_leader_that_finds_damage_leads_no_more() -> None:
    state = done(led(), Lost(0, 0, 1, 0))

    assert state.ranges[0].leader is None
    assert state.ranges[0].epoch == 1
    assert refusal_of(state, Lead(0, 1, 0, 1)) == "not-in-isr"
    assert done(state, Lead(0, 1, 1, 1)).ranges[0].epoch == 2


def test_what_was_proposed_before_the_damage_is_refused() -> None:
    """Of a replica that was not in sync, too."""
    without_b = done(led(), ChangeIsr(0, 1, 0, (A, C)))
    lost = done(without_b, Lost(0, 1, 1, 0))
    assert lost.ranges[0].isr == (A, C)

    version = lost.ranges[0].version
    assert refusal_of(lost, ChangeIsr(0, 1, version, (A, C, B))) == "stale-registration"
    caught_up = done(lost, ChangeIsr(0, 1, version, (A, C, B._replace(losses=1))))
    assert caught_up.ranges[0].isr == (A, C, B._replace(losses=1))


def test_a_ghost_that_has_caught_up_takes_its_own_place() -> None:
    state = done(led(), Lost(0, 1, 1, 0))
    whole = B._replace(losses=1)

    assert refusal_of(state, ChangeIsr(0, 1, 1, (A, B, C))) == "stale-registration"
    state = done(state, ChangeIsr(0, 1, 1, (A, whole, C)))
    assert done(state, Lead(0, 1, 1, 1)).ranges[0].leader == whole


def test_a_loss_is_reported_once() -> None:
    state = done(led(), Lost(0, 1, 1, 0))

    assert refusal_of(state, Lost(0, 1, 1, 0)) == "stale-registration"
    again = done(state, Lost(0, 1, 1, 1))
    assert again.ranges[0].replica_of(again.brokers[1]).losses == 2


def test_a_registration_counts_from_the_start() -> None:
    state = done(led(), Lost(0, 1, 1, 0), register(1, "process"))

    assert not state.ranges[0].losses
    assert refusal_of(state, Lost(0, 1, 1, 1)) == "stale-registration"
    assert done(state, Lost(0, 1, 2, 0)).ranges[0].losses == {1: 1}


def test_damage_makes_a_ghost_of_power_worse_and_none_better() -> None:
    written = with_topic(led(), written=True)
    power = done(written, register(1, "power"), Lost(0, 1, 2, 0))
    disk = done(written, register(1, "disk"), Lost(0, 1, 2, 0))

    assert [each.cause for each in power.ranges[0].isr] == [None, "damage", None]
    assert [each.cause for each in disk.ranges[0].isr] == [None, "disk", None]


def test_a_power_ghost_with_damage_does_not_lead() -> None:
    """The other two compare: it has said what it has."""
    state = with_topic(led(), written=True)
    for ordinal in range(3):
        ends = (RangeEnd(0, 1, 10 - ordinal),)
        state = done(state, replace(register(ordinal, "power"), ends=ends))
    assert greatest_ghosts(state, state.ranges[0]) == {0}

    state = done(state, Lost(0, 0, 2, 0))
    assert greatest_ghosts(state, state.ranges[0]) == {1}
    assert refusal_of(state, Lead(0, 1, 0, 2)) == "all-ghosts"


def test_a_whole_member_that_finds_damage_has_said_what_it_has() -> None:
    state = with_topic(led(), written=True)
    for ordinal in (1, 2):
        ends = (RangeEnd(0, 1, ordinal),)
        state = done(state, replace(register(ordinal, "power"), ends=ends))
    assert greatest_ghosts(state, state.ranges[0]) == set()

    state = done(state, Lost(0, 0, 1, 0))
    assert greatest_ghosts(state, state.ranges[0]) == {2}


def test_a_person_accepts_what_a_damaged_broker_has() -> None:
    lost = done(led(), *(Lost(0, ordinal, 1, 0) for ordinal in range(3)))

    state = done(lost, AcceptLoss(0, 1, 1, 1))
    assert state.ranges[0].leader == B._replace(losses=1)


def test_a_step_ends_with_damage_in_its_range() -> None:
    """What was said of its ends does not hold."""
    state = begin(led(registered=1))
    assert state.step is not None
    touched = state.step.parents[0]

    after = done(state, Lost(touched, state.ranges[touched].replicas[0], 1, 0))
    assert after.step is None


def test_a_replica_that_has_caught_up_after_damage_is_prepared_by_its_number() -> None:
    state = led(registered=1)
    touched = begin(state).step
    assert touched is not None
    range_id = touched.parents[0]
    leader, other, *_ = state.ranges[range_id].isr
    state = done(state, Lost(range_id, other.ordinal, 1, 0))
    isr = tuple(
        each._replace(is_ghost=False, cause=None, losses=1) if each.is_ghost else each
        for each in state.ranges[range_id].isr
    )
    state = begin(done(state, ChangeIsr(range_id, 1, 1, isr)))
    old = sealed(state, range_id)
    assert refusal_of(state, old) == "stale-registration"

    prepared = tuple(
        each._replace(losses=1) if each.ordinal == other.ordinal else each for each in old.prepared
    )
    assert state.step is not None
    parents = state.step.parents
    state = done(state, replace(old, prepared=prepared))
    for each in parents[1:]:
        state = done(state, sealed(state, each))
    assert state.step is None
    children = [each for each in state.ranges.values() if other in each.isr]
    assert children
    assert leader in children[0].isr


def test_damage_that_was_found_before_the_seal_is_reported_after_it() -> None:
    """Of a broker that has lost something before: its number in the range stays what it was."""
    state = begin(led(registered=1))
    assert state.step is not None
    range_id = state.step.parents[0]
    damaged = state.ranges[range_id].isr[1].ordinal
    state = done(led(registered=1), Lost(range_id, damaged, 1, 0))
    healed = tuple(
        each._replace(is_ghost=False, cause=None, losses=1) if each.is_ghost else each
        for each in state.ranges[range_id].isr
    )
    state = begin(done(state, ChangeIsr(range_id, 1, 1, healed)))
    assert state.step is not None
    for each in state.step.parents:
        prepared = {*state.brokers} - {damaged}
        state = done(state, sealed(state, each, prepared=prepared))
    assert damaged in state.ranges[range_id].complete

    after = done(state, Lost(range_id, damaged, 1, 1))
    assert damaged not in after.ranges[range_id].complete


def test_a_damaged_copy_of_a_sealed_range_is_not_whole() -> None:
    """Unless it is the only one."""
    state = stepped(led(registered=1))
    held = next(each for each in state.ranges.values() if len(each.complete) == 3)
    one, two, three = held.complete
    number = state.brokers[one].number

    state = done(state, Lost(held.id, one, number, 0))
    assert state.ranges[held.id].complete == (two, three)
    assert refusal_of(state, Lost(held.id, one, number, 0)) == "stale-registration"
    state = done(state, Lost(held.id, one, number, 1))
    assert state.ranges[held.id].losses == {one: 2}
    state = done(state, Lost(held.id, two, state.brokers[two].number, 0))
    assert refusal_of(state, Lost(held.id, three, state.brokers[three].number, 0)) == "only-copy"


def test_a_start_that_finds_damage_in_a_sealed_copy_says_so() -> None:
    state = stepped(led(registered=1))
    held = next(each for each in state.ranges.values() if len(each.complete) == 3)
    one, *others = held.complete

    state = done(state, replace(register(one, "clean"), damaged=(held.id,)))
    assert state.ranges[held.id].complete == tuple(others)


def test_what_no_broker_can_lose_is_refused() -> None:
    assert refusal_of(led(), Lost(9, 0, 1, 0)) == "range-not-found"
    assert refusal_of(led(), Lost(0, 9, 1, 0)) == "stale-registration"
    assert refusal_of(led(4, registered=0), Lost(0, 2, 1, 0)) in {"not-a-replica"}
    assert refusal_of(led(factor=1), Lost(0, 0, 1, 0)) == "only-copy"
