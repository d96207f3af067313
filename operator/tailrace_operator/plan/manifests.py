"""What a StreamCluster's objects in Kubernetes are to be.

Values are written as the API server gives them back, so that nothing seems to have drifted. Each
object has the hash of what was asked for: a field that is not asked for any more is noticed too.
"""

from collections.abc import Mapping
from typing import Any

from tailrace_operator.plan.facts import away_ordinals, is_needed, is_whole, pod_count
from tailrace_operator.plan.listeners import listener_manifests
from tailrace_operator.plan.names import (
    APPLIED_HASH,
    BROKER_PORTS,
    CLIENT_PORTS,
    GROUP_VERSION,
    METRICS_PORT,
    PEERS_PORT,
    REPLICATION_PORT,
    RESOURCES,
    child_names,
    digest,
    headless_service,
    labels,
    ring_secret,
    selector_labels,
)
from tailrace_operator.plan.observed import ChildName, Cluster, Document, Owner
from tailrace_operator.plan.pod_manifest import claim_template, pod_template


def children(cluster: Cluster) -> dict[ChildName, Document]:
    """Return all wanted objects, in the order in which they are made."""
    owner = cluster.owner
    bodies = (  # in the order of `child_names`
        _settings(cluster),
        _headless(cluster),
        _client_service(cluster),
        _network_policy(cluster),
        _disruption_budget(cluster),
        _stateful_set(cluster),
    )
    made = dict(zip(child_names(owner.name), bodies, strict=True))
    if cluster.spec.listeners is not None:
        made |= listener_manifests(owner.name, cluster.spec.listeners, pod_count(cluster))
    return {
        child: _hashed(_with_head(owner, child, body))
        for child, body in made.items()
        if body is not None
    }


def secret_manifest(cluster: Cluster) -> Document:
    """Return it without its text, which is random, under the key `names.SECRET_KEY`.

    It cannot be changed: brokers that know different texts would not hear each other.
    """
    child = ChildName("Secret", ring_secret(cluster.owner.name))
    return _with_head(cluster.owner, child, {"type": "Opaque", "immutable": True})


def owner_reference(owner: Owner) -> Document:
    """Return the reference of objects that Kubernetes deletes with the StreamCluster."""
    return {
        "apiVersion": GROUP_VERSION,
        "kind": "StreamCluster",
        "name": owner.name,
        "uid": owner.uid,
    }


def _with_head(owner: Owner, child: ChildName, body: Document) -> dict[str, Any]:
    metadata = {
        "name": child.name,
        "namespace": owner.namespace,
        "labels": labels(owner.name),
        "ownerReferences": [{**owner_reference(owner), "controller": True}],
        **body.get("metadata", {}),
    }
    api_version = RESOURCES[child.kind].group_version
    return {"apiVersion": api_version, "kind": child.kind, **body, "metadata": metadata}


def _hashed(manifest: dict[str, Any]) -> Document:
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), APPLIED_HASH: digest(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def _settings(cluster: Cluster) -> Document:
    return {"data": cluster.spec.broker_settings()}


def _headless(cluster: Cluster) -> Document:
    """A broker needs its name to become ready, so those that are not have theirs too."""
    return {
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector_labels(cluster.owner.name),
            "ports": _service_ports(BROKER_PORTS),
        }
    }


def _client_service(cluster: Cluster) -> Document:
    service = cluster.spec.service
    annotations = dict(service.annotations)
    return {
        **({"metadata": {"annotations": annotations}} if annotations else {}),
        "spec": {
            "type": service.type,
            "selector": selector_labels(cluster.owner.name),
            "ports": _service_ports(CLIENT_PORTS),
        },
    }


def _service_ports(ports: Mapping[str, int]) -> list[dict[str, Any]]:
    return [
        {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}
        for name, port in ports.items()
    ]


def _network_policy(cluster: Cluster) -> Document | None:
    """The brokers' ports for each other are for the brokers of this ring alone."""
    if not cluster.spec.network_policy:
        return None
    brokers = {"matchLabels": selector_labels(cluster.owner.name)}
    return {
        "spec": {
            "podSelector": brokers,
            "policyTypes": ["Ingress"],
            "ingress": [
                {"ports": _policy_ports(*CLIENT_PORTS.values(), METRICS_PORT)},
                {
                    "from": [{"podSelector": brokers}],
                    "ports": _policy_ports(PEERS_PORT, REPLICATION_PORT),
                },
            ],
        }
    }


def _policy_ports(*ports: int) -> list[dict[str, Any]]:
    return [{"protocol": "TCP", "port": port} for port in ports]


def _disruption_budget(cluster: Cluster) -> Document:
    """One broker at a time may be taken away, and none while another, or a copy, is missing.

    A pod that does not serve holds up no node that is drained, unless a range needs its copies.
    """
    is_one_needed = any(is_needed(cluster, each) for each in away_ordinals(cluster))
    return {
        "spec": {
            "maxUnavailable": 1 if is_whole(cluster) else 0,
            "selector": {"matchLabels": selector_labels(cluster.owner.name)},
            "unhealthyPodEvictionPolicy": "IfHealthyBudget" if is_one_needed else "AlwaysAllow",
        }
    }


def _stateful_set(cluster: Cluster) -> Document:
    owner, spec = cluster.owner, cluster.spec
    return {
        "spec": {
            "replicas": pod_count(cluster),
            "serviceName": headless_service(owner.name),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},  # the operator orders restarts
            "persistentVolumeClaimRetentionPolicy": {
                # Volumes that are to go go with the StreamCluster (`OwnClaim`): a StatefulSet that
                # somebody deletes by hand takes no data along.
                "whenDeleted": "Retain",
                "whenScaled": "Retain",
            },
            "selector": {"matchLabels": selector_labels(owner.name)},
            "template": pod_template(owner, spec, image=cluster.image),
            "volumeClaimTemplates": [claim_template(owner, spec)],
        }
    }
