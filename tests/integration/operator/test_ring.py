"""The operator's process makes a ring of real brokers on a fake Kubernetes, and is killed often."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest

from tailrace.sync import Client
from tests.support.broker.fixtures import free_port_base
from tests.support.operator.fake_brokers import ProcessBrokers, free_hundred
from tests.support.operator.fake_kubernetes import FakeKubernetes
from tests.support.operator.fake_nodes import FakeNodes
from tests.support.operator.operators import condition, is_all_ready

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

# Each of its processes is killed behind so many changes; a kill behind each single one is tried
# with brokers in memory (test_operator_killed.py), since a process takes a second to start.
WRITES_OF_A_LIFE = 3
KEYS = [f"key-{number}" for number in range(24)]


@asynccontextmanager
async def real_cluster(root: Path) -> AsyncIterator[tuple[FakeKubernetes, ProcessBrokers]]:
    """Whose pods are processes."""
    kube = FakeKubernetes()
    brokers = ProcessBrokers(root, port=free_hundred())
    nodes = FakeNodes(kube, brokers)
    async with kube.served(), asyncio.TaskGroup() as tasks:
        probing = tasks.create_task(nodes.probe())
        try:
            yield kube, brokers
        finally:
            probing.cancel()
            brokers.end_all()


class OperatorProcess:
    """`python -m tailrace_operator`, as in its image."""

    def __init__(self, kube: FakeKubernetes, root: Path, url_pattern: str) -> None:
        config = root / "kubeconfig"
        config.write_text(kube.kubeconfig())
        self.log = root / "operator.log"
        self.http_port = free_port_base()
        self._environment = {
            **os.environ,
            "KUBECONFIG": str(config),
            "TAILRACE_OPERATOR_BROKER_URL": url_pattern,
            "TAILRACE_OPERATOR_HTTP_HOST": "127.0.0.1",
            "TAILRACE_OPERATOR_HTTP_PORT": str(self.http_port),
            "TAILRACE_OPERATOR_IDENTITY": "operator-of-the-tests",
            "TAILRACE_OPERATOR_WAITING_SECONDS": "0.1",
        }

    async def start(self) -> Process:
        with self.log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tailrace_operator",
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stderr=log,
            )

    def said(self) -> str:
        return self.log.read_text()


def ring_wanted(kube: FakeKubernetes) -> None:
    scale(kube, 3)
    kube.put(
        {
            "kind": "Topic",
            "metadata": {"name": "flights"},
            "spec": {"cluster": "events", "retention": "7d"},
        }
    )


def scale(kube: FakeKubernetes, broker_count: int) -> None:
    spec = {"brokers": broker_count, "settings": {"autoCreateTopics": False}}
    kube.put({"kind": "StreamCluster", "metadata": {"name": "events"}, "spec": spec})


async def killed_until(
    is_done: Callable[[], bool], kube: FakeKubernetes, operator: OperatorProcess
) -> int:
    """How often the operator was killed until then, behind every few changes."""
    kills = 0
    while True:
        kube.is_cut_off.clear()
        kube.writes_left = WRITES_OF_A_LIFE
        process = await operator.start()
        try:
            await kube.until(lambda: kube.is_cut_off.is_set() or is_done(), timeout_s=60)
        except TimeoutError:
            found = [*kube.of_kind("StreamCluster"), *kube.of_kind("Topic")]
            statuses = [each.get("status") for each in found]
            raise AssertionError(f"{statuses}\n{operator.said()[-2000:]}") from None
        finally:
            process.kill()
            await process.wait()
        if not kube.is_cut_off.is_set():
            return kills
        kills += 1


def test_a_ring_is_founded_once_and_changes_though_the_operator_is_killed_again_and_again(
    tmp_path: Path,
) -> None:
    """It grows and shrinks with events in each range, which their keys find again after it."""

    async def scenario() -> None:
        async with real_cluster(tmp_path) as (kube, brokers):
            ring_wanted(kube)
            operator = OperatorProcess(kube, tmp_path, brokers.url_pattern)
            assert await killed_until(lambda: is_all_ready(kube), kube, operator) > 5
            await asyncio.to_thread(check_ring, kube, brokers)
            for count in (5, 3):
                await asyncio.to_thread(produce_everywhere, brokers, count)
                scale(kube, count)
                kills = await killed_until(partial(is_ring_of, kube, count), kube, operator)
                assert kills > 2
            await asyncio.to_thread(check_events, brokers)
            events = [each["reason"] for each in kube.of_kind("Event")]
            assert {"RangeSplit", "RangesJoined", "BrokerRetired"} <= {*events}

    asyncio.run(scenario())


def is_ring_of(kube: FakeKubernetes, count: int) -> bool:
    """As many pods and brokers, and nothing is under way."""
    status = kube.get("StreamCluster", "events")["status"]
    has_count = status["founded"]["brokers"] == len(kube.of_kind("Pod")) == count
    return has_count and is_all_ready(kube)


def produce_everywhere(brokers: ProcessBrokers, number: int) -> None:
    with Client(brokers.url_pattern.format(ordinal=0)) as client:
        for key in KEYS:
            assert client.produce("flights", b'{"n":%d}' % number, key=key).copies == 3


def check_events(brokers: ProcessBrokers) -> None:
    """Each event is there once, in whichever partition."""
    with Client(brokers.url_pattern.format(ordinal=1)) as client:
        partitions = client.topic("flights").topic.partitions
        fetched = [
            client.read_lines("flights", partition, offset="earliest").body
            for partition in range(partitions)
        ]
    records = [json.loads(line) for body in fetched for line in body.splitlines()]
    found = sorted((each["key"], each["value"]["n"]) for each in records)
    assert found == sorted((key, number) for key in KEYS for number in (5, 3))


def check_ring(kube: FakeKubernetes, brokers: ProcessBrokers) -> None:
    """What the resources say is what the brokers say."""
    status = kube.get("StreamCluster", "events")["status"]
    ready = condition(kube.get("StreamCluster", "events"), "Ready")
    assert "3 copies of each event" in ready["message"]
    assert status["founded"] == {"brokers": 3, "clusterId": status["clusterId"]}
    for ordinal in range(3):
        with Client(brokers.url_pattern.format(ordinal=ordinal)) as client:
            assert client.ring().cluster_id == status["clusterId"]
            topic = client.topic("flights").topic
            assert topic.retention_ms == 7 * 24 * 3_600_000
            assert topic.id == kube.get("Topic", "flights")["status"]["topicId"]


def test_the_process_serves_probes_and_metrics_and_ends_cleanly(tmp_path: Path) -> None:
    async def scenario() -> None:
        kube = FakeKubernetes()
        async with kube.served():
            operator = OperatorProcess(kube, tmp_path, "http://127.0.0.1:1{ordinal}")
            process = await operator.start()
            try:
                await kube.until(lambda: kube.of_kind("Lease"))
                kube.put({"kind": "StreamCluster", "metadata": {"name": "events"}})
                await kube.until(lambda: kube.find("StatefulSet", "events"))
                reported = await asyncio.to_thread(metrics_of, operator)
                process.send_signal(signal.SIGTERM)
                async with asyncio.timeout(20):
                    assert await process.wait() == 0, operator.said()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        assert 'tailrace_operator_api_calls_total{resource="secrets",verb="create"} 1.0' in reported
        assert "tailrace_operator_lease_held 1.0" in reported
        assert (
            kube.get("Lease", "tailrace-operator", "tailrace-system")["spec"]["holderIdentity"]
            == ""
        )
        assert "operator.stopped" in operator.said()

    asyncio.run(scenario())


def metrics_of(operator: OperatorProcess) -> str:
    base = f"http://127.0.0.1:{operator.http_port}"
    for path in ("live", "ready"):
        with urlopen(f"{base}/{path}", timeout=10) as answer:
            assert answer.status == 200
    with urlopen(f"{base}/metrics", timeout=10) as answer:
        return str(answer.read().decode())
