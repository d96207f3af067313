"""What `tailrace ring` and `dev` print, without a broker."""

import json
from itertools import pairwise
from typing import Any

import pytest

from tailrace.cli.verbs import dev
from tailrace.cli.verbs.ring import accepted_text, ring_text, waiting_lines
from tailrace.local.ring import (
    BROKERS_MAX,
    PORT_STRIDE,
)
from tailrace.protocol.requests import Answer
from tailrace.protocol.ring_requests import (
    accept_loss_request,
    found_request,
    parse_accepted_loss,
    parse_ring,
    parse_ring_history,
    parse_step_result,
    recover_metadata_request,
    ring_history_request,
    ring_request,
    step_request,
)
from tailrace.protocol.ring_values import AcceptedLoss, RingDetails
from tailrace.values import to_document

REGISTRATION = {
    "ordinal": 0,
    "registration": 3,
    "incarnation": "7f3a1111-0000",
    "boot": 4,
    "loss": "process",
    "fenced": False,
    "alive": True,
    "height": 11,
}
RANGE = {
    "id": 0,
    "start": "-9223372036854775808",
    "end": "-3074457345618259968",
    "epoch": 5,
    "leader": 0,
    "replicas": [0],
    "isr": [{"ordinal": 0, "registration": 3, "ghost": False, "cause": None}],
    "followers": [
        {"ordinal": 1, "lagRecords": 1204, "lagMs": 35},
        {"ordinal": 2, "lagRecords": None, "lagMs": None},
        {"ordinal": 3, "lagRecords": 0, "lagMs": 0},
    ],
    "complete": None,
    "state": "open",
}
GHOST = {"ordinal": 1, "registration": 2, "ghost": True, "cause": "disk"}
WAITING = {
    **RANGE,
    "end": str(2**63),
    "id": 1,
    "start": "7",
    "leader": None,
    "isr": [GHOST],
    "state": "waiting",
}
RING: dict[str, Any] = {
    "name": "demo",
    "state": "member",
    "clusterId": "0b",
    "brokers": 2,
    "factor": 1,
    "copies": 1,
    "metadata": {
        "term": 7,
        "leader": 0,
        "voters": [0],
        "nextVoters": [],
        "height": 12,
        "applied": 11,
        "logBytes": 4096,
    },
    "registrations": [REGISTRATION, {**REGISTRATION, "ordinal": 1, "alive": False, "height": None}],
    "ranges": [RANGE, {**WAITING, "followers": None}],
    "step": None,
    "lastStep": None,
}
LAST_STEP = {
    "id": 7,
    "kind": "split",
    "brokersBefore": 3,
    "brokersAfter": 4,
    "cancelled": None,
    "durationMs": 52,
    "pauseMs": 41,
}
STEP = {
    "id": 1,
    "kind": "split",
    "brokersBefore": 2,
    "brokersAfter": 3,
    "parents": [0, 1],
    "sealed": [1],
    "phase": "sealing",
    "ageMs": 40,
}


def ring_of(**changed: Any) -> RingDetails:
    document = {**RING, **changed}
    return parse_ring(Answer(200, {}, json.dumps(document).encode()))


# --- requests and values --------------------------------------------------------------------------


def test_a_ring_is_read_and_written_as_it_was() -> None:
    assert to_document(ring_of()) == RING
    assert to_document(ring_of(step=STEP))["step"] == STEP
    assert to_document(ring_of(lastStep=LAST_STEP))["lastStep"] == LAST_STEP


def test_what_is_done_by_hand_names_what_it_needs() -> None:
    assert ring_request().target == "/v1/ring"
    assert ring_request(consistent=True).target == "/v1/ring?consistent=true"
    assert json.loads(found_request(3).body) == {"brokers": 3}
    accepted = accept_loss_request(7, 1)
    assert (accepted.method, accepted.target) == ("POST", "/v1/ring/ranges/7/accept-loss")
    assert json.loads(accepted.body) == {"broker": 1}
    assert accept_loss_request(7, 1, dry_run=True).target.endswith("/accept-loss?dryRun=true")
    assert json.loads(recover_metadata_request(accept_loss=True).body) == {"acceptLoss": True}
    step = step_request("grow", 3)
    assert (step.method, step.target) == ("POST", "/v1/ring/steps")
    assert json.loads(step.body) == {"kind": "grow", "brokersBefore": 3}


