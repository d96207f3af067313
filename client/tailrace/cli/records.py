"""Records as rows of a table; as documents they are as docs/protocol.md has them, "Read"."""

import json

from tailrace.cli.output import NONE, Column, member


def columns() -> list[Column]:
    """Of a record's document."""
    return [
        member("PARTITION", "partition"),
        member("OFFSET", "offset"),
        member("TIMESTAMP", "timestamp"),
        Column("KEY", lambda record: _cell(record["key"])),
        Column("VALUE", lambda record: _cell(record["value"])),
    ]


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
