"""What is wrong is said: in STATUS, in Degraded, and by one Warning; on a fake Kubernetes."""

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from tailrace_operator.app.metrics import Metrics
from tailrace_operator.plan.plan import next_action
from tests.support.operator.fake_brokers import lost_range
from tests.support.operator.fake_kubernetes import FakeKubernetes
from tests.support.operator.operators import (
    MARKS,
    condition,
    fake_cluster,
    is_all_ready,
    notes,
    operator_settings,
    put_cluster,
    put_topic,
    run_scenario,
    running_operator,
    served_ring,
)

pytestmark = MARKS

PLANNER = "tailrace_operator.app.reconcile.next_action"
QUOTA = 'pods "events-1" is forbidden: exceeded quota: small'


def phase(kube: FakeKubernetes) -> str:
    return str(kube.get("StreamCluster", "events").get("status", {}).get("phase"))


def reason(kube: FakeKubernetes, kind: str, *, of: str = "StreamCluster") -> str:
    """Of a condition that says what is wrong; empty: it does not."""
    name = "events" if of == "StreamCluster" else "flights"
    found = condition(kube.get(of, name), kind)
    bad = "True" if kind == "Degraded" else "False"
    return str(found["reason"]) if found.get("status") == bad else ""


def warnings(kube: FakeKubernetes) -> list[str]:
    """Of the operator."""
    return [
        each["reason"]
        for each in kube.of_kind("Event")
        if each["type"] == "Warning" and "reportingComponent" in each
    ]


# --- a volume -------------------------------------------------------------------------------------


def test_no_broker_is_restarted_whose_volume_would_go_with_it() -> None:
    async def scenario() -> None:
        async with served_ring() as (kube, _, nodes):
            started = list(nodes.started)
            uid = kube.get("PersistentVolumeClaim", "data-events-1")["metadata"]["uid"]

            kube.remove("PersistentVolumeClaim", "data-events-1")
            kube.edit("StreamCluster", "events", {"spec": {"settings": {"ioThreads": 4}}})

            await kube.until(lambda: warnings(kube))
            assert warnings(kube) == ["VolumeDeleting"]
            assert reason(kube, "Degraded") == reason(kube, "Ready") == "VolumeDeleting"
            assert phase(kube).startswith("Degraded: volume data-events-1 is being deleted")
            await kube.until(lambda: budget(kube) == 0)  # a node that is drained waits too
            assert kube.get("PersistentVolumeClaim", "data-events-1")["metadata"]["uid"] == uid
            assert nodes.started == started

    run_scenario(scenario())


def test_what_is_wrong_is_warned_of_though_the_pass_that_reports_it_fails() -> None:
    """The next pass finds it in the status already, and takes it for said."""

    async def scenario() -> None:
        async with served_ring() as (kube, _, _):
            await kube.until(lambda: budget(kube) == 1)
            kube.failing.add(("PATCH", "PodDisruptionBudget"))
            kube.remove("PersistentVolumeClaim", "data-events-1")
            await kube.until(lambda: warnings(kube) == ["VolumeDeleting"])

    run_scenario(scenario())


def budget(kube: FakeKubernetes) -> int:
    return int(kube.get("PodDisruptionBudget", "events")["spec"]["maxUnavailable"])


# --- pods -----------------------------------------------------------------------------------------


def test_a_quota_that_keeps_pods_away_is_reported_once() -> None:
    async def scenario() -> None:
        async with fake_cluster() as (kube, brokers, nodes):
            nodes.refusal = QUOTA
            put_cluster(kube)
            async with running_operator(kube, operator_settings(brokers.url_pattern)):
                await kube.until(lambda: reason(kube, "Degraded") == "PodNotCreated")
                said = (
                    "Starting: 0 of 3 brokers run; a pod cannot be created: exceeded quota: small"
                )
                await kube.until(lambda: phase(kube) == said)
                await kube.until(lambda: warnings(kube))

                nodes.refusal = None
                nodes.act()
                await kube.until(lambda: is_all_ready(kube))
            assert warnings(kube) == ["PodNotCreated"]

    run_scenario(scenario())


