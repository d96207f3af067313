"""The main job: a ring, real events in by HTTP, read back, a group and Spark on them.

`make up` runs it; variables of make or of the environment choose:

    ONCE=1     end when all is done and checked, instead of staying up
    FRESH=1    start from no data; without it the topic keeps the events of earlier runs
    SPARK=0    leave Spark out
    REPEAT=n   produce the events n times
    INPUT=file.ndjson KEY=.field   these events instead of the flights, keyed by a field
    PORT=n     the first port; 9250. A broker has four, and three for the others of its ring
    BROKERS=n  how many brokers the ring has; 3
    CHAOS=1    kill a broker that leads while events are produced and Spark reads them

Every figure is measured. A violated check, or anything that does not work, ends it with one
sentence and exit code 1.
"""

import json
import os
import platform
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Never
from urllib.parse import quote

from examples import up_steps
from examples.up_brokers import DATA_DIR, remove_data, running_brokers, usage_of, watch
from examples.up_chaos import chaos
from examples.up_events import Events, UpError, load_events
from examples.up_groups import GROUP, poll_by_group
from examples.up_report import count_of, leave_out, print_side_by_side, row
from examples.up_spark_job import SparkJob, SparkResult, spark_result, spark_words
from tailrace.errors import TailraceError
from tailrace.local.broker import LocalBroker
from tailrace.local.ring import BROKERS_MAX
from tailrace.spark.java import JAVA_MAJOR_MIN, can_run_spark, java_version
from tailrace.sync import Client
from tailrace.values import TopicInfo

