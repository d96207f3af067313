"""Fields that somebody adds to an object of a ring, on a fake Kubernetes."""

from typing import Any

from tests.support.operator.fake_kubernetes import FakeKubernetes
from tests.support.operator.operators import (
    MARKS,
    condition,
    fake_cluster,
    is_all_ready,
    notes,
    operator_settings,
    put_cluster,
    run_scenario,
    running_operator,
    served_ring,
)

pytestmark = MARKS


def test_a_selector_that_selects_no_pod_any_more_is_repaired() -> None:
    async def scenario() -> None:
        async with served_ring() as (kube, _, _):
            before = kube.get("Service", "events")["spec"]["selector"]
            kube.edit("Service", "events", {"spec": {"selector": {"x": "y"}}})
            kube.edit("Service", "events", {"spec": {"sessionAffinity": "ClientIP"}})

            await kube.until(lambda: notes(kube, "DriftCorrected"))
            await kube.until(lambda: is_all_ready(kube))
            assert kube.get("Service", "events")["spec"]["selector"] == before
            assert kube.get("Service", "events")["spec"]["sessionAffinity"] == "ClientIP"
            assert notes(kube, "DriftCorrected") == [
                "Service events: removed spec.selector.x, was added by hand"
            ]

    run_scenario(scenario())


def an_edit(kube: FakeKubernetes) -> dict[str, Any]:
    """As `kubectl patch sts`, a strategic merge: containers and variables by their names."""
    pod = kube.get("StatefulSet", "events")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    edited = {
        **container,
        "command": ["sleep", "1d"],
        "env": [*container["env"], {"name": "TAILRACE_LOG_LEVEL", "value": "debug"}],
    }
    return {"nodeSelector": {"disk": "fast"}, "containers": [edited]}


def test_a_template_that_somebody_edits_is_replaced_and_no_broker_restarted() -> None:
    async def scenario() -> None:
        async with served_ring() as (kube, _, nodes):
            before = kube.get("StatefulSet", "events")["spec"]
            started = list(nodes.started)

            edit = {"spec": {"template": {"spec": an_edit(kube)}}}
            kube.edit("StatefulSet", "events", edit)

            await kube.until(lambda: notes(kube, "DriftCorrected"))
            await kube.until(lambda: is_all_ready(kube))
            assert kube.get("StatefulSet", "events")["spec"] == before
            assert nodes.started == started
            assert notes(kube, "BrokerRestart") == []

    run_scenario(scenario())


def test_a_broker_that_died_while_the_template_was_edited_comes_back_to_the_wanted_one() -> None:
    async def scenario() -> None:
        async with fake_cluster() as (kube, brokers, nodes):
            put_cluster(kube)
            settings = operator_settings(brokers.url_pattern)
            async with running_operator(kube, settings):
                await kube.until(lambda: is_all_ready(kube))
            started = len(nodes.started)
            edit = {"spec": {"template": {"spec": an_edit(kube)}}}
            kube.edit("StatefulSet", "events", edit)
            kube.remove("Pod", "events-1")

            async with running_operator(kube, settings):
                await kube.until(lambda: len(nodes.started) == started + 2 and is_all_ready(kube))
            assert [ordinal for ordinal, _ in nodes.started[started:]] == [1, 1]
            assert "nodeSelector" not in kube.get("Pod", "events-1")["spec"]

    run_scenario(scenario())


def test_a_ring_whose_template_a_policy_refuses_is_reported_and_never_restarted() -> None:
    async def scenario() -> None:
        async with served_ring() as (kube, _, nodes):
            started = list(nodes.started)
            kube.refused["StatefulSet"] = "denied by a policy"
            kube.edit("StatefulSet", "events", {"spec": {"template": {"spec": an_edit(kube)}}})
            kube.edit("Service", "events", {"spec": {"selector": {"x": "y"}}})

            await kube.until(lambda: notes(kube, "DriftCorrected"))
            await kube.until(lambda: degraded(kube) == "TemplateRefused")
            assert nodes.started == started

            kube.refused.clear()
            await kube.until(lambda: is_all_ready(kube))
            assert nodes.started == started

    run_scenario(scenario())


def test_a_webhook_that_is_down_keeps_the_operator_from_nothing_else() -> None:
    """The next operator asks how the API server writes the template, and gets no answer."""

    async def scenario() -> None:
        async with fake_cluster() as (kube, brokers, _):
            put_cluster(kube)
            settings = operator_settings(brokers.url_pattern)
            async with running_operator(kube, settings):
                await kube.until(lambda: is_all_ready(kube))
            kube.failing.add(("PATCH", "StatefulSet"))
            kube.edit("Service", "events", {"spec": {"selector": {"x": "y"}}})

            async with running_operator(kube, settings):
                await kube.until(lambda: notes(kube, "DriftCorrected"), timeout_s=10)

    run_scenario(scenario())


def degraded(kube: FakeKubernetes) -> str:
    return str(condition(kube.get("StreamCluster", "events"), "Degraded")["reason"])


def test_a_ring_that_is_well_costs_no_dry_run() -> None:
    async def scenario() -> None:
        async with fake_cluster() as (kube, brokers, _):
            put_cluster(kube)
            settings = operator_settings(brokers.url_pattern)
            async with running_operator(kube, settings):
                await kube.until(lambda: is_all_ready(kube))
                begin = len(kube.calls)

                def passes() -> int:
                    listed = [each for each in kube.calls[begin:] if each.resource == "pods"]
                    kube.edit(
                        "Service", "events", {"metadata": {"labels": {"seen": str(len(listed))}}}
                    )
                    return len(listed)

                await kube.until(lambda: passes() >= 5)
                patched = [each.resource for each in kube.calls[begin:] if each.verb == "patch"]
                assert patched.count("statefulsets") <= 1

    run_scenario(scenario())
