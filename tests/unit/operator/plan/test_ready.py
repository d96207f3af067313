"""`Ready` is never true with anything that a user would call broken: a table of observed states."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from tailrace_operator.plan.actions import Apply
from tailrace_operator.plan.facts import OF_ANOTHER_RING
from tailrace_operator.plan.findings import findings
from tailrace_operator.plan.manifests import children
from tailrace_operator.plan.names import child_names
from tailrace_operator.plan.observed import Broker, ChildName, Cluster, Document, Founded, Ring
from tailrace_operator.plan.plan import next_action
from tailrace_operator.plan.status import cluster_status
from tailrace_operator.plan.whole import mutable_spec
from tests.support.operator.kubernetes_world import (
    NOW,
    STATEFUL_SET,
    World,
    a_cluster,
    settled,
    with_ranges,
)

SERVICE = ChildName("Service", "events")
GONE_AT = "2026-11-21T10:00:00Z"
QUOTA = 'pods "events-1" is forbidden: exceeded quota: small, requested: pods=1'
Change = Callable[[Cluster], Cluster]


class State(NamedTuple):
    """`change` makes it of a ring that is well; `phase`: how STATUS begins; reasons of `Ready`,
    when it is not ready, and of `Degraded`, when it is.
    """

    name: str
    change: Change
    phase: str
    ready: str | None = None
    degraded: str | None = None
    error: str | None = None


def pod(ordinal: int = 1, **changes: Any) -> Change:
    def changed(cluster: Cluster) -> Cluster:
        pods = [replace(p, **changes) if p.ordinal == ordinal else p for p in cluster.pods]
        return replace(cluster, pods=tuple(pods))

    return changed


def no_pod(*ordinals: int) -> Change:
    return lambda cluster: replace(
        cluster, pods=tuple(each for each in cluster.pods if each.ordinal not in ordinals)
    )


def claim(**changes: Any) -> Change:
    def changed(cluster: Cluster) -> Cluster:
        claims = [replace(c, **changes) if c.ordinal == 1 else c for c in cluster.claims]
        return replace(cluster, claims=tuple(claims))

    return changed


def ring(**changes: Any) -> Change:
    def changed(cluster: Cluster) -> Cluster:
        assert isinstance(cluster.ring, Ring)
        return replace(cluster, ring=replace(cluster.ring, **changes))

    return changed


def ranges(**changes: Any) -> Change:
    return lambda cluster: replace(cluster, ring=with_ranges(cluster.ring, **changes))


def seen(**changes: Any) -> Change:
    return lambda cluster: replace(cluster, **changes)


def owner(**changes: Any) -> Change:
    return lambda cluster: replace(cluster, owner=replace(cluster.owner, **changes))


def child(name: ChildName, edit: Callable[[dict[str, Any]], Document] | None) -> Change:
    """Somebody edits an object, or deletes it."""

    def changed(cluster: Cluster) -> Cluster:
        objects = {each: live for each, live in cluster.children.items() if each != name}
        if edit is not None:
            objects[name] = edit(dict(cluster.children[name]))
        return replace(cluster, children=objects)

    return changed


def together(*changes: Change) -> Change:
    def changed(cluster: Cluster) -> Cluster:
        for each in changes:
            cluster = each(cluster)
        return cluster

    return changed


def repaired(cluster: Cluster) -> Cluster:
    """All objects are as wanted."""
    objects = children(cluster)
    return replace(cluster, children=objects, stored_spec=mutable_spec(objects[STATEFUL_SET]))


def on_a_volume_of_another_ring(cluster: Cluster) -> Cluster:
    """Broker 3, which the ring does not hear."""
    assert cluster.ring is not None
    fourth = replace(cluster.pods[0], ordinal=3, uid="pod-3", is_ready=False)
    brokers = (*cluster.ring.brokers, Broker(3, OF_ANOTHER_RING))
    ring_ = replace(cluster.ring, brokers=brokers)
    return replace(cluster, pods=(*cluster.pods, fourth), ring=ring_)


def spec(**fields: Any) -> Change:
    """The spec has changed, and nothing else yet."""
    return lambda cluster: replace(cluster, spec=a_cluster(fields).spec)


def edited(**fields: Any) -> Callable[[dict[str, Any]], Document]:
    return lambda live: {**live, "spec": {**live["spec"], **fields}}


def of_another(live: dict[str, Any]) -> Document:
    reference = {"kind": "Deployment", "name": "web", "uid": "x", "controller": True}
    return {**live, "metadata": {**live["metadata"], "ownerReferences": [reference]}}


def of_the_one_before(live: dict[str, Any]) -> Document:
    (reference,) = live["metadata"]["ownerReferences"]
    return {
        **live,
        "metadata": {**live["metadata"], "ownerReferences": [{**reference, "uid": "0"}]},
    }


def going(live: dict[str, Any]) -> Document:
    return {**live, "metadata": {**live["metadata"], "deletionTimestamp": GONE_AT}}


DOWN = {"is_running": False, "is_ready": False}
LOST = {1: "lost its disk"}
WRONG_SELECTOR = edited(selector={"x": "y"})
OUT = Broker(0, "waiting to be founded")


def waits(problem: str) -> Change:
    return pod(**DOWN, problem=problem)


STATES = (
    # what is well
    State("as specified", seen(), "Ready"),
    State("settings change", spec(settings={"ioThreads": 4}), "Ready"),
    State("volumes grow", claim(requested_bytes=2**40), "Ready"),
    State(
        "a replica is behind",
        ranges(behind={1}),
        "Catching up: 3 of 3 ranges have fewer than 3 copies in sync: broker 1 gets what it lacks",
        None,
        "UnderReplicated",
    ),
    State(
        "a lost volume fills",
        together(ranges(behind={1}), ring(new_disks=frozenset({1}))),
        "Catching up: 3 of 3 ranges have fewer than 3 copies in sync: broker 1, on a new disk, "
        "gets what it lacks from the others",
        None,
        "UnderReplicated",
    ),
    State("paused and well", owner(is_paused=True), "Paused"),
    State("a policy is missing", child(ChildName("NetworkPolicy", "events"), None), "Ready"),
    # pods
    State("a pod is gone", no_pod(1), "Starting: 2 of 3", "Starting", "BrokersAway"),
    State("all pods are gone", no_pod(0, 1, 2), "Starting: 0 of 3", "Starting", "BrokersAway"),
    State("a pod ends", pod(is_deleting=True), "Starting: 2 of 3", "Starting", "BrokersAway"),
    State("it runs, not ready", pod(is_ready=False), "Starting: 2 of 3", "Starting", "BrokersAway"),
    State(
        "no image",
        waits("ImagePullBackOff: no such image"),
        "Starting: 2 of 3 brokers run; broker 1: ImagePullBackOff",
        "Starting",
        "BrokerFails",
    ),
    State(
        "image's name",
        waits("InvalidImageName: x y"),
        "Starting: 2 of 3 brokers run; broker 1: InvalidImageName",
        "Starting",
        "BrokerFails",
    ),
    State(
        "crashes",
        waits("CrashLoopBackOff: back-off (ended by OOMKilled)"),
        "Starting: 2 of 3 brokers run; broker 1: CrashLoopBackOff",
        "Starting",
        "BrokerFails",
    ),
    State(
        "no node",
        waits("Unschedulable: 0/3 nodes are available"),
        "Starting: 2 of 3 brokers run; broker 1: Unschedulable",
        "Starting",
        "BrokerFails",
    ),
    State(
        "a missing ConfigMap",
        waits("CreateContainerConfigError: no such ConfigMap"),
        "Starting: 2 of 3 brokers run; broker 1: CreateContainerConfigError",
        "Starting",
        "BrokerFails",
    ),
    State(
        "quota",
        together(no_pod(1), seen(pod_refusal=QUOTA)),
        "Starting: 2 of 3 brokers run; a pod cannot be created: pods",
        "Starting",
        "PodNotCreated",
    ),
    State(
        "no PriorityClass",
        together(no_pod(1), seen(pod_refusal="no PriorityClass with name high was found")),
        "Starting: 2 of 3 brokers run; a pod cannot be created: no PriorityClass",
        "Starting",
        "PodNotCreated",
    ),
    State(
        "a new image that nobody has",
        together(
            pod(**DOWN, revision="earlier", problem="ImagePullBackOff: no"),
            seen(stored_spec=None),
        ),
        "Restarting broker 1 (2 of 3); broker 1: ImagePullBackOff",
        "Restarting",
        "BrokerFails",
    ),
    State("its turn comes", pod(revision="earlier"), "Restarting broker 1 (3 of 3)"),
    State(
        "in turn",
        together(pod(revision="earlier"), pod(2, **DOWN)),
        "Restarting broker 2",
        "Restarting",
        "BrokersAway",
    ),
    State(
        "its turn does not come",
        together(pod(revision="earlier"), ring(brokers=(Broker(0, "member"),))),
        "Ready",
    ),
    State(
        "its template is refused",
        together(pod(revision="earlier"), seen(stored_spec=None)),
        "Degraded: the API server refuses the spec of StatefulSet events",
        "TemplateRefused",
        "TemplateRefused",
    ),
    # volumes
    State(
        "a volume goes",
        claim(is_deleting=True),
        "Replacing the volume of broker 1",
        "ReplacingVolume",
        "VolumeDeleting",
    ),
    State(
        "a volume goes while a broker is behind",
        together(claim(is_deleting=True), ranges(behind={2})),
        "Degraded: volume data-events-1 is being deleted",
        "VolumeDeleting",
        "VolumeDeleting",
    ),
    State(
        "a volume goes with its pod",
        together(
            claim(is_deleting=True),
            no_pod(1),
            seen(status={"phase": "Replacing the volume of broker 1"}),
        ),
        "Replacing the volume of broker 1",
        "ReplacingVolume",
        "VolumeDeleting",
    ),
    State(
        "a new volume has no node",
        together(
            waits("Unschedulable: 0/3 nodes are available"),
            seen(status={"phase": "Replacing the volume of broker 1; and so on"}),
        ),
        "Replacing the volume of broker 1; broker 1: Unschedulable",
        "ReplacingVolume",
        "BrokerFails",
    ),
    State(
        "no StorageClass",
        together(pod(**DOWN), claim(problem="no StorageClass: there is no default")),
        "Starting: 2 of 3 brokers run; data-events-1: no StorageClass",
        "Starting",
        "VolumeFails",
    ),
    State(
        "it cannot grow",
        together(
            spec(storage={"size": "20Gi"}),
            lambda cluster: replace(
                cluster, claims=tuple(replace(c, is_expandable=False) for c in cluster.claims)
            ),
            repaired,
        ),
        "Blocked: volume data-events-0 cannot grow to 20Gi",
        None,  # it serves as before, and may have to for ever
        "VolumesCannotGrow",
    ),
    State(
        "it fails to grow",
        claim(problem="ControllerResizeError: quota"),
        "Degraded: data-events-1: ControllerResizeError",
        "VolumeFails",
        "VolumeFails",
    ),
    # the ring
    State("no leader", ranges(leaderless={1, 2}), "Waiting: ranges", "Leaderless", "Leaderless"),
    State(
        "nobody leads the metadata",
        ring(metadata_leader=None),
        "Waiting: no broker leads the metadata",
        "NoMetadataLeader",
        "NoMetadataLeader",
    ),
    State(
        "one copy in sync",
        ranges(behind={1, 2}),
        "Waiting: ranges with fewer than 2 copies in sync, which take no events: 3",
        "NotEnoughReplicas",
        "NotEnoughReplicas",
    ),
    State(
        "a broker is away, and another behind",
        together(ranges(behind={1, 2}), no_pod(1)),
        "Starting: 2 of 3",
        "Starting",
        "NotEnoughReplicas",
    ),
    State(
        "a replica is behind, and an error",
        ranges(behind={1}),
        "Retrying: no",
        "Retrying",
        "Retrying",
        "no",
    ),
    State(
        "a volume goes, another cannot grow",
        together(
            spec(storage={"size": "20Gi"}),
            lambda cluster: replace(
                cluster, claims=tuple(replace(c, is_expandable=False) for c in cluster.claims)
            ),
            claim(is_deleting=True),
            repaired,
        ),
        "Degraded: volume data-events-1 is being deleted",
        "VolumeDeleting",
        "VolumeDeleting",
    ),
    State(
        "a disk is lost",
        ranges(leaderless={1}, losses=LOST),
        "Data at risk: range 1 lost its disk; see tailrace ring accept-loss",
        "DataAtRisk",
        "DataAtRisk",
    ),
    State(
        "a disk is lost, and another broker is away",
        together(ranges(leaderless={0, 1}, losses=LOST), no_pod(0)),
        "Data at risk: range 1 lost its disk",
        "Starting",
        "DataAtRisk",
    ),
    State(
        "the last whole copy of a sealed range is lost",
        ring(sealed_short=2, sealed_lost=(7,)),
        "Data at risk: range 7 has no whole copy left; see tailrace ring accept-loss",
        "DataAtRisk",
        "DataAtRisk",
    ),
    State("nobody answers", seen(ring=None), "Waiting: no broker", "Unreachable", "Unreachable"),
    State(
        "another ring",
        together(ring(cluster_id="ring-2"), repaired),
        "Blocked: the brokers are in ring ring-2",
        "AnotherRing",
        "AnotherRing",
    ),
    State(
        "a broker that joins has a volume of another ring",
        together(spec(brokers=4), on_a_volume_of_another_ring, repaired),
        "Degraded: broker 3 is on a volume of another ring",
        "AnotherRing",
        "AnotherRing",
    ),
    State(
        "all disks are empty",
        together(
            ring(cluster_id=None, brokers=tuple(replace(OUT, ordinal=n) for n in range(3))),
            repaired,
        ),
        "Blocked: all brokers are empty",
        "DataLost",
        "DataLost",
    ),
    State(
        "some disks are empty",
        ring(cluster_id=None, brokers=(OUT,)),
        "Waiting: the brokers are not in the ring",
        "AnotherRing",
        "AnotherRing",
    ),
    State("not founded yet", seen(founded=None), "Founding", "Founding"),
    State("just founded", seen(founded=Founded(3, None)), "Founding", "Founding"),
    # objects
    State("no Secret", seen(has_secret=False), "Blocked: Secret", "SecretMissing", "SecretMissing"),
    State("no Service", child(SERVICE, None), "Degraded", "ServiceBroken", "ServiceBroken"),
    State(
        "it selects nobody",
        child(SERVICE, WRONG_SELECTOR),
        "Degraded: Service events",
        "ServiceBroken",
        "ServiceBroken",
    ),
    State(
        "it selects nobody, and paused",
        together(child(SERVICE, WRONG_SELECTOR), owner(is_paused=True)),
        "Paused",
        "ServiceBroken",
        "ServiceBroken",
    ),
    State(
        "another's Service",
        child(SERVICE, of_another),
        "Blocked: Service events is there already",
        "NameTaken",
        "NameTaken",
    ),
    State(
        "the Service of the one before",
        child(SERVICE, of_the_one_before),
        "Waiting: old Service events",
        "Replaced",
    ),
    State(
        "the StatefulSet goes",
        together(child(STATEFUL_SET, going), no_pod(0, 1, 2)),
        "Starting: 0 of 3",
        "Starting",
        "BrokersAway",
    ),
    State(
        "memory",
        spec(settings={"cacheSize": "10Gi"}),
        "Blocked: produceMemory",
        "MemoryTooSmall",
        "MemoryTooSmall",
    ),
    # the operator
    State("an error", seen(), "Retrying: no", "Retrying", "Retrying", "no"),
    State(
        "an error while a disk is lost",
        ranges(leaderless={1}, losses=LOST),
        "Retrying: no",
        "DataAtRisk",
        "DataAtRisk",
        "no",
    ),
    State("deleted", owner(is_deleting=True), "Deleting", "Deleting"),
    State(
        "paused, a broker away",
        together(owner(is_paused=True), no_pod(1)),
        "Paused",
        "Starting",
        "BrokersAway",
    ),
    State(
        "paused, a disk lost",
        together(owner(is_paused=True), ranges(leaderless={1}, losses=LOST)),
        "Paused",
        "DataAtRisk",
        "DataAtRisk",
    ),
)


def reasons(cluster: Cluster, error: str | None) -> tuple[str, str | None, str | None]:
    """The phase; the reason that it is not ready; the reason that it is degraded."""
    status = cluster_status(cluster, next_action(cluster), now=NOW, error=error)
    held = {each["type"]: each for each in status["conditions"]}
    ready, degraded = held["Ready"], held["Degraded"]
    return (
        status["phase"],
        None if ready["status"] == "True" else ready["reason"],
        None if degraded["status"] == "False" else degraded["reason"],
    )


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_the_status_says_what_is_wrong(state: State) -> None:
    phase, ready, degraded = reasons(state.change(settled().observed()), state.error)

    assert (ready, degraded) == (state.ready, state.degraded)
    assert phase.startswith(state.phase)
    assert ready is not None or degraded in (None, "UnderReplicated", "VolumesCannotGrow")


def test_there_are_enough_states_and_no_two_are_the_same() -> None:
    assert len({state.name for state in STATES}) == len(STATES) >= 40


@pytest.mark.parametrize("name", child_names("events"), ids=" ".join)
def test_a_ring_that_lost_an_object_is_repaired(name: ChildName) -> None:
    world = World()
    world.settle()

    action = next_action(child(name, None)(world.observed()))

    assert isinstance(action, Apply)
    assert ChildName(action.manifest["kind"], action.manifest["metadata"]["name"]) == name


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (seen(), "the broker gets a new one when"),
        (ranges(behind={2}), "the broker gets a new one when"),
        (ring(copies=1), "it is not replaced: no other broker is known to have all of its data"),
        (claim(holder="backup/wait"), "it is not replaced: finalizer backup/wait keeps the claim"),
    ],
    ids=["well", "another is behind", "one copy", "held"],
)
def test_what_becomes_of_a_volume_that_is_being_deleted(change: Change, what: str) -> None:
    cluster = change(claim(is_deleting=True)(settled().observed()))

    problem = next(each for each in findings(cluster, None, None) if "Degraded" in each.means)

    assert problem.reason == "VolumeDeleting"
    assert f"goes when pod events-1 ends; {what}" in problem.message
    assert "kubectl patch pv NAME -p" in problem.message


@pytest.mark.parametrize(
    "change", [claim(is_deleting=True, holder="x"), ring(brokers=()), seen(stored_spec=None)]
)
def test_brokers_that_may_not_be_restarted_yet_are_not_up_to_date(change: Change) -> None:
    """While a volume goes, a broker does not answer, or the template is not known."""
    cluster = change(pod(revision="earlier")(settled().observed()))
    budget = ChildName("PodDisruptionBudget", "events")
    objects = {**cluster.children, budget: children(cluster)[budget]}
    cluster = replace(cluster, children=objects)

    status = cluster_status(cluster, next_action(cluster), now=NOW, error=None)

    (progressing,) = [each for each in status["conditions"] if each["type"] == "Progressing"]
    assert progressing["status"] == "True"
    assert progressing["message"] == "brokers that may not be restarted yet: 1"
