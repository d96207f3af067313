"""The client for asyncio against a real broker: its connections, and calls that wait at once.

Its calls are those of the blocking client: `tests/unit/client/test_clients_alike.py`.
"""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from tailrace.aio import Client
from tailrace.errors import (
    ConnectionFailedError,
    ProblemError,
)
from tailrace.extras import install_command
from tailrace.wire import BATCH_MAGIC
from tests.support.broker.fixtures import RunningBroker, free_port_base, start_broker

pytestmark = pytest.mark.integration

ACCEPT_TIMEOUT_S = 10.0
WAIT_MS_MAX = 20_000
T = TypeVar("T")


def with_client(url: str, use: Callable[[Client], Awaitable[T]], *, timeout_s: float = 30.0) -> T:
    """What it gives, in an event loop of its own."""

    async def main() -> T:
        async with Client(url, timeout_s=timeout_s) as client:
            return await use(client)

    return asyncio.run(main())


def test_what_is_produced_is_read(shared_broker: RunningBroker, topic: str) -> None:
    async def use(client: Client) -> None:
        one = await client.produce(topic, b'{"n":0}', key="é/&+ %")
        several = await client.produce_lines(topic, b"1\n2\n", key="é/&+ %")
        page = await client.read_lines(topic, one.partition, one.offset, max_records=2)
        rest = await client.read_lines(topic, one.partition, page.next_offset)
        batches = await client.read_batches(topic, one.partition, "earliest")

        assert (several.partition, several.offset, several.count) == (one.partition, 1, 2)
        records = [json.loads(line) for line in (page.body + rest.body).splitlines()]
        assert [record["value"] for record in records] == [{"n": 0}, 1, 2]
        assert {record["key"] for record in records} == {"é/&+ %"}
        assert (page.next_offset, page.high_watermark) == (2, 3)
        assert int.from_bytes(batches.body[:4], "little") == BATCH_MAGIC

    with_client(shared_broker.url, use)


def test_many_calls_are_under_way_at_once(shared_broker: RunningBroker, topic: str) -> None:
    """A read that waits does not keep others from what it waits for."""

    async def use(client: Client) -> None:
        partition = (await client.produce(topic, b"0", key="k")).partition
        async with asyncio.TaskGroup() as tasks:
            waiting = [
                tasks.create_task(
                    client.read_lines(topic, partition, "latest", wait_ms=WAIT_MS_MAX)
                )
                for _ in range(5)
            ]
            while not all(each.done() for each in waiting):
                await client.produce(topic, b"1", key="k")

        assert {json.loads(each.result().body.splitlines()[0])["value"] for each in waiting} == {1}

    with_client(shared_broker.url, use)


def test_records_of_a_whole_topic_are_read(shared_broker: RunningBroker, topic: str) -> None:
    async def use(client: Client) -> None:
        await client.produce_lines(topic, b"1\n2\n3\n", key="k")
        reading = client.read(topic)
        table = await reading.to_arrow()

        assert [record.value async for record in reading] == [b"1", b"2", b"3"]
        assert table.column("value").to_pylist() == [b"1", b"2", b"3"]
        assert sum([batch.num_rows async for batch in reading.batches()]) == 3
        with pytest.raises(ValueError, match="last excludes"):
            client.read(topic, last=1, start=2)

    with_client(shared_broker.url, use)


def test_a_body_over_the_limit_is_a_problem_and_not_a_broken_connection(tmp_path: Path) -> None:
    async def use(client: Client) -> None:
        with pytest.raises(ProblemError) as caught:
            await client.produce("t", b'"%s"' % (b"x" * 20_000_000))

        assert caught.value.type == "body-too-large"
        assert (await client.produce("t", b"1")).count == 1

    with start_broker(tmp_path, max_request_bytes=100_000) as broker:
        with_client(broker.url, use)


def test_a_client_survives_a_broker_that_was_started_again(broker: RunningBroker) -> None:
    async def use(client: Client) -> None:
        await client.create_topic("t")
        broker.kill()
        broker.restart()
        while not await client.is_ready():  # the loop had no turn to see the connection's end
            pass

        assert (await client.produce("t", b"1")).offset == 0
        await client.close()
        assert (await client.produce("t", b"1", key="k")).count == 1

    with_client(broker.url, use)


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
    async def use(client: Client) -> bool:
        await client.delete_topic("first")
        with pytest.raises(ConnectionFailedError) as caught:
            await client.delete_topic("second")
        await client.delete_topic("third")
        return caught.value.write_attempted

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:
        server.settimeout(ACCEPT_TIMEOUT_S)
        hanging_up = thread.submit(answer_once_then_hang_up, server)
        with_client(f"http://127.0.0.1:{server.getsockname()[1]}", use)
        targets = [request.split()[1] for request in hanging_up.result()]

    assert targets == [b"/v1/topics/first", b"/v1/topics/second", b"/v1/topics/third"]


def test_without_a_broker_nothing_was_attempted() -> None:
    async def use(client: Client) -> ConnectionFailedError:
        assert not await client.is_ready()
        with pytest.raises(ConnectionFailedError) as caught:
            await client.produce("t", b"1")
        return caught.value

    assert not with_client(f"http://127.0.0.1:{free_port_base()}", use).write_attempted


def test_a_host_that_no_name_can_be_is_no_broker() -> None:
    with pytest.raises(ConnectionFailedError) as caught:
        with_client(f"http://{'a' * 80}:9250", lambda client: client.topics())

    assert not caught.value.write_attempted


@pytest.mark.parametrize("body_bytes", [1, 50_000_000])
def test_a_broker_that_does_not_answer_is_not_waited_for_longer_than_reported(
    body_bytes: int,
) -> None:
    """Nor one that takes no bytes."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConnectionFailedError, match="timed out") as caught:
            with_client(url, lambda client: client.produce("t", b"1" * body_bytes), timeout_s=0.1)

    assert caught.value.write_attempted


def test_without_aiohttp_the_remedy_is_named() -> None:
    program = "import sys; sys.modules['aiohttp'] = None; import tailrace.aio"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(f": {install_command('aio')}")
