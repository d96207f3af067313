"""What is done next for a StreamCluster, case by case; in general: `test_plan_properties.py`."""

from dataclasses import replace
from typing import Any

import pytest

from tailrace_operator.plan.actions import (
    Apply,
    CreateSecret,
    Found,
    PlacePod,
    RecordFounding,
    Remove,
    ReplaceStatefulSet,
    RestartBroker,
)
from tailrace_operator.plan.manifests import children, secret_manifest
from tailrace_operator.plan.observed import ChildName, Cluster, Founded, Pod, Ring
from tests.support.operator.kubernetes_world import (
    BAD_IMAGE,
    IMAGE,
    STATEFUL_SET,
    World,
    a_cluster,
    action_of,
    blocked,
    settled,
    with_ranges,
)

SERVICE = ChildName("Service", "events")
POLICY = ChildName("NetworkPolicy", "events")
BUDGET = ChildName("PodDisruptionBudget", "events")


def ring_of(cluster: Cluster) -> Ring:
    assert cluster.ring is not None
    return cluster.ring


def with_pods(cluster: Cluster, *ordinals: int, **changes: Any) -> Cluster:
    pods = [replace(pod, **changes) if pod.ordinal in ordinals else pod for pod in cluster.pods]
    return replace(cluster, pods=tuple(pods))


def objects_of(cluster: Cluster) -> dict[ChildName, Any]:
    """Its objects, as they are while the ring is not known to be whole."""
    budget = children(cluster)[BUDGET]
    return {**cluster.children, BUDGET: budget}


# --- objects --------------------------------------------------------------------------------------


def test_a_new_ring_is_made_in_this_order() -> None:
    actions = World({"zones": ["a", "b", "c"]}).settle()

    assert [
        action.manifest["kind"] if isinstance(action, Apply) else type(action).__name__
        for action in actions
    ] == [
        "CreateSecret",
        "ConfigMap",
        "Service",
        "Service",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "StatefulSet",
        "PlacePod",
        "PlacePod",
        "PlacePod",
        "RecordFounding",
        "Found",
        "RecordFounding",
        "PodDisruptionBudget",
    ]
    assert actions[-4:-1] == [RecordFounding(3, None), Found(3), RecordFounding(3, "ring-1")]


def test_the_secret_is_made_first() -> None:
    cluster = a_cluster(has_secret=False)

    assert action_of(cluster) == CreateSecret(secret_manifest(cluster))


def test_a_secret_that_is_gone_is_not_made_again_for_a_ring() -> None:
    cluster = replace(settled().observed(), has_secret=False)

    action = blocked(cluster)

    assert action.reason == "SecretMissing"
    assert "events-ring is gone" in action.message
    assert "kubectl create secret generic events-ring" in action.message


@pytest.mark.parametrize("limit", ["256M", "255Mi", "0.2Gi"])
def test_no_ring_is_founded_whose_brokers_may_take_more_memory_than_their_pods_have(
    limit: str,
) -> None:
    world = settled(resources={"limits": {"memory": limit}})

    action = blocked(world.observed())

    assert world.observed().founded is None
    assert action.reason == "MemoryTooSmall"
    assert f"are 256Mi together, above the memory limit of a broker, {limit};" in action.message
    assert "spec.resources.limits.memory" in action.message


@pytest.mark.parametrize("limits", [{"memory": "256Mi"}, {"memory": "1Gi"}, {"cpu": "1"}, {}])
def test_memory_that_is_enough_or_has_no_limit_is_no_obstacle(limits: dict[str, str]) -> None:
    assert isinstance(action_of(a_cluster({"resources": {"limits": limits}})), Apply)


def test_a_broker_is_placed_in_its_zone_while_a_person_has_to_act() -> None:
    world = settled(zones=["a", "b", "c"])
    world.change(settings={"cacheSize": "10Gi"})
    world.end_pod(1)

    actions = world.settle()

    assert PlacePod(1, world.pods[1].uid, "b") in actions
    assert world.pods[1].is_ready


