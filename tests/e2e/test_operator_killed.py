"""The operator ends again and again, wherever it is: rings are founded once, and specs win."""

from tests.e2e.client_pod import ClientPod
from tests.e2e.kubernetes import Kubernetes
from tests.e2e.operator_release import Operator, random_ends
from tests.e2e.resources import found, stream_cluster, topic, uids_of_pods

ENDS = 6
# From a spec to a ring that works it takes five seconds: ends come before, amid and after its work.
LIFE_S_MAX = 5.0


def test_each_ring_is_founded_once_however_often_the_operator_ends(
    kubernetes: Kubernetes, client: ClientPod, operator: Operator
) -> None:
    brokers = {f"ring-{number}": 3 if number % 3 == 0 else 1 for number in range(ENDS)}
    ends = random_ends(kubernetes)

    for number, (name, count) in enumerate(brokers.items()):
        kubernetes.apply(stream_cluster(name, brokers=count), topic(f"of-{name}", cluster=name))
        operator.end(number, ends.uniform(0.0, LIFE_S_MAX))

    for name, count in brokers.items():
        kubernetes.wait(f"trc/{name}", "Ready")
        kubernetes.wait(f"trt/of-{name}", "Ready")
        status = kubernetes.get("trc", name)["status"]
        ids = {ring_id(kubernetes, client, name, ordinal) for ordinal in range(count)}
        assert ids == {status["clusterId"]}
        assert status["founded"] == {"brokers": count, "clusterId": status["clusterId"]}
    kubernetes.show("get", "trc,trt")
    kubernetes.say("all brokers of each ring have the one id that its status has recorded")


def test_specs_that_change_meanwhile_win(
    kubernetes: Kubernetes, client: ClientPod, operator: Operator
) -> None:
    found(kubernetes, stream_cluster(), topic("first"))
    ring = ring_id(kubernetes, client, "events", 0)
    ends = random_ends(kubernetes)

    for number in range(ENDS):
        size = number + 2
        settings = {"segmentSize": f"{size * 8}Mi"}
        changed = stream_cluster(storage={"size": f"{size}Gi"}, settings=settings)
        kubernetes.apply(changed, topic(f"topic-{size}"), topic("first", retention=f"{size}d"))
        operator.end(number, ends.uniform(0.0, LIFE_S_MAX))

    last = ENDS + 1
    is_grown = f"jsonpath={{.status.capacity.storage}}={last}Gi"
    kubernetes.wait("persistentvolumeclaim/data-events-0", is_grown)
    generation = kubernetes.get("trc", "events")["metadata"]["generation"]
    kubernetes.wait("trc/events", f"jsonpath={{.status.observedGeneration}}={generation}")
    kubernetes.wait("trc/events", "Progressing=False")
    kubernetes.wait("trc/events", "Ready")
    for name in ("first", *(f"topic-{number + 2}" for number in range(ENDS))):
        kubernetes.wait(f"trt/{name}", "Ready")
    kubernetes.wait("trt/first", f"jsonpath={{.status.retention}}={last}d")
    kubernetes.show("get", "trc,trt,persistentvolumeclaim")
    environment = kubernetes.kubectl("exec", "events-0", "--", "env").splitlines()
    assert f"TAILRACE_SEGMENT_BYTES={last * 8 << 20}" in environment
    assert ring_id(kubernetes, client, "events", 0) == ring
    assert list(uids_of_pods(kubernetes)) == ["events-0"]


def ring_id(kubernetes: Kubernetes, client: ClientPod, ring: str, ordinal: int) -> str:
    """What this broker says that it belongs to."""
    host = f"{ring}-{ordinal}.{ring}-brokers.{kubernetes.namespace}.svc"
    found_id: str = client.ring(f"http://{host}:9250")["clusterId"]
    return found_id
