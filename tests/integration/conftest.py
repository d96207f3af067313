"""Fixtures of the tests that talk to a broker."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker.fixtures import RunningBroker
from tests.support.http.http11 import METRICS, Connection, get

SPARK = Path(__file__).parent / "spark"


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the marks in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where test processes run side by side, a file's tests share one, and all of Spark's do."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            group = SPARK if SPARK in item.path.parents else item.path
            item.add_marker(pytest.mark.xdist_group(group.stem))


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """The name of a topic that only this test has."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)[:200]


@pytest.fixture
def connection(shared_broker: RunningBroker, listener: int) -> Iterator[Connection]:
    """To the listener that the test runs through."""
    with Connection(shared_broker.port + listener) as opened:
        yield opened


@pytest.fixture
def plain(listener: int) -> bytes:
    """A request that the listener answers with 200."""
    return get("/metrics" if listener == METRICS else "/status")
