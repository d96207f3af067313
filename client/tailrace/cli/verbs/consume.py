"""`tailrace consume`: print what topics hold or have for a group, with -f also what comes."""

import argparse
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tailrace.cli.consuming.topic_names import is_pattern, wanted_topics
from tailrace.cli.consuming.topic_pages import (
    LAST_RECORDS_MAX,
    PAGE_RECORDS_MAX,
    Selection,
    limited,
    select,
)
from tailrace.cli.lib.options import OUTPUT, URL, connect, group_name
from tailrace.cli.lib.parser import UsageError, Verb, parameter, shown, text, whole_number
from tailrace.cli.lib.quantities import past_duration
from tailrace.cli.lib.remedies import with_url
from tailrace.cli.lib.times import TIME_HELP, time_us
from tailrace.settings.quantities import DIGITS_MAX

if TYPE_CHECKING:
    from tailrace.cli.consuming.record_format import RecordFormat
    from tailrace.cli.consuming.records import PrintPages
    from tailrace.protocol.group_values import OnNewGroup
    from tailrace.sync import Client

_STARTS_OF_GROUPS: "Mapping[str, OnNewGroup]" = {
    "earliest": "startFromEarliest",
    "latest": "startFromLatest",
}
_VALUE_FORMAT = r"%v\n"


