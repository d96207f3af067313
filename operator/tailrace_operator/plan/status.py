"""The status of a StreamCluster: what is known of it, its phase, in a column, and its conditions.

It is made from the observation and the action that follows from it. Fields that were once known
stay, so that writing it is a merge; `topic_status.py` does the same for a Topic.
"""

from typing import Any

from tailrace_operator.plan.actions import Action, RecordFounding
from tailrace_operator.plan.conditions import DEGRADED, NOT_READY, Finding, condition_documents
from tailrace_operator.plan.facts import broker_count, ready_ordinals, wanted_pods
from tailrace_operator.plan.findings import INTERNAL_ERROR, RETRYING, findings
from tailrace_operator.plan.listeners import listener_count
from tailrace_operator.plan.names import selector_text
from tailrace_operator.plan.observed import Cluster, Document
from tailrace_operator.plan.zones import is_balanced

PHASE_MAX = 200
_CONDITIONS = ("Ready", "Progressing", "Degraded", "Balanced", "ReconciliationPaused")


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
    found = [*findings(cluster, action, error)]
    owner, ring = cluster.owner, cluster.ring
    known: dict[str, Any] = {"plan": cluster.plan}
    if ring is not None:
        known |= {"copies": ring.copies, "version": ring.version, "clusterId": ring.cluster_id}
    count = broker_count(cluster)
    return {
        **{name: each for name, each in cluster.status.items() if name != "plan"},
        **{name: value for name, value in known.items() if value is not None},
        **_founded(cluster, action),
        "observedGeneration": owner.generation,
        "phase": next(each.phase for each in found if each.phase)[:PHASE_MAX],
        "brokers": count,
        "readyBrokers": len(ready_ordinals(cluster)),
        "balanced": str(is_balanced(count)),
        "zones": len({pod.zone for pod in wanted_pods(cluster)} - {None}),
        "image": cluster.image,
        "listeners": listener_count(cluster),
        "selector": selector_text(owner.name),
        "conditions": condition_documents(
            _CONDITIONS, found, cluster.status, generation=owner.generation, now=now
        ),
    }


def broken_status(resource: Document, reason: str, message: str, *, now: str) -> Document:
    """Of either kind, when nothing can be planned for it; what was once known stays."""
    status: Document = resource.get("status") or {}
    generation = resource["metadata"]["generation"]
    is_cluster = resource["kind"] == "StreamCluster"
    types = ("Ready", "Degraded") if is_cluster else ("Ready",)
    found = [Finding(reason, message, NOT_READY | DEGRADED)]
    word = {INTERNAL_ERROR: "Failed", RETRYING: RETRYING}.get(reason, "Blocked")
    return {
        **status,
        **({"phase": f"{word}: {message}"[:PHASE_MAX]} if is_cluster else {}),
        "observedGeneration": generation,
        "conditions": [
            *condition_documents(types, found, status, generation=generation, now=now),
            *(each for each in status.get("conditions") or () if each["type"] not in types),
        ],
    }


def _founded(cluster: Cluster, action: Action | None) -> dict[str, Any]:
    """Return the ring that is recorded, or is to be."""
    record = action if isinstance(action, RecordFounding) else cluster.founded
    if record is None:
        return {}
    of_ring = {} if record.cluster_id is None else {"clusterId": record.cluster_id}
    return {"founded": {"brokers": record.broker_count, **of_ring}}
