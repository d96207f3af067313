"""Stored data with damage put into it, and what a reader gets of it."""

from pathlib import Path
from typing import Any

from tailrace.wire import BatchHeader
from tailrace_broker.storage.inspection import pieces_in
from tests.support.http.http11 import Connection, document, get, records


def flip(path: Path, position: int, bit: int) -> None:
    """The other way round."""
    stored = bytearray(path.read_bytes())
    stored[position] ^= 1 << bit
    path.write_bytes(stored)


def stored_batches(path: Path) -> list[tuple[int, BatchHeader]]:
    """Positions and headers, of a segment that is whole."""
    with path.open("rb") as file:
        found = pieces_in(file, path.stat().st_size)
        return [(each.position, each.header) for each in found if each.header]


def read_all(port: int, end_offset: int, *, max_records: int) -> tuple[list[Any], list[int]]:
    """The problems that a reader meets who goes on where they say, and the offsets it gets."""
    problems: list[Any] = []
    offsets: list[int] = []
    offset = 0
    with Connection(port) as connection:
        while offset < end_offset:
            target = records("t", offset=offset, maxRecords=max_records)
            answer = connection.exchange(get(target, accept="application/json"))
            if answer.status == 200:
                offsets += [record["offset"] for record in document(answer)]
                offset = int(answer.headers["tailrace-next-offset"])
            else:
                problems.append(document(answer))
                offset = problems[-1]["nextOffset"]
    return problems, offsets
