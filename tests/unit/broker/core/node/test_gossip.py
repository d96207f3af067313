"""Who seems to be alive, on examples."""

import random
from collections import Counter
from uuid import UUID

import pytest

from tailrace_broker.codec.peer import FRAME_HEADER, encode_frame, encoded_bytes
from tailrace_broker.core.node import gossip as gossip_module
from tailrace_broker.core.node.gossip import (
    CALLERS_MAX,
    DIGEST_BYTES_MAX,
    INCIDENT_MS,
    PAST_PROCESSES,
    SUSPICION_MS_MAX,
    TAKEOVER_MEMORY_MS,
    Gossip,
    GossipTiming,
)
from tailrace_broker.core.ring.arithmetic import UNITS, ring_order
from tailrace_broker.model.agreement import DiskId
from tailrace_broker.model.messages import Digest, Hint

INTERVAL_MS, SUSPICION_MS = GossipTiming()
NOW_MS = 50_000


def disk_of(ordinal: int, disk: int = 0) -> DiskId:
    return DiskId(ordinal, UUID(int=1000 * disk + ordinal + 1))


def gossip(ordinal: int = 0, brokers: int | None = 3, rules: Counter[str] | None = None) -> Gossip:
    made = Gossip(
        disk_of(ordinal),
        7,
        GossipTiming(),
        random.Random(3),
        NOW_MS,
        Counter() if rules is None else rules,
    )
    if brokers is not None:
        made.set_ring(brokers)
    return made


def hint_of(ordinal: int, beat: int = 10, *, boot: int = 1, disk: int = 0, height: int = 0) -> Hint:
    return Hint(ordinal, disk_of(ordinal, disk).incarnation, boot, beat, height)


def digest(sender: int, *hints: Hint, term: int = -1, leader: int | None = None) -> Digest:
    """`hints` are of the sender, and of others."""
    return Digest(disk_of(sender), hints, term, leader)


def rest_until(made: Gossip, now_ms: int) -> None:
    """It wakes in between as it wants to, and hears nothing."""
    while made.wake_at_ms <= now_ms:
        made.wake(made.wake_at_ms)


def peers_of(made: Gossip) -> list[int]:
    return [send.ordinal for send in made.wake(made.wake_at_ms)]


# --- alive or not ---


def test_it_is_alive_itself_and_nobody_else_before_it_was_heard() -> None:
    made = gossip()

    assert made.is_alive(0, NOW_MS)
    assert not made.is_alive(1, NOW_MS)


def test_a_newer_process_or_another_disk_replaces_who_was_known() -> None:
    made = gossip()
    incarnation = disk_of(1).incarnation
    assert not made.is_replaced(1, incarnation, 1)
    made.heard(digest(1, hint_of(1, boot=3)), NOW_MS)

    assert made.is_replaced(1, incarnation, 2)
    assert not made.is_replaced(1, incarnation, 3)
    assert not made.is_replaced(1, incarnation, 4)
    assert made.is_replaced(1, disk_of(1, disk=2).incarnation, 3)


def test_who_is_heard_is_one_process() -> None:
    made = gossip()
    incarnation = disk_of(1).incarnation
    assert not made.is_process(1, incarnation, 3)
    made.heard(digest(1, hint_of(1, boot=3)), NOW_MS)

    assert made.is_process(1, incarnation, 3)
    assert not made.is_process(1, incarnation, 2)  # which has ended
    assert not made.is_process(1, incarnation, 4)  # which is not heard yet
    assert not made.is_process(1, disk_of(1, disk=2).incarnation, 3)


def test_who_is_heard_is_alive_until_it_is_silent_for_too_long() -> None:
    made = gossip()
    made.heard(digest(1, hint_of(1)), NOW_MS)
    rest_until(made, NOW_MS + SUSPICION_MS)

    assert made.is_alive(1, NOW_MS + SUSPICION_MS - 1)
    assert not made.is_alive(1, NOW_MS + SUSPICION_MS)


def test_a_beat_is_fresh_for_a_second_however_patient_others_are_with_the_broker() -> None:
    made = gossip()
    assert not made.is_beating(1, NOW_MS)
    made.heard(digest(1, hint_of(1)), NOW_MS)
    made.took_over(1, 5, NOW_MS)
    rest_until(made, NOW_MS + SUSPICION_MS)

    assert made.is_beating(1, NOW_MS + SUSPICION_MS - 1)
    assert not made.is_beating(1, NOW_MS + SUSPICION_MS)
    assert made.is_alive(1, NOW_MS + SUSPICION_MS)


