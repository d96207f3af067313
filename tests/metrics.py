"""A broker's metrics, as tests wait for them."""

import time

from tests.fixtures import RunningBroker

WAIT_S = 10.0


def wait_for_metric(broker: RunningBroker, name: str, value: float) -> None:
    """Until the metric has this value."""
    deadline_s = time.monotonic() + WAIT_S
    while (found := broker.metrics()[name]) != value:
        assert time.monotonic() < deadline_s, f"{name} is {found}, not {value}"
