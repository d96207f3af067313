"""Fixtures that tests share (what they make is in `fixtures.py`), and the time that kinds get."""

import asyncio
import gc
import importlib
import inspect
import os
import pkgutil
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import Phase, settings

from tests.support.broker.fixtures import RunningBroker, start_broker

# A unit test's limit is in pyproject.toml; a marker at the test itself counts more than these.
# Hypothesis runs a property a hundred times: on a busy machine that takes seconds.
TIMEOUT_S_BY_MARKER = {"hypothesis": 30, "integration": 120, "spark": 180, "e2e": 900}

# New cases each run, the same in CI: all runs together try many. The profile thorough tries many at
# once: pytest --hypothesis-profile=thorough. No deadline: the machine may be busy.
settings.register_profile("local", deadline=None, max_examples=30)
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=1000)
# Of a failure one example is enough for `make mutation`.
settings.register_profile(
    "unshrunk", settings.get_profile("ci"), phases=(Phase.explicit, Phase.generate)
)
settings.load_profile("ci" if os.environ.get("CI") else "local")

# A shell that runs the tests in the background has them ignore Ctrl-C, which some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Measuring coverage doubles a test's time, and the tests beside the properties of these folders
# show the measured packages whole. What runs the same lines hundreds of times does so unmeasured.
UNIT = Path(__file__).parent / "unit"
UNMEASURED_SUFFIXES = ("_mutations", "_properties")
MEASURED_FOLDERS = {UNIT / "broker" / "codec", UNIT / "broker" / "core", UNIT / "operator"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of this project's tests."""
    parser.addoption("--rewrite", action="store_true", help="write the files of tests/golden again")
    parser.addoption("--with-e2e", action="store_true", help="run tests/e2e, on a Kubernetes")


def measurement_of(config: pytest.Config) -> Any:
    """What pytest-cov measures with in this process, or None: no `--cov`, or nothing runs here."""
    plugin: Any = config.pluginmanager.get_plugin("_cov")
    return plugin.cov_controller if plugin else None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Stop the measurement that pytest-cov (7.1) starts twice in each worker of xdist.

    It pauses and resumes only the second one: the first went on measuring.
    """
    if hasattr(session.config, "workerinput") and (first := measurement_of(session.config)):
        first.pause()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Measure what the measured modules run when they are imported, and then only their tests.

    A line costs twice as much while anything is measured: in pytest itself as well. What is made
    here lives to the end: the garbage collector need not visit it again and again.
    """
    gc.disable()
    if measurement := measurement_of(session.config):
        for package in measurement.cov.config.source_pkgs:
            paths = importlib.import_module(package).__path__
            for module in pkgutil.walk_packages(paths, f"{package}."):
                importlib.import_module(module.name)
        measurement.pause()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Measure the tests beside the measured packages, but for their properties."""
    measurement = measurement_of(item.config) if is_measured(item) else None
    if measurement:
        measurement.resume()
    try:
        return (yield)
    finally:
        if measurement:
            measurement.pause()


@pytest.hookimpl(trylast=True)  # hypothesis marks its tests in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Properties, and tests that start processes, get the time for that."""
    for item in items:
        timeouts_s = [s for name, s in TIMEOUT_S_BY_MARKER.items() if item.get_closest_marker(name)]
        if timeouts_s and not item.get_closest_marker("timeout"):
            # What sets up a cluster has limits of its own: it may compile Kubernetes first.
            is_e2e = item.get_closest_marker("e2e") is not None
            item.add_marker(pytest.mark.timeout(max(timeouts_s), func_only=is_e2e))


def is_measured(item: pytest.Item) -> bool:
    """Whether `--cov` counts what this test runs."""
    if item.path.stem.endswith(UNMEASURED_SUFFIXES):
        return False
    return not MEASURED_FOLDERS.isdisjoint(item.path.parents)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine on an event loop of its own, which may be that of brokers."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    run = uvloop.run if pyfuncitem.get_closest_marker("uvloop") else asyncio.run
    run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


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
