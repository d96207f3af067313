"""Sends requests again until it is known that they are stored, and has them stored once."""

import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeVar
from uuid import uuid4

from tailrace.errors import TailraceError
from tailrace.requests import Numbered
from tailrace.sync import Client
from tailrace.values import Produced

# Longer than a broker takes to start again.
PATIENCE_S = 30.0
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.05, 1.0

T = TypeVar("T")


class Producer:
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
        self._sequences = count()
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
        pause_s = _PAUSE_S_MIN
        may_be_stored = False
        while True:
            try:
                answer = send(numbered)
            except TailraceError as error:
                may_be_stored = error.write_attempted = error.write_attempted or may_be_stored
                is_worth_it = error.retriable and (may_be_stored or self._has_stored)
                if not is_worth_it or time.monotonic() + pause_s > deadline_s:
                    raise
            else:
                self._has_stored = True
                return answer
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
