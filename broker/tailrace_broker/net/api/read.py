"""Stateless reads of records -> answers (docs/protocol.md, "Read")."""

import asyncio
import heapq
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import groupby
from time import monotonic
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tailrace.wire import BATCH_CONTENT_TYPE, JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE
from tailrace_broker.codec.batch import StoredBatch, decompress_payload
from tailrace_broker.codec.records import unpack_columns
from tailrace_broker.memory.pool import Lease
from tailrace_broker.memory.read_memory import ReadMemory
from tailrace_broker.model.damage import Damage
from tailrace_broker.model.errors import (
    CorruptPartitionError,
    InvalidParameterError,
    NotAcceptableError,
    NotLeaderError,
    OffsetOutOfRangeError,
    OverloadError,
    ReadFailedError,
    ReadMemoryFullError,
)
from tailrace_broker.model.topic import Partition
from tailrace_broker.net.api.record_texts import (
    TextBytes,
    as_text,
    counted,
    lines_of,
    unpinned_bytes,
)
from tailrace_broker.net.api.redirect import wants_redirect
from tailrace_broker.net.broker import Broker, OpenTopic
from tailrace_broker.net.http.router import (
    DIGITS_MAX,
    Call,
    Parameters,
    PartitionId,
    Response,
    TopicName,
    shortened,
)
from tailrace_broker.net.http.timestamps import TIMESTAMP_FORMS, read_timestamp
from tailrace_broker.net.logs import OpenLog

RECORDS_DEFAULT = 1_000
RECORDS_MAX = 100_000
READ_BYTES_DEFAULT = 1024 * 1024
READ_BYTES_MAX = 16 * 1024 * 1024
WAIT_MS_MAX = 60_000
LAST_RECORDS_MAX = 1_000

# Of the last records, so many at a time are asked of another broker.
ASKED_RECORDS_MAX = 50

_Place = tuple[int, int, int]  # timestamp, partition, offset

_TEXT_TYPES = (NDJSON_CONTENT_TYPE, JSON_CONTENT_TYPE)


class ReadParameters(Parameters, frozen=True):
    """Of `GET /v1/topic/{topic}/partitions/{partition}/records`."""

    topic: TopicName
    partition: PartitionId
    offset: (
        Annotated[
            str,
            Meta(
                description="Of the first record: a number, `earliest` (the default), `latest`, or "
                "`-n`: n records before the end."
            ),
        ]
        | None
    ) = None
    timestamp: (
        Annotated[
            str,
            Meta(
                description="In place of `offset`: from the first record of this time or later; "
                f"{TIMESTAMP_FORMS}.",
            ),
        ]
        | None
    ) = None
    max_records: Annotated[
        int, Meta(ge=1, le=RECORDS_MAX, description="Of a JSON or NDJSON answer.")
    ] = RECORDS_DEFAULT
    max_bytes: Annotated[
        int, Meta(ge=1, le=READ_BYTES_MAX, description="Of a binary answer; at least one batch.")
    ] = READ_BYTES_DEFAULT
    wait_ms: Annotated[
        int,
        Meta(ge=0, le=WAIT_MS_MAX, description="Wait this long for records when there are none."),
    ] = 0
    isolation: Annotated[
        Literal["committed", "uncommitted"],
        Meta(description="`uncommitted`: up to the log end, without the promise of one order."),
    ] = "committed"


class LastParameters(Parameters, frozen=True):
    """Of `GET /v1/topic/{topic}/records`."""

    topic: TopicName
    last: Annotated[int, Meta(ge=1, le=LAST_RECORDS_MAX, description="How many.")] = 1


class RecordAnswer(msgspec.Struct, rename="camel"):
    """A record; bytes are `{"base64": "…"}`: a value that is not JSON (`valueEncoding` says so) and
    a key, or the key or value of a header, that is not UTF-8.
    """

    partition: int
    offset: int
    timestamp: Annotated[str, Meta(description="RFC 3339, UTC, with microseconds.")]
    key: str | dict[str, str] | None
    value: Any
    value_encoding: Annotated[
        Literal["base64"] | msgspec.UnsetType, Meta(description="When the value is not JSON.")
    ] = msgspec.UNSET
    headers: Annotated[
        list[dict[str, Any]] | msgspec.UnsetType, Meta(description="When the record has some.")
    ] = msgspec.UNSET


