"""Services and an Ingress by which clients outside reach single brokers."""

from typing import Any

import pytest

from tailrace_broker.app.settings import Settings
from tailrace_operator.plan.listeners import listener_names, names_to_observe
from tailrace_operator.plan.manifests import children
from tailrace_operator.plan.names import selector_labels
from tailrace_operator.plan.observed import ChildName, Founded
from tests.support.operator.kubernetes_world import World, a_cluster

INGRESS = ChildName("Ingress", "events")
SERVICES = [ChildName("Service", f"events-{ordinal}") for ordinal in range(3)]
HOST = "events-{ordinal}.example"
BY_INGRESS = {
    "type": "Ingress",
    "host": HOST,
    "bootstrapHost": "events.example",
    "annotations": {"issuer": "{ordinal}"},
    "ingressClassName": "nginx",
    "tlsSecretName": "events-tls",
}


def made(listeners: dict[str, Any] | None) -> dict[ChildName, Any]:
    return dict(children(a_cluster({"listeners": listeners})))


def test_each_broker_has_a_service_of_its_own() -> None:
    given = {"type": "LoadBalancer", "host": HOST, "annotations": {"dns": HOST}}
    services = [made(given)[name] for name in SERVICES]

    assert INGRESS not in made(given)
    for ordinal, service in enumerate(services):
        index = {"apps.kubernetes.io/pod-index": str(ordinal)}
        assert service["spec"]["selector"] == {**selector_labels("events"), **index}
        assert service["spec"]["type"] == "LoadBalancer"
        assert service["metadata"]["annotations"]["dns"] == f"events-{ordinal}.example"
        assert [port["port"] for port in service["spec"]["ports"]] == [9250]


def test_node_ports_are_in_a_row() -> None:
    given = {"type": "NodePort", "host": "node.example", "nodePort": 30250}
    ports = [made(given)[name]["spec"]["ports"][0]["nodePort"] for name in SERVICES]

    assert ports == [30250, 30251, 30252]


def test_an_ingress_has_a_host_for_each_broker_and_one_for_all() -> None:
    wanted = made(BY_INGRESS)
    ingress = wanted[INGRESS]
    leads_to = {
        rule["host"]: rule["http"]["paths"][0]["backend"]["service"]["name"]
        for rule in ingress["spec"]["rules"]
    }

    assert leads_to == {
        "events-0.example": "events-0",
        "events-1.example": "events-1",
        "events-2.example": "events-2",
        "events.example": "events",
    }
    assert ingress["spec"]["ingressClassName"] == "nginx"
    assert ingress["spec"]["tls"] == [{"hosts": list(leads_to), "secretName": "events-tls"}]
    assert ingress["metadata"]["annotations"]["issuer"] == "{ordinal}"
    assert wanted[SERVICES[0]]["spec"]["type"] == "ClusterIP"
    assert "issuer" not in wanted[SERVICES[0]]["metadata"]["annotations"]
    assert made({"type": "Ingress", "host": HOST})[INGRESS]["spec"].keys() == {"rules"}


@pytest.mark.parametrize(
    ("listeners", "url"),
    [
        ({"host": HOST}, "http://events-1.example:9250"),
        ({"host": HOST, "port": 443}, "https://events-1.example:443"),
        ({"type": "LoadBalancer", "host": HOST, "port": 80}, "http://events-1.example:80"),
        ({"type": "NodePort", "host": "n.example", "nodePort": 30250}, "http://n.example:30251"),
        (
            {"type": "NodePort", "host": HOST, "nodePort": 30250, "port": 9250},
            "http://events-1.example:9250",
        ),
        ({"type": "Ingress", "host": HOST}, "http://events-1.example:80"),
        (BY_INGRESS, "https://events-1.example:443"),
    ],
)
def test_brokers_name_each_other_as_they_are_reached(
    listeners: dict[str, Any], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_DATA_DIR", "/data")
    settings = made(listeners)[ChildName("ConfigMap", "events-settings")]["data"]
    for name, value in settings.items():
        monkeypatch.setenv(name, value)

    outside = Settings().outside  # type: ignore[call-arg]

    assert outside is not None
    assert outside.url_of(1) == url
    assert outside.has("events.example") is ("bootstrapHost" in listeners)


def test_without_listeners_nothing_is_made_or_asked_for() -> None:
    spec = a_cluster().spec
    listed = a_cluster({"listeners": {"host": HOST}}).spec
    everything = listener_names("events", 3)

    assert not made(None).keys() & set(everything)
    assert names_to_observe("events", spec, None, {}) == ()
    assert names_to_observe("events", spec, None, {"listeners": 0}) == ()
    assert names_to_observe("events", spec, Founded(3, "r"), {"listeners": 1}) == everything
    assert names_to_observe("events", listed, None, {}) == everything


def test_what_is_not_wanted_any_more_goes_and_is_known_until_then() -> None:
    world = World({"listeners": BY_INGRESS})
    world.work()
    first = world.status["listeners"]
    world.settle()
    before = set(world.children)
    world.change(listeners=None)
    world.settle()

    assert first == 3
    assert before - set(world.children) == {*SERVICES, INGRESS}
    assert world.status["listeners"] == 0
    assert world.status["phase"] == "Ready"
