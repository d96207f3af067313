"""`tailrace dump`: what stands in a segment, an index or a journal file, without a broker."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tailrace.cli.lib.options import OUTPUT
from tailrace.cli.lib.parser import UsageError, Verb, parameter
from tailrace.errors import CorruptBatchError, TailraceError

if TYPE_CHECKING:
    from tailrace.cli.lib.output import Column

PAGE_ROWS = 500


def dump(*, file: Path, records: bool, output: str) -> None:
    """Show what is in a segment (.log), its index (.idx), a .journal or damage, checksums verified.

    Batches and pads one a line, or with --records the records. Reads the file as it is, also
    while a broker writes it. Of a journal file its present round: frames, each before its batches.
    """
    show = _SHOWN_BY.get(file.suffix or file.name)
    if show is None:
        raise UsageError(
            f'"{file}" is not a segment (.log), its index (.idx), a .journal or a file named damage'
        )
    if records:
        if file.suffix != ".log":
            raise UsageError("--records is of a segment (.log)")
        show = _show_records
    with file.open("rb") as opened:
        show(file, opened, output)


def _show_entries(file: Path, opened: BinaryIO, output: str) -> None:
    """Raises behind the last line when something is damaged."""
    from tailrace.cli.lib.output import show_pages

    seen: dict[str, int] = {}
    show_pages(output, _pages(_entries(opened, seen)), _entry_columns())
    _note_when_unchecked(seen)
    _raise_when_damaged(file, seen)


def _show_journal(file: Path, opened: BinaryIO, output: str) -> None:
    """Raises behind the last line when something is damaged."""
    from tailrace.cli.lib.output import show_pages
    from tailrace.cli.stored.journals import journal_documents, read_journal

    try:
        journal = read_journal(opened, _size_bytes(opened))
    except CorruptBatchError as error:
        raise TailraceError(f"{file}: {error}") from error
    seen: dict[str, int] = {}
    documents = _noted(journal_documents(journal), seen)
    show_pages(output, _pages(documents), _journal_columns())
    _note_when_unchecked(seen)
    _raise_when_damaged(file, seen)


def _show_records(file: Path, opened: BinaryIO, output: str) -> None:
    """Up to the first damage; raises behind that."""
    from tailrace.cli.consuming.records import columns, readable
    from tailrace.cli.lib.output import show_pages
    from tailrace.cli.stored.segments import BAD, records
    from tailrace.extras import install_command

    seen: dict[str, int] = {}
    whole = takewhile(lambda entry: entry["checksum"] != BAD, _entries(opened, seen))
    try:
        pages = (list(map(readable, page)) for page in records(opened, whole))
        show_pages(output, pages, columns())
    except ImportError as error:
        remedy = install_command("arrow")
        raise TailraceError(f"records need the extra arrow. Install it: {remedy}") from error
    except CorruptBatchError as error:
        raise TailraceError(f"{file}: {error}: restore it from a copy") from error
    _raise_when_damaged(file, seen)


def _entries(opened: BinaryIO, seen: dict[str, int]) -> Iterator[dict[str, Any]]:
    """The segment's."""
    from tailrace.cli.stored.segments import entries

    return _noted(entries(opened, _size_bytes(opened)), seen)


def _noted(documents: Iterable[dict[str, Any]], seen: dict[str, int]) -> Iterator[dict[str, Any]]:
    """The same; `seen` gets the first position of each checksum's verdict."""
    for document in documents:
        seen.setdefault(document["checksum"], document["position"])
        yield document


def _note_when_unchecked(seen: dict[str, int]) -> None:
    from tailrace.cli.stored.segments import UNCHECKED, unchecked_note

    if UNCHECKED in seen:
        print(unchecked_note(), file=sys.stderr)


def _raise_when_damaged(file: Path, seen: dict[str, int]) -> None:
    from tailrace.cli.stored.segments import BAD

    if BAD in seen:
        raise TailraceError(
            f"{file} is damaged from byte {seen[BAD]} on: restore it from a copy, unless that is "
            "what a killed broker left of its last write, which its next start cuts away"
        )


