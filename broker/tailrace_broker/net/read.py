"""Stateless reads and offsets -> answers; the same for every door (docs/protocol.md)."""

from typing import Any, NamedTuple

import msgspec

from tailrace.wire import BATCH_CONTENT_TYPE, JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE, Flag
from tailrace_broker.codec.batch import decompress_payload
from tailrace_broker.codec.records import Record, json_lines, unpack_columns
from tailrace_broker.model.errors import CorruptPartitionError, InvalidParameterError
from tailrace_broker.net.api import Broker, HostedTopic, PartitionLog, ReadableBatch

RECORDS_DEFAULT = 1_000
RECORDS_MAX = 100_000
READ_BYTES_DEFAULT = 1024 * 1024
READ_BYTES_MAX = 16 * 1024 * 1024


class ReadRequest(NamedTuple):
    """A stateless read; `offset` as given: a number, `earliest` or `latest`."""

    topic: str
    partition: int
    offset: str
    records_max: int
    bytes_max: int
    accept: str


class ReadAnswer(NamedTuple):
    """A read's answer."""

    content_type: str
    body: bytes
    next_offset: int
    high_watermark: int
    log_start: int


async def read(broker: Broker, request: ReadRequest) -> ReadAnswer:
    """Records from an offset on; empty at the high watermark.

    TopicNotFoundError, PartitionNotFoundError, OffsetOutOfRangeError, InvalidParameterError,
    CorruptPartitionError.
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
    if BATCH_CONTENT_TYPE in request.accept:
        content_type, body, next_offset = await _read_batches(log, offset, request.bytes_max)
    else:
        lines, next_offset = await _read_lines(log, request.partition, offset, request.records_max)
        if JSON_CONTENT_TYPE in request.accept:
            content_type, body = JSON_CONTENT_TYPE, b"[%s]" % b",".join(lines)
        else:
            content_type = NDJSON_CONTENT_TYPE
            body = b"".join(line + b"\n" for line in lines)
    broker.counters.read_bytes += len(body)
    return ReadAnswer(content_type, body, next_offset, log.high_watermark, log.log_start)


def offsets(hosted_topics: list[HostedTopic]) -> bytes:
    """`GET /v1/offsets`: where each partition starts and ends; null where damage hides it."""
    return msgspec.json.encode({"topics": [_topic_offsets(hosted) for hosted in hosted_topics]})


def parse_number(name: str, text: str | None, default: int, largest: int) -> int:
    """A query parameter in [1, largest]; InvalidParameterError."""
    if text is None:
        return default
    if text.isascii() and text.isdigit() and 1 <= int(text[:19]) <= largest:
        return int(text)
    raise InvalidParameterError(
        f"{name} is {text}; it is a whole number from 1 to {largest}", parameter=name
    )


def _parse_offset(text: str, log: PartitionLog) -> int:
    if text == "earliest":
        return log.log_start
    if text == "latest":
        return log.high_watermark
    if text.isascii() and text.isdigit():
        return int(text[:19])
    raise InvalidParameterError(
        f"offset is {text}; it is earliest, latest or a whole number", parameter="offset"
    )


async def _read_batches(log: PartitionLog, offset: int, bytes_max: int) -> tuple[str, bytes, int]:
    batches = await log.read(offset, bytes_max)
    next_offset = batches[-1].header.end_offset if batches else offset
    body = b"".join(buffer for batch in batches for buffer in batch.buffers)
    return BATCH_CONTENT_TYPE, body, next_offset


async def _read_lines(
    log: PartitionLog, partition: int, offset: int, records_max: int
) -> tuple[list[bytes], int]:
    """JSON texts of exactly min(records_max, available) records, and the offset behind them."""
    lines: list[bytes] = []
    next_offset = offset
    high_watermark = log.high_watermark  # of one moment, so that live producers do not prolong it
    while True:
        for batch in await log.read(next_offset, READ_BYTES_DEFAULT):
            records = _unpack(batch)
            skipped = next_offset - records[0].offset
            wanted = records[skipped : skipped + records_max - len(lines)]
            lines += json_lines(
                partition,
                wanted,
                values_are_json=bool(batch.header.flags & Flag.JSON_VALUES),
            )
            next_offset += len(wanted)
            if len(lines) == records_max:
                return lines, next_offset
        if next_offset >= high_watermark:
            return lines, next_offset


def _unpack(batch: ReadableBatch) -> list[Record]:
    stored = memoryview(b"".join(batch.buffers))
    return unpack_columns(batch.header, decompress_payload(batch.header, stored))


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
