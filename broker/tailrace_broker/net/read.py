"""Stateless reads and offsets -> answers; the same for every door (docs/protocol.md)."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import msgspec

from tailrace.wire import BATCH_CONTENT_TYPE, JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE, Flag
from tailrace_broker.codec.batch import decompress_payload
from tailrace_broker.codec.records import json_lines, unpack_columns
from tailrace_broker.model.errors import CorruptPartitionError, InvalidParameterError
from tailrace_broker.net.api import Broker, HostedTopic, PartitionLog, ReadableBatch

RECORDS_DEFAULT = 1_000
RECORDS_MAX = 100_000
READ_BYTES_DEFAULT = 1024 * 1024
READ_BYTES_MAX = 16 * 1024 * 1024
# Of a batch's columns that become text at once.
PIECE_BYTES = 512 * 1024
OFFSET_MAX = 2**63 - 1
_DIGITS_MAX = 19  # of OFFSET_MAX; longer texts are not even read


class ReadRequest(NamedTuple):
    """A stateless read; `offset` as given: a number, `earliest` or `latest`."""

    topic: str
    partition: int
    offset: str
    records_max: int
    bytes_max: int
    accept: str


class ReadAnswer(NamedTuple):
    """A read's answer; `chunks` is read while it is sent, so that its size is not bounded."""

    content_type: str
    chunks: AsyncIterator[bytes]
    next_offset: int
    high_watermark: int
    log_start: int


async def read(broker: Broker, request: ReadRequest) -> ReadAnswer:
    """Records from an offset on; empty at the high watermark.

    TopicNotFoundError, PartitionNotFoundError, OffsetOutOfRangeError, InvalidParameterError,
    CorruptPartitionError (also from `chunks`, when the damage is behind the first batches).
    """
    try:
        return await _read(broker, request)
    except CorruptPartitionError as error:
        raise CorruptPartitionError(
            error.detail, topic=request.topic, partition=request.partition
        ) from error


async def _read(broker: Broker, request: ReadRequest) -> ReadAnswer:
    log = broker.hosted(request.topic).log_of(request.partition)
    offset = _parse_offset(request.offset, log)
    high_watermark = log.high_watermark  # of one moment, so that live producers do not prolong it
    if BATCH_CONTENT_TYPE in request.accept:
        batches = await log.read(offset, request.bytes_max)
        next_offset = batches[-1].header.end_offset if batches else offset
        content_type, chunks = BATCH_CONTENT_TYPE, _unchanged(batches)
    else:
        batches = await log.read(offset, READ_BYTES_DEFAULT)
        next_offset = min(offset + request.records_max, high_watermark)
        lines = _json_lines(log, request.partition, batches, offset, next_offset)
        if JSON_CONTENT_TYPE in request.accept:
            content_type, chunks = JSON_CONTENT_TYPE, _as_array(lines)
        else:
            content_type, chunks = NDJSON_CONTENT_TYPE, _as_lines(lines)
    return ReadAnswer(content_type, chunks, next_offset, high_watermark, log.log_start)


def offsets(hosted_topics: list[HostedTopic]) -> bytes:
    """`GET /v1/offsets`: where each partition starts and ends; null where damage hides it."""
    return msgspec.json.encode({"topics": [_topic_offsets(hosted) for hosted in hosted_topics]})


def whole_number(name: str, text: str, smallest: int, largest: int) -> int:
    """A parameter in [smallest, largest]; InvalidParameterError."""
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX:
        number = int(text)
        if smallest <= number <= largest:
            return number
    raise InvalidParameterError(
        f"{name} is {_shown(text)}; it is a whole number from {smallest} to {largest}",
        parameter=name,
    )


def _parse_offset(text: str, log: PartitionLog) -> int:
    if text == "earliest":
        return log.log_start
    if text == "latest":
        return log.high_watermark
    if text.isascii() and text.isdigit():
        return whole_number("offset", text, 0, OFFSET_MAX)
    raise InvalidParameterError(
        f"offset is {_shown(text)}; it is earliest, latest or a whole number", parameter="offset"
    )


def _shown(text: str) -> str:
    return text if len(text) <= _DIGITS_MAX else f"{text[:_DIGITS_MAX]}…"


async def _unchanged(batches: Sequence[ReadableBatch]) -> AsyncIterator[bytes]:
    """Whole batches as they are stored."""
    yield b"".join(buffer for batch in batches for buffer in batch.buffers)


async def _json_lines(
    log: PartitionLog, partition: int, batches: Sequence[ReadableBatch], offset: int, end: int
) -> AsyncIterator[list[bytes]]:
    """JSON texts of the records `[offset, end)`, piece by piece; `batches` are the first.

    A reader that stalls holds one batch and a piece of it as text.
    """
    while offset < end:
        for batch in batches:
            header = batch.header
            columns = decompress_payload(header, memoryview(b"".join(batch.buffers)))
            is_json = bool(header.flags & Flag.JSON_VALUES)
            piece_records = max(1, header.record_count * PIECE_BYTES // len(columns))
            while offset < min(end, header.end_offset):
                last = min(offset + piece_records, end, header.end_offset)
                first = offset - header.base_offset
                records = unpack_columns(
                    header, columns, first=first, last=last - header.base_offset
                )
                yield list(json_lines(partition, records, values_are_json=is_json))
                offset = last
            if offset == end:
                return
        batches = await log.read(offset, READ_BYTES_DEFAULT)


async def _as_lines(texts: AsyncIterator[list[bytes]]) -> AsyncIterator[bytes]:
    async for some in texts:
        yield b"\n".join([*some, b""])


async def _as_array(texts: AsyncIterator[list[bytes]]) -> AsyncIterator[bytes]:
    before = b"["
    async for some in texts:
        yield before + b",".join(some)
        before = b","
    yield b"]" if before == b"," else b"[]"


def _topic_offsets(hosted: HostedTopic) -> dict[str, Any]:
    topic = hosted.topic
    rows = []
    for partition in topic.partitions:
        log = _log_or_none(hosted, partition.partition)
        rows.append(
            {
                "partition": partition.partition,
                "range": partition.range_id,
                "epoch": partition.epoch,
                "firstOffset": partition.first_offset,
                "logStart": log and log.log_start,
                "highWatermark": log and log.high_watermark,
                "logEnd": log and log.log_end,
                "state": "open" if log else "damaged",
                "parents": list(partition.parents),
            }
        )
    return {"topic": topic.name, "partitions": rows}


def _log_or_none(hosted: HostedTopic, partition: int) -> PartitionLog | None:
    """None: the partition's data is damaged."""
    try:
        return hosted.log_of(partition)
    except CorruptPartitionError:
        return None
