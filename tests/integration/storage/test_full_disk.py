"""A broker on a small file system of its own that runs full, and what still works then."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Literal

import pytest

from tailrace.errors import ProblemError
from tailrace.protocol.requests import parse_produced
from tailrace.sync import Client
from tailrace.wire import NDJSON_CONTENT_TYPE
from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.broker.history import Acknowledged, History, Read, RecordPosition, violations
from tests.support.broker.metrics import wait_for_metric
from tests.support.http.http11 import PRODUCE, PUBLIC, Connection, messages, request
from tests.support.storage.mounted import MEBIBYTE, fill_up, mounted_disk

pytestmark = pytest.mark.integration

DISK_BYTES = 256 * MEBIBYTE
# What is left when the broker begins to fill the disk.
LEFT_BYTES = 24 * MEBIBYTE
TOPIC = "kept"
KEY = "k"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A new file system, where `start_broker(tmp_path)` has its data."""
    with mounted_disk(tmp_path / "broker", DISK_BYTES) as mount:
        yield mount


class Producer:
    """Sends events of one key, none twice, through any listener; notes what was acknowledged."""

    def __init__(self, broker: RunningBroker) -> None:
        self._broker = broker
        self._numbers = count()
        self.sent_ids: set[str] = set()
        self.acknowledged: list[Acknowledged] = []

    def send(self, event_count: int, listener: int = PRODUCE) -> None:
        """One request; ProblemError."""
        ids = [f"e{next(self._numbers)}" for _ in range(event_count)]
        self.sent_ids.update(ids)
        body = b"\n".join(map(event_value, ids))
        with Connection(self._broker.port + listener) as connection:
            target = messages(TOPIC, partitionKey=KEY)
            whole = request(target, body, content_type=NDJSON_CONTENT_TYPE)
            (produced,) = parse_produced(connection.exchange(whole))
        for offset, event_id in enumerate(ids, start=produced.offset):
            position = RecordPosition(produced.partition, offset)
            self.acknowledged.append(Acknowledged("producer", KEY, event_id, position))

    def fill(self, event_count: int, listener: int) -> ProblemError:
        """Until the broker refuses; why."""
        while True:
            try:
                self.send(event_count, listener)
            except ProblemError as error:
                return error


def event_value(event_id: str) -> bytes:
    """An event's JSON, reported by its id alone; it hardly compresses."""
    noise = "".join(blake2b(f"{event_id} {part}".encode()).hexdigest() for part in range(4))
    return json.dumps({"id": event_id, "noise": noise}).encode()


def assert_all_is_there(broker: RunningBroker, producer: Producer) -> None:
    """Every acknowledged event, whole, once, in order; none that was not sent."""
    read, high_watermarks = [], {}
    with Client(broker.url) as client:
        for partition in client.offsets([TOPIC]):
            readable = partition.readable()
            high_watermarks[partition.partition] = readable.stop
            offset = readable.start
            while offset < readable.stop:
                fetched = client.read_lines(TOPIC, partition.partition, offset, max_records=10_000)
                for record in map(json.loads, fetched.body.splitlines()):
                    event_id = record["value"]["id"]
                    assert record["value"] == json.loads(event_value(event_id))
                    read.append(
                        Read(event_id, RecordPosition(record["partition"], record["offset"]))
                    )
                offset = fetched.next_offset
    history = History(producer.sent_ids, producer.acknowledged, read, high_watermarks)
    assert violations(history) == []


def assert_is_disk_full(refused: ProblemError) -> None:
    assert (refused.status, refused.type) == (507, "disk-full")
    assert (refused.retriable, refused.write_attempted) == (True, False)
    assert "delete a topic" in refused.detail


def logged(broker: RunningBroker, event: str) -> list[dict[str, object]]:
    """The broker's log lines of this event."""
    lines = map(json.loads, broker.log_path.read_text().splitlines())
    return [line for line in lines if line["event"] == event]


