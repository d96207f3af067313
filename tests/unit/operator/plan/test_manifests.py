"""What is made for a StreamCluster."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tailrace_broker.app.settings import Settings
from tailrace_operator.api.pod import OPERATORS_VARIABLES
from tailrace_operator.api.spec import BrokerSettings
from tailrace_operator.plan.manifests import children, secret_manifest
from tailrace_operator.plan.names import APPLIED_HASH, child_names, labels, selector_labels
from tailrace_operator.plan.observed import ChildName, Founded
from tests.support.operator.kubernetes_world import (
    OWNER,
    STATEFUL_SET,
    World,
    a_cluster,
    with_ranges,
)

FULL_SPEC = {
    "image": "registry.example/broker:1",
    "imagePullPolicy": "Always",
    "imagePullSecrets": ["pull"],
    "storage": {"size": "50Gi", "storageClassName": "fast"},
    "settings": {"cacheSize": "64Mi", "deleteRetention": "7d", "autoCreateTopics": False},
    "zones": ["a", "b", "c"],
    "deletionPolicy": "Delete",
    "pod": {
        "labels": {"team": "shop", "app.kubernetes.io/name": "mine"},
        "annotations": {"note": "x"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
        "priorityClassName": "high",
        "affinity": {"nodeAffinity": {"kept": "as it is"}},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
            {"labelSelector": {"matchLabels": {"mine": "too"}}, "topologyKey": "zone"},
        ],
        "env": [
            {"name": "TAILRACE_FORWARD_SECONDS", "value": "20"},
            {"name": "PROXY", "valueFrom": {"secretKeyRef": {"name": "proxy", "key": "url"}}},
            {"name": "TAILRACE_DATA_DIR", "value": "/elsewhere"},
        ],
        "securityContext": {"fsGroup": 5},
    },
    "service": {"type": "LoadBalancer", "annotations": {"lb": "internal"}},
}


EVERY_SETTING = {
    "autoCreateTopics": True,
    "allowedOrigins": ["https://console.example"],
    "logLevel": "info",
    "deleteRetention": "1d",
    "ioThreads": 2,
    "maxRequestSize": "1Mi",
    **dict.fromkeys(
        ("segmentSize", "journalSize", "cacheSize", "produceMemory", "readMemory", "ioBuffer"),
        "64Mi",
    ),
    "scrubRate": "1Mi",
}


def made(spec: dict[str, Any] | None = None, **changes: Any) -> dict[ChildName, Any]:
    return dict(children(a_cluster(spec, **changes)))


def pod_of(spec: dict[str, Any] | None = None) -> Any:
    return made(spec)[STATEFUL_SET]["spec"]["template"]


def container_of(spec: dict[str, Any] | None = None) -> Any:
    return pod_of(spec)["spec"]["containers"][0]


def test_all_that_can_be_made_is_listed_by_name_and_kind() -> None:
    every = made()

    assert tuple(every) == child_names("events")
    assert {each["kind"]: each["apiVersion"] for each in every.values()} == {
        "ConfigMap": "v1",
        "Service": "v1",
        "NetworkPolicy": "networking.k8s.io/v1",
        "PodDisruptionBudget": "policy/v1",
        "StatefulSet": "apps/v1",
    }


def test_everything_belongs_to_the_resource_and_has_its_labels() -> None:
    objects = [*made(FULL_SPEC).values(), secret_manifest(a_cluster())]

    for each in objects:
        metadata = each["metadata"]
        assert metadata["namespace"] == "shop"
        assert metadata["labels"] == labels("events")
        assert metadata["ownerReferences"] == [
            {
                "apiVersion": "tailrace.dev/v1alpha1",
                "kind": "StreamCluster",
                "name": "events",
                "uid": "owner-1",
                "controller": True,
            }
        ]


def test_a_network_policy_is_made_unless_the_spec_says_no() -> None:
    kinds = {child.kind for child in made({"networkPolicy": False})}

    assert kinds == {"ConfigMap", "Service", "PodDisruptionBudget", "StatefulSet"}


def test_brokers_start_together_and_are_restarted_by_the_operator_alone() -> None:
    spec = made()[STATEFUL_SET]["spec"]

    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    assert spec["serviceName"] == "events-brokers"
    assert spec["replicas"] == 3


def test_a_ring_has_the_brokers_that_it_was_founded_with() -> None:
    """Whatever the spec says: a broker that is taken away takes its data with it."""
    spec = made({"brokers": 1}, founded=Founded(3, "ring-1"))[STATEFUL_SET]["spec"]

    assert spec["replicas"] == 3


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_no_volume_goes_with_a_stateful_set(policy: str) -> None:
    """They go with the StreamCluster, or stay: `OwnClaim`."""
    spec = made({"deletionPolicy": policy})[STATEFUL_SET]["spec"]

    assert spec["persistentVolumeClaimRetentionPolicy"] == {
        "whenDeleted": "Retain",
        "whenScaled": "Retain",
    }


def test_the_volume_is_as_the_spec_says() -> None:
    claim = made(FULL_SPEC)[STATEFUL_SET]["spec"]["volumeClaimTemplates"][0]

    assert claim["metadata"] == {"name": "data", "labels": labels("events")}
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "50Gi"}},
        "storageClassName": "fast",
    }


def test_no_class_differs_from_the_default() -> None:
    no_class, default = (
        made({"storage": storage})[STATEFUL_SET]["spec"]["volumeClaimTemplates"][0]["spec"]
        for storage in ({"storageClassName": ""}, {})
    )

    assert no_class["storageClassName"] == ""
    assert "storageClassName" not in default


def test_the_pod_has_what_the_spec_gives_it_but_the_operators_labels() -> None:
    pod = pod_of(FULL_SPEC)

    assert pod["metadata"]["labels"] == {"team": "shop", **labels("events")}
    assert pod["metadata"]["annotations"].keys() == {"note", "tailrace.dev/settings-hash"}
    assert pod["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    assert pod["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert pod["spec"]["tolerations"] == FULL_SPEC["pod"]["tolerations"]  # type: ignore[index]
    assert pod["spec"]["priorityClassName"] == "high"
    assert pod["spec"]["schedulingGates"] == [{"name": "tailrace.dev/zone"}]
    assert container_of(FULL_SPEC)["image"] == "registry.example/broker:1"
    assert container_of(FULL_SPEC)["imagePullPolicy"] == "Always"


def test_pods_are_spread_as_the_spec_says() -> None:
    pod = pod_of(FULL_SPEC)["spec"]
    by_zone, mine = pod["topologySpreadConstraints"]

    assert pod["affinity"] == {"nodeAffinity": {"kept": "as it is"}}
    assert by_zone == {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": selector_labels("events")},
    }
    assert mine["labelSelector"] == {"matchLabels": {"mine": "too"}}
    assert "affinity" not in pod_of({"pod": {"affinity": {}}})["spec"]
    assert pod_of()["spec"]["affinity"].keys() == {"podAntiAffinity"}


def test_brokers_have_more_variables_but_none_of_the_operators() -> None:
    (own,) = (each for each in container_of()["env"] if each["name"] == "TAILRACE_DATA_DIR")
    given = container_of(FULL_SPEC)["env"]

    assert given == [*container_of()["env"], *FULL_SPEC["pod"]["env"][:2]]  # type: ignore[index]
    assert [each for each in given if each["name"] == own["name"]] == [own]


def test_no_variable_that_the_operator_sets_can_be_set_by_the_spec() -> None:
    settings = made({"settings": EVERY_SETTING})[ChildName("ConfigMap", "events-settings")]["data"]
    identity = [each["name"] for each in container_of()["env"]]

    assert {*settings, *identity} <= set(OPERATORS_VARIABLES)
    assert len(settings) == len(BrokerSettings.model_fields)


@pytest.mark.parametrize(
    ("user", "wanted"),
    [
        (None, {"runAsUser": 10250, "runAsGroup": 10250, "fsGroup": 10250}),
        ({}, {}),
        ({"runAsUser": 7, "fsGroup": 8}, {"runAsUser": 7, "fsGroup": 8}),
    ],
)
def test_brokers_run_as_the_images_user_or_as_whom_the_cluster_gives(
    user: dict[str, int] | None, wanted: dict[str, int]
) -> None:
    context = pod_of(None if user is None else {"pod": {"securityContext": user}})["spec"]
    ids = {"runAsUser", "runAsGroup", "fsGroup"}
    given = {name: value for name, value in context["securityContext"].items() if name in ids}

    assert given == wanted
    assert context["securityContext"]["runAsNonRoot"] is True


def test_the_pod_may_do_nothing_but_serve() -> None:
    pod, container = pod_of()["spec"], container_of()

    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert pod["shareProcessNamespace"] is True
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert pod["terminationGracePeriodSeconds"] == 90


def test_a_broker_can_be_started_with_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    container = container_of(FULL_SPEC)
    settings = made(FULL_SPEC)["ConfigMap", "events-settings"]["data"]  # type: ignore[index]
    given = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    for name, value in {**settings, **given, "TAILRACE_ORDINAL": "2"}.items():
        monkeypatch.setenv(name, value)

    broker = Settings()  # type: ignore[call-arg]

    assert broker.address_of(1) == ("events-1.events-brokers.shop.svc", 9250)
    assert broker.advertised_host == "$(POD_NAME).events-brokers.shop.svc"
    assert (broker.ordinal, broker.ring_name) == (2, "events")
    assert broker.cache_bytes == 64 * 2**20
    assert broker.delete_retention_ms == 7 * 86_400_000
    assert broker.auto_create_topics is False


@pytest.mark.parametrize(("settings", "creates"), [({}, False), ({"autoCreateTopics": True}, True)])
def test_a_produce_creates_no_topic_unless_the_spec_says_so(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], creates: bool
) -> None:
    monkeypatch.setenv("TAILRACE_DATA_DIR", "/data")
    made_settings = made({"settings": settings})[ChildName("ConfigMap", "events-settings")]
    for name, value in made_settings["data"].items():
        monkeypatch.setenv(name, value)

    assert Settings().auto_create_topics is creates  # type: ignore[call-arg]


def test_every_name_that_the_environment_refers_to_is_before_it() -> None:
    names = [each["name"] for each in container_of()["env"]]

    assert names.index("POD_NAME") < names.index("TAILRACE_ADVERTISED_HOST")


def test_other_settings_are_a_new_revision_of_the_pod() -> None:
    hashes = {
        pod_of({"settings": settings})["metadata"]["annotations"]["tailrace.dev/settings-hash"]
        for settings in ({}, {"ioThreads": 4}, {"ioThreads": 8})
    }

    assert len(hashes) == 3


def test_a_starting_broker_is_given_half_an_hour() -> None:
    probe = container_of()["startupProbe"]

    assert probe["httpGet"] == {"path": "/live", "port": "public"}
    assert probe["periodSeconds"] * probe["failureThreshold"] == 1800


def test_the_ports_between_brokers_are_for_brokers_of_this_ring() -> None:
    policy = made()[ChildName("NetworkPolicy", "events")]["spec"]
    everyone, brokers = policy["ingress"]

    assert [port["port"] for port in everyone["ports"]] == [9250, 9251, 9252, 9253]
    assert "from" not in everyone
    assert [port["port"] for port in brokers["ports"]] == [9255, 9256]
    assert brokers["from"] == [{"podSelector": {"matchLabels": selector_labels("events")}}]


def test_clients_find_ready_brokers_and_brokers_find_all() -> None:
    services = made(FULL_SPEC)
    clients = services[ChildName("Service", "events")]
    brokers = services[ChildName("Service", "events-brokers")]

    assert clients["spec"]["type"] == "LoadBalancer"
    assert clients["metadata"]["annotations"]["lb"] == "internal"
    assert [port["port"] for port in clients["spec"]["ports"]] == [9250, 9251, 9252]
    assert brokers["spec"]["clusterIP"] == "None"
    assert brokers["spec"]["publishNotReadyAddresses"] is True
    ports = [port["port"] for port in brokers["spec"]["ports"]]
    assert ports == [9250, 9251, 9252, 9253, 9255, 9256]


def test_a_whole_ring_can_spare_one_broker_and_no_other_ring_any() -> None:
    world = World()
    world.settle()
    whole = world.observed()
    assert whole.ring is not None
    rings = [
        whole,
        replace(whole, ring=None),
        replace(whole, ring=with_ranges(whole.ring, behind={1})),
        replace(whole, ring=with_ranges(whole.ring, leaderless={1})),
        replace(whole, ring=replace(whole.ring, brokers=())),
        replace(whole, pods=whole.pods[1:]),
        replace(whole, founded=None),
    ]
    budgets = [children(ring)[ChildName("PodDisruptionBudget", "events")]["spec"] for ring in rings]

    assert {budget["unhealthyPodEvictionPolicy"] for budget in budgets} == {"AlwaysAllow"}
    assert [budget["maxUnavailable"] for budget in budgets] == [1, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("away", "behind", "policy"),
    [
        ((), (), "AlwaysAllow"),
        ((1,), (), "AlwaysAllow"),
        ((1,), (1,), "AlwaysAllow"),
        ((), (2,), "AlwaysAllow"),
        ((1,), (2,), "IfHealthyBudget"),
    ],
)
def test_a_pod_that_does_not_serve_is_held_when_a_range_needs_its_copies(
    away: tuple[int, ...], behind: tuple[int, ...], policy: str
) -> None:
    world = World()
    world.settle()
    for ordinal in away:
        world.falter(ordinal)
    cluster = world.observed()
    cluster = replace(cluster, ring=with_ranges(cluster.ring, behind=behind))

    budget = children(cluster)[ChildName("PodDisruptionBudget", "events")]["spec"]

    assert budget["unhealthyPodEvictionPolicy"] == policy


def test_the_secret_has_no_text_yet_and_will_never_be_another() -> None:
    manifest = secret_manifest(a_cluster())

    assert manifest["metadata"]["name"] == "events-ring"
    assert manifest["immutable"] is True
    assert "data" not in manifest


def test_the_applied_hash_reports_what_was_asked_for() -> None:
    child = ChildName("Service", "events")
    hashes = [
        made({"service": service})[child]["metadata"]["annotations"][APPLIED_HASH]
        for service in ({}, {"annotations": {"a": "1"}}, {})
    ]

    assert hashes[0] == hashes[2] != hashes[1]


def test_manifests_are_json_without_empty_fields() -> None:
    """The API server would leave them out, and `kubectl diff` would show them."""

    def empty(path: str, value: Any) -> list[str]:
        if isinstance(value, dict):
            found = [each for key in value for each in empty(f"{path}.{key}", value[key])]
        elif isinstance(value, list):
            found = [each for one in value for each in empty(path, one)]
        else:
            found = []
        return found if value not in (None, "", [], {}) else [*found, path]

    for child, manifest in made().items():
        assert json.loads(json.dumps(manifest)) == manifest
        assert [each for each in empty("", manifest) if each != ".data"] == [], child


def test_names_are_of_the_resource() -> None:
    other = replace(a_cluster(), owner=replace(OWNER, name="audit"))

    assert {child.name for child in children(other)} == {
        "audit",
        "audit-brokers",
        "audit-settings",
    }
