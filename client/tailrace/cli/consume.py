"""`tailrace consume`: print what a topic holds or has for a group, with -f also what comes."""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import chain
from typing import TYPE_CHECKING, Any

from tailrace.cli.options import OUTPUT, TOPIC, URL, connect, group_name
from tailrace.cli.parser import UsageError, Verb, parameter, shown, whole_number
from tailrace.cli.times import TIME_EXAMPLE, time_us
from tailrace.errors import TailraceError, UnexpectedAnswerError
from tailrace.quantities import DIGITS_MAX

if TYPE_CHECKING:
    from tailrace.cli.progress import Progress
    from tailrace.group_values import OnNewGroup
    from tailrace.sync import Client
    from tailrace.values import PartitionOffsets

PAGE_RECORDS_MAX = 1_000  # bounds memory: a page is held as a whole
LAST_RECORDS_MAX = 1_000  # docs/protocol.md, "Read"
_STARTS_OF_GROUPS: "Mapping[str, OnNewGroup]" = {
    "earliest": "startFromEarliest",
    "latest": "startFromLatest",
}

Starts = Mapping[int, int]  # partition, first offset to print
Pages = Iterator[bytes]  # records as the broker writes them, a line each


def consume(
    *,
    topic: str,
    start: str | None,
    at_us: int | None,
    last: int | None,
    max_records: int | None,
    partition: int | None,
    group: str | None,
    consumer: str | None,
    follow: bool,
    output: str,
    url: str | None,
) -> None:
    """Print a topic's records, partition by partition; with -f also those that come.

    With --group those that the group has not read yet, each at least once: what was printed is
    confirmed, and what was not, as after a broken pipe, comes again.
    """
    if group is not None:
        if at_us is not None or last is not None or partition is not None:
            raise UsageError(
                "--group goes on from the group's position, so --at, --last and --partition do "
                "not go with it. Move it: tailrace group reset"
            )
        _consume_by_group(
            topic=topic,
            group=group,
            consumer=consumer,
            start=start,
            max_records=max_records,
            follow=follow,
            output=output,
            url=url,
        )
        return
    if consumer is not None:
        raise UsageError("--consumer is a name within a group: give --group too")
    if sum(each is not None for each in (start, at_us, last)) > 1:
        raise UsageError("--from, --at and --last exclude each other")
    if last is not None and partition is not None:
        raise UsageError(f"--last is of all partitions; of one: --partition P --from -{last}")
    with connect(url) as client:
        partitions = _wanted_partitions(client, topic, partition, at_us)
        # Told before anything is printed: a damaged partition, an offset outside of one.
        ends = {each.partition: each.readable().stop for each in partitions}
        first: Pages = iter(())
        starts: Starts = ends
        if last is not None:
            first = iter([_last_lines(client, topic, last, ends if follow else None)])
        else:
            starts = {each.partition: start_offset(start, at_us, each) for each in partitions}
        page_records = min(max_records or PAGE_RECORDS_MAX, PAGE_RECORDS_MAX)
        if follow:
            pages = _followed(client, topic, partitions, starts, page_records)
        else:
            pages = _stored_pages(client, partitions, starts, page_records)
        total = None if follow else sum(ends.values()) - sum(starts.values())
        _print(limited(chain(first, pages), max_records), output, total)


def start_offset(start: str | None, at_us: int | None, offsets: "PartitionOffsets") -> int:
    """Where to begin in this partition; PartitionDamagedError, or an error with what it has."""
    readable = offsets.readable()
    if at_us is not None:
        return readable.stop if offsets.timestamp_offset is None else offsets.timestamp_offset
    if start in (None, "earliest"):
        return readable.start
    if start == "latest":
        return readable.stop
    number = int(start)
    if start.startswith("-"):
        return max(readable.start, readable.stop + number)
    if not readable.start <= number <= readable.stop:
        raise TailraceError(
            f"offset {start} is outside partition {offsets.partition}, which has "
            f"{readable.start} to {readable.stop}: give one of these, or another --partition"
        )
    return number


def limited(pages: Pages, max_records: int | None) -> Pages:
    """The pages up to the wanted count of records; None: all."""
    if max_records is None:
        yield from pages
        return
    remaining = max_records
    while remaining:
        page = next(pages, None)
        if page is None:
            return
        lines = _lines_of(page)[:remaining]
        remaining -= len(lines)
        yield b"".join(lines)


# --- by a group -----------------------------------------------------------------------------------


def _consume_by_group(
    *,
    topic: str,
    group: str,
    consumer: str | None,
    start: str | None,
    max_records: int | None,
    follow: bool,
    output: str,
    url: str | None,
) -> None:
    if start not in (None, *_STARTS_OF_GROUPS):
        raise UsageError(
            f"--from {start}: a group starts at earliest or latest. Move one that has started: "
            "tailrace group reset"
        )
    from tailrace.cli.deliveries import Deliveries

    with connect(url) as client:
        client.offsets([topic])  # TopicNotFoundError; to register could create it
        with Deliveries(
            client,
            group=group,
            topic=topic,
            consumer_id=consumer or _random_consumer_id(),
            on_new_group=_STARTS_OF_GROUPS[start or "earliest"],
            page_records=PAGE_RECORDS_MAX,
            follow=follow,
            note=_note,
        ) as deliveries:
            _print(deliveries.slices(max_records), output, None)


