"""Where brokers of a ring are, and settings that cannot be together."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tailrace_broker.app.settings import Settings


def settings(**given: Any) -> Settings:
    return Settings(data_dir=Path("data"), **given)


def test_outside_is_where_the_url_says_and_nowhere_without_one() -> None:
    outside = settings(
        outside_url="http://n.example:30250", outside_port_stride=1, outside_hosts="a.example,B"
    ).outside

    assert settings().outside is None
    assert outside is not None
    assert outside.url_of(1) == "http://n.example:30251"
    assert outside.hosts == {"a.example", "b"}
    with pytest.raises(ValidationError, match="a URL of each broker"):
        settings(outside_url="n.example")


@pytest.mark.parametrize(
    ("given", "ordinal", "address"),
    [
        ({}, 0, ("127.0.0.1", 9250)),
        ({"advertised_host": "events.example"}, 0, ("events.example", 9250)),
        ({"peer_host": "e-{ordinal}.e", "ordinal": 1}, 1, ("e-1.e", 9250)),
        ({"peer_host": "e-{ordinal}.e", "ordinal": 1}, 12, ("e-12.e", 9250)),
        ({"peer_host": "::1", "port": 9260, "port_stride": 10, "ordinal": 1}, 0, ("::1", 9250)),
        ({"peer_host": "::1", "port": 9260, "port_stride": 10, "ordinal": 1}, 2, ("::1", 9270)),
    ],
)
def test_every_broker_knows_where_the_others_are(
    given: dict[str, Any], ordinal: int, address: tuple[str, int]
) -> None:
    assert settings(**given).address_of(ordinal) == address


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"ordinal": 1}, "TAILRACE_PEER_HOST is not set"),
        ({"peer_host": "127.0.0.1"}, "TAILRACE_PEER_HOST has no {ordinal}"),
        ({"peer_host": "e-{ordinal}", "port": 65531}, "TAILRACE_PORT leaves no room"),
        (
            {"peer_host": "::1", "port": 9250, "port_stride": 9250, "ordinal": 1},
            "TAILRACE_PORT_STRIDE leaves no port",
        ),
        ({"ordinal": -1}, "ordinal"),
        ({"ring_secret": "two words"}, "ring_secret"),
        ({"ring_secret": "schlüssel"}, "ring_secret"),
        ({"ordinal": 12288, "peer_host": "e-{ordinal}"}, "ordinal"),
    ],
)
def test_settings_that_cannot_be_are_named(given: dict[str, Any], name: str) -> None:
    with pytest.raises(ValidationError) as refused:
        settings(**given)

    assert name in str(refused.value)


def test_the_secret_is_not_shown() -> None:
    assert "hidden" not in repr(settings(ring_secret="hidden"))
