"""The operator as the chart installs it."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.e2e.kubernetes import Kubernetes
from tests.e2e.provider import VERSION, Provider
from tests.e2e.resources import is_ready
from tests.e2e.sigkill import restarts_of, sigkill

RELEASE = "tailrace"
NAMESPACE = "tailrace-system"
CHART = "helm/tailrace"
NEXT_TAG = f"{VERSION}-next"  # the same brokers under another name, for rolling updates
SELECTOR = "app.kubernetes.io/component=operator"
KINDS = ("streamclusters.tailrace.dev", "topics.tailrace.dev")


@dataclass(frozen=True)
class Operator:
    """A release of the chart."""

    kubernetes: Kubernetes  # in the release's namespace
    name: str = RELEASE

    @property
    def provider(self) -> Provider:
        """Of the cluster."""
        return self.kubernetes.provider

    def install(self, *arguments: str) -> None:
        """Install or upgrade; returns when it works."""
        images = {
            "image.repository": "tailrace/operator",
            "brokerImage.repository": "tailrace/broker",
        }
        values = [f"{name}={self.provider.image(image)}" for name, image in images.items()]
        options = [word for value in values for word in ("--set", value)]
        if self.is_installed():
            command = ["upgrade", self.name, CHART]
        else:
            command = ["install", self.name, CHART, "--create-namespace"]
        self.kubernetes.helm(*command, *options, *arguments, "--wait", "--timeout", "3m")

    def uninstall(self) -> None:
        """What users made stays."""
        self.kubernetes.helm("uninstall", self.name, "--wait")

    @contextmanager
    def away(self) -> Iterator[None]:
        """Uninstalled while the block lasts."""
        self.uninstall()
        try:
            yield
        finally:
            self.install()

    def is_installed(self) -> bool:
        """Whether there is such a release."""
        return bool(self.kubernetes.objects("secrets", f"owner=helm,name={self.name}"))

    def pods(self) -> list[str]:
        """Their names."""
        return [pod["metadata"]["name"] for pod in self.kubernetes.objects("pods", SELECTOR)]

    def kill(self) -> None:
        """SIGKILL; returns when it works again, in the same pod."""
        (pod,) = self.pods()
        restarts = restarts_of(self.kubernetes, pod)
        sigkill(self.kubernetes, pod)
        self.kubernetes.until(
            lambda: restarts_of(self.kubernetes, pod) > restarts and self.is_at_work(),
            "the operator has started again",
        )

    def replace(self) -> None:
        """Delete its pod; returns when the next one works."""
        before = set(self.pods())
        self.kubernetes.kubectl("delete", "pod", "--selector", SELECTOR, "--wait=false")
        self.kubernetes.until(
            lambda: not set(self.pods()) & before and self.is_at_work(),
            "the operator has a new pod",
        )

    def end(self, number: int, life_s: float) -> None:
        """After this while; returns when it works again."""
        threading.Event().wait(life_s)
        # Another pod in between: Kubernetes is slow to start again what ends too often.
        how, end = ("another pod", self.replace) if number % 2 else ("SIGKILL", self.kill)
        self.kubernetes.say(f"end {number + 1} of the operator ({how}), after {life_s:.1f} s")
        end()

    def is_at_work(self) -> bool:
        """Whether it has one pod, which is ready: it holds the Lease."""
        pods = self.kubernetes.objects("pods", SELECTOR)
        return len(pods) == 1 and is_ready(pods[0])

    def logs(self) -> str:
        """The last lines, to diagnose a failure."""
        return self.kubernetes.kubectl("logs", "--selector", SELECTOR, "--tail=60")


def random_ends(kubernetes: Kubernetes) -> random.Random:
    """Draws the moments; its seed is in the log."""
    seed = random.SystemRandom().randrange(10**9)
    kubernetes.say(f"the operator ends at random moments, seed {seed}")
    return random.Random(seed)
