"""A ring with copies: no broker goes while a range lacks one, and the status says what is lacking.

The passes are those that changes cause: the resync is far away.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.operator.fake_brokers import MemoryBrokers
from tests.support.operator.fake_kubernetes import FakeKubernetes
from tests.support.operator.fake_nodes import FakeNodes
from tests.support.operator.operators import (
    MARKS,
    condition,
    fake_cluster,
    is_all_ready,
    operator_settings,
    run_scenario,
    running_operator,
)

pytestmark = MARKS

PASSES = 5
LACKING = "1 of 1 ranges have fewer than 3 copies in sync: broker 1"


@asynccontextmanager
async def ring_of_three() -> AsyncIterator[tuple[FakeKubernetes, MemoryBrokers, FakeNodes]]:
    """With three copies, served by an operator, and well."""
    async with fake_cluster() as (kube, brokers, nodes):
        brokers.copies = 3
        kube.put({"kind": "StreamCluster", "metadata": {"name": "events"}, "spec": {}})
        settings = operator_settings(brokers.url_pattern, resync_seconds=600, ring_seconds=0.05)
        async with running_operator(kube, settings):
            await kube.until(lambda: is_all_ready(kube))
            yield kube, brokers, nodes


def said(kube: FakeKubernetes, kind: str) -> tuple[str, str, str]:
    found: dict[str, Any] = condition(kube.get("StreamCluster", "events"), kind)
    return found["status"], found["reason"], found["message"]


def phase(kube: FakeKubernetes) -> str:
    return str(kube.get("StreamCluster", "events")["status"]["phase"])


def budget(kube: FakeKubernetes) -> int:
    allowed: int = kube.get("PodDisruptionBudget", "events")["spec"]["maxUnavailable"]
    return allowed


def uids(kube: FakeKubernetes) -> list[str]:
    return [pod["metadata"]["uid"] for pod in kube.of_kind("Pod")]


def evictions(kube: FakeKubernetes) -> int:
    return sum(call.resource == "pods/eviction" for call in kube.calls)


def passes(kube: FakeKubernetes) -> int:
    return sum(call[:3] == ("list", "", "pods") for call in kube.calls)


async def more_passes(kube: FakeKubernetes) -> None:
    before = passes(kube)
    await kube.until_called(lambda: passes(kube) >= before + PASSES)


def test_the_next_broker_is_restarted_when_the_last_has_all_again() -> None:
    async def scenario() -> None:
        async with ring_of_three() as (kube, brokers, nodes):
            brokers.is_catching_up = True
            before = len(nodes.started)
            kube.edit("StreamCluster", "events", {"spec": {"settings": {"ioThreads": 4}}})
            await kube.until(lambda: phase(kube).startswith("Catching up"))
            await more_passes(kube)

            assert [ordinal for ordinal, _ in nodes.started[before:]] == [1]
            assert said(kube, "Ready")[0] == "True"
            assert said(kube, "Progressing")[:2] == ("True", "CatchingUp")
            assert budget(kube) == 0

            brokers.is_catching_up = False
            brokers.behind.clear()
            await kube.until(lambda: len(nodes.started) == before + 3 and is_all_ready(kube))
            assert [ordinal for ordinal, _ in nodes.started[before:]] == [1, 2, 0]
            assert budget(kube) == 1

    run_scenario(scenario())


def test_a_lost_volume_is_reported_until_its_broker_has_all_again() -> None:
    async def scenario() -> None:
        async with ring_of_three() as (kube, brokers, _):
            brokers.is_catching_up = True
            brokers.new_disks.add(1)
            kube.remove("PersistentVolumeClaim", "data-events-1")
            kube.remove("Pod", "events-1")
            lacking = f"{LACKING}, on a new disk, gets what it lacks from the others"
            await kube.until(lambda: phase(kube) == f"Catching up: {lacking}")

            assert said(kube, "Ready")[0] == "True"
            assert said(kube, "Degraded") == ("True", "UnderReplicated", lacking)
            await kube.until(lambda: budget(kube) == 0)

            brokers.behind.clear()
            await kube.until(lambda: is_all_ready(kube) and phase(kube) == "Ready")
            await kube.until(lambda: budget(kube) == 1)

    run_scenario(scenario())


def delete_claim(kube: FakeKubernetes, ordinal: int) -> str:
    """As `kubectl delete pvc --wait=false`; its uid."""
    uid = str(kube.get("PersistentVolumeClaim", f"data-events-{ordinal}")["metadata"]["uid"])
    kube.remove("PersistentVolumeClaim", f"data-events-{ordinal}")
    return uid


def is_new_claim(kube: FakeKubernetes, ordinal: int, uid: str) -> bool:
    claim = kube.find("PersistentVolumeClaim", f"data-events-{ordinal}")
    return claim is not None and claim["metadata"]["uid"] != uid


def events(kube: FakeKubernetes, reason: str) -> list[tuple[str, str]]:
    found = [each for each in kube.of_kind("Event") if each["reason"] == reason]
    return [(each["type"], each["message"]) for each in found]


def test_volumes_that_somebody_deletes_are_replaced_one_after_the_other() -> None:
    async def scenario() -> None:
        async with ring_of_three() as (kube, brokers, nodes):
            brokers.is_catching_up = True
            before = len(nodes.started)
            old = {ordinal: delete_claim(kube, ordinal) for ordinal in (1, 2)}
            await kube.until(lambda: phase(kube).startswith("Degraded: volume data-events-2 is"))
            await kube.until(lambda: budget(kube) == 0)
            await more_passes(kube)

            assert is_new_claim(kube, 1, old[1])
            assert not is_new_claim(kube, 2, old[2])
            assert [ordinal for ordinal, _ in nodes.started[before:]] == [1]
            assert evictions(kube) == 1
            note = (
                "broker 1: volume data-events-1 is being deleted; the broker restarts on a new one "
                "and fills it from the ring, which has 2 other copies of each event"
            )
            assert events(kube, "VolumeReplaced") == [("Normal", note)]

            brokers.is_catching_up = False
            brokers.behind.clear()
            await kube.until(lambda: is_new_claim(kube, 2, old[2]))
            await kube.until(lambda: is_all_ready(kube) and phase(kube) == "Ready")
            await kube.until(lambda: budget(kube) == 1)
            assert [ordinal for ordinal, _ in nodes.started[before:]] == [1, 2]
            assert [kind for kind, _ in events(kube, "VolumeDeleting")] == ["Warning"] * 2
            assert events(kube, "PodNotCreated") == []

    run_scenario(scenario())


def test_a_volume_that_something_else_holds_is_not_replaced() -> None:
    """No pod could be made on the claim, which would stay."""

    async def scenario() -> None:
        async with ring_of_three() as (kube, _, nodes):
            claim, pods = "data-events-1", uids(kube)
            nodes.is_away = True  # nothing else changes, so that the claim itself is noticed
            held = kube.get("PersistentVolumeClaim", claim)["metadata"]["finalizers"]
            finalizers = {"metadata": {"finalizers": [*held, "backup/wait"]}}
            kube.edit("PersistentVolumeClaim", claim, finalizers)
            old = delete_claim(kube, 1)
            await kube.until(lambda: said(kube, "Degraded")[1] == "VolumeDeleting")
            nodes.is_away = False
            await kube.until(lambda: budget(kube) == 0)
            await more_passes(kube)
            assert "it is not replaced: finalizer backup/wait" in said(kube, "Degraded")[2]
            assert uids(kube) == pods

            kube.edit("PersistentVolumeClaim", claim, {"metadata": {"finalizers": held}})
            await kube.until(lambda: is_new_claim(kube, 1, old))
            await kube.until(lambda: is_all_ready(kube) and phase(kube) == "Ready")

    run_scenario(scenario())


def test_a_replica_that_falls_behind_is_noticed_though_no_object_changes() -> None:
    async def scenario() -> None:
        async with ring_of_three() as (kube, brokers, _):
            brokers.behind.add(1)
            await kube.until(lambda: phase(kube).startswith(f"Catching up: {LACKING}"))
            await kube.until(lambda: budget(kube) == 0)
            brokers.behind.add(2)
            await kube.until(lambda: said(kube, "Ready")[1] == "NotEnoughReplicas")

            brokers.behind.clear()
            await kube.until(lambda: is_all_ready(kube) and budget(kube) == 1)

    run_scenario(scenario())


def test_a_broker_is_not_restarted_while_somebody_drains_another() -> None:
    """Between what the operator has seen and its action another pod goes: the API refuses."""

    async def scenario() -> None:
        async with ring_of_three() as (kube, _, nodes):
            before, pods = len(nodes.started), uids(kube)

            def drained() -> None:
                nodes.is_away = True
                kube.edit("Pod", "events-2", {"metadata": {"finalizers": ["it/ends"]}})
                kube.remove("Pod", "events-2")

            kube.on_eviction.append(drained)
            kube.edit("StreamCluster", "events", {"spec": {"settings": {"ioThreads": 4}}})
            await kube.until_called(lambda: evictions(kube))
            await more_passes(kube)
            assert uids(kube) == pods

            nodes.is_away = False
            kube.edit("Pod", "events-2", {"metadata": {"finalizers": None}})
            await kube.until(lambda: len(nodes.started) == before + 3 and is_all_ready(kube))
            assert [ordinal for ordinal, _ in nodes.started[before:]] == [2, 1, 0]

    run_scenario(scenario())
