"""A broker's metrics, as tests wait for them and as docs/metrics.md lists them."""

import re

from tests.support.broker.fixtures import RunningBroker
from tests.support.waits import wait_until


def wait_for_metric(broker: RunningBroker, name: str, value: float) -> None:
    """Until the metric has this value."""
    found: list[float] = []

    def is_so() -> bool:
        found.append(broker.metrics()[name])
        return found[-1] == value

    wait_until(is_so, lambda: f"{name} is {found[-1]}, not {value}")


def families_of(text: str) -> dict[str, tuple[str, str]]:
    """Type and meaning of each metric of an answer of `/metrics`, in its order."""
    meanings = dict(re.findall(r"^# HELP (\w+) (.*)$", text, re.MULTILINE))
    types = dict(re.findall(r"^# TYPE (\w+) (.*)$", text, re.MULTILINE))
    assert meanings.keys() == types.keys()
    return {name: (types[name], meaning.rstrip(".")) for name, meaning in meanings.items()}


def page_families(page: str) -> dict[str, tuple[str, str]]:
    """The same of docs/metrics.md."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| \w* \| (.*) \|$", page, re.MULTILINE)
    return {name: (kind, meaning) for name, kind, meaning in rows}
