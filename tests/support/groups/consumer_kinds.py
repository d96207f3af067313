"""Consumers, blocking and asyncio, behind one face: the same tests run through both."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, Self

import pyarrow as pa

from tailrace import aio, aio_consumer
from tailrace.consumer import Consumer
from tailrace.protocol.records_ndjson import Record
from tailrace.sansio.consuming import Assignment
from tailrace.sync import Client

WAIT_MS = 300


class Shell(Protocol):
    """A consumer as these tests use it."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def __iter__(self) -> Iterator[Record]: ...
    def batches(self, *, include_headers: bool = False) -> Iterator[pa.RecordBatch]: ...
    def poll(self) -> list[Record]: ...
    def commit(self) -> bool: ...
    def close(self) -> None: ...
    @property
    def consumer_id(self) -> str: ...


class Awaited:
    """An asyncio consumer, each call run to its end."""

    def __init__(self, runner: asyncio.Runner, consumer: aio_consumer.Consumer) -> None:
        self._runner = runner
        self._consumer = consumer

    def __enter__(self) -> Self:
        self._runner.run(self._consumer.__aenter__())
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._runner.run(self._consumer.__aexit__(error_type, error, traceback))

    def __iter__(self) -> Iterator[Record]:
        return self._items(aiter(self._consumer))

    def batches(self, *, include_headers: bool = False) -> Iterator[pa.RecordBatch]:
        return self._items(self._consumer.batches(include_headers=include_headers))

    def poll(self) -> list[Record]:
        return self._runner.run(self._consumer.poll())

    def commit(self) -> bool:
        return self._runner.run(self._consumer.commit())

    def close(self) -> None:
        self._runner.run(self._consumer.close())

    @property
    def consumer_id(self) -> str:
        return self._consumer.consumer_id

    def _items(self, items: Any) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(items)

        while True:
            yield self._runner.run(following())


class Consumers:
    """Makes consumers of one kind, each with a client of its own."""

    def __init__(self, url: str, runner: asyncio.Runner | None) -> None:
        self._url = url
        self._runner = runner
        self._clients: list[Client] = []
        self._aio_clients: list[aio.Client] = []

    def __call__(
        self,
        group: str,
        topics: str | Iterable[str],
        *,
        url: str | None = None,
        on_assignment: Callable[[Assignment], None] | None = None,
        **options: Any,
    ) -> Shell:
        """Polls wait for WAIT_MS unless said."""
        given = {"wait_ms": WAIT_MS, **options}
        if self._runner is None:
            client = Client(url or self._url)
            self._clients.append(client)
            return Consumer(client, group, topics, on_assignment=on_assignment, **given)
        aio_client = aio.Client(url or self._url)
        self._aio_clients.append(aio_client)
        consumer = aio_consumer.Consumer(
            aio_client, group, topics, on_assignment=on_assignment, **given
        )
        return Awaited(self._runner, consumer)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for aio_client in self._aio_clients:
            assert self._runner is not None
            self._runner.run(aio_client.close())


@contextmanager
def consumers_of(url: str, kind: str) -> Iterator[Consumers]:
    """`kind`: "sync" or "aio". All connections are closed when the block ends."""
    with asyncio.Runner() as runner:
        made = Consumers(url, runner if kind == "aio" else None)
        try:
            yield made
        finally:
            made.close()
