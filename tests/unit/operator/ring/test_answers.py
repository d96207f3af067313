"""What brokers answer, as values; that real ones answer so is tried in tests/integration."""

from dataclasses import replace

import pytest

from tailrace.protocol.ring_values import (
    RangeDetails,
    RangeReplica,
    Registration,
    RingDetails,
    RingMetadata,
    RingStep,
    StepResult,
)
from tailrace.values import TopicDetails, TopicInfo
from tailrace_operator.plan.observed import Broker, Range
from tailrace_operator.ring.answers import (
    arguments,
    live_topic,
    ring_of,
    state_in,
    step_text,
    together,
)

OLDER = RingMetadata(
    term=3, leader=1, voters=(0, 1, 2), next_voters=(), height=8, applied=8, log_bytes=0
)
METADATA = RingMetadata(
    term=3, leader=1, voters=(0, 1, 2), next_voters=(), height=9, applied=9, log_bytes=0
)


def registration(ordinal: int, *, fenced: bool = False, loss: str = "clean") -> Registration:
    return Registration(
        ordinal=ordinal,
        registration=7,
        incarnation=f"disk-{ordinal}",
        boot=1,
        loss=loss,
        fenced=fenced,
        alive=True,
        height=9,
    )


def in_sync(ordinal: int, *, registered: int = 7, ghost: str | None = None) -> RangeReplica:
    """`ghost`: why it is one."""
    return RangeReplica(
        ordinal=ordinal, registration=registered, ghost=ghost is not None, cause=ghost
    )


def a_range(*isr: RangeReplica, state: str = "open") -> RangeDetails:
    """Of brokers 0 and 1."""
    return RangeDetails(
        id=4, start="0", end="9", epoch=2, leader=0, replicas=(0, 1), isr=isr, state=state
    )


def a_ring(*ranges: RangeDetails, fenced: int | None = None) -> RingDetails:
    return RingDetails(
        name="events",
        state="member",
        cluster_id="ring-1",
        brokers=3,
        factor=2,
        copies=2,
        metadata=METADATA,
        registrations=tuple(registration(each, fenced=each == fenced) for each in range(3)),
        ranges=ranges,
        step=None,
    )


def test_a_ring_is_reported_by_what_it_agrees_on() -> None:
    brokers = (Broker(0, "member"), Broker(2, "member"))

    ring = ring_of(a_ring(a_range(in_sync(0), in_sync(1))), brokers, "0.1.0")

    assert (ring.cluster_id, ring.broker_count, ring.copies) == ("ring-1", 3, 2)
    assert (ring.metadata_leader, ring.version, ring.brokers) == (1, "0.1.0", brokers)
    assert (ring.leaderless, ring.under_replicated) == (0, 0)


@pytest.mark.parametrize(
    "lacking",
    [
        a_range(in_sync(0)),
        a_range(in_sync(0), in_sync(1, ghost="disk")),
        a_range(in_sync(0), in_sync(1, registered=6)),  # of the process before
        a_range(in_sync(0), in_sync(5)),  # of a broker that is not registered
    ],
)
def test_a_range_lacks_a_replica_that_is_no_good(lacking: RangeDetails) -> None:
    whole = a_range(in_sync(0), in_sync(1))

    assert ring_of(a_ring(whole, lacking), (), None).under_replicated == 1


def test_a_member_that_is_not_heard_does_not_count_though_the_isr_cannot_do_without() -> None:
    """The last two members of an ISR stay in it, whatever happens to their brokers."""
    ring = a_ring(a_range(in_sync(0), in_sync(1)))
    silent = tuple(replace(each, alive=each.ordinal != 1) for each in ring.registrations)

    (one,) = ring_of(replace(ring, registrations=silent), (), None).ranges

    assert one == Range(number=4, replicas=(0, 1), in_sync=(0,))
    assert [one.is_short_of(minimum) for minimum in (1, 2, 3)] == [False, True, True]


def test_replicas_of_a_fenced_broker_do_not_count() -> None:
    whole = a_range(in_sync(0), in_sync(1))

    assert ring_of(a_ring(whole, whole, fenced=1), (), None).under_replicated == 2


@pytest.mark.parametrize(
    ("complete", "short", "lost"), [((0, 1), 0, ()), ((1,), 1, ()), ((), 1, (4,))]
)
def test_a_sealed_range_lacks_copies_alone(
    complete: tuple[int, ...], short: int, lost: tuple[int, ...]
) -> None:
    sealed = replace(a_range(state="sealed"), complete=complete)
    ring = ring_of(a_ring(sealed), (), None)

    assert (ring.under_replicated, ring.sealed_short, ring.sealed_lost) == (0, short, lost)


STEP = RingStep(
    id=1, kind="grow", brokers_before=3, brokers_after=4, parents=(0,), sealed=(), phase="waiting"
)


@pytest.mark.parametrize(("next_voters", "step"), [((), None), ((0, 1, 2), None), ((), STEP)])
def test_a_ring_says_what_of_it_changes(
    next_voters: tuple[int, ...], step: RingStep | None
) -> None:
    metadata = replace(METADATA, next_voters=next_voters)

    ring = ring_of(replace(a_ring(a_range()), metadata=metadata, step=step), (), None)

    assert (sorted(ring.voters), sorted(ring.next_voters)) == ([0, 1, 2], [*next_voters])
    assert ring.has_step is (step is not None)


