"""What is reported of a StreamCluster: its phase, in a column, and its conditions.

It is made from the observation and the action that follows from it. Fields that were once known
stay, so that writing it is a merge; `topic_status.py` does the same for a Topic.
"""

from dataclasses import dataclass
from typing import Any

from tailrace_operator.plan.actions import (
    REPLACED,
    Action,
    Blocked,
    RecordFounding,
    ReplaceVolume,
    RestartBroker,
    RetireBroker,
    StepRing,
    described,
    progress_reason,
)
from tailrace_operator.plan.conditions import Condition, condition_documents, paused_condition
from tailrace_operator.plan.facts import (
    away_ordinals,
    broker_count,
    is_founded,
    is_recorded,
    outdated_pods,
    ready_ordinals,
    running_ordinals,
    update_revision,
    wanted_claims,
    wanted_pods,
)
from tailrace_operator.plan.listeners import listener_count
from tailrace_operator.plan.names import selector_text
from tailrace_operator.plan.observed import Cluster, Document, Ring
from tailrace_operator.plan.problems import (
    HARMLESS,
    INTERNAL_ERROR,
    RETRYING,
    Problem,
    cause_of_start,
    first_problem,
    lost_data,
    of_ring,
    under_replicated,
)
from tailrace_operator.plan.scaling import progress as scaling_progress
from tailrace_operator.plan.zones import is_balanced

PHASE_MAX = 200
_RESTARTING = "Restarting"


@dataclass(frozen=True, slots=True)
class _Cause:
    """Why the ring does not serve: `reason` for programs, `phase` for the column."""

    reason: str
    phase: str
    message: str


def cluster_status(
    cluster: Cluster,
    action: Action | None,
    *,
    now: str,
    error: str | None,
) -> Document:
    """The whole status. `now`: as in RFC 3339; `error`: why the last try failed.

    With a RecordFounding it is the record.
    """
    cause = _waits_for(cluster, action)
    problem = first_problem(cluster, action, error)
    owner, ring = cluster.owner, cluster.ring
    known: dict[str, Any] = {}
    if ring is not None:
        known = {"copies": ring.copies, "version": ring.version, "clusterId": ring.cluster_id}
    count = broker_count(cluster)
    ready_count = len(ready_ordinals(cluster))
    return {
        **{name: each for name, each in cluster.status.items() if name != "plan"},
        **{name: value for name, value in known.items() if value is not None},
        **({} if cluster.plan is None else {"plan": cluster.plan}),
        **_founded(cluster, action),
        "observedGeneration": owner.generation,
        "phase": _phase(cluster, action, error, cause, problem)[:PHASE_MAX],
        "brokers": count,
        "readyBrokers": ready_count,
        "balanced": str(is_balanced(count)),
        "zones": len({pod.zone for pod in wanted_pods(cluster)} - {None}),
        "image": cluster.image,
        "listeners": listener_count(cluster),
        "selector": selector_text(owner.name),
        "conditions": condition_documents(
            (
                _ready(cluster, action, cause, problem),
                _progressing(cluster, action, error, cause),
                _degraded(problem),
                _balanced(count),
                paused_condition(is_paused=owner.is_paused),
            ),
            cluster.status,
            generation=owner.generation,
            now=now,
        ),
    }


def broken_status(resource: Document, reason: str, message: str, *, now: str) -> Document:
    """Of either kind, when nothing can be planned for it; what was once known stays."""
    status: Document = resource.get("status") or {}
    generation = resource["metadata"]["generation"]
    is_cluster = resource["kind"] == "StreamCluster"
    holds = {"Ready": False, **({"Degraded": True} if is_cluster else {})}
    said = [Condition(kind, each, reason, message) for kind, each in holds.items()]
    others = [each for each in status.get("conditions") or () if each["type"] not in holds]
    word = {INTERNAL_ERROR: "Failed", RETRYING: RETRYING}.get(reason, "Blocked")
    return {
        **status,
        **({"phase": f"{word}: {message}"[:PHASE_MAX]} if is_cluster else {}),
        "observedGeneration": generation,
        "conditions": [
            *condition_documents(said, status, generation=generation, now=now),
            *others,
        ],
    }


# --- why the ring does not serve ------------------------------------------------------------------


