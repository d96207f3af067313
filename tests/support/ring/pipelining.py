"""A producer that sends many events at once to one broker, without a producer id.

What an answer says must be so: stored at its offset, not attempted and so not there, or unknown.
"""

import json
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from tailrace.protocol.requests import Answer
from tests.support.broker.history import Acknowledged, RecordPosition
from tests.support.http.http11 import Connection, document, messages, request
from tests.support.ring.ring_producers import KEYS, RETRIED, Progress, event_value

WINDOW = 24  # requests that are sent before the first is answered
ANSWER_S_MAX = 20.0


@dataclass(slots=True)
class PipeliningProducer:
    """Each event is sent once. `order`: the ids of each key as they were sent."""

    name: str
    topic: str
    ports: Sequence[int]
    seed: int
    acknowledged: list[Acknowledged] = field(default_factory=list)
    not_attempted: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    sent_ids: set[str] = field(default_factory=set)
    order: dict[str, list[str]] = field(default_factory=dict)
    problems: dict[str, int] = field(default_factory=dict)

    def run(self, progress: Progress) -> None:
        """Until a stop is asked for."""
        generator = random.Random(f"{self.seed} {self.name}")
        numbers = count()
        while not progress.stop_asked.is_set():
            try:
                connection = Connection(generator.choice(self.ports))
            except OSError:
                threading.Event().wait(0.02)
                continue
            connection.socket.settimeout(ANSWER_S_MAX)
            with connection:
                while not progress.stop_asked.is_set():
                    if not self._send_window(connection, generator, numbers):
                        break
                    progress.note()

    def _send_window(
        self, connection: Connection, generator: random.Random, numbers: Iterator[int]
    ) -> bool:
        """Whether all were answered."""
        keys = [generator.choice(KEYS) for _ in range(WINDOW)]
        ids = [f"{self.name}-{next(numbers)}" for _ in keys]
        self.sent_ids.update(ids)
        for key, event_id in zip(keys, ids, strict=True):
            self.order.setdefault(key, []).append(event_id)
        requests = [
            request(messages(self.topic, partitionKey=key), event_value(event_id))
            for key, event_id in zip(keys, ids, strict=True)
        ]
        answered = 0
        try:
            connection.send(b"".join(requests))
            for key, event_id in zip(keys, ids, strict=True):
                answer = connection.receive()
                self._note(key, event_id, answer)
                answered += 1
                if answer.headers.get("connection") == "close":
                    break
        except OSError:
            pass
        self.unknown.update(ids[answered:])
        return answered == WINDOW

    def _note(self, key: str, event_id: str, answer: Answer) -> None:
        said = document(answer)
        if answer.status == 200:
            position = RecordPosition(said["partition"], said["offset"])
            self.acknowledged.append(Acknowledged(self.name, key, event_id, position))
            return
        assert answer.status in RETRIED, answer
        assert said["retriable"], answer
        kind = json.dumps([said["type"], said["writeAttempted"]])
        self.problems[kind] = self.problems.get(kind, 0) + 1
        (self.unknown if said["writeAttempted"] else self.not_attempted).add(event_id)
