"""Many consumers and many groups: each gets what is its own, and memory is taken once."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tailrace.protocol.requests import Answer
from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.http.http11 import (
    Connection,
    document,
    get,
    messages,
    new_topic,
    request,
    settle,
)

pytestmark = pytest.mark.integration

MEBIBYTE = 1024 * 1024
CONSUMERS = 200
GROUPS = 2_000
ROUNDS = 4
EVENTS = 5
CONNECTIONS = 16
PIPELINED = 10
# Of a group with one consumer and its positions in four partitions.
GROUP_BYTES_MAX = 24 * 1024
# In later rounds; what kept 2 KiB a group and round would take 12 MiB.
GROWTH_BYTES_MAX = 8 * MEBIBYTE
# Three times as long as a test waits for an answer: what is answered was not waited for to the end.
LONG_MS = 60_000


def register(consumer: str, group: str, topic: str) -> bytes:
    """A whole request."""
    wanted = {"id": consumer, "group": group, "topics": [topic]}
    body = json.dumps(wanted | {"onNewGroup": "startFromEarliest"}).encode()
    return request("/v1/consumer/register", body, content_type="application/json")


def poll(consumer: str, delivery: int = 0, *, wait_ms: int = 0) -> bytes:
    """A whole request; the answer is NDJSON."""
    return request(
        f"/v1/consumer/poll?consumerId={consumer}&waitMs={wait_ms}",
        accept="application/x-ndjson",
        tailrace_delivery=delivery,
    )


def commit(consumer: str, delivery: int) -> bytes:
    """A whole request."""
    return request(f"/v1/consumer/commit?consumerId={consumer}", tailrace_delivery=delivery)


def values(answer: Answer) -> list[Any]:
    """Of a poll."""
    return [json.loads(line)["value"] for line in answer.body.splitlines()]


def delivery(answer: Answer) -> int:
    """The number of what a poll answered."""
    assert answer.status == 200, answer
    return int(answer.headers["tailrace-delivery"])


def exchange_all(connections: Sequence[Connection], requests: Iterable[bytes]) -> Iterator[Answer]:
    """Some at a time over each connection; answers in the order of the requests."""
    left = iter(requests)
    while pieces := [piece for _ in connections if (piece := list(islice(left, PIPELINED)))]:
        for connection, piece in zip(connections, pieces, strict=False):
            connection.send(b"".join(piece))
        for connection, piece in zip(connections, pieces, strict=False):
            for _ in piece:
                yield connection.receive()


def resident_bytes(broker: RunningBroker) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


@pytest.mark.timeout(120)
def test_two_hundred_consumers_of_a_group_wait_and_share_what_comes(
    shared_broker: RunningBroker, topic: str
) -> None:
    consumers = [f"{topic}-{number}" for number in range(CONSUMERS)]
    with Connection(shared_broker.port) as public, ExitStack() as stack:
        assert public.exchange(new_topic(topic, partitions=CONSUMERS)).status == 201
        registered = exchange_all([public], (register(each, topic, topic) for each in consumers))
        assert {answer.status for answer in registered} == {200}
        waiting = [stack.enter_context(Connection(shared_broker.port)) for _ in consumers]
        for consumer, connection in zip(consumers, waiting, strict=True):
            connection.send(poll(consumer, wait_ms=LONG_MS))
        settle(shared_broker.port)
        # Without a key each partition has its turn.
        produced = [request(messages(topic), b"%d" % number) for number in range(CONSUMERS)]
        for answer in exchange_all([public], produced):
            assert answer.status == 200
        answers = [connection.receive() for connection in waiting]
        described = document(public.exchange(get(f"/v1/groups/{topic}")))

    assert sorted(value for answer in answers for value in values(answer)) == [*range(CONSUMERS)]
    assert len({delivery(answer) for answer in answers}) == CONSUMERS
    owned = Counter(partition["consumer"] for partition in described["partitions"])
    assert owned == dict.fromkeys(consumers, 1)


@pytest.mark.timeout(240)
def test_two_thousand_groups_get_all_and_memory_is_flat(tmp_path: Path) -> None:
    # Both are full from the first round on: what grows is something else.
    settings = {"cache_bytes": MEBIBYTE, "journal_bytes": 8 * MEBIBYTE}
    consumers = [f"consumer-{number}" for number in range(GROUPS)]
    with start_broker(tmp_path, **settings) as broker, ExitStack() as stack:
        connections = [stack.enter_context(Connection(broker.port)) for _ in range(CONNECTIONS)]
        public = connections[0]
        assert public.exchange(new_topic("events", partitions=4)).status == 201
        write(public, 0)
        before_bytes = resident_bytes(broker)
        registered = exchange_all(
            connections, (register(consumer, consumer, "events") for consumer in consumers)
        )
        assert {answer.status for answer in registered} == {200}
        sizes_bytes = []
        for round_number in range(ROUNDS):
            if round_number:
                write(public, round_number)
            read_by_all(connections, consumers, round_number)
            sizes_bytes.append(resident_bytes(broker))
        listed = document(public.exchange(get("/v1/groups")))["groups"]
        metrics = broker.metrics()

    print([size // MEBIBYTE for size in (before_bytes, *sizes_bytes)])
    assert {(each["lag"], each["members"], each["state"]) for each in listed} == {(0, 1, "active")}
    assert len(listed) == GROUPS
    assert metrics["tailrace_group_members"] == metrics["tailrace_groups"] == GROUPS
    assert metrics["tailrace_group_lag_records"] == 0
    assert metrics["tailrace_group_delivered_records_total"] == GROUPS * ROUNDS * EVENTS
    assert max(sizes_bytes) - sizes_bytes[0] < GROWTH_BYTES_MAX
    assert max(sizes_bytes) - before_bytes < GROUPS * GROUP_BYTES_MAX


def write(connection: Connection, round_number: int) -> None:
    for number in range(EVENTS):
        body = json.dumps([round_number, number]).encode()
        assert connection.exchange(request(messages("events"), body)).status == 200


def read_by_all(
    connections: Sequence[Connection], consumers: Sequence[str], round_number: int
) -> None:
    """Each group gets this round's events, once, and commits them."""
    wanted = [[round_number, number] for number in range(EVENTS)]
    answers = list(exchange_all(connections, (poll(consumer) for consumer in consumers)))
    for answer in answers:
        assert sorted(values(answer)) == wanted
    commits = (
        commit(consumer, delivery(answer))
        for consumer, answer in zip(consumers, answers, strict=True)
    )
    assert {answer.status for answer in exchange_all(connections, commits)} == {204}


