"""The way to one leader while a link lasts: numbers requests, and sends those of a turn at once."""

import asyncio

from tailrace_broker.codec.batch import BatchBody
from tailrace_broker.core.forwarding.partition_queue import (
    EventContents,
    PartitionQueue,
    WaitingAppend,
)
from tailrace_broker.core.log.producers import Producer
from tailrace_broker.model.forwarding import (
    ForwardedBatch,
    ForwardedEvent,
    ForwardedEvents,
    TurnOf,
)
from tailrace_broker.net.replication.link import Link

# Of events in one message; it is far below the largest head of a frame.
MESSAGE_BYTES = 256 * 1024
_NO_PRODUCER = Producer(b"", 0)


class LeaderRoute:
    """`under_way`: by number the queue in which the request waits for its answer. `heard_s`: when
    the leader answered last, or began to have something to answer.
    """

    def __init__(self, link: Link, loop: asyncio.AbstractEventLoop) -> None:
        self.link = link
        self.under_way: dict[int, PartitionQueue] = {}
        self.heard_s = loop.time()
        self._loop = loop
        self._number = 0
        self._first = 1  # number of the first event below
        self._events: list[ForwardedEvent] = []
        self._events_bytes = 0
        # Not by `LogKey`, whose hash costs more than all else here.
        self._indexes: dict[tuple[PartitionQueue, int], int] = {}
        self._places: list[TurnOf] = []

    def send(self, queue: PartitionQueue, append: WaitingAppend) -> None:
        """Send it at the end of this turn of the loop, behind what was sent before."""
        if not self.under_way:
            self.heard_s = self._loop.time()
        self._number += 1
        self.under_way[self._number] = queue
        queue.sent(self._number)
        contents = append.contents
        producer = append.producer or _NO_PRODUCER
        if isinstance(contents, EventContents):
            index = self._indexes.get((queue, queue.turn))
            if index is None:
                index = self._indexes[queue, queue.turn] = len(self._places)
                self._places.append(TurnOf(queue.key, queue.turn))
            self._add_event(index, contents, producer)
        else:
            assert isinstance(contents, BatchBody)
            self._send_batch(TurnOf(queue.key, queue.turn), contents, producer)

    def _add_event(self, index: int, event: EventContents, producer: Producer) -> None:
        if not self._events:
            self._first = self._number
            self._loop.call_soon(self._flush)
        key, value, timestamp_us, flags = event
        self._events.append(
            ForwardedEvent(index, value, key, timestamp_us, flags, producer.id, producer.sequence)
        )
        self._events_bytes += len(value) + len(key or b"")
        if self._events_bytes >= MESSAGE_BYTES:
            self._flush()

    def _send_batch(self, place: TurnOf, body: BatchBody, producer: Producer) -> None:
        self._flush()
        message = ForwardedBatch(
            self._number,
            place,
            producer.id,
            producer.sequence,
            body.record_count,
            body.flags,
            int(body.codec),
            body.uncompressed_bytes,
            body.payload_crc,
            body.first_timestamp_us,
            body.largest_timestamp_us,
        )
        self.link.send(message, [body.payload], number=self._number)

    def _flush(self) -> None:
        if self._events:
            message = ForwardedEvents(self._first, tuple(self._places), tuple(self._events))
            self._events, self._events_bytes = [], 0
            self._indexes, self._places = {}, []
            self.link.send(message, number=message.first + len(message.events) - 1)
