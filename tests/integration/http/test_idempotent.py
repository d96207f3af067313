"""A produce request that names its producer and sequence is stored once, however often it comes."""

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from tailrace.errors import ConnectionFailedError, ProblemError
from tailrace.protocol.records_binary import encode_records
from tailrace.protocol.requests import Answer
from tailrace.request_producer import RequestProducer
from tailrace.sync import Client
from tailrace.wire import (
    BATCH_CONTENT_TYPE,
    JSON_CONTENT_TYPE,
    NDJSON_CONTENT_TYPE,
    RECORDS_CONTENT_TYPE,
)
from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.broker.metrics import wait_for_metric
from tests.support.http.http11 import (
    PRODUCE,
    Connection,
    document,
    get,
    messages,
    new_topic,
    problem,
    produce_listeners,
    request,
)
from tests.support.storage.batches import Event, batch_of

pytestmark = pytest.mark.integration

SEGMENT_BYTES = 1 << 20  # the least that is allowed
ANSWER_TIMEOUT_S = 20.0

# What a request stores in a topic of one partition: query, content type, body, events.
BODIES = {
    "event": ("", JSON_CONTENT_TYPE, b"1", 1),
    "lines": ("", NDJSON_CONTENT_TYPE, b"1\n2\n3\n", 3),
    "records": ("", RECORDS_CONTENT_TYPE, encode_records([b"a", None], [b"1", b"2"]), 2),
    "batch": ("?partition=0", BATCH_CONTENT_TYPE, batch_of([Event(b"1"), Event(b"2")]), 2),
}


def numbered(
    sequence: int,
    body: bytes = b"1",
    *,
    topic: str = "t",
    producer: str = "till-7",
    query: str = "?partitionKey=k",
    content_type: str = JSON_CONTENT_TYPE,
) -> bytes:
    """A produce request that can be sent again."""
    return request(
        f"/v1/topic/{topic}/messages{query}",
        body,
        content_type=content_type,
        tailrace_producer_id=producer,
        tailrace_sequence=sequence,
    )


def stored(answer: Answer) -> tuple[int, int, bool]:
    """Offset and count of a success, and whether it was stored before."""
    assert answer.status == 200, answer.body
    said = document(answer)
    [element] = said if isinstance(said, list) else [said]
    return element["offset"], element["count"], element.get("duplicate", False)


def values(client: Client, topic: str) -> list[Any]:
    """All that the topic holds."""
    found = []
    for partition in client.offsets([topic]):
        offset = 0
        while offset < partition.readable().stop:
            fetched = client.read_lines(topic, partition.partition, offset, max_records=100_000)
            found += [json.loads(line)["value"] for line in fetched.body.splitlines()]
            offset = fetched.next_offset
    return found


@pytest.fixture
def log(shared_broker: RunningBroker, topic: str) -> str:
    """A topic of one partition that only this test has."""
    with Client(shared_broker.url) as client:
        client.create_topic(topic, partitions_per_range=1)
    return topic


@produce_listeners
@pytest.mark.parametrize("name", BODIES)
def test_a_retry_gets_the_original_s_answer(
    shared_broker: RunningBroker, log: str, listener: int, name: str
) -> None:
    query, content_type, body, event_count = BODIES[name]
    with Connection(shared_broker.port + listener) as connection:
        answers = [
            connection.exchange(
                numbered(sequence, body, topic=log, query=query, content_type=content_type)
            )
            for sequence in (5, 6, 5, 6, 5)
        ]

    first, second = (0, event_count), (event_count, event_count)
    assert [stored(answer) for answer in answers] == [
        (*first, False),
        (*second, False),
        (*first, True),
        (*second, True),
        (*first, True),
    ]
    with Client(shared_broker.url) as client:
        [partition] = client.offsets([log])
    assert partition.high_watermark == 2 * event_count


def test_without_the_headers_nothing_is_a_duplicate(shared_broker: RunningBroker, log: str) -> None:
    with Connection(shared_broker.port) as connection:
        answers = [connection.exchange(request(messages(log), b"1")) for _ in range(2)]

    assert [stored(answer) for answer in answers] == [(0, 1, False), (1, 1, False)]
    assert "duplicate" not in document(answers[1])


def test_a_retry_that_overtakes_the_answer_waits_for_it(
    shared_broker: RunningBroker, log: str
) -> None:
    with Connection(shared_broker.port + PRODUCE) as connection:
        connection.send(numbered(0, topic=log) * 50)
        answers = [stored(connection.receive()) for _ in range(50)]

    assert answers == [(0, 1, False)] + [(0, 1, True)] * 49


