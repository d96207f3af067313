"""What is found of a StreamCluster, in order: why it is not ready, what is wrong or under way.

Each condition, and the column STATUS, shows the first finding that decides it: `findings` alone
says which comes before which.
"""

from collections.abc import Iterator

from tailrace_operator.plan.actions import (
    REPLACED,
    Action,
    Blocked,
    ReplaceVolume,
    RestartBroker,
    RetireBroker,
    StepRing,
    words_of,
)
from tailrace_operator.plan.conditions import (
    DEGRADED,
    NOT_READY,
    STANDS,
    UNDER_WAY,
    Finding,
    paused_finding,
)
from tailrace_operator.plan.facts import (
    IN_SYNC_MIN,
    OF_ANOTHER_RING,
    answered_ordinals,
    away_ordinals,
    behind_ordinals,
    broker_count,
    deleting_claims,
    is_founded,
    is_recorded,
    obstacle,
    outdated_pods,
    ready_ordinals,
    running_ordinals,
    update_revision,
    wanted_claims,
    wanted_pods,
)
from tailrace_operator.plan.names import selector_labels
from tailrace_operator.plan.observed import ChildName, Claim, Cluster, Ring
from tailrace_operator.plan.scaling import progress as scaling_progress
from tailrace_operator.plan.zones import is_balanced

CANNOT_GROW = "VolumesCannotGrow"  # of a `Blocked` with which all is served, in smaller volumes
DATA_AT_RISK = "DataAtRisk"
INTERNAL_ERROR = "InternalError"  # of the operator itself, about this resource
RETRYING = "Retrying"  # an error that persists
# Those that a person should hear of; others end without help most of the time.
WARNED = {
    DATA_AT_RISK,
    "VolumeDeleting",
    "VolumeFails",
    "PodNotCreated",
    "BrokerFails",
    "TemplateRefused",
    INTERNAL_ERROR,
}


def findings(cluster: Cluster, action: Action | None, error: str | None) -> Iterator[Finding]:
    """Return all of them, the first thing first. `error`: why the last try failed."""
    if cluster.owner.is_deleting:
        message = "all that belongs to it is being deleted"
        yield Finding("Deleting", message, NOT_READY | UNDER_WAY, "Deleting")
    if cluster.owner.is_paused:
        yield Finding("Paused", "reconciliation is paused", STANDS, "Paused")
    if error is not None:
        yield Finding(RETRYING, error, UNDER_WAY, f"Retrying: {error}")
    done = None if action is None else _of_action(action)
    is_harmless = done is not None and done.reason == CANNOT_GROW
    if done is not None and not is_harmless:
        yield done
    problems = [*_problems(cluster)]
    for each in problems:
        if each.reason == DATA_AT_RISK:
            yield each._replace(means={})  # STATUS says it before what is waited for
    if (cause := _waited_for(cluster, action)) is not None:
        yield cause
    yield from problems
    if error is not None:  # a step that cannot be taken leaves the ring as it is
        steps = isinstance(action, StepRing | RetireBroker)
        yield Finding(RETRYING, error, DEGRADED if steps else NOT_READY | DEGRADED)
    if done is not None and is_harmless:
        yield done._replace(means=DEGRADED, phase="")
    yield from _under_way(cluster)
    if done is not None and is_harmless:
        yield done._replace(means=STANDS)
    yield from _well(cluster)


def subject(message: str) -> str:
    """What a problem's message is about, without details that may be others each time."""
    return ": ".join(_first(message).split(": ")[:2])


def _first(message: str) -> str:
    """Return what fits a column: not the remedy."""
    return message.partition("; ")[0]


def _of_action(action: Action) -> Finding:
    words = words_of(action)
    if not isinstance(action, Blocked):
        return Finding(words.reason, words.text, UNDER_WAY)
    means, word = NOT_READY | STANDS | DEGRADED, "Blocked"
    if action.reason == REPLACED:
        means, word = NOT_READY | UNDER_WAY, "Waiting"
    return Finding(words.reason, words.text, means, f"{word}: {_first(words.text)}")


# --- why the ring does not serve ------------------------------------------------------------------


def _waited_for(cluster: Cluster, action: Action | None) -> Finding | None:
    """None: the ring serves, all of it.

    A restart that begins is no reason yet not to be ready: the API server may hold the pod.
    """
    away, count, ring = away_ordinals(cluster), broker_count(cluster), cluster.ring
    if isinstance(action, RestartBroker):
        begins = _restarting(cluster, action.ordinal, begun=1)
        return begins if away else begins._replace(means=UNDER_WAY)
    if isinstance(action, ReplaceVolume):
        return _replacing(action.ordinal)
    if is_recorded(cluster) and away:
        before = str(cluster.status.get("phase", ""))
        if _first(before) == _replacing(away[0]).phase:
            return _replacing(away[0], _why(cluster))
        if outdated_pods(cluster) or before.startswith(f"Restarting broker {away[0]} ("):
            return _restarting(cluster, away[0], begun=0)
    running = len(running_ordinals(cluster) & set(range(count)))
    if running < count:
        return _waiting("Starting", f"{running} of {count} brokers run{_why(cluster)}", "Starting")
    if not is_recorded(cluster):
        message = f"the ring of {count} brokers is being founded"
        return Finding("Founding", message, NOT_READY | UNDER_WAY, "Founding")
    if away:
        message = f"{count - len(away)} of {count} brokers are ready{_why(cluster)}"
        return _waiting("Starting", message, "Starting")
    lost = () if ring is None else lost_data(ring.all_lost)
    unserved = (*_unheard(cluster), *lost, *_of_ring(ring))
    return next((_waiting(each.reason, each.message) for each in unserved), None)


