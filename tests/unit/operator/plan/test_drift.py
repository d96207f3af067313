"""What counts as another object, and what is only written in another way."""

from fractions import Fraction
from typing import Any

import pytest

from tailrace_operator.plan.drift import drift, merge_patch, quantity


def in_pod(**fields: Any) -> dict[str, Any]:
    return {"spec": {"template": {"spec": fields}}}


def in_container(**fields: Any) -> dict[str, Any]:
    return in_pod(containers=[{"name": "broker", **fields}])


def test_what_is_wanted_and_there_has_not_drifted() -> None:
    assert drift({"spec": {"replicas": 3}}, {"spec": {"replicas": 3, "other": 1}}) is None


@pytest.mark.parametrize(
    ("wanted", "live", "path"),
    [
        ({"spec": {"replicas": 3}}, {"spec": {"replicas": 1}}, "spec.replicas"),
        ({"spec": {"replicas": 3}}, {"spec": {}}, "spec.replicas"),
        ({"spec": {"paused": True}}, {"spec": {"paused": 1}}, "spec.paused"),
        ({"spec": {"ports": [1, 2]}}, {"spec": {"ports": 3}}, "spec.ports"),
        (
            {"metadata": {"labels": {"a/b": "c"}}},
            {"metadata": {"labels": {}}},
            "metadata.labels.a/b",
        ),
        ({"ingress": [{"ports": [1]}]}, {"ingress": [{"ports": [2]}]}, "ingress[0].ports[0]"),
        ({"ingress": [1]}, {"ingress": [1, 2]}, "ingress"),
        (
            in_container(image="a:2"),
            in_container(image="a:1"),
            "spec.template.spec.containers[broker].image",
        ),
        (
            in_container(env=[{"name": "A", "value": "1"}]),
            in_container(env=[{"name": "B", "value": "1"}]),
            "spec.template.spec.containers[broker].env[A]",
        ),
        (
            in_container(env=[{"name": "A", "value": "500m"}]),
            in_container(env=[{"name": "A", "value": "0.5"}]),
            "spec.template.spec.containers[broker].env[A].value",
        ),
        (
            in_container(resources={"limits": {"cpu": "1"}}),
            in_container(resources={"limits": {"cpu": "2"}}),
            "spec.template.spec.containers[broker].resources.limits.cpu",
        ),
        (
            in_container(resources={"limits": {"cpu": "much"}}),
            in_container(resources={"limits": {"cpu": "more"}}),
            "spec.template.spec.containers[broker].resources.limits.cpu",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_first_path_that_differs_is_reported(wanted: Any, live: Any, path: str) -> None:
    found = drift(wanted, live)

    assert found is not None
    assert found.path == path


@pytest.mark.parametrize(
    ("wanted", "live"),
    [
        ("1Gi", "1024Mi"),
        ("0.5", "500m"),
        (1, "1"),
        ("1e3", "1k"),
        ("1.5Gi", "1536Mi"),
    ],
)
def test_quantities_are_compared_by_value(wanted: Any, live: Any) -> None:
    requests = [{"requests": {"storage": each}} for each in (wanted, live)]

    assert drift({"resources": requests[0]}, {"resources": requests[1]}) is None


def test_a_port_is_a_number_or_a_text_of_it() -> None:
    wanted, live = ({"spec": {"ports": [{"port": 80, "targetPort": each}]}} for each in (80, "80"))

    assert drift(wanted, live) is None


def test_items_with_names_may_stand_among_others_in_any_order() -> None:
    one, two, other = ({"name": name, "value": "1"} for name in ("A", "B", "C"))

    assert drift(in_container(env=[one, two]), in_container(env=[other, two, one])) is None


def test_lists_without_names_are_compared_as_a_whole() -> None:
    """A port that somebody lets others reach is not a harmless addition."""
    rule, other = ({"ports": [{"port": port}]} for port in (9250, 9255))

    assert drift({"spec": {"ingress": [rule]}}, {"spec": {"ingress": [rule, other]}}) is not None
    opened = {"ports": [*rule["ports"], *other["ports"]]}
    assert drift({"spec": {"ingress": [rule]}}, {"spec": {"ingress": [opened]}}) is not None


@pytest.mark.parametrize("empty", [{}, [], "", None])
def test_what_is_empty_may_be_left_out(empty: Any) -> None:
    assert drift({"data": empty}, {}) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", Fraction(0)),
        ("250m", Fraction(1, 4)),
        ("10Gi", Fraction(10 * 2**30)),
        ("1E", Fraction(10**18)),
        ("1e-3", Fraction(1, 1000)),
        (".5k", Fraction(500)),
        ("-1", Fraction(-1)),
    ],
)
def test_a_quantity_is_a_number(text: str, value: Fraction) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "1gi", "1 Gi", "0x10", None])
def test_what_is_no_quantity_is_none(text: str | None) -> None:
    assert quantity(text) is None


def test_a_status_is_written_as_what_differs() -> None:
    old = {"phase": "Ready", "founded": {"brokers": 3}, "image": "a"}
    new = {"phase": "Ready", "founded": {"brokers": 3, "clusterId": "c"}}
    assert merge_patch(old, new) == {"founded": {"clusterId": "c"}, "image": None}
    assert merge_patch(new, new) == {}
