"""The first minutes of a newcomer: install, apply, produce, read, poll, delete."""

import time

from tests.e2e.client_pod import ClientPod
from tests.e2e.kubernetes import Kubernetes, condition_of
from tests.e2e.resources import by_origin, flights, found, parsed, stream_cluster, topic, url_of

EVENTS = 2000
CLUSTER_COLUMNS = "NAME BROKERS READY STATUS BALANCED ZONES VERSION AGE"
TOPIC_COLUMNS = "NAME CLUSTER PARTITIONS RETENTION DURABILITY SIZE READY REASON AGE"


def test_the_quickstart_serves_pods_of_other_namespaces(
    kubernetes: Kubernetes, client: ClientPod
) -> None:
    started_s = time.monotonic()
    kubernetes.show("apply", "--filename", "examples/quickstart.yaml")
    kubernetes.show("wait", "--for=condition=Ready", "trc/events", "--timeout=3m", timeout_s=190)
    kubernetes.say(f"from apply to Ready: {time.monotonic() - started_s:.1f} s")
    kubernetes.wait("trt/flights", "Ready")

    table = kubernetes.show("get", "streamcluster,topic")
    cluster_head, cluster, _, topic_head, flights_row = table.strip().splitlines()
    assert cluster_head.split() == CLUSTER_COLUMNS.split()
    assert topic_head.split() == TOPIC_COLUMNS.split()
    assert cluster.split()[:5] == ["streamcluster.tailrace.dev/events", "3", "3", "Ready", "True"]
    assert flights_row.split()[:5] == ["topic.tailrace.dev/flights", "events", "12", "7d", "fsync"]
    assert flights_row.split()[6] == "True"
    assert kubernetes.kubectl("get", "tailrace").strip().splitlines()[0].split()[:2] == [
        "NAME",
        "BROKERS",
    ]

    ready = condition_of(kubernetes.get("trc", "events"), "Ready")
    assert ready["message"] == (
        "3 of 3 brokers serve; 3 copies of each event, all in sync in 3 of 3 ranges"
    )

    lines, url = flights(EVENTS), url_of(kubernetes)
    assert client.ring(url)["factor"] == 3
    produce = ["produce", "flights", "--file", "-", "--key", ".origin"]
    client.show(url, *produce, given="\n".join(lines))
    records = client.records(url, "flights")
    kubernetes.say(f"{len(records)} events are read back through the Service")
    assert by_origin([record["value"] for record in records]) == by_origin(parsed(lines))
    client.show(url, "consume", "flights", "--last", "1", "--max", "2")
    client.show(url, "status")

    kubernetes.show("delete", "--filename", "examples/quickstart.yaml", "--timeout=60s")
    kubernetes.wait("pod/events-0", "delete")
    kubernetes.show("get", "persistentvolumeclaims")  # Retain: these stay


def test_a_group_polls_a_ring_of_one(kubernetes: Kubernetes, client: ClientPod) -> None:
    found(kubernetes, stream_cluster(), topic("flights"))
    lines, url = flights(EVENTS), url_of(kubernetes)

    produce = ["produce", "flights", "--file", "-", "--key", ".origin"]
    client.show(url, *produce, given="\n".join(lines))
    consume = ["consume", "flights", "--group", "billing", "--from", "earliest"]
    polled = parsed(client.tailrace(url, *consume, "--max", str(EVENTS)).splitlines())

    kubernetes.say(f"{len(polled)} events are polled by group billing")
    client.show(url, "group", "list")
    assert by_origin([record["value"] for record in polled]) == by_origin(parsed(lines))
