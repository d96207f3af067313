"""The next thing to do for a StreamCluster: one action, from what is wanted and what was found.

Level-triggered and without memory, but for what `status.founded` says; None: nothing is to be done,
or something under way is waited for. The order is that of `_in_order`. Nothing here deletes data
but the volume of a retired broker.
"""

from collections.abc import Iterator

from tailrace_operator.plan.actions import (
    MADE,
    REPLACED,
    Apply,
    Blocked,
    ClusterAction,
    CreateSecret,
    DeleteClaim,
    Found,
    GrowClaim,
    OwnClaim,
    PlacePod,
    RecordFounding,
    Remove,
    ReplaceStatefulSet,
    ReplaceVolume,
    RestartBroker,
)
from tailrace_operator.plan.drift import drift, quantity
from tailrace_operator.plan.facts import (
    EMPTY,
    answered_ordinals,
    away_ordinals,
    broker_count,
    controller_of,
    copies_elsewhere,
    deleting_claims,
    is_founded,
    is_going,
    is_needed,
    is_recorded,
    is_whole,
    obstacle,
    outdated_pods,
    pod_count,
    ready_ordinals,
    running_ordinals,
    update_revision,
    wanted_claims,
    wanted_pods,
)
from tailrace_operator.plan.manifests import children, owner_reference, secret_manifest
from tailrace_operator.plan.names import (
    APPLIED_HASH,
    FIELD_MANAGER,
    INSTANCE_LABEL,
    MANAGED_BY_LABEL,
    ring_secret,
)
from tailrace_operator.plan.observed import ChildName, Claim, Cluster, Document, Owner, Pod, Ring
from tailrace_operator.plan.scaling import next_step
from tailrace_operator.plan.whole import IMMUTABLE, whole_patch
from tailrace_operator.plan.words import changed_words, restored_words
from tailrace_operator.plan.zones import zone_of

_TEMPLATE_KINDS = {"ConfigMap", "StatefulSet"}  # of which pods are made

_Repair = Apply | ReplaceStatefulSet | Blocked


def next_action(cluster: Cluster) -> ClusterAction | None:
    """Return the next action."""
    if cluster.owner.is_deleting or cluster.owner.is_paused:
        return None
    wanted = children(cluster)
    return next((each for each in _in_order(cluster, wanted) if each is not None), None)


def _in_order(
    cluster: Cluster, wanted: dict[ChildName, Document]
) -> Iterator[ClusterAction | None]:
    """Return all that there is to do, the first thing first."""
    yield _ownership(cluster)  # first of all: data that is to stay must not wait for anything
    yield _placement(cluster)  # a pod that is waiting must not wait for a person too
    yield _secret(cluster)
    memory = _memory(cluster)
    yield _children(cluster, wanted if memory is None else _without_template(cluster, wanted))
    yield _unwanted(cluster, wanted)
    yield memory
    yield _bootstrap(cluster)
    yield _restart(cluster)
    yield next_step(cluster)
    yield _retired_volume(cluster)
    yield _growth(cluster)  # the API may refuse it for ever: sizes cannot be taken back
    yield _cannot_grow(cluster)


# --- volumes --------------------------------------------------------------------------------------


def _ownership(cluster: Cluster) -> OwnClaim | None:
    """Volumes belong to the StreamCluster by `deletionPolicy: Delete`, and to nobody by Retain.

    The volume of a StreamCluster that had this name before goes with that one.
    """
    owner, is_owned = cluster.owner, cluster.spec.deletion_policy == "Delete"
    for claim in wanted_claims(cluster) if is_owned else cluster.claims:
        others = tuple(each for each in claim.owners if each["uid"] != owner.uid)
        is_so = len(others) < len(claim.owners)
        if is_so != is_owned and not _is_of_another(owner, claim):
            owners = (*others, owner_reference(owner)) if is_owned else others
            return OwnClaim(claim.name, claim.version, owners, is_owned)
    return None


def _is_of_another(owner: Owner, claim: Claim) -> bool:
    return any(
        (each["kind"], each["name"]) == ("StreamCluster", owner.name) and each["uid"] != owner.uid
        for each in claim.owners
    )


