"""Resources that are deleted, made again and taken by others, on a fake Kubernetes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kubernetes.aio.client.configuration import Configuration
from structlog.testing import capture_logs

from tailrace_operator.app.metrics import Metrics
from tailrace_operator.app.pace import Outcome
from tailrace_operator.app.reconcile import Key, Reconciler
from tailrace_operator.kube.client import Kube
from tailrace_operator.kube.served import ServedNamespaces
from tailrace_operator.plan.observed import Document
from tailrace_operator.ring.admin import Rings
from tests.support.operator.fake_brokers import MemoryBrokers
from tests.support.operator.fake_kubernetes import FakeKubernetes
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

HOUR_MS = 3_600_000


def ready_reason(kube: FakeKubernetes, name: str, kind: str = "Topic") -> str:
    return str(condition(kube.get(kind, name), "Ready").get("reason"))


def pods_that_end(kube: FakeKubernetes, brokers: MemoryBrokers, stateful_set: str) -> None:
    """Those of a StatefulSet that is gone, which serve until the kubelet has ended them."""
    for ordinal in range(3):
        brokers.start(ordinal, {"TAILRACE_RING_SECRET": "of the ring before"})
        labels = {
            "app.kubernetes.io/name": "tailrace",
            "app.kubernetes.io/instance": "events",
            "app.kubernetes.io/component": "broker",
        }
        owner = {"kind": "StatefulSet", "name": "events", "uid": stateful_set, "controller": True}
        kube.put(
            {
                "kind": "Pod",
                "metadata": {
                    "name": f"events-{ordinal}",
                    "labels": labels,
                    "ownerReferences": [owner],
                },
                "spec": {"containers": [{"name": "broker", "env": []}]},
                "status": {"containerStatuses": [{"name": "broker", "state": {"running": {}}}]},
            }
        )


def test_a_ring_that_is_made_again_at_once_is_not_that_of_the_pods_before() -> None:
    async def scenario() -> None:
        async with fake_cluster() as (kube, brokers, nodes):
            settings = operator_settings(brokers.url_pattern)
            async with running_operator(kube, settings):
                put_cluster(kube, deletionPolicy="Delete")
                await kube.until(lambda: is_all_ready(kube))
                before = kube.get("StatefulSet", "events")["metadata"]["uid"]
            kube.remove("StreamCluster", "events")
            assert kube.of_kind("PersistentVolumeClaim") == []
            nodes.is_away = True
            pods_that_end(kube, brokers, before)
            put_cluster(kube, deletionPolicy="Delete")
            async with running_operator(kube, settings):
                await kube.until(
                    lambda: condition(cluster(kube), "Progressing").get("reason") == "Replaced"
                )
                assert kube.find("StatefulSet", "events") is None
                assert "founded" not in cluster(kube)["status"]

                brokers.cluster_id = None  # the volumes go with the pods
                for ordinal in range(3):
                    kube.remove("Pod", f"events-{ordinal}")
                nodes.is_away = False
                nodes.act()
                await kube.until(lambda: is_all_ready(kube))
            assert cluster(kube)["status"]["clusterId"] == brokers.founded[1]

    run_scenario(scenario())


def test_a_stateful_set_that_somebody_deletes_takes_no_data_along() -> None:
    async def scenario() -> None:
        async with fake_cluster() as (kube, brokers, _):
            put_cluster(kube, deletionPolicy="Delete")
            async with running_operator(kube, operator_settings(brokers.url_pattern)):
                await kube.until(lambda: is_all_ready(kube))
                claims = [volume["metadata"]["uid"] for volume in volumes(kube)]
                before = kube.get("StatefulSet", "events")["metadata"]["uid"]

                retention = {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"}}
                kube.edit("StatefulSet", "events", {"spec": retention})
                await kube.until(lambda: when_deleted(kube) == "Retain")
                kube.remove("StatefulSet", "events")

                await kube.until(
                    lambda: (
                        (found := kube.find("StatefulSet", "events")) is not None
                        and found["metadata"]["uid"] != before
                        and is_all_ready(kube)
                    )
                )
                assert [volume["metadata"]["uid"] for volume in volumes(kube)] == claims
            assert len(brokers.founded) == 1

    run_scenario(scenario())


def test_a_volume_that_still_goes_with_the_cluster_before_is_not_taken_over() -> None:
    async def scenario() -> None:
        async with fake_cluster() as (kube, brokers, nodes):
            nodes.is_away = True
            former = {
                "apiVersion": "tailrace.dev/v1alpha1",
                "kind": "StreamCluster",
                "name": "events",
                "uid": "before",
            }
            labels = {
                "app.kubernetes.io/name": "tailrace",
                "app.kubernetes.io/instance": "events",
                "app.kubernetes.io/component": "broker",
            }
            kube.put(
                {
                    "kind": "PersistentVolumeClaim",
                    "metadata": {
                        "name": "data-events-0",
                        "labels": labels,
                        "ownerReferences": [former],
                    },
                    "spec": {"resources": {"requests": {"storage": "10Gi"}}},
                }
            )
            put_cluster(kube, deletionPolicy="Delete")
            async with running_operator(kube, operator_settings(brokers.url_pattern)):
                await kube.until(
                    lambda: condition(cluster(kube), "Progressing").get("reason") == "Replaced"
                )
                assert kube.find("StatefulSet", "events") is None
                (claim,) = volumes(kube)
                assert claim["metadata"]["ownerReferences"] == [former]

                kube.remove("PersistentVolumeClaim", "data-events-0")  # as the garbage collector
                nodes.is_away = False
                await kube.until(lambda: is_all_ready(kube))

    run_scenario(scenario())


def when_deleted(kube: FakeKubernetes) -> str:
    spec = kube.get("StatefulSet", "events")["spec"]
    return str(spec["persistentVolumeClaimRetentionPolicy"]["whenDeleted"])


def volumes(kube: FakeKubernetes) -> list[dict[str, Any]]:
    return kube.of_kind("PersistentVolumeClaim")


def cluster(kube: FakeKubernetes) -> dict[str, Any]:
    return kube.get("StreamCluster", "events")


def test_a_secret_that_cannot_be_the_rings_is_notified_of() -> None:
    async def scenario() -> None:
        async with fake_cluster() as (kube, brokers, _):
            kube.put({"kind": "Secret", "metadata": {"name": "events-ring"}, "data": {}})
            put_cluster(kube)
            async with running_operator(kube, operator_settings(brokers.url_pattern)):
                await kube.until(lambda: "Secret events-ring is there already" in phase(kube))
                kube.remove("Secret", "events-ring")
                await kube.until(lambda: is_all_ready(kube))

    run_scenario(scenario())


def phase(kube: FakeKubernetes) -> str:
    return str(cluster(kube).get("status", {}).get("phase"))


def test_a_topic_whose_spec_says_nothing_is_let_go_and_its_data_stays() -> None:
    async def scenario() -> None:
        async with fake_cluster() as (kube, brokers, _):
            put_cluster(kube)
            put_topic(kube, "flights", deletionPolicy="Delete")
            async with running_operator(kube, operator_settings(brokers.url_pattern)):
                await kube.until(lambda: is_all_ready(kube))
                kube.edit("Topic", "flights", {"spec": {"retention": "for long"}})
                await kube.until(lambda: ready_reason(kube, "flights") == "InvalidSpec")
                kube.remove("Topic", "flights")
                await kube.until(lambda: kube.find("Topic", "flights") is None)
            assert "flights" in brokers.topics

    run_scenario(scenario())


def test_a_topic_is_the_next_ones_when_the_resource_that_had_it_has_gone() -> None:
    async def scenario() -> None:
        async with fake_cluster() as (kube, brokers, _):
            put_cluster(kube)
            put_topic(kube, "flights", deletionPolicy="Delete")
            put_topic(kube, "other", topicName="flights", retention="2h")
            async with running_operator(kube, operator_settings(brokers.url_pattern)):
                await kube.until(lambda: ready_reason(kube, "other") == "NameTaken")
                await kube.until(lambda: ready_reason(kube, "flights") == "Served")
                kube.remove("Topic", "flights")
                await kube.until(lambda: ready_reason(kube, "other") == "Served")
            assert brokers.topics["flights"]["retentionMs"] == 2 * HOUR_MS

    run_scenario(scenario())


def test_a_younger_resource_changes_nothing_before_the_older_one_is_known() -> None:
    async def scenario() -> None:
        async with fake_cluster() as (kube, brokers, _):
            settings = operator_settings(brokers.url_pattern)
            put_cluster(kube)
            put_topic(kube, "flights", retention="2h")
            async with running_operator(kube, settings):
                await kube.until(lambda: is_all_ready(kube))
            put_topic(kube, "brief", topicName="flights", retention="1h")

            def taken_by(listed: list[Document] | None) -> str | None:
                """The watch has not reported of the older one yet."""
                return None if listed is None else "flights"

            async with a_reconciler(kube, brokers) as reconciler:
                for key in (Key("StreamCluster", "ns", "events"), Key("Topic", "ns", "brief")):
                    await reconciler.reconcile(key, failure_count=0, taken_by=taken_by)
            assert ready_reason(kube, "brief") == "NameTaken"
            assert brokers.topics["flights"]["retentionMs"] == 2 * HOUR_MS

    run_scenario(scenario())


@asynccontextmanager
async def a_reconciler(kube: FakeKubernetes, brokers: MemoryBrokers) -> AsyncIterator[Reconciler]:
    """One without workers, whose passes are the test's."""
    api = Kube(Configuration(host=kube.url), timeout_s=10)
    rings = Rings(lambda _ns, _name, n: brokers.url_pattern.format(ordinal=n), timeout_s=10)
    try:
        yield Reconciler(
            api,
            rings,
            ServedNamespaces(api, release="operators/tailrace-operator", duration_s=180),
            Metrics(),
            default_image="tailrace/broker",
            identity="me",
        )
    finally:
        await rings.close()
        await api.close()


