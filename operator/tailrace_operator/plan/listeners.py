"""The objects by which clients outside reach single brokers: Services, and an Ingress."""

from typing import Any

from tailrace_operator.api.listeners import ORDINAL_PLACE, Listeners
from tailrace_operator.api.spec import StreamClusterSpec
from tailrace_operator.plan.facts import pod_count
from tailrace_operator.plan.names import PUBLIC_PORT, selector_labels
from tailrace_operator.plan.observed import ChildName, Cluster, Document, Founded

# On each pod of a StatefulSet.
_INDEX_LABEL = "apps.kubernetes.io/pod-index"


def listener_names(name: str, brokers: int) -> tuple[ChildName, ...]:
    """Return the objects that a StreamCluster with listeners can have besides."""
    services = (ChildName("Service", f"{name}-{ordinal}") for ordinal in range(brokers))
    return (*services, ChildName("Ingress", name))


def names_to_observe(
    name: str, spec: StreamClusterSpec, founded: Founded | None, status: Document
) -> tuple[ChildName, ...]:
    """Return those of a ring that has listeners, or had some that are not all removed yet."""
    if spec.listeners is None and not status.get("listeners"):
        return ()
    counts = (spec.brokers, 0 if founded is None else founded.broker_count, _known_count(status))
    return listener_names(name, max(counts))


def listener_count(cluster: Cluster) -> int:
    """Return how many there are, or, of those that are wanted, at least how many brokers.

    The status has it before the first one is made, so that none is forgotten.
    """
    count = pod_count(cluster)
    names = listener_names(cluster.owner.name, max(count, _known_count(cluster.status)))
    found = cluster.children.keys() & {*names}
    return max(len(found), 0 if cluster.spec.listeners is None else count)


def _known_count(status: Document) -> int:
    return int(status.get("listeners") or 0)


def listener_manifests(name: str, listeners: Listeners, brokers: int) -> dict[ChildName, Document]:
    """Return the body of each wanted object."""
    *services, ingress = listener_names(name, brokers)
    bodies = {child: _service(name, listeners, each) for each, child in enumerate(services)}
    return bodies | (
        {ingress: _ingress(name, listeners, services)} if listeners.type == "Ingress" else {}
    )


def _service(name: str, listeners: Listeners, ordinal: int) -> Document:
    is_of_ingress = listeners.type == "Ingress"
    port: dict[str, Any] = {
        "name": "public",
        "port": PUBLIC_PORT,
        "targetPort": "public",
        "protocol": "TCP",
    }
    if listeners.node_port is not None:
        port["nodePort"] = listeners.node_port + ordinal
    spec = {
        "type": "ClusterIP" if is_of_ingress else listeners.type,
        "selector": {**selector_labels(name), _INDEX_LABEL: str(ordinal)},
        "ports": [port],
    }
    return {**({} if is_of_ingress else _annotated(listeners, str(ordinal))), "spec": spec}


def _ingress(name: str, listeners: Listeners, services: list[ChildName]) -> Document:
    """A host for each broker, and one for all."""
    hosts = {listeners.host_of(each): child.name for each, child in enumerate(services)}
    if listeners.bootstrap_host is not None:
        hosts[listeners.bootstrap_host] = name
    spec: dict[str, Any] = {"rules": [_rule(host, service) for host, service in hosts.items()]}
    if listeners.ingress_class_name is not None:
        spec["ingressClassName"] = listeners.ingress_class_name
    if listeners.tls_secret_name is not None:
        spec["tls"] = [{"hosts": list(hosts), "secretName": listeners.tls_secret_name}]
    return {**_annotated(listeners, ORDINAL_PLACE), "spec": spec}


def _rule(host: str, service: str) -> Document:
    backend = {"service": {"name": service, "port": {"name": "public"}}}
    return {
        "host": host,
        "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]},
    }


def _annotated(listeners: Listeners, ordinal: str) -> Document:
    annotations = {
        key: value.replace(ORDINAL_PLACE, ordinal) for key, value in listeners.annotations.items()
    }
    return {"metadata": {"annotations": annotations}} if annotations else {}