def test_a_message_that_comes_again_is_no_heartbeat() -> None:
    made = gossip()
    made.heard(digest(1, hint_of(1)), NOW_MS)
    rest_until(made, NOW_MS + SUSPICION_MS)
    for beat in (10, 9):
        made.heard(digest(1, hint_of(1, beat)), NOW_MS + SUSPICION_MS)

    assert not made.is_alive(1, NOW_MS + SUSPICION_MS)
    assert made.hints[1].beat == 10


def test_whose_beat_is_reported_by_others_is_alive_when_it_grows() -> None:
    made = gossip()
    made.heard(digest(1, hint_of(1), hint_of(2, 10)), NOW_MS)
    assert not made.is_alive(2, NOW_MS)

    made.heard(digest(1, hint_of(2, 11)), NOW_MS)
    assert made.is_alive(2, NOW_MS)


def test_a_reset_connection_is_suspicion_at_once_until_a_newer_beat() -> None:
    rules: Counter[str] = Counter()
    made = gossip(rules=rules)
    made.heard(digest(1, hint_of(1, 10)), NOW_MS)
    made.unreachable(1, NOW_MS + 1)
    assert rules["gossip.reset"] == 1

    made.unreachable(1, NOW_MS + 1)
    made.heard(digest(2, hint_of(2), hint_of(1, 10)), NOW_MS + 2)
    assert not made.is_alive(1, NOW_MS + 2)

    made.heard(digest(2, hint_of(1, 11)), NOW_MS + 3)
    assert made.is_alive(1, NOW_MS + 3)
    assert rules["gossip.reset"] == 1


def test_time_in_which_it_stood_still_itself_counts_against_nobody() -> None:
    made = gossip()
    made.heard(digest(1, hint_of(1)), NOW_MS)
    late_ms = NOW_MS + 60_000

    assert made.is_alive(1, late_ms)
    made.wake(late_ms)
    assert made.is_alive(1, late_ms)
    rest_until(made, late_ms + SUSPICION_MS)
    assert not made.is_alive(1, late_ms + SUSPICION_MS)


def test_waking_up_to_one_interval_late_is_not_standing_still() -> None:
    rules: Counter[str] = Counter()
    made = gossip(rules=rules)
    made.wake(NOW_MS + 2 * INTERVAL_MS)
    assert rules["gossip.stood_still"] == 0

    made.wake(NOW_MS + 4 * INTERVAL_MS + 1)
    assert rules["gossip.stood_still"] == 1


def test_time_in_which_it_stood_still_itself_counts_for_nobody() -> None:
    """A beat that comes after it gives no more time than any other."""
    made = gossip()
    made.heard(digest(1, hint_of(1, 10)), NOW_MS)
    late_ms = NOW_MS + 60_000
    made.wake(late_ms)
    made.heard(digest(1, hint_of(1, 11)), late_ms)
    assert made.is_alive(1, late_ms)

    rest_until(made, late_ms + SUSPICION_MS)
    assert not made.is_alive(1, late_ms + SUSPICION_MS)


def test_who_is_further_away_in_the_ring_is_given_more_time() -> None:
    made = gossip(0, brokers=12)
    clockwise = ring_order(12)

    assert [made.suspicion_ms(each, NOW_MS) - SUSPICION_MS for each in clockwise[1:]] == [
        hops * INTERVAL_MS for hops in (0, 1, 2, 3, 4, 4, 4, 3, 2, 1, 0)
    ]
    assert made.suspicion_ms(12, NOW_MS) == SUSPICION_MS + 4 * INTERVAL_MS  # not in the ring


# --- damping ---


def test_each_takeover_doubles_the_time_that_a_broker_may_be_silent() -> None:
    made = gossip()
    seen = []
    for number in range(6):
        seen.append(made.suspicion_ms(1, NOW_MS + number))
        made.took_over(1, number, NOW_MS + number)

    assert seen == [1000, 2000, 4000, 8000, 8000, 8000]
    assert made.suspicion_ms(2, NOW_MS) == SUSPICION_MS


def test_a_broker_that_fails_fails_once_however_many_ranges_it_led() -> None:
    rules: Counter[str] = Counter()
    made = gossip(rules=rules)
    made.took_over(1, 4, NOW_MS)
    made.took_over(1, 4, NOW_MS + 1)
    made.took_over(1, 4, NOW_MS + INCIDENT_MS - 1)
    assert made.suspicion_ms(1, NOW_MS) == 2000
    assert (rules["gossip.damped"], rules["gossip.same_incident"]) == (1, 2)

    made.took_over(1, 4, NOW_MS + INCIDENT_MS)
    assert made.suspicion_ms(1, NOW_MS) == 4000


