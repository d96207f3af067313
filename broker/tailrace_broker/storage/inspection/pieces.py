"""Everything that is in a segment or a frame, whatever it holds: total, without a decision."""

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from tailrace.wire import (
    BATCH_MAGIC,
    HEADER_BYTES,
    JOURNAL_CUT,
    PAD_HEADER,
    PAD_MAGIC,
    BatchHeader,
    Flag,
)
from tailrace_broker.codec.batch import decompress_payload, read_header, verify_batch
from tailrace_broker.codec.journal import JournalCut, read_cut
from tailrace_broker.codec.records import column_lines, cut_columns
from tailrace_broker.codec.segment import read_pad
from tailrace_broker.model.errors import CorruptBatchError
from tailrace_broker.storage.files.direct_file import BLOCK_BYTES

_MAGICS = frozenset({BATCH_MAGIC, PAD_MAGIC})


class Piece(NamedTuple):
    """The content of a position: `kind` is batch, pad, zeros or damage; in a journal also cut.

    `header`: of a batch, right by its own checksum; `is_whole`: all of the piece is.
    """

    kind: str
    position: int
    size_bytes: int
    is_whole: bool
    header: BatchHeader | None = None
    cut: JournalCut | None = None


def pieces_in(file: BinaryIO, size_bytes: int, start: int = 0) -> Iterator[Piece]:
    """All pieces of a segment from `start` on, in order; together they are the whole file."""
    position = start
    while position < size_bytes:
        piece = (
            _pad_at(file, position, size_bytes)
            or batch_at(file, position, size_bytes)
            or _gap(file, position, size_bytes)
        )
        yield piece
        position += piece.size_bytes


def batch_at(file: BinaryIO, position: int, end: int) -> Piece | None:
    """A batch whose header is right and that ends at `end` at most; its payload need not be."""
    try:
        header = read_header(memoryview(_read_at(file, position, HEADER_BYTES)))
    except CorruptBatchError:
        return None
    if position + header.batch_bytes > end:
        return None
    is_whole = True
    try:
        verify_batch(memoryview(_read_at(file, position, header.batch_bytes)))
    except CorruptBatchError:
        is_whole = False
    return Piece("batch", position, header.batch_bytes, is_whole, header)


def cut_at(file: BinaryIO, position: int) -> Piece | None:
    """A cut in a frame of a journal."""
    cut = read_cut(memoryview(_read_at(file, position, JOURNAL_CUT.size)))
    return cut and Piece("cut", position, JOURNAL_CUT.size, is_whole=True, cut=cut)


def lines_in(file: BinaryIO, piece: Piece) -> list[bytes]:
    """The records of a whole batch, each as the JSON that a read answers. CorruptBatchError."""
    header = piece.header
    assert header is not None, piece
    stored = memoryview(_read_at(file, piece.position, piece.size_bytes))
    try:
        columns = cut_columns(header, decompress_payload(header, stored))
    except CorruptBatchError as error:
        raise CorruptBatchError(
            f"offset {header.base_offset} cannot be read ({error.detail})"
        ) from error
    is_json = bool(header.flags & Flag.JSON_VALUES)
    try:
        return column_lines(header.partition, header.base_offset, columns, values_are_json=is_json)
    except (OverflowError, ValueError) as error:
        raise CorruptBatchError(f"a time of a record is none: {error}") from error


def _pad_at(file: BinaryIO, position: int, end: int) -> Piece | None:
    head = _read_at(file, position, PAD_HEADER.size)
    pad_bytes = read_pad(memoryview(head))
    if not PAD_HEADER.size <= pad_bytes <= end - position:
        return None
    fill = _read_at(file, position + PAD_HEADER.size - 4, pad_bytes - PAD_HEADER.size + 4)
    return Piece("pad", position, pad_bytes, is_whole=not any(fill))


def _gap(file: BinaryIO, position: int, end: int) -> Piece:
    """Zeros, or damage, up to where a batch or a pad can start again."""
    is_zero: bool | None = None
    behind = position
    while behind < end:
        block = _read_at(file, behind, BLOCK_BYTES - behind % BLOCK_BYTES)
        if not block:  # a broker has cut the file meanwhile
            behind = end
        elif is_zero is None:
            is_zero = not any(block)
        elif is_zero == any(block) or int.from_bytes(block[:4], "little") in _MAGICS:
            break
        behind += len(block)
    is_damage = is_zero is False
    return Piece("damage" if is_damage else "zeros", position, behind - position, not is_damage)


def _read_at(file: BinaryIO, position: int, size_bytes: int) -> bytes:
    """Fewer bytes only at the end."""
    file.seek(position)
    return file.read(size_bytes)
