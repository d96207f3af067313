"""What a broker answers about its ring, and what it does to it by hand."""

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid5

import msgspec
import pytest
from msgspec.structs import replace

from tailrace_broker.core.replication.progress import FollowerLag
from tailrace_broker.core.ring.arithmetic import broker_token
from tailrace_broker.core.ring.changes import AppliedChange, RingChange
from tailrace_broker.core.ring.commands import apply_command, initial_state
from tailrace_broker.core.ring.step_ends import StepReport
from tailrace_broker.model.commands import (
    AcceptLoss,
    Command,
    CreateTopic,
    Lead,
    Retire,
    Stamped,
)
from tailrace_broker.model.errors import (
    InvalidParameterError,
    NoLeaderError,
    NotReadyError,
    RingRefusedError,
    SecretRequiredError,
    StepNotTakenError,
)
from tailrace_broker.model.forwarding import ForwardedCall
from tailrace_broker.model.messages import Hint
from tailrace_broker.model.ring_state import (
    EndedStep,
    LostOffsets,
    Refusal,
    Registration,
    Replica,
    RingState,
    StepState,
)
from tailrace_broker.model.topic import NEW_TOPIC
from tailrace_broker.net.api import range_losses, ring, ring_history, ring_plan, status
from tailrace_broker.net.broker import ClientView, LeaderAnswer, RingView
from tailrace_broker.net.http.request import check_secret
from tailrace_broker.net.http.router import Call, Response

NAMESPACE = UUID(int=7)
CLUSTER = UUID(int=8)
NOTHING = RingView(0, None, False, (), (), -1, -1, {}, {}, 0)


def incarnation(ordinal: int) -> UUID:
    return uuid5(NAMESPACE, str(ordinal))


def registration(ordinal: int, *, number: int = 1) -> Registration:
    return Registration(ordinal, number, incarnation(ordinal), 4, UUID(int=ordinal), "disk")


def state_of(*commands: Command, brokers: int = 3) -> RingState:
    """A new ring in which these were applied."""
    state = initial_state(CLUSTER, brokers, 1, map(registration, range(brokers)))
    for number, command in enumerate(commands):
        state = apply_command(state, Stamped(number, command))
        assert state.recent[number] is None, state.recent[number]
    return state


LED = state_of(
    CreateTopic("t", UUID(int=1), NEW_TOPIC),
    CreateTopic("__groups", UUID(int=2), NEW_TOPIC),
    *(Lead(each, 0, each, 1) for each in range(3)),
)
VIEW = RingView(
    term=5,
    leader=2,
    is_established=False,
    voters=(0, 1, 2),
    next_voters=(),
    commit=11,
    applied=10,
    alive={1: True, 2: False},
    hints={1: Hint(1, incarnation(1), 4, 9, 8)},
    log_bytes=4096,
)


class FixedRing:
    """Knows what it was reported; keeps what it was asked for."""

    def __init__(self, state: RingState | None, view: RingView) -> None:
        self.state = state
        self.is_loaded = True
        self.registration = None if state is None else state.brokers.get(0)
        self.asked: list[object] = []
        self._view = view

    def view(self) -> RingView:
        return self._view

    async def current(self) -> RingState:
        if self.state is None:
            raise NotReadyError("no ring")
        self.asked.append("current")
        return self.state

    async def change(self, command: Command) -> None:
        self.asked.append(command)
        assert self.state is not None
        self.state = apply_command(self.state, Stamped(99, command))
        refusal = self.state.recent[99]
        if refusal is not None:
            raise RingRefusedError(refusal)

    async def found(self, broker_count: int) -> None:
        self.asked.append(broker_count)
        self.state = state_of(brokers=broker_count)

    async def recover_alone(self) -> None:
        self.asked.append("recover")


async def data_bytes() -> int:
    return 2


async def disk_bytes() -> tuple[int, int]:
    return 3, 9


