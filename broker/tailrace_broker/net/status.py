"""The broker's own state -> answers: health, `GET /v1/brokers`, what a problem type means."""

import re
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from tailrace_broker.codec.records import format_timestamp
from tailrace_broker.core.ring import TOKEN_MIN
from tailrace_broker.model.errors import PathNotFoundError
from tailrace_broker.net.api import Broker
from tailrace_broker.net.problems import PROBLEM_PATH, PROBLEMS
from tailrace_broker.net.routes import Call, Parameters, Response, shortened
from tailrace_broker.net.topics import json_response

VERSION = version("tailrace")
METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class BrokerAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """One broker."""

    ordinal: int
    token: str
    leads: Annotated[int, Meta(description="Partitions that it leads.")]
    replicates: Annotated[int, Meta(description="Partitions that it has a copy of.")]
    damaged: Annotated[int, Meta(description="Partitions that stand still.")]
    quarantined: Annotated[
        int, Meta(description="Damaged batches that the scrub or a read has met.")
    ]
    lag_max: Annotated[int, Meta(description="Records that its furthest behind copy lacks.")]
    disk_used_bytes: Annotated[
        int | None, Meta(description="Of the file system that holds the data.")
    ]
    disk_bytes: int | None
    direct_io: bool
    durable_write_ms: Annotated[
        float | None, Meta(description="Median of some 4 KiB writes at the start.")
    ]
    incarnation: UUID
    restart: Annotated[
        str,
        Meta(
            description="How its last run ended, by what the data may have lost: `clean`; "
            "`process`: killed, the kernel went on; `power`; `disk`: a new data directory."
        ),
    ]
    started_at: str
    up_seconds: int


class RingAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """The ring."""

    name: str
    cluster_id: UUID
    version: str
    ranges: int
    under_replicated: int
    metadata_leader: int
    metadata_term: int


class BrokersAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """The ring and its brokers; the first members are those that PolarStreams' clients read."""

    length: int
    names: Annotated[list[str], Meta(description="Host names by ordinal.")]
    producer_port: int
    producer_binary_port: Annotated[int, Meta(description="0: there is none.")]
    consumer_port: int
    ring: RingAnswer
    now: Annotated[int, Meta(description="The broker's clock, µs since the epoch.")]
    brokers: list[BrokerAnswer]


class ProblemPath(Parameters, frozen=True):
    """Of `GET /v1/problems/{type}`."""

    type: Annotated[str, Meta(description="As in a problem document, without its path.")]


class ProblemAnswer(msgspec.Struct):
    """A problem type."""

    type: str
    title: str
    status: int
    when: str


async def live(_: Broker, __: Call) -> Response:
    """The process answers."""
    return json_response({"live": True})


async def ready(broker: Broker, _: Call) -> Response:
    """503 until recovery has ended."""
    broker.check_ready()
    return json_response({"ready": True})


async def status(broker: Broker, _: Call) -> Response:
    """The same for PolarStreams' clients."""
    broker.check_ready()
    return json_response({"status": "ready"})


async def brokers(broker: Broker, _: Call) -> Response:
    """The ring and its brokers."""
    broker.check_ready()
    view = broker.client_view
    now_us = broker.now_us()
    used_bytes, all_bytes = await broker.disk_bytes() or (None, None)
    this_broker = BrokerAnswer(
        ordinal=broker.ordinal,
        token=str(TOKEN_MIN),
        leads=broker.partition_count,
        replicates=broker.partition_count,
        damaged=broker.damaged_count,
        quarantined=broker.quarantined_count,
        lag_max=0,
        disk_used_bytes=used_bytes,
        disk_bytes=all_bytes,
        direct_io=broker.is_direct,
        durable_write_ms=broker.durable_write_ms,
        incarnation=broker.incarnation,
        restart=broker.restart_kind,
        started_at=format_timestamp(broker.started_us).decode(),
        up_seconds=(now_us - broker.started_us) // 1_000_000,
    )
    ring = RingAnswer(
        name=view.ring_name,
        cluster_id=broker.cluster_id,
        version=VERSION,
        ranges=1,
        under_replicated=0,
        metadata_leader=broker.ordinal,
        metadata_term=1,
    )
    return json_response(
        BrokersAnswer(
            length=1,
            names=[view.host],
            producer_port=view.produce_port,
            producer_binary_port=0,
            consumer_port=view.read_port,
            ring=ring,
            now=now_us,
            brokers=[this_broker],
        )
    )


async def problem(_: Broker, call: Call) -> Response:
    """What a problem's `type` means."""
    for each in PROBLEMS.values():
        if each.slug == call.parameters.type:
            title = re.sub(r"\{\w+\}", "…", each.title)
            return json_response(
                ProblemAnswer(PROBLEM_PATH + each.slug, title, each.status, each.when)
            )
    raise PathNotFoundError(f"no problem type {shortened(call.parameters.type)}")


async def metrics(render: Callable[[], Awaitable[bytes]], _: Broker, __: Call) -> Response:
    """Prometheus' text format."""
    return Response((await render(),), METRICS_CONTENT_TYPE)
