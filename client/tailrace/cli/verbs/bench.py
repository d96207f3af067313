"""`tailrace bench`: how fast a broker is, measured from here."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

from tailrace.cli.lib.options import OUTPUT, URL, connect, counted, size_text
from tailrace.cli.lib.parser import Verb, parameter, shown, text, whole_number
from tailrace.cli.lib.quantities import size
from tailrace.errors import GroupNotFoundError, ProblemError, TailraceError

if TYPE_CHECKING:
    from tailrace.cli.lib.bench_phases import Phase
    from tailrace.cli.lib.output import Column
    from tailrace.sync import Client

SECONDS_DEFAULT = 10
EVENT_BYTES_DEFAULT = 256
EVENT_BYTES_MIN = 32  # the frame of `bench_phases.event` with a number of ten digits
EVENT_BYTES_MAX = 1024 * 1024
PARTITIONS_MIN = 4  # of a range, as any new topic has them
REQUEST_BYTES = 64 * 1024  # of a request of many events
REQUEST_EVENTS_MAX = 10_000
SINGLE_EVENTS_MAX = 1_000  # of --events, those that are sent one by one
REMOVALS_MAX = 20
REMOVAL_PAUSE_S = 0.05
# How much of the time each phase may take; reads end sooner when they have read all.
SHARES = {"single": 0.2, "produce": 0.4, "group": 0.2, "partitions": 0.2}
NAMES = {
    "produce": "produce",
    "produceSingle": "produce, one event a request",
    "produceToReceive": "produce to receive, one event",
    "groupRead": "read by a group",
    "partitionRead": "read partition by partition",
}


def bench(
    *,
    topic: str | None,
    events: int | None,
    size_bytes: int,
    seconds: int,
    connections: int,
    durability: Literal["fsync", "written"],
    output: str,
    url: str | None,
) -> None:
    """Measure how many events a broker takes and gives, and how long that takes.

    Produces to a topic of its own, which it deletes in the end (its data then lies in the trash, as
    that of all deleted topics), and reads that back by a group and without one.
    """
    import secrets

    from tailrace.cli.lib.output import as_table, show

    name = topic or f"bench-{secrets.token_hex(4)}"
    with connect(url) as client, _own_topic(client, name, durability, connections):
        phases = _measured(client, name, events, size_bytes, seconds, connections)
    documents = [_document(phase) for phase in phases]
    is_shared = _is_this_machine(client.url)
    document = {
        "topic": name,
        "durability": durability,
        "eventBytes": size_bytes,
        "requestEvents": request_events(size_bytes),
        "connections": connections,
        "isBrokerOnThisMachine": is_shared,
        "cpus": os.cpu_count(),
        "phases": documents,
    }
    show(
        output,
        document,
        "\n".join([_headline(document), as_table(documents, _columns()), *_notes(document)]),
    )


def request_events(size_bytes: int) -> int:
    """How many events of this size a request has."""
    return max(1, min(REQUEST_EVENTS_MAX, REQUEST_BYTES // size_bytes))


def _measured(
    client: "Client",
    topic: str,
    events: int | None,
    size_bytes: int,
    seconds: int,
    connections: int,
) -> "list[Phase]":
    from tailrace.cli.lib import bench_phases as phases

    lines = [phases.event(n, size_bytes) + b"\n" for n in range(request_events(size_bytes))]
    with ExitStack() as stack:
        clients = [stack.enter_context(client.twin()) for _ in range(connections)]
        single, way = phases.one_by_one(
            clients[0],
            topic=topic,
            group=topic,
            size_bytes=size_bytes,
            event_count=None if events is None else min(events, SINGLE_EVENTS_MAX),
            seconds=seconds * SHARES["single"],
        )
        produced = phases.produce(
            clients,
            topic=topic,
            lines=lines,
            event_count=events,
            seconds=seconds * SHARES["produce"],
        )
        by_group = phases.read_by_group(
            clients,
            topic=topic,
            group=topic,
            expected=produced.events,
            size_bytes=size_bytes,
            seconds=seconds * SHARES["group"],
        )
        by_partition = phases.read_partitions(
            clients,
            partitions=client.offsets([topic]),
            size_bytes=size_bytes,
            seconds=seconds * SHARES["partitions"],
        )
    return [produced, single, way, by_group, by_partition]


@contextmanager
def _own_topic(
    client: "Client", name: str, durability: Literal["fsync", "written"], connections: int
) -> Iterator[None]:
    """A topic, and the group of its name, for a block; with a partition a connection at least."""
    if name in [topic.name for topic in client.topics()]:
        raise TailraceError(
            f"topic {shown(name)} exists, and bench deletes the topic that it uses: give it a name "
            "that is free, or none"
        )
    partitions_per_range = max(PARTITIONS_MIN, connections)
    client.create_topic(name, durability=durability, partitions_per_range=partitions_per_range)
    try:
        yield
    except BaseException:
        with suppress(TailraceError), client.twin() as other:  # its own may be in an answer
            _remove(other, name)
        raise
    _remove(client, name)


def _remove(client: "Client", name: str) -> None:
    """Its consumers too: where it was interrupted they have not said goodbye."""
    from time import sleep

    for _ in range(REMOVALS_MAX):
        try:
            for consumer in client.group(name).consumers:
                client.goodbye(consumer.consumer_id, commit=False)
            client.delete_group(name)
        except GroupNotFoundError:
            break
        except ProblemError:  # a request of an interrupted consumer is still on its way
            sleep(REMOVAL_PAUSE_S)
    client.delete_topic(name)


# --- the report ----------------------------------------------------------------------------------


def _document(phase: "Phase") -> dict[str, Any]:
    seconds = max(phase.seconds, 1e-9)
    return {
        "phase": phase.name,
        "events": phase.events,
        "expectedEvents": phase.expected,
        "seconds": round(phase.seconds, 3),
        "eventsPerSecond": round(phase.events / seconds),
        "bytesPerSecond": round(phase.value_bytes / seconds),
        "p50Ms": _rounded(phase.percentile(50)),
        "p99Ms": _rounded(phase.percentile(99)),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _headline(document: dict[str, Any]) -> str:
    return "   ".join(
        [
            f"BENCH {document['topic']}",
            f"events of {size_text(document['eventBytes'])}",
            counted(document["connections"], "connection"),
            f"durability {document['durability']}",
        ]
    )


def _columns() -> "list[Column]":
    from tailrace.cli.lib.output import Column, member

    return [
        Column("PHASE", lambda each: NAMES[each["phase"]]),
        Column("EVENTS", lambda each: f"{each['events']:,}"),
        Column("SECONDS", lambda each: f"{each['seconds']:.1f}"),
        Column("EVENTS/S", lambda each: f"{each['eventsPerSecond']:,}"),
        Column("MIB/S", lambda each: f"{each['bytesPerSecond'] / 2**20:,.1f}"),
        member("P50 MS", "p50Ms"),
        member("P99 MS", "p99Ms"),
    ]


def _notes(document: dict[str, Any]) -> Sequence[str]:
    """What has to be known to read the numbers."""
    notes = [
        f"latencies of produce: of a request of {counted(document['requestEvents'], 'event')}, "
        "from sending it to its answer",
        "the client is one Python process: others beside it may get more out of the broker",
    ]
    if document["isBrokerOnThisMachine"]:
        notes.append(
            f"client and broker share this machine ({counted(document['cpus'] or 1, 'CPU')}), "
            "unless its port leads elsewhere: each slows the other, apart both are faster"
        )
    notes.extend(
        f"{NAMES[phase['phase']]}: its time was over after {phase['events']:,} of "
        f"{phase['expectedEvents']:,} events"
        for phase in document["phases"]
        if phase["events"] < phase["expectedEvents"]
    )
    return [f"note: {note}" for note in notes]


def _is_this_machine(url: str) -> bool:
    """Whether its address is one of this machine's own."""
    import socket
    from urllib.parse import urlsplit

    try:
        addresses = socket.getaddrinfo(urlsplit(url).hostname, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in addresses:
        with suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(address)  # only own addresses can be
            return True
    return False


VERB = Verb(
    bench,
    (
        parameter(
            "topic",
            metavar="TOPIC",
            nargs="?",
            type=text,
            help="the name of the topic that it makes and deletes; default: a random one",
        ),
        parameter(
            "--events",
            metavar="N",
            type=whole_number(1),
            help="produce no more than these; default: as many as its time allows",
        ),
        parameter(
            "--size",
            dest="size_bytes",
            metavar="SIZE",
            type=size(EVENT_BYTES_MIN, EVENT_BYTES_MAX),
            default=EVENT_BYTES_DEFAULT,
            help=f"of an event, like 1Ki; default {EVENT_BYTES_DEFAULT}",
        ),
        parameter(
            "--seconds",
            metavar="S",
            type=whole_number(1, 3_600),
            default=SECONDS_DEFAULT,
            help=f"how long it takes, about; default {SECONDS_DEFAULT}",
        ),
        parameter(
            "--connections",
            metavar="N",
            type=whole_number(1, 64),
            default=4,
            help="how many send and read at once; default 4",
        ),
        parameter(
            "--durability",
            metavar="WHEN",
            choices=("fsync", "written"),
            default="fsync",
            help="when a produce is answered: fsync (the default) or written",
        ),
        OUTPUT,
        URL,
    ),
    (
        "tailrace bench --seconds 1",
        "tailrace bench --events 2000 --size 1Ki --durability written --seconds 2 -o json",
    ),
)