@pytest.mark.parametrize(
    "change",
    [{"settings": {"cacheSize": "10Gi"}}, {"resources": {"limits": {"memory": "100Mi"}}}],
)
def test_a_ring_that_runs_is_repaired_and_its_pods_stay_when_its_memory_would_not_fit(
    change: dict[str, Any],
) -> None:
    world = settled()
    world.change(**change)
    del world.children[SERVICE]

    (action,) = world.settle()

    assert isinstance(action, Apply)
    assert (action.manifest["kind"], action.reason) == ("Service", "created")
    assert world.status["phase"].startswith("Blocked: produceMemory, readMemory, ioBuffer and")


def test_a_field_that_somebody_else_changed_has_drifted() -> None:
    world = settled()
    world.children[SERVICE]["spec"]["type"] = "NodePort"

    action = action_of(world.observed())

    assert isinstance(action, Apply)
    reason = "restored spec.type ClusterIP, was changed by hand to NodePort"
    assert (action.manifest["kind"], action.reason) == ("Service", reason)
    assert action.is_drift


def test_a_field_that_the_spec_changed_has_changed() -> None:
    world = settled()
    world.change(service={"type": "NodePort"})

    action = action_of(world.observed())

    assert isinstance(action, Apply)
    assert action.reason.startswith("changed: ")


def test_a_field_that_the_spec_does_not_name_any_more_goes() -> None:
    world = settled(service={"annotations": {"lb": "internal"}})
    world.change(service={})

    world.settle()

    assert "lb" not in world.children[SERVICE]["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ({"kind": "Deployment", "name": "web", "uid": "x", "controller": True}, "Deployment web's"),
        ({"kind": "StreamCluster", "name": "a", "uid": "x", "controller": True}, "Cluster a's"),
    ],
)
def test_an_object_of_another_controller_is_left_alone(
    reference: dict[str, Any], said: str
) -> None:
    world = settled()
    world.children[SERVICE]["metadata"]["ownerReferences"] = [reference]

    action = blocked(world.observed())

    assert action.reason == "NameTaken"
    assert said in action.message
    assert "delete or rename it" in action.message


def test_an_object_that_a_person_made_is_left_alone() -> None:
    world = settled()
    world.children[SERVICE]["metadata"] |= {"ownerReferences": [], "labels": {"app": "web"}}

    action = blocked(world.observed())

    assert action.reason == "NameTaken"
    assert action.message.startswith("Service events is there already and is not Tailrace's;")


def test_an_object_of_ours_that_lost_its_owner_is_taken_back() -> None:
    world = settled()
    del world.children[SERVICE]["metadata"]["ownerReferences"]

    action = action_of(world.observed())

    assert isinstance(action, Apply)
    assert action.reason == "restored metadata.ownerReferences, was removed by hand"


def test_objects_of_a_resource_that_had_the_name_before_are_waited_for() -> None:
    world = settled()
    world.children[SERVICE]["metadata"]["ownerReferences"][0]["uid"] = "owner-0"

    assert blocked(world.observed()).reason == "Replaced"


def test_a_stateful_set_is_made_when_pods_of_the_one_before_are_gone() -> None:
    observed = replace(settled().observed(), pods=(), ring=None)
    left = settled().observed().pods[1]
    objects = {name: each for name, each in objects_of(observed).items() if name != STATEFUL_SET}
    gone = replace(observed, children=objects)

    waits = blocked(replace(gone, former_pods=(left,)))

    assert (waits.reason, waits.message) == ("Replaced", "old pod events-1 is terminating")
    assert isinstance(action_of(gone), Apply)


