"""`tailrace dump`: what is in a segment, an index or a journal file, without a broker."""

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from uuid import UUID

from tailrace.cli.lib.options import OUTPUT
from tailrace.cli.lib.parser import UsageError, Verb, parameter
from tailrace.errors import TailraceError
from tailrace.wire import BatchHeader, Codec, Flag

if TYPE_CHECKING:
    from tailrace.cli.lib.inspection import Piece
    from tailrace.cli.lib.output import Column

PAGE_ROWS = 500
OK, BAD = "ok", "bad"

Document = dict[str, Any]


def dump(*, file: Path, records: bool, output: str) -> None:
    """Show what is in a segment (.log), its index (.idx), a .journal or damage, checksums verified.

    Batches and pads one a line, or with --records the records. Reads the file as it is, also
    while a broker writes it. Of a journal file its present round: frames, each before its batches
    and cuts. Needs the broker's packages.
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
    from tailrace.cli.lib.inspection import pieces_in
    from tailrace.cli.lib.output import show_pages

    seen: dict[str, int] = {}
    documents = _noted(map(_piece_document, pieces_in(opened, _size_bytes(opened))), seen)
    show_pages(output, _pages(documents), _entry_columns())
    _raise_when_damaged(file, seen)


def _show_journal(file: Path, opened: BinaryIO, output: str) -> None:
    """Raises behind the last line when something is damaged."""
    from tailrace.cli.lib.inspection import StoredDataError
    from tailrace.cli.lib.output import show_pages

    seen: dict[str, int] = {}
    try:
        show_pages(output, _pages(_noted(_frame_documents(opened), seen)), _journal_columns())
    except StoredDataError as error:
        raise TailraceError(f"{file}: {error.detail}") from error
    _raise_when_damaged(file, seen)


def _show_records(file: Path, opened: BinaryIO, output: str) -> None:
    """Up to the first damage; raises behind that."""
    from tailrace.cli.consuming.records import columns, readable
    from tailrace.cli.lib.inspection import StoredDataError, lines_in, pieces_in
    from tailrace.cli.lib.json_texts import parse_json
    from tailrace.cli.lib.output import show_pages

    pieces = list(pieces_in(opened, _size_bytes(opened)))
    whole = takewhile(lambda piece: piece.is_whole, pieces)
    batches = (piece for piece in whole if piece.header is not None)
    pages = ([readable(parse_json(line)) for line in lines_in(opened, piece)] for piece in batches)
    try:
        show_pages(output, pages, columns())
    except StoredDataError as error:
        raise TailraceError(f"{file}: {error.detail}: restore it from a copy") from error
    _raise_when_damaged(file, {_checksum(piece): piece.position for piece in reversed(pieces)})


def _piece_document(piece: "Piece") -> Document:
    header = {} if piece.header is None else _header_document(piece.header)
    return {
        "position": piece.position,
        "kind": piece.kind,
        **header,
        "bytes": piece.size_bytes,
        "checksum": _checksum(piece),
    }


def _frame_documents(opened: BinaryIO) -> Iterator[Document]:
    """Frames, each before its batches and cuts."""
    from tailrace.cli.lib.inspection import frames_in

    for frame in frames_in(opened):
        yield {
            "position": frame.position,
            "kind": "frame",
            "sequence": frame.sequence,
            "durableSequence": frame.durable_sequence,
            "bytes": frame.size_bytes,
            "checksum": OK if frame.is_whole else BAD,
        }
        for piece in frame.entries:
            document = _piece_document(piece)
            log = piece.header or piece.cut
            if log is not None:
                document["topicId"] = str(UUID(bytes=log.topic_id))
                document["partition"] = log.partition
            if piece.cut is not None:
                document["endOffset"] = piece.cut.end_offset
            yield document


def _header_document(header: BatchHeader) -> Document:
    """What a batch's header says."""
    return {
        "firstOffset": header.base_offset,
        "lastOffset": header.end_offset - 1,
        "count": header.record_count,
        "codec": Codec(header.codec).name.lower(),
        "uncompressedBytes": header.uncompressed_bytes,
        "firstTimestamp": _time_text(header.first_timestamp_us),
        "largestTimestamp": _time_text(header.largest_timestamp_us),
        "appendTime": _time_text(header.append_time_us),
        "epoch": header.epoch,
        "highWatermark": header.high_watermark,
        "flags": [str(flag.name).lower() for flag in Flag(header.flags)],
    }


def _time_text(time_us: int) -> str | None:
    """RFC 3339 in UTC; None for what is no time of this calendar."""
    from datetime import UTC, datetime, timedelta

    try:
        time = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=time_us)
    except OverflowError:
        return None
    return f"{time:%Y-%m-%dT%H:%M:%S.%f}Z"


def _checksum(piece: "Piece") -> str:
    return OK if piece.is_whole else BAD


def _noted(documents: Iterable[Document], seen: dict[str, int]) -> Iterator[Document]:
    """The same; `seen` gets the first position of each checksum's verdict."""
    for document in documents:
        seen.setdefault(document["checksum"], document["position"])
        yield document


def _raise_when_damaged(file: Path, seen: dict[str, int]) -> None:
    if BAD in seen:
        raise TailraceError(
            f"{file} is damaged from byte {seen[BAD]} on: restore it from a copy, unless that is "
            "what a killed broker left of its last write, which its next start cuts away"
        )


def _show_index(file: Path, opened: BinaryIO, output: str) -> None:
    from tailrace.cli.lib.inspection import StoredDataError, index_in
    from tailrace.cli.lib.output import member

    try:
        index = index_in(opened.read())
    except StoredDataError as error:
        raise TailraceError(
            f"{file}: {error.detail}: a broker writes it again at its next start"
        ) from error
    document = {
        "segmentBytes": index.segment_bytes,
        "endOffset": index.end_offset,
        "lastEpoch": index.last_epoch,
        "lastAppendTime": _time_text(index.last_append_time_us),
        "largestTimestamp": _time_text(index.largest_timestamp_us),
        "entries": [
            {
                "relativeOffset": entry.relative_offset,
                "position": entry.position,
                "largestTimestampBefore": _time_text(entry.largest_before_us),
            }
            for entry in index.entries
        ],
        "epochs": [{"epoch": epoch, "startOffset": offset} for epoch, offset in index.epochs],
    }
    columns = [
        member("RELATIVE OFFSET", "relativeOffset"),
        member("POSITION", "position"),
        member("LARGEST TIMESTAMP BEFORE", "largestTimestampBefore"),
    ]
    _show_rows(output, document, "entries", columns)


def _show_damage(file: Path, opened: BinaryIO, output: str) -> None:
    from tailrace.cli.lib.inspection import StoredDataError, damage_in
    from tailrace.cli.lib.output import member

    try:
        known = damage_in(opened.read())
    except StoredDataError as error:
        raise TailraceError(f"{file}: {error.detail}; restore it from a copy") from error
    document = {
        "provenEnd": known.proven_end,
        "largestEnd": known.largest_end or None,
        "losses": [
            {
                "firstOffset": loss.first_offset,
                "nextOffset": loss.end_offset,
                "accepted": _time_text(loss.accepted_us) if loss.accepted_us else None,
            }
            for loss in known.losses
        ],
    }
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
        _column("CUT AT", "endOffset"),
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
        parameter("--records", action="store_true", help="its records"),
        OUTPUT,
    ),
    (
        "tailrace dump 00000000000000000000.log",
        "tailrace dump 00000000000000000000.log --records -o json",
        "tailrace dump 00000000000000000000.idx",
        "tailrace dump 0.journal",
    ),
)
