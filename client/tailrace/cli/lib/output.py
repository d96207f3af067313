"""How verbs print: aligned columns for people, JSON or YAML for programs.

A verb hands over a document in JSON's terms, and what people read in its place; or pages of
documents that become rows as they arrive.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

NONE = "-"  # in a table

# Texts that no YAML version reads as anything else. All others are quoted.
_PLAIN = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null)\Z)[a-z][\w./-]*\Z", re.ASCII | re.I)
# What YAML 1.2 (5.1) does not print, and JSON does not escape.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


class Column(NamedTuple):
    """One column of a table: its title, and a document's text in it."""

    title: str
    cell: Callable[[Any], str]


def short_duration(seconds: float) -> str:
    """In its largest whole unit: "45s", "2m", "3h", "12d"."""
    for unit_seconds, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= unit_seconds:
            return f"{seconds // unit_seconds:.0f}{unit}"
    return f"{seconds:.0f}s"


def show(output: str, document: object, text: str) -> None:
    """One document; `text` is what people read."""
    if output == "json":
        print(json.dumps(document, indent=2, ensure_ascii=False))
    elif output == "yaml":
        print("\n".join(yaml_lines(document)))
    else:
        print(text)


def show_pages(output: str, pages: Iterable[Sequence[Any]], columns: Sequence[Column]) -> None:
    """A list of documents, page by page, as a table, a JSON array or a YAML list."""
    if output == "json":
        blocks = _json_blocks(pages)
    elif output == "yaml":
        blocks = _yaml_blocks(pages)
    else:
        blocks = _table_blocks(pages, columns)
    for block in blocks:
        print(block, flush=True)


def as_table(documents: Sequence[Any], columns: Sequence[Column]) -> str:
    """A row a document under a line of titles."""
    return "\n".join(_table_blocks([documents], columns))


def member(title: str, name: str) -> Column:
    """The column of a document's own member."""
    return Column(title, lambda document: cell_text(document[name]))


def cell_text(value: object) -> str:
    """A value of JSON in a table."""
    match value:
        case None | []:
            return NONE
        case bool():
            return "yes" if value else "no"
        case list():
            return ",".join(map(str, value))
        case _:
            return str(value)


def yaml_lines(value: Any) -> Iterator[str]:
    """Block style, as people write it; a subset that YAML 1.1 and 1.2 read alike."""
    if isinstance(value, dict) and value:
        for name, each in value.items():
            is_block = isinstance(each, dict | list) and each
            lines = yaml_lines(each)
            yield f"{_yaml_scalar(name)}:" if is_block else f"{_yaml_scalar(name)}: {next(lines)}"
            indent = "  " if isinstance(each, dict) else ""
            yield from (indent + line for line in lines)
    elif isinstance(value, list) and value:
        for each in value:
            lines = yaml_lines(each)
            yield f"- {next(lines)}"
            yield from (f"  {line}" for line in lines)
    else:
        yield _yaml_scalar(value)


def _yaml_scalar(value: object) -> str:
    """A leaf, or an empty object or list; JSON's form of it but for the differences."""
    if isinstance(value, str):
        if _PLAIN.match(value):
            return value
        quoted = json.dumps(value, ensure_ascii=False)
        return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)
    written = json.dumps(value)
    if isinstance(value, float) and "." not in written:
        return written.replace("e", ".0e")  # YAML 1.1 reads 1e-07 as a text
    return written


def _json_blocks(pages: Iterable[Sequence[Any]]) -> Iterator[str]:
    """One array, an element a line."""
    separator = "["
    for page in pages:
        if page:
            lines = ",\n".join(json.dumps(document, ensure_ascii=False) for document in page)
            yield f"{separator}\n{lines}"
            separator = ","
    yield "]" if separator == "," else "[]"


def _yaml_blocks(pages: Iterable[Sequence[Any]]) -> Iterator[str]:
    """One list."""
    is_empty = True
    for page in pages:
        if page:
            is_empty = False
            yield "\n".join(yaml_lines(page))
    if is_empty:
        yield "[]"


def _table_blocks(pages: Iterable[Sequence[Any]], columns: Sequence[Column]) -> Iterator[str]:
    """Columns are as wide as what was in them so far."""
    pending = [[column.title for column in columns]]
    widths = [0] * len(columns)
    for page in pages:
        rows = pending + [[column.cell(document) for column in columns] for document in page]
        if not rows:
            continue
        widths = [
            max(width, *map(len, cells))
            for width, cells in zip(widths, zip(*rows, strict=True), strict=True)
        ]
        yield "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        pending = []
