"""What a leader sends its followers of its logs, from memory or from the disk.

`core.replication.leader` says who is to get what; batches are sent as they are stored. What is live
is sent at once; what is for followers far behind, as `topics.catch_up` says, unless memory has it
and the link room: large batches that were written a moment ago are such. What is read from the disk
is in the catch-up quota of the memory (`memory/pool.py`) until it is sent.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol

import structlog

from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.core.replication.events import Feed
from tailrace_broker.core.replication.range_events import OfRange
from tailrace_broker.memory.read_memory import ReadMemory
from tailrace_broker.model.errors import TailraceError
from tailrace_broker.model.replication import Batches, LogKey, Restart, Run, ToFollower
from tailrace_broker.net.replication.link import Bytes
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.topics.catch_up import CatchUp, FollowerLinks, SentPiece

# Of a log in one message, but for a batch that is larger.
FEED_BYTES = 1024 * 1024
# Until a follower is asked to stand again for what could not be read.
RETRY_SECONDS = 1.0

_log = structlog.get_logger()


class Followers(FollowerLinks, Protocol):
    """The links to followers."""

    def send_follower(
        self, ordinal: int, message: ToFollower, payload: Sequence[Bytes] = ()
    ) -> None:
        """Send a message, with the bytes of its batches, sooner or later or never."""

    def has_room(self, ordinal: int) -> bool:
        """There is a link, and no more batches wait on it than that broker takes at once."""


class LogFeeds:
    """State changes on the event loop only."""

    def __init__(
        self,
        log_of: Callable[[LogKey], PartitionLog | None],
        leads: Callable[[int], int | None],
        links: Followers,
        memory: ReadMemory,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`leads` returns the epoch in which this process leads a range; None: it does not.

        `memory`: the catch-up quota, which what is read for followers waits for.
        """
        self.catch_up_bytes = 0  # sent to followers that were far behind
        self._log_of = log_of
        self._leads = leads
        self._links = links
        self._memory = memory
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._feeds: dict[tuple[int, LogKey], deque[OfRange]] = {}
        self._catch_up = CatchUp(links, self._send_piece, spawn)

    def feed(self, of_range: OfRange, feed: Feed) -> None:
        """One read of a log for a follower after the other."""
        if feed.end is None:
            batches = self._recent(of_range, feed) if self._links.has_room(feed.ordinal) else []
            if batches:
                self._send_far(of_range, feed, batches)
            else:
                self._catch_up.feed(of_range, feed)
            return
        place = feed.ordinal, feed.log
        waiting = self._feeds.get(place)
        if waiting is not None:
            waiting.append(of_range)
            return
        if self._feed_from_memory(of_range, feed, feed.end) < feed.end:
            self._feeds[place] = deque([of_range])
            self._spawn(self._feed_from_disk(place))

    def stop(self) -> None:
        """Feed followers that are far behind no more."""
        self._catch_up.stop()

    def _feed_from_memory(self, of_range: OfRange, feed: Feed, end: int) -> int:
        """Send what memory has of it; up to where, or the end if it is not to be sent any more."""
        first = feed.first
        while first < end:
            log = self._log_if_led(of_range, feed)
            if log is None:
                return end
            batches = _up_to(log.read_recent(first, FEED_BYTES), end)
            if not batches or batches[0].header.base_offset != first:
                return first
            self._send_batches(of_range, feed, batches)
            first = batches[-1].header.end_offset
        return first

    async def _feed_from_disk(self, place: tuple[int, LogKey]) -> None:
        """All that waits to be read of this log for this follower."""
        waiting = self._feeds[place]
        try:
            while waiting:
                of_range = waiting[0]
                feed = of_range.effect
                assert isinstance(feed, Feed)
                assert feed.end is not None
                first = self._feed_from_memory(of_range, feed, feed.end)
                while first < feed.end:
                    batches = await self._read(of_range, feed, first, FEED_BYTES)
                    if not batches:
                        break
                    self._send_batches(of_range, feed, batches)
                    first = batches[-1].header.end_offset
                waiting.popleft()
        finally:
            del self._feeds[place]

    async def _send_piece(self, of_range: OfRange, feed: Feed, max_bytes: int) -> SentPiece:
        """Send what one read returns."""
        batches = self._recent(of_range, feed)
        is_from_disk = not batches
        if is_from_disk:
            batches = await self._read(of_range, feed, feed.first, max_bytes)
        return SentPiece(self._send_far(of_range, feed, batches) if batches else 0, is_from_disk)

    def _recent(self, of_range: OfRange, feed: Feed) -> list[StoredBatch]:
        """What memory has from there on; none: it does not reach back so far."""
        log = self._log_if_led(of_range, feed)
        batches = [] if log is None else log.read_recent(feed.first, FEED_BYTES)
        return batches if batches and batches[0].header.base_offset == feed.first else []

    def _send_far(self, of_range: OfRange, feed: Feed, batches: Sequence[StoredBatch]) -> int:
        """Send batches to a follower that is far behind; return their size."""
        size_bytes = sum(each.header.batch_bytes for each in batches)
        self.catch_up_bytes += size_bytes
        self._send_batches(of_range, feed, batches)
        return size_bytes

    async def _read(
        self, of_range: OfRange, feed: Feed, first: int, max_bytes: int
    ) -> list[StoredBatch]:
        """Empty: it is not to be sent any more, or the follower will be asked to stand again."""
        log = self._log_if_led(of_range, feed)
        if log is None:
            return []
        try:
            read = partial(log.read_written, first, max_bytes)
            batches = _up_to(await self._memory.run(read), feed.end)
        except TailraceError as error:  # retention was faster, or the disk is damaged
            _log.warning("replica.unread", partition=feed.log.partition, detail=error.detail)
            self._loop.call_later(RETRY_SECONDS, self._restart, of_range, feed)
            return []
        if not batches or batches[0].header.base_offset != first:
            _log.error("replica.unfed", partition=feed.log.partition, offset=first)
            self._loop.call_later(RETRY_SECONDS, self._restart, of_range, feed)
            return []
        return batches

    def _log_if_led(self, of_range: OfRange, feed: Feed) -> PartitionLog | None:
        is_led = self._leads(of_range.range_id) == of_range.epoch
        return self._log_of(feed.log) if is_led else None

    def _restart(self, of_range: OfRange, feed: Feed) -> None:
        message = Restart(of_range.range_id, of_range.epoch, feed.session)
        self._links.send_follower(feed.ordinal, message)

    def _send_batches(self, of_range: OfRange, feed: Feed, batches: Sequence[StoredBatch]) -> None:
        message = Batches(
            of_range.range_id,
            of_range.epoch,
            feed.session,
            feed.log,
            batches[0].header.previous_epoch,
            tuple(runs_of(batches)),
            feed.high_watermark,
            feed.log_start,
        )
        payload = [buffer for batch in batches for buffer in batch.buffers]
        self._links.send_follower(feed.ordinal, message, payload)


def _up_to(batches: list[StoredBatch], end: int | None) -> list[StoredBatch]:
    return [each for each in batches if end is None or each.header.end_offset <= end]


def runs_of(batches: Sequence[StoredBatch]) -> Iterator[Run]:
    """Batches of one epoch that follow each other are one."""
    headers = [each.header for each in batches]
    for epoch, group in groupby(headers, attrgetter("epoch")):
        of_epoch = list(group)
        yield Run(epoch, of_epoch[0].base_offset, of_epoch[-1].end_offset)
