"""The blocking client against a real broker: values, refusals, and connections that end."""

import dataclasses
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from tailrace.calls.exchange import blocking
from tailrace.errors import (
    ConnectionFailedError,
    OffsetOutOfRangeError,
    ProblemError,
    TopicNotFoundError,
    UnexpectedAnswerError,
)
from tailrace.protocol.requests import Request
from tailrace.sync import Client
from tailrace.wire import BATCH_MAGIC
from tests.support.broker.fixtures import RunningBroker, free_port_base, start_broker
from tests.support.broker.stored import split
from tests.support.http.http11 import Connection

pytestmark = pytest.mark.integration

ACCEPT_TIMEOUT_S = 10.0
WAIT_MS_MAX = 20_000


def test_what_is_produced_is_read(shared_broker: RunningBroker) -> None:
    with Client(shared_broker.url) as client:
        one = client.produce("what", b'{"n":0}', key="é/&")
        several = client.produce_lines("what", b"1\n2\n", key="é/&")
        page = client.read_lines("what", one.partition, one.offset, max_records=2)
        rest = client.read_lines("what", one.partition, page.next_offset)
        batches = client.read_batches("what", one.partition, "earliest")

    assert (several.partition, several.offset, several.count) == (one.partition, 1, 2)
    records = [json.loads(line) for line in (page.body + rest.body).splitlines()]
    assert [record["value"] for record in records] == [{"n": 0}, 1, 2]
    assert {record["key"] for record in records} == {"é/&"}
    assert (page.next_offset, page.high_watermark, page.log_start) == (2, 3, 0)
    assert int.from_bytes(batches.body[:4], "little") == BATCH_MAGIC
    assert batches.next_offset == 3


def test_records_with_a_key_each_are_answered_by_partition(shared_broker: RunningBroker) -> None:
    keys = [None if n % 5 == 0 else f"k{n % 7}".encode() for n in range(100)]
    with Client(shared_broker.url) as client:
        produced = client.produce_records("keyed", keys, [b"%d" % n for n in range(100)])
        ends = {row.partition: row.readable().stop for row in client.offsets(["keyed"])}

    assert [each.partition for each in produced] == sorted({each.partition for each in produced})
    assert sum(each.count for each in produced) == 100
    assert all(ends[each.partition] == each.count for each in produced)


def test_topics_are_created_once(shared_broker: RunningBroker) -> None:
    with Client(shared_broker.url) as client:
        created = client.create_topic("orders", partitions_per_range=2, json_check=False)
        again = client.create_topic("orders", partitions_per_range=2, json_check=False)

        assert created == again
        assert created in client.topics()
        with pytest.raises(ProblemError) as caught:
            client.create_topic("orders", partitions_per_range=3)

    assert (created.partitions, created.json_check) == (2, False)
    assert (caught.value.type, caught.value.status) == ("topic-exists", 409)


def test_a_topic_is_described_altered_and_deleted(shared_broker: RunningBroker) -> None:
    with Client(shared_broker.url) as client:
        created = client.create_topic("short-lived", partitions_per_range=2)
        client.produce("short-lived", b"1")
        details = client.topic("short-lived")
        altered = client.alter_topic("short-lived", json_check=False)
        unchanged = client.alter_topic("short-lived")
        client.delete_topic("short-lived")

        assert details.topic == created
        assert [partition_detail.partition for partition_detail in details.partition_details] == [
            0,
            1,
        ]
        assert (
            sum(
                partition_detail.high_watermark or 0
                for partition_detail in details.partition_details
            )
            == 1
        )
        assert {partition_detail.state for partition_detail in details.partition_details} == {
            "open"
        }
        assert altered == unchanged == dataclasses.replace(created, json_check=False)
        with pytest.raises(TopicNotFoundError):
            client.topic("short-lived")
        with pytest.raises(TopicNotFoundError):
            client.delete_topic("short-lived")


