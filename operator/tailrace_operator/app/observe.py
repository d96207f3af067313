"""What is there, as values for the plans: a StreamCluster or Topic, its objects, its brokers.

Objects are read by name, pods and claims by one list each; `documents.py` says what they are.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from tailrace_operator.api.spec import parse_cluster_spec, parse_topic_spec
from tailrace_operator.kube.client import Kube
from tailrace_operator.kube.documents import (
    claim_of,
    claims_of,
    founded_of,
    is_own,
    owner_of,
    pods_of,
    refusal_of,
    secret_text,
)
from tailrace_operator.kube.storage_classes import StorageClasses
from tailrace_operator.kube.stored import StoredSpecs
from tailrace_operator.plan.facts import broker_count, is_founded, pod_count, wanted_pods
from tailrace_operator.plan.listeners import names_to_observe
from tailrace_operator.plan.manifests import children
from tailrace_operator.plan.names import TOPIC_FINALIZER, child_names, ring_secret, selector_labels
from tailrace_operator.plan.observed import ChildName, Claim, Cluster, Document, LiveTopic, Topic
from tailrace_operator.plan.topic_plan import CLUSTER_MISSING, NAME_TAKEN
from tailrace_operator.ring.admin import RingAdmin, RingError


async def observe_cluster(
    kube: Kube,
    classes: StorageClasses,
    stored: StoredSpecs,
    admin: RingAdmin,
    document: Document,
    *,
    default_image: str,
) -> Cluster:
    """Observe all of a StreamCluster; InvalidSpecError, KubeError."""
    owner = owner_of(document)
    spec = parse_cluster_spec(document)
    founded, status = founded_of(document), document.get("status") or {}
    names = child_names(owner.name) + names_to_observe(owner.name, spec, founded, status)
    namespace, selected = owner.namespace, selector_labels(owner.name)
    *listed, secret, pods, claims = await _together(
        *(kube.find(each.kind, each.name, namespace=namespace) for each in names),
        kube.find("Secret", ring_secret(owner.name), namespace=namespace),
        kube.list("Pod", namespace=namespace, labels=selected),
        kube.list("PersistentVolumeClaim", namespace=namespace, labels=selected),
    )
    text = secret_text(secret, owner.uid)
    await admin.know_secret(text)
    found = {name: child for name, child in zip(names, listed, strict=True) if child is not None}
    stateful_set = found.get(ChildName("StatefulSet", owner.name))
    own_pods = [each for each in pods if is_own(owner, stateful_set, each)]
    seen_pods = pods_of(owner.name, own_pods)
    running = {each.ordinal: each.uid for each in seen_pods if each.is_running}
    ring = await admin.observe(running, None if founded is None else founded.cluster_id)
    cluster = Cluster(
        owner=owner,
        spec=spec,
        status=status,
        founded=founded,
        default_image=default_image,
        has_secret=text is not None,
        children=found,
        pods=seen_pods,
        former_pods=pods_of(owner.name, [pod for pod in pods if pod not in own_pods]),
        claims=await _claims(classes, claims_of(owner.name, claims)),
        ring=ring,
    )
    wanted = children(cluster)[ChildName("StatefulSet", owner.name)]
    is_scaling = is_founded(cluster) and broker_count(cluster) != spec.brokers
    return replace(
        cluster,
        plan=await admin.plan(spec.brokers) if is_scaling else None,
        stored_spec=await stored.of(wanted, stateful_set),
        pod_refusal=await _pod_refusal(kube, cluster, stateful_set),
    )


async def observe_topic(
    kube: Kube, ring_of: Callable[[str], RingAdmin], document: Document, *, taken_by: str | None
) -> Topic:
    """Observe all of a Topic; `taken_by`: an older one of the same name in the ring.

    InvalidSpecError, KubeError, RingError.
    """
    owner = owner_of(document)
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
            raise RingError(f"{spec.cluster} has not been observed yet", retriable=True)
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
        ring=ring_of(spec.cluster).ring,
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


async def _pod_refusal(kube: Kube, cluster: Cluster, stateful_set: Document | None) -> str | None:
    """Asked only when a pod is missing: only Events say why."""
    if stateful_set is None or len(wanted_pods(cluster)) >= pod_count(cluster):
        return None
    fields = {"involvedObject.uid": stateful_set["metadata"]["uid"]}
    return refusal_of(await kube.list("Event", namespace=cluster.owner.namespace, fields=fields))


async def _claims(classes: StorageClasses, claims: list[tuple[int, Document]]) -> tuple[Claim, ...]:
    names = [each["spec"].get("storageClassName") for _, each in claims]
    can_grow = [await classes.can_grow(name) for name in names]
    return tuple(claim_of(*each, can_grow=can) for each, can in zip(claims, can_grow, strict=True))


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
    founded = founded_of(cluster)
    if founded is None or founded.cluster_id is None:
        return ("ClusterNotReady", f'the StreamCluster "{name}" has no ring yet')
    return None