def accepted(lost: bool = False, *, dry_run: bool = False, **changed: object) -> AcceptedLoss:
    offsets = {"topic": "t", "partition": 3, "firstOffset": 5, "lastOffset": 9}
    answer = {"fenced": [], **RANGE, **changed, "lost": [offsets] if lost else []}
    answer["dryRun"] = dry_run
    return parse_accepted_loss(Answer(200, {}, json.dumps(answer).encode()))


def test_a_fenced_broker_with_all_of_a_range_is_named_before_the_loss_is_accepted() -> None:
    warning = (
        "\n  broker 2 has all of it and is fenced: if it runs, stop it first; what it acknowledges "
        "until then is lost"
    )
    assert accepted_text(accepted(dry_run=True, fenced=[2]), 1).endswith(f"be lost{warning}")
    assert warning not in accepted_text(accepted(fenced=[2]), 1)


def test_what_is_given_up_of_a_range_is_shown() -> None:
    assert accepted().range == ring_of().ranges[0]
    assert accepted_text(accepted(), 1) == "✓ range 0: led by broker 0 in epoch 5"
    assert accepted_text(accepted(leader=None), 1) == ("✓ range 0: led by no broker yet in epoch 5")
    assert accepted_text(accepted(dry_run=True), 1) == (
        "range 0: broker 1 would lead it in epoch 6; what others alone have would be lost"
    )
    assert accepted_text(accepted(True, state="sealed"), 1) == (
        "range 0, sealed: ✓ what broker 1 lacks is given up:\n  t, partition 3: offsets 5 to 9"
    )
    assert accepted_text(accepted(True, dry_run=True), 1) == (
        "range 0: would give up what broker 1 lacks:\n  t, partition 3: offsets 5 to 9"
    )
    assert accepted_text(accepted(state="sealed", dry_run=True), 1) == (
        "range 0, sealed: would give up what broker 1 lacks:\n  nothing"
    )


def test_a_step_is_read_as_it_was_said() -> None:
    result = {
        "step": 2,
        "kind": "split",
        "brokers": 4,
        "durationMs": 12,
        "pauseMs": 9,
        "sealedRanges": [0],
        "newRanges": [3, 4],
        "sealedPartitions": 4,
        "newPartitions": 8,
    }
    assert to_document(parse_step_result(Answer(200, {}, json.dumps(result).encode()))) == result


def test_the_history_of_a_ring_is_read_as_it_was_said() -> None:
    change = {
        "number": 7,
        "at": "2026-11-26T05:12:03.204911Z",
        "kind": "leaderless",
        "broker": None,
        "range": 1,
        "epoch": 4,
        "text": "range 1: no broker leads since epoch 4 ended",
    }
    answer = Answer(200, {}, json.dumps({"changes": [change]}).encode())

    assert ring_history_request().target == "/v1/ring/history"
    assert [to_document(each) for each in parse_ring_history(answer)] == [change]


# --- ring status ----------------------------------------------------------------------------------


def test_a_ring_is_shown_with_its_brokers_and_ranges() -> None:
    assert ring_text(ring_of()).splitlines() == [
        "RING demo   brokers 1/2   ranges 2   copies 1",
        "metadata leader 0 (term 7)   voters 0   height 11 of 12",
        "BROKER  REGISTRATION  INCARNATION  BOOT  LOSS     STATE  HEIGHT",
        "0       3             7f3a         4     process  alive  11",
        "1       3             7f3a         4     process  down   -",
        "RANGE  START                 END                   EPOCH  LEADER  ISR     REPLICAS  "
        "LAG                  STATE",
        "0      -9223372036854775808  -3074457345618259968  5      0       0       0         "
        "1:1204/35ms,2:?,3:0  open",
        "1       7                     9223372036854775808  5      -       1?disk  0         "
        "-                    waiting",
        "leader  ├0──────────────────────┤           ├?──────────────────────────────────┤",
        "range 1 waits for its broker with all its data; without it: tailrace ring accept-loss 1 "
        "--broker N",
    ]


