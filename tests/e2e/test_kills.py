"""Brokers are killed while producers write: what was acknowledged is there, once, in order."""

import pytest

from tests.e2e.client_pod import ClientPod
from tests.e2e.kubernetes import Kubernetes
from tests.e2e.resources import (
    assert_kept,
    delete_pod,
    found,
    is_ready,
    stream_cluster,
    topic,
    url_of,
)
from tests.e2e.sigkill import restarts_of, sigkill

TOPIC = "load"
KILLS = 3
EVENTS_BETWEEN_KILLS = 200


@pytest.mark.parametrize("brokers", [1, 3])
def test_acknowledged_events_survive_the_kill_of_a_pod(
    kubernetes: Kubernetes, client: ClientPod, brokers: int
) -> None:
    found(kubernetes, stream_cluster(brokers=brokers), topic(TOPIC))
    url = url_of(kubernetes)

    kills = KILLS * brokers
    with client.load(url, TOPIC) as load:
        for number in range(kills):
            kubernetes.until(load.grows_by(EVENTS_BETWEEN_KILLS), "producers write")
            end_broker(kubernetes, f"events-{number % brokers}", is_killed=number % 2 == 0)
        kubernetes.wait("trc/events", "Ready")
        kubernetes.until(load.grows_by(EVENTS_BETWEEN_KILLS), "producers write")

    assert len(load.acknowledged) > kills * EVENTS_BETWEEN_KILLS // 2
    assert_kept(kubernetes, load, client, url, TOPIC)


def end_broker(kubernetes: Kubernetes, pod: str, *, is_killed: bool) -> None:
    """By SIGKILL, or with its pod; returns when it serves again."""
    if not is_killed:
        delete_pod(kubernetes, pod)
        return
    restarts = restarts_of(kubernetes, pod)
    sigkill(kubernetes, pod)
    kubernetes.until(
        lambda: restarts_of(kubernetes, pod) > restarts and is_ready(kubernetes.get("pod", pod)),
        f"{pod} has started again and is ready",
    )
