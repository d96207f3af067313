"""A broker that starts with a wrong clock, and leads: it removes nothing of what it serves."""

from pathlib import Path

import pytest

from tailrace.sync import Client
from tests.support.ring.local_ring import TEST_S_MAX, WHOLE_S_MAX, LocalRing, founded_ring
from tests.support.ring.ring_steps import TOPIC, produce_many

pytestmark = [pytest.mark.integration, pytest.mark.timeout(TEST_S_MAX)]

AHEAD_DAYS = 8
EVENTS = 1500  # in requests of 250, some for each range
WRONG = 0
# Runs at the start of a Python that has it on its path.
SITE = f"""
import time
right_ns = time.time_ns
time.time_ns = lambda: right_ns() + {AHEAD_DAYS} * 86_400 * 10**9
"""


def start_with_wrong_clock(ring: LocalRing, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = root / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    broker = ring.brokers[WRONG]
    monkeypatch.setitem(broker._environment, "PYTHONPATH", str(site))
    broker.start()


def log_starts(ring: LocalRing) -> set[int]:
    offsets = ring.call(WRONG, "GET", f"/v1/offsets?topic={TOPIC}")
    return {each["logStart"] for each in offsets["topics"][0]["partitions"]}


def test_a_broker_with_another_time_than_the_others_takes_nothing_for_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with founded_ring(tmp_path, copies=3, failback_ms=100) as ring:
        with Client(ring.brokers[WRONG].url) as client:
            client.create_topic(TOPIC, partitions_per_range=1)  # for 7 days
        produce_many(ring, EVENTS)
        ring.kill(WRONG)
        start_with_wrong_clock(ring, tmp_path, monkeypatch)
        ring.wait_whole()
        ring.until(lambda: any(each["leader"] == WRONG for each in ring.ranges()), WHOLE_S_MAX)
        log = tmp_path / f"{WRONG}.log"
        ring.until(lambda: "clocks.differ" in log.read_text(), WHOLE_S_MAX)

        assert log_starts(ring) == {0}
