"""Brokers are pinned to the zones that a ring names, one each, for ever."""

import pytest

from tests.e2e.kubernetes import Kubernetes
from tests.e2e.provider import ZONES
from tests.e2e.resources import delete_pod, found, stream_cluster

ZONE_LABEL = "topology.kubernetes.io/zone"


def test_each_broker_is_in_its_zone(kubernetes: Kubernetes) -> None:
    nodes = kubernetes.objects("nodes")
    zone_by_node = {
        node["metadata"]["name"]: node["metadata"]["labels"].get(ZONE_LABEL) for node in nodes
    }
    if not set(ZONES) <= set(zone_by_node.values()):
        pytest.skip(f"the cluster's nodes are not in {', '.join(ZONES)} (label {ZONE_LABEL})")

    found(kubernetes, stream_cluster(brokers=3, zones=list(ZONES)))
    kubernetes.show("get", "pods", "--output", "wide")
    kubernetes.show("get", "trc")
    assert zones_of_brokers(kubernetes, zone_by_node) == list(ZONES)
    assert kubernetes.get("trc", "events")["status"]["zones"] == 3

    delete_pod(kubernetes, "events-1")
    assert zones_of_brokers(kubernetes, zone_by_node) == list(ZONES)


def zones_of_brokers(
    kubernetes: Kubernetes, zone_by_node: dict[str, str | None]
) -> list[str | None]:
    """By ordinal."""
    pods = [kubernetes.get("pod", f"events-{ordinal}") for ordinal in range(3)]
    return [zone_by_node[pod["spec"]["nodeName"]] for pod in pods]
