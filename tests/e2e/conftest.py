"""A cluster with the operator for all scenarios, and a namespace for each.

Run by `make e2e`, or `pytest -s tests/e2e --with-e2e`; see docs/kubernetes.md.
"""

import secrets
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.e2e.client_pod import ClientPod, pod_manifest
from tests.e2e.kubernetes import Kubernetes
from tests.e2e.operator_release import NAMESPACE, NEXT_TAG, Operator
from tests.e2e.provider import VERSION, Provider, choose_provider, has_built, keeps_all
from tests.e2e.sigkill import remove_killers
from tests.e2e.spark import EXAMPLE, Spark
from tests.e2e.spark import NAMESPACE as SPARK_NAMESPACE

FAILED = pytest.StashKey[bool]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """They need a cluster, so they run when that is said, and in their order."""
    ours = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    for item in ours:
        item.add_marker(pytest.mark.e2e)
        if not config.getoption("--with-e2e"):
            item.add_marker(pytest.mark.skip(reason="needs Kubernetes: make e2e, or --with-e2e"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Notes a failure, for the fixture that then shows what the cluster says."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(scope="session")
def provider() -> Iterator[Provider]:
    """A cluster with the images of the brokers and the operator, built from this tree."""
    chosen = choose_provider()
    log = Kubernetes(chosen, "default")
    chosen.up()
    log.say(f"{chosen.name} is up")
    try:
        _provide_images(chosen, log)
        yield chosen
    finally:
        if not keeps_all():
            chosen.down()


@pytest.fixture(scope="session")
def release(provider: Provider) -> Iterator[Operator]:
    """Installed by the chart; it is uninstalled at the end."""
    installed = Operator(Kubernetes(provider, NAMESPACE))
    is_left = installed.is_installed()
    installed.install()
    if is_left:  # by an earlier run, with another image of the same name
        installed.replace()
    installed.kubernetes.show("get", "deployment,pod")
    yield installed
    if not keeps_all():
        installed.uninstall()
        remove_killers(installed.kubernetes)


@pytest.fixture
def kubernetes(release: Operator, request: pytest.FixtureRequest) -> Iterator[Kubernetes]:
    """A namespace of its own, which is gone at the end with all that is in it."""
    mine = Kubernetes(release.provider, f"e2e-{secrets.token_hex(3)}")
    print(f"\n=== {request.node.name}")
    mine.kubectl("create", "namespace", mine.namespace)
    try:
        yield mine
        if request.node.stash.get(FAILED, False):
            _show_all(mine, release)
    finally:
        if not keeps_all():
            mine.kubectl("delete", "namespace", mine.namespace, "--timeout=300s", timeout_s=310)


@pytest.fixture
def operator(kubernetes: Kubernetes) -> Operator:
    """The one of all scenarios, with the clock of this one."""
    return Operator(kubernetes.elsewhere(NAMESPACE))


@pytest.fixture
def client(kubernetes: Kubernetes) -> Iterator[ClientPod]:
    """A pod in another namespace than the ring's."""
    with kubernetes.neighbour("client") as elsewhere:
        image = f"{kubernetes.provider.image('tailrace/broker')}:{VERSION}"
        elsewhere.apply(pod_manifest(image))
        elsewhere.wait("pod/client", "Ready")
        yield ClientPod(elsewhere)


@pytest.fixture(scope="session")
def spark_image(provider: Provider) -> str:
    """Of the jobs; only the scenarios with Spark wait for it to be built."""
    image = f"{provider.image('tailrace/spark')}:{VERSION}"
    _provide_image(provider, Kubernetes(provider, "default"), "Dockerfile.spark", image)
    return image


@pytest.fixture
def spark(kubernetes: Kubernetes, spark_image: str) -> Iterator[Spark]:
    """In the example's namespace, which is there meanwhile."""
    elsewhere = kubernetes.elsewhere(SPARK_NAMESPACE)
    elsewhere.show("apply", "--filename", f"{EXAMPLE}/rbac.yaml")
    yield Spark(elsewhere, spark_image)
    if not keeps_all():
        elsewhere.kubectl("delete", "namespace", SPARK_NAMESPACE)


def _provide_images(provider: Provider, log: Kubernetes) -> None:
    """One for brokers, under two names, and the operator's."""
    broker, operator = map(provider.image, ("tailrace/broker", "tailrace/operator"))
    for dockerfile, *images in (
        ("Dockerfile.broker", f"{broker}:{VERSION}", f"{broker}:{NEXT_TAG}"),
        ("Dockerfile.operator", f"{operator}:{VERSION}"),
    ):
        _provide_image(provider, log, dockerfile, *images)


def _provide_image(provider: Provider, log: Kubernetes, dockerfile: str, *images: str) -> None:
    if has_built():
        provider.load(*images)
        log.say(f"{images[0]} of an earlier run is loaded")
    else:
        provider.build(dockerfile, *images)
        log.say(f"{images[0]} is built from {dockerfile}")


def _show_all(kubernetes: Kubernetes, operator: Operator) -> None:
    """What a person would read after a failure."""
    kubernetes.show("get", "all,pvc,trc,trt", "--output", "wide")
    kubernetes.show("get", "trc,trt", "--output", "yaml")
    kubernetes.show("get", "events", "--sort-by=.lastTimestamp")
    print(operator.logs())
