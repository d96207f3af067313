"""`tailrace dev`: brokers on this machine for as long as the command runs, and not longer."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Never

from tailrace.cli.lib.parser import UsageError, Verb, parameter, whole_number
from tailrace.cli.verbs.ring import waiting_lines
from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from types import FrameType

    from tailrace.local.broker import LocalBroker
    from tailrace.local.ring import LocalRing
    from tailrace.protocol.ring_values import RingDetails

DEFAULT_DATA = Path(".tailrace")
DEFAULT_PORT = 9250
PORT_STRIDE = 10  # brokers of a local ring are that far apart (docs/operations.md)
PORT_MAX = 65535
BROKERS_MAX = 12  # on one machine
LOOK_S = 0.2  # how often it is seen whether another broker is wanted
LISTENERS = (
    ("public", "", "every path: topics, produce, read, offsets, health"),
    ("produce", "", "the fast listener for events"),
    ("read", "", "records and offsets"),
    ("metrics", "/metrics", "for Prometheus"),
)
# The `broker` extra's packages that no other extra brings: one missing means that it is missing.
BROKER_PACKAGES = ("httptools", "mmh3", "msgspec", "pydantic_settings", "structlog")
# The first whose range is led is used: in a ring of two to twelve brokers each range has one.
DEMO_KEYS = (
    *("SFO", "AMS", "BCN", "ATL", "MEL", "DOH", "ICN"),
    *("DEL", "DXB", "MUC", "BOM", "BOS", "EZE", "JFK"),
)
PARTITIONS_PER_RANGE = 4  # of a topic that its first event creates
DEMO_PARTITION = 2  # where a broker alone puts the first in such a topic


class DemoPartition(NamedTuple):
    """Where a key is led."""

    key: str
    url: str
    partition: int


def dev(*, data: Path, port: int, brokers: int | None) -> None:
    """Run a broker, or a ring of some, on this machine until Ctrl-C; data stays.

    A ring that has grown is started with all its brokers. What changes a ring of several by hand
    needs its secret, which is in DIR/ring-secret.
    """
    from tailrace.local.broker import PEER_LISTENERS, PortTakenError, exported_settings
    from tailrace.local.ring import LocalRing, begun_with

    require_broker_extra()
    begun_count = begun_with(data) or 1
    broker_count = max(brokers or 1, begun_count)
    if brokers is not None and brokers < begun_count:
        print(f"the ring in {data} has {begun_count} brokers now: all are started", file=sys.stderr)
    last_port = port + PORT_STRIDE * (broker_count - 1) + PEER_LISTENERS[-1]
    if broker_count > 1 and last_port > PORT_MAX:
        raise UsageError(f"--port: {port} leaves no room for {broker_count} brokers: give another")
    settings = {"log_level": "warning"} | exported_settings()
    exit_on_signals()
    try:
        with LocalRing(data, broker_count=broker_count, port=port, settings=settings) as ring:
            _wait_ready(ring)
            print(_welcome(ring), flush=True)
            _watch(ring, data)
    except PortTakenError as error:
        raise TailraceError(
            f"{error}. Choose others: tailrace dev --port {port + PORT_STRIDE * broker_count}"
        ) from error


def require_broker_extra() -> None:
    """TailraceError: packages of the broker are missing."""
    from importlib.util import find_spec

    from tailrace.extras import install_command

    if not all(map(find_spec, BROKER_PACKAGES)):
        raise TailraceError(f"the broker is not installed. Install it: {install_command('broker')}")


def exit_on_signals() -> None:
    """Let these unwind the stack as Ctrl-C does, so that the broker is stopped."""
    import signal

    def leave(_number: int, _frame: "FrameType | None") -> Never:
        raise SystemExit(0)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)


def _wait_ready(ring: "LocalRing") -> None:
    """A broker alone that ends before it serves has written why to stderr: nothing is added."""
    from tailrace.local.broker import BrokerEndedError

    try:
        ring.wait_ready(lambda what: print(what, file=sys.stderr, flush=True))
    except BrokerEndedError as error:
        if len(ring.brokers) > 1:
            raise
        raise SystemExit(error.exit_code or 1) from error


def _watch(ring: "LocalRing", data: Path) -> None:
    """While most of the voters live; TailraceError then."""
    voters, copies = _voters_and_copies(ring)
    size = len(ring.brokers)
    while True:
        ended = ring.wait_ended(LOOK_S)
        if ended is None:
            _grow(ring)
            if len(ring.brokers) > 1 and (now := ring.note_size()) != size:
                size = now
                voters, copies = _voters_and_copies(ring)
            continue
        if len(ring.brokers) > 1 and ring.has_left(ended.ordinal):
            print(f"broker {ended.ordinal} has left the ring", flush=True)
            ring.take_away_left()
            continue
        living = ring.living()
        option = "" if data == DEFAULT_DATA else f" --data {data}"
        first_port = ring.brokers[0].port
        again = f"tailrace dev{option}"
        again += "" if first_port == DEFAULT_PORT else f" --port {first_port}"
        if 2 * len(voters.intersection(living)) <= len(voters):
            if len(ring.brokers) == 1:
                if ended.error.exit_code > 0:  # it has said why
                    raise ended.error
                raise TailraceError(f"{ended.error}: {again}") from ended.error
            raise TailraceError(
                f"broker {ended.ordinal} {ended.error.how} too: most of the voters "
                f"{_listed(voters)} are away, so the ring is stopped; start it again: {again}"
            )
        served = "others serve its partitions" if copies > 1 else "its partitions are not served"
        print(
            f"broker {ended.ordinal} {ended.error.how}; {served} until it runs again: tailrace dev "
            f"start {ended.ordinal}{option}. The ring goes on with {_listed(living)}",
            file=sys.stderr,
            flush=True,
        )


def _grow(ring: "LocalRing") -> None:
    """As `tailrace ring grow` asks; an error is no reason to end."""
    try:
        for ordinal in ring.grow_if_asked():
            broker = ring.brokers[ordinal]
            print(
                f"  broker {ordinal}  {broker.url}  pid {broker.pid}  log {broker.log_path}",
                flush=True,
            )
    except TailraceError as error:
        print(f"no more brokers: {error}", file=sys.stderr, flush=True)


def _voters_and_copies(ring: "LocalRing") -> tuple[set[int], int]:
    """The voters, and the copies of each event."""
    if len(ring.brokers) == 1:
        return {0}, 1
    with ring.client() as client:
        details = client.ring()
    return set(details.metadata.voters), details.copies


def _welcome(ring: "LocalRing") -> str:
    """The listeners, and two lines to paste."""
    if len(ring.brokers) == 1:
        demo = DemoPartition(DEMO_KEYS[0], ring.brokers[0].url, DEMO_PARTITION)
        listeners = _listeners(ring.brokers[0])
    else:
        with ring.client() as client:
            details = client.ring()
        demo = demo_partition(details, [broker.url for broker in ring.brokers])
        listeners = [*_ring_listeners(ring), *(f"  {line}" for line in waiting_lines(details))]
    path = f"{demo.url}/v1/topic/demo"
    return "\n".join(
        [
            *listeners,
            "Produce, then read:",
            f"""  curl -d '{{"origin":"{demo.key}"}}' -H 'content-type: application/json' """
            f"'{path}/messages?partitionKey={demo.key}'",
            f"  curl '{path}/partitions/{demo.partition}/records?offset=earliest'",
            "Ctrl-C ends it, data stays.",
        ]
    )


def _listeners(broker: "LocalBroker") -> list[str]:
    from tailrace.local.broker import HOST

    return [
        f"✓ broker 0 ready, data in {broker.data_dir}",
        *(
            f"  {name:8} http://{HOST}:{broker.port + index}{path:9} {purpose}"
            for index, (name, path, purpose) in enumerate(LISTENERS)
        ),
    ]


def _ring_listeners(ring: "LocalRing") -> list[str]:
    from tailrace.local.ring import SECRET_FILE

    others = ", ".join(f"{name} +{index}" for index, (name, *_) in enumerate(LISTENERS) if index)
    return [
        f"✓ ring of {len(ring.brokers)} brokers ready, data in {ring.top}",
        *(
            f"  broker {ordinal}  {broker.url}  pid {broker.pid}  log {broker.log_path}"
            for ordinal, broker in enumerate(ring.brokers)
        ),
        f"  every path; {others}",
        f"  by hand: export TAILRACE_TOKEN=$(cat {ring.top / SECRET_FILE}), tailrace ring status",
    ]


def demo_partition(ring: "RingDetails", urls: Sequence[str]) -> DemoPartition:
    """In a topic of the default partitions; `urls` by ordinal; ids are in token order."""
    from tailrace.protocol.murmur3 import token

    ranges = [range_ for range_ in ring.ranges if range_.state != "sealed"]
    first = None
    for key in DEMO_KEYS:
        key_token = token(key.encode())
        index, one = next(
            (index, range_)
            for index, range_ in enumerate(ranges)
            if int(range_.start) <= key_token < int(range_.end)
        )
        length = int(one.end) - int(one.start)
        part = (key_token - int(one.start)) * PARTITIONS_PER_RANGE // length
        demo = DemoPartition(key, urls[one.leader or 0], index * PARTITIONS_PER_RANGE + part)
        if one.state == "open":
            return demo
        first = first or demo
    assert first is not None
    return first


def _listed(ordinals: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ordinals)))


def _directory(word: str) -> Path:
    if not word:
        raise argparse.ArgumentTypeError("a directory's name is needed, and not an empty one")
    return Path(word)


DATA = parameter(
    "--data",
    metavar="DIR",
    type=_directory,
    default=DEFAULT_DATA,
    help=f"where data stays between runs; default {DEFAULT_DATA}",
    complete="file",
)
VERB = Verb(
    dev,
    (
        DATA,
        parameter(
            "--port",
            metavar="PORT",
            type=whole_number(1, PORT_MAX - len(LISTENERS) + 1),
            default=DEFAULT_PORT,
            help=f"the first of four ports, of each broker {PORT_STRIDE} further; "
            f"default {DEFAULT_PORT}",
        ),
        parameter(
            "--brokers",
            metavar="N",
            type=whole_number(1, BROKERS_MAX),
            help="how many; default: as many as the data is of, else 1",
        ),
    ),
    (
        "tailrace dev",
        "tailrace dev --data /tmp/events --port 19250",
        "tailrace dev --brokers 3 --data /tmp/ring --port 19250",
    ),
)
