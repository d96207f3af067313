"""Conditions of a status, as everywhere in Kubernetes: whether something holds, why, since when."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from tailrace_operator.plan.names import PAUSED
from tailrace_operator.plan.observed import Document

MESSAGE_MAX = 1000

# What a finding means for conditions.
READY = {"Ready": True}
NOT_READY = {"Ready": False}
UNDER_WAY = {"Progressing": True}
STANDS = {"Progressing": False}
DEGRADED = {"Degraded": True}


class Finding(NamedTuple):
    """`reason`: a word for programs; `message`: for people, with the remedy if it needs one.

    `means`: the conditions that it decides, and whether they hold; `phase`: how the column STATUS
    says it, if it does.
    """

    reason: str
    message: str
    means: Mapping[str, bool]
    phase: str = ""


def condition_documents(
    types: Iterable[str],
    findings: Collection[Finding],
    status: Document,
    *,
    generation: int,
    now: str,
) -> list[dict[str, Any]]:
    """Return these conditions by the first finding about each; the time is that of its change."""
    before = by_type(status)
    shown = {each: next(found for found in findings if each in found.means) for each in types}
    return [
        {
            "type": each,
            "status": str(found.means[each]),
            "reason": found.reason,
            "message": found.message[:MESSAGE_MAX],
            "observedGeneration": generation,
            "lastTransitionTime": _since(before.get(each, {}), str(found.means[each]), now),
        }
        for each, found in shown.items()
    ]


def by_type(status: Document) -> dict[str, Document]:
    """The conditions that a status has; of any kind."""
    return {condition["type"]: condition for condition in status.get("conditions") or ()}


def paused_finding(*, is_paused: bool) -> Finding:
    """Return what decides `ReconciliationPaused`."""
    reason, message = "Active", "the operator is at work"
    if is_paused:
        reason, message = "Paused", f"nothing is changed while the annotation {PAUSED} is true"
    return Finding(reason, message, {"ReconciliationPaused": is_paused})


def _since(before: Document, status: str, now: str) -> str:
    return str(before["lastTransitionTime"]) if before.get("status") == status else now
