"""Sends requests again until it is known that they are stored, and has them stored once.

One request at a time, made by the caller; `tailrace.producer` makes them of single records.
"""

import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeVar
from uuid import uuid4

from tailrace.errors import TailraceError
from tailrace.requests import Numbered
from tailrace.retries import PATIENCE_S, Retries, first_sequence
from tailrace.sync import Client
from tailrace.values import Produced

T = TypeVar("T")


class RequestProducer:
    """Numbers the requests that it sends by a client, under an id that nobody else has.

    Raises what the client does: at once what a retry does not mend, and when no broker is there
    from the start; else after `patience_s`. Events without a key go to one partition, in order.
    """

    def __init__(
        self, client: Client, *, id: str | None = None, patience_s: float = PATIENCE_S
    ) -> None:
        """`id` None: a random one."""
        self.id = id or uuid4().hex
        self._client = client
        self._patience_s = patience_s
        self._sequences = count(first_sequence(id, time.time_ns() // 1000))
        self._has_stored = False

    def produce_lines(
        self, topic: str, ndjson: bytes, *, key: bytes | str | None = None
    ) -> Produced:
        """`Client.produce_lines`, stored once."""
        return self._send(
            lambda numbered: self._client.produce_lines(topic, ndjson, key=key, **numbered)
        )

    def produce_records(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps_us: Sequence[int] | None = None,
    ) -> list[Produced]:
        """`Client.produce_records`, stored once."""
        return self._send(
            lambda numbered: self._client.produce_records(
                topic, keys, values, timestamps_us, **numbered
            )
        )

    def _send(self, send: Callable[[Numbered], T]) -> T:
        """Until its outcome is known."""
        numbered = Numbered(producer_id=self.id, sequence=next(self._sequences))
        deadline_s = time.monotonic() + self._patience_s
        retries = Retries(deadline_s, is_numbered=True, is_patient=self._has_stored)
        while True:
            try:
                answer = send(numbered)
            except TailraceError as error:
                pause_s = retries.pause_s(error, time.monotonic())
                if pause_s is None:
                    raise
            else:
                self._has_stored = True
                return answer
            time.sleep(pause_s)
