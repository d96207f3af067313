"""Runs in a pod: produces events one by one until standard input ends; prints the outcome of each.

`URL TOPIC THREADS`. Each line that it prints is one event: its producer, key and id, and where it
is, since when, and how long that took, when it was acknowledged. Every second thread sends an event
again until it is known to be stored, numbered so that it is stored once; the others send nothing
twice. Every fourth thread has no client: as `curl` does, it connects for each event.
"""

import json
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from urllib.parse import quote

from tailrace.errors import ConnectionFailedError, TailraceError, problem_error
from tailrace.request_producer import RequestProducer
from tailrace.sync import Client

KEYS = 12
REST_S = 0.05
ANSWER_S_MAX = 3.0  # a pod that was killed says nothing more
_PRINTING = threading.Lock()

Send = Callable[[bytes, str], tuple[int, int]]


def sender(client: Client, topic: str, index: int) -> Send:
    """Return how an event is sent; what that returns is its partition and offset."""
    producer = RequestProducer(client)

    def send_numbered(event: bytes, key: str) -> tuple[int, int]:
        stored = producer.produce_lines(topic, event, key=key)
        return stored.partition, stored.offset

    def send_once(event: bytes, key: str) -> tuple[int, int]:
        stored = client.produce(topic, event, key=key)
        return stored.partition, stored.offset

    def send_plainly(event: bytes, key: str) -> tuple[int, int]:
        return post(f"{client.url}/v1/topic/{topic}/messages?partitionKey={quote(key)}", event)

    return (send_once, send_numbered, send_plainly, send_numbered)[index % 4]


def post(url: str, event: bytes) -> tuple[int, int]:
    """Over a connection of its own; TailraceError."""
    asked = urllib.request.Request(url, event, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=ANSWER_S_MAX) as answer:
            stored = json.load(answer)
    except urllib.error.HTTPError as error:
        raise problem_error(error.code, json.load(error)) from error
    except (OSError, HTTPException) as error:
        raise ConnectionFailedError(url, str(error), write_attempted=True) from error
    return stored["partition"], stored["offset"]


def produce(url: str, topic: str, index: int, stop: threading.Event) -> None:
    """In the order of their numbers, whatever happens to the broker."""
    number, name = 0, f"producer-{index}"
    with Client(url, timeout_s=ANSWER_S_MAX) as client:
        send = sender(client, topic, index)
        while not stop.is_set():
            key, event_id = f"key-{number % KEYS}", f"{name}-{number}"
            number += 1
            event: dict[str, str | int | float] = {"producer": name, "key": key, "id": event_id}
            began_s = time.monotonic()
            try:
                partition, offset = send(json.dumps({"id": event_id}).encode(), key)
            except TailraceError as error:
                client.close()
                reported = {**event, "error": repr(error), "retriable": error.retriable}
                stop.wait(REST_S)
            else:
                at_s = time.monotonic()
                times = {"at_s": at_s, "took_s": at_s - began_s}
                reported = {**event, "partition": partition, "offset": offset, **times}
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
