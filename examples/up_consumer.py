"""The main job's consumer: one of a group, a process of its own, so that it can be killed.

    python -m examples.up_consumer --url http://127.0.0.1:9250 --topic flights --group demo \\
        --handled handled.ndjson [--hold-delivery 2]

Says "ready" once it is registered, begins with a line of standard input and ends with the end of
that. What it handles it appends to a file that all consumers share: a line a record, and a write a
delivery, so that the file has them in the order in which they were handled. With --hold-delivery it
handles that delivery, says so there, and stops short of confirming it.
"""

import argparse
import json
import os
import select
import sys
from collections.abc import Iterable, Sequence
from typing import Final

from tailrace.consumer import Consumer
from tailrace.protocol.records_ndjson import Record
from tailrace.sync import Client

START: Final = "startFromEarliest"
SESSION_MS = 1_000  # the shortest: this long the partitions of a killed one wait
DELIVERY_RECORDS = 1_000
WAIT_MS = 100
PATIENCE_S = 5.0  # with a broker that does not answer: it ends with the main job


def main() -> None:
    """Until standard input ends, which it also does with the process that started this one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--handled", required=True)
    parser.add_argument("--hold-delivery", type=int, default=0)
    called = parser.parse_args()
    with (
        Client(called.url) as client,
        Consumer(
            client,
            called.group,
            called.topic,
            on_new_group=START,
            session_ms=SESSION_MS,
            max_records=DELIVERY_RECORDS,
            wait_ms=WAIT_MS,
            patience_s=PATIENCE_S,
        ) as consumer,
    ):
        # Before the first poll, which does it again: so that others are not given all partitions.
        client.register(
            consumer.consumer_id,
            called.group,
            [called.topic],
            on_new_group=START,
            session_ms=SESSION_MS,
        )
        print("ready", flush=True)
        sys.stdin.readline()
        handle(consumer, os.open(called.handled, os.O_WRONLY | os.O_APPEND), called.hold_delivery)


def handle(consumer: Consumer, handled: int, held_delivery: int) -> None:
    """Write down each delivery; the poll after it confirms it, and the end of all the last one."""
    delivery_count = 0
    while not has_ended():
        records = consumer.poll()
        lines = [line_of(record) for record in records]
        delivery_count += bool(records)
        is_held = bool(records) and delivery_count == held_delivery
        if is_held:
            lines.append(json.dumps({"holds": starts_of(records)}))
        write(handled, lines)
        if is_held:
            sys.stdin.read()


def has_ended() -> bool:
    """Whether standard input has; nothing more is written to it."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def line_of(record: Record) -> str:
    """For `examples.up_groups`; bytes that are no UTF-8 survive as lone surrogates."""
    key, value = (
        None if text is None else text.decode(errors="surrogateescape")
        for text in (record.key, record.value)
    )
    return json.dumps([record.partition, record.offset, key, value])


def starts_of(records: Sequence[Record]) -> dict[int, int]:
    """The first offset of each partition."""
    return {record.partition: record.offset for record in reversed(records)}


def write(descriptor: int, lines: Iterable[str]) -> None:
    """Whole, behind what others have written: one write (open(2), O_APPEND)."""
    text = "".join(f"{line}\n" for line in lines).encode()
    assert os.write(descriptor, text) == len(text)


if __name__ == "__main__":
    main()
