"""Parts of objects that hold what the operator wrote, and nothing else. Pure.

A selector with one more label selects no pod, and a pod template with one more field differs
program: there what others add is taken out by a merge patch, before the object is applied. The
spec of a StatefulSet is full of the API server's defaults, so it is compared with what the API
server makes of the wanted one (decision record 019).
"""

from typing import Any

from tailrace_operator.plan.drift import Difference, exact, merge_patch
from tailrace_operator.plan.observed import Document

# Fields of a StatefulSet that the API server refuses to change.
IMMUTABLE = ("podManagementPolicy", "selector", "serviceName", "volumeClaimTemplates")
# The API server adds nothing to these.
_PARTS = {
    "ConfigMap": ("data", "binaryData"),
    "Service": ("spec.selector",),
    "NetworkPolicy": ("spec",),
    "PodDisruptionBudget": ("spec",),
}


def mutable_spec(stateful_set: Document) -> dict[str, Any]:
    """What of its spec can be changed."""
    return {name: each for name, each in stateful_set["spec"].items() if name not in IMMUTABLE}


def spec_patch(manifest: Document, live: Document) -> Document:
    """What makes the spec of a live StatefulSet the wanted one, and nothing else."""
    return {"spec": merge_patch(mutable_spec(live), mutable_spec(manifest))}


def whole_patch(
    manifest: Document, live: Document, stored_spec: Document | None
) -> tuple[Document, Difference | None]:
    """What takes the additions out, empty: there are none; and the first difference."""
    if manifest["kind"] == "StatefulSet":
        found = None if stored_spec is None else exact("spec", stored_spec, mutable_spec(live))
        return (spec_patch(manifest, live) if found else {}), found
    patch: dict[str, Any] = {}
    first: Difference | None = None
    for path in _PARTS.get(manifest["kind"], ()):
        wanted, found_part = (_part(each, path) for each in (manifest, live))
        found = exact(path, wanted, found_part)
        if found is not None:
            first = first or found
            patch |= _at(path, merge_patch(found_part, wanted))
    return patch, first


def _part(document: Document, path: str) -> Document:
    for name in path.split("."):
        document = document.get(name) or {}
    return document


def _at(path: str, patch: Document) -> dict[str, Any]:
    head, _, rest = path.partition(".")
    return {head: _at(rest, patch) if rest else patch}
