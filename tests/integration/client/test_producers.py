"""The producers that gather records, against real brokers: what they store, and through kills."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tailrace import aio, aio_producer
from tailrace.errors import (
    BufferFullError,
    ConnectionFailedError,
    NotStoredError,
    ProblemError,
    TailraceError,
    TopicNotFoundError,
)
from tailrace.producer import Producer
from tailrace.sansio.batching import Outgoing
from tailrace.sansio.sending import Outcome, ProducerOptions, Stored
from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker, refusing_url, start_broker
from tests.support.broker.history import Acknowledged, History, Read, RecordPosition, violations
from tests.support.broker.stored import split
from tests.support.cli.commands import environment

pytestmark = pytest.mark.integration

KEYS = [f"key-{index}" for index in range(8)]
KILLS = 3
# Many requests, and not so many records.
SMALL: ProducerOptions = {"linger_ms": 1, "batch_bytes": 2_000, "buffer_bytes": 300_000}
ANSWERS_A_LIFE = 400


def records_of(broker: RunningBroker, topic: str) -> Iterator[dict[str, Any]]:
    """All that the topic holds, partition by partition."""
    with Client(broker.url) as client:
        for row in client.offsets([topic]):
            offset = row.readable().start
            while offset < row.readable().stop:
                page = client.read_lines(topic, row.partition, offset, max_records=100_000)
                yield from map(json.loads, page.body.splitlines())
                offset = page.next_offset


@contextmanager
def producing(broker: RunningBroker, **options: Any) -> Iterator[Producer]:
    with Client(broker.url) as client, Producer(client, **options) as producer:
        yield producer


def test_each_record_is_where_its_future_says(shared_broker: RunningBroker, topic: str) -> None:
    with producing(shared_broker) as producer:
        sent = [
            producer.send(topic, b"%d" % n, key=None if n % 5 == 0 else KEYS[n % 7])
            for n in range(1_000)
        ]
    positions = {(each.result().partition, each.result().offset): n for n, each in enumerate(sent)}
    stored = {(r["partition"], r["offset"]): r for r in records_of(shared_broker, topic)}

    assert len(positions) == 1_000
    assert {position: record["value"] for position, record in stored.items()} == positions
    assert {r["key"] for r in stored.values()} == {None, *KEYS[:7]}
    without_a_key = {r["partition"] for r in stored.values() if r["key"] is None}
    assert len(without_a_key) == 1


def test_a_record_keeps_its_time_and_headers(shared_broker: RunningBroker, topic: str) -> None:
    time_us = 1_764_000_000_000_000
    with producing(shared_broker) as producer:
        producer.send(
            topic, None, key=b"\xff", timestamp_us=time_us, headers=[("é", b"\0"), ("a", b"")]
        )
        producer.send(topic, b"2", key=b"\xff", timestamp_us=time_us + 1)
    first, second = records_of(shared_broker, topic)

    assert (first["key"], first["value"]) == ({"base64": "/w=="}, None)
    assert first["timestamp"] == "2025-11-24T16:00:00.000000Z"
    assert [header["key"] for header in first["headers"]] == ["é", "a"]
    assert "headers" not in second


def test_a_program_that_comes_back_under_its_name_stores_new_records(
    shared_broker: RunningBroker, topic: str
) -> None:
    for run in range(2):
        with producing(shared_broker, id="till-7") as producer:
            sent = producer.send(topic, b"%d" % run)

        assert sent.result() == Stored(topic, sent.result().partition, run)
    assert [r["value"] for r in records_of(shared_broker, topic)] == [0, 1]


def test_records_share_requests_and_linger_only_until_a_flush(
    shared_broker: RunningBroker, topic: str
) -> None:
    with producing(shared_broker, linger_ms=60_000) as producer:
        sent = [producer.send(topic, b"1", key="k") for _ in range(100)]
        producer.flush()

        assert [each.result(timeout=0).offset for each in sent] == list(range(100))


def test_one_bad_record_does_not_take_others_with_it(
    shared_broker: RunningBroker, topic: str
) -> None:
    reported: list[tuple[bytes | None, Outcome]] = []

    def note(record: Outgoing[Any], outcome: Outcome) -> None:
        reported.append((record.value, outcome))

    with Client(shared_broker.url) as client:
        producer = Producer(client, linger_ms=60_000, on_outcome=note)
        for n in range(10):
            far_ahead_us = 4_000_000_000_000_000
            producer.send(topic, b"%d" % n, key="k", timestamp_us=far_ahead_us if n == 4 else n)
        with pytest.raises(NotStoredError, match="more than an hour ahead") as caught:
            producer.flush()
        producer.close()

    assert caught.value.count == 1
    assert [value for value, _ in reported] == [b"%d" % n for n in range(10)]
    assert [outcome.offset for _, outcome in reported if isinstance(outcome, Stored)] == list(
        range(9)
    )
    assert isinstance(reported[4][1], ProblemError)
    assert [r["value"] for r in records_of(shared_broker, topic)] == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_topics_do_not_wait_for_each_other_and_fail_alone(tmp_path: Path) -> None:
    with (
        start_broker(tmp_path, auto_create_topics="false", max_request_bytes=10_000) as broker,
        Client(broker.url) as client,
    ):
        client.create_topic("there")
        producer = Producer(client, linger_ms=60_000)
        missing = [producer.send("missing", b"1") for _ in range(3)]
        small = producer.send("there", b"1", key="k")
        large = producer.send("there", b"x" * 20_000, key="k")
        last = producer.send("there", b"2", key="k")
        with pytest.raises(NotStoredError) as caught:
            producer.close()

        assert caught.value.count == 4
        assert {type(each.exception()) for each in missing} == {TopicNotFoundError}
        assert "body-too-large" in str(getattr(large.exception(), "type", ""))
        assert (small.result().offset, last.result().offset) == (0, 1)
        with pytest.raises(RuntimeError, match="closed"):
            producer.send("there", b"3")
        producer.close()


def test_places_are_known_where_partitions_were_split(broker: RunningBroker) -> None:
    values = split(broker, "t")
    with producing(broker) as producer:
        sent = [producer.send("t", b"2", key=key) for key in KEYS]
    with Client(broker.url) as client:
        ends = {row.partition: row.readable().stop for row in client.offsets(["t"])}

    stored = [each.result() for each in sent]
    assert {each.partition for each in stored} == {1, 2}
    assert max(each.offset or 0 for each in stored) + 1 == max(ends[1], ends[2])
    assert min(each.offset or 0 for each in stored) == len(values)


def test_places_are_known_after_a_topic_was_replaced(
    shared_broker: RunningBroker, topic: str
) -> None:
    with Client(shared_broker.url) as client, Producer(client) as producer:
        client.create_topic(topic, partitions_per_range=1)
        first = producer.send(topic, b"1", key="k").result()
        client.delete_topic(topic)
        client.create_topic(topic, partitions_per_range=8)
        sent = [producer.send(topic, b"2", key=key) for key in KEYS]
        producer.flush()

    stored = {(each.result().partition, each.result().offset) for each in sent}
    assert (first.partition, first.offset) == (0, 0)
    assert stored == {(r["partition"], r["offset"]) for r in records_of(shared_broker, topic)}


def test_without_a_broker_the_timeout_ends(shared_broker: RunningBroker) -> None:
    with refusing_url() as url, Client(url) as client:
        producer = Producer(client, patience_s=0.2)
        sent = producer.send("t", b"1")
        with pytest.raises(NotStoredError, match="1 record was not stored: no broker answers"):
            producer.close()

    assert isinstance(sent.exception(), ConnectionFailedError)


FORGETFUL = """
import tailrace

