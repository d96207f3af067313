"""Stores standard input, one JSON event a line, in a topic; each event's key is one of its fields.

    gunzip -c examples/data/flights.ndjson.gz | python examples/producer.py flights --key origin

Order per key is kept, and nothing is stored twice, also when the broker is started again meanwhile.
"""

import argparse
import json
import os
import sys

from tailrace.errors import TailraceError
from tailrace.producer import Producer
from tailrace.sansio.sending import Outcome, Stored
from tailrace.sync import Client

URL = os.environ.get("TAILRACE_URL", "http://127.0.0.1:9250")


class EventError(Exception):
    """A line that is no event with a key; those before it are stored."""


def main() -> None:
    """Say what was stored, or what went wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("topic")
    parser.add_argument("--key", required=True, help="a text field of each event")
    called = parser.parse_args()
    stored_count = 0

    def count(_: object, outcome: Outcome) -> None:
        nonlocal stored_count
        stored_count += isinstance(outcome, Stored)

    try:
        with Client(URL) as client:
            client.brokers()  # a producer waits for a broker that is away; this answers at once
            with Producer(client, on_outcome=count) as producer:
                for number, line in enumerate(sys.stdin.buffer, start=1):
                    event = line.rstrip(b"\n")
                    producer.send(called.topic, event, key=key_of(event, called.key, number))
    except (TailraceError, EventError) as error:
        sys.exit(f"error: after {stored_count:,} events: {error}")
    print(f"{stored_count:,} events stored")


def key_of(event: bytes, name: str, line_number: int) -> str:
    """The text of this field."""
    try:
        fields = json.loads(event)
    except ValueError as error:
        raise EventError(f"line {line_number} is no JSON: {error}") from error
    key = fields.get(name) if isinstance(fields, dict) else None
    if not isinstance(key, str):
        raise EventError(f'line {line_number} has no field "{name}" with a text, for its key')
    return key


if __name__ == "__main__":
    main()
