"""Paces what is sent to followers that are far behind: what is live comes first.

A follower gets a round of at most `ROUND_BYTES` of its logs, in turns. The next round begins when
it has taken this one; where something was read from the disk, after a pause as long as that took.
So old data gets at most half of what the link last carried, and less the more else there is on it.
A round leaves half of the link's window to live batches, and is all that one may have to wait for
at the disk. What memory still has was written a moment ago: it needs no pause.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple, Protocol

from tailrace_broker.core.replication.events import Feed
from tailrace_broker.core.replication.range_events import OfRange
from tailrace_broker.model.replication import LogKey
from tailrace_broker.net.replication.link import WINDOW_BYTES

# Of one round; more when a single batch is larger.
ROUND_BYTES = WINDOW_BYTES // 2
PAUSE_SECONDS_MAX = 1.0


class SentPiece(NamedTuple):
    """What was sent of a log; nothing, if it is not to be sent any more."""

    size_bytes: int
    is_from_disk: bool


# Sends at most so many bytes, or one batch.
SendPiece = Callable[[OfRange, Feed, int], Coroutine[Any, Any, SentPiece]]


class FollowerLinks(Protocol):
    """What is asked of the links to followers."""

    def has_follower(self, ordinal: int) -> bool:
        """There is a link from that broker."""

    def call_when_taken(self, ordinal: int, call: Callable[[], None]) -> None:
        """`call` when that broker has taken the batches sent so far, or has no link."""


class CatchUp:
    """State changes on the event loop only."""

    def __init__(
        self,
        links: FollowerLinks,
        send_piece: SendPiece,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._links = links
        self._send_piece = send_piece
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        # By follower, while a round or a pause is under way: what it lacks, the oldest first.
        self._waiting: dict[int, dict[LogKey, OfRange]] = {}
        self._is_stopped = False

    def feed(self, of_range: OfRange, feed: Feed) -> None:
        """In a round to come; in place of an earlier one of that log, whose session has ended."""
        waiting = self._waiting.get(feed.ordinal)
        if waiting is not None:
            waiting.pop(feed.log, None)
            waiting[feed.log] = of_range
            return
        self._waiting[feed.ordinal] = {feed.log: of_range}
        self._begin_round(feed.ordinal)

    def stop(self) -> None:
        """Begin no more rounds."""
        self._is_stopped = True

    def _begin_round(self, ordinal: int) -> None:
        if self._waiting[ordinal] and not self._is_stopped:
            self._spawn(self._send_round(ordinal))
        else:
            del self._waiting[ordinal]

    async def _send_round(self, ordinal: int) -> None:
        """What waits for a follower whose link was lost is of no use: it will stand again."""
        waiting, began_s, sent_bytes = self._waiting[ordinal], self._loop.time(), 0
        is_paced = False
        while waiting and sent_bytes < ROUND_BYTES and not self._is_stopped:
            of_range = waiting.pop(next(iter(waiting)))
            feed = of_range.effect
            assert isinstance(feed, Feed)
            if self._links.has_follower(ordinal):
                piece = await self._send_piece(of_range, feed, ROUND_BYTES - sent_bytes)
                sent_bytes += piece.size_bytes
                is_paced |= piece.is_from_disk
        paced_from_s = began_s if is_paced else None
        self._links.call_when_taken(ordinal, partial(self._on_taken, ordinal, paced_from_s))

    def _on_taken(self, ordinal: int, paced_from_s: float | None) -> None:
        if paced_from_s is None:
            self._begin_round(ordinal)
            return
        pause_s = min(self._loop.time() - paced_from_s, PAUSE_SECONDS_MAX)
        self._loop.call_later(pause_s, self._begin_round, ordinal)