def test_a_broker_that_leaves_its_ranges_because_it_is_not_fit_has_not_failed() -> None:
    made = gossip(rules=(rules := Counter[str]()))
    made.heard(digest(1, hint_of(1)._replace(is_fit=False)), NOW_MS)
    made.took_over(1, 4, NOW_MS)
    assert rules == {"gossip.left": 1}
    assert made.suspicion_ms(1, NOW_MS) == SUSPICION_MS
    made.set_fit(is_fit=False)
    made.took_over(0, 4, NOW_MS)  # as it knows itself
    assert rules == {"gossip.left": 2}

    rest_until(made, NOW_MS + SUSPICION_MS)
    made.took_over(1, 4, NOW_MS + SUSPICION_MS)  # it is silent
    assert made.suspicion_ms(1, NOW_MS + SUSPICION_MS) == 2 * SUSPICION_MS


def test_nobody_is_suspected_right_after_the_own_start_or_pause() -> None:
    made = gossip()
    assert not made.may_suspect(NOW_MS + SUSPICION_MS - 1)
    assert made.may_suspect(NOW_MS + SUSPICION_MS)

    rest_until(made, NOW_MS + SUSPICION_MS)
    resumed_ms = NOW_MS + SUSPICION_MS + 20_000
    made.wake(resumed_ms)
    assert not made.may_suspect(resumed_ms + SUSPICION_MS - 1)
    assert made.may_suspect(resumed_ms + SUSPICION_MS)


def test_who_speaks_is_heard_until_it_is_unreachable_or_silent() -> None:
    made = gossip()
    assert not made.is_heard_itself(1, NOW_MS)
    made.spoke(1, NOW_MS)
    assert made.is_heard_itself(1, NOW_MS + SUSPICION_MS - 1)
    assert not made.is_heard_itself(1, NOW_MS + SUSPICION_MS)

    made.unreachable(1, NOW_MS)
    assert not made.is_heard_itself(1, NOW_MS)


def test_a_takeover_is_forgotten() -> None:
    made = gossip()
    made.took_over(1, 1, NOW_MS)
    made.took_over(1, 2, NOW_MS + 1000)

    assert made.suspicion_ms(1, NOW_MS + TAKEOVER_MEMORY_MS - 1) == 4000
    assert made.suspicion_ms(1, NOW_MS + TAKEOVER_MEMORY_MS) == 2000
    assert made.suspicion_ms(1, NOW_MS + TAKEOVER_MEMORY_MS + 1000) == 1000


def test_a_time_above_the_bound_is_not_cut() -> None:
    timing = GossipTiming(suspicion_ms=2 * SUSPICION_MS_MAX)
    made = Gossip(disk_of(0), 1, timing, random.Random(1), 0, Counter())
    made.took_over(1, 1, 0)

    assert made.suspicion_ms(1, 0) == 2 * SUSPICION_MS_MAX


# --- other processes, other disks ---


def test_a_broker_that_started_again_is_known_at_once() -> None:
    made = gossip()
    made.heard(digest(1, hint_of(1, 500, boot=1)), NOW_MS)
    made.unreachable(1, NOW_MS)
    made.heard(digest(2, hint_of(1, 1, boot=2)), NOW_MS)

    assert made.is_alive(1, NOW_MS)
    assert made.hints[1].boot == 2


@pytest.mark.parametrize(("boot", "disk"), [(8, 0), (10, 1)], ids=["older boot", "other disk"])
def test_of_a_broker_that_is_alive_only_the_next_boot_of_its_disk_is_believed(
    boot: int, disk: int
) -> None:
    made = gossip()
    known = hint_of(1, 500, boot=9)
    made.heard(digest(1, known), NOW_MS)
    made.heard(digest(1, hint_of(1, 900, boot=boot, disk=disk)), NOW_MS)
    assert made.hints[1] == known


def test_another_disk_is_believed_when_the_known_one_is_silent() -> None:
    rules: Counter[str] = Counter()
    made = gossip(rules=rules)
    made.heard(digest(1, hint_of(1, 500, boot=9)), NOW_MS)
    blank = digest(1, hint_of(1, 3, boot=1, disk=1))
    made.heard(blank, NOW_MS)
    assert made.hints[1].boot == 9
    assert rules["gossip.disputed"] == 1

    made.unreachable(1, NOW_MS)
    made.heard(blank, NOW_MS)
    assert made.hints[1].incarnation == disk_of(1, 1).incarnation
    assert made.is_alive(1, NOW_MS)
    made.validate()


