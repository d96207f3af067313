from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_broker.app.settings import Settings
from tailrace_broker.model.errors import InvalidTopicNameError
from tailrace_broker.model.topic import TopicSettings, check_topic_name
from tailrace_operator.api.spec import (
    InvalidSpecError,
    StreamClusterSpec,
    TopicSpec,
    parse_cluster_spec,
    parse_topic_spec,
)

ALL_SETTINGS = {
    "autoCreateTopics": False,
    "allowedOrigins": ["https://console.example", "http://localhost:3000"],
    "segmentSize": "64Mi",
    "journalSize": "16Mi",
    "cacheSize": "0",
    "produceMemory": "32Mi",
    "readMemory": "48Mi",
    "ioBuffer": "40Mi",
    "maxRequestSize": "1Mi",
    "deleteRetention": "7d",
    "scrubRate": "1Mi",
    "ioThreads": 4,
    "logLevel": "debug",
}
ALL_OF_A_TOPIC = {
    "partitionsPerRange": 8,
    "jsonCheck": False,
    "compression": "zstd",
    "durability": "written",
    "retention": "36h",
    "retentionSize": "none",
    "flush": "500ms",
    "flushSize": "4Mi",
    "linger": "5ms",
    "lingerSize": "64Ki",
    "minInSyncReplicas": 3,
}


def cluster(**spec: Any) -> StreamClusterSpec:
    return parse_cluster_spec({"metadata": {"name": "events"}, "spec": spec})


def topic(**spec: Any) -> TopicSpec:
    return parse_topic_spec({"spec": {"cluster": "events", **spec}})


# --- StreamCluster --------------------------------------------------------------------------------


@pytest.mark.parametrize("document", [{}, {"spec": {}}, {"spec": None}])
def test_a_cluster_needs_no_more_than_a_name(document: dict[str, Any]) -> None:
    spec = parse_cluster_spec(document)

    assert (spec.brokers, spec.storage.size, spec.deletion_policy) == (3, "10Gi", "Retain")
    assert spec.broker_settings() == {"TAILRACE_AUTO_CREATE_TOPICS": "false"}


def test_settings_become_variables_that_the_broker_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables = cluster(settings=ALL_SETTINGS).broker_settings()

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TAILRACE_DATA_DIR", "/data")
    settings = Settings()  # type: ignore[call-arg]  # from the environment

    assert len(variables) == len(ALL_SETTINGS)
    assert settings.model_fields_set == {
        "data_dir",
        *(name.removeprefix("TAILRACE_").lower() for name in variables),
    }
    assert settings.segment_bytes == 64 * 2**20
    assert settings.delete_retention_ms == 7 * 86_400_000
    assert settings.scrub_bytes_per_second == 2**20
    assert settings.auto_create_topics is False
    assert settings.allowed_origins == "https://console.example,http://localhost:3000"


def test_every_setting_of_the_spec_is_tried_here() -> None:
    assert set(type(cluster().settings).model_json_schema()["properties"]) == set(ALL_SETTINGS)


def test_what_a_broker_takes_is_what_the_broker_says(tmp_path: Path) -> None:
    broker = Settings(data_dir=tmp_path)
    parts = ("produce_memory_bytes", "read_memory_bytes", "io_buffer_bytes", "cache_bytes")
    default_bytes = sum(getattr(broker, part) for part in parts)

    assert cluster().settings.memory_bytes == default_bytes
    assert cluster(settings={"cacheSize": "0"}).settings.memory_bytes == default_bytes - 32 * 2**20
    assert cluster(settings=ALL_SETTINGS).settings.memory_bytes == (0 + 32 + 48 + 40) * 2**20


def test_a_volume_has_a_size_in_bytes() -> None:
    assert cluster(storage={"size": "50Gi"}).storage.size_bytes == 50 * 2**30


def test_resources_are_texts_whatever_they_were_written_as() -> None:
    resources = cluster(resources={"requests": {"cpu": 2, "memory": "1Gi"}}).resources

    assert resources.requests == {"cpu": "2", "memory": "1Gi"}
    assert resources.limits == {}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"storage": {"size": "50GB"}},
            "spec.storage.size: not a size from 1Gi on; units are k, Ki, M, Mi, G, Gi, T, Ti",
        ),
        (
            {"settings": {"deleteRetention": "7"}},
            "spec.settings.deleteRetention: not a duration from 0 on; units are ms, s, m, h, d, w",
        ),
        (
            {"settings": {"allowedOrigins": ["*", "console.example"]}},
            "spec.settings.allowedOrigins.1: not an origin: scheme, host and port in lower case as "
            "in http://localhost:3000, or *",
        ),
        (
            {"resources": {"limits": {"memory": "much"}}},
            "spec.resources.limits.memory: not a quantity such as 500m, 2 or 1Gi",
        ),
        (
            {"imagePullSecrets": ["a", "b", "a"]},
            'spec.imagePullSecrets: Duplicate value: "a"',
        ),
        ({"zones": ["a", "b"]}, "spec.zones: a ring has three zones, or none"),
        ({"zones": ["a", "b", "a"]}, "spec.zones: a zone is named twice"),
        ({"replicas": 3}, "spec.replicas: unknown field"),
    ],
)
def test_a_bad_cluster_is_refused_by_its_field(spec: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSpecError) as refused:
        cluster(**spec)

    assert str(refused.value) == said