def test_what_changes_is_shown() -> None:
    metadata = {**RING["metadata"], "leader": None, "nextVoters": [0, 1, 2]}
    fenced = {**REGISTRATION, "fenced": True}
    reported = ring_text(
        ring_of(
            metadata=metadata,
            registrations=[fenced],
            ranges=[{**RANGE, "isr": [], "state": "sealed"}],
            step=STEP,
            state="waiting to be registered",
        )
    )

    assert "ranges 0   copies 1   this broker is waiting to be registered\n" in reported
    assert "metadata leader none (term 7)   voters 0   next voters 0,1,2" in reported
    assert "  fenced  11\n" in reported
    assert "step 1: split from 2 to 3 brokers, 1 of 2 ranges sealed, sealing for 40 ms" in reported
    resliced = {**STEP, "kind": "re-slice", "brokersAfter": 2, "parents": [0], "sealed": []}
    reported = ring_text(ring_of(step={**resliced, "phase": "waiting", "ageMs": None}))
    assert "\nstep 1: re-slice, 0 of 1 ranges sealed, waiting" in reported


def test_brokers_beside_the_ring_are_not_counted() -> None:
    beside = [{**REGISTRATION, "ordinal": each} for each in (2, 3)]
    sealed = {**RANGE, "state": "sealed", "leader": None, "isr": [], "complete": [0, 3]}
    lines = ring_text(
        ring_of(registrations=[REGISTRATION, *beside], ranges=[RANGE, {**sealed, "id": 4}])
    ).splitlines()

    assert "  brokers 1/2  " in lines[0]
    assert [line.split()[5] for line in lines[3:6]] == ["alive", "spare", "left"]


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({}, "last step 7: split from 3 to 4 brokers, 52 ms, paused 41 ms"),
        ({"durationMs": None, "pauseMs": None}, "last step 7: split from 3 to 4 brokers"),
        (
            {"cancelled": "range 1 could not be sealed in time: broker 2 is not heard"},
            "last step 7: split from 3 to 4 brokers, cancelled: range 1 could not be sealed in "
            "time: broker 2 is not heard",
        ),
    ],
)
def test_the_last_step_is_shown_with_its_cost_or_why_it_was_cancelled(
    changed: dict[str, object], line: str
) -> None:
    assert line in ring_text(ring_of(lastStep={**LAST_STEP, **changed})).splitlines()


@pytest.mark.parametrize(
    ("state", "remedy"),
    [
        ("waiting to be founded", ["Found a ring: tailrace ring found --brokers N"]),
        ("waiting to be admitted", []),
    ],
)
def test_a_broker_in_no_ring_says_what_to_do(state: str, remedy: list[str]) -> None:
    metadata = {**RING["metadata"], "voters": [], "height": None, "applied": None}
    reported = ring_text(
        ring_of(
            state=state,
            clusterId=None,
            brokers=None,
            factor=None,
            metadata=metadata,
            registrations=[],
            ranges=[],
        )
    )

    assert reported.splitlines() == [
        f"RING demo   this broker is {state}",
        "metadata leader 0 (term 7)   voters none",
        *remedy,
    ]


# --- what dev says --------------------------------------------------------------------------------


@pytest.mark.parametrize("broker_count", range(2, BROKERS_MAX + 1))
def test_the_demo_has_a_key_for_every_range_that_is_led(broker_count: int) -> None:
    urls = [str(ordinal) for ordinal in range(broker_count)]
    bounds = [2**64 * index // broker_count - 2**63 for index in range(broker_count + 1)]
    for led in range(broker_count):
        ranges = [
            RANGE
            | {"id": index, "start": str(start), "end": str(end)}
            | ({"leader": led} if index == led else {"leader": None, "state": "waiting"})
            for index, (start, end) in enumerate(pairwise(bounds))
        ]
        details = ring_of(ranges=ranges)

        place = dev.demo_partition(details, urls)

        assert place.url == urls[led]
        assert place.partition // dev.PARTITIONS_PER_RANGE == led
        assert len(waiting_lines(details)) == broker_count - 1


def test_the_demo_has_a_key_where_no_range_is_led() -> None:
    bounds = {"start": str(-(2**63)), "end": str(2**63)}
    details = ring_of(ranges=[RANGE | bounds | {"leader": None, "state": "waiting"}])

    assert dev.demo_partition(details, ["url"]) == ("SFO", "url", dev.DEMO_PARTITION)


def test_local_rings_are_as_large_and_far_apart_as_the_command_says() -> None:
    assert (dev.BROKERS_MAX, dev.PORT_STRIDE) == (BROKERS_MAX, PORT_STRIDE)
