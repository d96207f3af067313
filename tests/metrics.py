"""A broker's metrics, read from its metrics door."""

import time
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tests.fixtures import RunningBroker

WAIT_S = 10.0


def read_metrics(broker: RunningBroker) -> dict[str, float]:
    """Every sample without labels, by its name."""
    url = f"http://127.0.0.1:{broker.port + 3}/metrics"
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {sample.name: sample.value for family in families for sample in family.samples}


def wait_for_metric(broker: RunningBroker, name: str, value: float) -> None:
    """Until the metric has this value."""
    deadline_s = time.monotonic() + WAIT_S
    while (found := read_metrics(broker)[name]) != value:
        assert time.monotonic() < deadline_s, f"{name} is {found}, not {value}"
