"""Records as people read them: rows of a table, documents as docs/protocol.md has them, or bytes.

A value that is not JSON comes as `{"base64": …}` with `"valueEncoding":"base64"`. What of that is
UTF-8 is shown as its text, with `"valueEncoding":"text"`: so it differs from a JSON string.
"""

import json
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tailrace.cli.consuming.topic_pages import Pages, documents_of, lines_of
from tailrace.cli.lib.output import NONE, Column, member, show_pages
from tailrace.cli.lib.progress import Progress

if TYPE_CHECKING:
    from tailrace.cli.consuming.record_format import RecordFormat

PrintPages = Callable[[Pages], None]

_IN_BASE64 = b'"valueEncoding":"base64"'


def print_records(pages: Pages, print_pages: PrintPages, total: int | None) -> None:
    """Print records as they come. `total`: of records, when that many end it."""
    with Progress(total, is_wanted=total is not None and not sys.stdout.isatty()) as progress:
        print_pages(_counted(pages, progress))


def as_output(output: str, *, names_topics: bool) -> PrintPages:
    """Return what prints pages as `-o` says: json, table or yaml."""
    if output == "json":
        return partial(_write, _with_texts)
    return partial(_show, output, columns(names_topics=names_topics))


def as_format(record_format: "RecordFormat") -> PrintPages:
    """Return what prints pages as `--format` says; their records name their topics."""
    return partial(_write, partial(_formatted, record_format))


def columns(*, names_topics: bool = False) -> list[Column]:
    """Of a record's document."""
    return [
        *([member("TOPIC", "topic")] if names_topics else []),
        member("PARTITION", "partition"),
        member("OFFSET", "offset"),
        member("TIMESTAMP", "timestamp"),
        Column("KEY", lambda record: _cell(record["key"])),
        Column("VALUE", lambda record: _cell(record["value"])),
        Column("HEADERS", lambda record: ",".join(map(_header, record.get("headers", ())))),
    ]


def readable(document: Any) -> Any:
    """With its value as text, when that is no JSON and UTF-8."""
    if document.get("valueEncoding") != "base64":
        return document
    try:
        text = b64decode(document["value"]["base64"]).decode()
    except UnicodeDecodeError:
        return document
    return {**document, "value": text, "valueEncoding": "text"}


def _write(convert: Callable[[bytes], bytes], pages: Pages) -> None:
    for page in pages:
        sys.stdout.buffer.write(convert(page))
        sys.stdout.buffer.flush()


def _show(output: str, shown: Sequence[Column], pages: Pages) -> None:
    show_pages(output, (list(map(readable, documents_of(page))) for page in pages), shown)


def _with_texts(page: bytes) -> bytes:
    """One document a line; but for such values as the broker sends them."""
    if _IN_BASE64 not in page:
        return page
    return b"".join(map(_with_text, lines_of(page)))


def _with_text(line: bytes) -> bytes:
    if _IN_BASE64 not in line:
        return line
    try:
        [document] = documents_of(line)
    except RecursionError:  # so its value is JSON
        return line
    shown = readable(document)
    if shown is document:
        return line
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _formatted(record_format: "RecordFormat", page: bytes) -> bytes:
    from tailrace.protocol.records_ndjson import decode_lines

    return b"".join(map(record_format.render, decode_lines(page)))


def _counted(pages: Pages, progress: Progress) -> Iterator[bytes]:
    """The same pages; each is reported as progress."""
    record_count = size_bytes = 0
    for page in pages:
        yield page
        record_count += page.count(b"\n")
        size_bytes += len(page)
        progress.update(done=record_count, events=record_count, size_bytes=size_bytes)


def _header(header: dict[str, object]) -> str:
    return f"{_cell(header['key'])}={_cell(header['value'])}"


def _cell(value: object) -> str:
    """A text as it is; all else, and what a terminal would act on, as JSON."""
    if value is None:
        return NONE
    compact = (",", ":")
    text = (
        value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, separators=compact)
    )
    return text if text.isprintable() else json.dumps(value)
