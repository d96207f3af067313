"""SIGKILL under load, again and again: what was acknowledged is there, at its offset, once."""

import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Literal

import pytest

from tailrace.produced import Produced
from tailrace.protocol.records_binary import encode_records
from tailrace.protocol.requests import Request, parse_produced, produce_request
from tailrace.sync import Client
from tailrace.wire import JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE, RECORDS_CONTENT_TYPE
from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.broker.history import Acknowledged, History, Read, RecordPosition, violations
from tests.support.http.http11 import Connection, request
from tests.support.variables import whole_number

TOPIC = "crash"
KEYS = [f"key-{index}" for index in range(8)]
KILL_COUNT = whole_number("KILLS", 6, least=1, meaning="how often, as in KILLS=50")
ANSWERS_PER_LIFE_MAX = 300
ANSWER_TIMEOUT_S = 20.0
# The least that is allowed: segments roll during the test, and the journal's files are used again.
SEGMENT_BYTES = 1 << 20
JOURNAL_BYTES = 8 << 20


class Lives:
    """The broker's lives, counted from 1: producers wait for the next, the killer for answers."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._life = 0
        self._answer_count = 0
        self.are_over = False

    def begin(self) -> None:
        """A new life: the broker is ready."""
        with self._changed:
            self._life += 1
            self._answer_count = 0
            self._changed.notify_all()

    def end(self) -> None:
        """No more lives will come."""
        with self._changed:
            self.are_over = True
            self._changed.notify_all()

    def wait_for_next(self, life: int) -> int:
        """The life after `life`, or a later one, once it has begun; returns when all are over."""
        with self._changed:
            self._changed.wait_for(lambda: self._life > life or self.are_over)
            return self._life

    def note_answer(self) -> None:
        """A producer got an answer in this life."""
        with self._changed:
            self._answer_count += 1
            self._changed.notify_all()

    def wait_for_answers(self, answer_count: int) -> bool:
        """Wait for so many answers in this life; False when they do not come."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._answer_count >= answer_count, ANSWER_TIMEOUT_S
            )


@dataclass(slots=True)
class Producer:
    """Sends events with ids of its own, none twice, and notes which were acknowledged, where."""

    name: str
    content_type: str
    port: int
    events_per_request: int = 1
    requests_at_once: int = 1
    sent_ids: set[str] = field(default_factory=set)
    acknowledged: list[Acknowledged] = field(default_factory=list)

    def run(self, lives: Lives, partition_by_key: dict[str, int], seed: int) -> None:
        """Produce through every life of the broker; a lost connection waits for the next life."""
        generator = random.Random(f"{seed} {self.name}")
        numbers = count()
        life = lives.wait_for_next(0)
        while not lives.are_over:
            try:
                with Connection(self.port) as connection:
                    while not lives.are_over:
                        self._exchange(connection, lives, partition_by_key, generator, numbers)
            except ConnectionError:
                life = lives.wait_for_next(life)

    def _exchange(
        self,
        connection: Connection,
        lives: Lives,
        partition_by_key: dict[str, int],
        generator: random.Random,
        numbers: Iterator[int],
    ) -> None:
        """Send requests and read their answers, noting each as it comes."""
        contents = [self._events(generator, numbers) for _ in range(self.requests_at_once)]
        self.sent_ids.update(event_id for events in contents for _, event_id in events)
        connection.send(b"".join(self._request(events) for events in contents))
        for events in contents:
            for produced in parse_produced(connection.receive()):
                self._note(events, produced, partition_by_key)
            lives.note_answer()

    def _events(self, generator: random.Random, numbers: Iterator[int]) -> list[tuple[str, str]]:
        """(key, id) of the events of one request; one key unless each record has its own."""
        ids = [f"{self.name}-{next(numbers)}" for _ in range(self.events_per_request)]
        if self.content_type == RECORDS_CONTENT_TYPE:
            return [(generator.choice(KEYS), event_id) for event_id in ids]
        key = generator.choice(KEYS)
        return [(key, event_id) for event_id in ids]

    def _request(self, events: list[tuple[str, str]]) -> bytes:
        produce = self._produce(events)
        return request(produce.target, produce.body, content_type=self.content_type)

    def _produce(self, events: list[tuple[str, str]]) -> Request:
        values = [event_value(event_id) for _, event_id in events]
        if self.content_type == RECORDS_CONTENT_TYPE:
            body = encode_records([key.encode() for key, _ in events], values)
            return produce_request(TOPIC, body, content_type=self.content_type)
        body, key = b"\n".join(values), events[0][0]
        return produce_request(TOPIC, body, content_type=self.content_type, key=key)

    def _note(
        self, events: list[tuple[str, str]], produced: Produced, partition_by_key: dict[str, int]
    ) -> None:
        """A partition's events have dense offsets in the request's order."""
        stored = [event for event in events if partition_by_key[event[0]] == produced.partition]
        assert len(stored) == produced.count
        for offset, (key, event_id) in enumerate(stored, start=produced.offset):
            position = RecordPosition(produced.partition, offset)
            self.acknowledged.append(Acknowledged(self.name, key, event_id, position))