def broker_of(state: RingState | None, view: RingView = VIEW) -> Any:
    """Broker 0, ready."""
    return SimpleNamespace(
        ring=FixedRing(state, view),
        ring_secret="s",
        client_view=ClientView("a", 9251, 9252, "demo"),
        address_of=lambda ordinal: ("a", 9250 + 10 * ordinal),
        check_ready=lambda: None,
        now_us=lambda: 5_000_000,
        started_us=1_000_000,
        data_bytes=data_bytes,
        disk_bytes=disk_bytes,
        ordinal=0,
        incarnation=incarnation(0),
        restart_kind="clean",
        is_direct=True,
        durable_write_ms=0.5,
        damaged_count=0,
        quarantined_count=0,
        steps=SimpleNamespace(
            age_ms=lambda step: 40 if step == 3 else None,
            times_ms=lambda step: (52, 41) if step == 7 else (None, None),
        ),
        replication_lags=lambda: {0: [FollowerLag(2, None, None), FollowerLag(1, 7, 40)]},
        forward_call=nothing_lost,
    )


async def nothing_lost(ordinal: int, call: ForwardedCall) -> LeaderAnswer:
    """Answer `GET /internal/lost/{range}`."""
    assert call.target.startswith(b"/internal/lost/")
    return LeaderAnswer((b"[]",), "application/json", 200, {})


def answer(
    handle: Callable[[Any, Call], Awaitable[Response]],
    broker: Any,
    *,
    body: object = None,
    parameters: object = None,
) -> Any:
    call = Call(parameters, "application/json", "", json.dumps(body).encode())
    response = asyncio.run(_awaited(handle(broker, call)))
    assert isinstance(response.body, tuple)
    return json.loads(b"".join(response.body))


async def _awaited(response: Awaitable[Response]) -> Response:
    return await response


def described(broker: Any, *, consistent: bool = False) -> Any:
    parameters = ring.RingParameters(consistent=consistent)
    return answer(ring.describe_ring, broker, parameters=parameters)


# --- GET /v1/ring ---------------------------------------------------------------------------------


def test_the_ring_is_described_as_it_is_committed_and_as_it_is_heard() -> None:
    reported = described(broker_of(LED))

    assert reported["name"] == "demo"
    assert reported["state"] == "member"
    assert reported["clusterId"] == str(CLUSTER)
    assert (reported["brokers"], reported["factor"], reported["copies"]) == (3, 1, 1)
    assert reported["metadata"] == {
        "term": 5,
        "leader": 2,
        "voters": [0, 1, 2],
        "nextVoters": [],
        "height": 11,
        "applied": 10,
        "logBytes": 4096,
    }
    assert [(each["alive"], each["height"]) for each in reported["registrations"]] == [
        (True, 10),
        (True, 8),
        (False, None),
    ]
    assert reported["registrations"][1] == {
        "ordinal": 1,
        "registration": 1,
        "incarnation": str(incarnation(1)),
        "boot": 4,
        "loss": "disk",
        "fenced": False,
        "alive": True,
        "height": 8,
    }
    assert (reported["step"], reported["lastStep"]) == (None, None)


def test_ranges_are_in_token_order_and_their_tokens_are_texts() -> None:
    ranges = described(broker_of(LED))["ranges"]

    assert [range_["start"] for range_ in ranges] == [str(broker_token(each)) for each in range(3)]
    assert ranges[2]["end"] == str(2**63)
    assert ranges[1] == {
        "id": 1,
        "start": str(broker_token(1)),
        "end": str(broker_token(2)),
        "epoch": 1,
        "leader": 1,
        "replicas": [1],
        "isr": [{"ordinal": 1, "registration": 1, "ghost": False, "cause": None}],
        "followers": None,
        "complete": None,
        "state": "open",
    }


def test_the_leader_of_a_range_says_how_far_its_followers_are_behind() -> None:
    assert described(broker_of(LED))["ranges"][0]["followers"] == [
        {"ordinal": 1, "lagRecords": 7, "lagMs": 40},
        {"ordinal": 2, "lagRecords": None, "lagMs": None},
    ]
    [own, *_] = answer(status.brokers, broker_of(LED))["brokers"]
    assert own["lagMax"] == 7


