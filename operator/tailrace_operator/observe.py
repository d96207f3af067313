"""What is there, as values for the plans: a StreamCluster or Topic, its objects, its brokers.

Objects are read by name, pods and claims by one list each. What hardly ever changes is kept.
"""

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tailrace_operator.admin import RingAdmin, RingError
from tailrace_operator.conditions import by_type
from tailrace_operator.drift import quantity
from tailrace_operator.facts import controller_of
from tailrace_operator.kube import ForbiddenError, Kube
from tailrace_operator.names import (
    DATA_VOLUME,
    PAUSED,
    SECRET_KEY,
    TOPIC_FINALIZER,
    ZONE_GATE,
    ZONE_LABEL,
    child_names,
    ring_secret,
    selector_labels,
)
from tailrace_operator.observed import (
    ChildName,
    Claim,
    Cluster,
    Document,
    Founded,
    LiveTopic,
    Owner,
    Pod,
    Topic,
)
from tailrace_operator.spec import parse_cluster_spec, parse_topic_spec
from tailrace_operator.topic_plan import CLUSTER_MISSING, NAME_TAKEN

_REVISION_LABEL = "controller-revision-hash"
_STARTING = frozenset({"ContainerCreating", "PodInitializing", ""})
_FAILED_RESIZE = frozenset({"ControllerResizeError", "NodeResizeError"})
_KEPT_S = 300.0  # what the cluster can do changes by hand, and seldom


class Abilities:
    """What this Kubernetes can do: asked now and then, and kept."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._kept: dict[str, tuple[float, bool]] = {}

    async def has_service_monitors(self) -> bool:
        """Whether Prometheus' operator is there."""
        kind = "ServiceMonitor"
        return await self._ask(kind, lambda: self._kube.has_kind(kind))

    async def is_expandable(self, storage_class: str | None) -> bool:
        """Whether volumes of this class can grow."""
        if not storage_class:
            return False
        return await self._ask(f"class/{storage_class}", lambda: self._expands(storage_class))

    async def _expands(self, storage_class: str) -> bool:
        try:
            found = await self._kube.find("StorageClass", storage_class)
        except ForbiddenError:  # a role for some namespaces only: the API says it when it is asked
            return True
        return found is not None and found.get("allowVolumeExpansion") is True

    async def _ask(self, key: str, ask: Callable[[], Awaitable[bool]]) -> bool:
        now_s = time.monotonic()
        kept = self._kept.get(key)
        if kept is None or now_s - kept[0] > _KEPT_S:
            kept = self._kept[key] = (now_s, await ask())
        return kept[1]


async def observe_cluster(
    kube: Kube, abilities: Abilities, admin: RingAdmin, document: Document
) -> Cluster:
    """All that there is of a StreamCluster; InvalidSpecError, KubeError."""
    owner = _owner(document)
    spec = parse_cluster_spec(document)
    has_service_monitors = await abilities.has_service_monitors()
    names = [
        each
        for each in child_names(owner.name)
        if has_service_monitors or each.kind != "ServiceMonitor"
    ]
    namespace, selected = owner.namespace, selector_labels(owner.name)
    *children, secret, pods, claims = await _together(
        *(kube.find(each.kind, each.name, namespace=namespace) for each in names),
        kube.find("Secret", ring_secret(owner.name), namespace=namespace),
        kube.list("Pod", namespace=namespace, labels=selected),
        kube.list("PersistentVolumeClaim", namespace=namespace, labels=selected),
    )
    text = _secret_text(secret, owner.uid)
    await admin.know_secret(text)
    found = {name: child for name, child in zip(names, children, strict=True) if child is not None}
    stateful_set = found.get(ChildName("StatefulSet", owner.name))
    seen_pods = _pods(owner.name, [each for each in pods if _is_own(owner, stateful_set, each)])
    ring = await admin.observe({each.ordinal: each.uid for each in seen_pods if each.is_running})
    return Cluster(
        owner=owner,
        spec=spec,
        status=document.get("status") or {},
        founded=_founded(document),
        has_secret=text is not None,
        has_service_monitors=has_service_monitors,
        children=found,
        pods=seen_pods,
        claims=await _claims(abilities, owner.name, claims),
        ring=ring,
    )


async def observe_topic(
    kube: Kube, ring_of: Callable[[str], RingAdmin], document: Document, *, taken_by: str | None
) -> Topic:
    """All that there is of a Topic; `taken_by`: an older one of the same name in the ring.

    InvalidSpecError, KubeError, RingError.
    """
    owner = _owner(document)
    spec = parse_topic_spec(document)
    name = spec.name_in_ring(owner.name)
    cluster = await kube.find("StreamCluster", spec.cluster, namespace=owner.namespace)
    problem = _cluster_problem(spec.cluster, cluster)
    live: LiveTopic | None = None
    if problem is None and taken_by is not None:
        problem = (
            NAME_TAKEN,
            f'Topic "{taken_by}" is older and names the topic "{name}" of the ring too: delete one '
            "of them, or name another in spec.topicName",
        )
    if problem is None:
        admin = ring_of(spec.cluster)
        if not admin.is_observed:
            raise RingError(f"{spec.cluster} has not been looked at yet", retriable=True)
        if admin.is_ready:
            live = await admin.topic(name)
        else:
            problem = ("ClusterNotReady", f"no broker of {spec.cluster} is ready")
    return Topic(
        owner=owner,
        spec=spec,
        status=document.get("status") or {},
        has_finalizer=TOPIC_FINALIZER in (document["metadata"].get("finalizers") or ()),
        cluster_problem=problem,
        live=live,
    )


