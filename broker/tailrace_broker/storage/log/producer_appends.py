"""Appends of one partition that name their producer: each is stored once, its retries answered.

State changes on the event loop only.
"""

from collections.abc import Callable, Sequence
from functools import partial

from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.core.log.producers import Duplicate, Producer, ProducerWindows, Verdict
from tailrace_broker.model.appended import Appended
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.errors import TailraceError


class ProducerAppends:
    """Tells new requests from retries; a retry of what is under way waits for its outcome."""

    __slots__ = ("_counters", "_now_us", "_waiting", "windows")

    def __init__(
        self, windows: ProducerWindows, counters: Counters, now_us: Callable[[], int]
    ) -> None:
        """`windows`: as recovered with the log."""
        self.windows = windows
        self._counters = counters
        self._now_us = now_us
        self._waiting: dict[Producer, list[Appended]] = {}

    def admit(self, producer: Producer, record_count: int, done: Appended) -> Appended | None:
        """What to call in place of `done` when the request is appended; None: append nothing.

        It is then answered, or will be with the original.
        """
        try:
            verdict = self.windows.begin(producer, record_count, self._now_us())
        except TailraceError as error:
            done(-1, error)
            return None
        if verdict is Verdict.NEW:
            self._waiting[producer] = []
            return partial(self._on_appended, producer, done)
        if isinstance(verdict, Duplicate):
            self._counters.produce_duplicates += 1
            done(verdict.offset, None, is_duplicate=True)
        else:
            self._waiting[producer].append(done)
        return None

    def on_stored(self, batches: Sequence[StoredBatch]) -> None:
        """Remember what these batches brought, before their requests are told."""
        for batch in batches:
            if batch.header.producer_table_bytes:
                _, table, *_ = batch.buffers
                self.windows.replay(batch.header, table)

    def _on_appended(
        self,
        producer: Producer,
        done: Appended,
        offset: int,
        error: TailraceError | None,
        /,
        *,
        is_duplicate: bool = False,
    ) -> None:
        """Tell the request and its retries; after an error the next one is new."""
        assert not is_duplicate
        self.windows.end(producer)
        done(offset, error)
        for retry in self._waiting.pop(producer):
            self._counters.produce_duplicates += error is None
            retry(offset, error, is_duplicate=error is None)
