"""Where the cluster of the tests comes from: kind, one that exists, or kubelab.

`KUBELAB=/path/to/kubelab`: a cluster of three nodes on this machine, for where no registry can be
reached. `KUBECONFIG=…`: a cluster that exists; `E2E_REGISTRY=registry.example/tailrace`: images
are built, pushed there, and pulled from there by its nodes; without it the nodes must have them.
Neither: kind makes a cluster. `E2E_KEEP=1` leaves what was made for the tests, and `E2E_BUILT=1`
does not build images again that such a run has built.
"""

import importlib.metadata
import os
import shutil
import subprocess
from pathlib import Path
from typing import Protocol

import pytest

VERSION = importlib.metadata.version("tailrace")
ROOT = Path(__file__).parents[2]
KIND_CONFIG = Path(__file__).with_name("kind.yaml")
KIND_CLUSTER = "tailrace-e2e"
ZONES = ("zone-a", "zone-b", "zone-c")
JAVA_BASE = "kubelab/java-python:17-3.11"
UP_S_MAX = 900.0
INSTALL_S_MAX = 3600.0  # kubelab compiles Kubernetes once: 5 minutes of two cores that do only that
BUILD_S_MAX = 1200.0
SAID_LINES_MAX = 30


class Provider(Protocol):
    """A cluster with three nodes, and how images reach them."""

    name: str
    environment: dict[str, str]

    def up(self) -> None:
        """Make the cluster, or find it."""

    def down(self) -> None:
        """Take away what `up` made."""

    def command(self, tool: str) -> list[str]:
        """How kubectl or helm is called."""

    def image(self, name: str) -> str:
        """What pods call it, as in `tailrace/broker`, without the tag."""

    def build(self, dockerfile: str, *images: str) -> None:
        """Build one image under these names, and have the nodes find it."""

    def load(self, *images: str) -> None:
        """Have the nodes find images that an earlier run has built: the cluster can be new."""


class Kind:
    """A cluster made by kind, in containers of Docker."""

    name = "kind"

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}
        self._is_ours = False

    def up(self) -> None:
        """With its own context in the usual kubeconfig."""
        if KIND_CLUSTER not in _run(["kind", "get", "clusters"]).split():
            config = ["--config", str(KIND_CONFIG), "--wait", "300s"]
            _run(["kind", "create", "cluster", "--name", KIND_CLUSTER, *config], timeout_s=UP_S_MAX)
            self._is_ours = True

    def down(self) -> None:
        """Only what this run made."""
        if self._is_ours:
            _run(["kind", "delete", "cluster", "--name", KIND_CLUSTER])

    def command(self, tool: str) -> list[str]:
        """Always of that cluster, whatever the current context is."""
        option = "--context" if tool == "kubectl" else "--kube-context"
        return [tool, option, f"kind-{KIND_CLUSTER}"]

    def image(self, name: str) -> str:
        """As it is built."""
        return name

    def build(self, dockerfile: str, *images: str) -> None:
        """By Docker."""
        _docker_build(dockerfile, *images)
        self.load(*images)

    def load(self, *images: str) -> None:
        """Into every node."""
        _run(["kind", "load", "docker-image", "--name", KIND_CLUSTER, *images], timeout_s=300.0)


class Existing:
    """The cluster of KUBECONFIG; its nodes are as they are."""

    name = "KUBECONFIG"

    def __init__(self, registry: str | None) -> None:
        self.environment: dict[str, str] = {}
        self._registry = registry

    def up(self) -> None:
        """It must answer."""
        _run(["kubectl", "version"])

    def down(self) -> None:
        """Not ours."""

    def command(self, tool: str) -> list[str]:
        """As it is."""
        return [tool]

    def image(self, name: str) -> str:
        """With the registry that nodes pull from."""
        return f"{self._registry}/{name.rsplit('/', 1)[-1]}" if self._registry else name

    def build(self, dockerfile: str, *images: str) -> None:
        """By Docker, pushed; without a registry nothing: the nodes have it."""
        if self._registry:
            _docker_build(dockerfile, *images)
            for image in images:
                _run(["docker", "push", image], timeout_s=300.0)

    def load(self, *images: str) -> None:
        """Nothing: they are where nodes pull from."""


