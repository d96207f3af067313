"""Conditions of a status, as everywhere in Kubernetes: whether something holds, why, since when."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tailrace_operator.plan.names import PAUSED
from tailrace_operator.plan.observed import Document

MESSAGE_MAX = 1000


@dataclass(frozen=True, slots=True)
class Condition:
    """`reason`: a word for programs; `message`: for people."""

    type: str
    holds: bool
    reason: str
    message: str


def condition_documents(
    conditions: Iterable[Condition], status: Document, *, generation: int, now: str
) -> list[dict[str, Any]]:
    """Return conditions as a status has them; one that holds in `status` keeps its time."""
    before = by_type(status)
    return [
        {
            "type": condition.type,
            "status": str(condition.holds),
            "reason": condition.reason,
            "message": condition.message[:MESSAGE_MAX],
            "observedGeneration": generation,
            "lastTransitionTime": _since(before.get(condition.type, {}), str(condition.holds), now),
        }
        for condition in conditions
    ]


def by_type(status: Document) -> dict[str, Document]:
    """The conditions that a status has; of any kind."""
    return {condition["type"]: condition for condition in status.get("conditions") or ()}


def paused_condition(*, is_paused: bool) -> Condition:
    """Return the condition `ReconciliationPaused`."""
    if is_paused:
        message = f"nothing is changed while the annotation {PAUSED} is true"
        return Condition("ReconciliationPaused", True, "Paused", message)
    return Condition("ReconciliationPaused", False, "Active", "the operator is at work")


def _since(before: Document, status: str, now: str) -> str:
    return str(before["lastTransitionTime"]) if before.get("status") == status else now
