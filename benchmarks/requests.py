"""Requests that several questions send: one event each, or reads of a whole topic."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.broker import TOPIC
from benchmarks.events import Event
from benchmarks.load import request_bytes
from tailrace.local.broker import LocalBroker
from tailrace.protocol.requests import Request, batches_request, lines_request, produce_request
from tailrace.sync import Client
from tailrace.wire import JSON_CONTENT_TYPE


@dataclass(frozen=True, slots=True)
class BatchRead:
    """A request for batches, and what its answer held."""

    request: bytes
    record_count: int
    stored_bytes: int


def single_events(events: Sequence[Event]) -> list[bytes]:
    """Produce one JSON event with its key a request."""
    return [request for _, request in keyed_events(events)]


def keyed_events(events: Sequence[Event]) -> list[tuple[str, bytes]]:
    """The same, each request behind its key."""
    return [
        (
            event.key,
            request_bytes(
                produce_request(TOPIC, event.value, content_type=JSON_CONTENT_TYPE, key=event.key)
            ),
        )
        for event in events
    ]


def batch_reads(broker: LocalBroker, answer_bytes: int) -> list[BatchRead]:
    """Read every batch of the topic once, in answers of `answer_bytes` at most."""
    reads = []
    with Client(broker.url) as client:
        for listed in client.offsets([TOPIC]):
            offset, end = listed.readable().start, listed.readable().stop
            while offset < end:
                request = batches_request(TOPIC, listed.partition, offset, max_bytes=answer_bytes)
                fetched = client.read_batches(
                    TOPIC, listed.partition, offset, max_bytes=answer_bytes
                )
                record_count = fetched.next_offset - offset
                reads.append(BatchRead(request_bytes(request), record_count, len(fetched.body)))
                offset = fetched.next_offset
    return reads


def line_reads(broker: LocalBroker, answer_records: int) -> list[Request]:
    """Read every record of the topic once as text, `answer_records` an answer."""
    with Client(broker.url) as client:
        return [
            lines_request(TOPIC, listed.partition, offset, max_records=answer_records)
            for listed in client.offsets([TOPIC])
            for offset in range(listed.readable().start, listed.readable().stop, answer_records)
        ]
