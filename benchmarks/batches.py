"""Ready-made batches of shop events as a producer's client sends them: compressed beforehand."""

from collections.abc import Sequence
from itertools import cycle
from uuid import UUID

from benchmarks.broker import TOPIC
from benchmarks.brokers import Addressed
from benchmarks.events import orders
from benchmarks.load import request_bytes
from benchmarks.parts import columns_of, groups_of
from tailrace.protocol.requests import Request
from tailrace.wire import BATCH_CONTENT_TYPE, Codec
from tailrace_broker.codec.batch import BatchPlace, compress_columns, stamp_batch

EVENT_BYTES = 1024
BATCH_EVENT_COUNT = 1_000
BATCH_COUNT = 8
# What only the leader knows, and puts in itself.
PLACE = BatchPlace(UUID(int=0), 0, 0, 0, 0, 0, 0, 0)


def batch_requests(codec: Codec, partition_count: int) -> list[bytes]:
    """A request a batch, to the partitions in turn: different batches, of `BATCH_EVENT_COUNT`."""
    return [request for _, request in batches_to(codec, range(partition_count))]


def batches_to(
    codec: Codec, partitions: Sequence[int], batch_count: int = BATCH_COUNT
) -> list[Addressed]:
    """The same to these partitions."""
    events = orders(batch_count * BATCH_EVENT_COUNT, EVENT_BYTES)
    bodies = [
        b"".join(stamp_batch(compress_columns(columns_of(group), codec=codec), PLACE).buffers)
        for group in groups_of(events, BATCH_EVENT_COUNT)
    ]
    headers = {"Content-Type": BATCH_CONTENT_TYPE}
    return [
        Addressed(partition, request_bytes(Request("POST", _target(partition), headers, body)))
        for partition, body in zip(cycle(partitions), bodies, strict=False)
    ]


def _target(partition: int) -> str:
    return f"/v1/topic/{TOPIC}/messages?partition={partition}"
