"""What is reported of a StreamCluster."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tailrace_operator.plan.actions import (
    Blocked,
    ClusterAction,
    Found,
    GrowClaim,
    RecordFounding,
    RetireBroker,
    StepRing,
)
from tailrace_operator.plan.facts import can_step, is_whole
from tailrace_operator.plan.findings import findings
from tailrace_operator.plan.observed import Cluster, Founded, Pod
from tailrace_operator.plan.status import broken_status, cluster_status
from tests.support.operator.kubernetes_world import IMAGE, NOW, World, a_cluster, with_ranges
from tools.crd_kinds import StreamClusterStatus

LATER = "2026-11-21T11:00:00Z"


def settled(**spec: Any) -> Cluster:
    world = World(spec)
    world.settle()
    return world.observed()


def status_of(
    cluster: Cluster,
    action: ClusterAction | None = None,
    *,
    error: str | None = None,
    now: str = NOW,
) -> dict[str, Any]:
    """As the CRD knows it."""
    status = cluster_status(cluster, action, now=now, error=error)
    StreamClusterStatus.model_validate(status)
    return dict(status)


def condition(status: dict[str, Any], kind: str) -> tuple[str, str, str]:
    found = next(each for each in status["conditions"] if each["type"] == kind)
    return found["status"], found["reason"], found["message"]


def without_pod(cluster: Cluster, ordinal: int) -> Cluster:
    return replace(cluster, pods=tuple(pod for pod in cluster.pods if pod.ordinal != ordinal))


def with_pod(cluster: Cluster, ordinal: int, **changes: Any) -> Cluster:
    pods = [replace(pod, **changes) if pod.ordinal == ordinal else pod for pod in cluster.pods]
    return replace(cluster, pods=tuple(pods))


def test_a_ring_that_is_as_its_spec_says() -> None:
    status = status_of(settled())

    conditions = status.pop("conditions")
    assert status == {
        "observedGeneration": 1,
        "phase": "Ready",
        "brokers": 3,
        "readyBrokers": 3,
        "balanced": "True",
        "listeners": 0,
        "zones": 0,
        "version": "0.1.0",
        "image": IMAGE,
        "copies": 3,
        "clusterId": "ring-1",
        "founded": {"brokers": 3, "clusterId": "ring-1"},
        "selector": "app.kubernetes.io/name=tailrace,app.kubernetes.io/instance=events,"
        "app.kubernetes.io/component=broker",
    }
    assert [(each["type"], each["status"]) for each in conditions] == [
        ("Ready", "True"),
        ("Progressing", "False"),
        ("Degraded", "False"),
        ("Balanced", "True"),
        ("ReconciliationPaused", "False"),
    ]
    assert {each["observedGeneration"] for each in conditions} == {1}


@pytest.mark.parametrize(
    ("count", "behind", "said"),
    [
        (1, (), "1 of 1 brokers serve; 1 copy of each event"),
        (3, (), "3 of 3 brokers serve; 3 copies of each event, all in sync in 3 of 3 ranges"),
        (3, (2,), "3 of 3 brokers serve; 3 copies of each event, all in sync in 0 of 3 ranges"),
    ],
)
def test_the_condition_says_how_many_copies_there_are(
    count: int, behind: tuple[int, ...], said: str
) -> None:
    cluster = settled(brokers=count)
    cluster = replace(cluster, ring=with_ranges(cluster.ring, behind=behind))

    assert condition(status_of(cluster), "Ready") == ("True", "BrokersReady", said)


def test_the_scenario_of_a_new_ring() -> None:
    world = World()
    phases = [a_phase(world)]
    for ordinal in range(3):
        world.step_pod(ordinal)
        phases.append(a_phase(world))
    for ordinal in range(3):
        world.step_pod(ordinal)
    phases.append(a_phase(world))

    assert phases == [
        "Starting: 0 of 3 brokers run",
        "Starting: 1 of 3 brokers run",
        "Starting: 2 of 3 brokers run",
        "Starting: 0 of 3 brokers are ready",
        "Ready",
    ]


def a_phase(world: World) -> str:
    """When the operator has done what it can."""
    while world.work() is not None or world.make_pods():
        pass
    return str(world.status["phase"])


def test_a_ring_is_being_founded_until_its_id_is_noted() -> None:
    world = World()
    phases = []
    for _ in range(40):
        world.step()
        action = world.work()
        if isinstance(action, RecordFounding | Found):
            phases.append((world.status["phase"], world.status["founded"]))

    assert phases == [
        ("Founding", {"brokers": 3}),
        ("Founding", {"brokers": 3}),
        ("Founding", {"brokers": 3, "clusterId": "ring-1"}),
    ]


def test_the_scenario_of_a_change_of_the_image() -> None:
    world = World()
    world.settle()
    world.change(image="tailrace/broker:0.1.1")
    phases: list[str] = []
    moved = True
    while moved or world.status["phase"] != "Ready":
        moved = world.step()
        moved |= world.work() is not None
        if world.status["phase"] not in phases:
            phases.append(world.status["phase"])

    catching_up = "Catching up: 3 of 3 ranges have fewer than 3 copies in sync: broker {} gets"
    assert [phase.partition(" what it lacks")[0] for phase in phases] == [
        "Ready",
        "Restarting broker 1 (1 of 3)",
        catching_up.format(1),
        "Restarting broker 2 (2 of 3)",
        catching_up.format(2),
        "Restarting broker 0 (3 of 3)",
        catching_up.format(0),
    ]


def test_a_broker_that_is_away_for_another_reason_does_not_restart() -> None:
    cluster = replace(settled(), status={"phase": "Restarting broker 0 (3 of 3)"})

    status = status_of(without_pod(cluster, 1))

    assert status["phase"] == "Starting: 2 of 3 brokers run"
    assert condition(status, "Ready")[:2] == ("False", "Starting")
    assert condition(status, "Degraded") == (
        "True",
        "BrokersAway",
        "brokers that do not serve: 1",
    )


def test_why_a_broker_does_not_run_is_reported() -> None:
    problem = "ImagePullBackOff: no such image"
    status = status_of(with_pod(settled(), 1, is_running=False, is_ready=False, problem=problem))

    message = f"2 of 3 brokers run; broker 1: {problem}"
    assert status["phase"] == f"Starting: {message}"
    assert condition(status, "Ready") == ("False", "Starting", message)
    assert condition(status, "Degraded") == ("True", "BrokerFails", f"broker 1: {problem}")


@pytest.mark.parametrize(
    ("changes", "phase"),
    [
        ({"ring": None}, "Waiting: no broker answers the operator"),
        (
            {"founded": Founded(3, "ring-7")},
            "Waiting: the brokers are not in the ring that was founded here",
        ),
        (
            {"ring": with_ranges(settled().ring, leaderless={0, 1})},
            "Waiting: ranges without a leader: 2",
        ),
    ],
)
def test_a_ring_that_does_not_serve_is_waited_for(changes: dict[str, Any], phase: str) -> None:
    status = status_of(replace(settled(), **changes))

    assert status["phase"] == phase
    assert condition(status, "Ready")[0] == "False"
    assert condition(status, "Progressing")[0] == "True"


def test_a_ring_that_lacks_replicas_is_ready_and_degraded() -> None:
    cluster = settled()
    status = status_of(replace(cluster, ring=with_ranges(cluster.ring, behind={1, 2})))
    assert condition(status, "Ready")[:2] == ("False", "NotEnoughReplicas")

    status = status_of(replace(cluster, ring=with_ranges(cluster.ring, behind={1})))

    lacking = (
        "3 of 3 ranges have fewer than 3 copies in sync: broker 1 gets what it lacks from the "
        "others"
    )
    assert status["phase"] == f"Catching up: {lacking}"
    assert condition(status, "Ready")[0] == "True"
    assert condition(status, "Progressing") == ("True", "CatchingUp", lacking)
    assert condition(status, "Degraded") == ("True", "UnderReplicated", lacking)


def test_the_brokers_that_lack_something_are_named() -> None:
    cluster = with_pod(settled(), 2, is_ready=False)
    ring = with_ranges(cluster.ring, behind={1, 2})
    cluster = replace(cluster, ring=replace(ring, new_disks=frozenset({0, 1})))

    (found,) = [each for each in findings(cluster, None, None) if each.reason == "UnderReplicated"]
    assert found.message == (
        "3 of 3 ranges have fewer than 3 copies in sync: broker 1, on a new disk, gets what it "
        "lacks from the others, broker 2 is away"
    )


def test_copies_of_sealed_ranges_are_waited_for() -> None:
    cluster = settled()
    assert cluster.ring is not None
    cluster = replace(cluster, ring=replace(cluster.ring, sealed_short=2))
    status = status_of(cluster)

    lacking = "sealed ranges with fewer than 3 whole copies: 2; brokers copy them from each other"
    assert status["phase"] == f"Catching up: {lacking}"
    assert condition(status, "Ready")[0] == "True"
    assert condition(status, "Degraded") == ("True", "UnderReplicated", lacking)
    assert not is_whole(cluster)
    assert can_step(cluster)


def test_volumes_that_grow_are_reported_and_those_that_cannot() -> None:
    cluster = settled()
    growing = replace(cluster.claims[1], requested_bytes=2**40, problem=None)
    cluster = replace(cluster, claims=(cluster.claims[0], growing, cluster.claims[2]))

    assert condition(status_of(cluster), "Progressing") == (
        "True",
        "UpdatingVolumes",
        "volumes that are not as large yet as asked for: data-events-1",
    )

    failed = replace(growing, problem="ControllerResizeError: quota")
    status = status_of(replace(cluster, claims=(failed,)))
    assert condition(status, "Degraded") == (
        "True",
        "VolumeFails",
        "data-events-1: ControllerResizeError: quota",
    )


def test_a_template_that_kubernetes_has_not_seen_yet_is_under_way() -> None:
    """`kubectl wait` for `Progressing=False` after a change must not end before it has begun."""
    world = World()
    world.settle()
    world.change(settings={"ioThreads": 4})
    while world.work() is not None:
        pass

    assert condition(dict(world.status), "Progressing") == (
        "True",
        "Updating",
        "StatefulSet events: Kubernetes has not taken its template over yet",
    )


def test_what_blocks_is_in_the_column_and_its_remedy_in_the_conditions() -> None:
    action = Blocked("NameTaken", "Service events belongs to someone else; delete it")

    status = status_of(settled(), action)

    assert status["phase"] == "Blocked: Service events belongs to someone else"
    assert condition(status, "Degraded") == ("True", *_reported(action))
    assert condition(status, "Progressing") == ("False", *_reported(action))
    assert condition(status, "Ready") == ("False", *_reported(action))


@pytest.mark.parametrize(
    ("change", "phase", "reason"),
    [
        (
            lambda c: with_pod(c, 1, is_ready=False, revision="earlier"),
            "Restarting broker 1",
            "Restarting",
        ),
        (
            lambda c: replace(c, ring=with_ranges(c.ring, behind={1})),
            "Catching up: ",
            "CatchingUp",
        ),
        (lambda c: replace(c, spec=World({"brokers": 4}).observed().spec), "Growing: ", "Growing"),
        (lambda c: c, "Blocked: volume data-events-0 cannot grow", None),
    ],
    ids=["a restart", "copies", "another size", "nothing"],
)
def test_what_blocks_nothing_else_hides_nothing_that_is_under_way(
    change: Callable[[Cluster], Cluster], phase: str, reason: str | None
) -> None:
    """A size that volumes cannot have stays in the spec for ever."""
    action = Blocked("VolumesCannotGrow", "volume data-events-0 cannot grow to 20Gi; set")

    status = status_of(change(settled()), action)

    assert status["phase"].startswith(phase)
    expected = ("False", *_reported(action)) if reason is None else ("True", reason)
    assert condition(status, "Progressing")[: len(expected)] == expected


def test_what_is_of_the_resource_before_is_waited_for() -> None:
    action = Blocked("Replaced", "old pod events-1 is terminating")

    status = status_of(settled(), action)

    assert status["phase"] == "Waiting: old pod events-1 is terminating"
    assert condition(status, "Ready") == ("False", *_reported(action))
    assert condition(status, "Degraded")[0] == "False"
    assert condition(status, "Progressing") == ("True", *_reported(action))


def _reported(action: Blocked) -> tuple[str, str]:
    return action.reason, action.message


def test_an_error_is_reported_while_it_is_tried_again() -> None:
    status = status_of(settled(), error="the Kubernetes API does not answer")

    assert status["phase"] == "Retrying: the Kubernetes API does not answer"
    for kind in ("Progressing", "Degraded"):
        assert condition(status, kind) == ("True", "Retrying", "the Kubernetes API does not answer")


@pytest.mark.parametrize("action", [StepRing("grow", 3), RetireBroker(3)])
def test_a_step_that_is_tried_again_leaves_a_ring_ready(action: ClusterAction) -> None:
    status = status_of(settled(), action, error="step 3 was cancelled; the ring is as it was")

    assert condition(status, "Ready")[:2] == ("True", "BrokersReady")
    assert condition(status, "Degraded")[:2] == ("True", "Retrying")


def test_a_pause_and_a_deletion_are_reported_before_all_else() -> None:
    cluster = settled()
    paused = replace(cluster, owner=replace(cluster.owner, is_paused=True))
    deleting = replace(cluster, owner=replace(cluster.owner, is_deleting=True))

    assert status_of(paused, error="x")["phase"] == "Paused"
    assert condition(status_of(paused), "Progressing")[:2] == ("False", "Paused")
    assert condition(status_of(paused), "ReconciliationPaused") == (
        "True",
        "Paused",
        "nothing is changed while the annotation tailrace.dev/paused is true",
    )
    assert status_of(deleting)["phase"] == "Deleting"
    assert condition(status_of(deleting), "Progressing")[:2] == ("True", "Deleting")


def test_a_ring_between_two_doublings_is_not_balanced() -> None:
    status = status_of(a_cluster(founded=Founded(4, "ring-1")))

    assert (status["balanced"], status["brokers"]) == ("False", 4)
    assert condition(status, "Balanced")[:2] == ("False", "UnequalShares")


def test_zones_are_counted() -> None:
    world = World({"zones": ["a", "b", "c"]})
    world.settle()

    assert world.status["zones"] == 3


def test_the_image_of_the_spec_is_reported() -> None:
    assert status_of(a_cluster({"image": "mine:1"}))["image"] == "mine:1"


def test_what_was_once_known_stays() -> None:
    before = status_of(settled())

    after = status_of(a_cluster(status=before, founded=Founded(3, "ring-1")))

    for name in ("version", "copies", "clusterId", "founded"):
        assert after[name] == before[name]
    assert after["readyBrokers"] == 0


def test_a_condition_keeps_the_time_of_its_last_change() -> None:
    cluster = settled()
    before = status_of(cluster)

    same = status_of(replace(cluster, status=before), now=LATER)
    changed = status_of(replace(cluster, status=before), error="x", now=LATER)

    assert same == before
    times = {each["type"]: each["lastTransitionTime"] for each in changed["conditions"]}
    assert times == {
        "Ready": LATER,
        "Progressing": LATER,
        "Degraded": LATER,
        "Balanced": NOW,
        "ReconciliationPaused": NOW,
    }


@pytest.mark.parametrize("kind", ["StreamCluster", "Topic"])
def test_a_spec_that_says_nothing_is_reported_and_the_rest_stays(kind: str) -> None:
    degraded = {"type": "Degraded", "status": "True", "lastTransitionTime": NOW}
    balanced = {"type": "Balanced", "status": "True"}
    before = {"type": "Ready", "status": "False", "lastTransitionTime": NOW}
    status = {"clusterId": "ring-1", "conditions": [before, degraded, balanced]}
    resource = {"kind": kind, "metadata": {"generation": 2}, "status": status}

    reported = broken_status(
        resource, "InvalidSpec", "spec.zones: a zone is named twice", now=LATER
    )

    assert reported == {
        "clusterId": "ring-1",
        **({"phase": "Blocked: spec.zones: a zone is named twice"} if kind != "Topic" else {}),
        "observedGeneration": 2,
        "conditions": [
            {
                "type": condition,
                "status": holds,
                "reason": "InvalidSpec",
                "message": "spec.zones: a zone is named twice",
                "observedGeneration": 2,
                "lastTransitionTime": NOW,
            }
            for condition, holds in [("Ready", "False"), ("Degraded", "True")]
            if kind == "StreamCluster" or condition == "Ready"
        ]
        + ([degraded] if kind == "Topic" else [])
        + [balanced],
    }


def test_long_texts_are_cut() -> None:
    status = status_of(settled(), error="x" * 5000)

    assert len(status["phase"]) == 200
    assert len(condition(status, "Degraded")[2]) == 1000


def test_pods_beyond_the_ring_do_not_count() -> None:
    cluster = settled()
    extra = Pod(ordinal=3, uid="x", revision="x", is_running=True, is_ready=True, zone="d")

    assert status_of(replace(cluster, pods=(*cluster.pods, extra))) == status_of(cluster)


def test_an_action_is_under_way() -> None:
    action = GrowClaim("data-events-0", "20Gi")

    said = ("UpdatingVolumes", "volume data-events-0: grows to 20Gi")
    assert condition(status_of(settled(), action), "Progressing") == ("True", *said)