def _waits_for(cluster: Cluster, action: Action | None) -> _Cause | None:
    """None: the ring serves, all of it."""
    if isinstance(action, RestartBroker):
        return _restarting(cluster, action.ordinal, begun=1)
    if isinstance(action, ReplaceVolume):
        return _replacing(action.ordinal)
    count, ring = broker_count(cluster), cluster.ring
    everyone = set(range(count))
    running, ready = (
        len(each & everyone) for each in (running_ordinals(cluster), ready_ordinals(cluster))
    )
    if is_recorded(cluster) and ready < count:
        away = away_ordinals(cluster)[0]
        before = str(cluster.status.get("phase", ""))
        if before.partition("; ")[0] == _replacing(away).phase:
            return _replacing(away, _why(cluster))
        if outdated_pods(cluster) or before.startswith(f"Restarting broker {away} ("):
            return _restarting(cluster, away, begun=0)
    if running < count:
        return _starting(cluster, f"{running} of {count} brokers run")
    if not is_recorded(cluster):
        return _Cause("Founding", "Founding", f"the ring of {count} brokers is being founded")
    if ready < count:
        return _starting(cluster, f"{ready} of {count} brokers are ready")
    if ring is None:
        return _waiting("Unreachable", "no broker answers the operator")
    if not is_founded(cluster):
        return _waiting("AnotherRing", "the brokers are not in the ring that was founded here")
    if lost := ring.all_lost:
        problem = lost_data(lost)
        return _Cause(problem.reason, f"Data at risk: {problem.message}", problem.message)
    return next((_waiting(*each) for each in of_ring(ring)), None)


def _catching_up(cluster: Cluster, cause: _Cause | None) -> Problem | None:
    """All brokers serve, and some get what they lack."""
    ring = cluster.ring
    if cause is not None or ring is None or not (ring.under_replicated or ring.sealed_short):
        return None
    return Problem("CatchingUp", under_replicated(cluster, ring).message)


def _starting(cluster: Cluster, message: str) -> _Cause:
    message += _why(cluster)
    return _Cause("Starting", f"Starting: {message}", message)


def _why(cluster: Cluster) -> str:
    """Behind what is waited for: the cause, as far as Kubernetes says it."""
    problem = cause_of_start(cluster)
    return "" if problem is None else f"; {problem.message}"


def _waiting(reason: str, message: str) -> _Cause:
    return _Cause(reason, f"Waiting: {message}", message)


def _replacing(ordinal: int, why: str = "") -> _Cause:
    message = f"broker {ordinal} restarts on a new volume{why}"
    return _Cause("ReplacingVolume", f"Replacing the volume of broker {ordinal}{why}", message)


def _restarting(cluster: Cluster, ordinal: int, *, begun: int) -> _Cause:
    """`begun`: 1 for a restart that begins now, whose pod is still an outdated one."""
    count = broker_count(cluster)
    number = count - len(outdated_pods(cluster)) + begun
    why = "" if begun else _why(cluster)
    phase = f"Restarting broker {ordinal} ({number} of {count}){why}"
    message = f"broker {ordinal} restarts; {number} of {count} in turn{why}"
    return _Cause(_RESTARTING, phase, message)


def _phase(
    cluster: Cluster,
    action: Action | None,
    error: str | None,
    cause: _Cause | None,
    problem: Problem | None,
) -> str:
    if cluster.owner.is_deleting:
        return "Deleting"
    if cluster.owner.is_paused:
        return "Paused"
    if error is not None:
        return f"Retrying: {error}"
    if isinstance(action, Blocked) and action.reason not in HARMLESS:
        return _blocked(action)
    if problem is not None and problem.reason == "DataAtRisk":
        return f"Data at risk: {problem.message}"
    if cause is not None:
        return cause.phase
    if problem is not None and problem.reason not in HARMLESS:
        return f"Degraded: {problem.message.partition('; ')[0]}"
    catching_up = _catching_up(cluster, cause)
    if catching_up is not None:
        return f"Catching up: {catching_up.message}"
    if scaling := scaling_progress(cluster):
        return ": ".join(scaling)
    return _blocked(action) if isinstance(action, Blocked) else "Ready"


def _blocked(action: Blocked) -> str:
    word = "Waiting" if action.reason == REPLACED else "Blocked"
    return f"{word}: {action.message.partition('; ')[0]}"


# --- conditions -----------------------------------------------------------------------------------


