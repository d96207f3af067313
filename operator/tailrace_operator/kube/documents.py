"""Documents of the API as the values that plans are made from. Pure.

A field that Kubernetes has not filled in yet is absent, and no error.
"""

import base64
import re
from collections.abc import Mapping

from tailrace_operator.plan.conditions import by_type
from tailrace_operator.plan.drift import quantity
from tailrace_operator.plan.facts import controller_of
from tailrace_operator.plan.names import (
    CONTAINER,
    DATA_VOLUME,
    PAUSED,
    SECRET_KEY,
    ZONE_GATE,
    ZONE_LABEL,
)
from tailrace_operator.plan.observed import Claim, Document, Founded, Owner, Pod

_REVISION_LABEL = "controller-revision-hash"
_ANY_POD = re.compile('^pods "[^"]*" is forbidden: ')  # of a quota, for each pod in its turn
_STARTING = frozenset({"ContainerCreating", "PodInitializing", ""})
_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff"})  # in turns, of the same mistake
_IN_USE = "kubernetes.io/pvc-protection"  # of a claim, as long as a pod uses it
_GOING_CLAIM = " is being deleted"  # why no pod is made on a claim that ends in a moment
_FAILED_RESIZE = frozenset({"ControllerResizeError", "NodeResizeError"})


def owner_of(document: Document) -> Owner:
    """Return what a resource says of itself."""
    metadata = document["metadata"]
    return Owner(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata["generation"],
        is_paused=(metadata.get("annotations") or {}).get(PAUSED) == "true",
        is_deleting="deletionTimestamp" in metadata,
    )


def secret_text(secret: Document | None, uid: str) -> str | None:
    """None: there is no Secret, nothing that brokers take, or it goes with the owner before."""
    if secret is None:
        return None
    owners = [
        owner_reference["uid"]
        for owner_reference in secret["metadata"].get("ownerReferences") or ()
    ]
    if owners and uid not in owners:
        return None
    encoded = (secret.get("data") or {}).get(SECRET_KEY)
    text = base64.b64decode(encoded).decode(errors="replace") if encoded else ""
    return text if text and all("!" <= character <= "~" for character in text) else None


def founded_of(document: Document) -> Founded | None:
    """Return the ring that a StreamCluster's status records; None: nothing."""
    noted = (document.get("status") or {}).get("founded")
    return Founded(noted["brokers"], noted.get("clusterId")) if noted else None


# --- pods and claims ------------------------------------------------------------------------------


def pods_of(name: str, documents: list[Document]) -> tuple[Pod, ...]:
    """Those of the StatefulSet, by ordinal."""
    pods = [
        _pod(ordinal, document)
        for document in documents
        if (ordinal := _ordinal(document, prefix=f"{name}-")) is not None
    ]
    return tuple(sorted(pods, key=lambda pod: pod.ordinal))


def is_own(owner: Owner, stateful_set: Document | None, pod: Document) -> bool:
    """Not one that is left of a StreamCluster that had this name before: it is in that one's ring.

    One that nobody controls at the moment is taken by the StatefulSet.
    """
    made_by = controller_of(pod)
    if made_by is None:
        return True
    if stateful_set is None or made_by["uid"] != stateful_set["metadata"]["uid"]:
        return False
    made_for = controller_of(stateful_set)
    return made_for is None or made_for["uid"] == owner.uid


def _ordinal(document: Document, *, prefix: str) -> int | None:
    """The number behind `prefix` in its name."""
    head, found, number = document["metadata"]["name"].rpartition(prefix)
    return int(number) if found and not head and number.isdecimal() else None


def _pod(ordinal: int, document: Document) -> Pod:
    metadata, spec, status = document["metadata"], document["spec"], document.get("status") or {}
    states = {each["name"]: each["state"] for each in status.get("containerStatuses") or ()}
    conditions = by_type(status)
    gates = [scheduling_gate["name"] for scheduling_gate in spec.get("schedulingGates") or ()]
    return Pod(
        ordinal=ordinal,
        uid=metadata["uid"],
        revision=(metadata.get("labels") or {}).get(_REVISION_LABEL, ""),
        is_running="running" in states.get(CONTAINER, ()),
        is_ready=conditions.get("Ready", {}).get("status") == "True",
        is_deleting="deletionTimestamp" in metadata,
        is_gated=ZONE_GATE in gates,
        zone=_zone(metadata, spec),
        problem=_pod_problem(status, conditions),
        template={"metadata": metadata, "spec": spec},
    )


