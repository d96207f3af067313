"""What is reported of a StreamCluster: its phase, in a column, and its conditions.

It is made from the observation and the action that follows from it. Fields that were once known
stay, so that writing it is a merge; `topic_status.py` does the same for a Topic.
"""

from dataclasses import dataclass
from typing import Any

from tailrace_operator.plan.actions import (
    REPLACED,
    Blocked,
    ClusterAction,
    RecordFounding,
    RestartBroker,
    described,
)
from tailrace_operator.plan.conditions import Condition, condition_documents, paused_condition
from tailrace_operator.plan.facts import (
    away_ordinals,
    broker_count,
    is_founded,
    outdated_pods,
    ready_ordinals,
    running_ordinals,
    wanted_claims,
    wanted_pods,
)
from tailrace_operator.plan.names import selector_text
from tailrace_operator.plan.observed import Cluster, Document, Pod
from tailrace_operator.plan.zones import is_balanced

PHASE_MAX = 200


@dataclass(frozen=True, slots=True)
class _Cause:
    """Why the ring does not serve: `reason` for programs, `phase` for the column."""

    reason: str
    phase: str
    message: str


def cluster_status(
    cluster: Cluster,
    action: ClusterAction | None,
    *,
    now: str,
    error: str | None,
) -> Document:
    """The whole status. `now`: as in RFC 3339; `error`: why the last try failed.

    With a RecordFounding it is the record.
    """
    cause = _waits_for(cluster, action)
    owner, ring = cluster.owner, cluster.ring
    known: dict[str, Any] = {}
    if ring is not None:
        known = {"copies": ring.copies, "version": ring.version, "clusterId": ring.cluster_id}
    count = broker_count(cluster)
    return {
        **cluster.status,
        **{name: value for name, value in known.items() if value is not None},
        **_founded(cluster, action),
        "observedGeneration": owner.generation,
        "phase": _phase(cluster, action, error, cause)[:PHASE_MAX],
        "brokers": count,
        "readyBrokers": len(ready_ordinals(cluster)),
        "balanced": str(is_balanced(count)),
        "zones": len({pod.zone for pod in wanted_pods(cluster)} - {None}),
        "image": cluster.image,
        "selector": selector_text(owner.name),
        "conditions": condition_documents(
            (
                _ready(cluster, cause),
                _progressing(cluster, action, error, cause),
                _degraded(cluster, action, error),
                _balanced(count),
                paused_condition(is_paused=owner.is_paused),
            ),
            cluster.status,
            generation=owner.generation,
            now=now,
        ),
    }


def invalid_status(resource: Document, problem: str, *, now: str) -> Document:
    """Return the status of either kind whose spec is invalid; what was once known stays."""
    status: Document = resource.get("status") or {}
    generation = resource["metadata"]["generation"]
    ready = Condition("Ready", False, "InvalidSpec", problem)
    others = [
        condition for condition in status.get("conditions") or () if condition["type"] != ready.type
    ]
    blocked = {"phase": f"Blocked: {problem}"[:PHASE_MAX]}
    return {
        **status,
        **(blocked if resource["kind"] == "StreamCluster" else {}),
        "observedGeneration": generation,
        "conditions": [
            *condition_documents((ready,), status, generation=generation, now=now),
            *others,
        ],
    }


# --- why the ring does not serve ------------------------------------------------------------------


def _waits_for(cluster: Cluster, action: ClusterAction | None) -> _Cause | None:
    """None: the ring serves, all of it."""
    if isinstance(action, RestartBroker):
        return _restarting(cluster, action.ordinal, begun=1)
    count, ring = broker_count(cluster), cluster.ring
    running, ready = len(running_ordinals(cluster)), len(ready_ordinals(cluster))
    is_recorded = _is_recorded(cluster)
    if is_recorded and ready < count:
        away = away_ordinals(cluster)[0]
        before = str(cluster.status.get("phase", ""))
        if outdated_pods(cluster) or before.startswith(f"Restarting broker {away} ("):
            return _restarting(cluster, away, begun=0)
    if running < count:
        return _starting(f"{running} of {count} brokers run{_first_problem(cluster)}")
    if not is_recorded:
        return _Cause("Founding", "Founding", f"the ring of {count} brokers is being founded")
    if ready < count:
        return _starting(f"{ready} of {count} brokers are ready")
    if ring is None:
        return _waiting("Unreachable", "no broker answers the operator")
    if not is_founded(cluster):
        return _waiting("AnotherRing", "the brokers are not in the ring that was founded here")
    if ring.leaderless:
        return _waiting("Leaderless", f"ranges without a leader: {ring.leaderless}")
    return None


def _is_recorded(cluster: Cluster) -> bool:
    return cluster.founded is not None and cluster.founded.cluster_id is not None


def _starting(message: str) -> _Cause:
    return _Cause("Starting", f"Starting: {message.partition('; ')[0]}", message)


def _waiting(reason: str, message: str) -> _Cause:
    return _Cause(reason, f"Waiting: {message}", message)


