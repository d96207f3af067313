"""Sends requests again until it is known that they are stored, and has them stored once.

One request at a time, made by the caller; `tailrace.producer` makes them of single records.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from uuid import uuid4

from tailrace.errors import ProblemError, TailraceError
from tailrace.produced import Produced
from tailrace.protocol.records_binary import Header
from tailrace.protocol.requests import Numbered
from tailrace.sansio.retries import PATIENCE_S, Retries, first_sequence
from tailrace.sync import Client


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A request that may be stored, in all of its partitions or in some.

    `stored`: how many of its records these have, which is all that they should.
    """

    sequence: int
    stored: dict[int, int] = field(default_factory=dict)


class RequestProducer:
    """Numbers the requests that it sends by a client, under an id that nobody else has.

    Raises what the client does: at once what a retry does not repair, and when no broker is there
    from the start; else after `patience_s`. Events without a key go to one partition, in order.
    `unsettled` is then the request, when it may be stored. Its records are stored once by the same
    call of another producer with the same `id`, whose `sequence` is the request's and which
    `is_retry`, within the ten minutes for which brokers remember requests.
    """

    def __init__(
        self,
        client: Client,
        *,
        id: str | None = None,
        patience_s: float = PATIENCE_S,
        sequence: int | None = None,
        is_retry: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`id` None: a random one. `sequence`: of the first request, by default a new one."""
        self.id = id or uuid4().hex
        if sequence is None:
            sequence = first_sequence(id, time.time_ns() // 1000)
        self.unsettled = Unsettled(sequence) if is_retry else None
        self.next_sequence = sequence
        self.created_topics: set[str] = set()  # by these requests, also by one that failed
        self._client = client
        self._patience_s = patience_s
        self._sleep = sleep
        self._has_stored = False

    def produce_lines(
        self, topic: str, ndjson: bytes, *, key: bytes | str | None = None
    ) -> Produced:
        """`Client.produce_lines`, stored once."""
        [produced] = self._send(
            topic,
            lambda numbered: [self._client.produce_lines(topic, ndjson, key=key, **numbered)],
        )
        return produced

    def produce_records(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps_us: Sequence[int] | None = None,
        headers: Sequence[Sequence[Header]] | None = None,
    ) -> list[Produced]:
        """`Client.produce_records`, stored once."""
        return self._send(
            topic,
            lambda numbered: self._client.produce_records(
                topic, keys, values, timestamps_us, headers, **numbered
            ),
        )

    def _send(self, topic: str, send: Callable[[Numbered], list[Produced]]) -> list[Produced]:
        """Until its outcome is known."""
        was_created = topic in self.created_topics
        sequence, self.next_sequence = self.next_sequence, self.next_sequence + 1
        numbered = Numbered(producer_id=self.id, sequence=sequence)
        deadline_s = time.monotonic() + self._patience_s
        retries = Retries(deadline_s, is_numbered=True, is_patient=self._has_stored)
        retries.may_be_stored = self.unsettled is not None and self.unsettled.sequence == sequence
        request = self.unsettled = Unsettled(sequence)
        while True:
            try:
                produced = send(numbered)
            except TailraceError as error:
                if error.topic_created:
                    self.created_topics.add(topic)
                request.stored.update(_stored_whole(error.parts))
                pause_s = retries.pause_s(error, time.monotonic())
                if pause_s is None:
                    if not error.write_attempted:  # it left nothing: the next may have its number
                        self.unsettled, self.next_sequence = None, sequence
                    raise
            else:
                self._has_stored = True
                self.unsettled = None
                break
            self._sleep(pause_s)
        if any(part.topic_created for part in produced):
            self.created_topics.add(topic)
        has_created = topic in self.created_topics and not was_created
        return [replace(part, topic_created=has_created) for part in produced]


def _stored_whole(parts: Sequence[Produced | ProblemError]) -> dict[int, int]:
    """Records by partition, of those of which no part has failed."""
    failed = {part.members.get("partition") for part in parts if isinstance(part, ProblemError)}
    counts = Counter[int]()
    for part in parts:
        if isinstance(part, Produced) and part.partition not in failed:
            counts[part.partition] += part.count
    return counts
