"""The whole operator against a fake Kubernetes, with brokers that answer from memory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.operator.fake_kubernetes import Call, FakeKubernetes
from tests.support.operator.fake_nodes import FakeNodes
from tests.support.operator.operators import (
    MARKS,
    condition,
    fake_cluster,
    is_all_ready,
    operator_settings,
    put_cluster,
    put_topic,
    run_scenario,
    running_operator,
)

pytestmark = MARKS

ROLES = Path("helm/tailrace/files/roles.yaml")
# Children that are deleted in no version of a spec, but by the garbage collector.
_NEVER_REMOVED = {"configmaps", "poddisruptionbudgets"}


def ready_reason(kube: FakeKubernetes, kind: str, name: str) -> str:
    return str(condition(kube.get(kind, name), "Ready").get("reason"))


def reasons(kube: FakeKubernetes) -> list[str]:
    return [resource["reason"] for resource in kube.of_kind("Event")]


def expandable(kube: FakeKubernetes) -> None:
    metadata = {"name": "standard", "namespace": ""}
    kube.put({"kind": "StorageClass", "metadata": metadata, "allowVolumeExpansion": True})


async def scenario_of_a_cluster() -> list[Call]:
    """From a Topic without a cluster to a cluster's deletion; all calls."""
    async with fake_cluster() as (kube, brokers, nodes):
        expandable(kube)
        async with running_operator(kube, operator_settings(brokers.url_pattern)):
            put_topic(kube, "flights", retention="7d")
            await kube.until(lambda: ready_reason(kube, "Topic", "flights") == "ClusterNotFound")
            put_cluster(kube)
            await kube.until(lambda: is_all_ready(kube))
            assert brokers.topics["flights"]["retentionMs"] == 7 * 24 * 3_600_000
            assert len(set(brokers.secrets.values())) == 1
            assert reasons(kube) == ["RingFounded", "TopicCreated"]

            await a_drift_is_corrected(kube)
            await a_quota_is_named(kube, nodes)
            await brokers_restart_one_at_a_time(kube, nodes.started)
            await volumes_grow(kube)
            await volumes_go_with_the_cluster_only_while_they_are_to(kube)
            kube.edit("StreamCluster", "events", {"spec": {"networkPolicy": False}})
            await kube.until(lambda: kube.find("NetworkPolicy", "events") is None)

            kube.edit("Topic", "flights", {"spec": {"retention": "1d"}})
            await kube.until(lambda: brokers.topics["flights"]["retentionMs"] == 24 * 3_600_000)
            await two_topics_of_one_name(kube, brokers.topics)
            await nothing_is_done_while_paused(kube)

            kube.remove("StreamCluster", "events")
            await kube.until(lambda: ready_reason(kube, "Topic", "other") == "ClusterNotFound")
            assert kube.find("StatefulSet", "events") is None
            assert len(kube.of_kind("PersistentVolumeClaim")) == 3
        assert len(brokers.founded) == 1
        return kube.calls


async def a_drift_is_corrected(kube: FakeKubernetes) -> None:
    kube.edit("Service", "events", {"spec": {"type": "NodePort"}})
    await kube.until(lambda: kube.get("Service", "events")["spec"]["type"] == "ClusterIP")
    await kube.until(lambda: "DriftCorrected" in reasons(kube))
    note = next(each for each in kube.of_kind("Event") if each["reason"] == "DriftCorrected")
    assert note["message"] == (
        "Service events: restored spec.type ClusterIP, was changed by hand to NodePort"
    )

    ports = kube.get("Service", "events")["spec"]["ports"]
    kube.edit("Service", "events", {"spec": {"ports": [{**ports[0], "port": 9999}, *ports[1:]]}})
    await kube.until(lambda: kube.get("Service", "events")["spec"]["ports"] == ports)
    restored = "Service events: restored port 9250, was changed by hand to 9999"
    await kube.until(lambda: restored in [each["message"] for each in kube.of_kind("Event")])


async def a_quota_is_named(kube: FakeKubernetes, nodes: FakeNodes) -> None:
    nodes.refusal = "exceeded quota: small"
    kube.remove("Pod", "events-1")
    said = "Starting: 2 of 3 brokers run; a pod cannot be created: exceeded quota: small"
    await kube.until(lambda: kube.get("StreamCluster", "events")["status"]["phase"] == said)
    nodes.refusal = None
    nodes.act()
    await kube.until(lambda: is_all_ready(kube))


