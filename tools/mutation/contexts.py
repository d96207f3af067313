"""A plugin of pytest: what coverage measures during a test belongs to that test."""

from collections.abc import Generator

import pytest
from coverage import Coverage


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Name the test, without its parameters, for the time of its setup, run and teardown."""
    coverage = Coverage.current()
    assert coverage is not None
    coverage.switch_context(item.nodeid.partition("[")[0])
    try:
        return (yield)
    finally:
        coverage.switch_context("")
