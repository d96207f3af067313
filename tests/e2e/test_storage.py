"""Volumes grow while the ring works; they never shrink."""

from tests.e2e.kubernetes import Kubernetes
from tests.e2e.resources import found, stream_cluster, uids_of_pods


def test_storage_grows_without_a_restart(kubernetes: Kubernetes) -> None:
    found(kubernetes, stream_cluster(brokers=3))
    pods = uids_of_pods(kubernetes)

    kubernetes.apply(stream_cluster(brokers=3, storage={"size": "2Gi"}))
    for ordinal in range(3):
        claim = f"persistentvolumeclaim/data-events-{ordinal}"
        kubernetes.wait(claim, "jsonpath={.status.capacity.storage}=2Gi")
    template = "{.spec.volumeClaimTemplates[0].spec.resources.requests.storage}"
    kubernetes.wait("statefulset/events", f"jsonpath={template}=2Gi")  # what a new broker gets
    kubernetes.wait("trc/events", "Ready")

    kubernetes.show("get", "persistentvolumeclaims")
    assert uids_of_pods(kubernetes) == pods
    smaller = '{"spec": {"storage": {"size": "1Gi"}}}'
    refused = kubernetes.refused("patch", "trc", "events", "--type", "merge", "--patch", smaller)
    assert "storage can grow, not shrink (now 2Gi)" in refused