def test_an_object_that_is_being_deleted_is_waited_for() -> None:
    world = settled()
    world.children[SERVICE]["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z"
    world.children[SERVICE]["spec"]["type"] = "NodePort"

    assert action_of(world.observed()) is None


def test_fields_that_cannot_be_changed_need_another_stateful_set() -> None:
    world = settled()
    uid = world.children[STATEFUL_SET]["metadata"]["uid"]
    pods = dict(world.pods)
    world.change(storage={"size": "20Gi"})

    actions = world.settle()

    path = "spec.volumeClaimTemplates[0].spec.resources.requests.storage"
    assert actions[0] == ReplaceStatefulSet("events", uid, f"{path} 10Gi → 20Gi")
    assert world.pods == pods


@pytest.mark.parametrize("is_going", [False, True])
def test_what_is_not_wanted_any_more_is_removed_once(is_going: bool) -> None:
    world = settled()
    world.change(networkPolicy=False)
    if is_going:
        world.children[POLICY]["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z"

    removal = Remove(POLICY, world.children[POLICY]["metadata"]["uid"])
    assert action_of(world.observed()) == (None if is_going else removal)


def test_what_is_not_wanted_and_not_ours_stays() -> None:
    world = settled()
    world.change(networkPolicy=False)
    world.children[POLICY]["metadata"]["ownerReferences"] = []

    assert action_of(world.observed()) is None


@pytest.mark.parametrize("state", ["is_paused", "is_deleting"])
def test_nothing_is_done_in_a_pause_or_a_deletion(state: str) -> None:
    owner = a_cluster().owner

    for cluster in (a_cluster(), a_cluster(has_secret=False)):
        changed = replace(owner, **{state: True})  # type: ignore[arg-type]
        assert action_of(replace(cluster, owner=changed)) is None


# --- pods and the ring ----------------------------------------------------------------------------


def test_each_pod_is_placed_in_the_zone_of_its_class() -> None:
    world = World({"zones": ["a", "b", "c"]})
    actions = world.settle()

    assert [action for action in actions if isinstance(action, PlacePod)] == [
        PlacePod(0, world.pods[0].uid, "a"),
        PlacePod(1, world.pods[1].uid, "b"),
        PlacePod(2, world.pods[2].uid, "c"),
    ]
    assert [world.pods[ordinal].zone for ordinal in range(3)] == ["a", "b", "c"]


def unfounded(*answered: int, running: tuple[int, ...] = (0, 1, 2)) -> Cluster:
    """All objects are there; these brokers run, and these answer."""
    world = World()
    while not world.pods:
        world.work()
        world.make_pods()
    for ordinal in running:
        world.step_pod(ordinal)
    cluster = world.observed()
    brokers = tuple(broker for broker in ring_of(cluster).brokers if broker.ordinal in answered)
    return replace(cluster, ring=replace(ring_of(cluster), brokers=brokers))


@pytest.mark.parametrize(
    ("answered", "running"), [((0, 1), (0, 1)), ((0, 1), (0, 1, 2)), ((), (0, 1, 2))]
)
def test_a_ring_is_not_founded_before_all_its_brokers_run_and_answer(
    answered: tuple[int, ...], running: tuple[int, ...]
) -> None:
    assert action_of(unfounded(*answered, running=running)) is None


def test_bootstrap_is_noted_before_it_is_done() -> None:
    cluster = unfounded(0, 1, 2)

    assert action_of(cluster) == RecordFounding(3, None)
    assert action_of(replace(cluster, founded=Founded(3, None))) == Found(3)


def test_a_ring_whose_brokers_are_all_empty_is_not_founded_again() -> None:
    cluster = replace(unfounded(0, 1, 2), founded=Founded(3, "ring-7"))

    action = blocked(cluster)

    assert action.reason == "DataLost"
    assert "ring-7 was founded here; restore their volumes" in action.message


def test_brokers_that_have_not_read_their_disks_yet_are_not_empty() -> None:
    cluster = unfounded(0, 1, 2)
    starting = tuple(replace(each, state="starting") for each in ring_of(cluster).brokers)
    cluster = replace(cluster, ring=replace(ring_of(cluster), brokers=starting))

    for founded in (None, Founded(3, None), Founded(3, "ring-7")):
        assert action_of(replace(cluster, founded=founded)) is None


def test_some_empty_brokers_of_a_founded_ring_are_waited_for() -> None:
    assert action_of(replace(unfounded(0, 1), founded=Founded(3, "ring-7"))) is None


def test_another_ring_than_the_founded_one_is_no_good() -> None:
    cluster = replace(settled().observed(), founded=Founded(3, "ring-7"))

    action = blocked(replace(cluster, children=objects_of(cluster)))

    assert action.reason == "AnotherRing"
    assert "in ring ring-1, and not in ring-7" in action.message


@pytest.mark.parametrize("founded", [None, Founded(3, None)])
def test_a_ring_that_is_found_on_volumes_is_adopted(founded: Founded | None) -> None:
    cluster = replace(settled().observed(), founded=founded)
    quiet = replace(cluster, children=objects_of(cluster))

    assert action_of(quiet) == RecordFounding(3, "ring-1")


def test_a_ring_whose_size_nobody_reports_is_not_adopted_yet() -> None:
    cluster = replace(settled().observed(), founded=None)
    cluster = replace(cluster, ring=replace(ring_of(cluster), broker_count=None))

    assert action_of(replace(cluster, children=objects_of(cluster))) is None


def test_a_ring_that_does_not_answer_is_waited_for() -> None:
    cluster = replace(settled().observed(), ring=None)

    assert action_of(replace(cluster, children=objects_of(cluster))) is None


# --- restarts -------------------------------------------------------------------------------------


def outdated(*ordinals: int) -> Cluster:
    """A whole ring of which the pods of these brokers have an earlier template."""
    return with_pods(settled().observed(), *ordinals, revision="earlier")


def restarted(cluster: Cluster) -> int | None:
    action = action_of(cluster)
    if not isinstance(action, RestartBroker):
        return None
    pods: dict[int, Pod] = {pod.ordinal: pod for pod in cluster.pods}
    assert action.pod_uid == pods[action.ordinal].uid
    return action.ordinal


@pytest.mark.parametrize(
    ("leader", "first"), [(0, 1), (1, 0), (None, None)], ids=["leads", "does not", "nobody"]
)
def test_the_leader_of_the_metadata_is_restarted_last(
    leader: int | None, first: int | None
) -> None:
    cluster = outdated(0, 1, 2)
    cluster = replace(cluster, ring=replace(ring_of(cluster), metadata_leader=leader))

    assert restarted(replace(cluster, children=objects_of(cluster))) == first


def test_the_leader_is_restarted_when_it_is_the_only_one() -> None:
    assert restarted(outdated(0)) == 0


def test_no_broker_is_restarted_while_the_voters_change() -> None:
    """One whose disk is new does not vote yet: without another there may be no majority."""
    cluster = outdated(1)
    ring = replace(ring_of(cluster), next_voters=frozenset({0, 1, 2}))
    cluster = replace(cluster, ring=ring)
    made = objects_of(cluster)

    assert restarted(replace(cluster, children=made)) is None
    assert made[ChildName("PodDisruptionBudget", "events")]["spec"]["maxUnavailable"] == 0


@pytest.mark.parametrize("changes", [{"leaderless": {2}}, {"behind": {2}}])
def test_no_broker_is_restarted_while_a_range_waits_for_one(changes: dict[str, Any]) -> None:
    cluster = outdated(1)
    cluster = replace(cluster, ring=with_ranges(cluster.ring, **changes))

    assert restarted(replace(cluster, children=objects_of(cluster))) is None


@pytest.mark.parametrize(
    ("behind", "restarts"),
    [(set(), 1), ({2}, None), ({1}, 1), ({0, 2}, None)],
    ids=["all have all", "needed", "has not all", "has all alone"],
)
def test_a_pod_that_does_not_serve_is_not_restarted_while_a_range_needs_its_copies(
    behind: set[int], restarts: int | None
) -> None:
    """Its peers are ghosts, or catch up: without it nothing would be taken, or lead."""
    cluster = with_pods(outdated(0, 1), 1, is_ready=False)
    cluster = replace(cluster, ring=with_ranges(cluster.ring, behind=behind))

    assert restarted(replace(cluster, children=objects_of(cluster))) == restarts


def test_the_only_copy_of_a_ring_of_one_waits_for_no_other() -> None:
    cluster = with_pods(settled(brokers=1).observed(), 0, revision="earlier", is_ready=False)

    assert restarted(replace(cluster, children=objects_of(cluster))) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"is_ready": False, "is_running": False},
        {"is_ready": False},
        {"is_deleting": True},
    ],
    ids=["does not run", "does not serve", "ends"],
)
def test_no_broker_is_restarted_while_another_is_away(changes: dict[str, bool]) -> None:
    cluster = with_pods(outdated(1), 2, **changes)

    assert restarted(replace(cluster, children=objects_of(cluster))) is None