def test_an_image_that_cannot_be_pulled_is_reported_once_whatever_the_kubelet_calls_it() -> None:
    async def scenario() -> None:
        async with fake_cluster() as (kube, brokers, nodes):
            nodes.waiting = {"reason": "ErrImagePull", "message": "no such image"}
            put_cluster(kube)
            async with running_operator(kube, operator_settings(brokers.url_pattern)):
                said = "Starting: 0 of 3 brokers run; broker 0: ImagePullBackOff: "
                await kube.until(lambda: phase(kube) == f"{said}no such image")
                nodes.waiting = {"reason": "ImagePullBackOff", "message": "back-off"}
                nodes.act()
                await kube.until(lambda: phase(kube) == f"{said}back-off")
                assert reason(kube, "Degraded") == "BrokerFails"

                nodes.waiting = None
                nodes.act()
                await kube.until(lambda: is_all_ready(kube))
            assert warnings(kube) == ["BrokerFails"]

    run_scenario(scenario())


# --- the ring -------------------------------------------------------------------------------------


def test_data_at_risk_is_reported_of_the_ring_and_of_its_topics() -> None:
    async def scenario() -> None:
        async with fake_cluster() as (kube, brokers, _):
            put_cluster(kube)
            put_topic(kube)
            # No pass runs without a change within this test.
            settings = operator_settings(brokers.url_pattern, resync_seconds=600)
            async with running_operator(kube, settings):
                await kube.until(lambda: is_all_ready(kube))

                brokers.ranges.append(lost_range(1, broker=1))
                kube.edit("Service", "events", {"metadata": {"labels": {"looked": "at"}}})

                await kube.until(lambda: reason(kube, "Ready", of="Topic") == "DataAtRisk")
                said = "Data at risk: range 1 may have lost its last events; see tailrace ring"
                assert phase(kube).startswith(said)
                assert reason(kube, "Ready") == reason(kube, "Degraded") == "DataAtRisk"
                await kube.until(lambda: warnings(kube) == ["DataAtRisk"])

                brokers.ranges.clear()  # somebody accepts it
                await kube.until(lambda: is_all_ready(kube))

    run_scenario(scenario())


def test_a_topic_hears_that_a_ring_which_was_not_ready_has_lost_data() -> None:
    async def scenario() -> None:
        async with fake_cluster() as (kube, brokers, nodes):
            put_cluster(kube)
            put_topic(kube)
            settings = operator_settings(brokers.url_pattern, resync_seconds=600)
            async with running_operator(kube, settings):
                await kube.until(lambda: is_all_ready(kube))
                nodes.is_away = True
                before = len(kube.calls)
                is_ready(kube, "events-1", "False")
                await kube.until(lambda: reason(kube, "Ready") == "Starting")
                # The Topic has looked again, and is well.
                await kube.until_called(
                    lambda: any(each.resource == "topics" for each in kube.calls[before:])
                )
                assert reason(kube, "Ready", of="Topic") == ""

                brokers.ranges.append(lost_range(1, broker=1))
                is_ready(kube, "events-1", "True")
                await kube.until(lambda: reason(kube, "Ready", of="Topic") == "DataAtRisk")

    run_scenario(scenario())


def is_ready(kube: FakeKubernetes, pod: str, status: str) -> None:
    conditions = [{"type": "Ready", "status": status}]
    kube.edit("Pod", pod, {"status": {"conditions": conditions}})
    kube.edit("StatefulSet", "events", {"status": {"readyReplicas": 3 if status == "True" else 2}})


def test_a_ring_secret_that_somebody_deletes_is_noticed_at_once() -> None:
    async def scenario() -> None:
        async with fake_cluster() as (kube, brokers, _):
            put_cluster(kube)
            settings = operator_settings(brokers.url_pattern, resync_seconds=600)
            async with running_operator(kube, settings):
                await kube.until(lambda: is_all_ready(kube))
                for each in range(3):  # until nothing else is left that could be noticed
                    before = reads_of_secret(kube)
                    edit = {"metadata": {"labels": {"looked": str(each)}}}
                    kube.edit("Service", "events", edit)
                    await kube.until_called(lambda: reads_of_secret(kube) > before)  # noqa: B023
                kube.remove("Secret", "events-ring")
                await kube.until(lambda: reason(kube, "Ready") == "SecretMissing")

    run_scenario(scenario())


def reads_of_secret(kube: FakeKubernetes) -> int:
    """One in each pass."""
    return sum(each[:3] == ("get", "", "secrets") for each in kube.calls)


# --- the operator ---------------------------------------------------------------------------------