async def read_partition(broker: Broker, call: Call) -> Response:
    """Records from an offset or a time on; empty at the end.

    What a copy here has below its high watermark it serves; all else whoever leads.
    """
    parameters: ReadParameters = call.parameters
    partition = parameters.partition
    find = broker.hosted_for_brokers if call.is_forwarded else broker.hosted
    hosted = find(parameters.topic)
    content_type = preferred_type(call.accept, (*_TEXT_TYPES, BATCH_CONTENT_TYPE))
    read = partial(_read_from, broker, hosted, parameters, content_type)
    if wants_redirect(call):
        return await read(hosted.log_of(partition))
    replica = hosted.replica_of(partition)
    if replica is not None and _is_below_end(replica, parameters):
        with suppress(CorruptPartitionError, ReadFailedError, OffsetOutOfRangeError, OverloadError):
            response = await read(replica)
            if replica.is_served or not _is_at_end(response):
                return response
    answer = await broker.read_at_leader(
        hosted, partition, call.target, call.accept, lambda: read(hosted.log_of(partition))
    )
    return Response(*answer)


def _is_at_end(answer: Response) -> bool:
    """Whether all that the replica knows is in it: the leader may have more."""
    headers = answer.headers
    return int(headers["tailrace-next-offset"]) >= int(headers["tailrace-high-watermark"])


def _is_below_end(replica: OpenLog, parameters: ReadParameters) -> bool:
    """Whether what is asked for is committed, and there, whoever leads."""
    text = parameters.offset or "earliest"
    if parameters.timestamp is not None or parameters.isolation != "committed":
        return False
    if text == "earliest":
        return replica.log_start < replica.high_watermark
    is_number = text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
    return is_number and replica.log_start <= int(text) < replica.high_watermark


async def _read_from(
    broker: Broker,
    hosted: OpenTopic,
    parameters: ReadParameters,
    content_type: str,
    log: OpenLog,
) -> Response:
    offset = await _find_offset(broker, log, parameters)
    if offset == log.high_watermark and parameters.wait_ms:
        with suppress(TimeoutError):
            async with asyncio.timeout(parameters.wait_ms / 1000):
                await log.wait_beyond(offset)
    if offset >= log.high_watermark and log.is_served and not log.knows_end:
        await log.check_end()  # a new leader has what was acknowledged there, and will know it soon
    try:
        return await _read(broker, hosted, log, parameters, offset, content_type)
    except OffsetOutOfRangeError:  # what a leader lacks that is none any more another may have
        await log.check_end()
        raise


async def read_last(broker: Broker, call: Call) -> Response:
    """Return the newest N by record time of the last N records of each partition, oldest first."""
    parameters: LastParameters = call.parameters
    hosted = broker.hosted(parameters.topic)
    content_type = preferred_type(call.accept, _TEXT_TYPES)
    newest: list[_Place] = []  # a heap
    leaders: dict[int, int] = {}  # by partition that other brokers lead
    for partition in hosted.topic.partitions:
        try:
            log = hosted.log_of(partition.partition)
        except NotLeaderError as error:
            if wants_redirect(call) and not call.is_forwarded:
                raise
            leaders[partition.partition] = int(str(error.members["leader"]))
            continue
        async for timestamp_us, offset in _times_of_last(broker, log, parameters.last):
            _keep_newest(newest, (timestamp_us, partition.partition, offset), parameters.last)
    if call.is_forwarded:
        return Response((msgspec.json.encode(newest),))
    for leader in set(leaders.values()):
        theirs = msgspec.json.decode(
            await broker.ask_broker(leader, call.target), type=list[_Place]
        )
        for place in theirs:
            _keep_newest(newest, place, parameters.last)
    places = [(partition, offset) for _, partition, offset in sorted(newest)]
    lease = broker.read_memory.lease()
    lines = _lines_at(broker, lease, hosted, leaders, places)
    return Response(counted(broker, as_text(lines, content_type)), content_type, lease=lease)


def _keep_newest(newest: list[_Place], place: _Place, count: int) -> None:
    if len(newest) < count:
        heapq.heappush(newest, place)
    else:
        heapq.heappushpop(newest, place)