producer = tailrace.Producer(tailrace.connect(), linger_ms=600_000, patience_s={patience_s})
for number in range(5_000):
    producer.send("{topic}", b"%d" % number, key=b"%d" % (number % 10))
print("end")
"""


def test_a_program_that_ends_without_close_loses_nothing(
    shared_broker: RunningBroker, topic: str
) -> None:
    result = run_python(shared_broker.url, FORGETFUL.format(topic=topic, patience_s=30))
    values = [record["value"] for record in records_of(shared_broker, topic)]

    assert (result.returncode, result.stdout, result.stderr) == (0, b"end\n", b"")
    assert sorted(values) == list(range(5_000))


def test_a_program_that_ends_without_close_reports_what_it_lost(topic: str) -> None:
    with refusing_url() as url:
        result = run_python(url, FORGETFUL.format(topic=topic, patience_s=0))

    assert result.stdout == b"end\n"
    assert b"NotStoredError: 5,000 records were not stored: no broker answers" in result.stderr


def run_python(url: str, program: str) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment(url), capture_output=True, check=False)


def test_full_memory_makes_a_send_wait_and_then_fail() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Client(url, timeout_s=0.5) as client:
            producer = Producer(client, patience_s=0, buffer_bytes=10_000, block_s=0.01)
            sent = [producer.send("t", b"x" * 5_000)]
            with pytest.raises(BufferFullError, match="buffer_bytes"):
                producer.send("t", b"x" * 5_000)
            with pytest.raises(NotStoredError, match="or perhaps was"):
                producer.close()

    assert all(isinstance(each.exception(), ConnectionFailedError) for each in sent)


def test_an_error_of_the_block_comes_first() -> None:
    def produce() -> None:
        with (
            refusing_url() as url,
            Client(url) as client,
            Producer(client, patience_s=0) as producer,
        ):
            producer.send("t", b"1")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        produce()


class Reports:
    """What a producer sent and was reported, from any thread; it goes on until that `is_over`."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self._changed = threading.Condition()
        self._sent_ids: list[str] = []
        self._acknowledged: list[Acknowledged] = []
        self.errors: list[TailraceError] = []

    def next_event(self) -> tuple[str, str]:
        """A key and an event's id."""
        n = len(self._sent_ids)
        self._sent_ids.append(f"{n}")
        return KEYS[n % len(KEYS)], f"{n}"

    def note(self, record: Outgoing[Any], outcome: Outcome) -> None:
        assert record.key is not None
        assert record.value is not None
        with self._changed:
            if isinstance(outcome, Stored):
                assert outcome.partition is not None
                assert outcome.offset is not None
                position = RecordPosition(outcome.partition, outcome.offset)
                event_id = str(json.loads(record.value))
                acknowledged = Acknowledged("p", record.key.decode(), event_id, position)
                self._acknowledged.append(acknowledged)
            else:
                self.errors.append(outcome)
            self._changed.notify_all()

    def wait_for_more(self, count: int) -> None:
        with self._changed:
            wanted = len(self._acknowledged) + count
            assert self._changed.wait_for(lambda: len(self._acknowledged) >= wanted, 30)

    def check(self, broker: RunningBroker, topic: str) -> None:
        """Every event is acknowledged, and there once, in order."""
        read = [
            Read(str(r["value"]), RecordPosition(r["partition"], r["offset"]))
            for r in records_of(broker, topic)
        ]
        with Client(broker.url) as client:
            ends = {row.partition: row.readable().stop for row in client.offsets([topic])}
        history = History(set(self._sent_ids), self._acknowledged, read, ends)

        assert self.errors == []
        assert len(self._acknowledged) == len(self._sent_ids) == len(read)
        assert violations(history) == []
        for key in KEYS:
            ids = [int(each.event_id) for each in self._acknowledged if each.key == key]
            assert ids == sorted(ids)