def _restarting(cluster: Cluster, ordinal: int, *, begun: int) -> _Cause:
    """`begun`: 1 for a restart that begins now, whose pod is still an outdated one."""
    count = broker_count(cluster)
    number = count - len(outdated_pods(cluster)) + begun
    phase = f"Restarting broker {ordinal} ({number} of {count})"
    return _Cause("Restarting", phase, f"broker {ordinal} restarts; {number} of {count} in turn")


def _first_problem(cluster: Cluster) -> str:
    if not wanted_pods(cluster):
        return f"; no pod is there, kubectl describe statefulset {cluster.owner.name} may say why"
    problems = (f"; broker {pod.ordinal}: {pod.problem}" for pod in _with_problems(cluster))
    return next(problems, "")


def _with_problems(cluster: Cluster) -> list[Pod]:
    return [pod for pod in wanted_pods(cluster) if pod.problem is not None]


def _phase(
    cluster: Cluster, action: ClusterAction | None, error: str | None, cause: _Cause | None
) -> str:
    if cluster.owner.is_deleting:
        return "Deleting"
    if cluster.owner.is_paused:
        return "Paused"
    if error is not None:
        return f"Retrying: {error}"
    if isinstance(action, Blocked):
        word = "Waiting" if action.reason == REPLACED else "Blocked"
        return f"{word}: {action.message.partition('; ')[0]}"
    return "Ready" if cause is None else cause.phase


# --- conditions -----------------------------------------------------------------------------------


def _ready(cluster: Cluster, cause: _Cause | None) -> Condition:
    if cause is not None:
        return Condition("Ready", False, cause.reason, cause.message)
    count = broker_count(cluster)
    copies = 1 if cluster.ring is None else cluster.ring.copies
    of_each = f"{copies} {'copy' if copies == 1 else 'copies'} of each event"
    return Condition(
        "Ready", True, "AllBrokersServe", f"{count} of {count} brokers serve; {of_each}"
    )


def _progressing(
    cluster: Cluster, action: ClusterAction | None, error: str | None, cause: _Cause | None
) -> Condition:
    """Return the condition: something is under way."""
    holds, reason, message = True, "", ""
    if cluster.owner.is_deleting:
        reason, message = "Deleting", "all that belongs to it is being deleted"
    elif cluster.owner.is_paused:
        holds, reason, message = False, "Paused", "reconciliation is paused"
    elif error is not None:
        reason, message = "Retrying", error
    elif isinstance(action, Blocked):
        holds, reason, message = action.reason == REPLACED, action.reason, action.message
    elif action is not None:
        reason, message = type(action).__name__, described(action)
    elif cause is not None:
        reason, message = cause.reason, cause.message
    elif growing := _growing(cluster):
        reason, message = "VolumesGrow", growing
    else:
        holds, reason, message = False, "AsSpecified", "all is as the spec says"
    return Condition("Progressing", holds, reason, message)


def _growing(cluster: Cluster) -> str:
    claims = wanted_claims(cluster)
    names = [claim.name for claim in claims if claim.capacity_bytes < claim.requested_bytes]
    return f"volumes that are not as large yet as asked for: {', '.join(names)}" if names else ""


def _degraded(cluster: Cluster, action: ClusterAction | None, error: str | None) -> Condition:
    """Return the condition: something is wrong; it may heal, or wait for a person."""
    ring = cluster.ring
    reason, message = "", ""
    if isinstance(action, Blocked) and action.reason != REPLACED:
        reason, message = action.reason, action.message
    elif pods := _with_problems(cluster):
        reason, message = "BrokerFails", f"broker {pods[0].ordinal}: {pods[0].problem}"
    elif claims := [
        wanted_claim for wanted_claim in wanted_claims(cluster) if wanted_claim.problem is not None
    ]:
        reason, message = "VolumeFails", f"{claims[0].name}: {claims[0].problem}"
    elif ring is not None and ring.leaderless:
        reason, message = "Leaderless", f"ranges without a leader: {ring.leaderless}"
    elif ring is not None and ring.under_replicated:
        reason, message = "UnderReplicated", f"ranges that lack a replica: {ring.under_replicated}"
    elif _is_recorded(cluster) and (away := away_ordinals(cluster)):
        numbers = ", ".join(map(str, away))
        reason, message = "BrokersAway", f"brokers that do not serve: {numbers}"
    elif error is not None:
        reason, message = "Retrying", error
    else:
        return Condition("Degraded", False, "AsExpected", "nothing is wrong")
    return Condition("Degraded", True, reason, message)


def _balanced(count: int) -> Condition:
    if is_balanced(count):
        return Condition("Balanced", True, "EqualShares", "each range has the same share of keys")
    message = "some ranges have twice the keys of others; rings of 3, 6, 12, … brokers are balanced"
    return Condition("Balanced", False, "UnequalShares", message)


def _founded(cluster: Cluster, action: ClusterAction | None) -> dict[str, Any]:
    """Return the ring that is recorded, or is to be."""
    record = action if isinstance(action, RecordFounding) else cluster.founded
    if record is None:
        return {}
    of_ring = {} if record.cluster_id is None else {"clusterId": record.cluster_id}
    return {"founded": {"brokers": record.broker_count, **of_ring}}
