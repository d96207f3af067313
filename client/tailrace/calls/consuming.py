"""What a consumer does with its client: the steps of `tailrace.sansio.consuming`, run."""

import inspect
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol

from tailrace.calls import groups, topics
from tailrace.calls.exchange import Caller
from tailrace.errors import ConsumerNotRegisteredError, StaleDeliveryError, TailraceError
from tailrace.protocol.records_ndjson import Record
from tailrace.sansio.consuming import Assignment, Consuming, Items, Step


class Member(Protocol):
    """A consumer, as these functions see it."""

    @property
    def _client(self) -> Caller: ...

    @property
    def _state(self) -> Consuming: ...

    @property
    def _on_assignment(self) -> Callable[[Assignment], Awaitable[None] | None] | None: ...

    async def _sleep(self, pause_s: float) -> None: ...


async def close(self: Member) -> None:
    """Confirm what was handed out completely, and leave the group.

    A later poll joins it again.
    """
    try:
        # What can no more be confirmed comes again, as it may at any time.
        with suppress(ConsumerNotRegisteredError, StaleDeliveryError):
            await commit(self)
    finally:
        await leave(self)


async def poll(self: Member) -> list[Record]:
    """The next delivery, or the rest of one; empty when nothing came within `wait_ms`.

    Confirms the delivery before.
    """
    await _ask(self, "records")
    return self._state.take_records()


async def commit(self: Member) -> bool:
    """Confirm what was handed out; it is on disk at return, and does not come again.

    False: it does not: the last delivery has more records, and is confirmed as a whole after them;
    or another broker coordinates the group since, and the records come again. Raises
    ConsumerNotRegisteredError and StaleDeliveryError when it was too late: the records come
    again.
    """
    while (named := self._state.commit_parameters()) is not None:
        self._state.asked(time.monotonic())
        try:
            await groups.commit(self._client, self._state.consumer_id, **named)
        except TailraceError as error:
            await self._sleep(self._state.commit_failed(error, time.monotonic()))
        else:
            self._state.committed()
    comes_again = self._state.take_comes_again()
    return not (comes_again or self._state.has_items())


async def next_item(self: Member, wanted: Items, *, include_headers: bool) -> Any:
    """Return the next record, or batch, once there is one."""
    while (item := await _take(self)) is None:
        await _ask(self, wanted, include_headers=include_headers)
        idle_s = self._state.idle_s(time.monotonic())
        if idle_s and not self._state.has_items():
            await self._sleep(idle_s)
    return item


def in_hand(self: Member) -> Any | None:
    """Return the next item, if there is one and no request has to come before it."""
    return None if self._state.is_sign_due(time.monotonic()) else self._state.take()


async def leave(self: Member) -> None:
    """Leave the group, so that others get what is not confirmed at once.

    Without an answer they get it at the end of the session.
    """
    if (named := self._state.goodbye_parameters()) is not None:
        with suppress(TailraceError):
            await groups.goodbye(self._client, self._state.consumer_id, **named, commit=False)
    self._state.drop()
    self._state.forget()


async def _take(self: Member) -> Any | None:
    """Return the next one in hand; a heartbeat keeps a caller that is slow with them registered."""
    now_s = time.monotonic()
    if self._state.is_sign_due(now_s):
        self._state.asked(now_s)
        try:
            await _register(self)
        except TailraceError as error:
            self._state.sign_failed(error)
    return self._state.take()


async def _ask(self: Member, wanted: Items, *, include_headers: bool = False) -> None:
    """Return once there is an answer; asks nothing while there are items to hand out."""
    self._state.ask(wanted, include_headers=include_headers)
    while (step := self._state.next_step()) is not None:
        self._state.asked(time.monotonic())
        try:
            assignment = await _execute(self, step)
        except TailraceError as error:
            await self._sleep(self._state.failed(error, time.monotonic()))
        else:
            if assignment is not None and self._on_assignment is not None:
                returned = self._on_assignment(assignment)
                if inspect.isawaitable(returned):
                    await returned


async def _execute(self: Member, step: Step) -> Assignment | None:
    """Ask what the step needs; return what `on_assignment` is called with."""
    state, client = self._state, self._client
    match step:
        case Step.REGISTER:
            await _register(self)
        case Step.LIST_TOPICS:
            state.listed(await topics.topics(client))
        case Step.DESCRIBE:
            return state.described(await groups.group(client, state.group))
        case Step.POLL:
            parameters = state.poll_parameters()
            state.polled(await groups.poll(client, state.consumer_id, **parameters))
    return None


async def _register(self: Member) -> None:
    wanted = self._state.register_parameters()
    self._state.registered(await groups.register(self._client, **wanted))