@lru_cache(maxsize=64)
def preferred_type(accept: str, offered: tuple[str, ...]) -> str:
    """The offered content type that `Accept` prefers (RFC 9110, 12.5.1), the first when it does
    not care; NotAcceptableError when it wants none.
    """
    if not accept:
        return offered[0]
    qualities: dict[str, float] = {}
    for media_range in accept.split(","):
        name, *options = (part.strip() for part in media_range.split(";"))
        qualities[name] = next((_quality(text) for text in options if text.startswith("q=")), 1.0)

    def quality(content_type: str) -> float:
        """Return the quality of the most specific range that includes it."""
        ranges = (content_type, content_type.partition("/")[0] + "/*", "*/*")
        return next((qualities[range_] for range_ in ranges if range_ in qualities), 0.0)

    best = max(offered, key=quality)
    if not quality(best):
        raise NotAcceptableError(f"accept {shortened(accept)} is none of: {', '.join(offered)}")
    return best


def _quality(text: str) -> float:
    """Return the quality in "q=0.5"; what cannot be read is not wanted."""
    try:
        quality = float(text.removeprefix("q="))
    except ValueError:
        return 0.0
    return quality if 0 <= quality <= 1 else 0.0


async def _find_offset(broker: Broker, log: OpenLog, parameters: ReadParameters) -> int:
    """Return where to begin, whatever the request names it by. InvalidParameterError."""
    text = parameters.offset
    if parameters.timestamp is not None:
        if text is not None:
            raise InvalidParameterError(
                "offset and timestamp both say where to begin; give one", parameter="timestamp"
            )
        find = partial(log.find_timestamp, read_timestamp(parameters.timestamp))
        offset = await broker.read_memory.run(find)
        if offset is None:
            await log.check_end()
            return log.high_watermark
        return offset
    if text is None or text == "earliest":
        return log.log_start
    if text == "latest":
        await log.check_end()
        return log.high_watermark
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= DIGITS_MAX:
        if not text.startswith("-"):
            return int(digits)
        await log.check_end()
        return max(log.log_start, log.high_watermark - int(digits))
    raise InvalidParameterError(
        f"offset is {shortened(text)}; it is earliest, latest, a whole number, or -n for n records "
        "before the end",
        parameter="offset",
    )


async def _read(
    broker: Broker,
    hosted: OpenTopic,
    log: OpenLog,
    parameters: ReadParameters,
    offset: int,
    content_type: str,
) -> Response:
    began_s = monotonic()
    high_watermark = log.high_watermark  # of one moment, so that live producers do not prolong it
    body: Sequence[bytes | memoryview] | AsyncIterator[bytes]
    lease = broker.read_memory.lease()
    if content_type == BATCH_CONTENT_TYPE:
        read = partial(_read_unchanged, lease, log, offset, parameters.max_bytes)
        batches = await broker.read_memory.run(read)
        next_offset = batches[-1].header.end_offset if batches else offset
        body = [buffer for batch in batches for buffer in batch.buffers if buffer]
        broker.counters.read_bytes += sum(map(len, body))
    else:
        read = partial(_read_for_text, lease, log, offset)
        batches = await broker.read_memory.run(read)
        next_offset = _end_of_text(
            log, offset, min(offset + parameters.max_records, high_watermark)
        )
        part = parameters.partition, offset, next_offset
        lines = _json_lines(broker.read_memory, lease, log, *part, batches)
        body = counted(broker, as_text(lines, content_type))
    headers = {
        "tailrace-next-offset": str(next_offset),
        "tailrace-high-watermark": str(high_watermark),
        "tailrace-log-start": str(log.log_start),
    }
    partition = hosted.topic.at(parameters.partition)
    hosted.counts.read_records += next_offset - offset
    broker.counters.fetch_seconds.add(monotonic() - began_s)
    headers |= _state_headers(partition, next_offset)
    return Response(body, content_type, 200, headers, lease)


def _end_of_text(log: OpenLog, offset: int, end: int) -> int:
    """Return where an answer of the records `[offset, end)` ends: before the next known damage."""
    damages = (each.first_offset for each in log.quarantined)
    return min([end, *(damage for damage in damages if damage > offset)])


async def _read_unchanged(
    lease: Lease, log: OpenLog, offset: int, max_bytes: int
) -> Sequence[StoredBatch]:
    """Batches to be sent as they are. ReadMemoryFullError."""
    batches = await log.read(offset, max_bytes)
    lease.resize(unpinned_bytes(batches))
    return batches


async def _read_for_text(lease: Lease, log: OpenLog, offset: int) -> Sequence[StoredBatch]:
    """Batches to be unpacked one after the other. ReadMemoryFullError."""
    batches = await log.read(offset, READ_BYTES_DEFAULT)
    lease.resize(unpinned_bytes(batches) + TextBytes().with_batches(batches).held_bytes)
    return batches


