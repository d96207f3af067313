"""Clients of a ring of three whose brokers are killed, also the one that they were given.

No call may fail, and nothing may be lost, as long as two brokers answer.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace import aio, aio_consumer, aio_producer
from tailrace.consumer import Consumer
from tailrace.errors import ConnectionFailedError
from tailrace.producer import Producer
from tailrace.protocol.requests import Answer, Request
from tailrace.sync import Client
from tests.support.cli.commands import reported, run, started
from tests.support.ring.local_ring import LocalRing, founded_ring

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

KEYS = [f"k{number}" for number in range(24)]
VALUES = {f'{{"n":{number}}}'.encode() for number in range(72)}
SESSION_MS = 20_000


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[LocalRing]:
    with founded_ring(tmp_path, copies=3) as ring:
        yield ring


class NoTransport:
    """To a broker whose name cannot be looked up from here."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def send(self, _: Request) -> Answer:
        raise ConnectionFailedError(self._url, "no such host")

    async def close(self) -> None:
        pass


def behind_a_port_forward(url: str) -> Client:
    """A client that reaches the broker at `url` alone."""

    class Forwarded(Client):
        def __init__(self, given: str, **options: Any) -> None:
            super().__init__(given, **options)
            connect = self._exchange._connect
            self._exchange._connect = lambda to: connect(to) if to == url else NoTransport(to)

    return Forwarded(url)


def parts(count: int) -> list[list[bytes]]:
    values = sorted(VALUES)
    return [values[index::count] for index in range(count)]


@pytest.mark.parametrize("killed", [0, 1])
def test_a_consumer_and_a_producer_go_on_when_a_broker_is_killed(
    ring: LocalRing, killed: int
) -> None:
    before, after = parts(2)
    got: set[bytes | None] = set()
    with Client(ring.brokers[0].url) as client:
        client.create_topic("t")
        with (
            Producer(client) as producer,
            Consumer(client, "g", "t", session_ms=SESSION_MS, wait_ms=500) as consumer,
        ):

            def produce(values: list[bytes]) -> None:
                for index, value in enumerate(values):
                    producer.send("t", value, key=KEYS[index % len(KEYS)])
                producer.flush()

            produce(before)
            while not got.issuperset(before):
                got |= {record.value for record in consumer.poll()}
            ring.kill(killed)
            produce(after)
            while not got.issuperset(after):
                got |= {record.value for record in consumer.poll()}
            consumer.commit()
            details = client.group("g")
            stored = sum(row.readable().stop for row in client.offsets(["t"]))

    assert got == VALUES
    assert details.info.lag == 0
    assert stored == len(VALUES)


def test_the_asyncio_clients_go_on_when_the_broker_that_they_were_given_is_killed(
    ring: LocalRing,
) -> None:
    before, after = parts(2)

    async def produce_and_consume() -> tuple[set[bytes | None], int | None]:
        got: set[bytes | None] = set()
        async with (
            aio.Client(ring.brokers[0].url) as client,
            aio_producer.Producer(client) as producer,
        ):
            await client.create_topic("t")
            async with aio_consumer.Consumer(
                client, "g", "t", session_ms=SESSION_MS, wait_ms=500
            ) as consumer:
                for values in (before, after):
                    for index, value in enumerate(values):
                        await producer.send("t", value, key=KEYS[index % len(KEYS)])
                    await producer.flush()
                    while not got.issuperset(values):
                        got |= {record.value for record in await consumer.poll()}
                    if values is before:
                        await asyncio.to_thread(ring.kill, 0)
                await consumer.commit()
                return got, (await client.group("g")).info.lag

    assert asyncio.run(produce_and_consume()) == (VALUES, 0)


def test_a_client_s_own_calls_go_to_a_leader_that_it_was_named(ring: LocalRing) -> None:
    with Client(ring.brokers[0].url) as client:
        client.create_topic("t")
        client.produce_records("t", [key.encode() for key in KEYS], sorted(VALUES)[: len(KEYS)])
        ends = {row.partition: row.readable().stop for row in client.offsets(["t"])}
        for partition in ends:
            client.read_lines("t", partition)
        ring.kill(0)
        names = [topic.name for topic in client.topics()]
        lines = [
            line
            for partition in ends
            for line in client.read_lines("t", partition).body.splitlines()
        ]

    assert names == ["t"]
    assert len(lines) == len(KEYS)


def test_one_broker_that_can_be_reached_is_enough_for_every_call(ring: LocalRing) -> None:
    keys = [key.encode() for key in KEYS]
    values = sorted(VALUES)
    with behind_a_port_forward(ring.brokers[1].url) as client:
        client.create_topic("t")
        client.produce_records("t", keys, values[:24])
        for key, value in zip(keys, values[24:48], strict=True):
            client.produce("t", value, key=key)
        with Producer(client) as producer:
            for key, value in zip(keys, values[48:], strict=True):
                producer.send("t", value, key=key)
        ends = {row.partition: row.readable().stop for row in client.offsets(["t"])}
        states = {row.state for row in client.topic("t").partition_details}
        lines = [line for each in ends for line in client.read_lines("t", each).body.splitlines()]
        got: list[bytes | None] = []
        with Consumer(client, "g", "t", wait_ms=500) as consumer:
            while len(got) < len(values):
                got += [record.value for record in consumer.poll()]
            consumer.commit()
        lag = client.group("g").info.lag

    assert sum(ends.values()) == len(lines) == len(values)
    assert all(ends.values()), "each broker leads partitions that got some"
    assert states == {"open"}
    assert {*got} == VALUES
    assert lag == 0


def test_the_command_line_consumes_on_when_its_broker_is_killed(ring: LocalRing) -> None:
    first, others = ring.brokers[0].url, [broker.url for broker in ring.brokers[1:]]
    reported(run("topic", "create", "t", url=others[0]))
    reported(run("produce", "t", "1", url=others[0]))
    with started("consume", "t", "--group", "g", "-f", "--value-only", url=first) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        ring.kill(0)
        for url in others:
            reported(run("produce", "t", "2", url=url))
        lines = [process.stdout.readline(), process.stdout.readline()]
        if b"1\n" in lines:  # which was not yet confirmed on disk
            lines.append(process.stdout.readline())
        assert lines.count(b"2\n") == 2
        for url in others:
            table = reported(run("group", "list", url=url)).splitlines()
            assert [line.split()[:3] for line in table[1:]] == [["g", "1", "t"]]
            assert "GROUP g   active" in reported(run("group", "describe", "g", url=url))