class Kubelab:
    """A cluster of processes on this machine; one machine has one."""

    name = "kubelab"

    def __init__(self, path: str) -> None:
        self.environment: dict[str, str] = {}
        self._path = path
        self._is_ours = False

    def up(self) -> None:
        """Three nodes, with a zone each."""
        status = subprocess.run([self._path, "status"], capture_output=True, check=False)
        self._is_ours = status.returncode != 0
        _run([self._path, "install"], timeout_s=INSTALL_S_MAX)
        _run([self._path, "up", "--nodes", "3"], timeout_s=UP_S_MAX)
        self.environment["KUBECONFIG"] = _run([self._path, "kubeconfig"]).strip()
        for number, zone in enumerate(ZONES, start=1):
            label = f"topology.kubernetes.io/zone={zone}"
            node = f"kubelab-{number}"
            _run([*self.command("kubectl"), "label", "--overwrite", "node", node, label])

    def down(self) -> None:
        """Only what this run brought up."""
        if self._is_ours:
            _run([self._path, "down"])

    def command(self, tool: str) -> list[str]:
        """Its own, pointed at the cluster."""
        return [self._path, tool]

    def image(self, name: str) -> str:
        """As it is built."""
        return name

    def build(self, dockerfile: str, *images: str) -> None:
        """Built and loaded into every node."""
        tags = [word for image in images for word in ("-t", image)]
        base = []
        if (
            "spark" in dockerfile
        ):  # packages come through slow listeners in some places, Java as well
            _run([self._path, "base", "java-python"], timeout_s=BUILD_S_MAX)
            base = ["--build-arg", f"BASE={JAVA_BASE}"]
        build = [self._path, "build", dockerfile, ".", *tags, *base]
        # To build again costs nothing, and a node has once not taken an image that was built.
        try:
            _run(build, timeout_s=BUILD_S_MAX)
        except AssertionError as error:
            print(f"once more, after: {error}", flush=True)
            _run(build, timeout_s=BUILD_S_MAX)

    def load(self, *images: str) -> None:
        """Into every node: `down` keeps what was built, and forgets the nodes."""
        _run([self._path, "load", *images], timeout_s=300.0)


def choose_provider() -> Provider:
    """By the environment; without any of them the tests fail, saying what they need."""
    if path := os.environ.get("KUBELAB"):
        return Kubelab(path)
    if os.environ.get("KUBECONFIG"):
        return Existing(os.environ.get("E2E_REGISTRY"))
    if missing := [
        tool for tool in ("kind", "docker", "kubectl", "helm") if not shutil.which(tool)
    ]:
        pytest.fail(
            f"no {', '.join(missing)} on PATH: install them, or set KUBECONFIG to a cluster that"
            " exists, or KUBELAB to the path of kubelab"
        )
    return Kind()


def keeps_all() -> bool:
    """Whether a person wants to read it afterwards."""
    return bool(os.environ.get("E2E_KEEP"))


def has_built() -> bool:
    """Whether the images are those of an earlier run."""
    return bool(os.environ.get("E2E_BUILT"))


def _docker_build(dockerfile: str, *images: str) -> None:
    tags = [word for image in images for word in ("-t", image)]
    _run(["docker", "build", "-f", dockerfile, *tags, "."], timeout_s=BUILD_S_MAX)


def _run(command: list[str], *, timeout_s: float = 120.0) -> str:
    """What it prints; AssertionError with the end of what it said when it fails."""
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    said = "\n".join((done.stdout + done.stderr).splitlines()[-SAID_LINES_MAX:])
    assert done.returncode == 0, f"{' '.join(command)}: exit code {done.returncode}:\n{said}"
    return done.stdout
