"""SIGKILL for what runs in a pod.

`kubectl delete --force` leaves two seconds for a goodbye, and a container's first process cannot be
killed from within; so a pod that sees its node's processes does it.
"""

from tests.e2e.client_pod import PROGRAMS
from tests.e2e.kubernetes import Document, Kubernetes
from tests.e2e.provider import VERSION

NAMESPACE = "e2e-sigkill"


def sigkill(kubernetes: Kubernetes, pod: str) -> None:
    """At once; its container starts again in the same pod."""
    found = kubernetes.get("pod", pod)
    killer = _killer(kubernetes, found["spec"]["nodeName"])
    program = (PROGRAMS / "kill.py").read_text()
    command = ["exec", killer, "--", "python", "-c", program, found["metadata"]["uid"]]
    count = kubernetes.elsewhere(NAMESPACE).kubectl(*command).strip()
    kubernetes.say(f"SIGKILL for the process of {pod}")
    assert count == "1", f"{pod} had {count} processes"


def restarts_of(kubernetes: Kubernetes, pod: str) -> int:
    """How often its container has started again."""
    (status,) = kubernetes.get("pod", pod)["status"]["containerStatuses"]
    count: int = status["restartCount"]
    return count


def remove_killers(kubernetes: Kubernetes) -> None:
    """With their namespace."""
    kubernetes.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false")


def _killer(kubernetes: Kubernetes, node: str) -> str:
    """The pod on that node, made when it is not there yet."""
    name, elsewhere = f"killer-{node}", kubernetes.elsewhere(NAMESPACE)
    if elsewhere.find("namespace", NAMESPACE) is None:
        elsewhere.kubectl("create", "namespace", NAMESPACE)
    if elsewhere.find("pod", name) is None:
        image = f"{kubernetes.provider.image('tailrace/broker')}:{VERSION}"
        elsewhere.apply(_manifest(name, node, image))
        elsewhere.wait(f"pod/{name}", "Ready")
    return name


def _manifest(name: str, node: str, image: str) -> Document:
    container = {
        "name": "killer",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", "import signal; signal.sigwait([signal.SIGTERM])"],
        "securityContext": {"runAsUser": 0, "privileged": True},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [container],
            "hostPID": True,
            "nodeName": node,
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],
        },
    }
