"""The main job: a broker, real events in by HTTP, read back, a consumer group and Spark on them.

`make up` runs it; variables of make or of the environment choose:

    ONCE=1     end when all is done and checked, instead of staying up
    FRESH=1    start from no data; without it the topic keeps the events of earlier runs
    SPARK=0    leave Spark out
    REPEAT=n   produce the events n times
    INPUT=file.ndjson KEY=.field   these events instead of the flights, keyed by a field
    PORT=n     the first of four ports; 9250

Every figure is measured. A violated check, or anything that does not work, ends it with one
sentence and exit code 1.
"""

import os
import platform
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import FrameType
from typing import Never
from urllib.parse import quote

from examples import up_steps
from examples.up_broker import remove_data, running_broker, usage_of
from examples.up_events import Events, UpError, load_events
from examples.up_groups import GROUP, poll_by_group
from tailrace.errors import TailraceError
from tailrace.local.broker import LocalBroker
from tailrace.spark.java import JAVA_MAJOR_MIN, can_run_spark, java_version
from tailrace.sync import Client
from tailrace.values import TopicInfo

DATA_DIR = Path(".tailrace")
FLIGHTS = Path(__file__).parent / "data" / "flights.ndjson.gz"
FLIGHTS_KEY = ".origin"
FLIGHTS_AVERAGE = ".delayMinutes"
DEFAULT_PORT = 9250
PORT_MAX = 65_532  # three more follow
REPEAT_MAX = 1_000_000
MIB = 1024 * 1024
TABLE_GAP = "     "


@dataclass(frozen=True, slots=True)
class Settings:
    """What the variables say."""

    once: bool
    fresh: bool
    spark: bool
    repeat_count: int
    port: int
    input_path: Path
    key: str

    @property
    def averages(self) -> list[str]:
        """Fields whose mean is known to say something."""
        return [FLIGHTS_AVERAGE] if (self.input_path, self.key) == (FLIGHTS, FLIGHTS_KEY) else []


class Row:
    """A line of the report, filled by its step."""

    text = ""