def test_a_broken_pod_goes_first_and_its_problem_is_reported() -> None:
    cluster = with_pods(outdated(0, 1, 2), 2, is_ready=False, is_running=False, problem="Err: no")
    cluster = replace(cluster, children=objects_of(cluster))

    assert restarted(cluster) == 2
    action = action_of(cluster)
    assert isinstance(action, RestartBroker)
    assert action.reason == "pod template changed; Err: no"


def test_a_pod_that_runs_and_does_not_serve_is_restarted_when_no_broker_is_on_its_way() -> None:
    cluster = with_pods(outdated(0, 1), 1, is_ready=False)

    assert restarted(replace(cluster, children=objects_of(cluster))) == 1


def test_a_pod_that_does_not_serve_is_not_restarted_when_it_may_wait_for_another() -> None:
    cluster = with_pods(outdated(0, 1), 1, 2, is_ready=False)

    assert restarted(replace(cluster, children=objects_of(cluster))) is None


def test_when_no_broker_serves_the_outdated_ones_are_restarted_all() -> None:
    cluster = with_pods(outdated(0, 1), 0, 1, 2, is_ready=False)

    assert restarted(replace(cluster, children=objects_of(cluster))) == 0


def test_when_no_broker_serves_one_that_is_on_its_way_is_waited_for() -> None:
    cluster = with_pods(outdated(0, 1), 0, 1, 2, is_ready=False)
    cluster = with_pods(cluster, 2, is_running=False)

    assert restarted(replace(cluster, children=objects_of(cluster))) is None


