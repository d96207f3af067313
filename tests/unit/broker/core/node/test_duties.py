"""What a broker owes the ring, case by case."""

from collections.abc import Callable
from uuid import UUID

from msgspec.structs import replace

from tailrace_broker.core.node.duties import (
    brokers_to_fence,
    next_voters,
    ranges_to_lead,
    takeovers,
    wanted_voters,
)
from tailrace_broker.core.ring.commands import initial_state
from tailrace_broker.core.ring.roles import is_elsewhere
from tailrace_broker.model.agreement import Configuration, DiskId
from tailrace_broker.model.commands import Fence, Lead
from tailrace_broker.model.ring_state import RangeEnd, RangeState, Registration, Replica, RingState

SESSION_MS = 3000


def disk_of(ordinal: int, generation: int = 0) -> DiskId:
    return DiskId(ordinal, UUID(int=1000 * generation + ordinal))


def registration_of(ordinal: int, *, is_fenced: bool = False) -> Registration:
    incarnation = disk_of(ordinal).incarnation
    return Registration(ordinal, 1, incarnation, 1, UUID(int=ordinal), "disk", is_fenced)


def ring_of(broker_count: int, factor: int = 3) -> RingState:
    registrations = map(registration_of, range(broker_count))
    return initial_state(UUID(int=9), broker_count, factor, registrations)


def led_by(state: RingState, range_id: int, ordinal: int | None) -> RingState:
    leader = None if ordinal is None else Replica(ordinal, 1)
    led = replace(state.ranges[range_id], leader=leader, epoch=1)
    return with_range(state, led)


def with_range(state: RingState, changed: RangeState) -> RingState:
    return replace(state, ranges={**state.ranges, changed.id: changed})


def fenced(state: RingState, ordinal: int) -> RingState:
    broker = replace(state.brokers[ordinal], is_fenced=True)
    return replace(state, brokers={**state.brokers, ordinal: broker})


def leads_of(state: RingState, ordinal: int, alive: set[int]) -> list[Lead]:
    return leads(state, ordinal, alive.__contains__)


def leads(
    state: RingState,
    ordinal: int,
    is_alive: Callable[[int], bool],
    *,
    is_fit: Callable[[int], bool] = lambda _: True,
    may_suspect: bool = True,
) -> list[Lead]:
    mine = state.brokers[ordinal]
    return list(ranges_to_lead(state, mine, is_alive, is_fit=is_fit, may_suspect=may_suspect))


def test_a_new_range_is_led_by_its_natural_leader_whoever_was_heard_of() -> None:
    state = ring_of(3)

    assert leads_of(state, 0, {1, 2}) == [Lead(0, 0, 0, 1)]
    assert leads_of(state, 1, {2}) == [Lead(1, 0, 1, 1)]


def test_a_new_range_whose_natural_leader_is_fenced_is_led_by_the_next() -> None:
    state = fenced(ring_of(3), 0)

    assert leads_of(state, 1, {2}) == [Lead(0, 0, 1, 1), Lead(1, 0, 1, 1)]
    assert leads_of(state, 2, {1}) == [Lead(2, 0, 2, 1)]


def test_a_new_range_whose_natural_leader_is_a_ghost_is_led_by_the_next() -> None:
    state = ring_of(3)
    isr = (Replica(0, 0, is_ghost=True), Replica(1, 1), Replica(2, 1))
    state = with_range(state, replace(state.ranges[0], isr=isr))

    assert Lead(0, 0, 1, 1) in leads_of(state, 1, {0, 2})


def test_a_range_without_leader_is_led_by_the_first_that_is_alive() -> None:
    state = led_by(ring_of(3), 0, None)

    assert [each.range_id for each in leads_of(state, 1, {0, 2})] == [1]
    assert [each.range_id for each in leads_of(state, 1, {2})] == [0, 1]


def test_a_range_without_leader_does_not_wait_for_who_is_fenced() -> None:
    """Though it answers."""
    state = fenced(led_by(ring_of(3), 0, None), 1)

    assert leads_of(state, 2, {1}) == [Lead(0, 1, 2, 1), Lead(1, 0, 2, 1), Lead(2, 0, 2, 1)]


