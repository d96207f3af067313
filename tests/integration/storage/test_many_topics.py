"""A hundred topics: what they take of memory is taken once."""

import json
from pathlib import Path

import pytest

from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker, start_broker

TOPICS = 100
PARTITIONS = 4
ROUNDS = 4
EVENTS = 50
# In later rounds; a topic that kept 300 KiB a round would take 30 MiB.
GROWTH_BYTES_MAX = 8 * 1024 * 1024
MEBIBYTE = 1024 * 1024


@pytest.mark.integration
@pytest.mark.timeout(120)
def test_memory_is_flat_over_a_hundred_topics(tmp_path: Path) -> None:
    # Both are full from the first round on: what grows is something else.
    settings = {"cache_bytes": MEBIBYTE, "journal_bytes": 8 * MEBIBYTE}
    with start_broker(tmp_path, **settings) as broker, Client(broker.url) as client:
        for number in range(TOPICS):
            client.create_topic(f"topic-{number}", partitions_per_range=PARTITIONS)
        sizes_bytes = []
        for _ in range(ROUNDS):
            for number in range(TOPICS):
                write_and_read(client, f"topic-{number}")
            sizes_bytes.append(resident_bytes(broker))

    print([size // MEBIBYTE for size in sizes_bytes])
    assert max(sizes_bytes) - sizes_bytes[0] < GROWTH_BYTES_MAX


def write_and_read(client: Client, topic: str) -> None:
    events = [{"id": number, "text": "x" * 400} for number in range(EVENTS)]
    body = b"\n".join(json.dumps(event).encode() for event in events)
    for partition in range(PARTITIONS):
        stored = client.produce_lines(topic, body, key=f"key-{partition}")
        fetched = client.read_lines(topic, stored.partition, stored.offset, max_records=EVENTS)
        assert len(fetched.body.splitlines()) == EVENTS


def resident_bytes(broker: RunningBroker) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024
