"""The pod of a broker, and the claim of its volume, as a StatefulSet has them."""

from typing import Any

from tailrace_operator.api.fields import Fields
from tailrace_operator.api.pod import OPERATORS_VARIABLES
from tailrace_operator.api.spec import StreamClusterSpec
from tailrace_operator.plan.names import (
    BROKER_PORTS,
    CONTAINER,
    DATA_VOLUME,
    SECRET_KEY,
    SETTINGS_HASH,
    ZONE_GATE,
    ZONE_LABEL,
    digest,
    headless_service,
    labels,
    ring_secret,
    selector_labels,
    settings_map,
)
from tailrace_operator.plan.observed import Owner

DATA_FOLDER = "/data"
GRACE_S = 90
# Between two probes of a starting broker, and how many may fail: it is registered with the ring and
# reads the end of each partition first, half an hour at most for a disk full of them.
STARTUP_PERIOD_S = 2
STARTUP_FAILURES_MAX = 900


def pod_template(owner: Owner, spec: StreamClusterSpec, *, image: str) -> dict[str, Any]:
    """Return the pod template; pods of another template are restarted."""
    cluster = owner.name
    annotations = {**spec.pod.annotations, SETTINGS_HASH: digest(spec.broker_settings())}
    optional = {
        "imagePullSecrets": [{"name": name} for name in spec.image_pull_secrets],
        "nodeSelector": dict(spec.pod.node_selector),
        "priorityClassName": spec.pod.priority_class_name,
        "affinity": (
            {"podAntiAffinity": _apart(cluster)} if spec.pod.affinity is None else spec.pod.affinity
        ),
        "topologySpreadConstraints": [
            {"labelSelector": {"matchLabels": selector_labels(cluster)}, **constraint}
            for constraint in spec.pod.topology_spread_constraints
        ],
        "schedulingGates": [{"name": ZONE_GATE}] if spec.zones else [],
        "tolerations": [_given(toleration) for toleration in spec.pod.tolerations],
    }
    return {
        "metadata": {
            "labels": {**spec.pod.labels, **labels(cluster)},
            "annotations": annotations,
        },
        "spec": {
            "automountServiceAccountToken": False,
            # A Service named `tailrace` would set TAILRACE_PORT to an address.
            "enableServiceLinks": False,
            # Else the broker is the first process, to which a SIGTERM is lost that comes before
            # Python can hear it: a pod that ends as it begins would stay for its whole grace.
            "shareProcessNamespace": True,
            "terminationGracePeriodSeconds": GRACE_S,
            "securityContext": {
                "runAsNonRoot": True,
                **_given(spec.pod.security_context),
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [_container(owner, spec, image)],
            "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}}],
            **{name: value for name, value in optional.items() if value},
        },
    }


def claim_template(owner: Owner, spec: StreamClusterSpec) -> dict[str, Any]:
    """Return the claim template of each broker's volume."""
    storage_class = spec.storage.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": DATA_VOLUME, "labels": labels(owner.name)},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": spec.storage.size}},
            **({} if storage_class is None else {"storageClassName": storage_class}),
        },
    }


def _container(owner: Owner, spec: StreamClusterSpec, image: str) -> dict[str, Any]:
    resources = {"requests": spec.resources.requests, "limits": spec.resources.limits}
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": spec.image_pull_policy,
        "env": _environment(owner, spec),
        "envFrom": [{"configMapRef": {"name": settings_map(owner.name)}}],
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"}
            for name, port in BROKER_PORTS.items()
        ],
        "resources": {name: dict(resource) for name, resource in resources.items() if resource},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "startupProbe": _probe(
            "/live", period_s=STARTUP_PERIOD_S, failures_max=STARTUP_FAILURES_MAX
        ),
        "livenessProbe": _probe("/live", period_s=10, failures_max=6),
        "readinessProbe": _probe("/ready", period_s=2, failures_max=2),
        # The pod's status shows the last log lines with its exit code.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": DATA_VOLUME, "mountPath": DATA_FOLDER},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  # a folder of the pod's own
        ],
    }


def _environment(owner: Owner, spec: StreamClusterSpec) -> list[dict[str, Any]]:
    """Return the variables that identify a broker, and those of the spec that are none of these.

    They win over the ConfigMap.
    """
    domain = f"{headless_service(owner.name)}.{owner.namespace}.svc"
    index = "metadata.labels['apps.kubernetes.io/pod-index']"
    secret = {"name": ring_secret(owner.name), "key": SECRET_KEY}
    values = {
        "TAILRACE_DATA_DIR": DATA_FOLDER,
        "TAILRACE_HOST": "0.0.0.0",  # noqa: S104  # of a pod, whose NetworkPolicy says who may
        "TAILRACE_ADVERTISED_HOST": f"$(POD_NAME).{domain}",
        "TAILRACE_PEER_HOST": f"{owner.name}-{{ordinal}}.{domain}",
        "TAILRACE_RING_NAME": owner.name,
    }
    return [
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "TAILRACE_ORDINAL", "valueFrom": {"fieldRef": {"fieldPath": index}}},
        {"name": "TAILRACE_RING_SECRET", "valueFrom": {"secretKeyRef": secret}},
        *({"name": name, "value": value} for name, value in values.items()),
        *(_given(each) for each in spec.pod.env if each.name not in OPERATORS_VARIABLES),
    ]


def _given(fields: Fields) -> dict[str, Any]:
    return fields.model_dump(by_alias=True, exclude_none=True)


def _probe(path: str, *, period_s: int, failures_max: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "public"},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures_max,
    }


def _apart(cluster: str) -> dict[str, Any]:
    """Rather on different nodes, and in different zones where there are any."""
    topologies = {"kubernetes.io/hostname": 100, ZONE_LABEL: 50}
    return {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": weight,
                "podAffinityTerm": {
                    "labelSelector": {"matchLabels": selector_labels(cluster)},
                    "topologyKey": topology,
                },
            }
            for topology, weight in topologies.items()
        ]
    }
