"""What is wrong is said in STATUS and Degraded, with one Warning; data is not put at risk."""

from typing import Any

from tests.e2e.kubernetes import Kubernetes, condition_of
from tests.e2e.resources import found, stream_cluster, uids_of_pods

QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "none"},
    "spec": {"hard": {"pods": "0"}},
}


def test_a_broker_is_not_restarted_whose_volume_holds_the_only_copy(kubernetes: Kubernetes) -> None:
    """Of a ring of three the volume is replaced: `test_storage.py`."""
    found(kubernetes, stream_cluster())
    pods = uids_of_pods(kubernetes)

    kubernetes.show("delete", "pvc", "data-events-0", "--wait=false")
    kubernetes.apply(stream_cluster(settings={"ioThreads": 4}))
    kubernetes.wait("trc/events", "Degraded")

    degraded = condition_of(kubernetes.get("trc", "events"), "Degraded")
    assert degraded["reason"] == "VolumeDeleting"
    budget = "jsonpath={.spec.maxUnavailable}=0"
    kubernetes.wait("poddisruptionbudget/events", budget)
    kubernetes.show("get", "trc")
    assert uids_of_pods(kubernetes) == pods
    assert warnings(kubernetes) == ["VolumeDeleting"]


def test_why_pods_do_not_run_is_reported_once(kubernetes: Kubernetes) -> None:
    kubernetes.apply(QUOTA)
    kubernetes.apply(stream_cluster(image="registry.invalid/tailrace:none"))
    kubernetes.until(lambda: "exceeded quota" in phase(kubernetes), "STATUS names the quota")
    kubernetes.show("get", "trc")

    kubernetes.show("delete", "resourcequota", "none")
    kubernetes.until(lambda: "ImagePullBackOff" in phase(kubernetes), "STATUS names the image")
    kubernetes.show("get", "trc")
    kubernetes.wait("trc/events", "Degraded")
    assert warnings(kubernetes).count("PodNotCreated") == 1
    assert "BrokerFails" in warnings(kubernetes)


def phase(kubernetes: Kubernetes) -> str:
    return str(kubernetes.get("trc", "events").get("status", {}).get("phase"))


def warnings(kubernetes: Kubernetes) -> list[str]:
    """Of the operator, about its StreamCluster."""
    events: list[Any] = kubernetes.objects("events")
    return sorted(
        each["reason"]
        for each in events
        if each["type"] == "Warning" and each["involvedObject"]["kind"] == "StreamCluster"
    )