def test_a_disk_that_is_gone_is_not_believed_again_because_others_still_tell_of_it() -> None:
    rules: Counter[str] = Counter()
    made = gossip(rules=rules)
    old, new = hint_of(1, 500, boot=9), hint_of(1, 3, boot=1, disk=1)
    for hint in (old, new):
        made.heard(digest(1, hint), NOW_MS)
        made.unreachable(1, NOW_MS)
    made.heard(digest(2, old), NOW_MS)
    assert made.hints[1] == new
    assert not made.is_alive(1, NOW_MS)
    assert rules["gossip.past"] == 1

    restored = old._replace(beat=501)
    made.heard(digest(2, restored), NOW_MS)
    assert made.hints[1] == restored
    made.validate()


def test_another_disk_that_others_tell_of_is_alive_when_it_grows() -> None:
    made = gossip()
    made.heard(digest(1, hint_of(1, 500)), NOW_MS)
    made.unreachable(1, NOW_MS)
    made.heard(digest(2, hint_of(1, 3, disk=1)), NOW_MS)
    assert not made.is_alive(1, NOW_MS)

    made.heard(digest(2, hint_of(1, 4, disk=1)), NOW_MS)
    assert made.is_alive(1, NOW_MS)


def test_of_the_processes_that_were_a_broker_the_last_are_remembered() -> None:
    made = gossip()
    for boot in range(1, PAST_PROCESSES + 5):
        made.heard(digest(1, hint_of(1, 5, boot=boot)), NOW_MS)
        made.validate()

    assert made.hints[1].boot == PAST_PROCESSES + 4


def test_nobody_tells_it_about_itself() -> None:
    made = gossip()
    before = made.hints[0]
    made.heard(digest(1, before._replace(beat=10**6)), NOW_MS)
    made.heard(digest(1, hint_of(0, boot=99, disk=1)), NOW_MS)
    made.heard(digest(0, hint_of(1)), NOW_MS)

    assert made.hints[0] == before
    assert 1 not in made.hints
    made.validate()


@pytest.mark.parametrize("ordinal", [-1, 12_288])
def test_an_ordinal_that_no_ring_has_is_not_kept(ordinal: int) -> None:
    made = gossip()
    made.heard(digest(1, hint_of(1)._replace(ordinal=ordinal)), NOW_MS)

    assert set(made.hints) == {0}


def test_a_process_begins_above_the_beats_of_all_before_it() -> None:
    """Of the same disk and boot, when the disk was restored in between."""
    before = gossip()
    rest_until(before, NOW_MS + 60_000)
    after = Gossip(disk_of(0), 7, GossipTiming(), random.Random(1), NOW_MS + 60_200, Counter())
    after.wake(NOW_MS + 60_200)

    assert after.hints[0].beat > before.hints[0].beat


# --- what it says, and to whom ---


def test_it_wakes_once_an_interval_and_its_beat_grows() -> None:
    made = gossip()
    first = made.wake(NOW_MS)
    assert made.wake_at_ms == NOW_MS + INTERVAL_MS
    assert made.wake(NOW_MS + INTERVAL_MS - 1) == []
    second = made.wake(NOW_MS + INTERVAL_MS)

    beats = [send.message.hints[0].beat for send in (*first, *second)]  # type: ignore[union-attr]
    assert [send.ordinal for send in first] == [1, 2]
    assert beats[2:] == [beat + 1 for beat in beats[:2]]


@pytest.mark.parametrize(("brokers", "peers"), [(1, []), (2, [1]), (3, [1, 2]), (4, [3, 1, 2])])
def test_in_a_small_ring_it_tells_everybody(brokers: int, peers: list[int]) -> None:
    assert peers_of(gossip(0, brokers)) == peers


def test_in_a_larger_ring_it_tells_its_neighbours_and_another_one() -> None:
    made, clockwise = gossip(0, 12), ring_order(12)
    reported = [peers_of(made) for _ in range(200)]

    assert {tuple(peers[:2]) for peers in reported} == {(clockwise[1], clockwise[-1])}
    assert {peers[2] for peers in reported} == set(clockwise[2:-1])
    assert {len(peers) for peers in reported} == {3}


@pytest.mark.parametrize("ordinal", range(5))
def test_who_does_not_know_the_ring_asks_those_that_found_it(ordinal: int) -> None:
    assert peers_of(gossip(ordinal, None)) == [each for each in range(3) if each != ordinal]


def test_who_is_not_in_the_ring_tells_some_that_are() -> None:
    peers = peers_of(gossip(7, 6))

    assert len(peers) == 3
    assert set(peers) < set(range(6))