# --- objects --------------------------------------------------------------------------------------


def _secret(cluster: Cluster) -> CreateSecret | Blocked | None:
    """A ring's brokers know its text already: another one would part them."""
    if cluster.has_secret:
        return None
    if cluster.founded is None:
        return CreateSecret(secret_manifest(cluster))
    name = cluster.owner.name
    return Blocked(
        "SecretMissing",
        f"Secret {ring_secret(name)} is gone, or has a text that no broker takes (visible ASCII "
        f"without spaces), so that none can start; restore it, or "
        f"make another and restart all brokers with it: kubectl create secret generic "
        f"{ring_secret(name)} --from-literal=secret=$(openssl rand -base64 32), then "
        f"kubectl delete pod -l {INSTANCE_LABEL}={name}",
    )


def _children(cluster: Cluster, wanted: dict[ChildName, Document]) -> _Repair | None:
    """The first that is not as wanted; one that is being deleted is made again when it is gone."""
    for child, manifest in wanted.items():
        live = cluster.children.get(child)
        if live is None:
            return _before(cluster, child) or Apply(manifest, MADE, is_drift=is_recorded(cluster))
        if is_going(live):
            continue
        action = _foreign(cluster.owner, child, live) or _corrected(
            manifest, live, cluster.stored_spec
        )
        if action is not None:
            return action
    return None


def _before(cluster: Cluster, child: ChildName) -> Blocked | None:
    """A StatefulSet that cannot make a pod, whose name is taken, tries it less and less often: up
    to a quarter of an hour would pass before its next pass.
    """
    if child.kind != "StatefulSet":
        return None
    for claim in wanted_claims(cluster):
        if _is_of_another(cluster.owner, claim):
            return Blocked(
                REPLACED,
                f"old volume {claim.name} is being deleted, with the StreamCluster that had this "
                "name before",
            )
    if not cluster.former_pods:
        return None
    name = f"{child.name}-{cluster.former_pods[0].ordinal}"
    return Blocked(REPLACED, f"old pod {name} is terminating")


def _foreign(owner: Owner, child: ChildName, live: Document) -> Blocked | None:
    """An object of another owner is left alone; one of ours that lost its owner is taken back."""
    controller = controller_of(live)
    if controller is None:
        if live["metadata"].get("labels", {}).get(MANAGED_BY_LABEL) == FIELD_MANAGER:
            return None
        holder = "not Tailrace's"
    elif controller["uid"] == owner.uid:
        return None
    elif (controller["kind"], controller["name"]) == ("StreamCluster", owner.name):
        return Blocked(
            REPLACED,
            f"old {child.kind} {child.name} is being deleted, with the StreamCluster that had this "
            "name before",
        )
    else:
        holder = f"{controller['kind']} {controller['name']}'s"
    return Blocked(
        "NameTaken",
        f"{child.kind} {child.name} is there already and is {holder}; delete or rename it, or give "
        "this StreamCluster another name",
    )


def _corrected(
    manifest: Document, live: Document, stored_spec: Document | None
) -> Apply | ReplaceStatefulSet | None:
    patch, added = whole_patch(manifest, live, stored_spec)
    found = drift(manifest, live) or added
    if found is None:
        return None
    if manifest["kind"] == "StatefulSet":
        fixed = drift({"spec": {name: manifest["spec"][name] for name in IMMUTABLE}}, live)
        if fixed is not None:
            metadata = live["metadata"]
            reason = changed_words(fixed)
            return ReplaceStatefulSet(metadata["name"], metadata["uid"], reason)
    version = live["metadata"]["resourceVersion"]
    asked = (each["metadata"].get("annotations", {}).get(APPLIED_HASH) for each in (manifest, live))
    if len(set(asked)) == 1:
        return Apply(manifest, restored_words(found), True, patch, version)
    return Apply(manifest, f"changed: {changed_words(found)}", False, patch, version)


def _unwanted(cluster: Cluster, wanted: dict[ChildName, Document]) -> Remove | None:
    for child, live in cluster.children.items():
        controller = controller_of(live)
        is_ours = controller is not None and controller["uid"] == cluster.owner.uid
        if child not in wanted and is_ours and not is_going(live):
            return Remove(child, live["metadata"]["uid"])
    return None


