"""Another image, other settings, nodes that are drained: one broker at a time, and nothing is lost.

Producers write all the time, and two replicas of each range are in sync all the time.
"""

import pytest

from tests.e2e.client_pod import ClientPod
from tests.e2e.kubernetes import Kubernetes
from tests.e2e.operator_release import NEXT_TAG
from tests.e2e.resources import (
    all_are_new,
    assert_kept,
    found,
    is_ready,
    stream_cluster,
    topic,
    uids_of_pods,
    url_of,
)
from tests.e2e.watching import WATCH_PODS, away_at_once, copies_at_least, watch_replicas

TOPIC = "load"
BROKERS = "app.kubernetes.io/instance=events"
READY_S_MAX = 300.0
DRAIN_S_MAX = 240.0
EVENTS_BETWEEN = 200


def test_brokers_restart_one_at_a_time(kubernetes: Kubernetes, client: ClientPod) -> None:
    ring = stream_cluster(brokers=3)
    found(kubernetes, ring, topic(TOPIC))
    url, image = url_of(kubernetes), f"{kubernetes.provider.image('tailrace/broker')}:{NEXT_TAG}"
    changes = {
        "image": stream_cluster(brokers=3, image=image),
        "settings": stream_cluster(brokers=3, image=image, settings={"logLevel": "debug"}),
    }

    with client.load(url, TOPIC) as load:
        for what, changed in changes.items():
            before = uids_of_pods(kubernetes)
            with (
                kubernetes.running(*WATCH_PODS) as pods,
                client.kubernetes.running(*watch_replicas(client, url)) as replicas,
            ):
                kubernetes.say(f"another {what}")
                kubernetes.apply(changed)
                kubernetes.until(
                    lambda before=before: all_are_new(kubernetes, before),  # type: ignore[misc]
                    "all three brokers have restarted",
                    timeout_s=READY_S_MAX,
                )
                kubernetes.wait("trc/events", "Progressing=False")
                kubernetes.wait("trc/events", "Ready")
                away, copies = away_at_once(pods), copies_at_least(replicas)
            kubernetes.say(f"brokers away at once: {away}; copies in sync: {copies} or more")
            assert (away, copies) == (1, 2)
        kubernetes.until(load.grows_by(EVENTS_BETWEEN), "producers write")

    kubernetes.show("get", "events", "--field-selector", "involvedObject.kind=StreamCluster")
    assert images_of_brokers(kubernetes) == {image}
    environment = kubernetes.kubectl("exec", "events-0", "--", "env").splitlines()
    assert "TAILRACE_LOG_LEVEL=debug" in environment
    assert_kept(kubernetes, load, client, url, TOPIC)


def test_nodes_that_are_drained_together_lose_one_broker_at_a_time(
    kubernetes: Kubernetes, client: ClientPod
) -> None:
    found(kubernetes, stream_cluster(brokers=3), topic(TOPIC))
    url, nodes = url_of(kubernetes), nodes_of(kubernetes)
    if len(set(nodes.values())) < 3:
        pytest.skip(f"the brokers are not on three nodes: {nodes}")
    drained, before = sorted(set(nodes.values()))[:2], uids_of_pods(kubernetes)
    options = ["--ignore-daemonsets", "--delete-emptydir-data", f"--pod-selector={BROKERS}"]

    try:
        with client.load(url, TOPIC) as load:
            with (
                kubernetes.running(*WATCH_PODS) as pods,
                client.kubernetes.running(*watch_replicas(client, url)) as replicas,
                kubernetes.running("drain", drained[0], *options) as first,
                kubernetes.running("drain", drained[1], *options) as second,
            ):
                kubernetes.say(f"kubectl drain {drained[0]} and {drained[1]}, at the same time")
                for drain in (first, second):
                    lines = drain.finish(DRAIN_S_MAX)
                    kubernetes.say(lines[-1].strip())
                    assert drain.process.returncode == 0, lines
                kubernetes.until(
                    lambda: all(map(is_ready, kubernetes.objects("pods", BROKERS))),
                    "all brokers serve",
                )
                kubernetes.wait("trc/events", "Degraded=False")
                away, copies = away_at_once(pods), copies_at_least(replicas)
            kubernetes.show("get", "pods", "--output", "wide")
            kubernetes.say(f"brokers away at once: {away}; copies in sync: {copies} or more")
            kubernetes.until(load.grows_by(EVENTS_BETWEEN), "producers write")
        moved = [name for name, uid in uids_of_pods(kubernetes).items() if uid != before[name]]
        assert len(moved) == 2
        assert not set(drained) & set(nodes_of(kubernetes).values())
        assert (away, copies) == (1, 2)
        assert_kept(kubernetes, load, client, url, TOPIC)
    finally:
        for node in drained:
            kubernetes.kubectl("uncordon", node)


def images_of_brokers(kubernetes: Kubernetes) -> set[str]:
    """Of all pods."""
    pods = kubernetes.objects("pods")
    return {container["image"] for pod in pods for container in pod["spec"]["containers"]}


def nodes_of(kubernetes: Kubernetes) -> dict[str, str]:
    """Each broker's node by its pod's name."""
    pods = kubernetes.objects("pods", BROKERS)
    return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods}