def test_what_was_refused_is_new_when_it_is_right(shared_broker: RunningBroker, log: str) -> None:
    with Connection(shared_broker.port) as connection:
        refused = connection.exchange(numbered(0, b"{", topic=log))
        answer = connection.exchange(numbered(0, b"{}", topic=log))

    assert problem(refused) == (400, "invalid-record")
    assert stored(answer) == (0, 1, False)


@pytest.mark.parametrize("name", ["event", "lines", "records"])
def test_without_a_key_the_producer_s_name_decides_the_partition(
    shared_broker: RunningBroker, name: str
) -> None:
    topic = f"keyless-{name}"
    _, content_type, body, _ = BODIES[name]
    if name == "records":
        body = encode_records([None, None], [b"1", b"2"])
    with Connection(shared_broker.port) as connection:
        assert connection.exchange(new_topic(topic, partitions=16)).status == 201
        answers = [
            document(
                connection.exchange(
                    numbered(sequence, body, topic=topic, query="", content_type=content_type)
                )
            )
            for sequence in (0, 1, 0, 2)
        ]
        elements = [answer[0] if name == "records" else answer for answer in answers]
        like = document(connection.exchange(request(messages(topic, partitionKey="till-7"), b"1")))
        [partition] = {element["partition"] for element in elements}
        target = f"/v1/topic/{topic}/partitions/{partition}/records?maxRecords=1"
        record = json.loads(connection.exchange(get(target)).body)

    assert partition == like["partition"]
    assert record["key"] is None
    assert elements[2] == {**elements[0], "duplicate": True}


def test_of_a_request_for_several_partitions_each_answers_for_itself(
    shared_broker: RunningBroker,
) -> None:
    keys = [b"%d" % number for number in range(100)]
    with Connection(shared_broker.port) as connection, Client(shared_broker.url) as client:
        assert connection.exchange(new_topic("several", partitions=4)).status == 201
        partition_by_key = {key: client.produce("several", b"0", key=key).partition for key in keys}
        one_s = [key for key in keys if partition_by_key[key] == 1]

        def send(some: list[bytes]) -> dict[int, Any]:
            body = encode_records(some, [b"1"] * len(some))
            answer = connection.exchange(
                numbered(0, body, topic="several", query="", content_type=RECORDS_CONTENT_TYPE)
            )
            assert answer.status == 200
            return {element["partition"]: element for element in document(answer)}

        part, whole, again = send(one_s), send(keys), send(keys)
        stored_values = values(client, "several")

    assert whole[1] == {**part[1], "duplicate": True}
    assert not any("duplicate" in whole[partition] for partition in (0, 2, 3))
    assert again == {key: {**element, "duplicate": True} for key, element in whole.items()}
    assert stored_values.count(1) == len(keys)


