"""What topics hold, page by page, as NDJSON; and with `follow` what comes.

Of one topic the lines are as the broker writes them; `names_topics` puts the topic's name first, as
polls of consumer groups have it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.cli.consuming.pages import Key, Page
from tailrace.cli.consuming.quarantined import Quarantined, Removed
from tailrace.errors import (
    PartitionDamagedError,
    PartitionUnavailableError,
    ProblemError,
    TailraceError,
    UnexpectedAnswerError,
)

if TYPE_CHECKING:
    from tailrace.sync import Client
    from tailrace.values import PartitionOffsets

PAGE_RECORDS_MAX = 1_000  # bounds memory: a page is held as a whole
LAST_RECORDS_MAX = 1_000  # docs/protocol.md, "Read"

Starts = Mapping[Key, int]  # the first offset to print
Pages = Iterator[bytes]  # records, a line each

_UnreadError = PartitionDamagedError | PartitionUnavailableError
_REMEDIES: Mapping[type[_UnreadError], str] = {
    PartitionUnavailableError: "no broker that leads it can be reached: see tailrace ring status",
    PartitionDamagedError: "its data is damaged: restore the file that the broker's log names and "
    "start it again",
}


class IncompleteError(TailraceError):
    """All that can be read was given, and a partition has more, or had more before damage."""


class Selection(NamedTuple):
    """Which records: one of `start`, `at_us` and `last`, or all; `partition`: of this one alone."""

    start: str | None
    at_us: int | None
    last: int | None
    partition: int | None


class Selected(NamedTuple):
    """`total`: how many records the pages have, when they end."""

    pages: Pages
    total: int | None


def select(
    client: "Client",
    topics: Sequence[str],
    selection: Selection,
    *,
    follow: bool,
    names_topics: bool,
    page_records: int,
    note: Callable[[str], None],
    warn: Callable[[str], None],
) -> Selected:
    """The records of these topics, topic by topic and partition by partition.

    Raised before any page is read: an offset outside of a partition; PartitionDamagedError,
    PartitionUnavailableError when no partition can be read, or all are needed. Raised behind the
    last page: IncompleteError.
    """
    partitions, unread = _readable(_wanted_partitions(client, topics, selection))
    if unread and (not partitions or follow or selection.last is not None):
        raise unread[0]
    ends = {_key(partition): partition.readable().stop for partition in partitions}

    def lines_in(page: Page) -> bytes:
        return named(page) if names_topics else page.lines

    first: list[bytes] = []
    starts: Starts = ends
    if selection.last is not None:
        newest = _newest(client, topics, selection.last, ends if follow else None)
        first = [b"".join(map(lines_in, newest))]
    else:
        starts = {
            _key(partition): start_offset(selection.start, selection.at_us, partition)
            for partition in partitions
        }
    if follow:
        from tailrace.cli.consuming.follow import follow as followed

        pages = followed(
            client, partitions, starts, page_records=page_records, note=note, warn=warn
        )
    else:
        skipped: list[Quarantined] = []

        def skip(passed: Quarantined | Removed) -> None:
            if isinstance(passed, Quarantined) and not passed.is_accepted:
                skipped.append(passed)
            warn(str(passed))

        pages = chain(
            _stored_pages(client, partitions, starts, page_records, skip),
            _ending(partitions, unread, skipped),
        )
    total = None if follow else sum(ends.values()) - sum(starts.values())
    return Selected(chain(first, map(lines_in, pages)), total)


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
        lines = lines_of(page)[:remaining]
        remaining -= len(lines)
        yield b"".join(lines)


def named(page: Page) -> bytes:
    """Its lines with the topic's name."""
    head = b'{"topic":"%s",' % page.topic.encode()
    return b"".join(head + line[1:] for line in lines_of(page.lines))


def lines_of(page: bytes) -> list[bytes]:
    """With their ends: LF alone, since a carriage return may be inside of a JSON value."""
    return BytesIO(page).readlines()


def documents_of(page: bytes) -> list[Any]:
    """Each line parsed. UnexpectedAnswerError."""
    import json

    from tailrace.cli.lib.json_texts import number_or_text

    try:
        return [
            json.loads(line, parse_int=number_or_text, parse_float=number_or_text)
            for line in lines_of(page)
        ]
    except ValueError as error:
        raise UnexpectedAnswerError(
            f"the broker sent a record that is not JSON: {error}"
        ) from error


def _key(offsets: "PartitionOffsets") -> Key:
    return offsets.topic, offsets.partition


