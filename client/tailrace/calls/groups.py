"""Calls of consumers and about groups. What they need is loaded when one is used."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, Unpack

from tailrace.calls.exchange import Caller
from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from tailrace.protocol.group_requests import Named, PollParameters
    from tailrace.protocol.group_values import (
        GroupDetails,
        GroupInfo,
        GroupReset,
        OnNewGroup,
        Polled,
        Registered,
    )


async def register(
    self: Caller,
    consumer_id: str,
    group: str,
    topics: Iterable[str],
    *,
    on_new_group: "OnNewGroup | None" = None,
    session_ms: int | None = None,
    create_topics: bool | None = None,
    assignment_epoch: int | None = None,
) -> "Registered":
    """Join a group; safe to repeat with the same values. `tailrace.consumer` does it for you.

    The broker's defaults: startFromLatest, and 120 s. TopicNotFoundError, unless
    `create_topics` has it created. With the `assignment_epoch` that it knows, a consumer shows
    that it lives, and does not join again: ConsumerNotRegisteredError, StaleAssignmentError.
    """
    from tailrace.calls.topics import brokers
    from tailrace.protocol import group_requests

    request = group_requests.register_request(
        consumer_id,
        group,
        topics,
        on_new_group=on_new_group,
        session_ms=session_ms,
        create_topics=create_topics,
        assignment_epoch=assignment_epoch,
    )
    registered = group_requests.parse_registered(await self._exchange.ask(request))
    if not self._exchange.routing.knows_ring:
        with suppress(TailraceError):  # only for when this broker is away
            self._exchange.routing.learn_ring(await brokers(self))
    return registered


async def poll(self: Caller, consumer_id: str, **parameters: "Unpack[PollParameters]") -> "Polled":
    """What the consumer may read now; ConsumerNotRegisteredError, StaleAssignmentError.

    Without `delivery` it confirms what was delivered last. With it safe to repeat: when the
    answer was lost the same records come again.
    """
    from tailrace.protocol import group_requests

    request = group_requests.poll_request(consumer_id, **parameters)
    return group_requests.parse_polled(await self._exchange.ask(request))


async def commit(self: Caller, consumer_id: str, **named: "Unpack[Named]") -> None:
    """Confirm a delivery, on disk at return; safe to repeat.

    ConsumerNotRegisteredError, StaleAssignmentError, StaleDeliveryError: nothing is committed.
    """
    from tailrace.protocol import group_requests

    request = group_requests.commit_request(consumer_id, **named)
    group_requests.parse_done(await self._exchange.ask(request))


async def goodbye(
    self: Caller,
    consumer_id: str,
    *,
    delivery: int | None = None,
    assignment_epoch: int | None = None,
    commit: bool = True,
) -> None:
    """Leave the group; with `commit` the named delivery, or else the last one, is confirmed.

    What is not goes to another consumer. ConsumerNotRegisteredError, StaleAssignmentError.
    """
    from tailrace.protocol import group_requests

    request = group_requests.goodbye_request(
        consumer_id, delivery=delivery, assignment_epoch=assignment_epoch, commit=commit
    )
    group_requests.parse_done(await self._exchange.ask(request))


async def groups(self: Caller) -> "list[GroupInfo]":
    """All groups, sorted by name."""
    from tailrace.protocol import group_requests

    return group_requests.parse_groups(await self._exchange.ask(group_requests.groups_request()))


async def group(self: Caller, name: str) -> "GroupDetails":
    """One group, its consumers and how far it is in each partition; GroupNotFoundError."""
    from tailrace.protocol import group_requests

    return group_requests.parse_group(await self._exchange.ask(group_requests.group_request(name)))


async def reset_group(
    self: Caller,
    name: str,
    *,
    to: Literal["earliest", "latest"] | None = None,
    timestamp_us: int | None = None,
    offsets: Mapping[str, Mapping[int, int]] | None = None,
    topics: Iterable[str] | None = None,
    dry_run: bool = False,
) -> "GroupReset":
    """Have an idle group go on elsewhere, in these topics or all; GroupNotIdleError.

    One of `to`, `timestamp_us` and `offsets` (by topic and partition) says where.
    """
    from tailrace.protocol import group_requests

    request = group_requests.reset_group_request(
        name, to=to, timestamp_us=timestamp_us, offsets=offsets, topics=topics, dry_run=dry_run
    )
    return group_requests.parse_group_reset(await self._exchange.ask(request))


async def publish_offsets(
    self: Caller, name: str, source: str, offsets: Mapping[str, Mapping[int, int]]
) -> None:
    """Report how far a reader is that keeps its offsets itself; GroupNotIdleError.

    `source` says what it is, and is the group's state.
    """
    from tailrace.protocol import group_requests

    request = group_requests.publish_offsets_request(name, source, offsets)
    group_requests.parse_done(await self._exchange.ask(request))


async def delete_group(self: Caller, name: str) -> None:
    """Forget a group and its offsets; GroupNotFoundError, GroupNotIdleError."""
    from tailrace.protocol import group_requests

    group_requests.parse_done(await self._exchange.ask(group_requests.delete_group_request(name)))
