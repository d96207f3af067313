"""The records of one request, and the partition of each -> a batch's columns for each partition.

Within a partition they stay in the order of the request.
"""

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from tailrace_broker.codec.columns import (
    Column,
    HeaderColumns,
    Int32s,
    RecordColumns,
    column_of_texts,
    column_of_values,
    offsets_of_lengths,
    pack_columns,
    pack_events,
)
from tailrace_broker.codec.keyed_ndjson import KeyedLines
from tailrace_broker.codec.records_binary import ProducedRecords, RecordHeaders

# Of a request's records for one partition, up to here a loop is cheaper than vector operations.
FEW_RECORDS = 64
# Of lines with keys, of which the vector operations have less to do; on average.
FEW_LINES = 16

Indices = npt.NDArray[np.intp]
T = TypeVar("T")


class PartitionRecords(NamedTuple):
    """What a request brings for one partition."""

    partition: int
    columns: RecordColumns


def split_records(
    records: ProducedRecords, partitions: Int32s, *, flags: int
) -> list[PartitionRecords]:
    """Split records with their times by partition."""
    order = np.argsort(partitions, kind="stable")
    return [
        PartitionRecords(partition, _columns_of(records, order[start:end], flags))
        for partition, start, end in _groups(partitions[order])
    ]


def split_keyed_lines(
    lines: KeyedLines, partitions: Int32s, timestamp_us: int, *, flags: int
) -> list[PartitionRecords]:
    """Split lines that all have one time. The values are ordered at once, not by partition."""
    times_us = np.full(len(partitions), timestamp_us, np.int64)
    first = int(partitions[0])
    if (partitions == first).all():
        values = Column(lines.text.replace(b"\n", b""), offsets_of_lengths(lines.lengths))
        columns = pack_columns(values, column_of_texts(lines.keys), times_us, flags=flags)
        return [PartitionRecords(first, columns)]
    order = np.argsort(partitions, kind="stable")
    pick = itemgetter(*order.tolist())
    cut, texts = pick(lines.text.split(b"\n")), pick(lines.keys)
    groups = list(_groups(partitions[order]))
    if len(order) <= FEW_LINES * len(groups):
        encoded = list(map(str.encode, texts))
        times = [timestamp_us] * len(order)
        return [
            PartitionRecords(
                partition,
                pack_events(cut[start:end], encoded[start:end], times[start:end], flags=flags),
            )
            for partition, start, end in groups
        ]
    values = Column(b"".join(cut), offsets_of_lengths(lines.lengths[order]))
    keys = column_of_texts(texts)
    return [
        PartitionRecords(
            partition,
            pack_columns(
                _part(values, start, end), _part(keys, start, end), times_us[start:end], flags=flags
            ),
        )
        for partition, start, end in groups
    ]


def _groups(partitions: Int32s) -> Iterator[tuple[int, int, int]]:
    """Each partition of a sorted list, with the places `[start, end)` where it is."""
    starts = (np.flatnonzero(partitions[1:] != partitions[:-1]) + 1).tolist()
    ends = [*starts, len(partitions)]
    for start, end in zip([0, *starts], ends, strict=True):
        yield int(partitions[start]), start, end


def _part(column: Column, start: int, end: int) -> Column:
    """The entries `[start, end)` of a column without nulls."""
    offsets = column.offsets[start : end + 1]
    data = memoryview(column.data)[offsets[0] : offsets[-1]]
    return Column(data, offsets - offsets[0])


def _columns_of(records: ProducedRecords, chosen: Indices, flags: int) -> RecordColumns:
    """The chosen records as one batch's columns."""
    pick = _picker(chosen)
    assert records.timestamps_us is not None, "each record has its time here"
    timestamps_us = records.timestamps_us[chosen]
    values, keys = pick(records.values), pick(records.keys)
    if len(values) <= FEW_RECORDS and records.headers is None and None not in values:
        present = cast(list[bytes], values)
        return pack_events(present, keys, timestamps_us.tolist(), flags=flags)
    return pack_columns(
        column_of_values(values),
        column_of_values(keys),
        timestamps_us,
        headers=records.headers and _headers_of(records.headers, chosen),
        flags=flags,
    )


def _headers_of(headers: RecordHeaders, chosen: Indices) -> HeaderColumns:
    """The chosen records' headers as columns."""
    counts = headers.counts[chosen]
    firsts = offsets_of_lengths(headers.counts)[:-1][chosen]
    list_offsets = offsets_of_lengths(counts)
    # The i-th header of a record is at its first one's place plus i.
    places = np.repeat(firsts - list_offsets[:-1], counts) + np.arange(list_offsets[-1])
    pick = _picker(places)
    return HeaderColumns(
        list_offsets, column_of_values(pick(headers.keys)), column_of_values(pick(headers.values))
    )


def _picker(places: Indices) -> Callable[[Sequence[T]], list[T]]:
    """Takes these places of a sequence, in this order."""
    indices = places.tolist()
    if len(indices) < 2:  # else `itemgetter` gives a tuple
        return lambda values: [values[index] for index in indices]
    get = itemgetter(*indices)
    return lambda values: list(get(values))
