"""The life of a Topic: created, altered, corrected, waiting for its ring, gone or not."""

from typing import Any

from tests.e2e.client_pod import ClientPod
from tests.e2e.kubernetes import Kubernetes, condition_of
from tests.e2e.resources import found, stream_cluster, topic, url_of

DAY_MS = 24 * 60 * 60 * 1000


def test_a_topic_is_created_altered_and_corrected(
    kubernetes: Kubernetes, client: ClientPod
) -> None:
    url = url_of(kubernetes)
    found(kubernetes, stream_cluster(), topic("flights", topicName="all_flights", retention="7d"))
    assert described(client, url, "all_flights")["retentionMs"] == 7 * DAY_MS
    assert described(client, url, "all_flights")["partitions"] == 4

    kubernetes.apply(topic("flights", topicName="all_flights", retention="2d"))
    kubernetes.wait("trt/flights", "jsonpath={.status.retention}=2d")
    assert described(client, url, "all_flights")["retentionMs"] == 2 * DAY_MS

    client.show(url, "topic", "alter", "all_flights", "--retention", "1h")
    kubernetes.until(
        lambda: described(client, url, "all_flights")["retentionMs"] == 2 * DAY_MS,
        "the operator has put its retention right",
    )
    kubernetes.show("get", "trt")
    kubernetes.show("get", "events", "--field-selector", "involvedObject.kind=Topic")


def test_a_topic_waits_for_its_ring(kubernetes: Kubernetes, client: ClientPod) -> None:
    kubernetes.apply(topic("flights"))
    kubernetes.wait("trt/flights", "Ready=False")
    waiting = condition_of(kubernetes.get("trt", "flights"), "Ready")
    kubernetes.say(f"{waiting['reason']}: {waiting['message']}")
    assert "events" in waiting["message"]

    found(kubernetes, stream_cluster())
    kubernetes.wait("trt/flights", "Ready")
    assert described(client, url_of(kubernetes), "flights")["partitions"] == 4


def test_deletion_keeps_or_deletes_as_the_policy_says(
    kubernetes: Kubernetes, client: ClientPod
) -> None:
    url = url_of(kubernetes)
    kept, gone = topic("kept"), topic("gone", deletionPolicy="Delete")
    found(kubernetes, stream_cluster(), kept, gone)
    first_id = kubernetes.get("trt", "gone")["status"]["topicId"]
    client.show(url, "produce", "kept", given='{"n": 1}\n')

    kubernetes.show("delete", "trt", "kept", "gone", "--timeout=60s")
    assert topics(client, url) == {"kept"}

    found(kubernetes, kept, gone)
    assert [record["value"] for record in client.records(url, "kept")] == [{"n": 1}]
    again_id = kubernetes.get("trt", "gone")["status"]["topicId"]
    assert again_id != first_id
    kubernetes.say(f"topic gone is a new one: {again_id}")


def described(client: ClientPod, url: str, name: str) -> Any:
    """What the ring says of a topic."""
    return client.json(url, "topic", "describe", name)


def topics(client: ClientPod, url: str) -> set[str]:
    """Names of all."""
    return {each["name"] for each in client.json(url, "topic", "list")}
