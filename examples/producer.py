"""Stores standard input, one JSON event a line, in a topic; each event's key is one of its fields.

    gunzip -c examples/data/flights.ndjson.gz | python examples/producer.py flights --key origin

Order per key is kept. Nothing is stored twice by this program: it tries again only when the broker
says that nothing was stored, and ends when that is not known.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice

from tailrace.errors import TailraceError
from tailrace.sync import Client

URL = os.environ.get("TAILRACE_URL", "http://127.0.0.1:9250")
BATCH_EVENTS = 1_000  # a request each: large enough to be cheap, small enough to be answered soon
RETRY_AFTER_S = (0.1, 0.3, 1.0, 2.0)


def main() -> None:
    """Say what was stored, or what went wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("topic")
    parser.add_argument("--key", required=True, help="a text field of each event")
    called = parser.parse_args()
    stored_count = 0
    try:
        with Client(URL) as client:
            for events in batches(line.rstrip(b"\n") for line in sys.stdin.buffer):
                keys = [json.loads(event)[called.key].encode() for event in events]
                send(client, called.topic, keys, events)
                stored_count += len(events)
    except TailraceError as error:
        sys.exit(f"error: after {stored_count:,} events: {error}")
    print(f"{stored_count:,} events stored")


def batches(events: Iterator[bytes]) -> Iterator[list[bytes]]:
    """The events, some at a time."""
    while batch := list(islice(events, BATCH_EVENTS)):
        yield batch


def send(client: Client, topic: str, keys: Sequence[bytes], events: Sequence[bytes]) -> None:
    """Return when all are on disk; TailraceError when they are not, or when that is not known."""
    for wait_s in RETRY_AFTER_S:
        try:
            client.produce_records(topic, keys, events)
            return
        except TailraceError as error:
            if error.write_attempted or not error.retriable:
                raise
            time.sleep(wait_s)
    client.produce_records(topic, keys, events)


if __name__ == "__main__":
    main()
