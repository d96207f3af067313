"""A pod of another namespace, as users have them: the CLI and small programs against a Service."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.e2e.kubernetes import Document, Kubernetes, Running
from tests.support.broker.history import Acknowledged, History, Read, RecordPosition

PROGRAMS = Path(__file__).with_name("programs")
POD = "client"
PRODUCERS = 8
FILL_S_MAX = 300.0


@dataclass(frozen=True)
class ClientPod:
    """Has the brokers' image, and nothing of the ring but its name."""

    kubernetes: Kubernetes  # in the pod's namespace
    name: str = POD

    def fill(self, url: str, topic: str, mebibytes: int) -> None:
        """With events that do not compress."""
        program = (PROGRAMS / "fill.py").read_text()
        command = ["exec", "--stdin", POD, "--", "python", "-c", program, url, topic]
        self.kubernetes.kubectl(*command, str(mebibytes), timeout_s=FILL_S_MAX)

    def tailrace(self, url: str, *arguments: str, given: str | None = None) -> str:
        """The CLI; what it prints."""
        command = ["exec", "--stdin", POD, "--", "tailrace", *arguments, "--url", url]
        return self.kubernetes.kubectl(*command, given=given)

    def show(self, url: str, *arguments: str, given: str | None = None) -> str:
        """The CLI, in the log too."""
        command = ["exec", "--stdin", POD, "--", "tailrace", *arguments, "--url", url]
        return self.kubernetes.show(*command, given=given)

    def json(self, url: str, *arguments: str) -> Any:
        """What the CLI prints for programs."""
        return json.loads(self.tailrace(url, *arguments, "--output", "json"))

    def records(self, url: str, topic: str) -> list[Any]:
        """All of a topic, partition by partition."""
        printed = self.tailrace(url, "consume", topic, "--from", "earliest", "--output", "json")
        return [json.loads(line) for line in printed.splitlines()]

    def partitions(self, url: str, topic: str) -> dict[int, Any]:
        """What is said of each partition, by its id."""
        details = self.json(url, "topic", "describe", topic)["partitionDetails"]
        return {detail["partition"]: detail for detail in details}

    def ring(self, url: str) -> Any:
        """What the ring says of itself; the operator's Secret is not needed for that."""
        return self.json(url, "ring", "status")

    @contextmanager
    def load(self, url: str, topic: str) -> Iterator["Load"]:
        """Producers that go on while the block lasts."""
        program = (PROGRAMS / "produce.py").read_text()
        command = ["exec", "--stdin", POD, "--", "python", "-c", program, url, topic]
        with self.kubernetes.running(*command, str(PRODUCERS)) as running:
            load = Load(running)
            self.kubernetes.until(load.grows_by(1), "producers have begun")
            yield load
            for line in running.finish():
                load.note(line)
        self.kubernetes.say(
            f"{len(load.acknowledged)} events acknowledged, {load.failed_count} refused or unknown;"
            f" the longest time without an acknowledgement: {load.longest_gap_s():.1f} s,"
            f" the longest until one: {max(load.took_s):.1f} s"
        )


@dataclass
class Load:
    """What producers sent and were reported; complete when they have ended."""

    running: Running
    sent_ids: set[str] = field(default_factory=set)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    failed_count: int = 0
    acknowledged_at_s: list[float] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)  # with all tries of an event

    def grows_by(self, count: int) -> Callable[[], bool]:
        """Whether they have reported of so many more events than now."""
        now = len(self.running.lines())
        return lambda: len(self.running.lines()) >= now + count

    def note(self, line: str) -> None:
        """One line that `programs/produce.py` printed; AssertionError: no retry would help."""
        try:
            reported = json.loads(line)
        except ValueError as error:
            raise AssertionError(line) from error
        self.sent_ids.add(reported["id"])
        if "error" in reported:
            assert reported["retriable"], reported
            self.failed_count += 1
            return
        self.acknowledged_at_s.append(reported["at_s"])
        self.took_s.append(reported["took_s"])
        position = RecordPosition(reported["partition"], reported["offset"])
        self.acknowledged.append(
            Acknowledged(reported["producer"], reported["key"], reported["id"], position)
        )

    def longest_gap_s(self) -> float:
        """Of all producers together."""
        times = sorted(self.acknowledged_at_s)
        return max((later - earlier for earlier, later in pairwise(times)), default=0.0)

    def history(self, client: ClientPod, url: str, topic: str) -> History:
        """With what is read back now."""
        read = [
            Read(record["value"]["id"], RecordPosition(record["partition"], record["offset"]))
            for record in client.records(url, topic)
        ]
        partitions = client.partitions(url, topic)
        return History(
            self.sent_ids,
            self.acknowledged,
            read,
            {number: each["highWatermark"] for number, each in partitions.items()},
            {number: each["firstOffset"] for number, each in partitions.items()},
            {number: each["parents"] for number, each in partitions.items()},
        )


def pod_manifest(image: str) -> Document:
    """Waits until it is asked to end."""
    container = {
        "name": POD,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", "import signal; signal.sigwait([signal.SIGTERM])"],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
    }
    pod_security = {
        "runAsNonRoot": True,
        "runAsUser": 10250,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": POD},
        "spec": {"containers": [container], "securityContext": pod_security},
    }