def test_duplicates_are_counted(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker, Connection(broker.port) as connection:
        for _ in range(3):
            connection.exchange(numbered(0))
        wait_for_metric(broker, "tailrace_produce_duplicates_total", 2)


@pytest.mark.parametrize("stop", ["kill", "stop", "kill without the checkpoint"])
def test_a_retry_after_a_restart_gets_the_original_s_answer(tmp_path: Path, stop: str) -> None:
    """Also of what is in finished segments, in the last one, and in the journal alone."""
    wide = json.dumps("x" * 100_000).encode()
    noise = [json.dumps(random.Random(number).randbytes(50_000).hex()) for number in range(40)]
    bodies = [b"1", wide, *[text.encode() for text in noise], b"2", b"3"]
    with start_broker(tmp_path, segment_bytes=SEGMENT_BYTES) as broker:
        with Connection(broker.port) as connection:
            assert connection.exchange(new_topic("t", partitions=1)).status == 201
            originals = [
                document(connection.exchange(numbered(sequence, body)))
                for sequence, body in enumerate(bodies)
            ]
        if stop == "stop":
            broker.stop()
        else:
            broker.kill()
        segments = list(broker.data_dir.rglob("*.log"))
        if stop == "kill without the checkpoint":
            [checkpoint] = broker.data_dir.rglob("producers")
            checkpoint.unlink()
        broker.restart()
        with Connection(broker.port) as connection:
            retries = [
                document(connection.exchange(numbered(sequence, body)))
                for sequence, body in enumerate(bodies)
            ]
            after = connection.exchange(numbered(len(bodies)))

    assert len(segments) > 1
    assert retries == [{**original, "duplicate": True} for original in originals]
    assert stored(after) == (len(bodies), 1, False)


class Retrier:
    """Sends numbered events, each again and again until it is answered, whatever is between."""

    def __init__(
        self, name: str, url: str, ready: threading.Event, answers: SimpleQueue[None]
    ) -> None:
        """`ready`: the broker is; `answers`: gets something with each answer."""
        self.name = name
        self.sent_count = 0
        self.retry_count = 0
        self._url = url
        self._ready = ready
        self._answers = answers
        self._is_over = threading.Event()

    def end(self) -> None:
        """Send no more than what is being sent."""
        self._is_over.set()

    def run(self) -> None:
        with Client(self._url) as client:
            for sequence in count():
                if self._is_over.is_set():
                    return
                self._send(client, sequence)

    def _send(self, client: Client, sequence: int) -> None:
        value = json.dumps({"from": self.name, "sequence": sequence, "fill": "x" * 500}).encode()
        key = f"{self.name}-{sequence % 5}"
        while True:
            self._ready.wait()
            try:
                client.produce("t", value, key=key, producer_id=self.name, sequence=sequence)
            except (ConnectionFailedError, ProblemError) as error:
                if not error.retriable:
                    raise
                self.retry_count += 1
            else:
                self.sent_count += 1
                self._answers.put(None)
                return


@pytest.mark.timeout(120)
def test_what_is_sent_until_it_is_answered_is_there_once_through_12_kills(tmp_path: Path) -> None:
    ready = threading.Event()
    answers: SimpleQueue[None] = SimpleQueue()
    with start_broker(tmp_path, segment_bytes=SEGMENT_BYTES) as broker:
        retriers = [Retrier(f"till-{number}", broker.url, ready, answers) for number in range(8)]
        with ThreadPoolExecutor(len(retriers)) as threads:
            runs = [threads.submit(retrier.run) for retrier in retriers]
            try:
                for _ in range(12):
                    ready.set()
                    for _ in range(random.randint(1, 600)):
                        answers.get(timeout=ANSWER_TIMEOUT_S)
                    ready.clear()
                    broker.kill()
                    broker.restart()
            finally:
                for retrier in retriers:
                    retrier.end()
                ready.set()
            for run in runs:
                run.result()
        with Client(broker.url) as client:
            found = [(value["from"], value["sequence"]) for value in values(client, "t")]

    sent = [
        (retrier.name, sequence) for retrier in retriers for sequence in range(retrier.sent_count)
    ]
    print(f"{len(sent)} sent, {sum(each.retry_count for each in retriers)} retries")
    assert sorted(found) == sorted(sent)
    assert sum(retrier.retry_count for retrier in retriers) > 0, "no kill met a request in flight"


def test_a_producer_of_the_client_goes_on_through_a_kill(tmp_path: Path) -> None:
    with (
        start_broker(tmp_path) as broker,
        Client(broker.url) as client,
        Client(broker.url) as other,
        ThreadPoolExecutor(1) as thread,
    ):
        producer = RequestProducer(client)
        first = producer.produce_lines("t", b"1\n")

        def produce() -> list[int]:
            return [producer.produce_lines("t", b"2\n").offset for _ in range(2_000)]

        run = thread.submit(produce)
        while not run.done() and max(row.high_watermark or 0 for row in other.offsets()) < 100:
            pass
        broker.kill()
        broker.restart()
        offsets = run.result()
        [partition] = [row for row in other.offsets(["t"]) if row.high_watermark]

    assert (partition.partition, first.offset) == (first.partition, 0)
    assert offsets == list(range(1, 2_001))
    assert partition.high_watermark == 2_001


def test_a_producer_of_the_client_raises_at_once_what_stored_nothing(
    shared_broker: RunningBroker,
) -> None:
    with Client(shared_broker.url) as client, pytest.raises(ProblemError) as caught:
        RequestProducer(client).produce_lines("__t", b"1\n")

    assert not caught.value.write_attempted


def test_a_producer_of_the_client_gives_up_when_its_timeout_ends(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker, Client(broker.url) as client:
        client.produce("t", b"1")
        broker.kill()
        with pytest.raises(ConnectionFailedError):
            RequestProducer(client, patience_s=0).produce_records("t", [b"k"], [b"1"])
