"""`tailrace.consumer` for asyncio: the same names, awaited; rules: `tailrace.sansio.consuming`.

async with Client(url) as client, Consumer(client, "billing", "orders") as consumer:
    async for record in consumer:
        print(record.key, record.value)
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from tailrace.aio import Client
from tailrace.calls import consuming
from tailrace.consumer import new_consumer_id
from tailrace.extras import require_arrow
from tailrace.protocol.records_ndjson import Record
from tailrace.sansio.consuming import Assignment, ConsumerOptions, Consuming, Items

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Consumer", "OnAssignment", "Record"]

OnAssignment = Callable[[Assignment], Awaitable[None] | None]


class Consumer:
    """Shares the partitions of `topics` with the other consumers of `group`; at least once.

    A delivery is confirmed when all its records were handed out and more are asked for, or by
    `commit`. At the end of an `async with` block one that was handed out completely is confirmed
    too, unless the block raises: what is not confirmed comes again, to this consumer or to another.
    `on_assignment` is called with this consumer's partitions before it gets records of them.
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
            await consuming.leave(self)

    @property
    def consumer_id(self) -> str:
        """Its name in the group."""
        return self._state.consumer_id

    close = consuming.close
    poll = consuming.poll
    commit = consuming.commit

    def __aiter__(self) -> AsyncIterator[Record]:
        """Records as they come, without end; a loop that is left can be taken up again."""
        return self._items("records")

    def batches(self, *, include_headers: bool = False) -> AsyncIterator["pa.RecordBatch"]:
        """Arrow record batches as they come, without end (columns: `tailrace.arrow.batches`).

        Each is one batch as it is stored, and values are exactly as produced. MissingPackageError
        without the extra `arrow`.
        """
        require_arrow("Consumer.batches()")
        return self._items("batches", include_headers=include_headers)

    async def _items(self, wanted: Items, *, include_headers: bool = False) -> AsyncIterator[Any]:
        while True:
            if (item := consuming.in_hand(self)) is None:
                item = await consuming.next_item(self, wanted, include_headers=include_headers)
            yield item

    async def _sleep(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
