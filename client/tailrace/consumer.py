"""A consumer of a group, blocking: a thin shell around `tailrace.sansio.consuming`.

    with Client(url) as client, Consumer(client, "billing", "orders") as consumer:
        for record in consumer:
            print(record.key, record.value)

`tailrace.aio_consumer` is the same with `async`.
"""

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack
from uuid import uuid4

from tailrace.calls import consuming
from tailrace.calls.exchange import blocking
from tailrace.extras import require_arrow
from tailrace.protocol.records_ndjson import Record
from tailrace.sansio.consuming import Assignment, ConsumerOptions, Consuming, Items
from tailrace.sync import Client

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Consumer", "OnAssignment", "Record", "new_consumer_id"]

OnAssignment = Callable[[Assignment], None]

_HOST_NAME_CHARACTERS_MAX = 100  # a consumer's name has at most 249


class Consumer:
    """Shares the partitions of `topics` with the other consumers of `group`; at least once.

    A delivery is confirmed when all its records were handed out and more are asked for, or by
    `commit`. At the end of a `with` block one that was handed out completely is confirmed too,
    unless the block raises: what is not confirmed comes again, to this consumer or to another.
    `on_assignment` is called with this consumer's partitions before it gets records of them.
    One thread, and one consumer at a time, per client.
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._client.close()  # it may wait for the answer to a poll
            self._leave()

    @property
    def consumer_id(self) -> str:
        """Its name in the group."""
        return self._state.consumer_id

    close = blocking(consuming.close)
    poll = blocking(consuming.poll)
    commit = blocking(consuming.commit)
    _leave = blocking(consuming.leave)
    _next_item = blocking(consuming.next_item)

    def __iter__(self) -> Iterator[Record]:
        """Records as they come, without end; a loop that is left can be taken up again."""
        return self._items("records")

    def batches(self, *, include_headers: bool = False) -> Iterator["pa.RecordBatch"]:
        """Arrow record batches as they come, without end (columns: `tailrace.arrow.batches`).

        Each is one batch as it is stored, and values are exactly as produced. MissingPackageError
        without the extra `arrow`.
        """
        require_arrow("Consumer.batches()")
        return self._items("batches", include_headers=include_headers)

    def _items(self, wanted: Items, *, include_headers: bool = False) -> Iterator[Any]:
        while True:
            if (item := consuming.in_hand(self)) is None:
                item = self._next_item(wanted, include_headers=include_headers)
            yield item

    async def _sleep(self, pause_s: float) -> None:
        time.sleep(pause_s)  # noqa: ASYNC251  # it blocks, as all of this client


def new_consumer_id() -> str:
    """A name that nobody else has, and that shows people where the consumer runs."""
    host_name = socket.gethostname()[:_HOST_NAME_CHARACTERS_MAX]
    return f"{host_name}-{os.getpid()}-{uuid4().hex[:8]}"