def test_a_leader_that_seems_dead_is_named_in_the_takeover() -> None:
    state = led_by(ring_of(3), 0, 0)

    assert leads_of(state, 1, {2})[0] == Lead(0, 1, 1, 1, (0,))
    assert leads_of(state, 2, {1}) == [Lead(2, 0, 2, 1)]
    assert [each.range_id for each in leads_of(state, 1, {0, 2})] == [1]


def test_a_fenced_leader_is_taken_over_from_though_it_answers() -> None:
    state = fenced(led_by(ring_of(3), 0, 0), 0)

    assert leads_of(state, 1, {0, 2})[0] == Lead(0, 1, 1, 1, (0,))


def test_who_is_isolated_leads_where_nobody_else_can() -> None:
    state = led_by(ring_of(3), 0, None)

    def leads_it(ordinal: int, fit: set[int]) -> bool:
        found = leads(state, ordinal, {1, 2}.__contains__, is_fit=fit.__contains__)
        return any(each.range_id == 0 for each in found)

    assert not leads_it(1, {2})
    assert leads_it(2, {2})
    assert leads_it(1, set())
    assert leads_it(1, {1, 2})


def test_who_has_just_begun_to_listen_takes_nobody_for_dead() -> None:
    """But for a broker that the ring has fenced."""
    state = led_by(ring_of(3), 0, 0)

    def led(tried: RingState) -> list[int]:
        return [each.range_id for each in leads(tried, 1, {2}.__contains__, may_suspect=False)]

    assert led(state) == [1]
    assert led(fenced(state, 0)) == [0, 1]


def test_a_takeover_is_one_and_a_hand_over_is_none() -> None:
    before = led_by(ring_of(3), 0, 0)
    owner = before.ranges[0]
    a, b, c = owner.isr

    def found(*isr: Replica, leader: Replica | None = b) -> list[Replica]:
        after = with_range(before, replace(owner, isr=isr, leader=leader, epoch=2))
        return [*takeovers(before, after)]

    assert found(b, c) == [a]
    assert found(a, b, c) == []
    assert found(a, b) == [a]  # the floor keeps it
    assert found(a, b, c, leader=None) == []
    assert found(a, b, c, leader=a) == []
    assert [*takeovers(None, before)] == []


def test_nobody_leads_alone_what_has_other_replicas() -> None:
    state = led_by(ring_of(3), 0, 0)

    assert leads_of(state, 1, set()) == []


def test_the_only_copy_leads_alone() -> None:
    state = led_by(ring_of(3, factor=1), 1, None)

    assert leads_of(state, 1, set()) == [Lead(1, 1, 1, 1)]
    assert leads_of(state, 0, set()) == [Lead(0, 0, 0, 1)]


def test_who_leads_already_asks_for_nothing() -> None:
    state = led_by(ring_of(1), 0, 0)

    assert leads_of(state, 0, set()) == []


def test_ghosts_and_old_registrations_do_not_lead() -> None:
    state = led_by(ring_of(3), 0, None)
    found = state.ranges[0]
    ghost = with_range(state, replace(found, isr=(Replica(0, 1, is_ghost=True), *found.isr[1:])))
    old = with_range(state, replace(found, isr=(Replica(0, 0), *found.isr[1:])))

    assert leads_of(ghost, 0, {1, 2}) == []
    assert leads_of(old, 0, {1, 2}) == []
    assert leads_of(ghost, 1, {0, 2})[0].range_id == 0


def test_of_ghosts_that_lost_nothing_but_power_the_first_alive_of_the_greatest_leads() -> None:
    state = led_by(ring_of(3), 0, None)
    isr = tuple(Replica(each, 1, is_ghost=True, cause="power") for each in range(3))
    state = with_range(state, replace(state.ranges[0], isr=isr))
    brokers = {
        each: replace(state.brokers[each], number=2, ends=(RangeEnd(0, 1, end),))
        for each, end in enumerate([9, 9, 7])
    }
    state = replace(state, brokers=brokers)

    def leads(ordinal: int, alive: set[int]) -> bool:
        return Lead(0, 1, ordinal, 2) in leads_of(state, ordinal, alive)

    assert leads(0, {1, 2})
    assert not leads(1, {0, 2})
    assert leads(1, {2})
    assert not leads(2, {1})
    assert not leads(2, set())


