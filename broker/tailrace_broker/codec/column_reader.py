"""Takes the columns off a payload (layout: `tailrace.wire`), each checked against its bounds."""

from collections.abc import Sequence
from itertools import pairwise
from struct import unpack
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tailrace.wire import COLUMN_ALIGNMENT_BYTES, align_up
from tailrace_broker.codec.columns import Int32s, Int64s
from tailrace_broker.model.errors import CorruptBatchError

# Up to here a batch's numbers take less time as lists than as vectors.
FEW = 64


class ColumnReader:
    """Takes column after column off a payload; each starts at a multiple of 8 bytes."""

    def __init__(self, columns: memoryview) -> None:
        self._columns = columns
        self._position = 0

    def take(self, size_bytes: int) -> memoryview:
        """The next column. CorruptBatchError, as from all methods."""
        end = self._position + size_bytes
        column = self._columns[self._position : end]
        if len(column) < size_bytes:
            raise CorruptBatchError("a column ends behind its payload")
        self._position = align_up(end, COLUMN_ALIGNMENT_BYTES)
        if any(self._columns[end : self._position]):
            raise CorruptBatchError("the fill behind a column is not zero")
        return column

    def offsets(self, count: int) -> Int32s:
        """Return where each of `count` entries starts, i32[count + 1]: ascending from 0."""
        column: Int32s = np.frombuffer(self.take((count + 1) * 4), "<i4")
        if column[0] != 0 or (column[1:] < column[:-1]).any():
            raise CorruptBatchError("a column's offsets do not ascend from 0")
        return column

    def timestamps(self, count: int) -> Int64s:
        """Return the timestamps in µs since the epoch."""
        return np.frombuffer(self.take(count * 8), "<i8")

    def bitmap(self, count: int) -> npt.NDArray[np.bool_]:
        """Return which of `count` entries are not null."""
        packed = np.frombuffer(self.take(-(-count // 8)), np.uint8)
        return np.unpackbits(packed, count=count, bitorder="little").astype(np.bool_)

    def cut(
        self, offsets: Int32s, validity: npt.NDArray[np.bool_] | None, wanted: slice
    ) -> list[bytes | None]:
        """Values `wanted` of the column of bytes that comes next; all of it is taken."""
        data = self.take(int(offsets[-1]))
        bounds = offsets[wanted.start : wanted.stop + 1]
        values = _entries(data[bounds[0] : bounds[-1]], (bounds - bounds[0]).tolist())
        if validity is None:
            return values
        valid = validity[wanted].tolist()
        return [value if is_valid else None for value, is_valid in zip(values, valid, strict=True)]

    def expect_end(self) -> None:
        """Raise unless every byte was taken."""
        if self._position != len(self._columns):
            raise CorruptBatchError(
                f"its columns are {self._position} bytes, its payload {len(self._columns)}"
            )


class FewColumns(NamedTuple):
    """The columns of a batch of few records, none of them null, without headers."""

    timestamps: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]


def read_few(columns: memoryview, count: int) -> FewColumns:
    """All columns, the numbers of all at once: a third of what `ColumnReader` costs.

    CorruptBatchError.
    """
    reader = ColumnReader(columns)
    offset_count = count + 1
    filled_count = align_up(offset_count * 4, COLUMN_ALIGNMENT_BYTES) // 4
    numbers_bytes = 2 * filled_count * 4 + count * 8
    numbers = unpack(f"<{2 * filled_count}i{count}q", reader.take(numbers_bytes))
    value_offsets = numbers[:offset_count]
    key_offsets = numbers[filled_count : filled_count + offset_count]
    for offsets in (value_offsets, key_offsets):
        if offsets[0] != 0 or list(offsets) != sorted(offsets):
            raise CorruptBatchError("a column's offsets do not ascend from 0")
    if any(numbers[offset_count:filled_count]) or any(
        numbers[filled_count + offset_count : 2 * filled_count]
    ):
        raise CorruptBatchError("the fill behind a column is not zero")
    values = _entries(reader.take(value_offsets[-1]), value_offsets)
    keys = _entries(reader.take(key_offsets[-1]), key_offsets)
    return FewColumns(list(numbers[2 * filled_count :]), keys, values)


def _entries(data: memoryview, bounds: Sequence[int]) -> list[bytes | None]:
    """`data` cut at these places, the first of which is 0."""
    column = bytes(data)
    return [column[start:end] for start, end in pairwise(bounds)]
