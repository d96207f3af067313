"""A release that serves some namespaces: works there, has no rights elsewhere, lets them go."""

import re
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import yaml

from tests.e2e.kubernetes import Kubernetes
from tests.e2e.operator_release import CHART, Operator
from tests.e2e.provider import ROOT
from tests.e2e.resources import found, stream_cluster, topic

RELEASE = "team"
SEES = {"get", "list", "watch"}
OF_EVERYBODY = "selfsubject"  # every account may ask what it may
GONE_S_MAX = 120


@pytest.fixture
def other(kubernetes: Kubernetes) -> Iterator[Kubernetes]:
    """A second namespace with StreamClusters."""
    with kubernetes.neighbour("other") as namespace:
        yield namespace


@pytest.fixture
def team(
    kubernetes: Kubernetes, other: Kubernetes, operator: Operator, request: pytest.FixtureRequest
) -> Iterator[Operator]:
    """A second release, for `serve` to install; the one that serves all namespaces is away."""
    with kubernetes.neighbour("operator") as namespace, operator.away():
        release = Operator(namespace, name=RELEASE)
        yield release
        if request.session.testsfailed:
            print(release.logs())
        release.uninstall()


def test_it_serves_its_namespace_and_may_write_nowhere_else(
    kubernetes: Kubernetes, other: Kubernetes, team: Operator
) -> None:
    serve(team, kubernetes)
    other.apply(stream_cluster(), topic("flights"))  # before those that are waited for
    found(kubernetes, stream_cluster(), topic("flights"))

    for kind, name in (("trc", "events"), ("trt", "flights")):
        left_alone = other.get(kind, name)
        assert "status" not in left_alone
        assert "finalizers" not in left_alone["metadata"]
    assert other.objects("statefulset,service,secret,pod") == []
    kubernetes.say(f"nothing has happened in {other.namespace}")

    rules = yaml.safe_load((ROOT / CHART / "files/roles.yaml").read_text())
    everywhere, served = writes_of(rules["cluster"]), writes_of(rules["served"])
    assert {resource for resource, _ in everywhere} == {
        "topics.tailrace.dev",
        "topics.tailrace.dev/status",
    }
    assert writes_in(kubernetes, team) == served | everywhere
    assert writes_in(other, team) == everywhere


def test_a_namespace_goes_with_all_that_is_in_it_and_comes_again(
    kubernetes: Kubernetes, other: Kubernetes, team: Operator
) -> None:
    serve(team, kubernetes, other)
    for each in (kubernetes, other):
        found(each, stream_cluster(), topic("kept"), topic("gone", deletionPolicy="Delete"))
    assert other.get("trt", "gone")["metadata"]["finalizers"]

    started_s = time.monotonic()
    limit = f"--timeout={GONE_S_MAX}s"
    other.show("delete", "namespace", other.namespace, limit, timeout_s=GONE_S_MAX + 10)
    kubernetes.say(f"{other.namespace} is gone after {time.monotonic() - started_s:.1f} s")

    found(kubernetes, topic("after-it"))
    kubernetes.wait("trc/events", "Ready")

    other.show("create", "namespace", other.namespace)
    serve(team, kubernetes, other)  # the role's binding went with the namespace
    found(other, stream_cluster())


def serve(team: Operator, *served: Kubernetes) -> None:
    """Install it for these namespaces, beside the CRDs that are there."""
    names = ",".join(each.namespace for each in served)
    team.install("--set", f"watchNamespaces={{{names}}}", "--set", "crds.install=false")


def writes_of(rules: Iterable[Any]) -> set[tuple[str, str]]:
    """What rules allow but to read: resources as kubectl writes them, and verbs."""
    return {
        (_with_group(resource, group), verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if verb not in SEES
    }


def writes_in(namespace: Kubernetes, team: Operator) -> set[tuple[str, str]]:
    """The same, by what the API server says of its service account in a namespace."""
    account = f"system:serviceaccount:{team.kubernetes.namespace}:{team.name}"
    printed = namespace.show("auth", "can-i", "--list", "--as", account)
    rows = re.findall(r"^(\S+) +\[\] +\[\S*\] +\[(.*)\]$", printed, re.MULTILINE)
    assert rows, printed
    return {
        (resource, verb)
        for resource, verbs in rows
        for verb in verbs.split()
        if verb not in SEES and not resource.startswith(OF_EVERYBODY)
    }


def _with_group(resource: str, group: str) -> str:
    """As in `topics.tailrace.dev/status`."""
    name, slash, part = resource.partition("/")
    return f"{name}.{group}{slash}{part}" if group else resource