def kill_and_restart(broker: RunningBroker, reported: Reports, produce: Callable[[], None]) -> None:
    """While a thread produces until `reported` ends. The broker ends with the thread that started
    it, so that this one must.
    """
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(produce)
        try:
            for _ in range(KILLS):
                reported.wait_for_more(ANSWERS_A_LIFE)
                broker.kill()
                broker.restart()
            reported.wait_for_more(ANSWERS_A_LIFE)
        finally:
            reported.is_over.set()
        running.result()


def test_kills_while_it_produces_lose_and_double_nothing(broker: RunningBroker) -> None:
    reported = Reports()

    def produce() -> None:
        with producing(broker, on_outcome=reported.note, **SMALL) as producer:
            while not reported.is_over.is_set():
                key, event_id = reported.next_event()
                producer.send("t", event_id.encode(), key=key)

    kill_and_restart(broker, reported, produce)

    reported.check(broker, "t")


def test_kills_while_it_produces_asynchronously_lose_and_double_nothing(
    broker: RunningBroker,
) -> None:
    reported = Reports()

    async def produce() -> None:
        async with (
            aio.Client(broker.url) as client,
            aio_producer.Producer(client, on_outcome=reported.note, **SMALL) as producer,
        ):
            while not reported.is_over.is_set():
                key, event_id = reported.next_event()
                await producer.send("t", event_id.encode(), key=key)

    kill_and_restart(broker, reported, lambda: asyncio.run(produce()))

    reported.check(broker, "t")


