"""Handles the records of topics as one of a consumer group. Start it several times, also on several
machines: they share the partitions, and when one ends others take over.

    python examples/consumer.py --group delays flights [orders …]

At least once, in order per key: a record comes again when its handling was not confirmed before the
process died. Ctrl-C and SIGTERM end it with everything confirmed.
"""

import argparse
import os
import signal
import sys
import threading

from tailrace.consumer import Consumer
from tailrace.errors import TailraceError
from tailrace.protocol.records_ndjson import Record
from tailrace.sync import Client

URL = os.environ.get("TAILRACE_URL", "http://127.0.0.1:9250")
MAX_RECORDS = 100  # of a delivery: to be handled within the session, 30 s
WAIT_MS = 1_000  # for the first of them; the end may take this long


def main() -> None:
    """Until it is interrupted; then what was delivered is handled and confirmed first."""
    parser = argparse.ArgumentParser()
    parser.add_argument("topics", nargs="+")
    parser.add_argument("--group", required=True)
    called = parser.parse_args()
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C; what ends a pod
        signal.signal(number, lambda *_: stopping.set())
    try:
        with (
            Client(URL) as client,
            Consumer(
                client, called.group, called.topics, max_records=MAX_RECORDS, wait_ms=WAIT_MS
            ) as consumer,
        ):
            while not stopping.is_set():
                for record in consumer.poll():
                    handle(record)
    except TailraceError as error:
        sys.exit(f"error: {error}")


def handle(record: Record) -> None:
    """Your work. A record that was handled may come again: let that do no harm."""
    key = None if record.key is None else record.key.decode()
    print(record.topic, record.partition, record.offset, key, record.json(), flush=True)


if __name__ == "__main__":
    main()
