"""Batches -> JSON text in chunks, and what an answer of them holds (docs/protocol.md, "Read")."""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import NamedTuple

from tailrace.wire import JSON_CONTENT_TYPE, BatchHeader, Flag
from tailrace_broker.codec.batch import StoredBatch, decompress_payload
from tailrace_broker.codec.records import column_lines, cut_columns
from tailrace_broker.net.broker import Broker

# Of columns that become text at once, of a large batch or of several small ones: a few milliseconds
# in which others wait.
PIECE_BYTES = 128 * 1024
# Of an answer at most so much text is under way: a chunk, what is ready, and what is being sent.
TEXT_BYTES_MAX = 4 * 1024 * 1024

_JSON_VALUES = int(Flag.JSON_VALUES)


class BatchPart(NamedTuple):
    """Records `[first, last)` of a batch, and where they are: as much as becomes text at once."""

    header: BatchHeader
    columns: memoryview
    first: int
    last: int

    @property
    def size_bytes(self) -> int:
        """Their part of the columns."""
        return len(self.columns) * (self.last - self.first) // self.header.record_count


def cuts_of(batches: Sequence[StoredBatch], offset: int, end: int) -> Iterator[BatchPart]:
    """The records of these batches in `[offset, end)`."""
    for batch in batches:
        header = batch.header
        columns = decompress_payload(header, batch.contents())
        cut_records = max(1, header.record_count * PIECE_BYTES // len(columns))
        while offset < min(end, header.end_offset):
            last = min(offset + cut_records, end, header.end_offset)
            yield BatchPart(header, columns, offset - header.base_offset, last - header.base_offset)
            offset = last


def lines_of(
    partition: int,
    batches: Sequence[StoredBatch],
    offset: int,
    end: int,
    *,
    topic: str | None = None,
) -> Iterator[list[bytes]]:
    """Lines of JSON of the records of these batches in `[offset, end)`, with the topic's name.

    Those of small batches come together.
    """
    lines: list[bytes] = []
    lines_bytes = 0
    for cut in cuts_of(batches, offset, end):
        if lines and lines_bytes + cut.size_bytes > PIECE_BYTES:
            yield lines
            lines, lines_bytes = [], 0
        header = cut.header
        lines += column_lines(
            partition,
            header.base_offset + cut.first,
            cut_columns(header, cut.columns, first=cut.first, last=cut.last),
            values_are_json=bool(header.flags & _JSON_VALUES),
            topic=topic,
        )
        lines_bytes += cut.size_bytes
    if lines:
        yield lines


def unpinned_bytes(batches: Sequence[StoredBatch]) -> int:
    """Return the size of batches in memory: they may leave the cache before they are sent.

    Those of a disk read are views of a pinned buffer, which is counted separately.
    """
    return sum(batch.header.batch_bytes for batch in batches if isinstance(batch.buffers[0], bytes))


class TextBytes(NamedTuple):
    """What batches take while they become text one after the other."""

    columns_bytes: int = 0
    largest_bytes: int = 0

    def with_batches(self, batches: Sequence[StoredBatch]) -> "TextBytes":
        """Hold these batches too."""
        sizes = [batch.header.uncompressed_bytes for batch in batches]
        return TextBytes(self.columns_bytes + sum(sizes), max(self.largest_bytes, *sizes, 0))

    @property
    def held_bytes(self) -> int:
        """The columns of one, and the text that is under way."""
        return self.largest_bytes + min(self.columns_bytes, TEXT_BYTES_MAX)


async def counted(broker: Broker, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Count the bytes that are sent."""
    async for chunk in chunks:
        broker.counters.read_bytes += len(chunk)
        yield chunk


def as_text(lines: AsyncIterator[list[bytes]], content_type: str) -> AsyncIterator[bytes]:
    """Lines, or one array of them."""
    return _as_array(lines) if content_type == JSON_CONTENT_TYPE else _as_lines(lines)


async def _as_lines(texts: AsyncIterator[list[bytes]]) -> AsyncIterator[bytes]:
    async for some in texts:
        yield b"\n".join([*some, b""])


async def _as_array(texts: AsyncIterator[list[bytes]]) -> AsyncIterator[bytes]:
    before = b"["
    async for some in texts:
        if not some:
            yield b""
            continue
        yield before + b",".join(some)
        before = b","
    yield b"]" if before == b"," else b"[]"