def _state_headers(partition: Partition, next_offset: int) -> dict[str, str]:
    """The epoch; and what follows a sealed partition, for readers at its end."""
    headers = {"tailrace-epoch": str(partition.epoch)}
    if partition.sealed_end is not None and next_offset >= partition.sealed_end:
        headers["tailrace-sealed"] = "true"
        headers["tailrace-children"] = ",".join(map(str, partition.children))
    return headers


async def _times_of_last(
    broker: Broker, log: OpenLog, count: int
) -> AsyncIterator[tuple[int, int]]:
    """(timestamp, offset) of the last `count` records, batch by batch."""
    await log.check_end()
    end = log.high_watermark
    lost = [each for each in log.quarantined if each.is_accepted and each.end_offset <= end]
    offset = _start_of_last(log.log_start, end, count, lost)
    while offset < end:
        within = (each for each in lost if each.first_offset <= offset < each.end_offset)
        offset = next((each.end_offset for each in within), offset)
        for batch in await broker.read_memory.run(partial(log.read, offset, READ_BYTES_DEFAULT)):
            for entry in _times(batch, offset, end):
                yield entry
            await asyncio.sleep(0)  # others' requests come in between
            offset = batch.header.end_offset
            if offset >= end:
                return


def _start_of_last(log_start: int, end: int, count: int, lost: Sequence[Damage]) -> int:
    """Return where the last `count` records begin; those of `lost`, in order, do not count."""
    for loss in reversed(lost):
        behind = end - loss.end_offset
        if behind >= count:
            break
        end, count = loss.first_offset, count - behind
    return max(log_start, end - count)


def _times(batch: StoredBatch, offset: int, end: int) -> list[tuple[int, int]]:
    """(timestamp, offset) of a batch's records in `[offset, end)`."""
    header = batch.header
    columns = decompress_payload(header, batch.contents())
    first, last = offset - header.base_offset, min(end, header.end_offset) - header.base_offset
    records = unpack_columns(header, columns, first=first, last=last)
    return [(record.timestamp_us, record.offset) for record in records]


async def _lines_at(
    broker: Broker,
    lease: Lease,
    hosted: OpenTopic,
    leaders: Mapping[int, int],
    places: Sequence[tuple[int, int]],
) -> AsyncIterator[list[bytes]]:
    """JSON texts of the records at these (partition, offset), in this order.

    From a copy here, or else from who leads.
    """
    numbered = enumerate(places)
    runs = groupby(numbered, key=lambda each: (each[1][0], each[1][1] - each[0]))
    for (partition, _), run in runs:  # neighbours in a log are read at once
        offsets = [offset for _, (_, offset) in run]
        first, end = offsets[0], offsets[-1] + 1
        replica = hosted.replica_of(partition)
        is_whole = replica is not None and end <= replica.high_watermark
        if partition in leaders and not is_whole:  # what is new to the copy here
            target = f"/v1/topic/{hosted.topic.name}/partitions/{partition}/records"
            for start in range(first, end, ASKED_RECORDS_MAX):
                yield []  # what is ready leaves first
                lease.resize(0)
                query = f"?offset={start}&maxRecords={min(ASKED_RECORDS_MAX, end - start)}"
                page = await broker.ask_broker(leaders[partition], f"{target}{query}".encode())
                yield page.splitlines()
        else:
            log = hosted.log_of(partition) if replica is None else replica
            async for lines in _json_lines(broker.read_memory, lease, log, partition, first, end):
                yield lines


async def _json_lines(
    memory: ReadMemory,
    lease: Lease,
    log: OpenLog,
    partition: int,
    offset: int,
    end: int,
    batches: Sequence[StoredBatch] = (),
) -> AsyncIterator[list[bytes]]:
    """JSON texts of the records `[offset, end)`, chunk by chunk; `batches` are the first.

    An empty chunk before it waits for memory: who waits holds none.
    """
    while True:
        for lines in lines_of(partition, batches, offset, end):
            yield lines
        offset = batches[-1].header.end_offset if batches else offset
        if offset >= end:
            return
        batches, lines = (), []
        read = partial(_read_for_text, lease, log, offset)
        with suppress(ReadMemoryFullError):
            batches = await read()
        if not batches:  # not while the error is handled: it would keep this frame, and the lease
            yield []
            lease.resize(0)
            batches = await memory.run(read)
