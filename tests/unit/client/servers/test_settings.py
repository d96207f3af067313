"""Variables that are no settings, and settings with a wrong value: what is said of each."""

import os
from typing import Any, get_type_hints

import pytest
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from tailrace.cli.main import ENVIRONMENT
from tailrace.protocol.requests import TopicSettings
from tailrace.servers.settings import (
    CLIENT_VARIABLES,
    TOPIC_SETTINGS,
    Server,
    WrongSettingsError,
    read_settings,
    service_links,
    unknown_settings,
    wrong_settings,
)

SERVER = Server("a server", "APP_", "docs/app.md", ("port", "log_level"), others=("APP_URL",))


def wrong(kind: str, value: object, schema: dict[str, Any], **context: Any) -> str:
    error = {"loc": ("port",), "type": kind, "input": value, "ctx": context}
    (sentence,) = wrong_settings(SERVER, [error], {"properties": {"port": schema}})
    return sentence


@pytest.mark.parametrize(
    "name",
    ["APP_PORT", "app_port", "APP_URL", "OTHER_PORTS", "APP_SERVICE_HOST", "APP_PORT_80_TCP_ADDR"],
)
def test_what_is_a_setting_or_anothers_is_not_unknown(name: str) -> None:
    assert unknown_settings(SERVER, {name: "1"}) == []


def test_an_empty_variable_is_none() -> None:
    assert unknown_settings(SERVER, {"APP_PORTS": ""}) == []


def test_an_unknown_setting_is_named_with_the_nearest_one() -> None:
    assert unknown_settings(SERVER, {"APP_PORTS": "1", "app_xyz": "1"}) == [
        "APP_PORTS is no setting of a server; did you mean APP_PORT? All are in docs/app.md",
        "app_xyz is no setting of a server. All are in docs/app.md",
    ]


@pytest.mark.parametrize("word", ["RETENTION", "partitions", "LINGER_MS"])
def test_what_each_topic_has_is_no_setting_of_a_server(word: str) -> None:
    server = SERVER._replace(names=("delete_retention_ms",))

    assert unknown_settings(server, {f"APP_{word}": "1"}) == [
        f"APP_{word} is no setting of a server: each topic has its own (tailrace topic create). "
        "All are in docs/app.md"
    ]


def test_all_settings_of_topics_are_known_as_such() -> None:
    assert set(TOPIC_SETTINGS) == set(get_type_hints(TopicSettings))


@pytest.mark.parametrize(
    ("name", "value", "is_link"),
    [
        ("APP_PORT", "tcp://10.0.0.1:80", True),
        ("APP_HTTP_PORT", "udp://10.0.0.1:80", True),
        ("APP_PORT", "80", False),
        ("APP_PORTS", "tcp://10.0.0.1:80", False),
        ("APP_SERVICE_PORT_HTTP", "80", True),
        ("APP_PORT_80_TCP", "tcp://10.0.0.1:80", True),
        ("APP_SERVICE", "80", False),
    ],
)
def test_what_kubernetes_sets_for_services_is_recognised(
    name: str, value: str, is_link: bool
) -> None:
    assert service_links({name: value}) == ([name] if is_link else [])


@pytest.mark.parametrize(
    ("schema", "allowed"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 9}, "a whole number from 1 to 9"),
        ({"type": "integer", "minimum": 1}, "a whole number of 1 or more"),
        ({"type": "integer", "minimum": 1_048_576}, "a whole number of 1048576 or more"),
        ({"type": "integer", "maximum": 9}, "a whole number of 9 or less"),
        ({"type": "integer"}, "a whole number"),
        ({"type": "number", "exclusiveMinimum": 0.0}, "a number above 0"),
        ({"type": "number", "minimum": 3.0}, "a number of 3 or more"),
        ({"type": "number", "minimum": 0.25}, "a number of 0.25 or more"),
        ({"type": "number"}, "a number"),
        ({"type": "boolean"}, "true or false"),
        ({"type": "string", "enum": ["debug", "info", "error"]}, "debug, info or error"),
    ],
)
def test_a_wrong_value_is_shown_with_what_is_allowed(schema: dict[str, Any], allowed: str) -> None:
    assert wrong("any", "x", schema) == f'APP_PORT is "x": give {allowed}'


def test_a_long_value_is_cut() -> None:
    assert wrong("any", "x" * 100, {"type": "boolean"}).startswith(f'APP_PORT is "{"x" * 60}"')


def test_the_value_of_a_secret_is_not_shown() -> None:
    reason = ValueError("has a space")

    assert wrong("value_error", "a b", {"format": "password"}, error=reason) == (
        "APP_PORT has a space"
    )
    assert wrong("value_error", "a b", {"type": "string"}, error=reason) == (
        'APP_PORT is "a b", which has a space'
    )


def test_a_missing_setting_and_two_that_do_not_fit_are_sentences() -> None:
    assert wrong("missing", None, {}) == "APP_PORT is not set"
    together = {"loc": (), "type": "value_error", "ctx": {"error": ValueError("APP_A is below B")}}
    assert wrong_settings(SERVER, [together], {"properties": {}}) == ["APP_A is below B"]


def test_a_brokers_environment_may_have_every_variable_of_the_command_line() -> None:
    assert set(CLIENT_VARIABLES) == set(ENVIRONMENT)


def test_the_error_has_all_mistakes() -> None:
    error = WrongSettingsError(["one", "two"])

    assert (str(error), error.mistakes) == ("one; two", ["one", "two"])


class AppSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="APP_")

    port: int = Field(default=80, ge=1, le=99)
    log_level: str = "info"


def test_links_of_services_are_taken_away_before_settings_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("APP_PORT", "tcp://10.0.0.1:81")
    monkeypatch.setenv("APP_LOG_LEVEL", "debug")

    settings = read_settings(SERVER, AppSettings, os.environ)

    assert (settings.port, settings.log_level) == (80, "debug")


def test_all_mistakes_of_an_environment_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APP_PORT", "http")
    monkeypatch.setenv("APP_XYZ", "1")

    with pytest.raises(WrongSettingsError, match=r"APP_XYZ is no setting of.*APP_PORT is"):
        read_settings(SERVER, AppSettings, os.environ)


def test_what_finds_the_api_of_kubernetes_stays_in_the_environment() -> None:
    class Nothing(BaseSettings):
        """No setting is read."""

    kubernetes = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    environment = {"TAILRACE_SERVICE_HOST": "10.96.0.7"} | kubernetes
    read_settings(Server("a server", "TAILRACE_", "page", ()), Nothing, environment)

    assert environment == kubernetes
