"""What `tailrace ring plan`, `grow`, `shrink` and `drain` print, wait for and repeat."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.cli.lib.parser import UsageError
from tailrace.cli.verbs import ring_size
from tailrace.cli.verbs.ring_size import Waits, plan_text
from tailrace.errors import ConnectionFailedError, ProblemError, TailraceError
from tailrace.protocol.requests import Answer
from tailrace.protocol.ring_requests import parse_ring_plan, retire_request, ring_plan_request
from tailrace.protocol.ring_values import RingPlan, StepResult
from tailrace.values import to_document

RANGE = {"id": 0, "start": "-9", "end": "9", "leader": 0, "replicas": [0, 1, 2]}
STEP = {
    "kind": "split",
    "brokersBefore": 3,
    "brokersAfter": 4,
    "sealedRanges": [RANGE],
    "newRanges": [{**RANGE, "id": 3, "end": "0"}, {**RANGE, "id": 4, "start": "0", "leader": 3}],
    "continued": None,
    "sealedPartitions": 4,
    "newPartitions": 8,
    "copies": [],
}
PLAN = {
    "brokers": 3,
    "brokersAfter": 4,
    "missing": [3],
    "topics": 1,
    "steps": [STEP],
    "sealedPartitions": 4,
    "newPartitions": 8,
    "copyBytes": 0,
    "copiesUnknown": 0,
}


def plan_of(**changed: Any) -> RingPlan:
    document = {**PLAN, **changed}
    return parse_ring_plan(Answer(200, {}, json.dumps(document).encode()))


def refused(reason: str, *, retriable: bool = True) -> ProblemError:
    return ProblemError(
        type="step-not-taken" if retriable else "ring-refused",
        title="Not now",
        status=503 if retriable else 409,
        detail=reason,
        retriable=retriable,
        members={"reason": reason},
    )


class FixedClient:
    """A ring of `brokers`; `answers`: what the next steps or retirements meet."""

    def __init__(self, brokers: int | None, *answers: ProblemError | Callable[[], None]) -> None:
        self.brokers = brokers
        self.url = "http://127.0.0.1:9250"
        self.registered = [0, 1, 2]
        self.ranges: list[Any] = []
        self.last_step: Any = None
        self.deleted: list[str] = []
        self.copies: list[dict[str, Any]] = []
        self.asked: list[tuple[object, ...]] = []
        self._answers = list(answers)

    def __enter__(self) -> "FixedClient":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ring(self, *, consistent: bool = False) -> Any:
        return SimpleNamespace(
            brokers=self.brokers,
            registrations=[SimpleNamespace(ordinal=each) for each in self.registered],
            ranges=self.ranges,
            last_step=self.last_step,
        )

    def deleted_topics(self) -> list[Any]:
        return [SimpleNamespace(name=name) for name in self.deleted]

    def ring_plan(self, brokers: int) -> RingPlan:
        steps = [{**STEP, "copies": self.copies}]
        return plan_of(brokersAfter=brokers, steps=steps)

    def step(self, kind: str, brokers_before: int) -> StepResult:
        self.asked.append((kind, brokers_before))
        self._meet()
        self.brokers = brokers_before + (1 if kind == "grow" else -1)
        split = "split" if kind == "grow" else "join"
        return StepResult(7, split, self.brokers, 12, (0,), (3, 4), 4, 8, 9)

    def retire(self, broker: int) -> None:
        self.asked.append(("retire", broker))
        self._meet()

    def _meet(self) -> None:
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, ProblemError):
            raise answer
        if answer is not None:
            answer()


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    return pauses


def run(monkeypatch: pytest.MonkeyPatch, client: FixedClient, verb: Any, **options: Any) -> None:
    monkeypatch.setattr(ring_size, "connect", lambda _: client)
    monkeypatch.setattr(ring_size, "_connect", lambda _, __: client)
    chosen = {"brokers": None, "dry_run": False, "output": "table", "url": None, **options}
    chosen.setdefault("data", Path("nowhere"))
    verb(**chosen)


# --- requests and values --------------------------------------------------------------------------


def test_a_plan_is_read_as_it_was_said() -> None:
    assert ring_plan_request(6).target == "/v1/ring/plan?brokers=6"
    assert to_document(plan_of()) == PLAN
    retired = retire_request(3)
    assert (retired.method, retired.target) == ("POST", "/v1/ring/brokers/3/retire")
    assert json.loads(retired.body) == {"acceptLoss": False}


def test_a_plan_says_what_each_step_changes_and_what_is_missing() -> None:
    assert plan_text(plan_of()) == (
        "3 → 4  split  ranges 0 → 3 (leader 0), 4 (leader 3)  8 new partitions\n"
        "1 step: 1 split, 0 continued; 8 new partitions in 1 topic; 0 bytes to copy\n"
        "start first: broker 3"
    )
    copies = [{"range": 0, "broker": 2, "bytes": None}]
    join = {**STEP, "kind": "join", "continued": [1, 4], "copies": copies}
    text = plan_text(plan_of(steps=[join], missing=[], copyBytes=2048, copiesUnknown=1))
    assert "8 new partitions  copies: range 0 to 2\n" in text
    assert text.endswith(
        "1 joined, 1 continued; 8 new partitions in 1 topic; 2.0 KiB and 1 of unknown size to copy"
    )
    assert plan_text(plan_of(steps=[])) == "the ring has 3 brokers; no step is needed"


# --- steps ----------------------------------------------------------------------------------------


def test_a_ring_grows_step_by_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = FixedClient(3)
    run(monkeypatch, client, ring_size.grow, brokers=5)

    assert client.asked == [("grow", 3), ("grow", 4)]
    assert capsys.readouterr().out == (
        "step 7: split, ring of 4; ranges 0 → 3, 4, 8 new partitions, 12 ms, paused 9 ms\n"
        "step 7: split, ring of 5; ranges 0 → 3, 4, 8 new partitions, 12 ms, paused 9 ms\n"
        "✓ ring of 5; 2 steps: 2 ranges sealed, 4 new, 16 new partitions; longest pause 9 ms; "
        "0 bytes copied by steps\n"
    )


def test_without_a_number_it_is_one_broker(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    growing, shrinking = FixedClient(3), FixedClient(3)
    run(monkeypatch, growing, ring_size.grow)
    run(monkeypatch, shrinking, ring_size.shrink, output="json")

    assert (growing.asked, shrinking.asked) == ([("grow", 3)], [("shrink", 3)])
    document = json.loads(capsys.readouterr().out.partition("bytes copied by steps\n")[2])
    assert (document["brokers"], document["longestStepMs"], document["longestPauseMs"]) == (
        2, 12, 9,
    )  # fmt: skip


def test_what_passes_is_said_once_and_asked_again_after_longer_pauses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], slept: list[float]
) -> None:
    waits = [refused("broker 3 is not there; start it first")] * 2 + [refused("cancelled")]
    client = FixedClient(3, *waits)
    run(monkeypatch, client, ring_size.grow)

    assert client.asked == [("grow", 3)] * 4
    assert slept == [0.1, 0.2, 0.4]
    assert capsys.readouterr().err == (
        "start broker 3; a ring of tailrace dev does, when --data names its directory\n"
        "waiting: broker 3 is not there; start it first\nwaiting: cancelled\n"
    )


def test_the_same_wait_at_the_next_step_is_not_said_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], slept: list[float]
) -> None:
    lags = refused("broker 2 is not in sync in range 5")
    client = FixedClient(6, lags, lags)
    client._answers += [lambda: None, lags]
    run(monkeypatch, client, ring_size.shrink, brokers=4)

    assert client.asked == [("shrink", 6)] * 3 + [("shrink", 5)] * 2
    assert slept == [0.1, 0.2, 0.1]
    assert capsys.readouterr().err == "waiting: broker 2 is not in sync in range 5\n"


def test_pauses_have_an_end(slept: list[float]) -> None:
    waits = Waits()
    for _ in range(9):
        waits.pause(refused("later"))

    assert slept[-2:] == [5.0, 5.0]


def test_what_does_not_pass_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProblemError, match="secret"):
        run(
            monkeypatch,
            FixedClient(3, refused("secret", retriable=False)),
            ring_size.grow,
        )


def test_a_step_whose_answer_was_lost_is_not_taken_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FixedClient(3)

    def taken() -> None:
        client.brokers = 4
        raise refused("stale-broker-count", retriable=False)

    client._answers.append(taken)
    run(monkeypatch, client, ring_size.grow, brokers=4)

    assert client.asked == [("grow", 3)]


def test_a_dry_run_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = FixedClient(3)
    for verb in (ring_size.grow, ring_size.shrink, ring_size.drain):
        run(monkeypatch, client, verb, dry_run=True)

    assert client.asked == []
    assert capsys.readouterr().out.count("start first: broker 3") == 3


@pytest.mark.parametrize(
    ("verb", "size", "brokers", "why"),
    [
        (ring_size.grow, 3, 2, "to have fewer"),
        (ring_size.shrink, 3, 4, "to have more"),
        (ring_size.drain, 3, 4, "to have more"),
        (ring_size.shrink, 1, None, "cannot do with fewer"),
        (ring_size.grow, None, 3, "in no ring"),
    ],
)
def test_a_size_that_the_verb_is_not_for(
    monkeypatch: pytest.MonkeyPatch, verb: Any, size: int | None, brokers: int | None, why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        run(monkeypatch, FixedClient(size), verb, brokers=brokers)


# --- leaving --------------------------------------------------------------------------------------


def test_who_has_left_goes_when_others_have_what_it_holds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = FixedClient(3)
    client.registered = [0, 1, 2, 5]
    client._answers = [lambda: None, refused("broker 2 has a copy of range 4")]
    run(monkeypatch, client, ring_size.drain, brokers=2)

    assert client.asked == [("shrink", 3), ("retire", 5), ("retire", 5), ("retire", 2)]
    said = capsys.readouterr()
    assert "✓ ring of 2; brokers gone for good: 5, 2; 1 step" in said.out
    assert said.out.endswith("0 bytes copied by steps; nothing to copy\n")
    assert said.err == "waiting: broker 2 has a copy of range 4; nothing to copy\n"


def sealed_range(number: int, *complete: int) -> Any:
    return SimpleNamespace(id=number, replicas=(0, 1), complete=complete)


def test_who_waits_for_copies_sees_how_many_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = FixedClient(3)
    copies = [{"range": each, "broker": 1, "bytes": 2048} for each in (4, 5)]
    client.copies = copies
    client.ranges = [sealed_range(4, 0), sealed_range(5, 0), SimpleNamespace(complete=None)]

    def copied() -> None:
        client.ranges[0] = sealed_range(4, 0, 1)
        raise refused("broker 2 holds range 5")

    client._answers = [lambda: None, refused("broker 2 holds range 4"), copied]
    run(monkeypatch, client, ring_size.drain, brokers=2)

    said = capsys.readouterr()
    assert said.err == (
        "waiting: broker 2 holds range 4; 0 of 2 ranges copied, 0 bytes of 4.0 KiB\n"
        "waiting: broker 2 holds range 5; 1 of 2 ranges copied, 2.0 KiB of 4.0 KiB\n"
    )
    run(monkeypatch, FixedClient(2), ring_size.drain, output="json")
    assert json.loads(capsys.readouterr().out)["copies"] == []


def test_what_others_copy_after_a_step_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = FixedClient(3)
    client.copies = [{"range": 4, "broker": 1, "bytes": None}]
    client.ranges = [sealed_range(4, 0)]
    run(monkeypatch, client, ring_size.shrink)
    assert capsys.readouterr().out.endswith(
        "; in the background: 0 of 1 range copied\nbroker 2 can go: tailrace ring drain\n"
    )

    run(monkeypatch, client, ring_size.shrink, output="json")
    document = json.loads(capsys.readouterr().out)
    assert document["copies"] == [{"range": 4, "broker": 1}]
    assert (document["copyBytes"], document["copiesUnknown"]) == (0, 1)


def test_a_ring_of_which_no_plan_can_be_made_shrinks_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = FixedClient(3)

    def refuse(_: int) -> RingPlan:
        raise refused("a plan has at most 100 steps", retriable=False)

    monkeypatch.setattr(client, "ring_plan", refuse)
    run(monkeypatch, client, ring_size.shrink)
    assert "✓ ring of 2" in capsys.readouterr().out


def test_a_plan_says_what_the_last_step_cost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = FixedClient(3)
    client.last_step = SimpleNamespace(pause_ms=41)
    run(monkeypatch, client, ring_size.grow, dry_run=True)
    monkeypatch.setattr(ring_size, "connect", lambda _: client)
    ring_size.plan(brokers=4, output="table", url=None)

    assert capsys.readouterr().out.count("\nthe last step held appends for 41 ms\n") == 2
    client.last_step = SimpleNamespace(pause_ms=None)
    ring_size.plan(brokers=4, output="table", url=None)
    assert "held" not in capsys.readouterr().out


def test_a_step_names_the_deleted_topics_that_it_ends_for_good(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = FixedClient(3)
    client.deleted, client.registered = ["old", "older"], [0, 1, 2, 3]
    note = "deleted topics cannot be restored after a step: old, older\n"
    run(monkeypatch, client, ring_size.grow, dry_run=True)
    assert capsys.readouterr().out.endswith(note)

    run(monkeypatch, client, ring_size.grow)
    assert capsys.readouterr().err.endswith(note)

    run(monkeypatch, client, ring_size.grow, brokers=4)  # so many there are now
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(client, "ring_plan", lambda _: plan_of(steps=[]))
    run(monkeypatch, client, ring_size.grow, brokers=4, dry_run=True)
    assert "restored" not in capsys.readouterr().out


def test_who_is_gone_already_is_gone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = FixedClient(2, refused("broker-not-found", retriable=False))
    run(monkeypatch, client, ring_size.drain, output="json")

    assert json.loads(capsys.readouterr().out)["retired"] == [2]


def test_a_dry_run_says_who_would_go(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = FixedClient(3)
    client.registered = [0, 1, 2, 3, 4]
    run(monkeypatch, client, ring_size.drain, dry_run=True)
    assert capsys.readouterr().out.endswith("gone for good then: broker 3, 4\n")

    run(monkeypatch, client, ring_size.drain, dry_run=True, output="json")
    assert json.loads(capsys.readouterr().out)["retired"] == [3, 4]
    assert client.asked == []


class RestartingClient(FixedClient):
    """A broker alone that is registered again when it has been asked often enough."""

    def __init__(self, top: Path, restarts_after: int) -> None:
        super().__init__(1)
        self.registered = [0]
        self._top = top
        self._restarts_after = restarts_after

    def ring(self, *, consistent: bool = False) -> Any:
        self._restarts_after -= 1
        if not consistent and self._restarts_after == 0:
            raise ConnectionFailedError(self.url, "refused")
        number = 4 if self._restarts_after < 0 else 3
        if number == 4:
            (self._top / "ring.json").write_text('{"brokers": 1, "port": 9250, "joining": 2}')
        registrations = [SimpleNamespace(ordinal=0, registration=number)]
        return SimpleNamespace(brokers=self.brokers, registrations=registrations, ranges=())


def alone(top: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a broker alone, which `tailrace dev` runs."""
    (top / "ring.json").write_text('{"brokers": 1, "port": 9250, "alone": true}')
    monkeypatch.setattr("tailrace.local.ring.ask_for", lambda _, __: True)
    return top


def test_a_broker_alone_is_started_again_before_its_ring_grows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = RestartingClient(alone(tmp_path, monkeypatch), restarts_after=5)
    run(monkeypatch, client, ring_size.grow, data=tmp_path)

    assert client.asked == [("grow", 1)]
    assert capsys.readouterr().err == (
        "tailrace dev starts broker 1\n"
        "first it starts broker 0 again, which has listened to no others\n"
    )


def test_a_broker_alone_that_is_not_started_again_is_not_waited_for_forever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client = RestartingClient(alone(tmp_path, monkeypatch), restarts_after=10_000)

    with pytest.raises(TailraceError, match=r"within 60 s: see what tailrace dev .*0\.log"):
        run(monkeypatch, client, ring_size.grow, data=tmp_path)
    assert client.asked == []
