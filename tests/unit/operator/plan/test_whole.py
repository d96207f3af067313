"""What somebody adds where nothing else may be, is taken out again; words for what differs."""

import copy
import json
from typing import Any

import pytest

from tailrace_operator.plan.actions import Apply, RestartBroker
from tailrace_operator.plan.drift import Difference, exact
from tailrace_operator.plan.observed import ChildName
from tailrace_operator.plan.whole import mutable_spec
from tailrace_operator.plan.words import changed_words, restored_words
from tests.support.operator.kubernetes_world import STATEFUL_SET, World, action_of, settled

POD = ("spec", "template", "spec")


def changed(world: World, child: ChildName, path: tuple[str | int, ...], value: Any) -> None:
    """Somebody sets a field of a live object."""
    *parents, name = path
    part: Any = json.loads(json.dumps(world.children[child]))  # no part of it is there twice
    world.children[child] = part
    for each in parents:
        part = part.setdefault(each, {}) if isinstance(part, dict) else part[each]
    part[name] = value


@pytest.mark.parametrize(
    ("child", "path", "value", "patch"),
    [
        (
            ChildName("Service", "events"),
            ("spec", "selector", "x"),
            "y",
            {"spec": {"selector": {"x": None}}},
        ),
        (
            ChildName("Service", "events-brokers"),
            ("spec", "selector", "x"),
            "",
            {"spec": {"selector": {"x": None}}},
        ),
        (
            ChildName("ConfigMap", "events-settings"),
            ("data", "TAILRACE_LOG_LEVEL"),
            "debug",
            {"data": {"TAILRACE_LOG_LEVEL": None}},
        ),
        (
            ChildName("ConfigMap", "events-settings"),
            ("binaryData", "x"),
            "AA==",
            {"binaryData": {"x": None}},
        ),
        (
            ChildName("NetworkPolicy", "events"),
            ("spec", "podSelector", "matchLabels", "x"),
            "y",
            {"spec": {"podSelector": {"matchLabels": {"x": None}}}},
        ),
        (
            ChildName("PodDisruptionBudget", "events"),
            ("spec", "selector", "matchExpressions"),
            [{"key": "x", "operator": "Exists"}],
            {"spec": {"selector": {"matchExpressions": None}}},
        ),
        (
            STATEFUL_SET,
            ("spec", "template", "metadata", "annotations", "restartedAt"),
            "now",
            {"spec": {"template": {"metadata": {"annotations": {"restartedAt": None}}}}},
        ),
        (
            STATEFUL_SET,
            (*POD, "nodeSelector"),
            {"disk": "fast"},
            {"spec": {"template": {"spec": {"nodeSelector": None}}}},
        ),
        (STATEFUL_SET, ("spec", "ordinals"), {"start": 1}, {"spec": {"ordinals": None}}),
        (STATEFUL_SET, ("spec", "minReadySeconds"), 600, {"spec": {"minReadySeconds": None}}),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_a_field_that_somebody_adds_is_taken_out(
    child: ChildName, path: tuple[str | int, ...], value: Any, patch: dict[str, Any]
) -> None:
    world = settled()
    changed(world, child, path, value)

    action = action_of(world.observed())

    assert isinstance(action, Apply)
    assert ChildName(action.manifest["kind"], action.manifest["metadata"]["name"]) == child
    assert action.is_drift
    assert action.reason.startswith("removed ")
    assert action.patch == patch


def test_a_network_policy_that_lets_all_namespaces_in_is_replaced() -> None:
    """An empty selector is not nothing: it selects everything."""
    world = settled()
    policy = ChildName("NetworkPolicy", "events")
    changed(world, policy, ("spec", "ingress", 1, "from", 0, "namespaceSelector"), {})

    action = action_of(world.observed())

    assert isinstance(action, Apply)
    assert action.patch["spec"]["ingress"] == action.manifest["spec"]["ingress"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("command", ["sleep", "1d"]),
        ("env", [{"name": "TAILRACE_LOG_LEVEL", "value": "debug"}]),
        ("lifecycle", {"preStop": {"exec": {"command": ["true"]}}}),
    ],
)
def test_no_broker_is_restarted_onto_a_template_that_somebody_edited(
    field: str, value: Any
) -> None:
    world = settled()
    (container,) = world.children[STATEFUL_SET]["spec"]["template"]["spec"]["containers"]
    container[field] = [*container[field], *value] if field in container else value
    world.children[STATEFUL_SET]["metadata"]["generation"] += 1
    world.make_pods()  # the controller takes the edited template: all pods are outdated by it

    actions = world.settle()

    assert [type(each) for each in actions] == [Apply]


def test_no_broker_is_restarted_while_it_is_not_known_what_the_template_should_look_like() -> None:
    world = settled()
    world.knows_stored_spec = False
    world.children[STATEFUL_SET]["status"]["updateRevision"] = "another"

    assert not isinstance(action_of(world.observed()), RestartBroker)


def test_what_the_api_server_fills_in_is_no_drift() -> None:
    world = settled()
    live = world.children[STATEFUL_SET]
    live["spec"]["template"]["spec"]["dnsPolicy"] = "ClusterFirst"
    world.stored_spec = copy.deepcopy(mutable_spec(live))

    assert action_of(world.observed()) is None

    live["spec"]["template"]["spec"]["dnsPolicy"] = "Default"
    action = action_of(world.observed())

    assert isinstance(action, Apply)
    said = "restored spec.template.spec.dnsPolicy ClusterFirst, was changed by hand to Default"
    assert action.reason == said
    assert action.patch == {"spec": {"template": {"spec": {"dnsPolicy": None}}}}


@pytest.mark.parametrize(
    ("wanted", "live", "path"),
    [
        ({"a": [1, 2]}, {"a": [1, 3]}, "x.a[1]"),
        ({"a": [1, 2]}, {"a": [1]}, "x.a"),
        ({"a": [{"name": "b"}]}, {"a": [{"name": "c"}]}, "x.a[c]"),
        ({"a": {"b": None}}, {"a": {"b": 1}}, "x.a.b"),
        ({"a": {}}, {"a": {"b": {}}}, "x.a.b"),
        ({}, {"a": 1}, "x.a"),
        ({"a": 1}, {}, "x.a"),
    ],
)
def test_the_first_difference_of_any_kind_is_found(wanted: Any, live: Any, path: str) -> None:
    found = exact("x", wanted, live)

    assert found is not None
    assert found.path == path
    assert exact("x", live, copy.deepcopy(live)) is None


@pytest.mark.parametrize(
    ("difference", "changed_said", "restored_said"),
    [
        (
            Difference("spec.template.spec.containers[broker].image", "a:5/b:2", "a:5/b:1"),
            "image 1 → 2",
            "restored spec.template.spec.containers[broker].image a:5/b:2, was changed by hand to "
            "a:5/b:1",
        ),
        (
            Difference("spec.template.spec.containers[0].image", "c:2", "b:1"),
            "image b:1 → c:2",
            "restored spec.template.spec.containers[0].image c:2, was changed by hand to b:1",
        ),
        (
            Difference("spec.ports[9250]", 9250, 1234),
            "spec.ports[9250] 1234 → 9250",
            "restored port 9250, was changed by hand to 1234",
        ),
        (
            Difference("spec.ports[9250]", 9250),
            "spec.ports[9250]",
            "restored port 9250, was removed by hand",
        ),
        (Difference("spec.a", None, 1), "spec.a", "removed spec.a, was added by hand"),
        (Difference("spec.a", {"b": 1}, [1]), "spec.a", "restored spec.a, was changed by hand"),
        (Difference("a", "x" * 99, "y"), "a", "restored a, was changed by hand to y"),
    ],
)
def test_a_difference_is_said_in_words(
    difference: Difference, changed_said: str, restored_said: str
) -> None:
    assert changed_words(difference) == changed_said
    assert restored_words(difference) == restored_said
