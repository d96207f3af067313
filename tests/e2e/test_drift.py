"""What somebody changes by hand is corrected, unless the ring is paused."""

from tests.e2e.kubernetes import CommandError, Kubernetes
from tests.e2e.resources import found, stream_cluster, topic, uids_of_pods

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


def test_a_field_that_is_added_by_hand_is_taken_out_and_restarts_no_broker(
    kubernetes: Kubernetes,
) -> None:
    found(kubernetes, stream_cluster())
    pods = uids_of_pods(kubernetes)
    selector = kubernetes.get("service", "events")["spec"]["selector"]
    template = kubernetes.get("statefulset", "events")["spec"]["template"]

    edit = '{"spec": {"selector": {"x": "y"}}}'
    kubernetes.show("patch", "service", "events", "--type", "merge", "--patch", edit)
    kubernetes.until(
        lambda: kubernetes.get("service", "events")["spec"]["selector"] == selector,
        "the Service selects the brokers again",
    )
    edit = (
        '{"spec": {"template": {"spec": {"nodeSelector": {"disk": "fast"}, "containers": '
        '[{"name": "broker", "command": ["sleep", "1d"], "env": [{"name": "A", "value": "b"}]}]}}}}'
    )
    kubernetes.show("patch", "statefulset", "events", "--patch", edit)
    kubernetes.until(
        lambda: kubernetes.get("statefulset", "events")["spec"]["template"] == template,
        "the pod template is the operator's again",
    )
    kubernetes.wait("trc/events", "Ready")
    assert uids_of_pods(kubernetes) == pods, "no broker was restarted"
    kubernetes.show("get", "events", "--field-selector", "reason=DriftCorrected")


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
