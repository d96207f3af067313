"""The resources that scenarios apply, as small as a laptop likes them, and what they become."""

import gzip
import itertools
import json
from collections import defaultdict
from typing import Any

from tests.e2e.client_pod import ClientPod, Load
from tests.e2e.kubernetes import Document, Kubernetes
from tests.e2e.provider import ROOT
from tests.support.broker.history import violations

FLIGHTS = ROOT / "examples/data/flights.ndjson.gz"
SMALL = {"requests": {"cpu": "20m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}
READY_S_MAX = 180.0
# Other projects have a Topic too: these short names, or the full ones, are nobody else's.
SHORT_NAMES = {"StreamCluster": "trc", "Topic": "trt"}


def stream_cluster(name: str = "events", *, brokers: int = 1, **spec: Any) -> Document:
    """A ring; one broker unless reported otherwise."""
    defaults = {"brokers": brokers, "storage": {"size": "1Gi"}, "resources": SMALL}
    return _resource("StreamCluster", name, {**defaults, **spec})


def topic(name: str, *, cluster: str = "events", **spec: Any) -> Document:
    """A topic of a ring in the same namespace."""
    return _resource("Topic", name, {"cluster": cluster, **spec})


def url_of(kubernetes: Kubernetes, name: str = "events") -> str:
    """What pods of any namespace call the ring."""
    return f"http://{name}.{kubernetes.namespace}.svc:9250"


def found(kubernetes: Kubernetes, *documents: Document) -> None:
    """Apply clusters and topics, and wait until all are Ready."""
    kubernetes.apply(*documents)
    for document in documents:
        resource = f"{SHORT_NAMES[document['kind']]}/{document['metadata']['name']}"
        kubernetes.wait(resource, "Ready", timeout_s=READY_S_MAX)


def uids_of_pods(kubernetes: Kubernetes, name: str = "events") -> dict[str, str]:
    """Each broker's pod by its name: another uid means a new pod."""
    pods = kubernetes.objects("pods", f"app.kubernetes.io/instance={name}")
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}


def all_are_new(kubernetes: Kubernetes, before: dict[str, str]) -> bool:
    """Whether each broker has a new pod, and ready."""
    pods = kubernetes.objects("pods")
    uids = {pod["metadata"]["uid"] for pod in pods}
    return len(pods) == 3 and all(map(is_ready, pods)) and not uids & set(before.values())


def delete_pod(kubernetes: Kubernetes, name: str) -> None:
    """With two seconds for a goodbye; returns when another pod is ready in its place."""
    before = kubernetes.get("pod", name)["metadata"]["uid"]
    kubernetes.say(f"$ kubectl delete pod {name} --grace-period=0 --force")
    kubernetes.kubectl("delete", "pod", name, "--grace-period=0", "--force", "--wait=false")

    def is_back() -> bool:
        pod = kubernetes.find("pod", name)
        return pod is not None and pod["metadata"]["uid"] != before and is_ready(pod)

    kubernetes.until(is_back, f"{name} is back and ready")


def assert_kept(kubernetes: Kubernetes, load: Load, client: ClientPod, url: str, name: str) -> None:
    """Each acknowledged event is there once, at its offset, and in order."""
    history = load.history(client, url, name)
    wrong = violations(history)
    kubernetes.say(f"{len(history.read)} events are there; violations: {len(wrong)}")
    assert load.acknowledged
    assert wrong[:5] == []


def is_ready(pod: Document) -> bool:
    """Whether it is among the endpoints of its Service."""
    conditions = pod["status"].get("conditions", [])
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    )


def flights(count: int) -> list[str]:
    """The first lines of the examples' events."""
    with gzip.open(FLIGHTS, "rt") as file:
        return [line.rstrip("\n") for line in itertools.islice(file, count)]


def by_origin(events: list[Any]) -> dict[str, list[Any]]:
    """Each airport's flights in their order, which is what a log keeps."""
    found_by_origin: dict[str, list[Any]] = defaultdict(list)
    for event in events:
        found_by_origin[event["origin"]].append(event)
    return dict(found_by_origin)


def parsed(lines: list[str]) -> list[Any]:
    """JSON, one a line."""
    return [json.loads(line) for line in lines]


def _resource(kind: str, name: str, spec: Document) -> Document:
    api_version = "tailrace.dev/v1alpha1"
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec}
