"""`tailrace.producer` for asyncio: the same options, promises and order; `send` awaits room.

    async with Client(url) as client, Producer(client, linger_ms=20) as producer:
        sent = await producer.send("orders", b'{"item":3}', key="customer-7")
        stored = await sent

The rules are in `tailrace.sansio.sending` and `tailrace.sansio.batching`; here are tasks that send.
"""

import asyncio
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self, Unpack

from tailrace.aio import Client
from tailrace.errors import BufferFullError, NotStoredError, ProblemError, TailraceError
from tailrace.produced import Produced
from tailrace.sansio.batching import Batch, Outgoing
from tailrace.sansio.sending import Headers, Outcome, ProducerOptions, Sending, Settled, Stored

Sent = asyncio.Future[Stored]
# So often a task that sends without waiting lets others run.
SENDS_A_TURN = 64

OnOutcome = Callable[[Outgoing[Sent], Outcome], object]


class Producer:
    """Stores records in the background, each once, those of one key in the order of their sends.

    Used by `async with`. A record's outcome is in the future that `send` gives (who cancels it
    only stops waiting for it); `flush`, `close` and the end of the block raise NotStoredError for
    what was not stored. Memory is bounded: when it is full, `send` waits. Records without a key go
    to one partition, in order (idempotent=False: to any). Records that a program leaves behind
    without the end of the block are lost, and a ResourceWarning says so.
    """

    def __init__(
        self,
        client: Client,
        *,
        on_outcome: OnOutcome | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        """Sends by `client`, which stays the caller's. ValueError: a bad option.

        `on_outcome` is called with each record and its outcome; it must not block.
        """
        self._client = client
        self._on_outcome = on_outcome
        self._sending = Sending[Sent](client.url, now_us=time.time_ns() // 1000, **options)
        self._clients: dict[str, Client] = {client.url: client}
        self._has_work = asyncio.Event()  # a request may be due earlier than known
        self._has_outcomes = asyncio.Event()  # there is room, or a flush may be done
        self._tasks: asyncio.TaskGroup | None = None
        self._send_count = 0
        self._sender_count = self._idle_count = 0
        self._is_closed = False

    @property
    def id(self) -> str:
        """What brokers know it by."""
        return self._sending.id

    async def __aenter__(self) -> Self:
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """As `close`; an error of the block itself comes first. When cancelled, nothing waits."""
        assert self._tasks is not None, "only what was entered is left"
        failure: NotStoredError | None = None
        ended_by = None if isinstance(error, Exception) else error
        if ended_by is None:
            try:
                await self.close()
            except NotStoredError as caught:
                failure = caught
            except asyncio.CancelledError as caught:
                ended_by = caught
        self._is_closed = True
        self._has_work.set()
        try:
            await self._tasks.__aexit__(
                None if ended_by is None else type(ended_by), ended_by, None
            )
        finally:
            self._abandon()
            for client in self._clients.values():
                if client is not self._client:
                    await client.close()
        if failure is not None and error is None:
            raise failure

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        sending: Sending[Sent] | None = getattr(self, "_sending", None)  # None: a bad option
        count = 0 if sending is None else sending.batching.record_count
        if count:
            were = "1 record was" if count == 1 else f"{count:,} records were"
            warn(
                f'{were} sent by a producer that was never closed, and may be lost: use "async '
                'with", or await close()',
                ResourceWarning,
                source=self,
            )

    async def send(
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
        sent: Sent = asyncio.get_running_loop().create_future()
        record = self._sending.outgoing(
            topic, value, key=key, timestamp_us=timestamp_us, headers=headers, ticket=sent
        )
        self._check_open()
        if not self._sending.batching.has_room(record.size_bytes):
            await self._room_for(record.size_bytes)
        if self._sending.add(record, time.monotonic()):
            self._wake_sender()
        self._send_count += 1
        if self._send_count % SENDS_A_TURN == 0:
            await asyncio.sleep(0)
        return sent

    async def flush(self) -> None:
        """Wait until all that was sent before has its outcome; nothing of it lingers.

        NotStoredError: what was not stored since the last flush.
        """
        number = self._sending.batching.hurry()
        self._has_work.set()
        while not self._sending.batching.is_done_to(number):
            self._has_outcomes.clear()
            await self._has_outcomes.wait()
        failure = self._sending.take_failure()
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """`flush`, and take no more. Safe to repeat."""
        self._is_closed = True
        await self.flush()

    def _check_open(self) -> None:
        if self._tasks is None:
            raise RuntimeError('the producer is not started: use "async with"')
        if self._is_closed:
            raise RuntimeError("the producer takes no more records: it is closed")

    async def _room_for(self, size_bytes: int) -> None:
        settings = self._sending.settings
        try:
            async with asyncio.timeout(settings.block_s):
                while not self._sending.batching.has_room(size_bytes):
                    self._has_outcomes.clear()
                    await self._has_outcomes.wait()
        except TimeoutError:
            raise BufferFullError(settings.buffer_bytes, settings.block_s) from None
        self._check_open()

    def _wake_sender(self) -> None:
        """One that takes what is due: an idle one, else one more while there is use for it."""
        lane_count = self._sending.batching.lane_count
        wanted_count = min(self._sending.settings.connections_max, lane_count)
        if self._idle_count:
            self._has_work.set()
        elif self._sender_count < wanted_count:
            assert self._tasks is not None, "records are only taken once it is started"
            self._sender_count += 1
            self._tasks.create_task(self._run())

    async def _run(self) -> None:
        while (batch := await self._next_batch()) is not None:
            await self._process(batch)

    async def _next_batch(self) -> Batch[Sent] | None:
        """When it is due; None at the end."""
        while True:
            now_s = time.monotonic()
            batch = self._sending.take(now_s)
            due_s = self._sending.batching.due_s()
            if batch is not None:
                if due_s is not None:
                    self._wake_sender()  # for what this one will not see
                return batch
            if self._is_closed and self._sending.batching.is_empty:
                return None
            self._idle_count += 1
            self._has_work.clear()
            try:
                async with asyncio.timeout(None if due_s is None else max(due_s - now_s, 0)):
                    await self._has_work.wait()
            except TimeoutError:
                pass
            finally:
                self._idle_count -= 1

    async def _process(self, batch: Batch[Sent]) -> None:
        """Send it once, and settle its records if that shows their outcome."""
        has_learned = await self._learn_if_wanted(batch, ())
        if not self._sending.aim(batch, has_learned=has_learned):
            return
        client = self._client_of(batch.url)
        error: TailraceError | None = None
        parts: Sequence[Produced | ProblemError] = ()
        try:
            parts = stored = await client.produce_encoded(
                batch.topic, batch.body(), **self._sending.numbered(batch)
            )
        except TailraceError as caught:
            error, parts = caught, getattr(caught, "parts", ())
        if parts:
            await self._learn_if_wanted(batch, parts)
        if error is None:
            settled: Settled[Sent] | None = self._sending.stored(batch, stored)
        else:
            settled = self._sending.failed(batch, error, time.monotonic())
        if settled is not None:
            self._settle(settled)
            self._sending.batching.finish(batch)
            self._has_outcomes.set()

    async def _learn_if_wanted(
        self, batch: Batch[Sent], parts: Sequence[Produced | ProblemError]
    ) -> bool:
        """Whether brokers were asked, and answered."""
        if not self._sending.wants_routing(batch, parts, time.monotonic()):
            return False
        client = self._client_of(self._sending.url)
        try:
            ring, details = await client.brokers(), await client.topic(batch.topic)
        except TailraceError:
            return False  # what is known will do: a broker that does not lead says who does
        self._sending.learn(ring, details, time.monotonic())
        return True

    def _client_of(self, url: str) -> Client:
        if url not in self._clients:
            self._clients[url] = self._client.twin(url)
        return self._clients[url]

    def _abandon(self) -> None:
        """Of what is left, after a cancellation, it is not known whether it was stored."""
        self._settle(self._sending.abandon("the producer ended without waiting for an answer"))
        self._has_outcomes.set()

    def _settle(self, settled: Settled[Sent]) -> None:
        for record, outcome in settled:
            if not record.ticket.done():  # cancelled by who waited for it
                if isinstance(outcome, Stored):
                    record.ticket.set_result(outcome)
                else:
                    record.ticket.set_exception(outcome)
                    record.ticket.exception()  # `flush` raises it in any case
            if self._on_outcome is not None:
                asyncio.get_running_loop().call_soon(partial(self._on_outcome, record, outcome))