FLIGHTS = Path(__file__).parent / "data" / "flights.ndjson.gz"
FLIGHTS_KEY = ".origin"
FLIGHTS_AVERAGE = ".delayMinutes"
DEFAULT_PORT = 9250
DEFAULT_BROKERS = 3
PORT_MAX = 65_532  # three more follow
REPEAT_MAX = 1_000_000
CHAOS_BROKERS_MIN = 3  # one of three copies may be lost
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
    broker_count: int
    has_chaos: bool
    input_path: Path
    key: str

    @property
    def averages(self) -> list[str]:
        """Fields whose mean is known to say something."""
        return [FLIGHTS_AVERAGE] if (self.input_path, self.key) == (FLIGHTS, FLIGHTS_KEY) else []


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
    broker_count = _whole_number(given, "BROKERS", default=DEFAULT_BROKERS, number_max=BROKERS_MAX)
    has_chaos = given.get("CHAOS", "0") != "0"
    if has_chaos and broker_count < CHAOS_BROKERS_MIN:
        raise UpError(
            "CHAOS kills a broker, and BROKERS must be 3 or more, so that others have its events: "
            "make up CHAOS=1"
        )
    return Settings(
        once=given.get("ONCE", "0") != "0",
        fresh=given.get("FRESH", "0") != "0",
        spark=given.get("SPARK", "1") != "0",
        repeat_count=_whole_number(given, "REPEAT", default=1, number_max=REPEAT_MAX),
        port=_whole_number(given, "PORT", default=DEFAULT_PORT, number_max=PORT_MAX),
        broker_count=broker_count,
        has_chaos=has_chaos,
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
        remove_data(DATA_DIR)
    with ExitStack() as stack:
        with row("ring") as line:
            brokers = stack.enter_context(
                running_brokers(DATA_DIR, count=settings.broker_count, port=settings.port)
            )
            client = stack.enter_context(Client(brokers[0].url))
            is_direct = all(broker.metrics()["tailrace_direct_io"] for broker in brokers)
            io = "direct I/O" if is_direct else "buffered I/O"
            line.text = f"{count_of(brokers, 'broker')} ready, data in ./{DATA_DIR} ({io})"
        starts = fill_and_check(client, events, repeat_count=settings.repeat_count)
        check_group(client, events, starts, repeat_count=settings.repeat_count)
        reason = no_spark_reason(settings, java)
        if reason:
            leave_out("spark", reason)
        read = chaos if settings.has_chaos else read_by_spark
        result = read(brokers, client, events, settings.averages, has_spark=not reason)
        print_side_by_side(group_table(result, events, settings), broker_table(brokers, client))
        if not settings.once:
            stay_up(brokers, client, events)


def fill_and_check(client: Client, events: Events, *, repeat_count: int) -> dict[int, int]:
    """Topic, produce, read back; UpError when what comes is not what was sent.

    Where the topic's partitions ended before.
    """
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
    return starts


def check_group(
    client: Client, events: Events, starts: Mapping[int, int], *, repeat_count: int
) -> None:
    """Read the events again, as a consumer group."""
    with row("polled") as line:
        polled = poll_by_group(
            client,
            events,
            starts,
            up_steps.ends_of(client, events.topic),
            repeat_count=repeat_count,
            log_path=DATA_DIR / "consumers.log",
        )
        line.text = f'{polled.event_count:,} events by 2 consumers of group "{GROUP}"'
        if polled.killed_count:
            line.text += f", 1 killed; {polled.twice_count:,} came twice"
        line.text += "; order checked"


def read_by_spark(
    brokers: Sequence[LocalBroker],
    client: Client,
    events: Events,
    averages: Sequence[str],
    *,
    has_spark: bool,
) -> SparkResult | None:
    """Have Spark read all that the topic holds; None when it is left out."""
    if not has_spark:
        return None
    held_count = sum(up_steps.ends_of(client, events.topic).values())
    words = spark_words([brokers[0].url], events, held_count=held_count, averages=averages)
    with row("spark") as line, SparkJob(words) as job:
        return spark_result(line, job, held_count=held_count)


def group_table(result: SparkResult | None, events: Events, settings: Settings) -> list[list[str]]:
    """The largest groups; empty when Spark is left out."""
    if result is None:
        return []
    means = ["mean delay"] if settings.averages else []
    titles = [events.key.removeprefix("."), events.topic, *means]
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
    copies = "1 copy"
    if topic.copies > 1:
        in_sync = min(topic.min_in_sync_replicas, topic.copies)
        copies = f"{topic.copies} copies, min in-sync {in_sync}"
    held = f"; holds {held_count:,} events of earlier runs" if held_count else ""
    partitions = f"{topic.open_partitions} partitions"
    return f"{topic.name}: {partitions}, {copies}, durability {topic.durability}{held}"


def broker_table(brokers: Sequence[LocalBroker], client: Client) -> list[list[str]]:
    """What each broker leads, stores and has used."""
    leads = Counter(row.leader for row in client.offsets())
    table = [["broker", "leads", "log", "CPU", "RSS"]]
    for ordinal, broker in enumerate(brokers):
        usage, metrics = usage_of(broker.pid), broker.metrics()
        table.append(
            [
                f"{ordinal} ({broker.port})",
                str(leads[ordinal]),
                f"{metrics['tailrace_stored_bytes'] / MIB:.1f} MiB",
                f"{usage.cpu_seconds:.1f} s" if usage else "-",
                f"{usage.rss_bytes / MIB:.0f} MiB" if usage else "-",
            ]
        )
    return table


def stay_up(brokers: Sequence[LocalBroker], client: Client, events: Events) -> None:
    """Until Ctrl-C; BrokerEndedError when half of the brokers end before."""
    url = brokers[0].url
    partition, key = _example(client, events.topic)
    topic_url = f"{url}/v1/topic/{events.topic}"
    produce_url = f"{topic_url}/messages?partitionKey={quote(key, safe='')}"
    value = events.values[0].decode()
    cli_url = "" if brokers[0].port == DEFAULT_PORT else f" --url {url}"
    lines = [
        f"Ring is up: {url}   Ctrl-C ends it, data stays.   Try:",
        f"  curl '{topic_url}/partitions/{partition}/records?maxRecords=3'",
        f"  curl '{url}/v1/offsets?topic={events.topic}'",
        f"  curl -d {shlex.quote(value)} -H 'content-type: application/json' '{produce_url}'",
        f"  .venv/bin/tailrace consume {events.topic} --from earliest --max 3{cli_url}",
    ]
    lines.append(f"  .venv/bin/tailrace group list{cli_url}")
    if len(brokers) > 1:
        lines.append(f"  .venv/bin/tailrace ring status{cli_url}")
        lines.append(f"  kill -9 {brokers[-1].pid}    # broker {len(brokers) - 1}")
    print("\n".join(lines), flush=True)
    try:
        watch(brokers)
    except KeyboardInterrupt:
        print("\nEnded; `make up` starts it again on the same data.")


def _example(client: Client, topic: str) -> tuple[int, str]:
    """A partition, and the key of a record there."""
    row = next(each for each in client.offsets([topic]) if each.readable())
    record = json.loads(client.read_lines(topic, row.partition, max_records=1).body)
    key = record["key"]
    return row.partition, key if isinstance(key, str) else ""


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
