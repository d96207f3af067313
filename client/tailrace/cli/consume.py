"""`tailrace consume`: print what a topic holds, up to where it ended when asked."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.options import DEFAULT_URL, TopicArgument, UrlOption, connect
from tailrace.errors import TailraceError, TopicNotFoundError, UnexpectedAnswerError

if TYPE_CHECKING:
    from tailrace.requests import PartitionOffsets
    from tailrace.sync import Client

PAGE_RECORDS_MAX = 1_000  # bounds memory: a page is held as a whole


def consume(
    topic: TopicArgument,
    start: Annotated[
        str, typer.Option("--from", help="earliest, latest or an offset.", metavar="START")
    ] = "earliest",
    max_records: Annotated[
        int | None, typer.Option("--max", min=0, help="End after this many records.", metavar="N")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="Read this partition only.", metavar="P")
    ] = None,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Print records as NDJSON, one partition after the other.

    \b
    Example:
      tailrace consume orders --from earliest --max 10
      tailrace consume orders --partition 3 --from 1700
    """
    import sys

    _check_start(start)
    with connect(url) as client:
        partitions = _wanted_partitions(client, topic, partition)
        # Told before anything is printed: a damaged partition, an offset outside of one.
        starts = [start_offset(start, offsets) for offsets in partitions]
        remaining = max_records
        for offsets, first in zip(partitions, starts, strict=True):
            end = offsets.readable().stop
            if remaining is not None:
                end = min(end, first + remaining)
                remaining -= end - first
            for page in _pages(client, offsets, first, end):
                sys.stdout.buffer.write(page)


def _check_start(start: str) -> None:
    if start not in ("earliest", "latest") and not start.isdecimal():
        raise typer.BadParameter(
            f'"{start}" is not earliest, latest or an offset', param_hint="--from"
        )


def _wanted_partitions(
    client: "Client", topic: str, partition: int | None
) -> "list[PartitionOffsets]":
    try:
        every = client.offsets([topic])
    except TopicNotFoundError as error:
        raise TailraceError(
            f'topic "{topic}" does not exist. Those that do: tailrace topic list'
        ) from error
    wanted = [offsets for offsets in every if partition in (None, offsets.partition)]
    if not wanted:
        raise TailraceError(
            f'topic "{topic}" has no partition {partition}, but 0 to {len(every) - 1}'
        )
    return wanted


def start_offset(start: str, offsets: "PartitionOffsets") -> int:
    """Where to begin in this partition; PartitionDamagedError, or an error with what it has."""
    readable = offsets.readable()
    if start == "earliest":
        return readable.start
    if start == "latest":
        return readable.stop
    if not readable.start <= int(start) <= readable.stop:
        raise TailraceError(
            f"offset {start} is outside partition {offsets.partition}, which has "
            f"{readable.start} to {readable.stop}. Choose one with --partition"
        )
    return int(start)


def _pages(client: "Client", offsets: "PartitionOffsets", start: int, end: int) -> Iterator[bytes]:
    """The records of [start, end) as the broker writes them."""
    while start < end:
        page = client.read_lines(
            offsets.topic,
            offsets.partition,
            start,
            max_records=min(PAGE_RECORDS_MAX, end - start),
        )
        if page.next_offset <= start:
            raise UnexpectedAnswerError(
                f"partition {offsets.partition} gave nothing from offset {start} on, "
                f"below its high watermark {offsets.high_watermark}"
            )
        yield page.body
        start = page.next_offset
