"""A StreamCluster that goes: its volumes stay and serve the next one, or go with it."""

import time

from tests.e2e.client_pod import ClientPod
from tests.e2e.kubernetes import Kubernetes
from tests.e2e.resources import (
    by_origin,
    flights,
    found,
    is_ready,
    parsed,
    stream_cluster,
    topic,
    uids_of_pods,
    url_of,
)

EVENTS = 500
TIMES = 5
PRODUCE = ["produce", "flights", "--file", "-", "--key", ".origin"]


def test_with_retain_the_next_one_has_the_data(kubernetes: Kubernetes, client: ClientPod) -> None:
    cluster, url, lines = stream_cluster(brokers=3), url_of(kubernetes), flights(EVENTS)
    found(kubernetes, cluster, topic("flights"))
    client.show(url, *PRODUCE, given="\n".join(lines))
    cluster_id = id_of(kubernetes)

    kubernetes.show("delete", "trc", "events", "--timeout=60s")
    for ordinal in range(3):
        kubernetes.wait(f"pod/events-{ordinal}", "delete")
    kubernetes.show("get", "statefulset,service,configmap,secret,persistentvolumeclaim")
    assert list(claims_of(kubernetes)) == ["data-events-0", "data-events-1", "data-events-2"]

    found(kubernetes, cluster)
    kubernetes.wait("trt/flights", "Ready")
    values = [record["value"] for record in client.records(url, "flights")]
    kubernetes.say(f"{len(values)} events are there again")
    assert by_origin(values) == by_origin(parsed(lines))
    assert id_of(kubernetes) == cluster_id


def test_deleted_and_applied_at_once_it_has_the_data(
    kubernetes: Kubernetes, client: ClientPod
) -> None:
    cluster, url, lines = stream_cluster(brokers=3), url_of(kubernetes), flights(EVENTS)
    found(kubernetes, cluster, topic("flights"))
    client.show(url, *PRODUCE, given="\n".join(lines))
    cluster_id = id_of(kubernetes)

    for number in range(TIMES):
        started_s = time.monotonic()
        if number % 2:  # one more between, which goes as soon as its pods begin
            kubernetes.show("delete", "trc", "events", "--timeout=60s")
            kubernetes.apply(cluster)
            kubernetes.wait("statefulset/events", "create")
        kubernetes.show("delete", "trc", "events", "--timeout=60s")
        found(kubernetes, cluster)
        kubernetes.say(f"Ready again after {time.monotonic() - started_s:.1f} s")

    kubernetes.wait("trt/flights", "Ready")
    values = [record["value"] for record in client.records(url, "flights")]
    assert by_origin(values) == by_origin(parsed(lines))
    assert id_of(kubernetes) == cluster_id


def test_with_delete_the_volumes_go_with_it_alone(kubernetes: Kubernetes) -> None:
    cluster = stream_cluster(deletionPolicy="Delete")
    found(kubernetes, cluster)
    pods, claims, cluster_id = uids_of_pods(kubernetes), claims_of(kubernetes), id_of(kubernetes)
    assert list(claims) == ["data-events-0"]

    kubernetes.show("delete", "statefulset", "events", "--timeout=60s")
    kubernetes.until(lambda: has_another(kubernetes, pods), "another pod is ready")
    kubernetes.wait("trc/events", "Ready")
    assert claims_of(kubernetes) == claims
    assert id_of(kubernetes) == cluster_id

    kubernetes.show("delete", "trc", "events", "--timeout=60s")
    found(kubernetes, cluster)
    assert claims_of(kubernetes).keys() == claims.keys()
    assert not set(claims_of(kubernetes).values()) & set(claims.values())
    assert id_of(kubernetes) != cluster_id
    kubernetes.say("applied again at once, it is a new ring on a new volume")

    kubernetes.show("delete", "trc", "events", "--timeout=60s")
    kubernetes.wait("persistentvolumeclaim/data-events-0", "delete")
    kubernetes.say("no claim is left")


def test_back_at_retain_the_volumes_stay(kubernetes: Kubernetes) -> None:
    found(kubernetes, stream_cluster(deletionPolicy="Delete"))
    claims, cluster_id = claims_of(kubernetes), id_of(kubernetes)
    kubernetes.until(lambda: is_owned(kubernetes), "the claim goes with the StreamCluster")

    kubernetes.apply(stream_cluster())
    kubernetes.until(lambda: not is_owned(kubernetes), "the claim does not go with it any more")
    kubernetes.show("delete", "trc", "events", "--timeout=60s")
    kubernetes.wait("pod/events-0", "delete")
    found(kubernetes, stream_cluster())

    assert claims_of(kubernetes) == claims
    assert id_of(kubernetes) == cluster_id


def claims_of(kubernetes: Kubernetes) -> dict[str, str]:
    """Their uids by their names: another uid means a new volume."""
    claims = kubernetes.objects("persistentvolumeclaim")
    return {claim["metadata"]["name"]: claim["metadata"]["uid"] for claim in claims}


def is_owned(kubernetes: Kubernetes) -> bool:
    """Whether the claim of the first broker is deleted with something else."""
    claim = kubernetes.get("persistentvolumeclaim", "data-events-0")
    return bool(claim["metadata"].get("ownerReferences"))


def has_another(kubernetes: Kubernetes, before: dict[str, str]) -> bool:
    """Whether the broker's pod was replaced, and ready."""
    pod = kubernetes.get("pod", "events-0")
    return pod["metadata"]["uid"] != before["events-0"] and is_ready(pod)


def id_of(kubernetes: Kubernetes) -> str:
    """Of the ring."""
    cluster_id: str = kubernetes.get("trc", "events")["status"]["clusterId"]
    return cluster_id
