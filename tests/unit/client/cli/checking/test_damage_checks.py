"""What `tailrace doctor` makes of damaged partitions, and of ranges without a leader."""

from dataclasses import replace

import pytest

from tailrace.cli.checking.check import FAILED, OK, Check
from tailrace.cli.checking.damage_checks import damage_check, range_check
from tailrace.protocol.ring_values import RangeDetails, RingDetails, RingMetadata
from tailrace.values import PartitionDetails, QuarantinedBatch
from tests.support.ring.rings import BROKER, partition

SPANS = [QuarantinedBatch(10 * n, 10 * n + 4, "0.log", 0, accepted=False) for n in range(3)]
RESTORE = "restore the files that the broker's log names, and start it again"


def quarantined(number: int, *spans: QuarantinedBatch) -> tuple[str, PartitionDetails]:
    return "t", replace(partition(number, 0, 0), quarantined=spans)


def damaged(number: int, high_watermark: int | None) -> tuple[str, PartitionDetails]:
    return "t", replace(partition(number, 0, 0, "damaged"), high_watermark=high_watermark)


@pytest.mark.parametrize(
    ("partitions", "names", "remedy"),
    [
        ([quarantined(0, SPANS[1])], 'partition 0 of topic "t" (offsets 10-14)', ""),
        (
            [quarantined(0, replace(SPANS[0], accepted=True), SPANS[1])],
            'partition 0 of topic "t" (offsets 10-14)',
            "",
        ),
        ([quarantined(1, *SPANS)], 'partition 1 of topic "t" (offsets 0-4 and 2 more)', ""),
        (
            [("t", replace(quarantined(1, SPANS[1])[1], isr=(2,), leader=2, range_id=7))],
            'partition 1 of topic "t" (offsets 10-14)',
            "; or give up the offsets of range 7: tailrace ring accept-loss 7 --broker 2",
        ),
        (
            [damaged(2, 40)],
            'partition 2 of topic "t" (from offset 40 on)',
            "; or go on without the records that are lost: tailrace topic accept-loss t 2",
        ),
        ([damaged(3, None)], 'partition 3 of topic "t" (all of it)', ""),
        (
            [quarantined(number, SPANS[0]) for number in range(5)],
            ", ".join(f'partition {n} of topic "t" (offsets 0-4)' for n in range(3))
            + " and 2 more",
            "",
        ),
    ],
)
def test_damage_is_named_by_partition_and_offsets(
    partitions: list[tuple[str, PartitionDetails]], names: str, remedy: str
) -> None:
    check = damage_check(replace(BROKER, damaged=1, quarantined=3), partitions)

    counts = "1 damaged, 3 ranges of offsets quarantined"
    assert check == Check(FAILED, "partitions", f"{counts}: {names}: {RESTORE}{remedy}")


def test_damage_that_nobody_could_name_is_counted() -> None:
    check = damage_check(replace(BROKER, quarantined=1), [])

    assert check == Check(FAILED, "partitions", f"1 range of offsets quarantined: {RESTORE}")


def ring_of(*states: str) -> RingDetails:
    ranges = tuple(
        RangeDetails(number, "0", "0", 1, None, (number,), (), state)
        for number, state in enumerate(states)
    )
    metadata = RingMetadata(1, 0, (0,), (), 1, 1)
    return RingDetails("r", "member", "id", 3, 1, 1, metadata, (), ranges, None)


@pytest.mark.parametrize(
    ("states", "state", "detail"),
    [
        (["open"], OK, "1 range, none without a leader"),
        (["open", "sealed"], OK, "2 ranges, none without a leader"),
        (
            ["open", "waiting"],
            FAILED,
            "no broker leads range 1 (waiting): start broker 1 with the data that it had; where "
            "that is lost for good: tailrace ring accept-loss 1 --broker 1",
        ),
        (
            ["leaderless", "open", "waiting"],
            FAILED,
            "no broker leads range 0 (leaderless), range 2 (waiting): start broker 2 with the data "
            "that it had; where that is lost for good: tailrace ring accept-loss 2 --broker 2",
        ),
        (
            ["leaderless"],
            FAILED,
            "no broker leads range 0 (leaderless): a replica takes over soon: see tailrace ring "
            "status",
        ),
    ],
)
def test_a_range_without_a_leader_is_wrong(states: list[str], state: str, detail: str) -> None:
    assert range_check(ring_of(*states)) == Check(state, "ranges", detail)


def test_a_sealed_range_of_which_no_broker_has_all_is_wrong() -> None:
    ring = ring_of("open", "sealed", "sealed")
    opened, whole, lost = ring.ranges
    ranges = (opened, replace(whole, complete=(1,)), replace(lost, complete=()))

    assert range_check(replace(ring, ranges=ranges)) == Check(
        FAILED,
        "ranges",
        "no broker has all of range 2 (sealed): start broker 2 with the data that it had; where "
        "that is lost for good: tailrace ring accept-loss 2 --broker 2",
    )


def test_a_range_whose_leader_does_not_answer_is_not_taken_for_one_that_is_led() -> None:
    ring = ring_of("open", "open", "sealed")
    led = [replace(each, leader=number) for number, each in enumerate(ring.ranges)]

    assert range_check(replace(ring, ranges=tuple(led)), silent={1, 2}) == Check(
        FAILED,
        "ranges",
        "the leader of range 1 (broker 1) does not answer: start what is down, or ask "
        "from where all brokers can be reached",
    )
    assert range_check(replace(ring, ranges=tuple(led)), silent={2, 3}).state == OK