def test_the_ring_reports_what_it_is(shared_broker: RunningBroker) -> None:
    with Client(shared_broker.url) as client:
        status = client.brokers()

    [broker] = status.brokers
    assert (status.length, status.names) == (1, ("127.0.0.1",))
    assert (status.producer_port, status.consumer_port) == (
        shared_broker.port + 1,
        shared_broker.port + 2,
    )
    assert status.ring.metadata_leader == broker.ordinal == 0
    assert broker.disk_used_bytes is not None
    assert broker.disk_bytes is not None
    assert 0 < broker.disk_used_bytes <= broker.disk_bytes
    assert abs(status.now_us - time.time_ns() // 1000) < 60_000_000


def test_offsets_and_reads_of_a_time(shared_broker: RunningBroker) -> None:
    times_us = [1_764_000_000_000_000 + n for n in range(5)]
    with Client(shared_broker.url) as client:
        values = [b"%d" % n for n in range(5)]
        [produced] = client.produce_records("timed", [b"k"] * 5, values, times_us)
        offsets = {
            row.partition: row for row in client.offsets(["timed"], timestamp_us=times_us[3])
        }
        untimed = client.offsets(["timed"])
        page = client.read_lines("timed", produced.partition, timestamp_us=times_us[3])
        behind = client.read_batches("timed", produced.partition, timestamp_us=times_us[4] + 1)

    assert offsets.pop(produced.partition).timestamp_offset == 3
    assert {row.timestamp_offset for row in offsets.values()} == {None}
    assert {each.timestamp_offset for each in untimed} == {None}
    assert [json.loads(line)["value"] for line in page.body.splitlines()] == [3, 4]
    assert (behind.body, behind.next_offset) == (b"", 5)


def test_reads_from_the_end_and_of_the_last(shared_broker: RunningBroker) -> None:
    with Client(shared_broker.url) as client:
        stored = client.produce_lines("ends", b"1\n2\n3\n", key="k")
        tail = client.read_lines("ends", stored.partition, -2)
        uncommitted = client.read_lines("ends", stored.partition, isolation="uncommitted")
        last = client.last_lines("ends", 2)

    def values(lines: bytes) -> list[object]:
        return [json.loads(line)["value"] for line in lines.splitlines()]

    assert values(tail.body) == values(last) == [2, 3]
    assert values(uncommitted.body) == [1, 2, 3]
    assert (tail.epoch, tail.is_sealed, tail.children) == (1, False, ())


def test_a_read_waits_for_what_comes(shared_broker: RunningBroker) -> None:
    with (
        Client(shared_broker.url) as client,
        Client(shared_broker.url) as reader,
        ThreadPoolExecutor(1) as thread,
    ):
        partition = client.produce("waited", b"1", key="k").partition
        waiting = thread.submit(
            reader.read_lines, "waited", partition, "latest", wait_ms=WAIT_MS_MAX
        )
        while not waiting.done():  # before it asks, what is stored is no news to it
            client.produce("waited", b"2", key="k")
        page = waiting.result()

    assert json.loads(page.body.splitlines()[0])["value"] == 2


def test_the_end_of_a_sealed_partition_names_its_children(broker: RunningBroker) -> None:
    values = split(broker, "t")
    with Client(broker.url) as client:
        parent, *children = client.offsets(["t"])
        end = client.read_lines("t", 0, len(values))
        middle = client.read_lines("t", 0, 0, max_records=1)

    assert (parent.state, parent.children) == ("sealed", (1, 2))
    assert len(parent.readable()) == len(values)
    assert [child.parents for child in children] == [(0,), (0,)]
    assert (end.is_sealed, end.children) == (True, (1, 2))
    assert (middle.is_sealed, middle.children) == (False, ())


@pytest.mark.parametrize("listener", [1, 2, 3])
def test_another_listener_of_a_broker_is_distinguished_from_a_topic_that_is_not_there(
    shared_broker: RunningBroker, listener: int
) -> None:
    with (
        Client(f"http://127.0.0.1:{shared_broker.port + listener}") as client,
        pytest.raises(UnexpectedAnswerError, match="not that of a broker's public port"),
    ):
        client.topic("t")


def test_refusals_have_their_own_errors(shared_broker: RunningBroker) -> None:
    with Client(shared_broker.url) as client:
        partition = client.produce("refused", b"1").partition
        with pytest.raises(OffsetOutOfRangeError) as out_of_range:
            client.read_batches("refused", partition, 9)
        with pytest.raises(TopicNotFoundError) as not_found:
            client.offsets(["nosuch"])

    assert (out_of_range.value.log_start, out_of_range.value.high_watermark) == (0, 1)
    assert not_found.value.topic == "nosuch"


def test_a_body_over_the_limit_is_a_problem_and_not_a_broken_connection(tmp_path: Path) -> None:
    with (
        start_broker(tmp_path, max_request_bytes=100_000) as broker,
        Client(broker.url) as client,
    ):
        with pytest.raises(ProblemError) as caught:
            client.produce("t", b'"%s"' % (b"x" * 20_000_000))

        assert caught.value.type == "body-too-large"
        assert client.produce("t", b"1").count == 1


def refuse_halfway_then_store(server: socket.socket) -> None:
    """Answer a request before its end and hang up on its rest; store what comes next."""
    connection, _ = server.accept()
    connection.recv(1000)
    connection.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\n{}")
    connection.shutdown(socket.SHUT_WR)
    connection.close()
    connection, _ = server.accept()
    with connection:
        connection.recv(1000)
        body = b'{"partition":0,"offset":0,"count":1,"durability":"fsync","copies":1}'
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
        connection.sendall(head + body)


def test_a_connection_whose_request_was_refused_halfway_is_not_used_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:
        server.settimeout(ACCEPT_TIMEOUT_S)
        refusing = thread.submit(refuse_halfway_then_store, server)
        with Client(f"http://127.0.0.1:{server.getsockname()[1]}") as client:
            with pytest.raises(ProblemError, match="413"):
                client.produce("t", b'"%s"' % (b"x" * 20_000_000))

            assert client.produce("t", b"1").offset == 0
        refusing.result()


def test_a_client_survives_a_broker_that_was_started_again(broker: RunningBroker) -> None:
    with Client(broker.url) as client:
        client.create_topic("t")
        broker.restart()
        assert [topic.name for topic in client.topics()] == ["t"]
        broker.kill()
        broker.restart()

        assert client.produce("t", b"1").offset == 0


def test_a_connection_that_the_broker_closed_as_idle_is_opened_again(tmp_path: Path) -> None:
    with start_broker(tmp_path, idle_seconds=0.2) as broker, Client(broker.url) as client:
        for n in range(2):
            assert client.produce("t", b"1", key="k").offset == n
            for _ in range(2):  # the second is opened when the client's is due
                with Connection(broker.port) as idle:
                    assert idle.is_closed()
        client.delete_topic("t")


def answer_once_then_hang_up(server: socket.socket) -> list[bytes]:
    """What came: two requests on one connection, the second unanswered, and what came after."""
    first, _ = server.accept()
    with first:
        requests = [first.recv(1000)]
        first.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
        requests.append(first.recv(1000))
    second, _ = server.accept()
    with second:
        requests.append(second.recv(1000))
        second.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
    return requests


def test_a_request_is_never_sent_twice_automatically() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:
        server.settimeout(ACCEPT_TIMEOUT_S)
        hanging_up = thread.submit(answer_once_then_hang_up, server)
        with Client(f"http://127.0.0.1:{server.getsockname()[1]}") as client:
            client.delete_topic("first")
            with pytest.raises(ConnectionFailedError) as caught:
                client.produce("second", b"1")
            client.delete_topic("third")
        targets = [request.split()[1] for request in hanging_up.result()]

    assert caught.value.write_attempted
    assert targets == [b"/v1/topics/first", b"/v1/topic/second/messages", b"/v1/topics/third"]


def test_an_exchange_that_any_error_ends_is_not_met_by_the_next(
    shared_broker: RunningBroker, topic: str
) -> None:
    """A body that no connection can send, behind a head that waits to be sent."""
    unsendable = Request("POST", f"/v1/topic/{topic}/messages", body=cast("bytes", {"a": 1}))
    with Client(shared_broker.url) as client:
        client.create_topic(topic)
        with pytest.raises(TypeError):
            blocking(client._exchange.ask)(unsendable)

        assert client.produce(topic, b"1").offset == 0


def test_a_wait_for_records_may_be_longer_than_a_brokers_silence(
    shared_broker: RunningBroker, topic: str
) -> None:
    with Client(shared_broker.url, timeout_s=0.5) as client:
        client.create_topic(topic, partitions_per_range=1)
        client.register(topic, topic, [topic])
        page = client.read_lines(topic, 0, "latest", wait_ms=1_000)
        polled = client.poll(topic, wait_ms=1_000)
        client.goodbye(topic)

    assert (page.body, polled.body) == (b"", b"")


def test_without_a_broker_nothing_was_attempted() -> None:
    with Client(f"http://127.0.0.1:{free_port_base()}") as client:
        assert not client.is_ready()
        with pytest.raises(ConnectionFailedError) as caught:
            client.produce("t", b"1")

    assert not caught.value.write_attempted


def test_a_broker_that_does_not_answer_is_not_waited_for_longer_than_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Client(url, timeout_s=0.05) as client, pytest.raises(ConnectionFailedError) as caught:
            client.topics()

    assert "timed out" in caught.value.reason
