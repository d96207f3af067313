"""A StreamCluster that goes: its volumes stay and serve the next one, or go with it."""

from tests.e2e.client_pod import ClientPod
from tests.e2e.kubernetes import Kubernetes
from tests.e2e.resources import by_origin, flights, found, parsed, stream_cluster, topic, url_of

EVENTS = 500
PRODUCE = ["produce", "flights", "--file", "-", "--key", ".origin"]


def test_with_retain_the_next_one_has_the_data(kubernetes: Kubernetes, client: ClientPod) -> None:
    cluster, url, lines = stream_cluster(brokers=3), url_of(kubernetes), flights(EVENTS)
    found(kubernetes, cluster, topic("flights"))
    client.show(url, *PRODUCE, given="\n".join(lines))
    cluster_id = kubernetes.get("trc", "events")["status"]["clusterId"]

    kubernetes.show("delete", "trc", "events", "--timeout=60s")
    for ordinal in range(3):
        kubernetes.wait(f"pod/events-{ordinal}", "delete")
    kubernetes.show("get", "statefulset,service,configmap,secret,persistentvolumeclaim")
    claims = [each["metadata"]["name"] for each in kubernetes.objects("persistentvolumeclaim")]
    assert claims == ["data-events-0", "data-events-1", "data-events-2"]

    found(kubernetes, cluster)
    kubernetes.wait("trt/flights", "Ready")
    values = [record["value"] for record in client.records(url, "flights")]
    kubernetes.say(f"{len(values)} events are there again")
    assert by_origin(values) == by_origin(parsed(lines))
    assert kubernetes.get("trc", "events")["status"]["clusterId"] == cluster_id


def test_with_delete_the_volumes_go(kubernetes: Kubernetes) -> None:
    found(kubernetes, stream_cluster(deletionPolicy="Delete"))
    assert [each["metadata"]["name"] for each in kubernetes.objects("persistentvolumeclaim")] == [
        "data-events-0"
    ]

    kubernetes.show("delete", "trc", "events", "--timeout=60s")
    kubernetes.wait("persistentvolumeclaim/data-events-0", "delete")
    kubernetes.say("no claim is left")
