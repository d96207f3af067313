"""Load for a ring that takes steps: producers without ids, bodies with many keys, readers."""

import json
import random
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from typing import Any

from tailrace.protocol.requests import Answer
from tailrace.wire import NDJSON_CONTENT_TYPE
from tests.support.broker.history import SOMEWHERE, Acknowledged, RecordPosition
from tests.support.http.http11 import document, get, messages, records, request
from tests.support.ring.exchanges import Exchanges
from tests.support.ring.ring_producers import (
    ANSWER_S_MAX,
    KEYS,
    PAUSE_S,
    RETRIED,
    Progress,
    event_value,
)

RECORDS_MAX = 500
LINES = 12


@dataclass(slots=True)
class PlainProducer:
    """Sends events without an id of its own: what may be stored is not sent again."""

    name: str
    topic: str
    ports: Sequence[int]
    seed: int
    sent_ids: set[str] = field(default_factory=set)
    doubtful_ids: set[str] = field(default_factory=set)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    retries: dict[str, int] = field(default_factory=dict)
    longest_s: float = 0.0

    def run(self, progress: Progress) -> None:
        """Until a stop is asked for."""
        generator = random.Random(f"{self.seed} {self.name}")
        with closing(Exchanges()) as exchanges:
            for number in count():
                if progress.stop_asked.is_set():
                    break
                event_id, key = f"{self.name}-{number}", generator.choice(KEYS)
                self.sent_ids.add(event_id)
                began_s = monotonic()
                while not self._is_over(exchanges, event_id, key, generator):
                    assert monotonic() < began_s + ANSWER_S_MAX, self.retries
                    threading.Event().wait(PAUSE_S)
                self.longest_s = max(self.longest_s, monotonic() - began_s)
                progress.note()

    def _is_over(
        self, exchanges: Exchanges, event_id: str, key: str, generator: random.Random
    ) -> bool:
        """Whether it is stored, or may be."""
        whole = request(messages(self.topic, partitionKey=key), event_value(event_id))
        answer = exchanges.exchange(generator.choice(self.ports), whole)
        if answer is not None and answer.status == 200:
            stored = document(answer)
            position = RecordPosition(stored["partition"], stored["offset"])
            self.acknowledged.append(Acknowledged(self.name, key, event_id, position))
            return True
        problem = {"type": "no answer", "writeAttempted": True}
        if answer is not None:
            problem = document(answer)
            assert problem["retriable"], problem
        why = str(problem["type"])
        self.retries[why] = self.retries.get(why, 0) + 1
        if problem["writeAttempted"]:
            self.doubtful_ids.add(event_id)
        return bool(problem["writeAttempted"])


@dataclass(slots=True)
class KeyedProducer:
    """Sends lines with a key in each, under an id and a sequence, until all are stored."""

    name: str
    topic: str
    ports: Sequence[int]
    seed: int
    sent_ids: set[str] = field(default_factory=set)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    retries: dict[str, int] = field(default_factory=dict)
    longest_s: float = 0.0

    def run(self, progress: Progress) -> None:
        """Until a stop is asked for."""
        generator = random.Random(f"{self.seed} {self.name}")
        with closing(Exchanges()) as exchanges:
            numbers = count()
            for sequence in count():
                if progress.stop_asked.is_set():
                    break
                events = [
                    (f"{self.name}-{next(numbers)}", generator.choice(KEYS)) for _ in range(LINES)
                ]
                self.sent_ids.update(event_id for event_id, _ in events)
                whole = request(
                    messages(self.topic, key=".id"),
                    b"\n".join(event_value(event_id) for event_id, _ in events),
                    content_type=NDJSON_CONTENT_TYPE,
                    tailrace_producer_id=self.name,
                    tailrace_sequence=sequence,
                )
                began_s = monotonic()
                while not self._is_stored(exchanges.exchange(generator.choice(self.ports), whole)):
                    assert monotonic() < began_s + ANSWER_S_MAX, self.retries
                    threading.Event().wait(PAUSE_S)
                self.longest_s = max(self.longest_s, monotonic() - began_s)
                self.acknowledged += [
                    Acknowledged(self.name, event_id, event_id, SOMEWHERE) for event_id, _ in events
                ]
                progress.note()

    def _is_stored(self, answer: Answer | None) -> bool:
        """Whether all parts are; a part of them may be."""
        if answer is not None and answer.status == 200:
            stored: list[dict[str, Any]] = document(answer)
            assert sum(each["count"] for each in stored) == LINES, stored
            return True
        why = "no answer"
        if answer is not None:
            found = document(answer)
            problems = (
                [each["problem"] for each in found if "problem" in each]
                if answer.status == 207
                else [found]
            )
            assert all(each["retriable"] for each in problems), problems
            assert answer.status in {207, *RETRIED}
            why = problems[0]["type"]
        self.retries[why] = self.retries.get(why, 0) + 1
        return False


@dataclass(slots=True)
class LineageReader:
    """Reads a topic in the order of its lineage: a partition when all its parents are read."""

    topic: str
    ports: Sequence[int]
    seed: str
    seen: list[tuple[RecordPosition, str]] = field(default_factory=list)

    def run(self, stop_asked: threading.Event) -> None:
        """Until a stop is asked for."""
        generator = random.Random(self.seed)
        with closing(Exchanges(1.5)) as exchanges:
            done: set[int] = set()
            offsets: dict[int, int] = {}
            while not stop_asked.wait(PAUSE_S):
                self._find(exchanges, generator.choice(self.ports), offsets, done)
                for partition in sorted(offsets.keys() - done):
                    target = records(
                        self.topic, partition, offset=offsets[partition], maxRecords=RECORDS_MAX
                    )
                    whole = get(target, accept=NDJSON_CONTENT_TYPE)
                    answer = exchanges.exchange(generator.choice(self.ports), whole)
                    if answer is None or answer.status != 200:
                        continue
                    for record in map(json.loads, answer.body.splitlines()):
                        assert record["offset"] == offsets[partition]
                        position = RecordPosition(partition, record["offset"])
                        self.seen.append((position, record["value"]["id"]))
                        offsets[partition] += 1
                    if answer.headers.get("tailrace-sealed") == "true":
                        assert answer.headers["tailrace-children"]
                        done.add(partition)

    def _find(
        self, exchanges: Exchanges, port: int, offsets: dict[int, int], done: set[int]
    ) -> None:
        """Begin with partitions all of whose parents are read to their ends."""
        answer = exchanges.exchange(port, get(f"/v1/offsets?topic={self.topic}"))
        if answer is None or answer.status != 200:
            return
        for row in document(answer)["topics"][0]["partitions"]:
            if row["partition"] not in offsets and done.issuperset(row["parents"]):
                offsets[row["partition"]] = row["firstOffset"]
