"""What a leader sends its followers of its logs, from memory or from the disk.

`core.replication.leader` says who is to get what; batches are sent as they are stored.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import structlog

from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.core.replication.events import Feed
from tailrace_broker.core.replication.range_events import OfRange
from tailrace_broker.model.errors import TailraceError
from tailrace_broker.model.replication import Batches, LogKey, Restart, Run, ToFollower
from tailrace_broker.net.replication.link import Bytes
from tailrace_broker.storage.log.partition_log import PartitionLog

# Of a log in one message, but for a batch that is larger.
FEED_BYTES = 1024 * 1024
# Until a follower is asked to stand again for what could not be read.
RETRY_SECONDS = 1.0

# Sends a message to a follower, with the bytes of its batches, sooner or later or never.
Send = Callable[[int, ToFollower, Sequence[Bytes]], None]

_log = structlog.get_logger()


class LogFeeds:
    """State changes on the event loop only."""

    def __init__(
        self,
        log_of: Callable[[LogKey], PartitionLog | None],
        leads: Callable[[int], int | None],
        send: Send,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`leads` returns the epoch in which this process leads a range; None: it does not."""
        self.catch_up_bytes = 0  # sent to followers that were far behind
        self._log_of = log_of
        self._leads = leads
        self._send = send
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._feeds: dict[tuple[int, LogKey], deque[OfRange]] = {}

    def feed(self, of_range: OfRange, feed: Feed) -> None:
        """One read of a log for a follower after the other."""
        place = feed.ordinal, feed.log
        waiting = self._feeds.get(place)
        if waiting is not None:
            waiting.append(of_range)
            return
        if not self._feed_from_memory(of_range, feed):
            self._feeds[place] = deque([of_range])
            self._spawn(self._feed_from_disk(place))

    def _feed_from_memory(self, of_range: OfRange, feed: Feed) -> bool:
        """Send what memory has of it; whether that was all that is asked for."""
        log, first = self._log_of(feed.log), feed.first
        while log is not None and self._leads(of_range.range_id) == of_range.epoch:
            batches = _up_to(log.read_recent(first, FEED_BYTES), feed.end)
            if not batches or batches[0].header.base_offset != first:
                return False
            self._send_batches(of_range, feed, batches)
            first = batches[-1].header.end_offset
            if feed.end is None or first >= feed.end:
                return True
        return True

    async def _feed_from_disk(self, place: tuple[int, LogKey]) -> None:
        """All that waits to be read of this log for this follower."""
        waiting = self._feeds[place]
        try:
            while waiting:
                of_range = waiting[0]
                feed = of_range.effect
                assert isinstance(feed, Feed)
                if not self._feed_from_memory(of_range, feed):
                    await self._read_and_send(of_range, feed)
                waiting.popleft()
        finally:
            del self._feeds[place]

    async def _read_and_send(self, of_range: OfRange, feed: Feed) -> None:
        log, first = self._log_of(feed.log), feed.first
        while log is not None and self._leads(of_range.range_id) == of_range.epoch:
            try:
                batches = _up_to(await log.read_written(first, FEED_BYTES), feed.end)
            except TailraceError as error:  # retention was faster, or the disk is damaged
                _log.warning("replica.unread", partition=feed.log.partition, detail=error.detail)
                self._loop.call_later(RETRY_SECONDS, self._restart, of_range, feed)
                return
            if not batches or batches[0].header.base_offset != first:
                _log.error("replica.unfed", partition=feed.log.partition, offset=first)
                self._loop.call_later(RETRY_SECONDS, self._restart, of_range, feed)
                return
            self._send_batches(of_range, feed, batches)
            first = batches[-1].header.end_offset
            if feed.end is None or first >= feed.end:
                return

    def _restart(self, of_range: OfRange, feed: Feed) -> None:
        self._send(feed.ordinal, Restart(of_range.range_id, of_range.epoch, feed.session), ())

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
        if feed.end is None:
            self.catch_up_bytes += sum(map(len, payload))
        self._send(feed.ordinal, message, payload)


def _up_to(batches: list[StoredBatch], end: int | None) -> list[StoredBatch]:
    return [each for each in batches if end is None or each.header.end_offset <= end]


def runs_of(batches: Sequence[StoredBatch]) -> Iterator[Run]:
    """Batches of one epoch that follow each other are one."""
    headers = [each.header for each in batches]
    for epoch, group in groupby(headers, attrgetter("epoch")):
        of_epoch = list(group)
        yield Run(epoch, of_epoch[0].base_offset, of_epoch[-1].end_offset)