def test_threads_share_a_producer_each_in_its_order(
    shared_broker: RunningBroker, topic: str
) -> None:
    with producing(shared_broker, batch_bytes=1_000) as producer, ThreadPoolExecutor(4) as threads:

        def send(key: str) -> Sequence[Future[Stored]]:
            return [producer.send(topic, b"%d" % n, key=key) for n in range(300)]

        sent = dict(zip(KEYS[:4], threads.map(send, KEYS[:4]), strict=True))

    for each in sent.values():
        offsets = [future.result().offset or 0 for future in each]
        assert offsets == sorted(offsets)
    values: dict[str, list[int]] = {}
    for record in records_of(shared_broker, topic):
        values.setdefault(record["key"], []).append(record["value"])
    assert values == {key: list(range(300)) for key in KEYS[:4]}


# --- asyncio --------------------------------------------------------------------------------------


def test_awaited_sends_are_where_their_futures_say(
    shared_broker: RunningBroker, topic: str
) -> None:
    async def produce() -> list[Stored]:
        async with (
            aio.Client(shared_broker.url) as client,
            aio_producer.Producer(client, linger_ms=60_000) as producer,
        ):
            sent = [
                await producer.send(topic, b"%d" % n, key=KEYS[n % 3], headers=[("n", b"%d" % n)])
                for n in range(500)
            ]
            await producer.flush()
            return [await each for each in sent]

    stored = asyncio.run(produce())
    records = {(r["partition"], r["offset"]): r for r in records_of(shared_broker, topic)}

    assert [records[each.partition, each.offset]["value"] for each in stored] == list(range(500))


def test_a_cancelled_producer_ends_at_once_and_settles_what_it_has() -> None:
    """Its broker never answers, and its delivery timeout is long."""

    async def produce(url: str) -> list[BaseException | None]:
        sent = []

        async def send() -> None:
            async with aio.Client(url) as client, aio_producer.Producer(client) as producer:
                sent.append(await producer.send("t", b"1"))
                is_sent.set()
                await asyncio.Event().wait()

        is_sent = asyncio.Event()
        task = asyncio.create_task(send())
        await is_sent.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return [each.exception() for each in sent]

    with socket.create_server(("127.0.0.1", 0)) as silent:
        [error] = asyncio.run(produce(f"http://127.0.0.1:{silent.getsockname()[1]}"))

    assert isinstance(error, TailraceError)
    assert error.write_attempted


def test_awaited_failures_are_reported_at_the_end_of_the_block() -> None:
    async def produce() -> None:
        with refusing_url() as url:
            async with (
                aio.Client(url) as client,
                aio_producer.Producer(client, patience_s=0) as producer,
            ):
                await producer.send("t", b"1")

    with pytest.raises(NotStoredError, match="1 record was not stored"):
        asyncio.run(produce())


def test_an_error_of_an_awaited_block_comes_first() -> None:
    async def produce() -> None:
        with refusing_url() as url:
            async with (
                aio.Client(url) as client,
                aio_producer.Producer(client, patience_s=0) as producer,
            ):
                await producer.send("t", b"1")
                raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        asyncio.run(produce())


def test_full_memory_makes_an_awaited_send_wait_and_then_fail() -> None:
    async def produce(url: str) -> None:
        async with (
            aio.Client(url, timeout_s=0.5) as client,
            aio_producer.Producer(
                client, patience_s=0, buffer_bytes=10_000, block_s=0.01
            ) as producer,
        ):
            await producer.send("t", b"x" * 5_000)
            with pytest.raises(BufferFullError, match="buffer_bytes"):
                await producer.send("t", b"x" * 5_000)

    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(NotStoredError, match="or perhaps was"),
    ):
        asyncio.run(produce(f"http://127.0.0.1:{silent.getsockname()[1]}"))