@pytest.mark.parametrize(
    ("state", "count"), [("open", 0), ("sealed", 0), ("leaderless", 1), ("waiting", 1)]
)
def test_a_range_that_nobody_can_lead_is_out_of_service(state: str, count: int) -> None:
    one = a_range(in_sync(0), in_sync(1), state=state)

    assert ring_of(a_ring(one), (), None).leaderless == count


@pytest.mark.parametrize(
    ("isr", "state", "fenced", "is_lost"),
    [
        ((in_sync(1, ghost="disk"),), "waiting", None, True),
        ((in_sync(1, ghost="disk"),), "waiting", 1, False),  # its disk may come back with it
        ((in_sync(1, ghost="disk"), in_sync(2)), "waiting", 2, False),
        ((in_sync(1, ghost="disk"), in_sync(5, ghost="disk")), "waiting", None, False),
        ((in_sync(1, ghost="disk"),), "open", None, False),
        ((in_sync(1, ghost="disk"),), "leaderless", None, False),
        # Who lost power alone has what it had flushed: the ring goes on with whoever has most.
        ((in_sync(1, ghost="disk"), in_sync(2, ghost="power")), "waiting", None, False),
    ],
)
def test_data_is_lost_when_all_that_had_it_are_back_without_it(
    isr: tuple[RangeReplica, ...], state: str, fenced: int | None, *, is_lost: bool
) -> None:
    ring = a_ring(a_range(*isr, state=state), fenced=fenced)

    lost = ((4, "lost its disk"),) if is_lost else ()
    assert ring_of(ring, (), None).lost == lost


@pytest.mark.parametrize(
    ("causes", "said"),
    [
        (("disk",), "lost its disk"),
        (("damage", "disk"), "lost its disk"),
        (("damage", "damage"), "has damaged data"),
        (("process",), "may have lost its last events"),
    ],
)
def test_what_happened_to_the_data_is_reported(causes: tuple[str, ...], said: str) -> None:
    ghosts = (in_sync(ordinal, ghost=cause) for ordinal, cause in enumerate(causes))

    assert ring_of(a_ring(a_range(*ghosts, state="waiting")), (), None).lost == ((4, said),)


def test_brokers_on_new_disks_are_known() -> None:
    registrations = (registration(0), registration(1, loss="disk"))

    ring = ring_of(replace(a_ring(), registrations=registrations), (), None)

    assert ring.new_disks == {1}


def test_who_is_in_a_ring_and_has_applied_most_knows_best() -> None:
    late = a_ring()
    early = replace(late, metadata=replace(METADATA, applied=4))
    outside = replace(late, cluster_id=None, metadata=replace(METADATA, applied=None))

    for answers in ([late, outside, early], [early, outside], [outside]):
        best = max(answers, key=[outside, early, late].index)
        for cluster_id in (None, "ring-1", "ring-2"):
            assert together(answers, cluster_id) == best


@pytest.mark.parametrize(
    ("known", "leader"),
    [(((3, None), (3, 1)), 1), (((4, None), (3, 1)), None), (((4, 2), (3, 1)), 2)],
    ids=["one knows", "a newer term without", "a newer term"],
)
def test_the_leader_of_the_metadata_is_that_of_the_newest_term(
    known: tuple[tuple[int, int | None], ...], leader: int | None
) -> None:
    answers = [
        replace(a_ring(), metadata=replace(METADATA, term=term, leader=each))
        for term, each in known
    ]

    assert together(answers, None).metadata.leader == leader


def test_a_broker_lives_that_anybody_hears() -> None:
    """One that has just started hears nobody; one that hears its peer's last process does not."""
    whole = a_ring(a_range(in_sync(0), in_sync(1)))
    silent = tuple(replace(each, alive=each.ordinal == 0) for each in whole.registrations)
    started = replace(whole, registrations=silent)
    before = tuple(replace(each, registration=6) for each in whole.registrations)

    for answers in ([started, whole], [whole, started]):
        assert together(answers, "ring-1") == whole
    older = replace(whole, registrations=before, metadata=OLDER)
    assert together([started, older], "ring-1") == started


def test_a_broker_on_a_volume_of_another_ring_does_not_speak_for_this_one() -> None:
    """As of a ring that was larger and had the name before: its volumes are still there."""
    another = replace(a_ring(), cluster_id="ring-0", metadata=replace(METADATA, term=9, applied=99))
    empty = replace(a_ring(), cluster_id=None, state="waiting to be admitted")
    answers = {0: a_ring(), 3: another, 4: empty}

    best = together(answers.values(), "ring-1")

    assert best == a_ring()
    assert [state_in(best, each) for each in answers.values()] == [
        "member",
        "of another ring",
        "waiting to be admitted",
    ]
    assert together([another], "ring-1") == another


def test_a_step_is_reported_with_what_it_cost() -> None:
    done = StepResult(
        step=2,
        kind="split",
        brokers=5,
        duration_ms=90,
        sealed_ranges=(1,),
        new_ranges=(5, 6),
        sealed_partitions=8,
        new_partitions=16,
    )

    assert step_text(done) == (
        "ranges 5, 6 in place of range 1; 8 partitions sealed, 16 new; 0 bytes copied; took 90 ms"
    )


def test_sealed_partitions_are_counted_apart() -> None:
    info = TopicInfo("t", "1", 4, True, "fsync", 16, 3, sealed_partitions=12)

    live = live_topic(TopicDetails(info, ()))

    assert (live.partition_count, live.sealed_count) == (4, 12)
    assert "sealedPartitions" not in live.settings


def test_settings_have_other_names_in_the_client() -> None:
    assert arguments({"retentionMs": 5, "jsonCheck": True}) == {
        "retention_ms": 5,
        "json_check": True,
    }