def _random_consumer_id() -> str:
    """One that tells where it runs."""
    import secrets
    import socket

    host = "".join(filter(str.isalnum, socket.gethostname()))[:200]
    return f"{host}-{secrets.token_hex(4)}"


# --- pages ----------------------------------------------------------------------------------------


def _wanted_partitions(
    client: "Client", topic: str, partition: int | None, at_us: int | None
) -> "list[PartitionOffsets]":
    every = client.offsets([topic], at_us)
    wanted = [offsets for offsets in every if partition in (None, offsets.partition)]
    if not wanted:
        raise TailraceError(
            f'topic "{topic}" has no partition {partition}, but 0 to {len(every) - 1}'
        )
    return wanted


def _stored_pages(
    client: "Client", partitions: "Iterable[PartitionOffsets]", starts: Starts, page_records: int
) -> Pages:
    """What each partition held when it was asked for its offsets."""
    for offsets in partitions:
        position, end = starts[offsets.partition], offsets.readable().stop
        while position < end:
            page = client.read_lines(
                offsets.topic,
                offsets.partition,
                position,
                max_records=min(page_records, end - position),
            )
            if page.next_offset <= position:
                raise UnexpectedAnswerError(
                    f"partition {offsets.partition} gave nothing from offset {position} on, "
                    f"below its high watermark {end}"
                )
            yield page.body
            position = page.next_offset


def _last_lines(client: "Client", topic: str, count: int, ends: Starts | None) -> bytes:
    """What --last prints; of that what is below `ends`, which are followed from there."""
    page = client.last_lines(topic, count)
    if ends is None:
        return page
    found = zip(_lines_of(page), _documents(page), strict=True)
    return b"".join(line for line, each in found if each["offset"] < ends[each["partition"]])


def _lines_of(page: bytes) -> list[bytes]:
    """With their ends: LF alone, since a carriage return may stand inside of a JSON value."""
    return BytesIO(page).readlines()


def _followed(
    client: "Client",
    topic: str,
    partitions: "Sequence[PartitionOffsets]",
    starts: Starts,
    page_records: int,
) -> Pages:
    from tailrace.cli.follow import follow

    return follow(client, topic, partitions, starts, page_records=page_records, note=_note)


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr, flush=True)


# --- printing -------------------------------------------------------------------------------------


def _print(pages: Pages, output: str, total: int | None) -> None:
    """As they come. `total`: of records, when that many end it."""
    from tailrace.cli.output import show_pages
    from tailrace.cli.progress import Progress
    from tailrace.cli.records import columns

    with Progress(total, is_wanted=total is not None and not sys.stdout.isatty()) as progress:
        counted = _counted(pages, progress)
        if output == "json":  # one document a line, as the broker sends them
            for page in counted:
                sys.stdout.buffer.write(page)
                sys.stdout.buffer.flush()
        else:
            show_pages(output, map(_documents, counted), columns())


def _counted(pages: Pages, progress: "Progress") -> Pages:
    """The same pages; the progress is told of each."""
    record_count = size_bytes = 0
    for page in pages:
        yield page
        record_count += page.count(b"\n")
        size_bytes += len(page)
        progress.update(done=record_count, events=record_count, size_bytes=size_bytes)


def _documents(page: bytes) -> list[Any]:
    import json

    from tailrace.cli.ndjson import number_or_text

    try:
        return [
            json.loads(line, parse_int=number_or_text, parse_float=number_or_text)
            for line in _lines_of(page)
        ]
    except ValueError as error:
        raise UnexpectedAnswerError(
            f"the broker sent a record that is not JSON: {error}"
        ) from error


# --- the verb -------------------------------------------------------------------------------------


def _start(word: str) -> str:
    if word in ("earliest", "latest") or re.fullmatch(f"-?[0-9]{{1,{DIGITS_MAX}}}", word):
        return word
    raise argparse.ArgumentTypeError(
        f"{shown(word)} is not earliest, latest, an offset, or -N for the last N"
    )


VERB = Verb(
    consume,
    (
        TOPIC,
        parameter(
            "--from",
            dest="start",
            metavar="START",
            type=_start,
            help="earliest (the default), latest, an offset, or -N: N before each partition's end; "
            "of a group, one of the first two, where it starts when it is new",
        ),
        parameter(
            "--at",
            dest="at_us",
            metavar="TIME",
            type=time_us,
            help=f"from this time on, like {TIME_EXAMPLE}",
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
        OUTPUT._replace(
            help="json (the default), a record a line; table for people, or yaml",
            settings={**OUTPUT.settings, "default": "json"},
        ),
        URL,
    ),
    (
        "tailrace consume orders --from earliest --max 10",
        "tailrace consume orders --partition 3 --from 1700",
        "tailrace consume orders --at 2026-11-21T09:00Z -o table",
        "tailrace consume orders --last 1 -f",
        "tailrace consume orders --group billing -f",
    ),
)