@pytest.mark.parametrize(
    "status",
    [{}, {"observedGeneration": 0, "updateRevision": "new"}, {"observedGeneration": 1}],
    ids=["none", "of an earlier generation", "without a revision"],
)
def test_nothing_is_restarted_before_the_new_template_is_taken(status: dict[str, Any]) -> None:
    world = settled()
    world.children[STATEFUL_SET]["status"] = status

    assert action_of(with_pods(world.observed(), 0, 1, 2, revision="earlier")) is None


def test_nothing_is_restarted_while_the_stateful_set_goes() -> None:
    world = settled()
    world.children[STATEFUL_SET]["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z"

    assert action_of(with_pods(world.observed(), 0, 1, 2, revision="earlier")) is None


def test_pods_beyond_the_ring_do_not_count() -> None:
    cluster = settled().observed()
    extra = Pod(ordinal=3, uid="x", revision="earlier", is_running=False, is_ready=False)

    assert action_of(replace(cluster, pods=(*cluster.pods, extra))) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"image": "tailrace/broker:0.1.1"}, "image 0.1.0 → 0.1.1"),
        ({"image": "mine:1"}, "image tailrace/broker:0.1.0 → mine:1"),
        ({"settings": {"ioThreads": 4}}, "settings"),
        (
            {"resources": {"limits": {"memory": "1Gi"}}},
            "resources.limits.memory 512Mi → 1Gi",
        ),
        ({"pod": {"nodeSelector": {"disk": "fast"}}}, "nodeSelector"),
    ],
)
def test_a_restart_says_what_changed_in_the_template(change: dict[str, Any], said: str) -> None:
    world = settled(zones=["a", "b", "c"])
    world.change(**change)

    restarts = [each for each in world.settle() if isinstance(each, RestartBroker)]

    assert [each.reason for each in restarts] == [f"pod template changed: {said}"] * 3


def test_a_bad_image_is_healed_by_a_good_one() -> None:
    world = settled()
    world.change(image=BAD_IMAGE)
    world.settle()
    assert sorted(world.observed().pods[each].is_ready for each in range(3)) == [False, True, True]

    world.change(image="tailrace/broker:0.1.1")
    world.settle()

    assert all(pod.is_ready for pod in world.pods.values())


def test_a_bad_image_from_the_start_is_healed_too() -> None:
    world = World({"image": BAD_IMAGE})
    world.settle()
    world.change(image=IMAGE)

    world.settle()

    assert world.bootstrap_count == 1
    assert all(pod.is_ready for pod in world.pods.values())
