"""`tailrace.reading` for asyncio: the same names, awaited; a thread reads and decodes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from tailrace.protocol.records_ndjson import Record
from tailrace.reading import Reading as SyncReading
from tailrace.reading import ReadingParameters
from tailrace.sync import Client

if TYPE_CHECKING:
    import pyarrow as pa

# Records that a thread hands over at once.
_CHUNK_RECORDS = 1_000

T = TypeVar("T")


class Reading:
    """Records of a topic; each use reads them again, by a connection of its own."""

    def __init__(
        self, connect: Callable[[], Client], topic: str, **parameters: Unpack[ReadingParameters]
    ) -> None:
        """Nothing is asked yet. ValueError: parameters that exclude each other."""
        SyncReading(connect(), topic, **parameters)  # which are checked by it
        self._connect = connect
        self._topic = topic
        self._parameters = parameters

    async def __aiter__(self) -> AsyncIterator[Record]:
        """One by one; needs no extra."""
        async for record in self._handed_over(iter):
            yield record

    async def batches(self) -> AsyncIterator["pa.RecordBatch"]:
        """Arrow record batches, as stored (columns: `tailrace.arrow.batches`); extra `arrow`."""
        async for batch in self._handed_over(SyncReading.batches, at_once=1):
            yield batch

    async def to_arrow(self) -> "pa.Table":
        """A table of all records (columns: `tailrace.arrow.batches`); extra `arrow`."""
        return await self._in_thread(SyncReading.to_arrow)

    async def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with the columns of `to_arrow`; values are bytes."""
        return await self._in_thread(SyncReading.to_pandas)

    async def to_polars(self) -> Any:
        """A `polars.DataFrame` with the columns of `to_arrow`; values are bytes."""
        return await self._in_thread(SyncReading.to_polars)

    async def _in_thread(self, use: Callable[[SyncReading], T]) -> T:
        def read() -> T:
            with self._connect() as client:
                return use(SyncReading(client, self._topic, **self._parameters))

        return await asyncio.to_thread(read)

    async def _handed_over(
        self, use: Callable[[SyncReading], Iterator[T]], *, at_once: int = _CHUNK_RECORDS
    ) -> AsyncIterator[T]:
        """Some at a time: a thread reads on when they are taken."""
        with self._connect() as client:
            items = use(SyncReading(client, self._topic, **self._parameters))
            while chunk := await asyncio.to_thread(lambda: list(islice(items, at_once))):
                for item in chunk:
                    yield item
