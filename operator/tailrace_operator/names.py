"""What the objects of a StreamCluster are called, and the labels by which they are found."""

import hashlib
import json
from typing import Any

from tailrace_operator.observed import ChildName
from tailrace_operator.spec import GROUP

PUBLIC_PORT = 9250
PRODUCE_PORT = 9251
READ_PORT = 9252
METRICS_PORT = 9253
PEERS_PORT = 9255
REPLICATION_PORT = 9256

SECRET_KEY = "secret"  # noqa: S105  # under which name the Secret has it
DATA_VOLUME = "data"
CONTAINER = "broker"

PAUSED = f"{GROUP}/paused"  # annotation: "true" pauses reconciliation
ZONE_GATE = f"{GROUP}/zone"  # holds a pod until its zone is known
SETTINGS_HASH = f"{GROUP}/settings-hash"  # annotation of pods: other settings are another revision
APPLIED_HASH = f"{GROUP}/applied-hash"  # annotation of objects: what was asked for

_SELECTED = ("app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component")


def labels(cluster: str) -> dict[str, str]:
    """Of all that is made for a StreamCluster of this name."""
    return {
        "app.kubernetes.io/name": "tailrace",
        "app.kubernetes.io/instance": cluster,
        "app.kubernetes.io/component": "broker",
        "app.kubernetes.io/managed-by": "tailrace-operator",
    }


def selector_labels(cluster: str) -> dict[str, str]:
    """Those by which its brokers' pods are selected."""
    return {name: text for name, text in labels(cluster).items() if name in _SELECTED}


def selector_text(cluster: str) -> str:
    """The same as a query: `name=value,…`."""
    return ",".join(f"{name}={text}" for name, text in selector_labels(cluster).items())


def headless_service(cluster: str) -> str:
    """By which brokers find each other, ready or not."""
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
        ChildName("ServiceMonitor", cluster),
    )


def digest(document: Any) -> str:
    """A short hash of a document of JSON, the same for the same members in any order."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
