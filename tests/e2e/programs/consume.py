"""Runs in a pod: consumers of one group read a topic until standard input ends.

`URL TOPIC GROUP CONSUMERS`. Each line that it prints is the id of one event, in the order in which
all of them get the events.
"""

import sys
import threading

from tailrace.consumer import Consumer
from tailrace.sync import Client

WAIT_MS = 500
_PRINTING = threading.Lock()


def consume(url: str, topic: str, group: str, stop: threading.Event) -> None:
    """All that comes; an event is printed before it is confirmed."""
    with Client(url) as client, Consumer(client, group, topic, wait_ms=WAIT_MS) as consumer:
        while not stop.is_set():
            ids = [record.json()["id"] for record in consumer.poll()]
            with _PRINTING:
                for event_id in ids:
                    print(event_id, flush=True)


def main(url: str, topic: str, group: str, consumers: int) -> None:
    """Until standard input ends."""
    stop = threading.Event()
    threads = [
        threading.Thread(target=consume, args=(url, topic, group, stop)) for _ in range(consumers)
    ]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stop.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
