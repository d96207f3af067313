"""What is wrong with a StreamCluster, the worst first. Pure.

`Degraded` is the first of them; with any that is not harmless the ring is not `Ready`.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tailrace_operator.plan.actions import REPLACED, Action, Blocked
from tailrace_operator.plan.facts import (
    IN_SYNC_MIN,
    OF_ANOTHER_RING,
    answered_ordinals,
    away_ordinals,
    behind_ordinals,
    deleting_claims,
    is_founded,
    is_recorded,
    obstacle,
    outdated_pods,
    ready_ordinals,
    wanted_claims,
    wanted_pods,
)
from tailrace_operator.plan.names import selector_labels
from tailrace_operator.plan.observed import ChildName, Claim, Cluster, Ring

# All is served with them: with fewer copies, or in volumes as large as before.
HARMLESS = frozenset({"UnderReplicated", "VolumesCannotGrow"})
INTERNAL_ERROR = "InternalError"  # of the operator itself, about this resource
RETRYING = "Retrying"  # an error that persists
# Those that a person should hear of; others end without help most of the time.
WARNED = frozenset(
    {
        "DataAtRisk",
        "VolumeDeleting",
        "VolumeFails",
        "PodNotCreated",
        "BrokerFails",
        "TemplateRefused",
    }
    | {INTERNAL_ERROR}
)


class Problem(NamedTuple):
    """`reason`: a word for programs; `message`: for people, with the remedy if it needs one."""

    reason: str
    message: str


def first_problem(cluster: Cluster, action: Action | None, error: str | None) -> Problem | None:
    """None: nothing is wrong."""
    return next(_problems(cluster, action, error), None)


def cause_of_start(cluster: Cluster) -> Problem | None:
    """Why pods do not run, as far as Kubernetes says it."""
    return next(_of_pods(cluster), None)


def _problems(cluster: Cluster, action: Action | None, error: str | None) -> Iterator[Problem]:
    """All of them; those with which all is served come last."""
    ring = cluster.ring
    blocked = None
    if isinstance(action, Blocked) and action.reason != REPLACED:
        blocked = Problem(action.reason, action.message)
    if blocked is not None and blocked.reason not in HARMLESS:
        yield blocked
    if ring is not None and (lost := ring.all_lost):
        yield lost_data(lost)
    for claim in deleting_claims(cluster):
        yield _deleting(cluster, claim)
    yield from _of_pods(cluster)
    if cluster.stored_spec is None and outdated_pods(cluster):
        yield Problem(
            "TemplateRefused",
            f"the API server refuses the spec of StatefulSet {cluster.owner.name}, which an "
            "admission policy may do; no broker is restarted until it takes it",
        )
    if is_recorded(cluster) and not _is_reachable(cluster):
        yield Problem("ServiceBroken", f"Service {cluster.owner.name} does not lead to the brokers")
    if ring is not None:
        yield from of_ring(ring)
    if is_recorded(cluster):
        yield from _of_brokers(cluster)
    if error is not None:
        yield Problem(RETRYING, error)
    if blocked is not None and blocked.reason in HARMLESS:
        yield blocked
    if ring is not None and (ring.under_replicated or ring.sealed_short):
        yield under_replicated(cluster, ring)


def _deleting(cluster: Cluster, claim: Claim) -> Problem:
    """With what happens next, and the command that keeps the data."""
    pod, why = f"{cluster.owner.name}-{claim.ordinal}", obstacle(cluster, claim)
    advice = "the broker gets a new one when all brokers serve and all copies are there"
    if why is not None:
        advice = f"it is not replaced: {why}; leave that pod alone"
    return Problem(
        "VolumeDeleting",
        f"volume {claim.name} is being deleted, and goes when pod {pod} ends; {advice}; to keep "
        f"its data: kubectl patch pv {claim.volume or 'NAME'} -p "
        '\'{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}\'',
    )


def subject(message: str) -> str:
    """What a problem's message is about, without details that may be others each time."""
    return ": ".join(message.partition("; ")[0].split(": ")[:2])


