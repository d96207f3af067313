"""What other brokers ask for to copy sealed logs. No listener has these routes: they are asked on
the links between brokers, and name topics by their ids.
"""

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from tailrace.wire import BATCH_CONTENT_TYPE
from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.codec.copied import chained
from tailrace_broker.model.damage import given_up, unreadable
from tailrace_broker.model.errors import CorruptPartitionError, PathNotFoundError
from tailrace_broker.net.api.topics import json_response
from tailrace_broker.net.broker import Broker
from tailrace_broker.net.http.router import (
    AnswerForm,
    Call,
    Listeners,
    Parameters,
    Response,
    Route,
)
from tailrace_broker.net.logs import SealedLog

PARTITION_MAX, OFFSET_MAX = 2**31 - 1, 2**62
READ_BYTES = 1024 * 1024
# What is compared in one answer: some tenths of a second.
COMPARED_BYTES_MAX = 32 * 1024 * 1024

_LOG = "/internal/copies/{topicId}/{partition}"


class CopyParameters(Parameters, frozen=True):
    """Of a log."""

    topic_id: str
    partition: Annotated[int, Meta(ge=0, le=PARTITION_MAX)]


class CompareParameters(CopyParameters, frozen=True):
    """Of a part of a log."""

    start: Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
    end: Annotated[int, Meta(ge=0, le=OFFSET_MAX)]


class BatchParameters(CopyParameters, frozen=True):
    """Of a piece of a log."""

    offset: Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
    max_bytes: Annotated[int, Meta(ge=1, le=READ_BYTES)]


class CopyEndsAnswer(msgspec.Struct, rename="camel"):
    """Where the log begins, and where it was sealed."""

    log_start: int
    end: int


class ComparedAnswer(msgspec.Struct, rename="camel"):
    """The checksum of the batches up to `end`.

    `is_lost`: of none, as was accepted; `is_damaged`: they cannot be read.
    """

    checksum: int
    end: int
    is_lost: bool = False
    is_damaged: bool = False


class ClockAnswer(msgspec.Struct, rename="camel"):
    """What the clock of the broker says, in µs since the epoch."""

    now_us: int


async def read_clock(broker: Broker, _: Call) -> Response:
    """The time here: who decides what all remove is wrong when others have another time."""
    return json_response(ClockAnswer(broker.now_us()))


async def describe_copy(broker: Broker, call: Call) -> Response:
    """Where it begins and ends."""
    log = _log(broker, call.parameters)
    return json_response(CopyEndsAnswer(log.log_start, log.log_end))


async def compare_copy(broker: Broker, call: Call) -> Response:
    """The checksum of some batches from the one that holds `start`, below `end`."""
    parameters: CompareParameters = call.parameters
    log = _log(broker, parameters)
    offset, checksum, size_bytes = parameters.start, 0, 0
    end = min(parameters.end, log.log_end)
    while offset < end and size_bytes < COMPARED_BYTES_MAX:
        try:
            found = await _read(broker, log, offset, READ_BYTES)
        except CorruptPartitionError as error:
            if offset > parameters.start:  # the next comparison meets it
                break
            lost, is_lost = unreadable(error), given_up(error) is not None
            if lost is None:
                raise
            answer = ComparedAnswer(checksum, lost.stop, is_lost=is_lost, is_damaged=not is_lost)
            return json_response(answer)
        batches = [each for each in found if each.header.base_offset < end]
        checksum = chained(map(attrgetter("header"), batches), checksum)
        size_bytes += sum(each.header.batch_bytes for each in batches)
        offset = batches[-1].header.end_offset
    return json_response(ComparedAnswer(checksum, offset))


async def read_copy(broker: Broker, call: Call) -> Response:
    """Batches as they are stored, from the one that holds `offset`."""
    parameters: BatchParameters = call.parameters
    log = _log(broker, parameters)
    batches = await _read(broker, log, parameters.offset, parameters.max_bytes)
    body = [buffer for batch in batches for buffer in batch.buffers if buffer]
    return Response(body, BATCH_CONTENT_TYPE)


def _log(broker: Broker, parameters: CopyParameters) -> SealedLog:
    try:
        topic_id = UUID(parameters.topic_id)
    except ValueError:
        raise PathNotFoundError("a topic's id is a UUID") from None
    return broker.sealed_log(topic_id, parameters.partition)


async def _read(
    broker: Broker, log: SealedLog, offset: int, max_bytes: int
) -> Sequence[StoredBatch]:
    return await broker.catch_up_memory.run(partial(log.read_written, offset, max_bytes))


def _route(path: str, summary: str, handle: object, parameters: type[Parameters]) -> Route:
    return Route(
        "GET",
        path,
        Listeners(0),
        summary,
        (AnswerForm(200, "What was asked for.", {}),),
        handle=handle,  # type: ignore[arg-type]
        parameters=parameters,
    )


COPY_ROUTES = (
    _route("/internal/clock", "The time of this broker.", read_clock, Parameters),
    _route(_LOG, "Where a sealed log begins and ends.", describe_copy, CopyParameters),
    _route(f"{_LOG}/checksum", "The checksum of a part of it.", compare_copy, CompareParameters),
    _route(f"{_LOG}/batches", "Batches of it.", read_copy, BatchParameters),
)
