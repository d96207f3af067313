"""Fixtures that tests share (what they make is in `fixtures.py`), and the time that kinds get."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures import RunningBroker, start_broker

# A unit test's limit is in pyproject.toml; a marker at the test itself counts more than these.
TIMEOUT_S_BY_MARKER = {"integration": 60, "spark": 180}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests that start processes the time for that."""
    for item in items:
        timeouts_s = [s for name, s in TIMEOUT_S_BY_MARKER.items() if item.get_closest_marker(name)]
        if timeouts_s and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(max(timeouts_s)))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    """A ready broker with default settings, of this test alone."""
    with start_broker(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One for the tests of a file that neither stop it nor count its topics."""
    with start_broker(tmp_path_factory.mktemp("shared")) as running:
        yield running
