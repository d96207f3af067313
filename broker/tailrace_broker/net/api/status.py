"""The broker's own state -> answers: health, `GET /v1/brokers`, what a problem type means."""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from importlib.metadata import version
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from tailrace_broker.codec.records import format_timestamp
from tailrace_broker.core.ring.arithmetic import broker_token
from tailrace_broker.model.errors import PathNotFoundError
from tailrace_broker.model.ring_state import RangeState, RingState
from tailrace_broker.model.topic import is_internal
from tailrace_broker.net.api.range_states import is_good
from tailrace_broker.net.api.ring import is_alive
from tailrace_broker.net.api.topics import json_response
from tailrace_broker.net.broker import Broker, RingView
from tailrace_broker.net.http.problems import PROBLEM_PATH, PROBLEMS
from tailrace_broker.net.http.router import Call, Parameters, Response, shortened

VERSION = version("tailrace")
METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class BrokerAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """One broker. What only it knows itself is null in the answer of another."""

    ordinal: int
    token: str
    leads: Annotated[int, Meta(description="Partitions that it leads.")]
    replicates: Annotated[int, Meta(description="Partitions that it has a copy of.")]
    damaged: Annotated[
        int | None, Meta(description="Partitions that take no events: they are damaged.")
    ]
    quarantined: Annotated[
        int | None, Meta(description="Damaged batches that the scrub or a read has met.")
    ]
    lag_max: Annotated[
        int | None,
        Meta(description="Records that the furthest behind copy of a range that it leads lacks."),
    ]
    data_bytes: Annotated[
        int | None,
        Meta(
            description="What its data takes on the disk: segments, journal, metadata, trash and "
            "spare files; not index files, and not partitions that cannot be opened."
        ),
    ]
    disk_used_bytes: Annotated[
        int | None, Meta(description="Of the file system that holds the data, whoever uses it.")
    ]
    disk_bytes: Annotated[int | None, Meta(description="Size of that file system.")]
    direct_io: bool | None
    durable_write_ms: Annotated[
        float | None, Meta(description="Median of some 4 KiB writes at the start.")
    ]
    incarnation: UUID | None
    restart: Annotated[
        str | None,
        Meta(
            description="How its last run ended, by what the data may have lost: `clean`; "
            "`process`: killed, the kernel went on; `power`; `disk`: a new data directory. Of "
            "another broker: what it may have lost since it was registered before."
        ),
    ]
    started_at: str | None
    up_seconds: int | None
    alive: Annotated[bool, Meta(description="Heard of a moment ago, by the broker that answers.")]


class RingAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """The ring."""

    name: str
    cluster_id: UUID
    version: str
    ranges: Annotated[int, Meta(description="That take events.")]
    under_replicated: Annotated[
        int, Meta(description="Of these, with fewer in-sync replicas that are alive than `copies`.")
    ]
    copies: Annotated[int, Meta(description="Of each event on brokers' disks, when all are well.")]
    metadata_leader: int | None
    metadata_term: int


class BrokersAnswer(msgspec.Struct, rename="camel", kw_only=True):
    """The ring and its brokers; the first members are those that PolarStreams' clients read."""

    length: int
    names: Annotated[list[str], Meta(description="Host names by ordinal.")]
    ports: Annotated[list[int], Meta(description="Public ports by ordinal.")]
    producer_port: Annotated[int, Meta(description="Of the broker that answers.")]
    producer_binary_port: Annotated[int, Meta(description="0: there is none.")]
    consumer_port: Annotated[int, Meta(description="Of the broker that answers.")]
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
    """Answer that the process is alive."""
    return json_response({"live": True})


async def ready(broker: Broker, _: Call) -> Response:
    """503 until recovery has ended."""
    broker.check_ready()
    return json_response({"ready": True})


async def status(broker: Broker, _: Call) -> Response:
    """The same for PolarStreams' clients."""
    broker.check_ready()
    return json_response({"status": "ready"})


