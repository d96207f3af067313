"""Deliveries of a binary poll to Arrow record batches (columns: `tailrace.arrow.batches`).

Needs pyarrow, numpy and crc32c (extra `arrow`).
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa

from tailrace.arrow.batches import decode_batches
from tailrace.errors import CorruptBatchError
from tailrace.wire import BATCH_MAGIC, HEADER, HEADER_BYTES, BatchHeader


class _Run(NamedTuple):
    """Batches of one partition, one behind the other."""

    topic_id: bytes
    partition: int
    base_offset: int
    body: bytes


def topic_ids(body: bytes) -> set[bytes]:
    """Of the batches in a delivery. CorruptBatchError."""
    return {run.topic_id for run in _runs(body)}


def decode_delivery(
    body: bytes,
    *,
    topics: Mapping[bytes, str],
    start_offsets: Mapping[tuple[str, int], int],
    end_offsets: Mapping[tuple[str, int], int],
    include_headers: bool = False,
) -> Iterator[pa.RecordBatch]:
    """One record batch per batch, without records before `start_offsets` or from the ends on.

    `topics`: names by id; what is of no topic among them was deleted meanwhile, and is left out.
    CorruptBatchError as `tailrace.arrow.batches.decode_batches`.
    """
    starts = dict(start_offsets)
    for run in _runs(body):
        topic = topics.get(run.topic_id)
        if topic is not None:
            place = topic, run.partition
            yield from decode_batches(
                run.body,
                topic=topic,
                start=starts.pop(place, run.base_offset),
                end=end_offsets.get(place),
                include_headers=include_headers,
            )


def _runs(body: bytes) -> Iterator[_Run]:
    """In their order; of the headers only what parts the runs is looked at."""
    position = start = 0
    first: BatchHeader | None = None
    while position < len(body):
        if len(body) - position < HEADER_BYTES:
            raise CorruptBatchError(f"batch at byte {position}: the header is cut short")
        header = BatchHeader._make(HEADER.unpack_from(body, position))
        if header.magic != BATCH_MAGIC:
            raise CorruptBatchError(f"no batch at byte {position}: magic is {header.magic:#010x}")
        if first is not None and _place(header) != _place(first):
            yield _Run(*_place(first), first.base_offset, body[start:position])
            start, first = position, None
        first = first or header
        position += header.batch_bytes
    if first is not None:
        yield _Run(*_place(first), first.base_offset, body[start:])


def _place(header: BatchHeader) -> tuple[bytes, int]:
    return header.topic_id, header.partition
