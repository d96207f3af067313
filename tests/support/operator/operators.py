"""An operator in the test's own process, with all its parts, on a fake Kubernetes."""

import asyncio
import gc
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import pytest
from kubernetes.aio.client.configuration import Configuration

from tailrace_operator.app.main import operate
from tailrace_operator.app.settings import Settings
from tests.support.broker.fixtures import free_port_base
from tests.support.operator.fake_brokers import MemoryBrokers
from tests.support.operator.fake_kubernetes import FakeKubernetes
from tests.support.operator.fake_nodes import FakeNodes

Ended = TypeVar("Ended")

# Of what runs by `run_scenario`.
MARKS = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def operator_settings(url_pattern: str, **settings: Any) -> Settings:
    """Quick ones."""
    return Settings(
        **{
            "broker_url": url_pattern,
            "http_host": "127.0.0.1",
            "http_port": free_port_base(),
            "identity": "operator-of-the-tests",
            "lease_namespace": "operators",
            "log_level": "warning",
            "waiting_seconds": 0.02,
            "resync_seconds": 1,
            **settings,
        }
    )


@asynccontextmanager
async def running_operator(kube: FakeKubernetes, settings: Settings) -> AsyncIterator[None]:
    """As long as the block lasts; it ends cleanly then."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(operate(settings, Configuration(host=kube.url), stop))
        try:
            yield
        finally:
            stop.set()


@asynccontextmanager
async def fake_cluster() -> AsyncIterator[tuple[FakeKubernetes, MemoryBrokers, FakeNodes]]:
    """A Kubernetes whose pods are brokers in memory."""
    kube = FakeKubernetes()
    brokers = MemoryBrokers(on_write=kube.count_write)
    nodes = FakeNodes(kube, brokers)
    brokers.on_change = nodes.act
    async with kube.served(), brokers.served():
        yield kube, brokers, nodes


async def killed_operator(kube: FakeKubernetes, settings: Settings, *, writes: int) -> bool:
    """Whether an operator was cut off behind its last one of so many writes, and ended there.

    Else it was well before: all that there is to do is done.
    """
    kube.writes_left = writes
    kube.is_cut_off.clear()
    stop = asyncio.Event()
    with suppress(TimeoutError):
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(operate(settings, Configuration(host=kube.url), stop))
            async with asyncio.timeout(30):
                await kube.until(lambda: kube.is_cut_off.is_set() or is_all_ready(kube))
            running.cancel()
    was_cut_off = kube.is_cut_off.is_set()
    kube.writes_left = None
    kube.is_cut_off.clear()
    return was_cut_off


def run_scenario(scenario: Coroutine[Any, Any, Ended]) -> Ended:
    """As asyncio.run; what kopf has left unclosed is complained of within the test that it is of.

    (kopf, cancelled, may leave the session behind that it asked which kinds there are.)
    """
    try:
        return asyncio.run(scenario)
    finally:
        gc.collect()


def put_cluster(kube: FakeKubernetes, name: str = "events", **spec: Any) -> None:
    """As somebody applies it."""
    kube.put({"kind": "StreamCluster", "metadata": {"name": name}, "spec": spec})


def put_topic(kube: FakeKubernetes, name: str = "flights", **spec: Any) -> None:
    """Of the ring `events`."""
    spec = {"cluster": "events", **spec}
    kube.put({"kind": "Topic", "metadata": {"name": name}, "spec": spec})


@asynccontextmanager
async def served_ring() -> AsyncIterator[tuple[FakeKubernetes, MemoryBrokers, FakeNodes]]:
    """A ring of three that an operator serves; it is well when the block begins."""
    async with fake_cluster() as (kube, brokers, nodes):
        put_cluster(kube)
        async with running_operator(kube, operator_settings(brokers.url_pattern)):
            await kube.until(lambda: is_all_ready(kube))
            yield kube, brokers, nodes


def notes(kube: FakeKubernetes, reason: str) -> list[str]:
    """The messages of Events."""
    return [each["message"] for each in kube.of_kind("Event") if each["reason"] == reason]


def is_all_ready(kube: FakeKubernetes) -> bool:
    """Each resource, and nothing is under way."""
    resources = [*kube.of_kind("StreamCluster"), *kube.of_kind("Topic")]
    return all(_is_well(resource) for resource in resources)


def condition(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Of its status; an empty one when there is none."""
    conditions = document.get("status", {}).get("conditions", ())
    return next((each for each in conditions if each["type"] == name), {})


def _is_well(document: dict[str, Any]) -> bool:
    is_ready = condition(document, "Ready").get("status") == "True"
    return is_ready and condition(document, "Progressing").get("status") != "True"