def _waiting(reason: str, message: str, word: str = "Waiting") -> Finding:
    return Finding(reason, message, NOT_READY | UNDER_WAY, f"{word}: {message}")


def _replacing(ordinal: int, why: str = "") -> Finding:
    message = f"broker {ordinal} restarts on a new volume{why}"
    phase = f"Replacing the volume of broker {ordinal}{why}"
    return Finding("ReplacingVolume", message, NOT_READY | UNDER_WAY, phase)


def _restarting(cluster: Cluster, ordinal: int, *, begun: int) -> Finding:
    """`begun`: 1 for a restart that begins now, whose pod is still an outdated one."""
    count = broker_count(cluster)
    number = count - len(outdated_pods(cluster)) + begun
    why = "" if begun else _why(cluster)
    message = f"broker {ordinal} restarts; {number} of {count} in turn{why}"
    phase = f"Restarting broker {ordinal} ({number} of {count}){why}"
    return Finding("Restarting", message, NOT_READY | UNDER_WAY, phase)


def _why(cluster: Cluster) -> str:
    """Behind what is waited for: why pods do not run, as far as Kubernetes says it."""
    return next((f"; {each.message}" for each in _of_pods(cluster)), "")


# --- what is wrong --------------------------------------------------------------------------------


def _wrong(reason: str, message: str) -> Finding:
    return Finding(reason, message, NOT_READY | DEGRADED, f"Degraded: {_first(message)}")


def _problems(cluster: Cluster) -> Iterator[Finding]:
    """The worst first."""
    name, ring = cluster.owner.name, cluster.ring
    if ring is not None:
        yield from lost_data(ring.all_lost)
    for claim in deleting_claims(cluster):
        yield _deleting(cluster, claim)
    yield from _of_pods(cluster)
    if cluster.stored_spec is None and outdated_pods(cluster):
        yield _wrong(
            "TemplateRefused",
            f"the API server refuses the spec of StatefulSet {name}, which an admission policy may "
            "do; no broker is restarted until it takes it",
        )
    live = cluster.children.get(ChildName("Service", name))
    selector = None if live is None else live.get("spec", {}).get("selector")
    if is_recorded(cluster) and selector != selector_labels(name):
        yield _wrong("ServiceBroken", f"Service {name} does not lead to the brokers")
    yield from _of_ring(ring)
    if not is_recorded(cluster):
        return
    for ordinal in sorted(answered_ordinals(cluster, state=OF_ANOTHER_RING)):
        yield _wrong(
            "AnotherRing",
            f"broker {ordinal} is on a volume of another ring; give it its own back, or delete the "
            "claim and the pod for an empty one",
        )
    if away := away_ordinals(cluster):
        numbers = ", ".join(map(str, away))
        yield _wrong("BrokersAway", f"brokers that do not serve: {numbers}")
    else:
        yield from _unheard(cluster)


def lost_data(lost: tuple[tuple[int, str], ...]) -> Iterator[Finding]:
    """Of ranges that only a person can let go on."""
    if lost:
        ranges = ", ".join(f"range {number} {what}" for number, what in lost)
        each = _wrong(DATA_AT_RISK, f"{ranges}; see tailrace ring accept-loss")
        yield each._replace(phase=f"Data at risk: {each.message}")


def _deleting(cluster: Cluster, claim: Claim) -> Finding:
    """With what happens next, and the command that keeps the data."""
    pod, why = f"{cluster.owner.name}-{claim.ordinal}", obstacle(cluster, claim)
    advice = "the broker gets a new one when all brokers serve and all copies are there"
    if why is not None:
        advice = f"it is not replaced: {why}; leave that pod alone"
    return _wrong(
        "VolumeDeleting",
        f"volume {claim.name} is being deleted, and goes when pod {pod} ends; {advice}; to keep "
        f"its data: kubectl patch pv {claim.volume or 'NAME'} -p "
        '\'{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}\'',
    )


def _of_pods(cluster: Cluster) -> Iterator[Finding]:
    for claim in wanted_claims(cluster):
        if claim.problem is not None:
            yield _wrong("VolumeFails", f"{claim.name}: {claim.problem}")
    if cluster.pod_refusal is not None:
        yield _wrong("PodNotCreated", f"a pod cannot be created: {cluster.pod_refusal}")
    for pod in wanted_pods(cluster):
        if pod.problem is not None and not pod.is_deleting:
            yield _wrong("BrokerFails", f"broker {pod.ordinal}: {pod.problem}")