async def brokers(broker: Broker, call: Call) -> Response:
    """The ring and its brokers."""
    broker.check_ready()
    state, view = broker.ring.state, broker.client_view
    assert state is not None, "the broker is ready"
    metadata = broker.ring.view()
    open_ranges = [range_ for range_ in state.ranges.values() if not range_.is_sealed]
    ordinals = sorted({*range(state.broker_count), *state.brokers})
    # Where too few brokers are left to agree, the committed ISR still has those that are away.
    away = [each for each in ordinals if not is_alive(broker.ring, metadata, each)]
    ring = RingAnswer(
        name=view.ring_name,
        cluster_id=state.cluster_id,
        version=VERSION,
        ranges=len(open_ranges),
        under_replicated=sum(is_under_replicated(state, range_, away) for range_ in open_ranges),
        copies=state.copies,
        metadata_leader=metadata.leader,
        metadata_term=metadata.term,
    )
    outside = broker.outside if call.is_outside else None
    address_of = (outside or broker).address_of
    addresses = [address_of(ordinal) for ordinal in range(state.broker_count)]
    partitions = partition_counts(state)
    return json_response(
        BrokersAnswer(
            length=state.broker_count,
            names=[host for host, _ in addresses],
            ports=[port for _, port in addresses],
            producer_port=view.produce_port,
            producer_binary_port=0,
            consumer_port=view.read_port,
            ring=ring,
            now=broker.now_us(),
            brokers=[
                await _this_broker(broker, state, partitions)
                if ordinal == broker.ordinal
                else _other_broker(broker, state, partitions, ordinal, metadata)
                for ordinal in ordinals
            ],
        )
    )


async def _this_broker(
    broker: Broker, state: RingState, partitions: Mapping[int, int]
) -> BrokerAnswer:
    used_bytes, all_bytes = await broker.disk_bytes() or (None, None)
    leads, replicates = _held(state, partitions, broker.ordinal)
    return BrokerAnswer(
        ordinal=broker.ordinal,
        token=str(broker_token(broker.ordinal)),
        leads=leads,
        replicates=replicates,
        damaged=broker.damaged_count,
        quarantined=broker.quarantined_count,
        lag_max=max(
            (lag.records or 0 for lags in broker.replication_lags().values() for lag in lags),
            default=0,
        ),
        data_bytes=await broker.data_bytes(),
        disk_used_bytes=used_bytes,
        disk_bytes=all_bytes,
        direct_io=broker.is_direct,
        durable_write_ms=broker.durable_write_ms,
        incarnation=broker.incarnation,
        restart=broker.restart_kind,
        started_at=format_timestamp(broker.started_us).decode(),
        up_seconds=(broker.now_us() - broker.started_us) // 1_000_000,
        alive=True,
    )


def _other_broker(
    broker: Broker,
    state: RingState,
    partitions: Mapping[int, int],
    ordinal: int,
    metadata: RingView,
) -> BrokerAnswer:
    registration = state.brokers.get(ordinal)
    leads, replicates = _held(state, partitions, ordinal)
    return BrokerAnswer(
        ordinal=ordinal,
        token=str(broker_token(ordinal)),
        leads=leads,
        replicates=replicates,
        damaged=None,
        quarantined=None,
        lag_max=None,
        data_bytes=None,
        disk_used_bytes=None,
        disk_bytes=None,
        direct_io=None,
        durable_write_ms=None,
        incarnation=None if registration is None else registration.incarnation,
        restart=None if registration is None else registration.loss,
        started_at=None,
        up_seconds=None,
        alive=is_alive(broker.ring, metadata, ordinal),
    )


def is_under_replicated(state: RingState, one: RangeState, away: Collection[int]) -> bool:
    """Return whether the range lacks an in-sync replica that is whole, or it is away."""
    in_sync = (each for each in one.isr if each.ordinal not in away)
    return sum(is_good(state, one, replica) for replica in in_sync) < len(one.replicas)


def partition_counts(state: RingState) -> Mapping[int, int]:
    """Return the counts of users' topics, by range."""
    counts: Counter[int] = Counter()
    for topic in state.topics.values():
        if not is_internal(topic.name):
            for slices in topic.slices:
                counts[slices.range_id] += slices.partition_count
    return counts


def _held(state: RingState, partitions: Mapping[int, int], ordinal: int) -> tuple[int, int]:
    """Partitions that a broker leads, and has a copy of."""
    leads = replicates = 0
    for one in state.ranges.values():
        if one.leader is not None and one.leader.ordinal == ordinal:
            leads += partitions[one.id]
        if any(replica.ordinal == ordinal for replica in one.isr):
            replicates += partitions[one.id]
    return leads, replicates


async def problem(_: Broker, call: Call) -> Response:
    """Explain a problem's `type`."""
    for each in PROBLEMS.values():
        if each.slug == call.parameters.type:
            title = re.sub(r"\{\w+\}", "…", each.title)
            return json_response(
                ProblemAnswer(PROBLEM_PATH + each.slug, title, each.status, each.when)
            )
    raise PathNotFoundError(f"no problem type {shortened(call.parameters.type)}")


async def metrics(render: Callable[[], Awaitable[bytes]], _: Broker, __: Call) -> Response:
    """Return metrics in Prometheus' text format."""
    return Response((await render(),), METRICS_CONTENT_TYPE)
