"""`tailrace.consumer` for asyncio: the same names, awaited; rules: `tailrace.sansio.consuming`.

async with Client(url) as client, Consumer(client, "billing", "orders") as consumer:
    async for record in consumer:
        print(record.key, record.value)
"""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from tailrace.aio import Client
from tailrace.consumer import new_consumer_id
from tailrace.errors import ConsumerNotRegisteredError, StaleDeliveryError, TailraceError
from tailrace.extras import require_arrow
from tailrace.protocol.records_ndjson import Record
from tailrace.sansio.consuming import Assignment, ConsumerOptions, Consuming, Items, Step

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Consumer", "OnAssignment", "Record"]

OnAssignment = Callable[[Assignment], Awaitable[None] | None]


class Consumer:
    """Shares the partitions of `topics` with the other consumers of `group`; at least once.

    A delivery is confirmed when all its records were handed out and more are asked for, or by
    `commit`. At the end of an `async with` block one that was handed out completely is confirmed
    too, unless the block raises: what is not confirmed comes again, to this consumer or to another.
    `on_assignment` is told which partitions are this consumer's before it gets records of them.
    One task at a time; a client can serve many consumers.
    """

    def __init__(
        self,
        client: Client,
        group: str,
        topics: str | Iterable[str],
        *,
        on_assignment: OnAssignment | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """Nothing is asked before the first records are. ValueError: a bad option."""
        self._client = client
        self._on_assignment = on_assignment
        self._state = Consuming(
            group,
            topics,
            new_id=new_consumer_id(),
            wants_assignment=on_assignment is not None,
            **options,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
        else:
            await self._say_goodbye()

    @property
    def consumer_id(self) -> str:
        """Its name in the group."""
        return self._state.consumer_id

    async def close(self) -> None:
        """Confirm what was handed out completely, and leave the group.

        A later poll joins it again.
        """
        try:
            # What can no more be confirmed comes again, as it may at any time.
            with suppress(ConsumerNotRegisteredError, StaleDeliveryError):
                await self.commit()
        finally:
            await self._say_goodbye()

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Records as they come, without end; a loop that is left can be taken up again."""
        while True:
            while (record := await self._take()) is not None:
                yield record
            await self._ask("records")
            await self._rest()

    def batches(self, *, include_headers: bool = False) -> AsyncIterator["pa.RecordBatch"]:
        """Arrow record batches as they come, without end (columns: `tailrace.arrow.batches`).

        Each is one batch as it is stored, and values are exactly as produced. MissingPackageError
        without the extra `arrow`.
        """
        require_arrow("Consumer.batches()")
        return self._batches(include_headers=include_headers)

    async def poll(self) -> list[Record]:
        """The next delivery, or the rest of one; empty when nothing came within `wait_ms`.

        Confirms the delivery before.
        """
        await self._ask("records")
        return self._state.take_records()

    async def commit(self) -> bool:
        """Confirm what was handed out; it is on disk at return, and does not come again.

        False: the last delivery has more records, and is confirmed as a whole after them. Raises
        ConsumerNotRegisteredError and StaleDeliveryError when it was too late: the records come
        again.
        """
        while (named := self._state.commit_parameters()) is not None:
            self._state.asked(time.monotonic())
            try:
                await self._client.commit(self.consumer_id, **named)
            except TailraceError as error:
                await asyncio.sleep(self._state.commit_failed(error, time.monotonic()))
            else:
                self._state.committed()
        return not self._state.has_items()

    async def _batches(self, *, include_headers: bool) -> AsyncIterator["pa.RecordBatch"]:
        while True:
            while (batch := await self._take()) is not None:
                yield batch
            await self._ask("batches", include_headers=include_headers)
            await self._rest()

    async def _take(self) -> Any | None:
        """The next one in hand. A caller that takes its time with them must not be removed."""
        now_s = time.monotonic()
        if self._state.is_sign_due(now_s):
            self._state.asked(now_s)
            try:
                await self._register()
            except TailraceError as error:
                self._state.sign_failed(error)
        return self._state.take()

    async def _ask(self, wanted: Items, *, include_headers: bool = False) -> None:
        """Until there is an answer; nothing is asked while there are records to hand out."""
        self._state.ask(wanted, include_headers=include_headers)
        while (step := self._state.next_step()) is not None:
            self._state.asked(time.monotonic())
            try:
                assignment = await self._carry_out(step)
            except TailraceError as error:
                await asyncio.sleep(self._state.failed(error, time.monotonic()))
            else:
                if assignment is not None and self._on_assignment is not None:
                    told = self._on_assignment(assignment)
                    if inspect.isawaitable(told):
                        await told

    async def _carry_out(self, step: Step) -> Assignment | None:
        """What `on_assignment` is to be told."""
        state, client = self._state, self._client
        match step:
            case Step.REGISTER:
                await self._register()
            case Step.LIST_TOPICS:
                state.listed(await client.topics())
            case Step.DESCRIBE:
                return state.described(await client.group(state.group))
            case Step.POLL:
                state.polled(await client.poll(self.consumer_id, **state.poll_parameters()))
        return None

    async def _register(self) -> None:
        wanted = self._state.register_parameters()
        self._state.registered(await self._client.register(**wanted))

    async def _rest(self) -> None:
        """Before the next poll, when nothing came."""
        idle_s = self._state.idle_s(time.monotonic())
        if idle_s and not self._state.has_items():
            await asyncio.sleep(idle_s)

    async def _say_goodbye(self) -> None:
        """What is not confirmed goes to others at once; at the session's end without an answer."""
        if (named := self._state.goodbye_parameters()) is not None:
            with suppress(TailraceError):
                await self._client.goodbye(self.consumer_id, **named, commit=False)
        self._state.drop()
        self._state.forget()