def consume(
    *,
    topics: Sequence[str],
    start: str | None,
    is_from_beginning: bool,
    at_us: int | None,
    since_ms: int | None,
    last: int | None,
    max_records: int | None,
    partition: int | None,
    group: str | None,
    consumer: str | None,
    follow: bool,
    is_value_only: bool,
    record_format: "RecordFormat | None",
    output: str | None,
    url: str | None,
) -> None:
    """Print the records of topics, partition by partition; with -f also those that come.

    With --group those that the group has not read yet, each at least once: what was printed is
    confirmed, and what was not, as after a broken pipe, comes again.
    Damaged batches are skipped and named. Partitions that cannot be read are named at the end.
    Both end with exit status 1. Lost offsets whose loss was accepted are named, and no error; so
    are those that retention removes before they are read.
    Plain text is shown as text; in JSON such a value has "valueEncoding":"text" behind it.
    """
    if since_ms is not None:
        at_us = max(0, time.time_ns() // 1000 - since_ms * 1000)
    selection = Selection("earliest" if is_from_beginning else start, at_us, last, partition)
    if is_value_only:
        record_format = _format(_VALUE_FORMAT)
    _check_selection(selection, topics, group, consumer)
    # Records of several topics differ by the topic's name.
    names_topics = len(topics) > 1 or any(map(is_pattern, topics))
    note, warn = partial(_say, "note:", url), partial(_say, "!", url)
    with connect(url) as client:
        from tailrace.cli.consuming.records import as_format, as_output, print_records

        if record_format is None:
            print_pages = as_output(output or "json", names_topics=names_topics)
        else:
            print_pages = as_format(record_format)
        names = wanted_topics(client, topics)
        if group is not None:
            _consume_by_group(
                client,
                names,
                group=group,
                consumer=consumer,
                start=start or "earliest",
                max_records=max_records,
                follow=follow,
                print_pages=print_pages,
                note=note,
            )
            return
        selected = select(
            client,
            names,
            selection,
            follow=follow,
            names_topics=names_topics or record_format is not None,
            page_records=min(max_records or PAGE_RECORDS_MAX, PAGE_RECORDS_MAX),
            note=note,
            warn=warn,
        )
        pages = limited(selected.pages, max_records)
        print_records(pages, print_pages, selected.total)


def _check_selection(
    selection: Selection, topics: Sequence[str], group: str | None, consumer: str | None
) -> None:
    """UsageError."""
    start, at_us, last, partition = selection
    if group is not None:
        if at_us is not None or last is not None or partition is not None:
            raise UsageError(
                "--group goes on from the group's position, so --at, --since, --last and "
                "--partition do not go with it. Move it: tailrace group reset"
            )
        if start not in (None, *_STARTS_OF_GROUPS):
            raise UsageError(
                f"--from {start}: a group starts at earliest or latest. Move one that has started: "
                "tailrace group reset"
            )
        return
    if consumer is not None:
        raise UsageError("--consumer is a name within a group: give --group too")
    if partition is not None and (len(topics) > 1 or is_pattern(topics[0])):
        raise UsageError("--partition is of one topic: give its name alone")
    if last is not None and partition is not None:
        raise UsageError(f"--last is of all partitions; of one: --partition P --from -{last}")


def _consume_by_group(
    client: "Client",
    topics: Sequence[str],
    *,
    group: str,
    consumer: str | None,
    start: str,
    max_records: int | None,
    follow: bool,
    print_pages: "PrintPages",
    note: Callable[[str], None],
) -> None:
    from tailrace.cli.consuming.deliveries import Deliveries
    from tailrace.cli.consuming.records import print_records

    client.offsets(topics)  # TopicNotFoundError; to register could create them
    with Deliveries(
        client,
        group=group,
        topics=topics,
        consumer_id=consumer or _random_consumer_id(),
        on_new_group=_STARTS_OF_GROUPS[start],
        page_records=PAGE_RECORDS_MAX,
        follow=follow,
        note=note,
    ) as deliveries:
        print_records(deliveries.slices(max_records), print_pages, None)


def _say(sign: str, url: str | None, text: str) -> None:
    print(f"{sign} {with_url(text, url)}", file=sys.stderr, flush=True)


def _random_consumer_id() -> str:
    """Return one that shows where it runs."""
    import secrets
    import socket

    host = "".join(filter(str.isalnum, socket.gethostname()))[:200]
    return f"{host}-{secrets.token_hex(4)}"


# --- the verb -------------------------------------------------------------------------------------


def _start(word: str) -> str:
    if word in ("earliest", "latest") or re.fullmatch(f"-?[0-9]{{1,{DIGITS_MAX}}}", word):
        return word
    raise argparse.ArgumentTypeError(
        f"{shown(word)} is not earliest, latest, an offset, or -N for the last N"
    )


def _format(word: str) -> "RecordFormat":
    from tailrace.cli.consuming.record_format import record_format

    return record_format(word)


VERB = Verb(
    consume,
    (
        parameter(
            "topics",
            metavar="TOPIC",
            nargs="+",
            type=text,
            help="topics' names; one with *, ? or [] means those that match it now: quote it",
            complete="topic",
        ),
        parameter(
            "--from",
            dest="start",
            metavar="START",
            type=_start,
            help="earliest (the default), latest, an offset, or -N: N before each partition's end; "
            "of a group, one of the first two, where it starts when it is new",
        ),
        parameter(
            "--from-beginning",
            dest="is_from_beginning",
            action="store_true",
            help="the same as --from earliest",
        ),
        parameter(
            "--at",
            dest="at_us",
            metavar="TIME",
            type=time_us,
            help=f"from this time on, like {TIME_HELP}",
        ),
        parameter(
            "--since",
            dest="since_ms",
            metavar="DURATION",
            type=past_duration,
            help="from this long ago on, by this machine's clock, like 90s, 1h30m or 7d",
        ),
        parameter(
            "--last",
            metavar="N",
            type=whole_number(1, LAST_RECORDS_MAX),
            help="of the last N of each partition, the N newest by record time",
        ),
        parameter(
            "--max",
            dest="max_records",
            metavar="N",
            type=whole_number(0),
            help="end after this many records",
        ),
        parameter(
            "--partition", metavar="P", type=whole_number(0), help="read this partition only"
        ),
        parameter(
            "--group",
            metavar="GROUP",
            type=group_name,
            help="read as a consumer of this group, on from where it is",
            complete="group",
        ),
        parameter(
            "--consumer",
            metavar="NAME",
            type=group_name,
            help="this consumer's name in the group; default: a random one",
        ),
        parameter(
            "-f", "--follow", action="store_true", help="go on with what comes, until Ctrl-C"
        ),
        parameter(
            "--value-only",
            dest="is_value_only",
            action="store_true",
            help="print values alone, as they are stored, a line each",
        ),
        parameter(
            "--format",
            dest="record_format",
            metavar="FORMAT",
            type=_format,
            help="print each record so, with no line end added: %t topic, %p partition, "
            "%o offset, %T timestamp, %k key, %v value, %h headers, %% a percent sign; "
            "\\n a line end, \\t a tab, \\r, \\0, \\\\",
        ),
        OUTPUT._replace(
            help="json (the default), a record a line; table for people, or yaml",
            settings={**OUTPUT.settings, "default": None},
        ),
        URL,
    ),
    (
        "tailrace consume orders --from earliest --max 10",
        "tailrace consume orders --partition 3 --from 1700",
        "tailrace consume orders --at 2026-11-21T09:00Z -o table",
        "tailrace consume orders --since 1h --value-only",
        r"tailrace consume 'order*' --from-beginning --format '%t %k %v\n'",
        "tailrace consume orders --last 1 -f",
        "tailrace consume orders --group billing -f",
    ),
    exclusive=(
        ("--from", "--from-beginning", "--at", "--since", "--last"),
        ("--value-only", "--format", "-o"),
    ),
)