def test_who_calls_from_outside_of_the_ring_is_answered() -> None:
    made = gossip(0, 3)
    for sender in (9, 4, 1):
        made.heard(digest(sender, hint_of(sender)), NOW_MS)

    assert peers_of(made) == [1, 2, 4, 9]
    assert peers_of(made) == [1, 2]


def test_who_does_not_know_the_ring_answers_everybody() -> None:
    made = gossip(0, None)
    for sender in (5, 2):
        made.heard(digest(sender, hint_of(sender)), NOW_MS)

    assert peers_of(made) == [1, 2, 5]


def test_so_many_are_answered_in_an_interval() -> None:
    made = gossip(0, 3)
    for sender in range(100, 200):
        made.heard(digest(sender, hint_of(sender)), NOW_MS)

    made.validate()
    assert len(peers_of(made)) == 2 + CALLERS_MAX


def test_a_ring_that_grows_has_other_neighbours() -> None:
    made = gossip(0, 3)
    made.set_ring(3)
    made.set_ring(6)

    assert peers_of(made)[:2] == [3, 5]
    made.validate()


def test_a_digest_holds_its_own_hint_and_then_the_last_to_grow() -> None:
    made = gossip(0, 6)
    made.heard(digest(1, hint_of(1), hint_of(5)), NOW_MS)
    made.heard(digest(3, hint_of(3), hint_of(4)), NOW_MS)
    made.heard(digest(1, hint_of(1, 11)), NOW_MS)
    made.set_self(height=40, term=2, leader=1)
    message = made.wake(NOW_MS)[0].message

    assert isinstance(message, Digest)
    assert [hint.ordinal for hint in message.hints] == [0, 1, 3, 4, 5]
    assert message.hints[0].height == 40
    assert (message.sender, message.term, message.leader) == (disk_of(0), 2, 1)


@pytest.mark.parametrize("brokers", [48, 300])
def test_a_digest_fits_into_a_packet(brokers: int) -> None:
    rules: Counter[str] = Counter()
    made = gossip(0, brokers, rules)
    made.set_self(height=10**9, term=10**6, leader=brokers - 1)
    for ordinal in range(1, brokers):
        hint = hint_of(ordinal, 10**9, boot=10**5, height=10**9)
        made.heard(digest(ordinal, hint), NOW_MS)
    for send in made.wake(NOW_MS):
        assert DIGEST_BYTES_MAX - 50 < len(encode_frame(send.message)) <= DIGEST_BYTES_MAX

    assert rules["gossip.full"] == 1


def test_the_first_beat_is_that_of_the_clock() -> None:
    """So it is above all those of a process before."""
    made = gossip()
    message = made.wake(NOW_MS)[0].message

    assert isinstance(message, Digest)
    assert [hint.beat for hint in message.hints] == [NOW_MS // INTERVAL_MS]


def test_a_digest_that_fits_to_the_byte_has_all_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    made = gossip()
    others = [hint_of(1), hint_of(2)]
    for each in others:
        made.heard(digest(each.ordinal, each), NOW_MS)
    own = made.hints[0]._replace(beat=made.hints[0].beat + 1)
    empty_bytes = FRAME_HEADER.size + encoded_bytes(digest(0)) + gossip_module.ARRAY_BYTES
    needed_bytes = empty_bytes + sum(map(encoded_bytes, [own, *others]))
    monkeypatch.setattr(gossip_module, "DIGEST_BYTES_MAX", needed_bytes)

    message = made.wake(NOW_MS)[0].message
    assert isinstance(message, Digest)
    assert len(message.hints) == 3


# --- the leader ---


def test_the_newest_term_with_a_leader_is_the_hint() -> None:
    made = gossip()
    assert made.leader_hint() is None

    made.heard(digest(1, term=4, leader=2), NOW_MS)
    assert made.leader_hint() == (4, 2)
    made.heard(digest(2, term=3, leader=1), NOW_MS)
    made.set_self(height=0, term=5, leader=None)
    assert made.leader_hint() == (4, 2)
    made.set_self(height=0, term=6, leader=0)
    assert made.leader_hint() == (6, 0)
    made.heard(digest(1, term=7, leader=UNITS), NOW_MS)  # no such broker can be
    assert made.leader_hint() == (6, 0)


def test_what_it_heard_of_the_leader_it_hands_on() -> None:
    made = gossip()
    made.heard(digest(1, term=4, leader=2), NOW_MS)
    message = made.wake(NOW_MS)[0].message

    assert isinstance(message, Digest)
    assert (message.term, message.leader) == (4, 2)