def test_a_poll_that_waits_gets_an_event_when_it_is_acknowledged(
    shared_broker: RunningBroker, topic: str
) -> None:
    with Connection(shared_broker.port) as public, Connection(shared_broker.port) as waiting:
        assert public.exchange(new_topic(topic)).status == 201
        assert public.exchange(register(topic, topic, topic)).status == 200
        last = 0
        for number in range(20):
            waiting.send(poll(topic, last, wait_ms=LONG_MS))
            settle(shared_broker.port)
            assert public.exchange(request(messages(topic), b"%d" % number)).status == 200
            answer = waiting.receive()
            last = delivery(answer)

            assert values(answer) == [number]


def test_a_group_that_hangs_holds_no_other_up(shared_broker: RunningBroker, topic: str) -> None:
    """One consumer of it keeps what it got, one asks again and again and reads no answer."""
    event = json.dumps("x" * 100_000).encode()
    event_count = 100
    with (
        Connection(shared_broker.port) as public,
        Connection(shared_broker.port, receive_buffer_bytes=4096) as deaf,
    ):
        assert public.exchange(new_topic(topic, partitions=2)).status == 201
        for consumer, group in (("slow", "still"), ("deaf", "still"), ("live", "going")):
            name = f"{consumer}-{topic}"
            assert public.exchange(register(name, f"{group}-{topic}", topic)).status == 200
        for _ in range(event_count):
            assert public.exchange(request(messages(topic), event)).status == 200
        held = public.exchange(poll(f"slow-{topic}"))
        assert held.status == 200
        deaf.send(poll(f"deaf-{topic}"))
        settle(shared_broker.port)
        got = 0
        last = 0
        while got < event_count:
            answer = public.exchange(poll(f"live-{topic}", last))
            last = delivery(answer)
            got += len(values(answer))
        assert public.exchange(commit(f"live-{topic}", last)).status == 204
        again = public.exchange(poll(f"slow-{topic}"))
        groups = document(public.exchange(get("/v1/groups")))["groups"]

    assert got == event_count
    assert (delivery(again), again.body) == (delivery(held), held.body)
    lags = {each["group"]: each["lag"] for each in groups}
    assert (lags[f"still-{topic}"], lags[f"going-{topic}"]) == (event_count, 0)