def _memory(cluster: Cluster) -> Blocked | None:
    """Brokers that may take more than their pods have would be killed when they are needed most."""
    limit = cluster.spec.resources.limits.get("memory")
    limit_bytes, memory_bytes = quantity(limit), cluster.spec.settings.memory_bytes
    if limit_bytes is None or memory_bytes <= limit_bytes:
        return None
    return Blocked(
        "MemoryTooSmall",
        f"produceMemory, readMemory, ioBuffer and cacheSize are {-(-memory_bytes // 2**20)}Mi "
        f"together, above the memory limit of a broker, {limit}; lower them in spec.settings, or "
        "raise spec.resources.limits.memory, best to 110Mi more than they are",
    )


def _without_template(
    cluster: Cluster, wanted: dict[ChildName, Document]
) -> dict[ChildName, Document]:
    """Return the repairs while a person has to act: nothing that a starting pod would use."""
    return {
        child: manifest
        for child, manifest in wanted.items()
        if child.kind not in _TEMPLATE_KINDS or child not in cluster.children
    }


# --- pods and the ring ----------------------------------------------------------------------------


def _placement(cluster: Cluster) -> PlacePod | None:
    if not cluster.spec.zones:
        return None
    for pod in wanted_pods(cluster):
        if pod.is_gated and not pod.is_deleting:
            return PlacePod(pod.ordinal, pod.uid, zone_of(pod.ordinal, cluster.spec.zones))
    return None


def _bootstrap(cluster: Cluster) -> ClusterAction | None:
    """A ring is founded once: it is noted before it is asked for, and its id after that."""
    founded, ring = cluster.founded, cluster.ring
    if ring is None:
        return None
    if ring.cluster_id is None:
        return _bootstrap_again(cluster)
    if founded is None or founded.cluster_id is None:
        return _founded_already(ring, ring.cluster_id)
    if founded.cluster_id != ring.cluster_id:
        return Blocked(
            "AnotherRing",
            f"the brokers are in ring {ring.cluster_id}, and not in {founded.cluster_id}, which "
            "was founded here; give each broker its own volume back",
        )
    if founded.broker_count != ring.broker_count:  # it has taken a step since
        return _founded_already(ring, ring.cluster_id)
    return None


def _bootstrap_again(cluster: Cluster) -> ClusterAction | None:
    """None of the brokers that answer is in a ring."""
    everyone = set(range(broker_count(cluster)))
    if running_ordinals(cluster) & answered_ordinals(cluster, state=EMPTY) < everyone:
        return None  # one that starts does not know yet whether it is in a ring
    if cluster.founded is None:
        return RecordFounding(cluster.spec.brokers, None)
    if cluster.founded.cluster_id is None:
        return Found(cluster.founded.broker_count)
    return Blocked(
        "DataLost",
        f"all brokers are empty, but ring {cluster.founded.cluster_id} was founded here; restore "
        "their volumes, or delete this StreamCluster and apply it again for an empty ring",
    )


def _founded_already(ring: Ring, cluster_id: str) -> RecordFounding | None:
    """Return the record of a ring that the call before, or an earlier StreamCluster, began."""
    return None if ring.broker_count is None else RecordFounding(ring.broker_count, cluster_id)


def _small_claims(cluster: Cluster) -> list[Claim]:
    """Of those that have a volume already: the API refuses to change the size of another."""
    size_bytes = cluster.spec.storage.size_bytes
    return [
        wanted_claim
        for wanted_claim in wanted_claims(cluster)
        if wanted_claim.requested_bytes < size_bytes and wanted_claim.capacity_bytes
    ]


def _growth(cluster: Cluster) -> GrowClaim | None:
    for claim in _small_claims(cluster):
        if claim.is_expandable:
            return GrowClaim(claim.name, cluster.spec.storage.size)
    return None


