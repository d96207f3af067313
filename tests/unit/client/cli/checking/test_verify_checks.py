"""What `tailrace ring verify` finds in what brokers say of their ring."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tailrace.cli.checking.check import FAILED, OK, WARNING, Check
from tailrace.cli.checking.verify_checks import (
    FIRST_TOKEN,
    LAST_TOKEN,
    Answers,
    not_agreed_check,
    verify_checks,
)
from tailrace.protocol.ring_values import (
    RangeDetails,
    RangeReplica,
    Registration,
    RingDetails,
    RingMetadata,
    RingStep,
)

BOUNDS = (FIRST_TOKEN, -100, 100, LAST_TOKEN + 1)
STEP = RingStep(7, "split", 3, 4, (0, 1), (1,), "sealing", 12_345)


def broker(ordinal: int, **changed: object) -> Registration:
    known = Registration(ordinal, 1, f"i{ordinal}", 1, "clean", False, True, 500)
    return replace(known, **changed)  # type: ignore[arg-type]


def opened(id_: int, **changed: object) -> RangeDetails:
    replicas = tuple((id_ + each) % 3 for each in range(3))
    isr = tuple(RangeReplica(each, 1, ghost=False) for each in replicas)
    start, end = map(str, BOUNDS[id_ : id_ + 2])
    known = RangeDetails(id_, start, end, 4, id_, replicas, isr, "open")
    return replace(known, **changed)  # type: ignore[arg-type]


def sealed(complete: tuple[int, ...]) -> RangeDetails:
    return opened(0, id=9, leader=None, isr=(), state="sealed", complete=complete)


def ring(ranges: Sequence[RangeDetails] = (), **changed: object) -> RingDetails:
    """Ranges of the same id take the place of those that are well."""
    own = {**{each: opened(each) for each in range(3)}, **{each.id: each for each in ranges}}
    known = RingDetails(
        name="events",
        state="member",
        cluster_id="c",
        brokers=3,
        factor=3,
        copies=3,
        metadata=RingMetadata(2, 0, (0, 1, 2), (), 500, 500),
        registrations=tuple(map(broker, range(3))),
        ranges=tuple(own.values()),
        step=None,
    )
    return replace(known, **changed)  # type: ignore[arg-type]


def found(known: RingDetails, answers: Answers | None = None) -> list[tuple[str, str]]:
    checks = verify_checks(known, dict.fromkeys(range(3), known) if answers is None else answers)
    return [(each.name, each.detail) for each in checks if each.state != OK]


def test_a_ring_that_is_well_has_a_line_of_each_kind() -> None:
    known = ring([sealed((0, 1, 2))])
    assert verify_checks(known, dict.fromkeys(range(3), known)) == [
        Check(OK, "brokers", "3 answer"),
        Check(OK, "tokens", "each has one owner"),
        Check(OK, "ranges", "3 with a leader and 3 replicas in sync"),
        Check(OK, "sealed ranges", "1, whole on 3 brokers"),
        Check(OK, "step", "none has been open for long"),
        Check(OK, "metadata", "all are near height 500"),
    ]


@pytest.mark.parametrize(
    ("registrations", "detail"),
    [
        ((broker(0), broker(1)), "broker 2 is not registered: start it"),
        ((broker(0), broker(1), broker(2, alive=False)), "broker 2 is down: start it"),
        ((broker(0), broker(1), broker(2, fenced=True)), "broker 2 is down: start it"),
    ],
)
def test_a_broker_that_is_away_is_named_with_the_ranges_that_miss_it(
    registrations: tuple[Registration, ...], detail: str
) -> None:
    assert found(ring(registrations=registrations)) == [
        ("brokers", detail),
        *(("ranges", f"broker 2 is not in sync in range {each}: start it") for each in range(3)),
    ]


def test_what_brokers_answer_is_compared() -> None:
    known = ring()
    behind = replace(known, metadata=replace(known.metadata, applied=399))
    near = replace(known, metadata=replace(known.metadata, applied=400))
    other = replace(known, cluster_id="d")

    assert found(known, {0: known, 1: None, 2: other}) == [
        ("brokers", "broker 1 does not answer here, but the others hear it: see its log"),
        ("brokers", "broker 2 is of another ring (d): see its settings"),
    ]
    assert found(known, {0: known, 1: near, 2: behind}) == [
        (
            "metadata",
            "broker 2 has applied up to height 399 of 500: see its log, and the network to "
            "port base + 5",
        ),
    ]


def test_brokers_that_cannot_be_asked_are_no_failure() -> None:
    [check] = [each for each in verify_checks(ring(), {}) if each.state != OK]
    assert (check.state, check.name) == (WARNING, "brokers")
    alone = replace(ring(), brokers=1, ranges=(opened(0, end=str(LAST_TOKEN + 1)),))
    assert not found(alone, {})


@pytest.mark.parametrize(
    ("one", "detail"),
    [
        (opened(0, start="0"), f"no range has tokens {FIRST_TOKEN} to -101"),
        (opened(1, end="90"), "no range has tokens 90 to 99"),
        (opened(2, end="200"), f"no range has tokens 200 to {LAST_TOKEN}"),
        (opened(1, end="150"), "tokens 100 to 149 are of range 1 and of range 2"),
        (opened(1, start="-110"), "tokens -110 to -101 are of range 0 and of range 1"),
    ],
)
def test_each_token_has_one_owner(one: RangeDetails, detail: str) -> None:
    known = ring([one])
    if one.id == 0:
        known = replace(known, ranges=known.ranges[1:])
    assert found(known) == [("tokens", f"{detail}: keep all disks as they are, and report this")]


def test_a_range_within_another_does_not_hide_what_follows() -> None:
    known = ring([opened(0, end="300"), opened(1), opened(2, start="300")])
    assert [detail for _, detail in found(known)] == [
        "tokens -100 to 99 are of range 0 and of range 1: keep all disks as they are, and report "
        "this"
    ]


def test_a_range_is_to_have_a_leader_and_all_its_replicas() -> None:
    ghost = RangeReplica(2, 1, ghost=True, cause="power")
    waiting = opened(0, state="waiting", leader=None, isr=())
    headless = opened(1, state="leaderless", leader=None)
    short = opened(2, isr=(RangeReplica(0, 1, ghost=False), ghost))

    assert found(ring([waiting, headless, short])) == [
        (
            "ranges",
            "no broker can lead range 0: start broker 0 or 1 or 2 with the data that it had; where "
            "that is lost for good: tailrace ring accept-loss 0 --broker 0",
        ),
        ("ranges", "no broker leads range 1: a replica takes over soon; ask again"),
        *(
            (
                "ranges",
                f"broker {each} is not in sync in range 2: LAG of tailrace ring status says how "
                "much it lacks",
            )
            for each in (1, 2)
        ),
    ]


def test_a_sealed_range_is_to_have_its_copies() -> None:
    assert found(ring([sealed((1, 2))])) == [
        (
            "sealed ranges",
            "range 9 has 2 of 3 complete copies: broker 0 copies it when it runs; watch ISR in "
            "tailrace ring status",
        )
    ]
    assert found(ring([sealed(())])) == [
        (
            "sealed ranges",
            "range 9 has no complete copy: start broker 0 or 1 or 2 with the data that it had; "
            "where that is lost for good: tailrace ring accept-loss 9 --broker 0",
        )
    ]
    assert not found(ring([sealed((0,))], copies=1))


def test_a_step_is_not_open_for_long() -> None:
    young = ring(step=replace(STEP, age_ms=None))
    assert not found(young)
    assert not found(young, {0: ring(), 2: ring(step=replace(STEP, id=6))})
    assert found(young, {0: young, 1: ring(step=STEP), 2: None}) == [
        ("brokers", "broker 2 does not answer here, but the others hear it: see its log"),
        (
            "step",
            "step 7 (split, 3 → 4 brokers) has been open for 12 s, for the leaders of ranges 0: "
            "see the logs of those brokers (tailrace ring status names them)",
        ),
    ]


def test_a_ring_without_a_metadata_leader_is_not_well() -> None:
    known = ring(metadata=RingMetadata(2, None, (0, 1, 2), (), 500, 500))
    assert found(known) == [("metadata", "no leader is known: start most of the voters")]
    check = not_agreed_check("most of the voters did not answer")
    assert (check.state, check.name) == (FAILED, "metadata")
    assert check.detail.startswith("most of the voters did not answer; start the voters")