def test_nobody_is_alarmed_when_a_namespace_ends() -> None:
    async def scenario() -> list[tuple[str, str]]:
        async with fake_cluster() as (kube, brokers, _):
            put_cluster(kube)
            kube.ending.add("ns")
            with capture_logs() as logs:
                async with a_reconciler(kube, brokers) as reconciler:
                    for failure_count in range(5):
                        result = await reconciler.reconcile(
                            Key("StreamCluster", "ns", "events"),
                            failure_count=failure_count,
                            taken_by=lambda _: None,
                        )
                        assert result.outcome is Outcome.FAILED
            assert "Retrying" not in phase(kube)
            return [(log["log_level"], log["event"]) for log in logs]

    assert run_scenario(scenario()) == [("info", "namespace.ends")]


def test_a_namespace_that_is_gone_keeps_no_other_from_being_served() -> None:
    async def scenario() -> None:
        async with fake_cluster() as (kube, brokers, _):
            kube.forbidden.add("gone")  # and with it the operator's role there
            put_cluster(kube)
            settings = operator_settings(brokers.url_pattern, namespaces="ns, gone")
            async with running_operator(kube, settings):
                await kube.until(lambda: is_all_ready(kube))

    run_scenario(scenario())


def test_a_spec_whose_objects_kubernetes_refuses_waits_for_a_person() -> None:
    refusal = "spec.template.spec.tolerations[0].operator: Invalid value"

    async def scenario() -> None:
        async with fake_cluster() as (kube, brokers, _):

            def warnings() -> list[str]:
                return [
                    resource["reason"]
                    for resource in kube.of_kind("Event")
                    if resource["type"] == "Warning"
                ]

            kube.refused["StatefulSet"] = refusal
            put_cluster(kube)
            async with running_operator(kube, operator_settings(brokers.url_pattern)):
                await kube.until(warnings)
                status = cluster(kube)["status"]
                assert refusal in condition(cluster(kube), "Degraded")["message"]
                assert status["phase"].startswith("Blocked: ")
                assert refusal in status["phase"]

                kube.refused.clear()
                await kube.until(lambda: is_all_ready(kube))
            assert warnings() == ["Refused"]

    run_scenario(scenario())