def _of_ring(ring: Ring | None) -> Iterator[Finding]:
    """What keeps it from serving, or from going on without a broker."""
    if ring is None:
        return
    yield from unserved(ring, IN_SYNC_MIN)
    if ring.cluster_id is not None and ring.metadata_leader is None:
        yield _wrong(
            "NoMetadataLeader",
            "no broker leads the metadata, so that leaders, replicas and topics cannot change: "
            "most voters are away, or do not reach each other; if their disks are lost for good, "
            "see tailrace metadata recover",
        )


def unserved(ring: Ring, minimum: int) -> Iterator[Finding]:
    """Of ranges that take no events: they have no leader, or too few replicas in sync."""
    if ring.leaderless:
        yield _wrong("Leaderless", f"ranges without a leader: {ring.leaderless}")
    if short := ring.short_of(minimum):
        enough = min(minimum, ring.copies)
        message = f"ranges with fewer than {enough} copies in sync, which take no events: {short}"
        yield _wrong("NotEnoughReplicas", message)


def _unheard(cluster: Cluster) -> Iterator[Finding]:
    """Of a ring whose brokers all serve, as Kubernetes sees them."""
    if cluster.ring is None:
        yield _wrong("Unreachable", "no broker answers the operator")
    elif not is_founded(cluster):
        yield _wrong("AnotherRing", "the brokers are not in the ring that was founded here")


# --- what is under way while the ring serves ------------------------------------------------------


def _under_way(cluster: Cluster) -> Iterator[Finding]:
    if lacking := _lacking(cluster):
        yield Finding("UnderReplicated", lacking, DEGRADED)
        yield Finding("CatchingUp", lacking, UNDER_WAY, f"Catching up: {lacking}")
    if scaling := scaling_progress(cluster):
        yield Finding(*scaling, UNDER_WAY, ": ".join(scaling))
    claims = wanted_claims(cluster)
    names = [claim.name for claim in claims if claim.capacity_bytes < claim.requested_bytes]
    if names:
        message = f"volumes that are not as large yet as asked for: {', '.join(names)}"
        yield Finding("UpdatingVolumes", message, UNDER_WAY)
    if update_revision(cluster) is None:
        what = "Kubernetes has not taken its template over yet"
        yield Finding("Updating", f"StatefulSet {cluster.owner.name}: {what}", UNDER_WAY)
    if outdated := outdated_pods(cluster):
        numbers = ", ".join(str(pod.ordinal) for pod in outdated)
        message = f"brokers that may not be restarted yet: {numbers}"
        yield Finding("Updating", message, UNDER_WAY)


def _lacking(cluster: Cluster) -> str:
    """Return which brokers lack something, and what is done about it.

    Ranges that are sealed lack copies longer, after a disk was lost: they are copied last.
    """
    ring, ready = cluster.ring, ready_ordinals(cluster)
    if ring is None or not (ring.under_replicated or ring.sealed_short):
        return ""
    if not ring.under_replicated:
        short = f"sealed ranges with fewer than {ring.copies} whole copies: {ring.sealed_short}"
        return f"{short}; brokers copy them from each other"
    brokers = []
    for ordinal in behind_ordinals(cluster):
        disk = ", on a new disk," if ordinal in ring.new_disks else ""
        gets = f"{disk} gets what it lacks from the others" if ordinal in ready else " is away"
        brokers.append(f"broker {ordinal}{gets}")
    return (
        f"{ring.under_replicated} of {len(ring.ranges)} ranges have fewer than {ring.copies} "
        f"copies in sync: {', '.join(brokers)}"
    )


# --- what is well ---------------------------------------------------------------------------------


def _well(cluster: Cluster) -> Iterator[Finding]:
    """What is left to say of each condition."""
    count, ring = broker_count(cluster), cluster.ring
    copies = ""
    if ring is not None and ring.copies == 1:
        copies = "; 1 copy of each event"
    elif ring is not None:
        whole, all_ = len(ring.ranges) - ring.under_replicated, len(ring.ranges)
        copies = f"; {ring.copies} copies of each event, all in sync in {whole} of {all_} ranges"
    message = f"{count} of {count} brokers serve{copies}"
    yield Finding("BrokersReady", message, {"Ready": True}, "Ready")
    yield Finding("UpToDate", "all is as the spec says", STANDS)
    yield Finding("AsExpected", "nothing is wrong", {"Degraded": False})
    yield paused_finding(is_paused=cluster.owner.is_paused)
    if is_balanced(count):
        yield Finding("EqualShares", "each range has the same share of keys", {"Balanced": True})
    message = "some ranges have twice the keys of others; rings of 3, 6, 12, … brokers are balanced"
    yield Finding("UnequalShares", message, {"Balanced": False})
