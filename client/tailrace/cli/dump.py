"""`tailrace dump`: what stands in a segment file or in its index, without a broker."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tailrace.cli.options import OUTPUT
from tailrace.cli.parser import UsageError, Verb, parameter
from tailrace.errors import CorruptBatchError, TailraceError

if TYPE_CHECKING:
    from tailrace.cli.output import Column

PAGE_ROWS = 500
ARROW_REMEDY = "pip install 'tailrace[arrow]'"


def dump(*, file: Path, records: bool, output: str) -> None:
    """Show what is in a segment (.log) or its index (.idx), checksums verified.

    Batches and pads one a line, or with --records the records. Reads the file as it is, also
    while a broker writes it.
    """
    if file.suffix not in (".log", ".idx"):
        raise UsageError(f'"{file}" is not a segment (.log) or the index of one (.idx)')
    if records and file.suffix == ".idx":
        raise UsageError("--records is of a segment (.log): an index has none")
    with file.open("rb") as opened:
        if file.suffix == ".idx":
            _show_index(file, opened.read(), output)
        elif records:
            _show_records(file, opened, output)
        else:
            _show_entries(file, opened, output)


def _show_entries(file: Path, opened: BinaryIO, output: str) -> None:
    """Raises behind the last line when something is damaged."""
    from tailrace.cli.output import show_pages
    from tailrace.cli.segments import UNCHECKED

    seen: dict[str, int] = {}
    show_pages(output, _pages(_entries(opened, seen)), _entry_columns())
    if UNCHECKED in seen:
        print(f"note: checksums are not verified; for that: {ARROW_REMEDY}", file=sys.stderr)
    _raise_when_damaged(file, seen)


def _show_records(file: Path, opened: BinaryIO, output: str) -> None:
    """Up to the first damage; raises behind that."""
    from tailrace.cli.output import show_pages
    from tailrace.cli.records import columns
    from tailrace.cli.segments import BAD, records

    seen: dict[str, int] = {}
    whole = takewhile(lambda entry: entry["checksum"] != BAD, _entries(opened, seen))
    try:
        show_pages(output, records(opened, whole), columns())
    except ImportError as error:
        raise TailraceError(f"records need the extra arrow. Install it: {ARROW_REMEDY}") from error
    except CorruptBatchError as error:
        raise TailraceError(f"{file}: {error}: restore it from a copy") from error
    _raise_when_damaged(file, seen)


def _entries(opened: BinaryIO, seen: dict[str, int]) -> Iterator[dict[str, Any]]:
    """The segment's; `seen` gets the first position of each checksum's verdict."""
    from tailrace.cli.segments import entries

    for entry in entries(opened, _size_bytes(opened)):
        seen.setdefault(entry["checksum"], entry["position"])
        yield entry


def _raise_when_damaged(file: Path, seen: dict[str, int]) -> None:
    from tailrace.cli.segments import BAD

    if BAD in seen:
        raise TailraceError(
            f"{file} is damaged from byte {seen[BAD]} on: restore it from a copy, unless that is "
            "what a killed broker left of its last write, which its next start cuts away"
        )


def _show_index(file: Path, stored: bytes, output: str) -> None:
    from tailrace.cli.output import as_table, cell_text, member, show
    from tailrace.cli.segments import read_index

    try:
        index = read_index(stored)
    except CorruptBatchError as error:
        raise TailraceError(f"{file} is {error}") from error
    columns = [
        member("RELATIVE OFFSET", "relativeOffset"),
        member("POSITION", "position"),
        member("LARGEST TIMESTAMP BEFORE", "largestTimestampBefore"),
    ]
    known = {name: value for name, value in index.items() if name != "entries"}
    head = "   ".join(f"{name} {cell_text(value)}" for name, value in known.items())
    show(output, index, f"{head}\n{as_table(index['entries'], columns)}")


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
    from tailrace.cli.output import NONE, Column, cell_text

    def column(title: str, name: str) -> Column:
        return Column(title, lambda entry: cell_text(entry.get(name)))

    def offsets(entry: dict[str, Any]) -> str:
        return f"{entry['firstOffset']}-{entry['lastOffset']}" if "count" in entry else NONE

    return [
        column("POSITION", "position"),
        column("KIND", "kind"),
        Column("OFFSETS", offsets),
        column("COUNT", "count"),
        column("CODEC", "codec"),
        column("BYTES", "bytes"),
        column("FIRST TIMESTAMP", "firstTimestamp"),
        column("LARGEST TIMESTAMP", "largestTimestamp"),
        column("FLAGS", "flags"),
        column("CHECKSUM", "checksum"),
    ]


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
    ),
)