def test_the_last_changes_are_listed_with_their_times() -> None:
    broker = broker_of(LED)
    leads = RingChange("leads", 1, "range 0: broker 1 leads in epoch 5", 0, 5)
    broker.ring_history = lambda: [AppliedChange(7, 1_000_000, leads)]

    assert answer(ring_history.list_changes, broker) == {
        "changes": [
            {
                "number": 7,
                "at": "1970-01-01T00:00:01.000000Z",
                "kind": "leads",
                "broker": 1,
                "range": 0,
                "epoch": 5,
                "text": "range 0: broker 1 leads in epoch 5",
            }
        ]
    }


def test_a_ghost_has_its_cause() -> None:
    isr = (Replica(1, 1, is_ghost=True, cause="power"),)
    state = replace(LED, ranges={**LED.ranges, 1: replace(LED.ranges[1], isr=isr)})

    [ghost] = described(broker_of(state))["ranges"][1]["isr"]
    assert (ghost["ghost"], ghost["cause"]) == (True, "power")


def test_a_range_says_what_it_waits_for() -> None:
    ranges = dict(LED.ranges)
    ranges[0] = replace(ranges[0], leader=None)
    ranges[1] = replace(ranges[1], leader=None, isr=(Replica(1, 1, is_ghost=True),))
    ranges[2] = replace(ranges[2], sealed_epoch=1)
    fenced = replace(LED.brokers[0], is_fenced=True)

    def states(state: RingState) -> list[str]:
        return [range_["state"] for range_ in described(broker_of(state))["ranges"]]

    assert states(state_of()) == ["leaderless"] * 3
    assert states(replace(LED, ranges=ranges)) == ["leaderless", "waiting", "sealed"]
    assert states(replace(LED, brokers={**LED.brokers, 0: fenced})) == ["waiting", "open", "open"]
    later = replace(LED, brokers={**LED.brokers, 0: registration(0, number=2)})
    assert states(later) == ["waiting", "open", "open"]
    del ranges[0], ranges[1]
    absent = replace(LED, ranges=LED.ranges, brokers={0: LED.brokers[0]})
    assert states(absent) == ["open", "waiting", "waiting"]


def test_a_step_that_is_under_way_is_described() -> None:
    step = StepState(3, "split", 3, 4, (0,), (), sealed={0: {}})

    assert described(broker_of(replace(LED, step=step)))["step"] == {
        "id": 3,
        "kind": "split",
        "brokersBefore": 3,
        "brokersAfter": 4,
        "parents": [0],
        "sealed": [0],
        "phase": "sealing",
        "ageMs": 40,
    }
    ended = [
        described(broker_of(replace(LED, last_step=EndedStep(each, "join", 4, 3, why, None))))[
            "lastStep"
        ]
        for each, why in ((7, ""), (6, "broker 2 has registered again"))
    ]
    both = {"kind": "join", "brokersBefore": 4, "brokersAfter": 3}
    assert ended == [
        {**both, "id": 7, "cancelled": None, "durationMs": 52, "pauseMs": 41},
        {
            **both,
            "id": 6,
            "cancelled": "broker 2 has registered again",
            "durationMs": None,
            "pauseMs": None,
        },
    ]
    waiting = described(broker_of(replace(LED, step=replace(step, id=4, sealed={}))))["step"]
    assert (waiting["phase"], waiting["ageMs"]) == ("waiting", None)


@pytest.mark.parametrize(
    ("leader", "state"), [(None, "waiting to be founded"), (1, "waiting to be admitted")]
)
def test_a_broker_in_no_ring_says_what_it_waits_for(leader: int | None, state: str) -> None:
    view = RingView(0, leader, False, (), (), -1, -1, {}, {}, 0)
    reported = described(broker_of(None, view))

    assert reported["state"] == state
    assert [reported[each] for each in ("clusterId", "brokers", "factor", "step")] == [None] * 4
    assert [reported["metadata"][each] for each in ("height", "applied")] == [None, None]
    assert (reported["registrations"], reported["ranges"]) == ([], [])


def test_a_broker_that_has_not_read_its_disk_does_not_say_that_it_is_in_no_ring() -> None:
    broker = broker_of(None, RingView(0, None, False, (), (), -1, -1, {}, {}, 0))
    broker.ring.is_loaded = False

    assert described(broker)["state"] == "starting"