def test_sealed_ranges_are_not_led() -> None:
    state = led_by(ring_of(1), 0, None)
    sealed = with_range(state, replace(state.ranges[0], sealed_epoch=1))

    assert leads_of(sealed, 0, set()) == []


def test_damage_counts_wherever_a_broker_holds_a_copy_or_is_about_to() -> None:
    state = ring_of(3)
    led = state.ranges[0]
    sealed = replace(led, sealed_epoch=1, isr=(), complete=(1, 2))

    assert is_elsewhere(led, 0)
    assert is_elsewhere(sealed, 0)
    assert is_elsewhere(replace(sealed, complete=(0, 1)), 0)
    assert not is_elsewhere(replace(sealed, complete=(0,)), 0)
    assert not is_elsewhere(replace(sealed, replicas=(1, 2)), 0)
    assert not is_elsewhere(replace(led, replicas=(0,)), 0)


def fences_of(state: RingState, heard_at_ms: dict[DiskId, int], now_ms: int) -> list[Fence]:
    found = brokers_to_fence(
        state, heard_at_ms, me=0, since_ms=1000, session_ms=SESSION_MS, now_ms=now_ms
    )
    return list(found)


def test_who_is_silent_for_a_session_is_fenced() -> None:
    state = ring_of(3)
    heard = {disk_of(1): 2000, disk_of(2): 2001}

    assert fences_of(state, heard, 2000 + SESSION_MS) == []
    assert fences_of(state, heard, 2001 + SESSION_MS) == [Fence(1, 1)]


def test_a_new_leader_gives_everybody_a_session() -> None:
    state = ring_of(2)

    assert fences_of(state, {}, 1000 + SESSION_MS) == []
    assert fences_of(state, {disk_of(1): 0}, 1001 + SESSION_MS) == [Fence(1, 1)]


def test_another_disk_under_the_ordinal_is_not_the_broker() -> None:
    assert fences_of(ring_of(2), {disk_of(1, 1): 9000}, 9000) == [Fence(1, 1)]


def test_who_is_heard_again_is_let_in() -> None:
    state = fenced(ring_of(3), 1)
    heard = {disk_of(1): 5000, disk_of(2): 5000}

    assert fences_of(state, heard, 5100) == [Fence(1, 1, is_fenced=False)]
    assert fences_of(state, {**heard, disk_of(1): 5100 - SESSION_MS // 2}, 5100) == []


def test_the_leader_itself_is_heard() -> None:
    assert fences_of(fenced(ring_of(1), 0), {}, 9000) == [Fence(0, 1, is_fenced=False)]
    assert fences_of(ring_of(1), {}, 9000) == []


def test_the_registered_disks_vote() -> None:
    state = ring_of(3)
    voters = tuple(map(disk_of, range(3)))

    assert wanted_voters(state, Configuration(voters)) is None
    assert wanted_voters(state, Configuration((*voters[:2], disk_of(2, 1)))) == voters
    assert wanted_voters(state, Configuration(voters[:1])) == voters


def test_one_change_of_voters_after_the_other() -> None:
    joint = Configuration((disk_of(0),), tuple(map(disk_of, range(3))))

    assert wanted_voters(ring_of(9), joint) is None


def test_the_next_voters_are_known_before_their_change_begins() -> None:
    """Who would take a voter away must not see a gap between a registration and that change."""
    first, three = Configuration((disk_of(0),)), tuple(map(disk_of, range(3)))
    joint = Configuration((disk_of(0),), three)

    assert next_voters(ring_of(3), first) == three
    assert next_voters(ring_of(3), joint) == next_voters(None, joint) == three
    assert next_voters(ring_of(3), Configuration(three)) == next_voters(None, first) == ()


def test_nine_brokers_have_five_voters() -> None:
    voters = tuple(map(disk_of, range(5)))

    assert wanted_voters(ring_of(9), Configuration(voters[:3])) == voters
    assert wanted_voters(ring_of(2), Configuration(voters[:3])) == voters[:1]


def test_a_voter_that_is_registered_no_more_stays_until_another_comes() -> None:
    state = ring_of(3)
    without = replace(state, brokers={each: state.brokers[each] for each in (0, 1)})
    voters = tuple(map(disk_of, range(3)))

    assert wanted_voters(without, Configuration(voters)) is None
    assert wanted_voters(without, Configuration(voters[:2])) is None
