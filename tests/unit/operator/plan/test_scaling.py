"""A ring comes to the number of brokers that its spec asks for, one at a time."""

from dataclasses import replace

import pytest

from tailrace_operator.plan.actions import (
    Apply,
    ClusterAction,
    DeleteClaim,
    RestartBroker,
    RetireBroker,
    StepRing,
)
from tailrace_operator.plan.facts import pod_count
from tailrace_operator.plan.manifests import children
from tailrace_operator.plan.scaling import progress
from tests.support.operator.kubernetes_world import STATEFUL_SET, World, action_of, settled

GIVEN = {"zones": ["a", "b", "c"]}


def scaling(actions: list[ClusterAction]) -> list[str]:
    """What was done about brokers, a word each."""
    steps = []
    for each in actions:
        match each:
            case Apply(manifest) if manifest["kind"] == "StatefulSet":
                steps.append(f"replicas {manifest['spec']['replicas']}")
            case StepRing(kind, count):
                steps.append(f"{kind} {count}")
            case RetireBroker(ordinal):
                steps.append(f"retire {ordinal}")
            case DeleteClaim(name):
                steps.append(f"delete {name}")
    return steps


def phases(world: World) -> list[str]:
    """The column STATUS until nothing is to be done, each text once."""
    seen: list[str] = []
    while True:
        moved = world.step()
        action = world.work()
        if world.status["phase"] not in seen[-1:]:
            seen.append(world.status["phase"])
        if action is None and not moved:
            return seen


def test_a_ring_of_one_grows_and_shrinks_again() -> None:
    world = settled(brokers=1)
    world.change(brokers=3)
    assert scaling(world.settle()) == ["replicas 2", "grow 1", "replicas 3", "grow 2"]
    assert world.status["brokers"] == 3
    assert world.status["founded"] == {"brokers": 3, "clusterId": "ring-1"}

    world.change(brokers=1)
    assert scaling(world.settle()) == [
        "shrink 3", "retire 2", "replicas 2", "shrink 2", "retire 1", "replicas 1",
    ]  # fmt: skip
    assert sorted(world.claims) == [0, 1, 2]


def test_the_status_says_how_it_grows() -> None:
    world = settled()
    world.change(brokers=4)

    assert phases(world) == [
        "Growing: 3 → 4 brokers, broker 3 starts",
        "Growing: 3 → 4 brokers, a range is split for broker 3",
        "Ready",
    ]


def test_a_broker_leaves_when_others_have_what_it_held() -> None:
    world = settled(deletionPolicy="Delete", brokers=4)
    world.change(brokers=3)
    assert phases(world) == [
        "Shrinking: 4 → 3 brokers, the range of broker 3 is joined to its neighbour",
        "Shrinking: broker 3 leaves, others copy a sealed range of it",
        "Shrinking: broker 3 leaves, others have all that it held",
        "Ready",
    ]
    assert sorted(world.pods) == sorted(world.claims) == [0, 1, 2]


def test_a_volume_of_somebody_else_stays() -> None:
    world = settled(deletionPolicy="Delete", brokers=4)
    claim = world.claims[3]
    world.change(brokers=3)
    world.settle()
    world.claims[3] = replace(claim, owners=())

    assert action_of(world.observed()) is None


def test_a_change_of_mind_turns_round() -> None:
    world = settled()
    world.change(brokers=6)
    while not world.pods.get(3) or 3 not in world.registered:
        world.step()
        world.work()
    world.change(brokers=3)

    assert scaling(world.settle()) == ["retire 3", "replicas 3"]
    assert world.size == 3


def test_a_broker_that_leaves_may_stay_after_all() -> None:
    world = settled(brokers=4)
    world.change(brokers=3)
    while world.size == 4:
        world.step()
        world.work()
    world.change(brokers=4)

    assert scaling(world.settle()) == ["grow 3"]


