"""Fixtures of the tests that talk to a broker."""

from collections.abc import Iterator

import pytest

from tests.fixtures import RunningBroker
from tests.http11 import METRICS, Connection, get


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """The name of a topic that only this test has."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)[:200]


@pytest.fixture
def connection(shared_broker: RunningBroker, door: int) -> Iterator[Connection]:
    """To the door that the test runs through."""
    with Connection(shared_broker.port + door) as opened:
        yield opened


@pytest.fixture
def plain(door: int) -> bytes:
    """A request that the door answers with 200."""
    return get("/metrics" if door == METRICS else "/status")
