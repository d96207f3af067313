"""A producer that gathers records into requests, and sends these in threads of its own.

How records of one key keep their order: `tailrace.sansio.batching`; what is tried again:
`tailrace.sansio.retries`. `tailrace.aio_producer` is the same for asyncio,
`tailrace.request_producer` sends requests that the caller makes.
"""

import atexit
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from threading import Condition, Lock, Thread
from types import TracebackType
from typing import Self, Unpack

from tailrace.errors import BufferFullError, NotStoredError, ProblemError, TailraceError
from tailrace.produced import Produced
from tailrace.sansio.batching import Batch, Outgoing
from tailrace.sansio.sending import Headers, Outcome, ProducerOptions, Sending, Settled, Stored
from tailrace.sync import Client

Sent = Future[Stored]
OnOutcome = Callable[[Outgoing[Sent], Outcome], object]


class Producer:
    """Stores records in the background, each once, those of one key in the order of their sends.

    Threads may share one. `send` returns at once; the outcome is in its future, and `flush` and
    `close` raise NotStoredError for what was not stored. Memory is bounded: when it is full, `send`
    waits. Records without a key go to one partition, in order (idempotent=False: to any). A program
    that ends without `close` waits `patience_s` at most for what it has sent: better use `with`.
    """

    def __init__(
        self,
        client: Client,
        *,
        on_outcome: OnOutcome | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        """Makes connections of its own to where `client` does. ValueError: a bad option.

        `on_outcome` is called with each record and its outcome, by a thread that sends: it must
        not wait for this producer. What it raises is logged.
        """
        self._client = client
        self._on_outcome = on_outcome
        self._sending = Sending[Sent](client.url, now_us=time.time_ns() // 1000, **options)
        self._lock = Lock()
        self._has_work = Condition(self._lock)  # a request may be due earlier than known
        self._has_outcomes = Condition(self._lock)  # there is room, or a flush may be done
        self._threads: list[Thread] = []
        self._idle_count = 0
        self._end_reason: str | None = None  # nothing is taken any more
        self._is_abandoned = False  # nor sent

    @property
    def id(self) -> str:
        """What brokers know it by."""
        return self._sending.id

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """As `close`; an error of the block itself comes first."""
        try:
            self.close()
        except NotStoredError:
            if error is None:
                raise

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | str | None = None,
        timestamp_us: int | None = None,
        headers: Headers = (),
    ) -> Sent:
        """The future of one record: where it is stored, or the error why it is not.

        BufferFullError: there was no room for it in `block_s`. Without `timestamp_us` it gets the
        broker's time. None is a null value.
        """
        sent = Sent()
        record = self._sending.outgoing(
            topic, value, key=key, timestamp_us=timestamp_us, headers=headers, ticket=sent
        )
        sent.set_running_or_notify_cancel()  # it is on its way and cannot be called back
        if self._on_outcome is not None:
            sent.add_done_callback(partial(_report, self._on_outcome, record))
        with self._lock:
            self._wait_for_room(record.size_bytes)
            if self._sending.add(record, time.monotonic()):
                self._wake_thread()
        return sent

    def flush(self) -> None:
        """Wait until all that was sent before has its outcome; nothing of it lingers.

        NotStoredError: what was not stored since the last flush.
        """
        with self._lock:
            self._flush()
            failure = self._sending.take_failure()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """`flush`, and take no more. Safe to repeat."""
        atexit.unregister(self._close_at_exit)
        try:
            with self._lock:
                self._end_reason = self._end_reason or "it is closed"
                self._flush()
        except BaseException:  # Ctrl-C, most likely
            self._abandon("it was closed in a hurry")
            raise
        with self._lock:
            self._has_work.notify_all()
            failure = self._sending.take_failure()
        for thread in self._threads:
            thread.join()
        if failure is not None:
            raise failure

    def _close_at_exit(self, process_id: int) -> None:
        """For a program that did not; Python prints the NotStoredError."""
        if os.getpid() != process_id:  # a fork, which has these records but not the threads
            return
        # The last attempt begins before the retries end, and takes up to the client's timeout.
        limit_s = self._sending.settings.patience_s + self._client.timeout_s
        with self._lock:
            self._end_reason = self._end_reason or "the program ends"
            is_done = self._flush(limit_s)
        if not is_done:
            self._abandon(f"the program ended without close(), and {limit_s:g} s later")
        with self._lock:
            failure = self._sending.take_failure()
        if failure is not None:
            raise failure

    # --- with the lock held -----------------------------------------------------------------------

    def _wait_for_room(self, size_bytes: int) -> None:
        settings = self._sending.settings
        deadline_s = time.monotonic() + settings.block_s
        while True:
            if self._end_reason is not None:
                raise RuntimeError(f"the producer takes no more records: {self._end_reason}")
            if self._sending.batching.has_room(size_bytes):
                return
            if not self._has_outcomes.wait(max(deadline_s - time.monotonic(), 0)):
                raise BufferFullError(settings.buffer_bytes, settings.block_s)

    def _wake_thread(self) -> None:
        """One that takes what is due: an idle one, else one more while there is use for it."""
        wanted_count = min(
            self._sending.settings.connections_max, self._sending.batching.lane_count
        )
        if self._idle_count:
            self._has_work.notify()
        elif len(self._threads) < wanted_count:
            # As a daemon: a program that forgot `close` comes to its end all the same.
            thread = Thread(target=self._run, name="tailrace-producer", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # Python 3.12 and later start none when the program ends
                if not self._threads:
                    raise
                return  # those that run do its work
            if not self._threads:
                atexit.register(self._close_at_exit, os.getpid())
            self._threads.append(thread)

    def _flush(self, patience_s: float | None = None) -> bool:
        """Whether all has its outcome; None: wait as long as that takes."""
        number = self._sending.batching.hurry()
        self._has_work.notify_all()
        return self._has_outcomes.wait_for(
            lambda: self._sending.batching.is_done_to(number), patience_s
        )

    # --- in the threads ---------------------------------------------------------------------------

    def _run(self) -> None:
        clients: dict[str, Client] = {}
        try:
            while (batch := self._next_batch()) is not None:
                self._process(batch, clients)
        except BaseException as error:
            self._abandon(f"it failed: {error!r}")
            raise
        finally:
            for client in clients.values():
                client.close()

    def _next_batch(self) -> Batch[Sent] | None:
        """When it is due; None at the end."""
        with self._lock:
            while not self._is_abandoned:
                now_s = time.monotonic()
                batch = self._sending.take(now_s)
                due_s = self._sending.batching.due_s()
                if batch is not None:
                    if due_s is not None:
                        self._wake_thread()  # for what this one will not see
                    return batch
                if self._end_reason is not None and self._sending.batching.is_empty:
                    self._has_work.notify_all()
                    return None
                self._idle_count += 1
                self._has_work.wait(None if due_s is None else max(due_s - now_s, 0))
                self._idle_count -= 1
        return None

    def _process(self, batch: Batch[Sent], clients: dict[str, Client]) -> None:
        """Send it once, and settle its records if that shows their outcome."""
        has_learned = self._learn_if_wanted(batch, (), clients)
        if not self._aim(batch, has_learned=has_learned):
            return
        client = self._client_of(batch.url, clients)
        error: TailraceError | None = None
        parts: Sequence[Produced | ProblemError] = ()
        try:
            parts = stored = client.produce_encoded(
                batch.topic, batch.body(), **self._sending.numbered(batch)
            )
        except TailraceError as caught:
            error, parts = caught, getattr(caught, "parts", ())
        if parts:
            self._learn_if_wanted(batch, parts, clients)
        with self._lock:
            if self._is_abandoned:
                return
            if error is None:
                settled: Settled[Sent] | None = self._sending.stored(batch, stored)
            else:
                settled = self._sending.failed(batch, error, time.monotonic())
        if settled is None:
            return
        _settle(settled)
        with self._lock:
            if not self._is_abandoned:
                self._sending.batching.finish(batch)
            self._has_outcomes.notify_all()

    def _aim(self, batch: Batch[Sent], *, has_learned: bool) -> bool:
        with self._lock:
            return not self._is_abandoned and self._sending.aim(batch, has_learned=has_learned)

    def _learn_if_wanted(
        self,
        batch: Batch[Sent],
        parts: Sequence[Produced | ProblemError],
        clients: dict[str, Client],
    ) -> bool:
        """Whether brokers were asked, and answered."""
        with self._lock:
            if not self._sending.wants_routing(batch, parts, time.monotonic()):
                return False
        client = self._client_of(self._sending.url, clients)
        try:
            ring, details = client.brokers(), client.topic(batch.topic)
        except TailraceError:
            return False  # what is known will do: a broker that does not lead says who does
        with self._lock:
            self._sending.learn(ring, details, time.monotonic())
        return True

    def _client_of(self, url: str, clients: dict[str, Client]) -> Client:
        """One a thread and broker: a client is used by one thread at a time."""
        if url not in clients:
            clients[url] = self._client.twin(url)
        return clients[url]

    def _abandon(self, reason: str) -> None:
        """End with what is under way; whatever is left was not stored, or perhaps was."""
        with self._lock:
            self._end_reason = reason
            self._is_abandoned = True
            settled = self._sending.abandon(f"the producer did not wait for an answer: {reason}")
        _settle(settled)
        with self._lock:
            self._has_work.notify_all()
            self._has_outcomes.notify_all()


def _settle(settled: Settled[Sent]) -> None:
    """Outside of the lock, since futures call their callbacks."""
    for record, outcome in settled:
        with suppress(InvalidStateError):  # abandoned meanwhile
            if isinstance(outcome, Stored):
                record.ticket.set_result(outcome)
            else:
                record.ticket.set_exception(outcome)


def _report(on_outcome: OnOutcome, record: Outgoing[Sent], sent: Sent) -> None:
    error = sent.exception()
    assert error is None or isinstance(error, TailraceError)
    on_outcome(record, error or sent.result())