def failing(what: Callable[..., Any], name: str) -> Callable[..., Any]:
    """It trips over this one resource."""

    def tripped(cluster: Any) -> Any:
        assert cluster.owner.name != name, "this cannot be"
        return what(cluster)

    return tripped


def test_what_cannot_be_observed_is_not_said_to_be_well() -> None:
    async def scenario() -> None:
        async with served_ring() as (kube, _, _):
            kube.failing.add(("GET", "Pod"))
            await kube.until(lambda: reason(kube, "Ready") == "Retrying", timeout_s=10)
            assert phase(kube).startswith("Retrying: list pods: failed calling webhook")

            kube.failing.clear()
            await kube.until(lambda: is_all_ready(kube))

    run_scenario(scenario())


def test_an_assertion_about_one_resource_marks_that_one_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metrics = Metrics()
    monkeypatch.setattr("tailrace_operator.app.main.Metrics", lambda: metrics)

    async def scenario() -> None:
        async with fake_cluster() as (kube, brokers, _):
            settings = operator_settings(brokers.url_pattern)
            with capture_logs() as logs:
                async with running_operator(kube, settings):
                    put_cluster(kube)
                    await kube.until(lambda: is_all_ready(kube))
                    monkeypatch.setattr(PLANNER, failing(next_action, "events"))
                    kube.edit("StreamCluster", "events", {"spec": {"settings": {"ioThreads": 4}}})
                    await kube.until(lambda: warnings(kube) == ["InternalError"])
                    assert reason(kube, "Ready") == reason(kube, "Degraded") == "InternalError"
                    assert "AssertionError: this cannot be" in phase(kube)
                    put_topic(kube)
                    await kube.until(lambda: not reason(kube, "Ready", of="Topic"))

                    monkeypatch.setattr(PLANNER, next_action)
                    await kube.until(lambda: is_all_ready(kube))
            assert "resource.bug" in [each["event"] for each in logs]
        text = generate_latest(metrics.registry).decode()
        assert 'tailrace_operator_bugs_total{kind="StreamCluster"} 0.0' not in text
        assert 'tailrace_operator_bugs_total{kind="Topic"} 0.0' in text

    run_scenario(scenario())


def test_another_number_of_partitions_is_altered_and_its_progress_reported() -> None:
    async def scenario() -> None:
        async with fake_cluster() as (kube, brokers, _):

            async def until_said(words: str) -> None:
                await kube.until(
                    lambda: words in condition(kube.get("Topic", "flights"), "Ready")["message"]
                )

            put_cluster(kube)
            put_topic(kube)
            async with running_operator(kube, operator_settings(brokers.url_pattern)):
                await kube.until(lambda: is_all_ready(kube))
                flights = brokers.topics["flights"]
                fields = {"partitionsPerRange": 8, "retention": "1d"}
                kube.edit("Topic", "flights", {"spec": fields})
                await until_said("served; 3 ranges still to come to 8 partitions")
                assert reason(kube, "Ready", of="Topic") == ""
                assert (flights["partitionsPerRange"], flights["retentionMs"]) == (8, 86_400_000)
                flights["rangesToSlice"] = 1
                await until_said("served; 1 range still to come to 8 partitions")

    run_scenario(scenario())


def test_what_is_made_again_is_reported_and_what_is_made_first_is_not() -> None:
    async def scenario() -> None:
        async with fake_cluster() as (kube, brokers, _):
            put_cluster(kube)
            async with running_operator(kube, operator_settings(brokers.url_pattern)):
                await kube.until(lambda: is_all_ready(kube))
                assert notes(kube, "ObjectCreated") == []
                kube.remove("Service", "events")
                await kube.until(lambda: notes(kube, "ObjectCreated"))
            assert notes(kube, "ObjectCreated") == ["Service events: created, was missing"]

    run_scenario(scenario())


def test_the_operator_says_which_version_it_is_and_what_it_watches() -> None:
    async def scenario() -> list[Any]:
        async with fake_cluster() as (kube, brokers, _):
            settings = operator_settings(brokers.url_pattern, namespaces="ns, shop")
            with capture_logs() as logs:
                async with running_operator(kube, settings):
                    pass
        return logs

    started = next(each for each in run_scenario(scenario()) if each["event"] == "operator.started")
    assert (started["version"], started["namespaces"]) == ("0.1.0", "ns, shop")