@pytest.mark.parametrize(
    "key",
    [
        "team",
        "Team_1.x-y",
        "a" * 63,
        "example.com/team",
        "a-1.b/c",
        f"{'a' * 253}/{'b' * 63}",
    ],
)
def test_a_key_of_labels_is_as_in_kubernetes(key: str) -> None:
    pod = cluster(pod={"labels": {key: "x"}, "annotations": {key: "y z"}}).pod

    assert (pod.labels, pod.annotations) == ({key: "x"}, {key: "y z"})


@pytest.mark.parametrize(
    "key",
    [
        "",
        "-team",
        "team-",
        "a b",
        "a" * 64,
        "/team",
        "example.com/",
        "a/b/c",
        "-a/b",
        "a..b/c",
        f"{'a' * 254}/b",
        "team\n",
    ],
)
def test_another_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidSpecError, match=r"^spec\.pod\.labels: not a label's key: up to 63"):
        cluster(pod={"labels": {key: "x"}})
    with pytest.raises(InvalidSpecError, match=r"^spec\.service\.annotations: not an annotation's"):
        cluster(service={"annotations": {key: "x"}})


def test_a_prefix_has_capitals_in_annotations_only() -> None:
    assert cluster(pod={"annotations": {"Example.com/team": ""}}).pod.annotations

    with pytest.raises(InvalidSpecError, match=r"^spec\.pod\.nodeSelector: not a label's key"):
        cluster(pod={"nodeSelector": {"Example.com/team": ""}})


def test_annotations_are_long_as_in_kubernetes() -> None:
    """Half of what it takes of them all."""
    key, value = "k" * 32, "ä" * (8192 - 16)
    most = {f"{number}{key[1:]}": value for number in range(8)}

    assert cluster(service={"annotations": most}).service.annotations == most
    assert len(cluster(pod={"annotations": {f"k{n}": "" for n in range(128)}}).pod.annotations)
    with pytest.raises(InvalidSpecError, match=r"^spec\.pod\.annotations: more than 128Ki of"):
        cluster(pod={"annotations": {**most, "k": ""}})


@pytest.mark.parametrize(
    "toleration",
    [
        {"key": "a", "operator": "", "effect": ""},
        {"key": "a", "effect": "NoExecute", "tolerationSeconds": -1},
        {"operator": "Exists", "effect": ""},
    ],
)
def test_a_toleration_is_as_in_kubernetes(toleration: dict[str, Any]) -> None:
    (made,) = cluster(pod={"tolerations": [toleration]}).pod.tolerations

    assert made.model_dump(by_alias=True, exclude_none=True) == toleration


@pytest.mark.parametrize("value", ["", "a", "A_1.b-c", "9", "a" * 63])
def test_a_value_of_labels_is_as_in_kubernetes(value: str) -> None:
    assert cluster(pod={"labels": {"team": value}}).pod.labels == {"team": value}


@pytest.mark.parametrize("value", ["-", "a-", ".a", "a b", "a/b", "a\n"])
def test_another_value_is_refused(value: str) -> None:
    with pytest.raises(InvalidSpecError, match=r"^spec\.pod\.labels\.team: not a label's value"):
        cluster(pod={"labels": {"team": value}})


# --- Topic ----------------------------------------------------------------------------------------


def test_a_topic_asks_only_for_what_is_given() -> None:
    assert topic().topic_settings() == {}
    assert topic(retention="7d").topic_settings() == {"retentionMs": 604_800_000}


def test_settings_of_a_topic_have_the_names_of_the_api() -> None:
    settings = topic(**ALL_OF_A_TOPIC).topic_settings()

    assert set(settings) == set(TopicSettings.__struct_encode_fields__)
    assert settings["retentionBytes"] is None
    assert settings["flushMs"] == 500
    assert settings["lingerBytes"] == 64 * 2**10


def test_a_topic_is_called_in_its_ring_as_its_resource_unless_it_says_otherwise() -> None:
    assert topic().name_in_ring("flights") == "flights"
    assert topic(topicName="web.Flights").name_in_ring("flights") == "web.Flights"


@pytest.mark.parametrize("name", ["_", "_a", "a__", ".a", "..a", "...", "-", "A.b_c-9"])
def test_a_name_that_the_broker_takes_is_taken(name: str) -> None:
    assert topic(topicName=name).topic_name == name


@pytest.mark.parametrize("name", [".", "..", "__", "__groups", "a/b", "a b", "ä", "a\n", ""])
def test_a_name_that_the_broker_refuses_is_refused(name: str) -> None:
    with pytest.raises(InvalidSpecError, match=r"^spec\.topicName: not a topic's name"):
        topic(topicName=name)


@given(st.text("ab._-/", max_size=6))
def test_names_are_those_of_the_broker(name: str) -> None:
    assert is_taken(name) == is_taken_by_the_broker(name)


def is_taken(name: str) -> bool:
    try:
        topic(topicName=name)
    except InvalidSpecError:
        return False
    return True


def is_taken_by_the_broker(name: str) -> bool:
    try:
        check_topic_name(name)
    except InvalidTopicNameError:
        return False
    return True


def test_a_topic_without_a_cluster_is_refused() -> None:
    with pytest.raises(InvalidSpecError, match=r"^spec\.cluster: required value$"):
        parse_topic_spec({"spec": {}})