def test_a_broker_that_is_not_registered_yet_says_so() -> None:
    broker = broker_of(LED)
    broker.ring.registration = None

    assert described(broker)["state"] == "waiting to be registered"


def test_only_who_asks_for_it_waits_for_the_majority() -> None:
    broker = broker_of(LED)
    described(broker)
    before = list(broker.ring.asked)
    described(broker, consistent=True)

    assert (before, broker.ring.asked) == ([], ["current"])
    with pytest.raises(NotReadyError):
        described(broker_of(None, NOTHING), consistent=True)


# --- by hand --------------------------------------------------------------------------------------


def test_a_ring_is_founded() -> None:
    broker = broker_of(None, NOTHING)
    reported = answer(ring.found_ring, broker, body={"brokers": 3})

    assert broker.ring.asked == [3]
    assert (reported["clusterId"], reported["brokers"]) == (str(CLUSTER), 3)


@pytest.mark.parametrize("body", [{"brokers": 0}, {"brokers": 12289}, {"brokers": 3, "factor": 2}])
def test_what_no_ring_can_be_is_refused(body: object) -> None:
    broker = broker_of(None, NOTHING)

    with pytest.raises(InvalidParameterError):
        answer(ring.found_ring, broker, body=body)
    assert broker.ring.asked == []


