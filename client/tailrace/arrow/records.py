"""Arrow record batches to records+binary bodies, as a produce request takes them: `tailrace.wire`.

The writer's counterpart of `tailrace.arrow.batches`; no loop over records. Needs pyarrow and numpy.

| column    | Arrow type                               | meaning                             |
|-----------|------------------------------------------|-------------------------------------|
| value     | binary or string                         |                                     |
| key       | binary or string                         | decides the partition; null: no key |
| timestamp | timestamp                                | absent: the broker's clock          |
| headers   | list<struct<key: string, value: binary>> | null: none                          |

All but `value` may be absent.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tailrace.errors import TailraceError
from tailrace.protocol.records_binary import NULL_LENGTH, ByteColumn, HeaderColumns, assemble_body

# One request: large enough that its cost is the bytes', far below what a broker takes.
REQUEST_BYTES_MAX = 4 * 1024 * 1024
REQUEST_ROWS_MAX = 100_000


class InvalidRowError(TailraceError):
    """A row holds what no record can be made of."""


def group_by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each value of column `topic`, in their order. InvalidRowError: a null."""
    topics = batch.column("topic")
    if topics.null_count:
        raise InvalidRowError("a row has a null topic: fill column topic, or give option topic")
    for topic in topics.unique():
        yield topic.as_py(), batch.filter(pa.compute.equal(topics, topic))


def split_for_requests(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in order, in pieces for a request each; a row of its own may be larger."""
    if batch.num_rows > 1 and (
        batch.nbytes > REQUEST_BYTES_MAX or batch.num_rows > REQUEST_ROWS_MAX
    ):
        half = batch.num_rows // 2
        yield from split_for_requests(batch.slice(0, half))
        yield from split_for_requests(batch.slice(half))
    elif batch.num_rows:
        yield batch


def encode_batch(batch: pa.RecordBatch) -> bytes:
    """A records+binary body of all rows. InvalidRowError. O(bytes), one copy of the data."""
    names = batch.schema.names
    return assemble_body(
        _byte_column(batch["key"]) if "key" in names else _no_values(batch.num_rows),
        _byte_column(batch["value"]),
        _timestamps(batch["timestamp"]) if "timestamp" in names else None,
        _header_columns(batch["headers"]) if "headers" in names else None,
    )


def _byte_column(array: pa.Array) -> ByteColumn:
    """Of binary or string."""
    binary = array.cast(pa.binary())
    if not len(binary):
        return ByteColumn(b"", b"")
    dense = binary.fill_null(b"") if binary.null_count else binary
    _, offsets_buffer, data_buffer = dense.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[dense.offset : dense.offset + len(dense) + 1]
    lengths = np.diff(offsets).astype("<i4", copy=False)
    if binary.null_count:
        lengths[binary.is_null().to_numpy(zero_copy_only=False)] = NULL_LENGTH
    data = memoryview(data_buffer if data_buffer is not None else b"")
    return ByteColumn(lengths.data, data[offsets[0] : offsets[-1]])


def _no_values(count: int) -> ByteColumn:
    return ByteColumn(np.full(count, NULL_LENGTH, "<i4").data, b"")


def _timestamps(array: pa.Array) -> memoryview:
    """Microseconds since the epoch, i64[n]."""
    if array.null_count:
        raise InvalidRowError(
            "a row has a null timestamp: fill column timestamp, or leave it out for the broker's"
        )
    in_us = array.cast(pa.timestamp("us", tz=array.type.tz)).cast(pa.int64())
    times: memoryview = in_us.to_numpy().astype("<i8", copy=False).data
    return times


def _header_columns(lists: pa.Array) -> HeaderColumns:
    counts = lists.value_lengths().fill_null(0).to_numpy().astype("<i4", copy=False)
    keys, values = lists.flatten().flatten()
    if keys.null_count or values.null_count:
        raise InvalidRowError("a header has a null key or value: a record's headers have both")
    return HeaderColumns(counts.data, _byte_column(keys), _byte_column(values))