def _show_index(file: Path, opened: BinaryIO, output: str) -> None:
    from tailrace.cli.lib.output import member
    from tailrace.cli.stored.segments import read_index

    try:
        index = read_index(opened.read())
    except CorruptBatchError as error:
        raise TailraceError(f"{file} is {error}") from error
    columns = [
        member("RELATIVE OFFSET", "relativeOffset"),
        member("POSITION", "position"),
        member("LARGEST TIMESTAMP BEFORE", "largestTimestampBefore"),
    ]
    _show_rows(output, index, "entries", columns)


def _show_damage(file: Path, opened: BinaryIO, output: str) -> None:
    from tailrace.cli.lib.output import member
    from tailrace.cli.stored.damage_files import damage_document, parse_damage

    try:
        document = damage_document(parse_damage(opened.read()))
    except CorruptBatchError as error:
        raise TailraceError(f"{file} is {error}: restore it from a copy") from error
    columns = [
        member("FIRST LOST", "firstOffset"),
        member("GOES ON AT", "nextOffset"),
        member("ACCEPTED", "accepted"),
    ]
    _show_rows(output, document, "losses", columns)


def _show_rows(output: str, document: dict[str, Any], name: str, columns: "list[Column]") -> None:
    """Show the list `name` as a table, below the other members."""
    from tailrace.cli.lib.output import as_table, cell_text, show

    others = (f"{each} {cell_text(value)}" for each, value in document.items() if each != name)
    show(output, document, f"{'   '.join(others)}\n{as_table(document[name], columns)}")


def _size_bytes(opened: BinaryIO) -> int:
    return os.fstat(opened.fileno()).st_size


def _pages(documents: Iterable[Any]) -> Iterator[Sequence[Any]]:
    """One at least, so that titles are printed."""
    rest = iter(documents)
    while True:
        page = list(islice(rest, PAGE_ROWS))
        yield page
        if len(page) < PAGE_ROWS:
            return


def _entry_columns() -> "list[Column]":
    return [
        _column("POSITION", "position"),
        _column("KIND", "kind"),
        *_batch_columns(),
        _column("FIRST TIMESTAMP", "firstTimestamp"),
        _column("LARGEST TIMESTAMP", "largestTimestamp"),
        _column("FLAGS", "flags"),
        _column("CHECKSUM", "checksum"),
    ]


def _journal_columns() -> "list[Column]":
    return [
        _column("POSITION", "position"),
        _column("KIND", "kind"),
        _column("SEQUENCE", "sequence"),
        _column("DURABLE", "durableSequence"),
        _column("TOPIC ID", "topicId"),
        _column("PARTITION", "partition"),
        *_batch_columns(),
        _column("CHECKSUM", "checksum"),
    ]


def _batch_columns() -> "list[Column]":
    from tailrace.cli.lib.output import NONE, Column

    def offsets(entry: dict[str, Any]) -> str:
        return f"{entry['firstOffset']}-{entry['lastOffset']}" if "count" in entry else NONE

    return [
        Column("OFFSETS", offsets),
        _column("COUNT", "count"),
        _column("CODEC", "codec"),
        _column("BYTES", "bytes"),
    ]


def _column(title: str, name: str) -> "Column":
    """Of a member that not every document has."""
    from tailrace.cli.lib.output import Column, cell_text

    return Column(title, lambda entry: cell_text(entry.get(name)))


_SHOWN_BY = {
    ".log": _show_entries,
    ".idx": _show_index,
    ".journal": _show_journal,
    "damage": _show_damage,
}
VERB = Verb(
    dump,
    (
        parameter(
            "file", metavar="FILE", type=Path, help="a file of a data directory", complete="file"
        ),
        parameter("--records", action="store_true", help="its records; needs the extra arrow"),
        OUTPUT,
    ),
    (
        "tailrace dump 00000000000000000000.log",
        "tailrace dump 00000000000000000000.log --records -o json",
        "tailrace dump 00000000000000000000.idx",
        "tailrace dump 0.journal",
    ),
)
