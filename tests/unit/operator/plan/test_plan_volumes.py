"""What is done next about the volumes of a StreamCluster: they grow, and stay or go with it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tailrace_operator.plan.actions import (
    ClusterAction,
    GrowClaim,
    OwnClaim,
    RecordFounding,
    ReplaceVolume,
    RestartBroker,
    StepRing,
)
from tailrace_operator.plan.facts import is_whole, obstacle
from tailrace_operator.plan.manifests import children, owner_reference
from tailrace_operator.plan.observed import ChildName, Claim, Cluster, Ring
from tests.support.operator.kubernetes_world import (
    OWNER,
    STATEFUL_SET,
    World,
    action_of,
    blocked,
    settled,
    with_ranges,
)


def test_volumes_grow_one_by_one() -> None:
    world = settled()
    world.change(storage={"size": "20Gi"})

    actions = world.settle()

    assert [action for action in actions if isinstance(action, GrowClaim)] == [
        GrowClaim(f"data-events-{ordinal}", "20Gi") for ordinal in range(3)
    ]


def owned(actions: list[ClusterAction]) -> list[tuple[str, bool]]:
    return [(action.name, action.is_owned) for action in actions if isinstance(action, OwnClaim)]


def test_volumes_belong_to_the_cluster_while_they_are_to_go_with_it() -> None:
    world = settled(deletionPolicy="Delete")
    uids = [[owner["uid"] for owner in claim.owners] for claim in world.claims.values()]
    assert uids == [[OWNER.uid]] * 3

    world.change(deletionPolicy="Retain")

    assert owned(world.settle()) == [(f"data-events-{ordinal}", False) for ordinal in range(3)]
    assert [claim.owners for claim in world.claims.values()] == [()] * 3


def test_volumes_are_owned_before_there_is_anything_on_them() -> None:
    actions = World({"deletionPolicy": "Delete"}).settle()

    assert actions.index(RecordFounding(3, None)) > max(
        index for index, action in enumerate(actions) if isinstance(action, OwnClaim)
    )


def test_a_volume_that_stays_is_let_go_before_anything_else() -> None:
    world = settled(deletionPolicy="Delete")
    world.change(deletionPolicy="Retain")
    world.has_secret = False

    assert owned(world.settle()) == [(f"data-events-{ordinal}", False) for ordinal in range(3)]


def test_a_volume_that_is_let_go_may_be_of_a_broker_that_the_ring_has_not() -> None:
    """As when the volumes turned out to be those of a smaller ring."""
    world = settled(brokers=1)
    claim = Claim(1, "data-events-1", 2**30, 2**30, is_expandable=True)
    world.claims[1] = replace(claim, owners=(owner_reference(OWNER),))

    assert owned(world.settle()) == [("data-events-1", False)]


def test_who_undoes_an_owner_each_time_is_not_answered_as_fast_as_it_goes() -> None:
    """The operator slows down when it does the same again."""
    claims = [OwnClaim("data-events-0", version, (), is_owned=False) for version in ("1", "2")]

    assert claims[0] == claims[1]


def test_other_owners_of_a_volume_stay_its_owners() -> None:
    world = settled()
    stateful_set = {"kind": "StatefulSet", "name": "events", "uid": "set"}
    world.claims[1] = replace(world.claims[1], owners=(stateful_set,))
    world.change(deletionPolicy="Delete")

    world.settle()
    assert [owner["uid"] for owner in world.claims[1].owners] == ["set", OWNER.uid]
    world.change(deletionPolicy="Retain")
    world.settle()
    assert world.claims[1].owners == (stateful_set,)


def test_volumes_of_a_larger_ring_before_are_left_alone() -> None:
    world = settled(brokers=1, deletionPolicy="Delete")
    world.claims[1] = Claim(1, "data-events-1", 2**30, 2**30, is_expandable=True)

    assert world.settle() == []


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_a_volume_of_a_resource_that_had_the_name_before_is_waited_for(policy: str) -> None:
    world = settled()
    world.change(deletionPolicy=policy)
    world.settle()
    before = {"kind": "StreamCluster", "name": "events", "uid": "before"}
    world.claims[2] = replace(world.claims[2], owners=(before,))
    assert action_of(world.observed()) is None  # its pod runs: it is as it is
    del world.children[STATEFUL_SET]

    action = blocked(world.observed())

    assert action.reason == "Replaced"
    assert action.message.startswith("old volume data-events-2 is being deleted, with the")


@pytest.mark.parametrize(
    ("storage_class", "remedy"),
    [
        (None, "set allowVolumeExpansion: true in its StorageClass, if"),
        ("fast", "set allowVolumeExpansion: true in its StorageClass fast, if"),
        ("", "it has no StorageClass; move to another StreamCluster"),
    ],
)
def test_volumes_that_cannot_grow_block_with_the_remedy(
    storage_class: str | None, remedy: str
) -> None:
    storage = {"size": "10Gi", "storageClassName": storage_class}
    world = settled(storage=storage)
    world.claims[1] = replace(world.claims[1], requested_bytes=2**30, is_expandable=False)

    action = blocked(world.observed())

    assert action.reason == "VolumesCannotGrow"
    assert f"data-events-1 cannot grow to 10Gi; {remedy}" in action.message


def test_volumes_that_cannot_grow_keep_no_broker_from_its_new_template() -> None:
    world = settled()
    world.claims = {
        ordinal: replace(claim, is_expandable=False) for ordinal, claim in world.claims.items()
    }
    world.change(storage={"size": "20Gi"}, settings={"ioThreads": 4})

    restarts = [each for each in world.settle() if isinstance(each, RestartBroker)]

    assert [restart.ordinal for restart in restarts] == [1, 2, 0]
    assert blocked(world.observed()).reason == "VolumesCannotGrow"


def of_pod_that_waits(world: World) -> None:
    """Its claim waits with it: a volume is made where a pod runs."""
    waits = "Unschedulable: too little memory"
    world.pods[2] = replace(world.pods[2], is_running=False, is_ready=False, problem=waits)
    world.claims[2] = replace(world.claims[2], capacity_bytes=0)


def test_a_claim_without_a_volume_is_not_asked_to_grow() -> None:
    """The API would refuse it, and the pod that waits would never get its new template."""
    world = settled()
    of_pod_that_waits(world)
    world.change(storage={"size": "20Gi"}, resources={"requests": {"memory": "1Gi"}})
    done = []
    for _ in range(20):
        world.make_pods()
        done.append(world.work())

    grown = [each.name for each in done if isinstance(each, GrowClaim)]
    assert grown == ["data-events-0", "data-events-1"]
    assert RestartBroker in map(type, done)
    assert done[-1] is None


class OfQuota(World):
    """No volume may be larger than it is."""

    def _grow(self, name: str, size: str) -> None:
        """The API refuses it."""


def test_volumes_that_kubernetes_does_not_let_grow_keep_no_broker_from_its_new_template() -> None:
    """Nobody can take back the size."""
    world = OfQuota()
    world.settle()
    world.change(storage={"size": "20Gi"}, settings={"ioThreads": 4})
    for _ in range(60):
        world.step()
        world.work()

    assert {pod.revision for pod in world.pods.values()} == {
        world.children[STATEFUL_SET]["status"]["updateRevision"]
    }


# --- claims that somebody deletes -----------------------------------------------------------------


def restarts(actions: list[ClusterAction]) -> list[RestartBroker | ReplaceVolume]:
    return [each for each in actions if isinstance(each, RestartBroker | ReplaceVolume)]


def test_volumes_that_are_being_deleted_are_replaced_one_by_one() -> None:
    """`World` asserts that all copies are there again before the next one goes."""
    world = settled()
    uids = {ordinal: pod.uid for ordinal, pod in world.pods.items()}
    for ordinal in range(3):
        world.delete_claim(ordinal)

    actions = world.settle()

    assert restarts(actions) == [
        ReplaceVolume(ordinal, uids[ordinal], f"data-events-{ordinal}", copies=2)
        for ordinal in (1, 2, 0)  # the metadata leader is the last
    ]
    assert not any(claim.is_deleting for claim in world.claims.values())
    assert world.status["phase"] == "Ready"


def test_a_broker_whose_volume_goes_is_replaced_first_and_is_not_restarted_again() -> None:
    world = settled()
    world.delete_claim(2)
    world.change(settings={"ioThreads": 4})

    actions = restarts(world.settle())

    assert [(type(each), each.ordinal) for each in actions] == [
        (ReplaceVolume, 2),
        (RestartBroker, 1),
        (RestartBroker, 0),
    ]


def test_a_ring_of_one_keeps_its_volume_and_its_broker() -> None:
    world = settled(brokers=1)
    world.claims[0] = replace(world.claims[0], is_deleting=True)
    world.change(settings={"ioThreads": 4})

    assert restarts(world.settle()) == []
    assert world.status["phase"].startswith("Degraded: volume data-events-0 is being deleted")


def test_of_two_brokers_the_only_voter_keeps_its_volume() -> None:
    """The other one has all events, and not the vote."""
    world = settled(brokers=2)
    world.claims[1] = replace(world.claims[1], is_deleting=True)
    (action,) = restarts(world.settle())
    assert (action.ordinal, getattr(action, "copies", None)) == (1, 1)

    world.claims[0] = replace(world.claims[0], is_deleting=True)

    assert restarts(world.settle()) == []
    why = "the metadata would have no majority of its voters"
    assert obstacle(world.observed(), world.claims[0]) == why


def of_ring(cluster: Cluster, **changes: object) -> Cluster:
    assert isinstance(cluster.ring, Ring)
    return replace(cluster, ring=replace(cluster.ring, **changes))  # type: ignore[arg-type]


def of_claim(cluster: Cluster, **changes: object) -> Cluster:
    claims = [replace(c, **changes) if c.ordinal == 1 else c for c in cluster.claims]  # type: ignore[arg-type]
    return replace(cluster, claims=tuple(claims))


def without_stateful_set(cluster: Cluster) -> Cluster:
    """It is being deleted, and makes no pod."""
    live = cluster.children[STATEFUL_SET]
    going = {**live, "metadata": {**live["metadata"], "deletionTimestamp": "now"}}
    return replace(cluster, children={**cluster.children, STATEFUL_SET: going})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda c: of_ring(c, copies=1), "no other broker is known to have all of its data"),
        (
            lambda c: replace(c, ring=with_ranges(c.ring, behind={0, 2})),
            "no other broker is known to have all of its data",
        ),
        (lambda c: replace(c, ring=None), "no other broker is known to have all of its data"),
        (lambda c: of_claim(c, holder="backup/wait"), "finalizer backup/wait keeps the claim"),
        (lambda c: of_ring(c, has_step=True), "the ring changes"),
        (lambda c: of_ring(c, next_voters=frozenset({0, 1, 2})), "the ring changes"),
        (
            lambda c: of_ring(c, voters=frozenset({1})),
            "the metadata would have no majority of its voters",
        ),
        (
            lambda c: of_ring(c, voters=frozenset({0, 1})),
            "the metadata would have no majority of its voters",
        ),
        (
            lambda c: of_ring(c, broker_count=1, sealed_held={1: 1}),
            "others copy first what broker 1 holds",
        ),
        (
            lambda c: replace(of_ring(c, broker_count=1), spec=settled(brokers=1).observed().spec),
            "broker 1 leaves the ring",
        ),
        (lambda c: replace(c, ring=with_ranges(c.ring, behind={2})), None),
        (lambda c: of_ring(c, sealed_short=1), None),
        (lambda c: of_ring(c, metadata_leader=None), None),
        (lambda c: of_ring(c, brokers=c.ring.brokers[:2]), None),
        (lambda c: replace(c, stored_spec=None), None),
        (without_stateful_set, None),
        (lambda c: replace(c, owner=replace(OWNER, is_paused=True)), None),
    ],
    ids=[
        "one copy",
        "others are behind",
        "nobody answers",
        "another finalizer",
        "a step",
        "other voters",
        "the only voter",
        "one of two voters",
        "holds sealed ranges",
        "leaves the ring",
        "another is behind",
        "a sealed range lacks a copy",
        "no metadata leader",
        "another does not answer",
        "another template",
        "no StatefulSet",
        "paused",
    ],
)
def test_a_volume_is_not_replaced(change: Callable[[Cluster], Cluster], why: str | None) -> None:
    world = settled()
    world.delete_claim(1)
    cluster = change(world.observed())
    budget = ChildName("PodDisruptionBudget", "events")
    cluster = replace(cluster, children={**cluster.children, budget: children(cluster)[budget]})

    assert not isinstance(action_of(cluster), ReplaceVolume | RestartBroker)
    (claim,) = [each for each in cluster.claims if each.is_deleting]
    assert obstacle(cluster, claim) == why
    assert why is None or not is_whole(cluster)


def test_nodes_are_drained_only_when_a_volume_that_goes_can_be_replaced() -> None:
    def allowed(cluster: Cluster) -> object:
        budget = children(cluster)[ChildName("PodDisruptionBudget", "events")]
        return budget["spec"]["maxUnavailable"]

    world = settled()
    world.delete_claim(1)

    assert allowed(world.observed()) == 1
    assert allowed(of_claim(world.observed(), holder="backup/wait")) == 0


def test_the_ring_takes_no_step_before_a_volume_is_replaced() -> None:
    world = settled()
    world.delete_claim(1)
    world.change(brokers=4)

    actions = world.settle()

    (replacement,) = restarts(actions)
    (step,) = [each for each in actions if isinstance(each, StepRing)]
    assert actions.index(replacement) < actions.index(step)


@pytest.mark.parametrize("size", [1, 3])
def test_a_broker_that_joins_gets_a_new_volume_for_the_one_that_is_being_deleted(
    size: int,
) -> None:
    """Nothing is on it yet; else the ring would not grow until somebody deletes the pod too."""
    world = settled(brokers=size)
    world.change(brokers=size + 1)
    while size not in world.pods or not world.pods[size].is_ready:
        world.step()
        if size not in world.pods or not world.pods[size].is_ready:
            world.work()
    world.claims[size] = replace(world.claims[size], is_deleting=True)
    actions: list[ClusterAction | None] = []
    while not world.pods[size].is_deleting:
        actions.append(world.work())
    actions += [world.work() for _ in range(3)]  # its pod takes a while to end
    actions += world.settle()

    (replaced,) = restarts([each for each in actions if each is not None])
    assert (replaced.ordinal, getattr(replaced, "copies", None)) == (size, 0)
    assert world.size == size + 1
    assert not world.claims[size].is_deleting


def test_a_claim_that_is_held_before_its_broker_joins_holds_up_no_other() -> None:
    world = settled()
    world.change(brokers=4)
    while 3 not in world.registered:
        world.step()
        world.work()
    world.claims[3] = replace(world.claims[3], is_deleting=True, holder="backup/wait")
    world.change(settings={"ioThreads": 4})

    assert [each.ordinal for each in restarts(world.settle())] == [1, 2, 0]
    assert world.size == 3
    why = "finalizer backup/wait keeps the claim"
    assert obstacle(world.observed(), world.claims[3]) == why
