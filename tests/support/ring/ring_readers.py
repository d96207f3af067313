"""Readers that follow a topic while its brokers die, and note what they have seen where."""

import json
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from tailrace.wire import NDJSON_CONTENT_TYPE
from tests.support.broker.history import RecordPosition
from tests.support.http.http11 import get, records
from tests.support.ring.exchanges import Exchanges

RECORDS_MAX = 500
PAUSE_S = 0.02


@dataclass(slots=True)
class RingReader:
    """Reads all partitions in turn from their beginning, at whichever broker answers."""

    topic: str
    partition_count: int
    ports: Sequence[int]
    seed: str
    answer_s_max: float = 1.5
    seen: dict[RecordPosition, str] = field(default_factory=dict)

    def run(self, stop_asked: threading.Event) -> None:
        """Until a stop is asked for."""
        generator = random.Random(self.seed)
        next_offsets = [0] * self.partition_count
        ports = [generator.choice(self.ports) for _ in next_offsets]
        with closing(Exchanges(self.answer_s_max)) as exchanges:
            while not stop_asked.wait(PAUSE_S):
                for partition, offset in enumerate(next_offsets):
                    target = records(self.topic, partition, offset=offset, maxRecords=RECORDS_MAX)
                    whole = get(target, accept=NDJSON_CONTENT_TYPE)
                    answer = exchanges.exchange(ports[partition], whole)
                    if answer is None or answer.status != 200:
                        ports[partition] = generator.choice(self.ports)
                    else:
                        next_offsets[partition] = self._note(partition, offset, answer.body)

    def _note(self, partition: int, offset: int, body: bytes) -> int:
        """Return the next offset: what is read is dense."""
        for record in map(json.loads, body.splitlines()):
            assert (record["partition"], record["offset"]) == (partition, offset)
            self.seen[RecordPosition(partition, offset)] = record["value"]["id"]
            offset += 1
        return offset


class Reader(Protocol):
    """Reads until a stop is asked for."""

    def run(self, stop_asked: threading.Event) -> None: ...


@contextmanager
def reading(readers: Sequence[Reader]) -> Iterator[None]:
    """They read while the block lasts; what ends one of them fails the test."""
    stop_asked = threading.Event()
    threads = [threading.Thread(target=each.run, args=(stop_asked,)) for each in readers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop_asked.set()
        for thread in threads:
            thread.join()