def _wanted_partitions(
    client: "Client", topics: Sequence[str], selection: Selection
) -> "list[PartitionOffsets]":
    every = client.offsets(topics, selection.at_us)
    wanted = [each for each in every if selection.partition in (None, each.partition)]
    if not wanted:
        raise TailraceError(
            f'topic "{topics[0]}" has no partition {selection.partition}, but 0 to {len(every) - 1}'
        )
    return wanted


def _stored_pages(
    client: "Client",
    partitions: "Sequence[PartitionOffsets]",
    starts: Starts,
    page_records: int,
    skip: Callable[[Quarantined | Removed], None],
) -> Iterator[Page]:
    """What each partition held when it was asked for its offsets, but for what cannot be read."""
    for offsets in partitions:
        position, end = starts[_key(offsets)], offsets.readable().stop
        while position < end:
            try:
                page = client.read_lines(
                    offsets.topic,
                    offsets.partition,
                    position,
                    max_records=min(page_records, end - position),
                )
            except ProblemError as error:
                passed = _passed(client, offsets, position, error)
                if passed is None:
                    raise
                skip(passed)
                position = passed.next_offset
                continue
            if page.next_offset <= position:
                raise UnexpectedAnswerError(
                    f"partition {offsets.partition} gave nothing from offset {position} on, "
                    f"below its high watermark {end}"
                )
            yield Page(offsets.topic, page.body)
            position = page.next_offset


def _passed(
    client: "Client", offsets: "PartitionOffsets", position: int, error: ProblemError
) -> Quarantined | Removed | None:
    """What a read from `position` on has met that it can pass over; None: nothing."""
    key, end = _key(offsets), offsets.readable().stop
    if error.type == "partition-not-found":
        from tailrace.cli.consuming.follow import children_of_gone

        # Else it is new, and the broker that was asked has not heard of it.
        has_newer = bool(children_of_gone(key, client.offsets([offsets.topic])))
        return Removed(*key, position, end, end) if has_newer else None
    return Quarantined.at(position, error) or Removed.at(key, position, end, error)


def _readable(
    partitions: "Iterable[PartitionOffsets]",
) -> "tuple[list[PartitionOffsets], list[_UnreadError]]":
    """Those that can be read, and the errors of the others."""
    readable, unread = [], []
    for partition in partitions:
        try:
            partition.readable()
        except (PartitionDamagedError, PartitionUnavailableError) as error:
            unread.append(error)
        else:
            readable.append(partition)
    return readable, unread


def _ending(
    partitions: "Sequence[PartitionOffsets]",
    unread: "Sequence[_UnreadError]",
    skipped: "Sequence[Quarantined]",
) -> Iterator[Page]:
    """No page. IncompleteError names the partitions of which not all was read."""
    reasons = [*_unread_reasons(unread), *_skipped_reasons(skipped), *_lost_ends(partitions)]
    if reasons:
        raise IncompleteError(". ".join(reasons))
    yield from ()


def _unread_reasons(unread: "Sequence[_UnreadError]") -> Iterator[str]:
    for kind, remedy in _REMEDIES.items():
        names = [
            f'{each.partition} of topic "{each.topic}"' for each in unread if isinstance(each, kind)
        ]
        if names:
            yield f"not read: partition {', '.join(names)}: {remedy}"


def _skipped_reasons(skipped: Sequence[Quarantined]) -> Iterator[str]:
    if skipped:
        names = ", ".join(f"{each.offsets} of {each.partition_name}" for each in skipped)
        yield (
            f"not read: {names}: they are damaged: restore the files that the broker's log names "
            "and start it again"
        )


def _lost_ends(partitions: "Sequence[PartitionOffsets]") -> Iterator[str]:
    lost = [partition for partition in partitions if partition.state == "damaged"]
    if lost:
        names = ", ".join(
            f'{each.partition} of topic "{each.topic}" (from offset {each.high_watermark} on)'
            for each in lost
        )
        commands = ", ".join(
            f"tailrace topic accept-loss {each.topic} {each.partition}" for each in lost
        )
        yield (
            f"the last records are lost of partition {names}. Restore the files that the broker's "
            f"log names and start it again; or go on without them: {commands}"
        )


def _newest(
    client: "Client", topics: Sequence[str], count: int, ends: Starts | None
) -> Iterable[Page]:
    """What --last prints; of that what is below `ends`, which are followed from there."""
    pages = [Page(topic, client.last_lines(topic, count)) for topic in topics]
    if len(pages) == 1 and ends is None:
        return pages
    records = [
        (document, Page(page.topic, line))
        for page in pages
        for line, document in zip(lines_of(page.lines), documents_of(page.lines), strict=True)
    ]
    records.sort(key=lambda record: str(record[0]["timestamp"]))  # texts of one length and zone
    return [
        page
        for document, page in records[-count:]
        if ends is None or document["offset"] < ends[page.topic, document["partition"]]
    ]
