"""Runs in a pod: produces events one by one until standard input ends; prints the outcome of each.

`URL TOPIC THREADS`. Each line that it prints is one event: its producer, key and id, and where it
is, and since when, when it was acknowledged. Every second thread sends an event again until it is
known to be stored, numbered so that it is stored once; the others send nothing twice.
"""

import json
import sys
import threading
import time
from collections.abc import Callable

from tailrace.errors import TailraceError
from tailrace.produced import Produced
from tailrace.request_producer import RequestProducer
from tailrace.sync import Client

KEYS = 12
REST_S = 0.05
ANSWER_S_MAX = 3.0  # a pod that was killed says nothing more
_PRINTING = threading.Lock()

Send = Callable[[bytes, str], Produced]


def sender(client: Client, topic: str, *, is_numbered: bool) -> Send:
    """Return how an event is sent."""
    if is_numbered:
        producer = RequestProducer(client)
        return lambda event, key: producer.produce_lines(topic, event, key=key)
    return lambda event, key: client.produce(topic, event, key=key)


def produce(url: str, topic: str, index: int, stop: threading.Event) -> None:
    """In the order of their numbers, whatever happens to the broker."""
    number, name = 0, f"producer-{index}"
    with Client(url, timeout_s=ANSWER_S_MAX) as client:
        send = sender(client, topic, is_numbered=index % 2 == 1)
        while not stop.is_set():
            key, event_id = f"key-{number % KEYS}", f"{name}-{number}"
            number += 1
            event: dict[str, str | int | float] = {"producer": name, "key": key, "id": event_id}
            try:
                stored = send(json.dumps({"id": event_id}).encode(), key)
            except TailraceError as error:
                client.close()
                reported = {**event, "error": type(error).__name__}
                stop.wait(REST_S)
            else:
                position = {"partition": stored.partition, "offset": stored.offset}
                reported = {**event, **position, "at_s": time.monotonic()}
            report(reported)


def report(reported: dict[str, str | int | float]) -> None:
    """One line, whole: threads share the output."""
    with _PRINTING:
        print(json.dumps(reported), flush=True)


def main(url: str, topic: str, threads: int) -> None:
    """Until standard input ends."""
    stop = threading.Event()
    producers = [
        threading.Thread(target=produce, args=(url, topic, index, stop)) for index in range(threads)
    ]
    for producer in producers:
        producer.start()
    sys.stdin.read()
    stop.set()
    for producer in producers:
        producer.join()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
