"""Consumers of a group, blocking and asyncio by the same tests, against a real broker."""

import asyncio
import subprocess
import sys
from collections.abc import Iterable, Iterator
from http.client import HTTPConnection
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest

from tailrace import aio, aio_consumer
from tailrace.arrow.records import encode_batch
from tailrace.consumer import Consumer
from tailrace.errors import (
    ConnectionFailedError,
    ConsumerNotRegisteredError,
    StaleAssignmentError,
    StaleDeliveryError,
    TopicNotFoundError,
)
from tailrace.protocol.records_ndjson import Record
from tailrace.sansio.consuming import Assignment
from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker, free_port_base, start_broker
from tests.support.groups.consumer_kinds import WAIT_MS, Consumers, Shell, consumers_of
from tests.support.http.lossy_proxy import LossyProxy

pytestmark = pytest.mark.integration

SESSION_MS = 1_000  # the shortest
LONG_MS = 20_000


@pytest.fixture(params=["sync", "aio"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def consumers(shared_broker: RunningBroker, kind: str) -> Iterator[Consumers]:
    with consumers_of(shared_broker.url, kind) as made:
        yield made


@pytest.fixture
def client(shared_broker: RunningBroker) -> Iterator[Client]:
    with Client(shared_broker.url) as opened:
        yield opened


def produce(client: Client, topic: str, numbers: Iterable[int]) -> None:
    """Events of these numbers, each with a key of its own, in one request."""
    values = list(numbers)
    client.produce_records(topic, [b"%d" % n for n in values], [b"%d" % n for n in values])


def numbers(records: Iterable[Record]) -> list[int]:
    return sorted(record.json() for record in records)


def first(consumer: Shell, count: int) -> list[Record]:
    """So many records, one by one."""
    records = iter(consumer)
    return [next(records) for _ in range(count)]


def poll_until_some(consumer: Shell) -> list[Record]:
    while not (records := consumer.poll()):
        pass
    return records


# --- what comes -----------------------------------------------------------------------------------


def test_each_record_comes_once_and_in_order(
    consumers: Consumers, client: Client, topic: str
) -> None:
    produce(client, topic, range(100))
    produce(client, topic, range(100, 200))
    with consumers(topic, topic, max_records=7) as consumer:
        records = first(consumer, 200)
        assert consumer.poll() == []

    assert numbers(records) == list(range(200))
    offsets: dict[int, list[int]] = {}
    for record in records:
        assert record.topic == topic
        offsets.setdefault(record.partition, []).append(record.offset)
    assert all(row == list(range(len(row))) for row in offsets.values())


def test_values_keys_times_and_headers_come_as_they_were(
    consumers: Consumers, client: Client, topic: str
) -> None:
    client.create_topic(topic, partitions_per_range=1)
    time_us = 1_764_000_000_123_456
    values = [b'{"n" : 1.50, "\xc3\xa9":"\\u00e9"}', b"\xff\x00", b"", None, b"[1]"]
    keys = [b"k", b"\xff", b"", None, '"é\\\n'.encode()]
    headers = [[("a", b"\xff"), ("a", b"")], None, [("b", b"1")], None, None]
    rows = pa.record_batch(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "timestamp": pa.array([time_us] * 5, pa.timestamp("us", tz="UTC")),
            "headers": pa.array(
                [
                    None
                    if header is None
                    else [{"key": key, "value": value} for key, value in header]
                    for header in headers
                ],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    for row in range(len(values)):
        client.produce_encoded(topic, encode_batch(rows.slice(row, 1)))

    with consumers(topic, topic) as consumer:
        records = consumer.poll()
    with consumers(f"{topic}-2", topic) as consumer:
        batches = consumer.batches(include_headers=True)
        table = pa.Table.from_batches([next(batches) for _ in values])

    assert [record.value for record in records] == values
    assert [record.key for record in records] == keys
    assert [list(record.headers) for record in records] == [header or [] for header in headers]
    assert {record.timestamp_us for record in records} == {time_us}
    assert table["value"].to_pylist() == values
    assert table["key"].to_pylist() == keys
    assert table["topic"].to_pylist() == [topic] * 5
    assert table["headers"].to_pylist() == rows["headers"].to_pylist()


def test_json_that_looks_like_encoded_bytes_comes_back_as_it_was_sent(
    consumers: Consumers, client: Client, topic: str
) -> None:
    """Beside the bytes that the broker shows so."""
    client.create_topic(topic, partitions_per_range=1, json_check=False)
    values = [b'{"base64":"/w=="}', b"\xff", b'{"base64": "aGVsbG8="}', b"hello"]
    for value in values:
        client.produce(topic, value)

    with consumers(topic, topic) as consumer:
        consumed = [record.value for record in consumer.poll()]

    assert consumed == values
    assert [record.value for record in client.read(topic)] == values
    assert [record.value for record in client.read(topic, last=4)] == values


def test_batches_of_several_topics_begin_where_the_group_is(
    consumers: Consumers, client: Client, topic: str
) -> None:
    names = [f"{topic}-a", f"{topic}-b"]
    for index, name in enumerate(names):
        client.create_topic(name, partitions_per_range=1)
        produce(client, name, range(10 * index, 10 * index + 10))
    with consumers(topic, names, max_records=3) as consumer:
        before = consumer.poll()  # which ends in the middle of a batch
        assert consumer.commit()
    with consumers(topic, names) as consumer:
        batches = consumer.batches()
        rows: list[dict[str, Any]] = []
        while len(rows) < 20 - len(before):
            rows += next(batches).to_pylist()

    assert len(before) == 3
    taken = [(each.topic, each.offset) for each in before]
    taken += [(row["topic"], row["offset"]) for row in rows]
    assert sorted(taken) == [(name, offset) for name in names for offset in range(10)]
    assert {(row["topic"], int(row["value"]) // 10) for row in rows} <= {
        (name, index) for index, name in enumerate(names)
    }


def test_batches_end_where_an_open_delivery_of_records_ends(
    consumers: Consumers, client: Client, topic: str
) -> None:
    client.create_topic(topic, partitions_per_range=1)
    produce(client, topic, range(10))
    before = consumers(topic, topic, consumer_id=f"{topic}-c", max_records=3)
    assert numbers(before.poll()) == [0, 1, 2]

    with consumers(topic, topic, consumer_id=f"{topic}-c") as restarted:
        batches = restarted.batches()
        found = [[int(each) for each in next(batches)["value"].to_pylist()] for _ in range(2)]

    assert found == [[0, 1, 2], [3, 4, 5, 6, 7, 8, 9]]


def test_a_new_group_starts_where_it_is_reported(
    consumers: Consumers, client: Client, topic: str
) -> None:
    produce(client, topic, [1])
    with consumers(topic, topic, on_new_group="startFromLatest") as consumer:
        assert consumer.poll() == []
        produce(client, topic, [2])

        assert numbers(consumer.poll()) == [2]


def test_a_loop_that_was_left_goes_on_with_the_next_record(
    consumers: Consumers, client: Client, topic: str
) -> None:
    produce(client, topic, range(10))
    with consumers(topic, topic) as consumer:
        before = first(consumer, 4)
        between = consumer.poll()
        produce(client, topic, range(10, 20))
        after = first(consumer, 10)

    assert (len(before), len(between)) == (4, 6)
    assert numbers(before + between + after) == list(range(20))


# --- what is confirmed ----------------------------------------------------------------------------


def test_what_was_handed_out_completely_is_confirmed_at_the_end(
    consumers: Consumers, client: Client, topic: str
) -> None:
    produce(client, topic, range(10))
    with consumers(topic, topic) as consumer:
        first(consumer, 10)
    with consumers(topic, topic) as consumer:
        assert consumer.poll() == []

    assert client.group(topic).info.lag == 0


def test_what_was_handed_out_in_part_comes_again(
    consumers: Consumers, client: Client, topic: str
) -> None:
    produce(client, topic, range(10))
    with consumers(topic, topic) as consumer:
        first(consumer, 9)
        assert not consumer.commit()
    with consumers(topic, topic) as consumer:
        assert numbers(consumer.poll()) == list(range(10))


def test_after_an_error_the_last_delivery_goes_to_another_at_once(
    consumers: Consumers, client: Client, topic: str
) -> None:
    produce(client, topic, range(10))

    def handle_with_an_error() -> None:
        with consumers(topic, topic, session_ms=3_600_000) as consumer:
            for record in consumer:
                _ = 1 // (9 - record.json())

    with pytest.raises(ZeroDivisionError):
        handle_with_an_error()
    assert client.group(topic).consumers == ()

    with consumers(topic, topic) as consumer:
        assert numbers(consumer.poll()) == list(range(10))


def test_a_commit_is_there_at_once(consumers: Consumers, client: Client, topic: str) -> None:
    produce(client, topic, range(10))
    consumer = consumers(topic, topic)
    consumer.poll()
    assert client.group(topic).info.lag == 10

    assert consumer.commit()
    assert consumer.commit()  # nothing is left
    details = client.group(topic)

    assert details.info.lag == 0
    assert [partition.committed for partition in details.partitions] == [
        partition.high_watermark for partition in details.partitions
    ]


def test_a_consumer_polls_on_after_it_was_closed(
    consumers: Consumers, client: Client, topic: str
) -> None:
    produce(client, topic, [1])
    consumer = consumers(topic, topic)
    consumer.close()
    assert numbers(consumer.poll()) == [1]
    consumer.close()
    produce(client, topic, [2])

    assert numbers(consumer.poll()) == [2]


# --- several consumers ----------------------------------------------------------------------------


def test_two_consumers_share_the_partitions(
    consumers: Consumers, client: Client, topic: str
) -> None:
    client.create_topic(topic, partitions_per_range=4)
    with consumers(topic, topic) as one, consumers(topic, topic) as other:
        assert one.poll() == other.poll() == []
        produce(client, topic, range(100))
        ones, others = one.poll(), other.poll()

        assert client.group(topic).info.members == 2
    assert numbers([*ones, *others]) == list(range(100))
    partitions = [{record.partition for record in records} for records in (ones, others)]
    assert [len(partition) for partition in partitions] == [2, 2]
    assert partitions[0].isdisjoint(partitions[1])


def test_each_is_notified_of_its_partitions_before_their_records(
    consumers: Consumers, client: Client, topic: str
) -> None:
    client.create_topic(topic, partitions_per_range=4)
    reported: list[Assignment] = []
    with consumers(topic, topic, on_assignment=reported.append) as one:
        one.poll()
        with consumers(topic, topic) as other:
            other.poll()
            one.poll()
            produce(client, topic, range(100))
            read = {record.partition for record in one.poll()}
        one.poll()

    alone, shared, again = reported
    assert [partition.partition for partition in alone.partitions] == [0, 1, 2, 3]
    assert (alone.added, alone.removed) == (alone.partitions, ())
    assert {partition.partition for partition in shared.partitions} == read
    assert {*shared.partitions, *shared.removed} == {*alone.partitions}
    assert again.partitions == alone.partitions
    assert again.added == shared.removed
    assert alone.epoch < shared.epoch < again.epoch


def test_a_callback_that_raises_loses_no_records(
    consumers: Consumers, client: Client, topic: str
) -> None:
    produce(client, topic, [1])

    def refuse(_: Assignment) -> None:
        raise ZeroDivisionError

    consumer = consumers(topic, topic, on_assignment=refuse)
    with pytest.raises(ZeroDivisionError):
        consumer.poll()

    assert numbers(consumer.poll()) == [1]


async def test_a_coroutine_can_be_reported_too(
    shared_broker: RunningBroker, client: Client, topic: str
) -> None:
    client.create_topic(topic)
    reported: list[Assignment] = []

    async def note(assignment: Assignment) -> None:
        await asyncio.sleep(0)
        reported.append(assignment)

    async with (
        aio.Client(shared_broker.url) as aio_client,
        aio_consumer.Consumer(aio_client, topic, topic, on_assignment=note, wait_ms=0) as consumer,
    ):
        await consumer.poll()

    assert len(reported) == 1


def test_a_poll_that_was_cancelled_loses_nothing(
    shared_broker: RunningBroker, client: Client, topic: str
) -> None:
    async def consume() -> list[Record]:
        async with (
            aio.Client(shared_broker.url) as aio_client,
            aio_consumer.Consumer(aio_client, topic, topic, wait_ms=LONG_MS) as consumer,
        ):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.poll(), WAIT_MS / 1000)
            await asyncio.to_thread(produce, client, topic, range(10))
            return await consumer.poll()

    client.create_topic(topic, partitions_per_range=1)

    assert numbers(asyncio.run(consume())) == list(range(10))


DOOMED = """\
import sys
import tailrace
url, topic, session_ms = sys.argv[1:]
with tailrace.connect(url) as client:
    with tailrace.Consumer(client, topic, topic, session_ms=int(session_ms)) as consumer:
        print(len(consumer.poll()), flush=True)
        sys.stdin.read()
"""


def test_the_records_of_a_killed_consumer_come_to_another(
    consumers: Consumers, client: Client, topic: str
) -> None:
    produce(client, topic, range(10))
    command = [sys.executable, "-c", DOOMED, client.url, topic, str(SESSION_MS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as doomed:
        assert doomed.stdout
        assert doomed.stdout.readline() == b"10\n"
        doomed.kill()

    with consumers(topic, topic, wait_ms=LONG_MS) as other:
        assert numbers(poll_until_some(other)) == list(range(10))


def test_a_consumer_that_was_removed_registers_again_and_goes_on(
    consumers: Consumers, client: Client, topic: str
) -> None:
    produce(client, topic, range(10))
    reported: list[Assignment] = []
    removed = consumers(topic, topic, session_ms=SESSION_MS, on_assignment=reported.append)
    assert len(removed.poll()) == 10
    with consumers(topic, topic, wait_ms=LONG_MS) as other:
        assert numbers(poll_until_some(other)) == list(range(10))
        assert removed.poll() == []
        assert client.group(topic).info.members == 2
    produce(client, topic, range(10, 20))

    assert numbers(poll_until_some(removed)) == list(range(10, 20))
    assert len(reported) >= 2
    assert reported[-1].epoch > reported[0].epoch
    removed.close()


def test_a_commit_that_comes_too_late_is_reported(
    consumers: Consumers, client: Client, topic: str
) -> None:
    produce(client, topic, range(10))
    removed = consumers(topic, topic, session_ms=SESSION_MS)
    removed.poll()
    with consumers(topic, topic, wait_ms=LONG_MS) as other:
        poll_until_some(other)

        with pytest.raises(ConsumerNotRegisteredError):
            removed.commit()


def test_a_delivery_that_another_process_of_this_name_took_is_not_committed(
    consumers: Consumers, client: Client, topic: str
) -> None:
    produce(client, topic, range(10))
    one = consumers(topic, topic, consumer_id=f"{topic}-c")
    assert len(one.poll()) == 10
    produce(client, topic, range(10, 20))
    with consumers(topic, topic, consumer_id=f"{topic}-c") as restarted:
        assert len(restarted.poll()) == 10  # the same
        assert len(restarted.poll()) == 10
        assert restarted.poll() == []

        with pytest.raises(StaleDeliveryError):
            one.commit()


def test_a_process_whose_name_another_has_taken_is_reported(
    consumers: Consumers, client: Client, topic: str
) -> None:
    produce(client, topic, [1])
    first_of_name = consumers(topic, topic, session_ms=SESSION_MS, consumer_id=f"{topic}-c")
    first_of_name.poll()
    with consumers(topic, topic, wait_ms=LONG_MS) as other:
        poll_until_some(other)  # the first is removed
    second = consumers(topic, topic, session_ms=SESSION_MS, consumer_id=f"{topic}-c")
    second.poll()

    with pytest.raises(StaleAssignmentError):
        first_of_name.poll()
    first_of_name.close()

    assert [consumer.consumer_id for consumer in client.group(topic).consumers] == [f"{topic}-c"]


@pytest.mark.parametrize("wanted", ["records", "batches"])
def test_a_process_that_slept_with_records_in_hand_does_not_take_its_name_back(
    consumers: Consumers, client: Client, topic: str, wanted: str
) -> None:
    client.create_topic(topic, partitions_per_range=1)
    for number in range(3):
        produce(client, topic, [number])
    name = f"{topic}-c"
    sleeper = consumers(topic, topic, session_ms=SESSION_MS, consumer_id=name)
    items: Iterator[Any] = iter(sleeper) if wanted == "records" else sleeper.batches()
    next(items)
    with consumers(topic, topic, wait_ms=LONG_MS) as other:
        poll_until_some(other)  # the sleeper is removed
    successor = consumers(topic, topic, session_ms=LONG_MS, consumer_id=name)
    successor.poll()

    with pytest.raises(StaleAssignmentError):
        next(items)
    sleeper.close()
    produce(client, topic, [3])

    assert [consumer.session_ms for consumer in client.group(topic).consumers] == [LONG_MS]
    assert numbers(poll_until_some(successor)) == [3]


def test_what_a_removed_consumer_has_in_hand_is_left_to_another(
    consumers: Consumers, client: Client, topic: str
) -> None:
    client.create_topic(topic, partitions_per_range=1)
    produce(client, topic, range(3))
    removed = consumers(topic, topic, session_ms=SESSION_MS)
    records = iter(removed)
    assert next(records).json() == 0
    with consumers(topic, topic, wait_ms=LONG_MS) as other:
        assert numbers(poll_until_some(other)) == [0, 1, 2]
    produce(client, topic, [3])

    assert next(records).json() == 3
    removed.close()


def test_a_slow_caller_is_not_taken_for_dead(
    consumers: Consumers, client: Client, topic: str
) -> None:
    client.create_topic(topic, partitions_per_range=1)
    produce(client, topic, range(4))
    with (
        consumers(topic, topic, session_ms=2000) as slow,
        consumers(topic, topic, wait_ms=700) as other,
    ):
        for record in slow:
            assert other.poll() == []  # which takes its time
            if record.json() == 3:
                break
        assert client.group(topic).info.members == 2


# --- brokers that fail ----------------------------------------------------------------------------


@pytest.fixture
def proxy(shared_broker: RunningBroker) -> Iterator[LossyProxy]:
    with LossyProxy(shared_broker.port) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_lost_answers_neither_lose_records_nor_bring_them_twice(
    consumers: Consumers, client: Client, topic: str, proxy: LossyProxy
) -> None:
    produce(client, topic, range(30))
    proxy.to_lose = ["register", "poll", "poll"]
    with consumers(topic, topic, url=proxy.url, max_records=10) as consumer:
        records = first(consumer, 10)
        proxy.to_lose = ["poll"]
        records += first(consumer, 10)
        proxy.to_lose = ["commit"]
        assert consumer.commit()
        records += first(consumer, 10)

    assert proxy.to_lose == []
    assert numbers(records) == list(range(30))
    assert client.group(topic).info.lag == 0


def test_what_was_delivered_in_a_lost_answer_is_not_confirmed_at_the_end(
    consumers: Consumers, client: Client, topic: str, proxy: LossyProxy
) -> None:
    produce(client, topic, range(20))
    with consumers(topic, topic, url=proxy.url, max_records=10, patience_s=0.0) as consumer:
        records = first(consumer, 10)
        proxy.to_lose = ["poll"]
        with pytest.raises(ConnectionFailedError):
            consumer.poll()
    with consumers(topic, topic) as consumer:
        records += first(consumer, 10)

    assert numbers(records) == list(range(20))


def test_a_request_that_was_interrupted_leaves_nothing_to_the_next(
    monkeypatch: pytest.MonkeyPatch, client: Client, topic: str
) -> None:
    produce(client, topic, range(10))

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def poll_interrupted() -> None:
        with Consumer(client, topic, topic) as consumer:
            assert len(consumer.poll()) == 10
            with monkeypatch.context() as patch:
                patch.setattr(HTTPConnection, "endheaders", interrupt)
                consumer.poll()

    with pytest.raises(KeyboardInterrupt):
        poll_interrupted()

    assert client.group(topic).consumers == ()  # it has said goodbye


def test_a_consumer_survives_the_brokers_restart(
    broker: RunningBroker, kind: str, topic: str
) -> None:
    with Client(broker.url) as client, consumers_of(broker.url, kind) as consumers:
        produce(client, topic, range(10))
        with consumers(topic, topic) as consumer:
            records = first(consumer, 10)
            assert consumer.commit()
            broker.restart()
            produce(client, topic, range(10, 20))
            records += first(consumer, 10)
            broker.kill()
            broker.restart()
            produce(client, topic, range(20, 30))
            while {*numbers(records)} != {*range(30)}:  # what was not confirmed comes again
                records += consumer.poll()


@pytest.mark.parametrize("is_closed_by_error", [False, True])
def test_without_a_broker_the_end_comes_all_the_same(
    broker: RunningBroker, kind: str, topic: str, is_closed_by_error: bool
) -> None:
    def consume() -> None:
        with consumers(topic, topic, patience_s=0.0) as consumer:
            consumer.poll()
            broker.kill()
            if is_closed_by_error:
                raise ZeroDivisionError

    with Client(broker.url) as client, consumers_of(broker.url, kind) as consumers:
        produce(client, topic, range(10))
        with pytest.raises(ZeroDivisionError if is_closed_by_error else ConnectionFailedError):
            consume()


def test_a_consumer_without_a_broker_from_the_start_says_so_at_once(kind: str) -> None:
    with (
        consumers_of(f"http://127.0.0.1:{free_port_base()}", kind) as consumers,
        pytest.raises(ConnectionFailedError),
    ):
        consumers("g", "t").poll()


def test_a_topic_that_is_not_there_is_named(tmp_path: Any, kind: str) -> None:
    with (
        start_broker(tmp_path, auto_create_topics=False) as broker,
        consumers_of(broker.url, kind) as consumers,
        pytest.raises(TopicNotFoundError, match="nosuch"),
    ):
        consumers("g", "nosuch").poll()