def _retired_volume(cluster: Cluster) -> DeleteClaim | None:
    """Of a broker that has left the ring, whose data others have; not while its pod may need it."""
    if cluster.spec.deletion_policy == "Retain" or not is_founded(cluster):
        return None
    used = {pod.ordinal for pod in cluster.pods}
    for claim in cluster.claims:
        is_ours = any(each["uid"] == cluster.owner.uid for each in claim.owners)
        is_left = claim.ordinal >= pod_count(cluster) and claim.ordinal not in used
        if is_left and is_ours and not claim.is_deleting:
            return DeleteClaim(claim.name, claim.uid)
    return None


def _cannot_grow(cluster: Cluster) -> Blocked | None:
    storage = cluster.spec.storage
    for claim in _small_claims(cluster):
        of_class = "" if storage.storage_class_name is None else f" {storage.storage_class_name}"
        remedy = (
            f"set allowVolumeExpansion: true in its StorageClass{of_class}, if what makes the "
            "volumes can do that"
        )
        if storage.storage_class_name == "":
            remedy = "it has no StorageClass; move to another StreamCluster with greater volumes"
        return Blocked(
            "VolumesCannotGrow", f"volume {claim.name} cannot grow to {storage.size}; {remedy}"
        )
    return None


# --- restarts -------------------------------------------------------------------------------------


def _restart(cluster: Cluster) -> RestartBroker | ReplaceVolume | None:
    """A pod of an earlier template, or whose volume is being deleted, these first. One that serves
    goes only when all others serve too.

    None goes while it is not known that the template is the wanted one, and nothing else.
    """
    if cluster.stored_spec is None or update_revision(cluster) is None:
        return None
    going = {claim.ordinal: claim for claim in deleting_claims(cluster)}
    outdated = [pod for pod in outdated_pods(cluster) if pod.ordinal not in going]
    broken = _broken(cluster, outdated)
    if broken is not None:
        cause = "it does not run" if broken.problem is None else broken.problem
        return _restarted(cluster, broken, f"; {cause}")
    free = {each for each, claim in going.items() if obstacle(cluster, claim) is None}
    pods = [pod for pod in wanted_pods(cluster) if not pod.is_deleting]
    due = [pod for pod in pods if pod.ordinal in free] or outdated
    if not due or not is_whole(cluster):
        return None
    leader = None if cluster.ring is None else cluster.ring.metadata_leader
    pod = min(due, key=lambda pod: (pod.ordinal == leader, pod.ordinal))
    if not ready_ordinals(cluster) >= set(range(pod_count(cluster))) - {pod.ordinal}:
        return None  # the budget counts brokers that join or leave too
    if claim := going.get(pod.ordinal):
        copies = copies_elsewhere(cluster, pod.ordinal)
        return ReplaceVolume(pod.ordinal, pod.uid, claim.name, copies)
    return _restarted(cluster, pod)


def _restarted(cluster: Cluster, pod: Pod, cause: str = "") -> RestartBroker:
    """With the first field in which its template differs from the wanted one."""
    wanted = children(cluster)[ChildName("StatefulSet", cluster.owner.name)]["spec"]["template"]
    # A gate is gone when a pod is placed.
    spec = {name: each for name, each in wanted["spec"].items() if name != "schedulingGates"}
    templates = ({"spec": {"template": each}} for each in ({**wanted, "spec": spec}, pod.template))
    found = drift(*templates) if pod.template else None
    what = "" if found is None else f": {changed_words(found)}"
    return RestartBroker(pod.ordinal, pod.uid, f"pod template changed{what}{cause}")


def _broken(cluster: Cluster, outdated: list[Pod]) -> Pod | None:
    """One that a restart takes nothing from: no range needs its copies now.

    A pod that runs and does not serve may wait for a broker that is on its way: it goes when none
    is, or when no broker serves at all, as after settings with which none of them can.
    """
    running, ready = running_ordinals(cluster), ready_ordinals(cluster)
    down = [pod for pod in outdated if pod.ordinal not in running]
    if down or len(running) < broker_count(cluster):
        return down[0] if down else None
    waiting = [
        pod for pod in outdated if pod.ordinal not in ready and not is_needed(cluster, pod.ordinal)
    ]
    others_away = set(away_ordinals(cluster)) - {pod.ordinal for pod in waiting}
    return waiting[0] if waiting and (not ready or not others_away) else None