def test_a_step_is_answered_with_what_it_has_changed() -> None:
    asked = []

    async def take(*wanted: object) -> StepReport:
        asked.append(wanted)
        children = (replace(LED.ranges[0], id=3), replace(LED.ranges[0], id=4))
        return StepReport(StepState(2, "split", 3, 4, (0,), children), 12, 9, 4, 8)

    broker = broker_of(LED)
    broker.steps = SimpleNamespace(take=take)
    reported = answer(ring.take_step, broker, body={"kind": "grow", "brokersBefore": 3})

    assert asked == [("grow", 3)]
    assert reported == {
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


@pytest.mark.parametrize(
    "body",
    [{"kind": "split", "brokersBefore": 3}, {"kind": "grow"}, {"kind": "grow", "brokersBefore": 0}],
)
def test_a_step_says_which(body: object) -> None:
    with pytest.raises(InvalidParameterError):
        answer(ring.take_step, broker_of(LED), body=body)


def retire(broker: Any, ordinal: int, **body: object) -> Any:
    parameters = ring.BrokerPath(broker=ordinal)
    return answer(ring.retire_broker, broker, body=body, parameters=parameters)


def test_a_broker_that_has_left_and_holds_nothing_goes() -> None:
    state = replace(LED, brokers={**LED.brokers, 3: registration(3)})
    broker = broker_of(state)

    assert [each["ordinal"] for each in retire(broker, 3)["registrations"]] == [0, 1, 2]
    assert broker.ring.asked == ["current", Retire(3, 1)]


def test_a_broker_that_holds_copies_waits_for_others() -> None:
    held = replace(LED.ranges[0], id=9, sealed_epoch=1, isr=(), leader=None, replicas=(3, 0))
    state = replace(
        LED, brokers={**LED.brokers, 3: registration(3)}, ranges={**LED.ranges, 9: held}
    )
    with pytest.raises(StepNotTakenError) as raised:
        retire(broker_of(state), 3)

    assert (raised.value.retriable, raised.value.members) == (True, {"reason": "holds-ranges"})
    broker = broker_of(state)
    retire(broker, 3, acceptLoss=True)
    assert broker.ring.asked == ["current", Retire(3, 1, accept_loss=True)]


def test_a_broker_that_still_votes_does_not_go() -> None:
    """Its process would end: should another voter lose its disk now, no majority would be left."""
    state = replace(LED, brokers={**LED.brokers, 3: registration(3)})
    broker = broker_of(state, dataclasses.replace(VIEW, voters=(0, 1, 3), next_voters=(0, 1)))
    with pytest.raises(StepNotTakenError, match="still votes") as raised:
        retire(broker, 3)

    assert (raised.value.retriable, raised.value.members) == (True, {"reason": "votes"})
    assert broker.ring.asked == ["current"]


def test_a_broker_that_nobody_knows_does_not_go() -> None:
    with pytest.raises(RingRefusedError, match="has never registered"):
        retire(broker_of(LED), 7)


def test_a_broker_of_the_ring_does_not_go() -> None:
    with pytest.raises(RingRefusedError, match="shrink it first"):
        retire(broker_of(LED), 1)


# --- plans ----------------------------------------------------------------------------------------


def planned(broker: Any, brokers: int) -> Any:
    return answer(ring_plan.plan, broker, parameters=ring_plan.PlanParameters(brokers=brokers))


def logs_of(*sizes: int | None) -> Any:
    """A topic of one partition a range, and the sizes of the logs that are here."""
    partitions = [SimpleNamespace(partition=each, range_id=each) for each in range(len(sizes))]
    logs = [None if size is None else SimpleNamespace(size_bytes=size) for size in sizes]
    return SimpleNamespace(
        topic=SimpleNamespace(partitions=partitions), replica_of=logs.__getitem__
    )


def test_a_plan_has_each_step_and_what_they_cost_together() -> None:
    broker = broker_of(LED)
    broker.topics = lambda: [logs_of(100, None, 300)]
    reported = planned(broker, 5)

    assert (reported["brokers"], reported["brokersAfter"]) == (3, 5)
    assert (reported["missing"], reported["topics"]) == ([3, 4], 2)
    first, second = reported["steps"]
    assert [each["id"] for each in first["sealedRanges"]] == [0]
    assert [each["leader"] for each in second["newRanges"]] == [1, 4]
    assert (reported["sealedPartitions"], reported["newPartitions"]) == (16, 32)
    assert (reported["copyBytes"], reported["copiesUnknown"]) == (0, 0)


def test_a_plan_says_which_copies_have_a_known_size() -> None:
    state = state_of(CreateTopic("t", UUID(int=1), NEW_TOPIC), brokers=6)
    broker = broker_of(state)
    broker.topics = lambda: [logs_of(*[None, *[10] * 5])]
    reported = planned(broker, 5)

    [step] = reported["steps"]
    assert step["kind"] == "join"
    [left] = [each for each in step["sealedRanges"] if each["leader"] == 5]
    assert step["copies"] == [{"range": left["id"], "broker": 2, "bytes": 10}]
    assert (reported["copyBytes"], reported["copiesUnknown"]) == (10, 0)


def test_a_plan_is_of_a_ring_and_of_so_many_steps() -> None:
    with pytest.raises(NotReadyError):
        planned(broker_of(None, NOTHING), 3)
    with pytest.raises(InvalidParameterError, match="at most 100 steps"):
        planned(broker_of(LED), 104)


def lost_range(loss: bool = True) -> RingState:
    isr = (Replica(1, 1, is_ghost=loss),)
    return replace(LED, ranges={**LED.ranges, 1: replace(LED.ranges[1], leader=None, isr=isr)})


def accept(broker: Any, range_id: int, ordinal: int, *, dry_run: bool = False) -> Any:
    parameters = range_losses.RangeLossParameters(range=range_id, dry_run=dry_run)
    return answer(range_losses.accept_loss, broker, body={"broker": ordinal}, parameters=parameters)


def test_a_broker_leads_what_it_has_when_the_loss_is_accepted() -> None:
    broker = broker_of(lost_range())
    reported = accept(broker, 1, 1)

    assert broker.ring.asked == ["current", AcceptLoss(1, 1, 1, 1)]
    assert (reported["id"], reported["leader"], reported["epoch"], reported["state"]) == (
        1,
        1,
        2,
        "open",
    )


def test_a_dry_run_changes_nothing_and_says_what_the_ring_would_refuse() -> None:
    broker = broker_of(lost_range())
    reported = accept(broker, 1, 1, dry_run=True)

    assert broker.ring.asked == ["current"]
    assert (reported["leader"], reported["lost"], reported["dryRun"]) == (None, [], True)
    with pytest.raises(RingRefusedError):
        accept(broker_of(LED), 1, 1, dry_run=True)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_fenced_broker_that_has_all_of_the_range_is_named(*, dry_run: bool) -> None:
    """It may run, and acknowledge what is lost then."""
    isr = (Replica(0, 1), Replica(2, 1, is_ghost=True))
    ranges = {**LED.ranges, 1: replace(LED.ranges[1], leader=None, isr=isr, replicas=(1, 2, 0))}
    fenced = {**LED.brokers, 0: replace(LED.brokers[0], is_fenced=True)}
    broker = broker_of(replace(LED, ranges=ranges, brokers=fenced))

    assert accept(broker, 1, 1, dry_run=dry_run)["fenced"] == [0]


@pytest.mark.parametrize("dry_run", [True, False])
def test_what_the_only_copy_lacks_is_given_up_and_it_is_led_on(*, dry_run: bool) -> None:
    lost = LostOffsets(UUID(int=1), 5, 3, 9)

    async def damaged(ordinal: int, call: ForwardedCall) -> LeaderAnswer:
        assert (ordinal, call.target) == (1, b"/internal/lost/1")
        return LeaderAnswer((msgspec.json.encode([lost]),), "application/json", 200, {})

    broker = broker_of(LED)
    broker.forward_call = damaged
    reported = accept(broker, 1, 1, dry_run=dry_run)

    assert broker.ring.asked[1:] == ([] if dry_run else [AcceptLoss(1, 1, 1, 1, (lost,))])
    assert (reported["leader"], reported["epoch"]) == (1, 1)
    assert reported["lost"] == [
        {"topic": "t", "partition": 5, "firstOffset": 3, "lastOffset": 8},
    ]


@pytest.mark.parametrize("seconds", [5.0, 0.0])
def test_a_broker_that_is_about_to_be_ready_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    errors = [NotReadyError("recovering"), NoLeaderError("no link yet")]

    async def start(range_id: int) -> list[LostOffsets]:
        assert range_id == 0
        if errors:
            raise errors.pop(0)
        return []

    monkeypatch.setattr(range_losses, "ASK_SECONDS", seconds)
    monkeypatch.setattr(range_losses, "RETRY_SECONDS", 0.001)
    isr = (Replica(0, 1, is_ghost=True),)
    ranges = {**LED.ranges, 0: replace(LED.ranges[0], leader=None, isr=isr)}
    broker = broker_of(replace(LED, ranges=ranges))
    broker.lost_here = start
    if seconds:
        assert accept(broker, 0, 0)["leader"] == 0
        return
    with pytest.raises(NotReadyError):
        accept(broker, 0, 0)


def test_a_broker_does_not_lead_while_it_keeps_what_it_had_set_aside() -> None:
    """It would remove that, which may be the last copy."""

    async def refuse(ordinal: int, call: ForwardedCall) -> LeaderAnswer:
        raise RingRefusedError(Refusal("set-aside", "move it away first"))

    broker = broker_of(lost_range())
    broker.forward_call = refuse
    for dry_run in (True, False):
        with pytest.raises(RingRefusedError, match="move it away first"):
            accept(broker, 1, 1, dry_run=dry_run)
    assert broker.ring.asked == ["current"] * 2


@pytest.mark.parametrize(
    ("range_id", "ordinal", "reason"), [(9, 1, "range-not-found"), (1, 7, "not-registered")]
)
def test_a_range_or_broker_that_is_not_there_is_named(
    range_id: int, ordinal: int, reason: str
) -> None:
    with pytest.raises(RingRefusedError, match="0, 1, 2") as raised:
        accept(broker_of(lost_range()), range_id, ordinal)
    assert raised.value.members == {"reason": reason}


def test_what_the_ring_refuses_is_reported() -> None:
    with pytest.raises(RingRefusedError):
        accept(broker_of(LED), 1, 1)


def recover(broker: Any, *, accept_loss: bool = True) -> Any:
    return answer(ring.recover_metadata, broker, body={"acceptLoss": accept_loss})


def test_a_voter_goes_on_alone_when_most_are_away() -> None:
    view = RingView(5, None, False, (0, 1, 2), (), 3, 3, {1: False, 2: False}, {}, 0)
    broker = broker_of(LED, view)
    reported = recover(broker)

    assert broker.ring.asked == ["recover"]
    assert reported["clusterId"] == str(CLUSTER)


def test_a_voter_does_not_go_on_alone_while_most_are_alive() -> None:
    broker = broker_of(LED)

    with pytest.raises(RingRefusedError, match=r"alive \(0, 1\)") as raised:
        recover(broker)
    assert raised.value.members == {"reason": "voters-alive"}
    assert broker.ring.asked == []


def test_a_voter_goes_on_alone_only_when_the_loss_is_accepted() -> None:
    broker = broker_of(LED)

    with pytest.raises(InvalidParameterError, match="acceptLoss"):
        recover(broker, accept_loss=False)
    assert broker.ring.asked == []


# --- the secret -----------------------------------------------------------------------------------


@pytest.mark.parametrize("header", [b"Bearer s", b"bearer s", b"BEARER  s "])
def test_who_names_the_secret_may(header: bytes) -> None:
    check_secret("s", header)
    check_secret("", header)


@pytest.mark.parametrize(
    "header", [b"", b"s", b"Bearer", b"Bearer t", b"Basic s", b"Bearer s, Bearer s", b"\xff \xff"]
)
def test_who_does_not_may_not_but_where_there_is_none(header: bytes) -> None:
    check_secret("", header)
    with pytest.raises(SecretRequiredError, match=r"no secret" if not header else "another"):
        check_secret("s", header)


# --- GET /v1/brokers ------------------------------------------------------------------------------


def test_brokers_are_all_there_and_only_this_one_reports_all() -> None:
    reported = answer(status.brokers, broker_of(LED))
    own, other, away = reported["brokers"]

    assert reported["length"] == 3
    assert reported["names"] == ["a", "a", "a"]
    assert reported["ports"] == [9250, 9260, 9270]
    assert reported["ring"] == {
        "name": "demo",
        "clusterId": str(CLUSTER),
        "version": status.VERSION,
        "ranges": 3,
        "underReplicated": 1,  # of broker 2, which is away
        "copies": 1,
        "metadataLeader": 2,
        "metadataTerm": 5,
    }
    assert (own["upSeconds"], own["dataBytes"], own["diskUsedBytes"]) == (4, 2, 3)
    assert own["restart"] == "clean"
    assert {name for name, value in own.items() if value is None} == set()
    assert other.keys() == own.keys()
    assert {name for name, value in other.items() if value is None} == {
        "damaged",
        "quarantined",
        "lagMax",
        "dataBytes",
        "diskUsedBytes",
        "diskBytes",
        "directIo",
        "durableWriteMs",
        "startedAt",
        "upSeconds",
    }
    assert (other["ordinal"], other["token"], other["restart"]) == (1, str(broker_token(1)), "disk")
    assert [each["alive"] for each in (own, other, away)] == [True, True, False]


def test_brokers_lead_and_hold_partitions_of_users_topics() -> None:
    ranges = {**LED.ranges, 1: replace(LED.ranges[1], leader=None)}
    reported = answer(status.brokers, broker_of(replace(LED, ranges=ranges)))

    assert [(broker["leads"], broker["replicates"]) for broker in reported["brokers"]] == [
        (4, 4),
        (0, 4),
        (4, 4),
    ]


def test_ranges_without_a_whole_replica_are_under_replicated() -> None:
    lost = lost_range().ranges[1]
    ranges = {**LED.ranges, 1: lost, 2: replace(LED.ranges[2], sealed_epoch=1, isr=lost.isr)}
    reported = answer(status.brokers, broker_of(replace(LED, ranges=ranges)))["ring"]

    assert (reported["ranges"], reported["underReplicated"]) == (2, 1)


def test_a_broker_that_never_registered_has_no_incarnation() -> None:
    state = replace(LED, brokers={0: LED.brokers[0]})
    reported = answer(status.brokers, broker_of(state))["brokers"]

    assert [each["ordinal"] for each in reported] == [0, 1, 2]
    assert [each["incarnation"] is None for each in reported] == [False, True, True]