async def brokers_restart_one_at_a_time(
    kube: FakeKubernetes, started: list[tuple[int, str]]
) -> None:
    before = len(started)
    kube.edit("StreamCluster", "events", {"spec": {"settings": {"ioThreads": 4}}})
    await kube.until(lambda: len(started) == before + 3 and is_all_ready(kube))
    restarted = [ordinal for ordinal, _ in started[before:]]
    assert restarted == [1, 2, 0], "the metadata's leader last"
    assert reasons(kube).count("BrokerRestart") == 3


async def volumes_grow(kube: FakeKubernetes) -> None:
    pods = [resource["metadata"]["uid"] for resource in kube.of_kind("Pod")]
    kube.edit("StreamCluster", "events", {"spec": {"storage": {"size": "20Gi"}}})

    def sizes() -> set[str]:
        claims = kube.of_kind("PersistentVolumeClaim")
        return {claim["spec"]["resources"]["requests"]["storage"] for claim in claims}

    await kube.until(lambda: sizes() == {"20Gi"} and is_all_ready(kube))
    assert [resource["metadata"]["uid"] for resource in kube.of_kind("Pod")] == pods
    (template,) = kube.get("StatefulSet", "events")["spec"]["volumeClaimTemplates"]
    assert template["spec"]["resources"]["requests"]["storage"] == "20Gi"


def owners_of_volumes(kube: FakeKubernetes) -> set[tuple[str, ...]]:
    claims = kube.of_kind("PersistentVolumeClaim")
    return {
        tuple(
            owner_reference["kind"]
            for owner_reference in claim["metadata"].get("ownerReferences", ())
        )
        for claim in claims
    }


async def volumes_go_with_the_cluster_only_while_they_are_to(kube: FakeKubernetes) -> None:
    kube.edit("StreamCluster", "events", {"spec": {"deletionPolicy": "Delete"}})
    await kube.until(lambda: owners_of_volumes(kube) == {("StreamCluster",)})
    kube.edit("PersistentVolumeClaim", "data-events-1", {"metadata": {"ownerReferences": []}})
    await kube.until(lambda: owners_of_volumes(kube) == {("StreamCluster",)})
    kube.edit("StreamCluster", "events", {"spec": {"deletionPolicy": "Retain"}})
    await kube.until(lambda: owners_of_volumes(kube) == {()})


async def two_topics_of_one_name(kube: FakeKubernetes, topics: Mapping[str, Any]) -> None:
    """The older has it, and a deletion of the other does it no harm."""
    names = ("other", "third")
    for name in names:
        put_topic(kube, name, topicName="flights", retention="2d", deletionPolicy="Delete")
    await kube.until(
        lambda: all(ready_reason(kube, "Topic", name) == "NameTaken" for name in names)
    )
    kube.remove("Topic", "third")
    await kube.until(lambda: kube.find("Topic", "third") is None)
    assert topics["flights"]["retentionMs"] == 24 * 3_600_000
    kube.remove("Topic", "flights")  # with Retain
    await kube.until(lambda: ready_reason(kube, "Topic", "other") == "Served")
    assert topics["flights"]["retentionMs"] == 2 * 24 * 3_600_000

    put_topic(kube, "brief", deletionPolicy="Delete")
    await kube.until(lambda: ready_reason(kube, "Topic", "brief") == "Served")
    kube.remove("Topic", "brief")
    await kube.until(lambda: kube.find("Topic", "brief") is None)
    assert "brief" not in topics


async def nothing_is_done_while_paused(kube: FakeKubernetes) -> None:
    paused = {"metadata": {"annotations": {"tailrace.dev/paused": "true"}}}
    kube.edit("StreamCluster", "events", paused)
    await kube.until(
        lambda: (
            condition(kube.get("StreamCluster", "events"), "ReconciliationPaused")["status"]
            == "True"
        )
    )
    kube.edit("Service", "events", {"spec": {"type": "NodePort"}})
    kube.edit("StreamCluster", "events", {"spec": {"networkPolicy": True}})
    generation = kube.get("StreamCluster", "events")["metadata"]["generation"]
    await kube.until(
        lambda: kube.get("StreamCluster", "events")["status"]["observedGeneration"] == generation
    )
    assert kube.find("NetworkPolicy", "events") is None
    assert kube.get("Service", "events")["spec"]["type"] == "NodePort"


