"""Asks brokers again: what may pass, a broker's restart above all, is waited for.

An exception in a stream's planner ends the query, and one in a task costs the task: so nothing
that a retry can cure may leave here before the options' retries are used up.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import TypeVar

from tailrace.errors import PartitionDamagedError, TailraceError, TopicNotFoundError
from tailrace.spark.offsets import Listing, TopicPartition
from tailrace.spark.options import (
    RETRY_COUNT_DEFAULT,
    RETRY_INTERVAL_MS_DEFAULT,
    ReadOptions,
)
from tailrace.sync import Client
from tailrace.values import PartitionOffsets

RETRY_INTERVAL_S_MAX = 8.0

Answered = TypeVar("Answered")
_log = logging.getLogger(__name__)


class PatientClient:
    """A connection to the first of `urls` that answers; opened when needed, also again."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        retry_count: int = RETRY_COUNT_DEFAULT,
        retry_interval_s: float = RETRY_INTERVAL_MS_DEFAULT / 1000,
        timeout_s: float = 30.0,
    ) -> None:
        assert urls
        self._timeout_s = timeout_s
        self._urls = deque(urls)
        self._attempt_count_max = (1 + retry_count) * len(urls)
        self._retry_interval_s = retry_interval_s
        self._client: Client | None = None

    @classmethod
    def of(cls, options: ReadOptions) -> "PatientClient":
        """For a read."""
        return cls(
            options.urls,
            retry_count=options.retry_count,
            retry_interval_s=options.retry_interval_s,
        )

    def ask(self, request: Callable[[Client], Answered]) -> Answered:
        """The answer of any broker. TailraceError once the retries are used up, or would not help.

        A request that writes may then have been applied more than once.
        """
        for attempt in count(1):
            try:
                return request(self._connected())
            except TailraceError as error:
                self._turn_to_next()
                if not error.retriable or attempt == self._attempt_count_max:
                    raise
                self._wait(attempt, error)
        raise AssertionError("count() does not end")

    def turn(self, pause_s: float) -> None:
        """Ask another broker next, if there is one, and not at once."""
        self._turn_to_next()
        time.sleep(pause_s)

    def close(self) -> None:
        """Close the connection; a later request opens it again."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connected(self) -> Client:
        if self._client is None:
            self._client = Client(self._urls[0], timeout_s=self._timeout_s)
        return self._client

    def _turn_to_next(self) -> None:
        self.close()
        self._urls.rotate(-1)

    def _wait(self, attempt: int, error: TailraceError) -> None:
        """Before each new round over the brokers; twice as long each time."""
        round_count, rest = divmod(attempt, len(self._urls))
        if rest == 0:
            # 2**20 is more than any interval can be below the longest; no larger floats.
            doubled_s = self._retry_interval_s * 2 ** min(round_count - 1, 20)
            interval_s = min(doubled_s, RETRY_INTERVAL_S_MAX)
            _log.warning("%s; trying again in %.1f s", error, interval_s)
            time.sleep(interval_s)


def list_partitions(
    client: PatientClient, options: ReadOptions, *, with_times: bool = False
) -> Listing:
    """The partitions of the topics that are asked for; also by the times that bound the read.

    PartitionUnavailableError when one that is asked for has no leader for long.
    """
    bounds = (options.starting, options.ending)
    times_us = sorted(
        time_us for bound in bounds if bound.is_time and with_times for time_us in bound.values()
    )
    return client.ask(lambda connected: _list_at(connected, options, times_us))


def _list_at(client: Client, options: ReadOptions, times_us: list[int]) -> Listing:
    named = sorted(options.partitions_by_topic)
    if named:
        with suppress(TopicNotFoundError):  # which names one only
            return _list_topics(client, options, named, times_us)
    # All there are: asking for those that a list has just named would miss one deleted meanwhile.
    listing = _list_topics(client, options, [], times_us)
    missing = set(named).difference(row.topic for row in listing.partitions)
    return Listing(listing.partitions, sorted(missing), listing.first_offsets)


def _list_topics(
    client: Client, options: ReadOptions, topics: list[str], times_us: list[int]
) -> Listing:
    """Without topics: all. PartitionUnavailableError: one that is asked for has no leader now."""

    def offsets(time_us: int | None = None) -> list[PartitionOffsets]:
        rows = client.offsets(topics, timestamp_us=time_us)
        for row in rows:
            if options.selects(row.topic, row.partition):
                with suppress(PartitionDamagedError):  # which waiting does not cure
                    row.readable()
        return rows

    first_offsets: dict[int, dict[TopicPartition, int | None]] = {}
    for time_us in times_us:
        topic_partitions = {
            (partition.topic, partition.partition): partition.timestamp_offset
            for partition in offsets(time_us)
        }
        first_offsets[time_us] = topic_partitions
    # Last, so that no end is before what a time has found.
    return Listing(offsets(), first_offsets=first_offsets)