def main() -> int:
    """The exit code; all else is said on the way."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit_on_signal)
    try:
        run(read_settings(os.environ))
    except (UpError, TailraceError) as error:
        print(f"✗ {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def read_settings(variables: Mapping[str, str]) -> Settings:
    """UpError names a variable that does not fit. Empty is not given."""
    given = {name: value for name, value in variables.items() if value}
    if ("INPUT" in given) != ("KEY" in given):
        raise UpError("INPUT and KEY go together: make up INPUT=file.ndjson KEY=.field")
    return Settings(
        once=given.get("ONCE", "0") != "0",
        fresh=given.get("FRESH", "0") != "0",
        spark=given.get("SPARK", "1") != "0",
        repeat_count=_whole_number(given, "REPEAT", default=1, number_max=REPEAT_MAX),
        port=_whole_number(given, "PORT", default=DEFAULT_PORT, number_max=PORT_MAX),
        input_path=Path(given.get("INPUT", FLIGHTS)),
        key=given.get("KEY", FLIGHTS_KEY),
    )


def run(settings: Settings) -> None:
    """All steps in order."""
    with row("environment") as line:
        java = java_version()
        line.text = f".venv, Python {platform.python_version()}, "
        line.text += f"Java {java}" if java else "no Java"
    events = load_events(settings.input_path, key=settings.key)
    if settings.fresh:
        remove_data(DATA_DIR / "0")
    with ExitStack() as stack:
        with row("ring") as line:
            broker = stack.enter_context(running_broker(DATA_DIR / "0", port=settings.port))
            client = stack.enter_context(Client(broker.url))
            is_direct = broker.metrics()["tailrace_direct_io"]
            io = "direct I/O" if is_direct else "buffered I/O"
            line.text = f"1 broker ready, data in ./{DATA_DIR} ({io})"
        fill_and_check(client, events, repeat_count=settings.repeat_count)
        groups = group_by_spark(broker, client, events.topic, settings, java=java)
        print_side_by_side(groups, broker_table(broker, client))
        if not settings.once:
            stay_up(broker, events)


def fill_and_check(client: Client, events: Events, *, repeat_count: int) -> None:
    """Topic, produce, read back in two ways; UpError when what comes is not what was sent."""
    with row("topic") as line:
        topic = up_steps.find_or_create(client, events.topic)
        starts = up_steps.ends_of(client, topic.name)
        line.text = describe(topic, held_count=sum(starts.values()))
    with row("produced") as line:
        produced = up_steps.produce(client, events, repeat_count=repeat_count)
        if produced.errors:
            failed = f"{len(produced.errors)} of {len(produced.latencies_ms)} requests failed"
            raise UpError(f"{failed}; the first: {produced.errors[0]}")
        line.text = (
            f"{produced.event_count:,} events ({events.value_bytes * repeat_count / MIB:.1f} MiB) "
            f"keyed by {events.key}   {produced.event_count / produced.seconds:,.0f}/s   "
            f"p50 {produced.latency_ms(0.5):.1f} ms  p99 {produced.latency_ms(0.99):.1f} ms   "
            f"{len(produced.errors)} errors"
        )
    with row("read back") as line:
        count = up_steps.read_back(client, events, starts, repeat_count=repeat_count)
        line.text = f"{count:,} events; order per key checked"
    with row("polled") as line:
        polled = poll_by_group(
            client,
            events,
            starts,
            up_steps.ends_of(client, topic.name),
            repeat_count=repeat_count,
            log_path=DATA_DIR / "consumers.log",
        )
        line.text = f'{polled.event_count:,} events by 2 consumers of group "{GROUP}"'
        if polled.killed_count:
            line.text += f", 1 killed; {polled.twice_count:,} came twice"
        line.text += "; order checked"


def group_by_spark(
    broker: LocalBroker, client: Client, topic: str, settings: Settings, *, java: str | None
) -> list[list[str]]:
    """The table of the largest groups; empty when Spark is left out, which the row says."""
    reason = no_spark_reason(settings, java)
    if reason:
        print(f"- {'spark':<13} left out: {reason}")
        return []
    held_count = sum(up_steps.ends_of(client, topic).values())
    with row("spark") as line:
        result = up_steps.run_spark(
            broker.url,
            topic,
            held_count=held_count,
            key=settings.key,
            averages=settings.averages,
            log_path=DATA_DIR / "spark.log",
        )
        line.text = (
            f"{result.rows:,} rows in {result.micro_batches} micro-batches; "
            f"{result.distinct:,} distinct (partition, offset)"
        )
        if not result.rows == result.distinct == held_count:
            raise UpError(f"the topic holds {held_count:,} events; Spark has read something else")
    titles = [settings.key.removeprefix("."), topic, *(["mean delay"] if settings.averages else [])]
    return [titles, *[[_cell(value) for value in group] for group in result.groups]]


def no_spark_reason(settings: Settings, java: str | None) -> str | None:
    """Why Spark cannot or shall not run."""
    if not settings.spark:
        return "SPARK=0"
    if java is None or not can_run_spark(java):
        return f"it needs Java {JAVA_MAJOR_MIN} or newer (found: {java or 'none'})"
    return None


def describe(topic: TopicInfo, *, held_count: int) -> str:
    """Its size and promise, and what it holds of earlier runs."""
    copies = f"{topic.copies} {'copy' if topic.copies == 1 else 'copies'}"
    held = f"; holds {held_count:,} events of earlier runs" if held_count else ""
    partitions = f"{topic.partitions} partitions"
    return f"{topic.name}: {partitions}, {copies}, durability {topic.durability}{held}"


def broker_table(broker: LocalBroker, client: Client) -> list[list[str]]:
    """What the one broker leads, stores and has used."""
    usage = usage_of(broker.pid)
    return [
        ["broker", "leads", "log", "CPU", "RSS"],
        [
            f"0 ({broker.port})",
            str(len(client.offsets())),
            f"{up_steps.stored_bytes(client) / MIB:.1f} MiB",
            f"{usage.cpu_seconds:.1f} s" if usage else "-",
            f"{usage.rss_bytes / MIB:.0f} MiB" if usage else "-",
        ],
    ]


def print_side_by_side(*tables: Sequence[Sequence[str]]) -> None:
    """Tables with their titles on one line; an empty one takes no room."""
    blocks = [_aligned(table) for table in tables if table]
    for lines in zip_longest(*blocks):
        cells = [
            line if line is not None else " " * len(block[0])
            for line, block in zip(lines, blocks, strict=True)
        ]
        print("    " + TABLE_GAP.join(cells).rstrip())


def stay_up(broker: LocalBroker, events: Events) -> None:
    """Until Ctrl-C; BrokerEndedError when the broker ends before."""
    path = f"{broker.url}/v1/topic/{events.topic}"
    key, value = events.keys[0], events.values[0]
    produce = f"{path}/messages?partitionKey={quote(key, safe='')}"
    cli_url = "" if broker.port == DEFAULT_PORT else f" --url {broker.url}"
    print(
        f"Ring is up: {broker.url}   Ctrl-C ends it, data stays.   Try:\n"
        f"  curl '{path}/partitions/0/records?maxRecords=3'\n"
        f"  curl '{broker.url}/v1/offsets?topic={events.topic}'\n"
        f"  curl -d {shlex.quote(value.decode())} -H 'content-type: application/json' '{produce}'\n"
        f"  .venv/bin/tailrace consume {events.topic} --from earliest --max 3{cli_url}\n"
        f"  .venv/bin/tailrace group list{cli_url}",
        flush=True,
    )
    try:
        broker.wait()
    except KeyboardInterrupt:
        print("\nEnded; `make up` starts it again on the same data.")


@contextmanager
def row(name: str) -> Iterator[Row]:
    """Print a line with its time once the step has ended well."""
    if sys.stdout.isatty():
        print(f"· {name}", end="\r", flush=True)
    line = Row()
    started = time.perf_counter()
    yield line
    print(f"✓ {name:<13} {line.text:<90} {time.perf_counter() - started:5.1f} s", flush=True)


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Lines of equal length; the first column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])])
        for first, *others in table
    ]


def _cell(value: str | float | None) -> str:
    if isinstance(value, float):
        return f"{value:.1f} min"
    return f"{value:,}" if isinstance(value, int) else value or "-"


def _whole_number(given: Mapping[str, str], name: str, *, default: int, number_max: int) -> int:
    text = given.get(name, str(default))
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= number_max:
        raise UpError(f"{name}={text} is not a whole number from 1 to {number_max:,}")
    return int(text)


def _exit_on_signal(number: int, _frame: FrameType | None) -> Never:
    """Unwind as Ctrl-C does, so that the broker is stopped."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