def _ready(
    cluster: Cluster, action: Action | None, cause: _Cause | None, problem: Problem | None
) -> Condition:
    """Never true with anything wrong, but for that with which all is served as before.

    A restart that begins is no reason yet: the API server may hold the pod.
    """
    if cluster.owner.is_deleting:
        return Condition("Ready", False, "Deleting", "all that belongs to it is being deleted")
    if isinstance(action, Blocked) and action.reason not in HARMLESS:
        return Condition("Ready", False, action.reason, action.message)
    is_announced = cause is not None and cause.reason == _RESTARTING and not away_ordinals(cluster)
    if cause is not None and not is_announced:
        return Condition("Ready", False, cause.reason, cause.message)
    scales = isinstance(action, StepRing | RetireBroker)  # and serves, whether it can or not
    harmless = HARMLESS | ({RETRYING} if scales else set())
    if problem is not None and problem.reason not in harmless:
        return Condition("Ready", False, *problem)
    count = broker_count(cluster)
    said = "" if cluster.ring is None else f"; {_copies(cluster.ring)}"
    return Condition("Ready", True, "BrokersReady", f"{count} of {count} brokers serve{said}")


def _copies(ring: Ring) -> str:
    if ring.copies == 1:
        return "1 copy of each event"
    count = len(ring.ranges)
    whole = count - ring.under_replicated
    return f"{ring.copies} copies of each event, all in sync in {whole} of {count} ranges"


def _progressing(
    cluster: Cluster, action: Action | None, error: str | None, cause: _Cause | None
) -> Condition:
    """Return the condition: something is under way."""
    holds, reason, message = True, "", ""
    is_harmless = isinstance(action, Blocked) and action.reason in HARMLESS
    if cluster.owner.is_deleting:
        reason, message = "Deleting", "all that belongs to it is being deleted"
    elif cluster.owner.is_paused:
        holds, reason, message = False, "Paused", "reconciliation is paused"
    elif error is not None:
        reason, message = RETRYING, error
    elif action is not None and not is_harmless:
        holds = not isinstance(action, Blocked) or action.reason == REPLACED
        reason, message = progress_reason(action), described(action)
    elif cause is not None:
        reason, message = cause.reason, cause.message
    elif catching_up := _catching_up(cluster, cause):
        reason, message = catching_up
    elif scaling := scaling_progress(cluster):
        reason, message = scaling
    elif growing := _growing(cluster):
        reason, message = "UpdatingVolumes", growing
    elif update_revision(cluster) is None:
        what = "Kubernetes has not taken its template over yet"
        reason, message = "Updating", f"StatefulSet {cluster.owner.name}: {what}"
    elif outdated := outdated_pods(cluster):
        numbers = ", ".join(str(pod.ordinal) for pod in outdated)
        reason, message = "Updating", f"brokers that may not be restarted yet: {numbers}"
    elif action is not None:
        holds, reason, message = False, progress_reason(action), described(action)
    else:
        holds, reason, message = False, "UpToDate", "all is as the spec says"
    return Condition("Progressing", holds, reason, message)


def _growing(cluster: Cluster) -> str:
    claims = wanted_claims(cluster)
    names = [claim.name for claim in claims if claim.capacity_bytes < claim.requested_bytes]
    return f"volumes that are not as large yet as asked for: {', '.join(names)}" if names else ""


def _degraded(problem: Problem | None) -> Condition:
    """Whether something is wrong: it may heal, or wait for a person."""
    if problem is None:
        return Condition("Degraded", False, "AsExpected", "nothing is wrong")
    return Condition("Degraded", True, *problem)


def _balanced(count: int) -> Condition:
    if is_balanced(count):
        return Condition("Balanced", True, "EqualShares", "each range has the same share of keys")
    message = "some ranges have twice the keys of others; rings of 3, 6, 12, … brokers are balanced"
    return Condition("Balanced", False, "UnequalShares", message)


def _founded(cluster: Cluster, action: Action | None) -> dict[str, Any]:
    """Return the ring that is recorded, or is to be."""
    record = action if isinstance(action, RecordFounding) else cluster.founded
    if record is None:
        return {}
    of_ring = {} if record.cluster_id is None else {"clusterId": record.cluster_id}
    return {"founded": {"brokers": record.broker_count, **of_ring}}