def _owner(document: Document) -> Owner:
    """What a resource says of itself."""
    metadata = document["metadata"]
    return Owner(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata["generation"],
        is_paused=(metadata.get("annotations") or {}).get(PAUSED) == "true",
        is_deleting="deletionTimestamp" in metadata,
    )


async def _together(*calls: Awaitable[Any]) -> list[Any]:
    """All of them at the same time; the first failure is raised, and ends the others."""

    async def result(call: Awaitable[Any]) -> Any:
        return await call

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(result(call)) for call in calls]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


def _secret_text(secret: Document | None, uid: str) -> str | None:
    """None: there is no Secret, nothing that brokers take, or it goes with the owner before."""
    if secret is None:
        return None
    owners = [each["uid"] for each in secret["metadata"].get("ownerReferences") or ()]
    if owners and uid not in owners:
        return None
    encoded = (secret.get("data") or {}).get(SECRET_KEY)
    text = base64.b64decode(encoded).decode(errors="replace") if encoded else ""
    return text if text and all("!" <= character <= "~" for character in text) else None


def _founded(document: Document) -> Founded | None:
    noted = (document.get("status") or {}).get("founded")
    return Founded(noted["brokers"], noted.get("clusterId")) if noted else None


# --- pods and claims ------------------------------------------------------------------------------


def _pods(name: str, documents: list[Document]) -> tuple[Pod, ...]:
    """Those of the StatefulSet, by ordinal."""
    pods = [
        _pod(ordinal, each)
        for each in documents
        if (ordinal := _ordinal(each, prefix=f"{name}-")) is not None
    ]
    return tuple(sorted(pods, key=lambda pod: pod.ordinal))


def _is_own(owner: Owner, stateful_set: Document | None, pod: Document) -> bool:
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
    containers = status.get("containerStatuses") or ()
    conditions = by_type(status)
    gates = [each["name"] for each in spec.get("schedulingGates") or ()]
    return Pod(
        ordinal=ordinal,
        uid=metadata["uid"],
        revision=(metadata.get("labels") or {}).get(_REVISION_LABEL, ""),
        is_running=bool(containers) and all("running" in each["state"] for each in containers),
        is_ready=conditions.get("Ready", {}).get("status") == "True",
        is_deleting="deletionTimestamp" in metadata,
        is_gated=ZONE_GATE in gates,
        zone=_zone(metadata, spec),
        problem=_pod_problem(status, conditions),
    )


def _zone(metadata: Document, spec: Document) -> str | None:
    """Where it was pinned to, or what Kubernetes says of its node (since 1.35)."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or ():
        for each in term.get("matchExpressions") or ():
            if each["key"] == ZONE_LABEL and each.get("values"):
                return str(each["values"][0])
    zone = (metadata.get("labels") or {}).get(ZONE_LABEL)
    return None if zone is None else str(zone)


def _pod_problem(status: Document, conditions: Mapping[str, Document]) -> str | None:
    """Why it does not run, as far as Kubernetes knows."""
    for each in status.get("containerStatuses") or ():
        waiting = each["state"].get("waiting")
        if waiting and waiting.get("reason", "") not in _STARTING:
            ended = (each.get("lastState") or {}).get("terminated") or {}
            before = f" (ended by {ended['reason']})" if ended.get("reason") else ""
            return _told(waiting) + before
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return _told(scheduled)
    return None


def _told(one: Document) -> str:
    """A reason with its message."""
    reason, message = one.get("reason", ""), one.get("message", "")
    return f"{reason}: {message}" if message else str(reason)


async def _claims(abilities: Abilities, name: str, documents: list[Document]) -> tuple[Claim, ...]:
    """Those of the StatefulSet's template, by ordinal."""
    claims = [
        await _claim(abilities, ordinal, each)
        for each in documents
        if (ordinal := _ordinal(each, prefix=f"{DATA_VOLUME}-{name}-")) is not None
    ]
    return tuple(sorted(claims, key=lambda claim: claim.ordinal))


async def _claim(abilities: Abilities, ordinal: int, document: Document) -> Claim:
    spec, status = document["spec"], document.get("status") or {}
    failed = [
        each
        for each in status.get("conditions") or ()
        if each["type"] in _FAILED_RESIZE and each.get("status") == "True"
    ]
    return Claim(
        ordinal=ordinal,
        name=document["metadata"]["name"],
        requested_bytes=_bytes(spec["resources"]["requests"].get("storage")),
        capacity_bytes=_bytes((status.get("capacity") or {}).get("storage")),
        is_expandable=await abilities.is_expandable(spec.get("storageClassName")),
        problem=_told(failed[0]) if failed else None,
    )


def _bytes(text: object) -> int:
    """0: it is not known yet."""
    found = quantity(text)
    return 0 if found is None else int(found)


def _cluster_problem(name: str, cluster: Document | None) -> tuple[str, str] | None:
    """Why its ring cannot have topics."""
    if cluster is None:
        return (
            CLUSTER_MISSING,
            f'there is no StreamCluster "{name}" in this namespace: create it, or name another in '
            "spec.cluster",
        )
    if "deletionTimestamp" in cluster["metadata"]:
        return (CLUSTER_MISSING, f'the StreamCluster "{name}" is being deleted')
    founded = _founded(cluster)
    if founded is None or founded.cluster_id is None:
        return ("ClusterNotReady", f'the StreamCluster "{name}" has no ring yet')
    return None
