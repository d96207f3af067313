"""Fixtures that tests of the HTTP API share."""

from collections.abc import Iterator

import pytest

from tests.support.broker.fixtures import RunningBroker
from tests.support.http.http11 import Connection


@pytest.fixture
def public(shared_broker: RunningBroker) -> Iterator[Connection]:
    """A connection to the public listener."""
    with Connection(shared_broker.port) as opened:
        yield opened