def event_value(event_id: str) -> bytes:
    """An event's JSON, reported by its id alone; half of it does not compress, to fill segments."""
    noise = "".join(blake2b(f"{event_id} {part}".encode()).hexdigest() for part in range(2))
    return json.dumps({"id": event_id, "noise": noise}).encode()


def find_partitions(client: Client) -> Producer:
    """A producer that has sent one event of each key."""
    first = Producer("first", JSON_CONTENT_TYPE, port=0)
    for key in KEYS:
        event_id = f"first-{key}"
        produced = client.produce(TOPIC, event_value(event_id), key=key)
        first.sent_ids.add(event_id)
        position = RecordPosition(produced.partition, produced.offset)
        first.acknowledged.append(Acknowledged("first", key, event_id, position))
    return first


def read_back(client: Client) -> tuple[list[Read], dict[int, int]]:
    """All records of the topic, each with the value that was sent, and the high watermarks."""
    read = []
    high_watermarks = {}
    for partition in client.offsets([TOPIC]):
        readable = partition.readable()
        high_watermarks[partition.partition] = readable.stop
        offset = readable.start
        while offset < readable.stop:
            fetched = client.read_lines(TOPIC, partition.partition, offset, max_records=10_000)
            for record in map(json.loads, fetched.body.splitlines()):
                event_id = record["value"]["id"]
                assert record["value"] == json.loads(event_value(event_id))
                read.append(Read(event_id, RecordPosition(record["partition"], record["offset"])))
            assert fetched.next_offset > offset
            offset = fetched.next_offset
    return read, high_watermarks


def kill_again_and_again(broker: RunningBroker, lives: Lives, generator: random.Random) -> int:
    """Kill and restart the broker, each time after a random number of answers.

    Returns how many kills there were: fewer than wanted when answers stopped coming.
    """
    for kill_count in range(KILL_COUNT):
        lives.begin()
        if not lives.wait_for_answers(generator.randint(1, ANSWERS_PER_LIFE_MAX)):
            return kill_count
        broker.kill()
        if generator.random() < 0.5:
            kill_during_recovery(broker)
        broker.restart()
    return KILL_COUNT


def kill_during_recovery(broker: RunningBroker) -> None:
    """Kill it as soon as it says that it recovers."""
    recoveries = broker.log_path.read_text().count("broker.recovering")
    broker.start()
    deadline_s = monotonic() + ANSWER_TIMEOUT_S
    while broker.log_path.read_text().count("broker.recovering") == recoveries:
        assert broker.is_running()
        assert monotonic() < deadline_s
    broker.kill()


@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.parametrize("durability", ["fsync", "written"])
def test_no_acknowledged_event_is_lost_moved_or_doubled_by_kills(
    tmp_path: Path, durability: Literal["fsync", "written"]
) -> None:
    """The kernel goes on, so that what was only written is there too."""
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    with start_broker(tmp_path, segment_bytes=SEGMENT_BYTES, journal_bytes=JOURNAL_BYTES) as broker:
        public, fast = broker.port, broker.port + 1
        producers = [
            Producer("single-0", JSON_CONTENT_TYPE, fast),
            Producer("single-1", JSON_CONTENT_TYPE, fast),
            Producer("single-2", JSON_CONTENT_TYPE, public),
            Producer("pipelined-0", JSON_CONTENT_TYPE, fast, requests_at_once=8),
            Producer("pipelined-1", JSON_CONTENT_TYPE, fast, requests_at_once=8),
            Producer("lines-0", NDJSON_CONTENT_TYPE, fast, events_per_request=50),
            Producer("lines-1", NDJSON_CONTENT_TYPE, public, events_per_request=300),
            Producer("records-0", RECORDS_CONTENT_TYPE, fast, events_per_request=50),
            Producer("records-1", RECORDS_CONTENT_TYPE, public, events_per_request=300),
            Producer("large", NDJSON_CONTENT_TYPE, fast, events_per_request=800),
        ]
        with Client(broker.url) as client:
            client.create_topic(TOPIC, durability=durability, flush_ms=50)
            first = find_partitions(client)
        partition_by_key = {
            str(event.key): event.position.partition for event in first.acknowledged
        }
        lives = Lives()
        with ThreadPoolExecutor(len(producers)) as threads:
            runs = [
                threads.submit(producer.run, lives, partition_by_key, seed)
                for producer in producers
            ]
            try:
                kill_count = kill_again_and_again(broker, lives, random.Random(seed))
            finally:
                lives.end()
        for run in runs:
            run.result()  # raises what stopped a producer
        assert kill_count == KILL_COUNT, broker.log_path.read_text()
        with Client(broker.url) as client:
            read, high_watermarks = read_back(client)

    producers.append(first)
    history = History(
        sent_ids=set().union(*(producer.sent_ids for producer in producers)),
        acknowledged=[event for producer in producers for event in producer.acknowledged],
        read=read,
        high_watermarks=high_watermarks,
    )
    print(
        f"{len(history.sent_ids)} sent, {len(history.acknowledged)} acknowledged, {len(read)} read"
    )
    assert violations(history) == []
    assert len(history.sent_ids) > len(history.acknowledged), "no kill met a request in flight"
    assert len(list(broker.data_dir.rglob("*.log"))) > 2 * len(high_watermarks)
