"""What the objects of a StreamCluster are called, and where they and their kinds are found."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tailrace_operator.api.spec import CLUSTER_PLURAL, GROUP, TOPIC_PLURAL, VERSION
from tailrace_operator.plan.observed import ChildName

GROUP_VERSION = f"{GROUP}/{VERSION}"
FIELD_MANAGER = "tailrace-operator"

PUBLIC_PORT = 9250
PRODUCE_PORT = 9251
READ_PORT = 9252
METRICS_PORT = 9253
PEERS_PORT = 9255
REPLICATION_PORT = 9256
CLIENT_PORTS = {"public": PUBLIC_PORT, "produce": PRODUCE_PORT, "read": READ_PORT}
BROKER_PORTS = {
    **CLIENT_PORTS,
    "metrics": METRICS_PORT,
    "peers": PEERS_PORT,
    "replication": REPLICATION_PORT,
}

SECRET_KEY = "secret"  # noqa: S105  # under which name the Secret has it
DATA_VOLUME = "data"
CONTAINER = "broker"

PAUSED = f"{GROUP}/paused"  # annotation: "true" pauses reconciliation
TOPIC_FINALIZER = f"{GROUP}/topic"  # the resource stays until the topic is deleted
ZONE_GATE = f"{GROUP}/zone"  # holds a pod until its zone is known
SETTINGS_HASH = f"{GROUP}/settings-hash"  # annotation of pods: other settings are a new revision
APPLIED_HASH = f"{GROUP}/applied-hash"  # annotation of objects: what was asked for

INSTANCE_LABEL = "app.kubernetes.io/instance"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
ZONE_LABEL = "topology.kubernetes.io/zone"


class Resource(NamedTuple):
    """The name of a kind in the API's paths."""

    group_version: str  # "v1" for the core group
    plural: str
    is_namespaced: bool = True


RESOURCES: Mapping[str, Resource] = {
    "StreamCluster": Resource(GROUP_VERSION, CLUSTER_PLURAL),
    "Topic": Resource(GROUP_VERSION, TOPIC_PLURAL),
    "StatefulSet": Resource("apps/v1", "statefulsets"),
    "Service": Resource("v1", "services"),
    "ConfigMap": Resource("v1", "configmaps"),
    "Secret": Resource("v1", "secrets"),
    "Pod": Resource("v1", "pods"),
    "PersistentVolumeClaim": Resource("v1", "persistentvolumeclaims"),
    "PodDisruptionBudget": Resource("policy/v1", "poddisruptionbudgets"),
    "NetworkPolicy": Resource("networking.k8s.io/v1", "networkpolicies"),
    "StorageClass": Resource("storage.k8s.io/v1", "storageclasses", is_namespaced=False),
    "Ingress": Resource("networking.k8s.io/v1", "ingresses"),
    "Lease": Resource("coordination.k8s.io/v1", "leases"),
    "Event": Resource("v1", "events"),
}


def labels(cluster: str) -> dict[str, str]:
    """Return the labels of all objects of a StreamCluster of this name."""
    return {
        "app.kubernetes.io/name": "tailrace",
        INSTANCE_LABEL: cluster,
        "app.kubernetes.io/component": "broker",
        MANAGED_BY_LABEL: FIELD_MANAGER,
    }


def selector_labels(cluster: str) -> dict[str, str]:
    """Those by which its brokers' pods are selected."""
    return {name: text for name, text in labels(cluster).items() if name != MANAGED_BY_LABEL}


def selector_text(cluster: str) -> str:
    """The same as a query: `name=value,…`."""
    return ",".join(f"{name}={text}" for name, text in selector_labels(cluster).items())


def headless_service(cluster: str) -> str:
    """Return the service by which brokers find each other, ready or not."""
    return f"{cluster}-brokers"


def settings_map(cluster: str) -> str:
    """The ConfigMap of the brokers' settings."""
    return f"{cluster}-settings"


def ring_secret(cluster: str) -> str:
    """The Secret of what the brokers prove to each other that they know."""
    return f"{cluster}-ring"


def child_names(cluster: str) -> tuple[ChildName, ...]:
    """All objects that a StreamCluster can have, but for its Secret; in the order of making."""
    return (
        ChildName("ConfigMap", settings_map(cluster)),
        ChildName("Service", headless_service(cluster)),
        ChildName("Service", cluster),
        ChildName("NetworkPolicy", cluster),
        ChildName("PodDisruptionBudget", cluster),
        ChildName("StatefulSet", cluster),
    )


def digest(document: Any) -> str:
    """A short hash of a document of JSON, the same for the same members in any order."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
