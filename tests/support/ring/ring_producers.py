"""Producers that write to a ring while its brokers die, and a history of what was acknowledged.

Each numbers its requests, and sends one again, to whichever broker it finds, until it is answered.
"""

import json
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from time import monotonic
from typing import Any, Protocol

from tailrace.wire import JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE
from tests.support.broker.history import Acknowledged, RecordPosition
from tests.support.http.http11 import document, messages, request
from tests.support.ring.exchanges import Exchanges

KEYS = [f"key-{index}" for index in range(24)]
# Answers that say: try again, the same request.
RETRIED = {421, 429, 500, 503, 504, 507}
PAUSE_S = 0.02
COPIES_MIN = 2  # that an acknowledged event has, of three
ANSWER_S_MAX = 180.0  # on a busy machine, with all brokers down for a while


class Progress:
    """Counts acknowledged requests of all producers; who waits for more does not poll."""

    def __init__(self) -> None:
        self.stop_asked = threading.Event()
        self._changed = threading.Condition()
        self._count = 0

    def note(self) -> None:
        """A request was acknowledged."""
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def wait_for_more(self, count: int) -> None:
        """Wait until this many further requests are acknowledged."""
        with self._changed:
            wanted = self._count + count
            enough = self._changed.wait_for(lambda: self._count >= wanted, ANSWER_S_MAX)
            assert enough, f"{wanted - self._count} of {count} requests were not acknowledged"


class Producer(Protocol):
    """What sends requests until it is asked to stop."""

    def run(self, progress: Progress) -> None:
        """Until a stop is asked for."""


@dataclass(slots=True)
class RingProducer:
    """Sends events with ids of its own, in requests with sequences. One request at a time.

    `sizes`: how many events a request has is drawn from these.
    `wanders`: it asks any broker each time, not the one that took the key last.
    `answer_s_max`: it takes an answer for lost after this long, and asks another broker.
    `copies_min`: as many copies an acknowledged event has.
    """

    name: str
    topic: str
    ports: Sequence[int]
    seed: int
    sizes: Sequence[int] = (1,)
    answer_s_max: float = 1.5
    wanders: bool = False
    copies_min: int = COPIES_MIN
    sent_ids: set[str] = field(default_factory=set)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    retries: dict[str, int] = field(default_factory=dict)  # by reason
    duplicate_count: int = 0
    longest_s: float = 0.0  # until a request was stored
    _port_of: dict[str, int] = field(default_factory=dict)  # by key

    def run(self, progress: Progress) -> None:
        """Until a stop is asked for; what is under way then is sent until it is answered."""
        generator = random.Random(f"{self.seed} {self.name}")
        numbers = count()
        with closing(Exchanges(self.answer_s_max)) as exchanges:
            for sequence in count():
                if progress.stop_asked.is_set():
                    return
                key = generator.choice(KEYS)
                ids = [f"{self.name}-{next(numbers)}" for _ in range(generator.choice(self.sizes))]
                self.sent_ids.update(ids)
                self._store(exchanges, key, ids, sequence, generator)
                progress.note()

    def _store(
        self,
        exchanges: Exchanges,
        key: str,
        ids: Sequence[str],
        sequence: int,
        generator: random.Random,
    ) -> None:
        whole = request(
            messages(self.topic, partitionKey=key),
            b"\n".join(map(event_value, ids)),
            content_type=JSON_CONTENT_TYPE if len(ids) == 1 else NDJSON_CONTENT_TYPE,
            tailrace_producer_id=self.name,
            tailrace_sequence=sequence,
        )
        began_s = monotonic()
        deadline_s = began_s + ANSWER_S_MAX
        while True:
            port = self._port_of.get(key) or generator.choice(self.ports)
            answer = exchanges.exchange(port, whole)
            assert answer is None or answer.status in {200, *RETRIED}, answer
            if answer is not None and answer.status == 200:
                if not self.wanders:
                    self._port_of[key] = port
                self._note(key, ids, document(answer))
                self.longest_s = max(self.longest_s, monotonic() - began_s)
                return
            why = "no answer" if answer is None else document(answer)["type"]
            self.retries[why] = self.retries.get(why, 0) + 1
            assert monotonic() < deadline_s, f"{self.name}: {self.retries}, {answer}"
            leader_url = None if answer is None else document(answer).get("leaderUrl")
            self._port_of.pop(key, None)
            if leader_url is not None:
                self._port_of[key] = int(leader_url.rpartition(":")[2])
            else:
                threading.Event().wait(PAUSE_S)

    def _note(self, key: str, ids: Sequence[str], stored: dict[str, Any]) -> None:
        assert stored["count"] == len(ids)
        assert stored["copies"] >= self.copies_min
        self.duplicate_count += stored.get("duplicate", False)
        for offset, event_id in enumerate(ids, start=stored["offset"]):
            position = RecordPosition(stored["partition"], offset)
            self.acknowledged.append(Acknowledged(self.name, key, event_id, position))


def event_value(event_id: str) -> bytes:
    """Return an event as JSON, known by its id; half of it does not compress."""
    noise = blake2b(event_id.encode()).hexdigest()
    return json.dumps({"id": event_id, "noise": noise}).encode()


class Producing:
    """The threads of producers; what ends one of them fails the test."""

    def __init__(self, producers: Sequence[Producer]) -> None:
        self.progress = Progress()
        self._threads = [
            threading.Thread(target=each.run, args=(self.progress,), daemon=True)
            for each in producers
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Wait until each request is acknowledged."""
        self.progress.stop_asked.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def producing(producers: Sequence[Producer]) -> Iterator[Producing]:
    """They write while the block lasts."""
    running = Producing(producers)
    try:
        yield running
    finally:
        running.progress.stop_asked.set()
    running.stop()
