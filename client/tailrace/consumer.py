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
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack
from uuid import uuid4

from tailrace.errors import ConsumerNotRegisteredError, StaleDeliveryError, TailraceError
from tailrace.extras import require_arrow
from tailrace.protocol.records_ndjson import Record
from tailrace.sansio.consuming import Assignment, ConsumerOptions, Consuming, Items, Step
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
    `on_assignment` is told which partitions are this consumer's before it gets records of them.
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
            self._say_goodbye()

    @property
    def consumer_id(self) -> str:
        """Its name in the group."""
        return self._state.consumer_id

    def close(self) -> None:
        """Confirm what was handed out completely, and leave the group.

        A later poll joins it again.
        """
        try:
            # What can no more be confirmed comes again, as it may at any time.
            with suppress(ConsumerNotRegisteredError, StaleDeliveryError):
                self.commit()
        finally:
            self._say_goodbye()

    def __iter__(self) -> Iterator[Record]:
        """Records as they come, without end; a loop that is left can be taken up again."""
        while True:
            while (record := self._take()) is not None:
                yield record
            self._ask("records")
            self._rest()

    def batches(self, *, include_headers: bool = False) -> Iterator["pa.RecordBatch"]:
        """Arrow record batches as they come, without end (columns: `tailrace.arrow.batches`).

        Each is one batch as it is stored, and values are exactly as produced. MissingPackageError
        without the extra `arrow`.
        """
        require_arrow("Consumer.batches()")
        return self._batches(include_headers=include_headers)

    def poll(self) -> list[Record]:
        """The next delivery, or the rest of one; empty when nothing came within `wait_ms`.

        Confirms the delivery before.
        """
        self._ask("records")
        return self._state.take_records()

    def commit(self) -> bool:
        """Confirm what was handed out; it is on disk at return, and does not come again.

        False: the last delivery has more records, and is confirmed as a whole after them. Raises
        ConsumerNotRegisteredError and StaleDeliveryError when it was too late: the records come
        again.
        """
        while (named := self._state.commit_parameters()) is not None:
            self._state.asked(time.monotonic())
            try:
                self._client.commit(self.consumer_id, **named)
            except TailraceError as error:
                time.sleep(self._state.commit_failed(error, time.monotonic()))
            else:
                self._state.committed()
        return not self._state.has_items()

    def _batches(self, *, include_headers: bool) -> Iterator["pa.RecordBatch"]:
        while True:
            while (batch := self._take()) is not None:
                yield batch
            self._ask("batches", include_headers=include_headers)
            self._rest()

    def _take(self) -> Any | None:
        """The next one in hand. A caller that takes its time with them must not be removed."""
        now_s = time.monotonic()
        if self._state.is_sign_due(now_s):
            self._state.asked(now_s)
            try:
                self._register()
            except TailraceError as error:
                self._state.sign_failed(error)
        return self._state.take()

    def _ask(self, wanted: Items, *, include_headers: bool = False) -> None:
        """Until there is an answer; nothing is asked while there are records to hand out."""
        self._state.ask(wanted, include_headers=include_headers)
        while (step := self._state.next_step()) is not None:
            self._state.asked(time.monotonic())
            try:
                assignment = self._carry_out(step)
            except TailraceError as error:
                time.sleep(self._state.failed(error, time.monotonic()))
            else:
                if assignment is not None and self._on_assignment is not None:
                    self._on_assignment(assignment)

    def _carry_out(self, step: Step) -> Assignment | None:
        """What `on_assignment` is to be told."""
        state, client = self._state, self._client
        match step:
            case Step.REGISTER:
                self._register()
            case Step.LIST_TOPICS:
                state.listed(client.topics())
            case Step.DESCRIBE:
                return state.described(client.group(state.group))
            case Step.POLL:
                state.polled(client.poll(self.consumer_id, **state.poll_parameters()))
        return None

    def _register(self) -> None:
        wanted = self._state.register_parameters()
        self._state.registered(self._client.register(**wanted))

    def _rest(self) -> None:
        """Before the next poll, when nothing came."""
        idle_s = self._state.idle_s(time.monotonic())
        if idle_s and not self._state.has_items():
            time.sleep(idle_s)

    def _say_goodbye(self) -> None:
        """What is not confirmed goes to others at once; at the session's end without an answer."""
        if (named := self._state.goodbye_parameters()) is not None:
            with suppress(TailraceError):
                self._client.goodbye(self.consumer_id, **named, commit=False)
        self._state.drop()
        self._state.forget()


def new_consumer_id() -> str:
    """A name that nobody else has, and that tells people where the consumer runs."""
    host_name = socket.gethostname()[:_HOST_NAME_CHARACTERS_MAX]
    return f"{host_name}-{os.getpid()}-{uuid4().hex[:8]}"