def create_with_data(client: Client, name: str, size_bytes: int) -> None:
    """A topic that takes so much of the disk."""
    client.create_topic(name, partitions_per_range=1, json_check=False)
    for _ in range(size_bytes // MEBIBYTE):
        client.produce(name, os.urandom(MEBIBYTE))


@pytest.mark.parametrize("durability", ["fsync", "written"])
@pytest.mark.timeout(120)
def test_a_full_disk_refuses_writes_and_nothing_else(
    disk: Path, tmp_path: Path, durability: Literal["fsync", "written"]
) -> None:
    ballast, rest = disk / "ballast", disk / "rest"
    with start_broker(tmp_path, segment_bytes=4 * MEBIBYTE) as broker, Client(broker.url) as client:
        producer = Producer(broker)
        client.create_topic(TOPIC, durability=durability)
        for name in ("old", "older"):
            create_with_data(client, name, 4 * MEBIBYTE)
        create_with_data(client, "victim", 8 * MEBIBYTE)
        for name in ("older", "old"):
            client.delete_topic(name)
        fill_up(ballast, LEFT_BYTES)

        # The trash goes first, the oldest deletion of it before the other.
        producer.send(1)
        for listener in (PUBLIC, PRODUCE):
            assert_is_disk_full(producer.fill(1_000, listener))
        purged = logged(broker, "topic.purged")
        assert [(line["topic"], line["is_early"]) for line in purged] == [
            ("older", True),
            ("old", True),
        ]
        assert client.deleted_topics() == []
        assert broker.metrics()["tailrace_purged_early_topics_total"] == 2
        fill_up(rest)
        with suppress(ProblemError):  # a small one may still have a position
            producer.send(1)
        assert_all_is_there(broker, producer)
        fill_up(rest)
        client.create_topic("another")  # the ring's log has its space

        # So after a clean stop, and after a kill.
        broker.restart()
        assert_all_is_there(broker, producer)
        assert_is_disk_full(producer.fill(1_000, PRODUCE))
        broker.kill()
        broker.restart()
        assert_all_is_there(broker, producer)
        assert_is_disk_full(producer.fill(1_000, PUBLIC))

        # What is deleted gives its space back to who needs it.
        fill_up(rest)
        client.delete_topic("victim")
        assert {topic.name for topic in client.topics()} == {TOPIC, "another"}
        producer.send(1_000)
        assert_is_disk_full(producer.fill(1_000, PRODUCE))
        assert logged(broker, "topic.purged")[-1]["topic"] == "victim"

        # Space that comes from elsewhere is taken at once.
        ballast.unlink()
        for listener in (PUBLIC, PRODUCE):
            producer.send(1_000, listener)
            producer.send(1, listener)
        assert_all_is_there(broker, producer)
        broker.restart()
        assert_all_is_there(broker, producer)


@pytest.mark.timeout(120)
def test_topics_are_deleted_on_a_disk_without_a_free_block(disk: Path, tmp_path: Path) -> None:
    """One that has records and one that never had any."""
    with start_broker(tmp_path) as broker, Client(broker.url) as client:
        producer = Producer(broker)
        for name in (TOPIC, "empty"):
            client.create_topic(name)
        for event_count in (1_000, 1, 1):  # the last two are only in the journal yet
            producer.send(event_count)
        fill_up(disk / "rest")
        client.delete_topic("empty")
        assert [topic.name for topic in client.topics()] == [TOPIC]
        broker.restart()
        fill_up(disk / "rest")
        client.delete_topic(TOPIC)
        assert client.topics() == []
        broker.restart()
        assert {topic.name for topic in client.deleted_topics()} == {TOPIC, "empty"}
        (disk / "rest").unlink()
        client.restore_topic(TOPIC)
        assert_all_is_there(broker, producer)


def test_a_shorter_retention_makes_room_on_a_full_disk(disk: Path, tmp_path: Path) -> None:
    with start_broker(tmp_path, segment_bytes=4 * MEBIBYTE) as broker, Client(broker.url) as client:
        producer = Producer(broker)
        client.create_topic(TOPIC, partitions_per_range=1)
        for _ in range(24):
            producer.send(1_000)
        fill_up(disk / "rest")
        assert_is_disk_full(producer.fill(1_000, PRODUCE))
        client.alter_topic(TOPIC, retention_bytes=MEBIBYTE)
        wait_for_metric(broker, "tailrace_trimmed_segments_total", 2)

        producer.send(1_000)
        (partition,) = client.offsets([TOPIC])
        assert partition.readable().start > 0
        (trimmed,) = logged(broker, "log.trimmed")
        assert (trimmed["topic"], trimmed["segments"]) == (TOPIC, 2)
