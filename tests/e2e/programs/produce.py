"""Runs in a pod: produces events one by one until standard input ends; prints the outcome of each.

`URL TOPIC THREADS`. Each line that it prints is one event: its producer, key and id, and where it
is when it was acknowledged. Nothing is sent twice; the first line says that all have begun.
"""

import json
import sys
import threading

from tailrace.errors import TailraceError
from tailrace.sync import Client

KEYS = 12
REST_S = 0.05
ANSWER_S_MAX = 3.0  # a pod that was killed says nothing more
_PRINTING = threading.Lock()


def produce(url: str, topic: str, name: str, stop: threading.Event) -> None:
    """In the order of their numbers, whatever happens to the broker."""
    number = 0
    with Client(url, timeout_s=ANSWER_S_MAX) as client:
        while not stop.is_set():
            key, event_id = f"key-{number % KEYS}", f"{name}-{number}"
            number += 1
            event: dict[str, str | int] = {"producer": name, "key": key, "id": event_id}
            try:
                stored = client.produce(topic, json.dumps({"id": event_id}).encode(), key=key)
            except TailraceError as error:
                client.close()
                reported = {**event, "error": type(error).__name__}
                stop.wait(REST_S)
            else:
                reported = {**event, "partition": stored.partition, "offset": stored.offset}
            report(reported)


def report(reported: dict[str, str | int]) -> None:
    """One line, whole: threads share the output."""
    with _PRINTING:
        print(json.dumps(reported), flush=True)


def main(url: str, topic: str, threads: int) -> None:
    """Until standard input ends."""
    stop = threading.Event()
    names = [f"producer-{number}" for number in range(threads)]
    producers = [threading.Thread(target=produce, args=(url, topic, name, stop)) for name in names]
    for producer in producers:
        producer.start()
    sys.stdin.read()
    stop.set()
    for producer in producers:
        producer.join()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
