"""A ring of three whose leader dies, as its metrics and its history show it."""

import re
from pathlib import Path
from typing import Any

import pytest

from tailrace.local.broker import LocalBroker
from tailrace.sync import Client
from tests.support.cli.commands import reported, run
from tests.support.ring.local_ring import LocalRing, founded_ring

S_MAX = 30.0
VALUE = b'"' + b"x" * 1000 + b'"'
EVENTS = 300  # more than what is near of a follower that has nothing

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def metric(broker: LocalBroker, name: str) -> float:
    return broker.metrics()[f"tailrace_{name}"]


def total(ring: LocalRing, ordinals: tuple[int, ...], name: str) -> float:
    return sum(metric(ring.brokers[each], name) for each in ordinals)


def range_of(ring: LocalRing, ordinal: int, range_id: int) -> dict[str, Any]:
    found: dict[str, Any] = ring.ring(ordinal)["ranges"][range_id]
    return found


def test_a_dead_leader_and_its_return_are_seen(tmp_path: Path) -> None:
    with founded_ring(tmp_path, copies=3) as ring:
        with Client(ring.brokers[0].url) as client:
            client.create_topic("t", partitions_per_range=1)
            for number in range(EVENTS):
                client.produce("t", VALUE, key=f"k{number}")
        ring.wait_whole()
        before = [metric(each, "leader_changes_total") for each in ring.brokers]
        assert total(ring, (0, 1, 2), "under_replicated_ranges") == 0
        assert total(ring, (0, 1, 2), "follower_lag_records") == 0
        assert [metric(each, "led_ranges") for each in ring.brokers] == [1, 1, 1]

        ring.kill(1)
        ring.until(lambda: range_of(ring, 0, 1)["leader"] != 1, S_MAX)
        ring.until(lambda: total(ring, (0, 2), "isr_shrinks_total") >= 3, S_MAX)
        assert total(ring, (0, 2), "leader_changes_total") == before[0] + before[2] + 1
        assert total(ring, (0, 2), "under_replicated_ranges") == 3
        assert total(ring, (0, 2), "under_replicated_partitions") == 3
        assert total(ring, (0, 2), "leaderless_ranges") == 0
        assert metric(ring.brokers[0], "leaderless_seconds_total") > 0

        ring.wipe(1)
        ring.brokers[1].start()
        ring.wait_ready(1)
        ring.wait_whole()
        assert total(ring, (0, 1, 2), "isr_expansions_total") >= 3
        assert total(ring, (0, 1, 2), "under_replicated_ranges") == 0
        assert total(ring, (0, 2), "catch_up_bytes_total") > 0
        shown = reported(run("ring", "history", url=ring.brokers[0].url)).splitlines()

    texts = [line.partition("Z  ")[2] for line in shown]
    expected = [
        r"range 1: broker [02] leads in epoch \d+",
        r"range 1: broker 1 left the ISR, now \d,\d",
        r"broker 1 registered process 2 \(loss class disk\)",
        r"range 1: broker 1 joined the ISR, now \d,\d,\d",
    ]
    found = [
        [index for index, text in enumerate(texts) if re.fullmatch(each, text)] for each in expected
    ]
    assert all(found), shown
    last = [indices[-1] for indices in found]
    assert last == sorted(last), shown
