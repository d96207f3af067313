"""Ready-made batches of shop events as a producer's client sends them: compressed beforehand."""

from uuid import UUID

from benchmarks.broker import TOPIC
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
    events = orders(BATCH_COUNT * BATCH_EVENT_COUNT, EVENT_BYTES)
    bodies = [
        b"".join(stamp_batch(compress_columns(columns_of(group), codec=codec), PLACE).buffers)
        for group in groups_of(events, BATCH_EVENT_COUNT)
    ]
    headers = {"Content-Type": BATCH_CONTENT_TYPE}
    return [
        request_bytes(Request("POST", f"{_target(index % partition_count)}", headers, body))
        for index, body in enumerate(bodies)
    ]


def _target(partition: int) -> str:
    return f"/v1/topic/{TOPIC}/messages?partition={partition}"
