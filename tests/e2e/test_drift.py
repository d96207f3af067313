"""What somebody changes by hand is corrected, unless the ring is paused."""

from tests.e2e.kubernetes import CommandError, Kubernetes
from tests.e2e.resources import found, stream_cluster, topic

PAUSED = "tailrace.dev/paused"
NOTICED_S_MAX = 30.0  # it is watched
NOTHING_HAPPENS_S = 30.0


def test_what_is_deleted_or_edited_by_hand_comes_back(kubernetes: Kubernetes) -> None:
    found(kubernetes, stream_cluster())

    kubernetes.show("delete", "service", "events")
    kubernetes.wait("service/events", "create", timeout_s=NOTICED_S_MAX)
    edit = '[{"op": "replace", "path": "/spec/ports/0/port", "value": 9999}]'
    kubernetes.show("patch", "service", "events", "--type", "json", "--patch", edit)
    kubernetes.until(
        lambda: ports_of(kubernetes) == {"public": 9250, "produce": 9251, "read": 9252},
        "the Service has its ports again",
    )
    kubernetes.wait("trc/events", "Ready")
    kubernetes.show("get", "events", "--field-selector", "involvedObject.kind=StreamCluster")


def test_a_paused_ring_is_left_alone(kubernetes: Kubernetes) -> None:
    found(kubernetes, stream_cluster(), topic("flights"))
    kubernetes.show("annotate", "trc", "events", f"{PAUSED}=true")
    kubernetes.wait("trc/events", "ReconciliationPaused")
    kubernetes.show("get", "trc")

    kubernetes.show("delete", "service", "events")
    assert not is_created(kubernetes, "service/events", within_s=NOTHING_HAPPENS_S)
    kubernetes.say(f"nothing has happened for {NOTHING_HAPPENS_S:.0f} s")

    kubernetes.show("annotate", "trc", "events", f"{PAUSED}-")
    kubernetes.wait("service/events", "create", timeout_s=NOTICED_S_MAX)
    kubernetes.wait("trc/events", "ReconciliationPaused=False")
    kubernetes.wait("trc/events", "Ready")


def ports_of(kubernetes: Kubernetes) -> dict[str, int]:
    """Of the Service of the clients."""
    ports = kubernetes.get("service", "events")["spec"]["ports"]
    return {port["name"]: port["port"] for port in ports}


def is_created(kubernetes: Kubernetes, resource: str, *, within_s: float) -> bool:
    """Whether it appears in that time."""
    try:
        kubernetes.kubectl("wait", resource, "--for=create", f"--timeout={within_s:.0f}s")
    except CommandError:
        return False
    return True
