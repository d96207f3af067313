"""What makes pods of StatefulSets run in `FakeKubernetes`: its controllers and one kubelet.

What runs in the pods is in `fake_brokers.py`.
"""

import asyncio
import base64
import hashlib
import json
from typing import Any

from tests.support.operator.fake_brokers import Brokers
from tests.support.operator.fake_kubernetes import FakeKubernetes, is_ready

POLL_S = 0.05
ORDINAL_LABEL = "apps.kubernetes.io/pod-index"
PROTECTION = "kubernetes.io/pvc-protection"


class FakeNodes:
    """One StatefulSet controller and one kubelet, for one namespace; they act at each change."""

    def __init__(self, kube: FakeKubernetes, brokers: Brokers) -> None:
        self.kube = kube
        self.brokers = brokers
        self.started: list[tuple[int, str]] = []  # ordinal and uid of each pod that ran
        self._running: dict[int, str] = {}
        self._ready: set[int] | None = None  # None: brokers that report it themselves
        self.is_away = False  # then pods stay as they are
        self.refusal: str | None = None  # why no pod is made, as for a quota
        self.waiting: dict[str, str] | None = None  # why no container starts: reason, message
        self._is_acting = False
        kube.on_change.append(self.act)

    def act(self) -> None:
        """Bring pods and claims to what StatefulSets say; what that changes is acted on too."""
        if self._is_acting or self.is_away:
            return
        self._is_acting = True
        try:
            before = -1
            while before != self.kube._version:
                before = self.kube._version
                self._stop_removed()
                self._release_claims()
                for each in self.kube.of_kind("StatefulSet"):
                    self._control(each)
        finally:
            self._is_acting = False

    async def probe(self) -> None:
        """For ever, as a kubelet probes readiness; for brokers that report to nobody."""
        while True:
            await asyncio.to_thread(self._probed)
            self.act()
            await asyncio.sleep(POLL_S)

    def _probed(self) -> None:
        self._ready = {ordinal for ordinal in list(self._running) if self.brokers.is_ready(ordinal)}

    def _control(self, owner: dict[str, Any]) -> None:
        name, spec = owner["metadata"]["name"], owner["spec"]
        template = spec["template"]
        revision = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]
        for ordinal in range(spec["replicas"]):
            is_going = self._claim(owner, ordinal)
            if self.kube.find("Pod", f"{name}-{ordinal}") is None:
                if self.refusal is not None or is_going:
                    why = self.refusal or f"pvc data-{name}-{ordinal} is being deleted"
                    self._refuse(owner, f"{name}-{ordinal}", why)
                    continue
                self._pod(owner, ordinal, revision)
            self._run(self.kube.get("Pod", f"{name}-{ordinal}"), ordinal)
        self._remove_beyond(name, spec["replicas"])
        found = [self.kube.find("Pod", f"{name}-{each}") for each in range(spec["replicas"])]
        pods = [pod for pod in found if pod is not None]
        status = {
            "observedGeneration": owner["metadata"]["generation"],
            "replicas": len(pods),
            "readyReplicas": sum(is_ready(pod) for pod in pods),
            "updateRevision": revision,
        }
        self.kube.edit("StatefulSet", name, {"status": status})

    def _remove_beyond(self, name: str, count: int) -> None:
        """Pods of a StatefulSet that was made smaller."""
        for ordinal, uid in list(self._running.items()):
            pod = self.kube.find("Pod", f"{name}-{ordinal}")
            if ordinal >= count and pod is not None and pod["metadata"]["uid"] == uid:
                self.kube.remove("Pod", f"{name}-{ordinal}")

    def _refuse(self, owner: dict[str, Any], pod: str, message: str) -> None:
        """As the controller reports it: one Event, with the time of the last."""
        name = f"{pod}.refused"
        if self.kube.find("Event", name) is None:
            note = f"create Pod {pod} in StatefulSet events failed error: {message}"
            self.kube.put(
                {
                    "kind": "Event",
                    "metadata": {"name": name},
                    "reason": "FailedCreate",
                    "type": "Warning",
                    "message": note,
                    "involvedObject": {"kind": "StatefulSet", "uid": owner["metadata"]["uid"]},
                }
            )

    def _release_claims(self) -> None:
        """A claim that is deleted stays as long as its pod is there."""
        for each in self.kube.of_kind("PersistentVolumeClaim"):
            metadata = each["metadata"]
            pod = metadata["name"].partition("-")[2]
            if "deletionTimestamp" in metadata and self.kube.find("Pod", pod) is None:
                others = [name for name in metadata["finalizers"] if name != PROTECTION]
                gone = {"metadata": {"finalizers": others or None}}
                self.kube.edit("PersistentVolumeClaim", metadata["name"], gone)

    def _claim(self, owner: dict[str, Any], ordinal: int) -> bool:
        """Make it, if it is not there; whether it is being deleted."""
        (template,) = owner["spec"]["volumeClaimTemplates"]
        name = f"{template['metadata']['name']}-{owner['metadata']['name']}-{ordinal}"
        claim = self.kube.find("PersistentVolumeClaim", name)
        if claim is None:
            selected = owner["spec"]["selector"]["matchLabels"]
            labels = {**template["metadata"].get("labels", {}), **selected}
            claim = self.kube.put(
                {
                    "kind": "PersistentVolumeClaim",
                    "metadata": {"name": name, "labels": labels, "finalizers": [PROTECTION]},
                    "spec": {"storageClassName": "standard", **template["spec"]},
                }
            )
        capacity = {"storage": claim["spec"]["resources"]["requests"]["storage"]}
        self.kube.edit("PersistentVolumeClaim", name, {"status": {"capacity": capacity}})
        return "deletionTimestamp" in claim["metadata"]

    def _pod(self, owner: dict[str, Any], ordinal: int, revision: str) -> None:
        template, metadata = owner["spec"]["template"], owner["metadata"]
        labels = {
            **template["metadata"]["labels"],
            ORDINAL_LABEL: str(ordinal),
            "controller-revision-hash": revision,
        }
        reference = {
            "kind": "StatefulSet",
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
        }
        self.kube.put(
            {
                "kind": "Pod",
                "metadata": {
                    "name": f"{metadata['name']}-{ordinal}",
                    "labels": labels,
                    "ownerReferences": [reference],
                },
                "spec": template["spec"],
                "status": {"phase": "Pending"},
            }
        )

    def _run(self, pod: dict[str, Any], ordinal: int) -> None:
        uid = pod["metadata"]["uid"]
        if pod["spec"].get("schedulingGates"):
            return
        if self._running.get(ordinal) != uid:
            if self.waiting is not None:
                waiting = [{"name": "broker", "state": {"waiting": self.waiting}}]
                status = {"phase": "Pending", "containerStatuses": waiting}
                self.kube.edit("Pod", pod["metadata"]["name"], {"status": status})
                return
            environment = self._environment(pod, ordinal)
            if environment is None:
                return  # what it is made from is not there yet: CreateContainerConfigError
            self._running[ordinal] = uid
            self.started.append((ordinal, uid))
            self.brokers.start(ordinal, environment)
        ready = self._ready
        is_ready = ordinal in ready if ready is not None else self.brokers.is_ready(ordinal)
        conditions = [{"type": "Ready", "status": str(is_ready)}]
        status = {
            "phase": "Running",
            "containerStatuses": [{"name": "broker", "state": {"running": {}}}],
            "conditions": conditions,
        }
        self.kube.edit("Pod", pod["metadata"]["name"], {"status": status})

    def _stop_removed(self) -> None:
        uids = {resource["metadata"]["uid"] for resource in self.kube.of_kind("Pod")}
        for ordinal, uid in list(self._running.items()):
            if uid not in uids:
                del self._running[ordinal]
                self.brokers.stop(ordinal)

    def _environment(self, pod: dict[str, Any], ordinal: int) -> dict[str, str] | None:
        """The container's variables, resolved as the kubelet does; None: something is missing."""
        (container,) = pod["spec"]["containers"]
        found: dict[str, str] = {}
        for each in container.get("envFrom", ()):
            settings = self.kube.find("ConfigMap", each["configMapRef"]["name"])
            if settings is None:
                return None
            found |= settings.get("data", {})
        for each in container["env"]:
            source = each.get("valueFrom", {})
            if "secretKeyRef" in source:
                secret = self.kube.find("Secret", source["secretKeyRef"]["name"])
                if secret is None:
                    return None
                encoded = secret["data"][source["secretKeyRef"]["key"]]
                found[each["name"]] = base64.b64decode(encoded).decode()
            elif "fieldRef" in source:
                is_name = source["fieldRef"]["fieldPath"] == "metadata.name"
                found[each["name"]] = pod["metadata"]["name"] if is_name else str(ordinal)
            else:
                found[each["name"]] = each["value"]
        return found