def lost_data(lost: tuple[tuple[int, str], ...]) -> Problem:
    """Of ranges that only a person can let go on."""
    ranges = ", ".join(f"range {number} {what}" for number, what in lost)
    return Problem("DataAtRisk", f"{ranges}; see tailrace ring accept-loss")


def of_ring(ring: Ring) -> Iterator[Problem]:
    """What keeps it from serving, or from going on without a broker."""
    yield from unserved(ring)
    if ring.cluster_id is not None and ring.metadata_leader is None:
        yield Problem(
            "NoMetadataLeader",
            "no broker leads the metadata, so that leaders, replicas and topics cannot change: "
            "most voters are away, or do not reach each other; if their disks are lost for good, "
            "see tailrace metadata recover",
        )


def unserved(ring: Ring, minimum: int = IN_SYNC_MIN) -> Iterator[Problem]:
    """Of ranges that take no events: they have no leader, or too few replicas in sync."""
    if ring.leaderless:
        yield Problem("Leaderless", f"ranges without a leader: {ring.leaderless}")
    if short := ring.short_of(minimum):
        enough = min(minimum, ring.copies)
        message = f"ranges with fewer than {enough} copies in sync, which take no events: {short}"
        yield Problem("NotEnoughReplicas", message)


def under_replicated(cluster: Cluster, ring: Ring) -> Problem:
    """With the brokers that lack something, and what is done about it.

    Ranges that are sealed lack copies longer, after a disk was lost: they are copied last.
    """
    if not ring.under_replicated:
        short = f"sealed ranges with fewer than {ring.copies} whole copies: {ring.sealed_short}"
        return Problem("UnderReplicated", f"{short}; brokers copy them from each other")
    ready = ready_ordinals(cluster)

    def what(ordinal: int) -> str:
        if ordinal not in ready:
            return f"broker {ordinal} is away"
        disk = ", on a new disk," if ordinal in ring.new_disks else ""
        return f"broker {ordinal}{disk} gets what it lacks from the others"

    brokers = ", ".join(map(what, behind_ordinals(cluster)))
    count = len(ring.ranges)
    return Problem(
        "UnderReplicated",
        f"{ring.under_replicated} of {count} ranges have fewer than {ring.copies} copies in sync: "
        f"{brokers}",
    )


def _of_pods(cluster: Cluster) -> Iterator[Problem]:
    for claim in wanted_claims(cluster):
        if claim.problem is not None:
            yield Problem("VolumeFails", f"{claim.name}: {claim.problem}")
    if cluster.pod_refusal is not None:
        yield Problem("PodNotCreated", f"a pod cannot be created: {cluster.pod_refusal}")
    for pod in wanted_pods(cluster):
        if pod.problem is not None and not pod.is_deleting:
            yield Problem("BrokerFails", f"broker {pod.ordinal}: {pod.problem}")


def _of_brokers(cluster: Cluster) -> Iterator[Problem]:
    for ordinal in sorted(answered_ordinals(cluster, state=OF_ANOTHER_RING)):
        yield Problem(
            "AnotherRing",
            f"broker {ordinal} is on a volume of another ring; give it its own back, or delete the "
            "claim and the pod for an empty one",
        )
    if away := away_ordinals(cluster):
        numbers = ", ".join(map(str, away))
        yield Problem("BrokersAway", f"brokers that do not serve: {numbers}")
    elif cluster.ring is None:
        yield Problem("Unreachable", "no broker answers the operator")
    elif not is_founded(cluster):
        yield Problem("AnotherRing", "the brokers are not in the ring that was founded here")


def _is_reachable(cluster: Cluster) -> bool:
    """Whether the clients' Service selects the brokers."""
    live = cluster.children.get(ChildName("Service", cluster.owner.name))
    selector = selector_labels(cluster.owner.name)
    return live is not None and live.get("spec", {}).get("selector") == selector