@pytest.mark.parametrize("brokers", [2, 4])
def test_no_step_begins_while_a_copy_is_missing(brokers: int) -> None:
    world = settled()
    world.falter(1)
    world.behind.add(1)
    world.change(brokers=brokers)
    done = []
    for _ in range(9):
        world.make_pods()
        world.step_pod(3)
        done.append(world.work())

    assert not any(isinstance(each, StepRing) for each in done)
    assert done[-1] is None
    assert world.size == 3


def test_what_a_step_waits_for() -> None:
    world = settled()
    world.change(brokers=2)
    cluster = world.observed()
    joined = "3 → 2 brokers, the range of broker 2 is joined to its neighbour"

    assert progress(cluster) == ("Shrinking", joined)
    world.behind.add(1)
    later = f"{joined} when all brokers serve and all copies are there"
    assert progress(world.observed()) == ("Shrinking", later)
    assert progress(replace(cluster, ring=None)) is None


def test_nobody_is_taken_away_while_the_ring_does_not_answer() -> None:
    world = settled(brokers=4)
    silent = replace(world.observed(), ring=None)
    world.change(brokers=3)
    later = replace(world.observed(), ring=None)

    assert pod_count(silent) == pod_count(later) == 4
    assert not isinstance(action_of(later), StepRing)


@pytest.mark.parametrize("brokers", [6, 2])
def test_the_end_of_an_open_step_is_waited_for(brokers: int) -> None:
    """The ring refuses another one, and to retire a broker that takes part."""
    world = settled()
    world.change(brokers=6)
    while not isinstance(action_of(world.observed()), StepRing):
        world.step()
        if not isinstance(action_of(world.observed()), StepRing):
            world.work()
    world.change(brokers=brokers)
    cluster = world.observed()
    assert cluster.ring is not None

    assert action_of(cluster) in (StepRing("grow", 3), RetireBroker(3))
    assert action_of(replace(cluster, ring=replace(cluster.ring, has_step=True))) is None


def test_a_broker_that_never_comes_is_what_the_restarts_of_others_wait_for() -> None:
    """The budget counts its pod too, so the API would let no other go."""
    world = settled()
    world.change(brokers=4, resources={"requests": {"memory": "1Ti"}})
    while 3 not in world.pods:
        world.make_pods()
        world.work()
    world.pods[3] = replace(world.pods[3], problem="Unschedulable: too little memory")
    for _ in range(9):
        world.step()
        assert world.work() is None

    assert world.status["phase"] == "Degraded: broker 3: Unschedulable: too little memory"
    world.change(brokers=3)
    restarts = [each.ordinal for each in world.settle() if isinstance(each, RestartBroker)]
    assert restarts == [1, 2, 0]


def test_a_broker_that_still_votes_is_not_retired() -> None:
    """The voters that stay may be too few to change anything, also who votes."""
    world = settled()
    world.change(brokers=2)
    while world.size == 3:
        world.step()
        world.work()
    world.held[2] = 0
    while not isinstance(action_of(cluster := world.observed()), RetireBroker):
        world.work()
    assert cluster.ring is not None

    voters = replace(cluster.ring, voters=frozenset({0, 1, 2}))

    assert action_of(replace(cluster, ring=voters)) is None


def test_a_stateful_set_is_made_again_for_all_its_pods_while_the_ring_does_not_answer() -> None:
    """A broker that leaves may be the only one with a copy of a sealed range."""
    world = settled(brokers=4)
    world.change(brokers=3)
    while world.size == 4:
        world.step()
        world.work()
    world.work()  # the step is noted
    del world.children[STATEFUL_SET]
    silent = replace(world.observed(), ring=None)

    assert children(silent)[STATEFUL_SET]["spec"]["replicas"] == 4
    assert pod_count(replace(silent, pods=())) == 3


def test_the_ready_condition_holds_while_the_ring_grows() -> None:
    world = settled()
    world.change(brokers=4)
    ready = []
    for _ in range(12):
        world.step()
        world.work()
        [found] = [each for each in world.status["conditions"] if each["type"] == "Ready"]
        ready.append(found["status"])

    assert set(ready) == {"True"}
    assert world.size == 4
