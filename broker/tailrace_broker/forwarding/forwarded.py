"""Requests that other brokers took, and that this one executes as the leader.

Their bytes count in the produce memory until they are answered. What comes of them in one turn of
the event loop is one message.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol
from uuid import UUID

from crc32c import crc32c

from tailrace.wire import Codec
from tailrace_broker.codec.batch import BatchBody
from tailrace_broker.codec.forwarded_errors import failed_request
from tailrace_broker.codec.replication import LinkFrame
from tailrace_broker.core.forwarding.partition_queue import is_refusal
from tailrace_broker.core.log.producers import Producer
from tailrace_broker.forwarding.forwarded_calls import ForwardedCalls
from tailrace_broker.model.append_outcome import Appended, AppendFailed, AppendOutcome
from tailrace_broker.model.errors import CorruptFrameError, NotReadyError, TailraceError
from tailrace_broker.model.forwarding import (
    AppendAnswers,
    CallCancelled,
    CallMore,
    FailedRequest,
    ForwardedBatch,
    ForwardedCall,
    ForwardedEvents,
    InheritedAppend,
    StoredAppend,
    TurnOf,
)
from tailrace_broker.model.replication import LogKey
from tailrace_broker.net.replication.link import Link
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.topics.hosted_topic import HostedTopic


class ProduceMemory(Protocol):
    """The memory of requests under way."""

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken."""

    def take_produce_memory(self, size_bytes: int) -> None:
        """ProduceMemoryFullError when the bound is reached."""

    def return_produce_memory(self, size_bytes: int) -> None:
        """The request has been answered."""


class ForwardedRequests:
    """State changes on the event loop only."""

    def __init__(
        self,
        memory: ProduceMemory,
        reads: ForwardedCalls,
        hosted_of: Callable[[UUID], HostedTopic | None],
    ) -> None:
        self._memory = memory
        self._reads = reads
        self._hosted_of = hosted_of
        self._loop = asyncio.get_running_loop()
        self._answers: dict[Link, _Answers] = {}

    def on_forwarded(self, link: Link, frame: LinkFrame) -> None:
        """Execute what a broker forwards. CorruptFrameError."""
        answers = self._answers.get(link)
        if answers is None:
            answers = self._answers[link] = _Answers(link, self._loop)
        message = frame.message
        if isinstance(message, ForwardedEvents):
            self._append_events(answers, message)
        elif isinstance(message, ForwardedCall | CallMore | CallCancelled):
            self._reads.received(link, message)
        else:
            assert isinstance(message, ForwardedBatch)
            self._append_batch(answers, message, bytes(frame.payload))
            link.consumed(len(frame.payload))

    def on_forwarder_lost(self, link: Link) -> None:
        """Appends under way go on; nobody hears of them."""
        self._answers.pop(link, None)
        self._reads.lost(link)

    def flush(self) -> None:
        """Hand the links what has not left yet."""
        for answers in self._answers.values():
            answers.flush()

    def _append_events(self, answers: "_Answers", message: ForwardedEvents) -> None:
        logs = [self._log_of(place) for place in message.places]
        number = message.first
        for index, value, key, timestamp_us, flags, producer_id, sequence in message.events:
            place = message.places[index]
            log = answers.refusal(place) or logs[index]
            if isinstance(log, TailraceError):
                answers.failed(place, number, log)
            elif self._has_memory(answers, place, number, len(value)):
                producer = Producer(producer_id, sequence) if producer_id else None
                ended = partial(self._ended, answers, place, number, len(value))
                log.append_event(key, value, timestamp_us, flags, ended, producer)
            number += 1

    def _append_batch(self, answers: "_Answers", message: ForwardedBatch, payload: bytes) -> None:
        place, number = message.place, message.number
        log = answers.refusal(place) or self._log_of(place)
        if crc32c(payload) != message.payload_crc:
            raise CorruptFrameError("the checksum of a forwarded batch does not match")
        if isinstance(log, TailraceError):
            answers.failed(place, number, log)
        elif self._has_memory(answers, place, number, len(payload)):
            body = BatchBody(
                message.record_count,
                message.flags,
                Codec(message.codec),
                payload,
                message.uncompressed_bytes,
                message.payload_crc,
                message.first_timestamp_us,
                message.largest_timestamp_us,
                b"",
            )
            producer = None
            if message.producer_id:
                producer = Producer(message.producer_id, message.sequence)
            log.append_records(
                body, partial(self._ended, answers, place, number, len(payload)), producer
            )

    def _log_of(self, place: TurnOf) -> PartitionLog | TailraceError:
        """Return the log to append to, or why this broker does not."""
        if not self._memory.is_ready:
            return NotReadyError("the broker is recovering its data, or stopping")
        hosted = self._hosted_of(place.log.topic_id)
        if hosted is None or place.log.partition not in hosted.logs:
            return NotReadyError("the leader has not heard of the partition yet")
        try:
            return hosted.open_log_of(place.log.partition)
        except TailraceError as error:
            return error

    def _has_memory(self, answers: "_Answers", place: TurnOf, number: int, size_bytes: int) -> bool:
        """Take it, until the append is answered; else the request is refused."""
        try:
            self._memory.take_produce_memory(size_bytes)
        except TailraceError as error:
            answers.failed(place, number, error)
            return False
        return True

    def _ended(
        self,
        answers: "_Answers",
        place: TurnOf,
        number: int,
        size_bytes: int,
        outcome: AppendOutcome,
    ) -> None:
        self._memory.return_produce_memory(size_bytes)
        if isinstance(outcome, Appended):
            answers.stored(number, outcome)
        else:
            assert isinstance(outcome, AppendFailed)
            answers.failed(place, number, outcome.error)


class _Answers:
    """What one forwarding broker is answered, and what it must begin again with."""

    def __init__(self, link: Link, loop: asyncio.AbstractEventLoop) -> None:
        self.link = link
        self._loop = loop
        self._stored: list[StoredAppend] = []
        self._failed: list[FailedRequest] = []
        self._inherited: list[InheritedAppend] = []
        self._is_flush_due = False
        # By partition the last turn of which something was refused.
        self._refused: dict[LogKey, int] = {}

    def refusal(self, place: TurnOf) -> TailraceError | None:
        """Why it must not be tried: something before it was refused, and comes again."""
        if self._refused and self._refused.get(place.log, -1) >= place.turn:
            return NotReadyError("what was sent before it is to be sent again first")
        return None

    def stored(self, number: int, outcome: Appended) -> None:
        """It is in the log."""
        offset, is_duplicate, copies, partition = outcome
        if partition is None:
            self._stored.append(StoredAppend(number, offset, is_duplicate, copies))
        else:
            self._inherited.append(InheritedAppend(number, partition, offset))
        self._flush_soon()

    def failed(self, place: TurnOf, number: int, error: TailraceError) -> None:
        """It is not; or that is not known."""
        if is_refusal(error):
            self._refused[place.log] = max(place.turn, self._refused.get(place.log, place.turn))
        self._failed.append(failed_request(number, error))
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what there is."""
        self._is_flush_due = False
        if self._stored or self._failed or self._inherited:
            message = AppendAnswers(
                tuple(self._stored), tuple(self._failed), tuple(self._inherited)
            )
            self._stored, self._failed, self._inherited = [], [], []
            self.link.send(message)
