"""A new leader gives no end of a partition that is older than what was acknowledged."""

from pathlib import Path

import pytest

from tailrace.sync import Client
from tests.support.ring.local_ring import founded_ring

KEYS = [f"k{number}" for number in range(12)]  # of all ranges
EVENTS = 3  # of each
STARTED = (0, 1)
LISTED_S_MAX = 30.0

pytestmark = pytest.mark.integration


def test_a_ring_that_was_killed_lists_all_that_it_had_acknowledged(tmp_path: Path) -> None:
    """What a batch says of the high watermark is older than the batch. One broker stays away."""
    with founded_ring(tmp_path, copies=3) as ring:
        with Client(ring.brokers[0].url) as client:
            client.create_topic("t")
            stored = [client.produce("t", b"1", key=key) for key in KEYS * EVENTS]
        ends = {each.partition: each.offset + 1 for each in stored}
        for ordinal in range(3):
            ring.kill(ordinal)
        for ordinal in STARTED:
            ring.brokers[ordinal].start()
        ring.wait_ready(*STARTED)
        seen: set[tuple[int, int]] = set()

        def are_listed() -> bool:
            for ordinal in STARTED:
                [topic] = ring.call(ordinal, "GET", "/v1/offsets?topic=t")["topics"]
                for row in topic["partitions"]:
                    if row["highWatermark"] is not None and row["partition"] in ends:
                        seen.add((row["partition"], row["highWatermark"]))
            return {partition for partition, _ in seen} == ends.keys()

        ring.until(are_listed, LISTED_S_MAX)

    assert dict(seen) == ends
    assert len(seen) == len(ends)
