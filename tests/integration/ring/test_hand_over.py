"""Brokers that are stopped under load hand their ranges over first, and get them back later.

Every acknowledged event is there once, at its offset. `RING_RUNS=10` repeats each test.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tailrace.local.broker import LocalBroker
from tests.support.ring.local_ring import TEST_S_MAX, WHOLE_S_MAX
from tests.support.ring.replicated_ring import (
    REQUESTS_MAX,
    ReplicatedRing,
    replicated_ring,
)
from tests.support.ring.seeds import RUNS, seed_of

STOPS = 3
FAILBACK_MS = 500

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(TEST_S_MAX),
    pytest.mark.parametrize("run", range(RUNS)),
]


def is_led_by_natural_leaders(subject: ReplicatedRing) -> bool:
    ranges = subject.ring.ranges()
    return bool(ranges) and all(each["leader"] == each["replicas"][0] for each in ranges)


def wait_balanced(subject: ReplicatedRing) -> None:
    """Wait until each range is led by its natural leader, the first of its replicas."""
    subject.ring.wait_whole()
    subject.ring.until(lambda: is_led_by_natural_leaders(subject), WHOLE_S_MAX)


def events_of_stop(subject: ReplicatedRing, ordinal: int) -> list[tuple[str, int | None]]:
    """Stop the broker; return what it has logged meanwhile, and of which range."""
    broker = subject.ring.brokers[ordinal]
    assert broker.log_path is not None
    logged_before = len(broker.log_path.read_text().splitlines())
    broker.stop()
    lines = broker.log_path.read_text().splitlines()[logged_before:]
    return [(each["event"], each.get("range")) for each in map(json.loads, lines)]


def test_a_leader_that_stops_has_others_lead_before_it_exits(tmp_path: Path, run: int) -> None:
    with replicated_ring(
        tmp_path, seed_of(run), log_level="info", failback_ms=FAILBACK_MS
    ) as subject:
        in_time_count = 0
        for ordinal in subject.random.sample(range(3), STOPS):
            wait_balanced(subject)
            led = {each["id"] for each in subject.ring.ranges() if each["leader"] == ordinal}
            subject.wait_for_requests(REQUESTS_MAX)

            events = events_of_stop(subject, ordinal)

            assert events[-1][0] == "broker.stopped"
            if ("replicas.needed", None) not in events:  # else the machine is too busy
                in_time_count += 1
                handed_over = [each for each in events if each[0].startswith("range.")]
                assert {range_id for _, range_id in handed_over} == led
                for range_id in led:
                    of_range = [event for event, each in handed_over if each == range_id]
                    assert of_range == ["range.held", "range.released"]
            subject.wait_for_requests(REQUESTS_MAX)
            subject.ring.brokers[ordinal].start()
        assert in_time_count > 0
        wait_balanced(subject)


def test_brokers_that_stop_all_at_once_lose_nothing(tmp_path: Path, run: int) -> None:
    with replicated_ring(tmp_path, seed_of(run)) as subject:
        with ThreadPoolExecutor() as threads:
            list(threads.map(LocalBroker.stop, subject.ring.brokers))
        subject.ring.start_all()
        subject.wait_for_requests(REQUESTS_MAX)