def _zone(metadata: Document, spec: Document) -> str | None:
    """Return where it was pinned to, or what Kubernetes says of its node (since 1.35)."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or ():
        for match_expression in term.get("matchExpressions") or ():
            if match_expression["key"] == ZONE_LABEL and match_expression.get("values"):
                return str(match_expression["values"][0])
    zone = (metadata.get("labels") or {}).get(ZONE_LABEL)
    return None if zone is None else str(zone)


def _pod_problem(status: Document, conditions: Mapping[str, Document]) -> str | None:
    """Why it does not run, as far as Kubernetes knows."""
    for container_status in status.get("containerStatuses") or ():
        waiting = container_status["state"].get("waiting")
        if waiting and waiting.get("reason", "") not in _STARTING:
            ended = (container_status.get("lastState") or {}).get("terminated") or {}
            before = f" (ended by {ended['reason']})" if ended.get("reason") else ""
            if waiting["reason"] in _IMAGE:
                waiting = {**waiting, "reason": "ImagePullBackOff"}
            return _message_of(waiting) + before
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return _message_of(scheduled)
    return None


def _message_of(one: Document) -> str:
    """A reason with its message."""
    reason, message = one.get("reason", ""), one.get("message", "")
    return f"{reason}: {message}" if message else str(reason)


def claims_of(name: str, documents: list[Document]) -> list[tuple[int, Document]]:
    """Those of the StatefulSet's template with their ordinals, in that order."""
    claims = [
        (ordinal, document)
        for document in documents
        if (ordinal := _ordinal(document, prefix=f"{DATA_VOLUME}-{name}-")) is not None
    ]
    return sorted(claims, key=lambda claim: claim[0])


def refusal_of(events: list[Document]) -> str | None:
    """Why the controller of StatefulSets makes no pod, by its last Event."""
    own = [
        each
        for each in events
        if each.get("reason") in ("FailedCreate", "SuccessfulCreate")
        and not str(each.get("message", "")).endswith(_GOING_CLAIM)
    ]
    order = sorted(own, key=lambda each: (_time_of(each), each["reason"]))
    last: Document = order[-1] if order else {}
    if last.get("reason") != "FailedCreate":
        return None
    note = str(last.get("message", ""))
    return _ANY_POD.sub("", note.partition(" failed error: ")[2] or note)


def _time_of(event: Document) -> str:
    """When it came last; all texts of times are of one form, but for fractions of seconds."""
    times = (
        (event.get("series") or {}).get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event["metadata"].get("creationTimestamp"),
    )
    return max((str(each).partition(".")[0].rstrip("Z") for each in times if each), default="")


def claim_of(ordinal: int, document: Document, *, can_grow: bool | None) -> Claim:
    """A broker's claim of its volume; `can_grow` None: its StorageClass is not there."""
    metadata = document["metadata"]
    spec, status = document["spec"], document.get("status") or {}
    failed = [
        condition
        for condition in status.get("conditions") or ()
        if condition["type"] in _FAILED_RESIZE and condition.get("status") == "True"
    ]
    return Claim(
        ordinal=ordinal,
        name=metadata["name"],
        requested_bytes=_bytes(spec["resources"]["requests"].get("storage")),
        capacity_bytes=_bytes((status.get("capacity") or {}).get("storage")),
        is_expandable=bool(can_grow),
        problem=_message_of(failed[0]) if failed else _no_class(spec, status, can_grow=can_grow),
        owners=tuple(metadata.get("ownerReferences") or ()),
        version=metadata["resourceVersion"],
        volume=spec.get("volumeName", ""),
        is_deleting="deletionTimestamp" in metadata,
        holder=next((each for each in metadata.get("finalizers") or () if each != _IN_USE), None),
        uid=metadata["uid"],
    )


def _no_class(spec: Document, status: Document, *, can_grow: bool | None) -> str | None:
    """Why nobody makes its volume."""
    if status.get("phase") != "Pending" or spec.get("volumeName"):
        return None
    name = spec.get("storageClassName")
    if name is None:
        return "no StorageClass: the cluster has no default one; make one the default"
    if name and can_grow is None:
        return f'no StorageClass: there is none of the name "{name}"; create it'
    return None


def _bytes(text: object) -> int:
    """0: it is not known yet."""
    size_bytes = quantity(text)
    return 0 if size_bytes is None else int(size_bytes)