async def scenario_of_zones() -> list[Call]:
    """With addresses outside, which go again; all calls."""
    async with fake_cluster() as (kube, brokers, _):
        listeners = {"type": "Ingress", "host": "events-{ordinal}.example"}
        put_cluster(kube, zones=["a", "b", "c"], listeners=listeners)
        async with running_operator(kube, operator_settings(brokers.url_pattern)):
            await kube.until(lambda: is_all_ready(kube))
            status = kube.get("StreamCluster", "events")["status"]
            assert (status["zones"], status["listeners"]) == (3, 4)
            assert kube.find("Service", "events-2") is not None
            assert kube.find("Ingress", "events") is not None
            kube.edit("StreamCluster", "events", {"spec": {"listeners": None}})
            await kube.until(
                lambda: kube.get("StreamCluster", "events")["status"]["listeners"] == 0
            )
            assert kube.find("Service", "events-2") is None
            assert kube.find("Ingress", "events") is None
        return kube.calls


async def scenario_of_another_size() -> list[Call]:
    """The volume of a broker that has left goes, where volumes are not to stay; all calls."""
    async with fake_cluster() as (kube, brokers, _):
        put_cluster(kube, deletionPolicy="Delete")
        async with running_operator(kube, operator_settings(brokers.url_pattern)):
            await kube.until(lambda: is_all_ready(kube))
            for count in (4, 3):
                kube.edit("StreamCluster", "events", {"spec": {"brokers": count}})
                await kube.until(
                    lambda count=count: (
                        len(kube.of_kind("PersistentVolumeClaim")) == count  # type: ignore[misc]
                        and len(brokers.members) == count
                        and is_all_ready(kube)
                    )
                )
            assert kube.get("StreamCluster", "events")["status"]["founded"]["brokers"] == 3
        return kube.calls


@pytest.fixture(scope="module")
def calls() -> set[tuple[str, str, str]]:
    """All that the operator asked for, as a role names it."""
    scenarios = (scenario_of_a_cluster, scenario_of_zones, scenario_of_another_size)
    found = [each for scenario in scenarios for each in run_scenario(scenario())]
    return {(each.verb, each.group, each.resource) for each in found}


def role_rules() -> set[tuple[str, str, str]]:
    """What the chart's roles allow the operator."""
    roles = yaml.safe_load(ROLES.read_text())
    return {
        (verb, group, resource)
        for rules in roles.values()
        for rule in rules
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_the_role_allows_all_that_the_operator_asks_for(
    calls: set[tuple[str, str, str]],
) -> None:
    assert calls - role_rules() == set()


def test_the_role_allows_nothing_that_the_operator_never_asks_for(
    calls: set[tuple[str, str, str]],
) -> None:
    unused = role_rules() - calls
    assert {
        each for each in unused if each[0] != "delete" or each[2] not in _NEVER_REMOVED
    } == set()


def test_what_is_wrong_with_a_spec_is_said_in_the_status() -> None:
    async def scenario() -> None:
        async with fake_cluster() as (kube, brokers, _):
            put_cluster(kube, storage={"size": "a lot"})
            async with running_operator(kube, operator_settings(brokers.url_pattern)):
                await kube.until(
                    lambda: ready_reason(kube, "StreamCluster", "events") == "InvalidSpec"
                )
                reported = condition(kube.get("StreamCluster", "events"), "Ready")["message"]
                assert reported.startswith("spec.storage.size: ")
                kube.edit("StreamCluster", "events", {"spec": {"storage": {"size": "10Gi"}}})
                await kube.until(lambda: is_all_ready(kube))

    run_scenario(scenario())


def test_a_second_operator_waits_until_the_first_has_gone() -> None:
    async def scenario() -> None:
        async with fake_cluster() as (kube, brokers, _):
            first = operator_settings(brokers.url_pattern, identity="first", lease_seconds=3)
            second = operator_settings(brokers.url_pattern, identity="second", lease_seconds=3)

            def holder() -> Any:
                lease = kube.find("Lease", "tailrace-operator", "operators")
                return lease and lease["spec"]["holderIdentity"]

            async with running_operator(kube, first):
                await kube.until(lambda: holder() == "first")
                async with running_operator(kube, second):
                    put_cluster(kube)
                    await kube.until(lambda: is_all_ready(kube))
                    assert holder() == "first"
                assert holder() == "first", "who waits takes nothing with it when it goes"
            assert holder() == ""
            async with running_operator(kube, second):
                await kube.until(lambda: holder() == "second")

    run_scenario(scenario())
