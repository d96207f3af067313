"""Takes the columns off a payload (layout: `tailrace.wire`), each checked against its bounds."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tailrace.wire import COLUMN_ALIGNMENT_BYTES, align_up
from tailrace_broker.codec.columns import Int32s, Int64s
from tailrace_broker.model.errors import CorruptBatchError


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
        """Where each of `count` entries starts, i32[count + 1]: ascending from 0."""
        column: Int32s = np.frombuffer(self.take((count + 1) * 4), "<i4")
        if column[0] != 0 or (column[1:] < column[:-1]).any():
            raise CorruptBatchError("a column's offsets do not ascend from 0")
        return column

    def timestamps(self, count: int) -> Int64s:
        """µs since the epoch."""
        return np.frombuffer(self.take(count * 8), "<i8")

    def bitmap(self, count: int) -> npt.NDArray[np.bool_]:
        """Which of `count` entries are not null."""
        packed = np.frombuffer(self.take(-(-count // 8)), np.uint8)
        return np.unpackbits(packed, count=count, bitorder="little").astype(np.bool_)

    def cut(
        self, offsets: Int32s, validity: npt.NDArray[np.bool_] | None, wanted: slice
    ) -> list[bytes | None]:
        """Values `wanted` of the column of bytes that comes next; all of it is taken."""
        data = self.take(int(offsets[-1]))
        bounds = offsets[wanted.start : wanted.stop + 1].tolist()
        values: list[bytes | None] = [bytes(data[start:end]) for start, end in pairwise(bounds)]
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
