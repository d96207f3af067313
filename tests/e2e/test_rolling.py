"""Another image, other settings: brokers restart one at a time, and the ring stays whole."""

import json
from typing import Any

from tests.e2e.kubernetes import Kubernetes, Running
from tests.e2e.operator_release import NEXT_TAG
from tests.e2e.resources import found, is_ready, stream_cluster, topic, uids_of_pods

READY_S_MAX = 300.0


def test_brokers_restart_one_at_a_time(kubernetes: Kubernetes) -> None:
    ring = stream_cluster(brokers=3)
    found(kubernetes, ring, topic("flights"))
    image = f"{kubernetes.provider.image('tailrace/broker')}:{NEXT_TAG}"
    changes = {
        "image": stream_cluster(brokers=3, image=image),
        "settings": stream_cluster(brokers=3, image=image, settings={"logLevel": "debug"}),
    }

    watch = ["get", "pods", "--watch", "--output-watch-events", "--output", "json"]
    for what, changed in changes.items():
        before = uids_of_pods(kubernetes)
        with kubernetes.running(*watch) as running:
            kubernetes.say(f"another {what}")
            kubernetes.apply(changed)
            kubernetes.until(
                lambda before=before: all_are_new(kubernetes, before),  # type: ignore[misc]
                "all three brokers have restarted",
                timeout_s=READY_S_MAX,
            )
            kubernetes.wait("trc/events", "Progressing=False")
            kubernetes.wait("trc/events", "Ready")
            away = away_at_once(running)
        kubernetes.say(f"brokers away at once: {away}")
        assert away == 1

    kubernetes.show("get", "events", "--field-selector", "involvedObject.kind=StreamCluster")
    assert images_of_brokers(kubernetes) == {image}
    environment = kubernetes.kubectl("exec", "events-0", "--", "env").splitlines()
    assert "TAILRACE_LOG_LEVEL=debug" in environment


def all_are_new(kubernetes: Kubernetes, before: dict[str, str]) -> bool:
    """Whether each broker has a new pod, and ready."""
    pods = kubernetes.objects("pods")
    uids = {pod["metadata"]["uid"] for pod in pods}
    return len(pods) == 3 and all(map(is_ready, pods)) and not uids & set(before.values())


def images_of_brokers(kubernetes: Kubernetes) -> set[str]:
    """Of all pods."""
    pods = kubernetes.objects("pods")
    return {container["image"] for pod in pods for container in pod["spec"]["containers"]}


def away_at_once(running: Running) -> int:
    """The most brokers that were not ready at one time, by what the watch saw."""
    ready: dict[str, bool] = {}
    away = 0
    for event in events_of("".join(running.lines())):
        pod = event["object"]
        is_leaving = event["type"] == "DELETED" or "deletionTimestamp" in pod["metadata"]
        ready[pod["metadata"]["name"]] = is_ready(pod) and not is_leaving
        if len(ready) == 3:
            away = max(away, list(ready.values()).count(False))
    return away


def events_of(printed: str) -> list[Any]:
    """JSON documents, one behind the other; the last may be cut off."""
    decoder, events, start = json.JSONDecoder(), [], 0
    while start < len(printed):
        try:
            event, end = decoder.raw_decode(printed, start)
        except ValueError:
            break
        events.append(event)
        start = end + len(printed[end:]) - len(printed[end:].lstrip())
    return events
