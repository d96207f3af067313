"""`tailrace produce`: send a file of events, or those of standard input."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.options import (
    DEFAULT_URL,
    TopicArgument,
    UrlOption,
    connect,
    counted,
    size_text,
)
from tailrace.errors import ProblemError, TailraceError, TopicNotFoundError

if TYPE_CHECKING:
    from tailrace.cli.ndjson import BadLine
    from tailrace.sync import Client

# One request: large enough that its cost is the bytes', far below the broker's maxRequestBytes.
BATCH_BYTES = 1024 * 1024
STANDARD_INPUT = Path("-")


def produce(
    topic: TopicArgument,
    file: Annotated[
        Path,
        typer.Option(
            "--file",
            "-f",
            help="NDJSON, one event a line; - is standard input.",
            metavar="FILE",
        ),
    ] = STANDARD_INPUT,
    key: Annotated[
        str | None,
        typer.Option(help="The field that is each event's key.", metavar=".FIELD"),
    ] = None,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Store the events of a file in a topic, in order per key.

    \b
    Example:
      tailrace produce orders -f orders.ndjson --key .customer
      tail -n 100 app.log.ndjson | tailrace produce logs
    """
    import time

    key_path = _key_path(key)
    start_s = time.perf_counter()
    with connect(url) as client:
        try:
            event_count, sent_bytes = _produce_file(client, topic, file, key_path)
        except TopicNotFoundError as error:
            reason = error.detail.partition(";")[0]  # behind it: the remedy in HTTP
            raise TailraceError(f"{reason}. Create it: tailrace topic create {topic}") from error
    duration_s = time.perf_counter() - start_s
    print(f"✓ {counted(event_count, 'event')}, {size_text(sent_bytes)}, {duration_s:.1f} s")


def _key_path(key: str | None) -> tuple[str, ...]:
    """Empty without a key."""
    from tailrace.cli.ndjson import parse_key_path

    try:
        return parse_key_path(key) if key is not None else ()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--key") from error


def _produce_file(
    client: "Client", topic: str, file: Path, key_path: Sequence[str]
) -> tuple[int, int]:
    """Send it batch by batch -> events stored, bytes read. Errors tell what was stored."""
    from tailrace.cli.ndjson import read_batches

    event_count = 0
    read_bytes = 0
    with open(0, "rb") if file == STANDARD_INPUT else file.open("rb") as stream:
        for first_line, lines in read_batches(stream, BATCH_BYTES):
            try:
                stored_count, bad_line = _store(client, topic, lines, key_path)
            except TailraceError as error:
                raise _with_progress(error, event_count) from error
            event_count += stored_count
            read_bytes += sum(map(len, lines))
            if bad_line:
                raise TailraceError(
                    f"line {first_line + bad_line.line_index} {bad_line.reason}; "
                    f"stored before it: {counted(event_count, 'event')}"
                )
    if not event_count:
        client.offsets([topic])  # TopicNotFoundError; an event would have told, or created it
    return event_count, read_bytes


def _store(
    client: "Client", topic: str, lines: Sequence[bytes], key_path: Sequence[str]
) -> tuple[int, "BadLine | None"]:
    """Store the events up to the first bad line -> their count, and that line."""
    if key_path:
        from tailrace.cli.ndjson import keyed_records

        keys, values, bad_line = keyed_records(lines, key_path)
        produced = client.produce_records(topic, keys, values) if values else []
        return sum(each.count for each in produced), bad_line
    if not any(line.strip(b"\r\n") for line in lines):
        return 0, None
    try:
        return client.produce_lines(topic, b"".join(lines)).count, None
    except ProblemError as error:
        bad_line = _refused_line(error)
        if bad_line is None:
            raise
    stored_count, _ = _store(client, topic, lines[: bad_line.line_index], ())
    return stored_count, bad_line


def _refused_line(error: ProblemError) -> "BadLine | None":
    """The line of the request's body that the broker named."""
    from tailrace.cli.ndjson import BadLine

    line = error.members.get("line")
    if error.type != "invalid-record" or not isinstance(line, int):
        return None
    return BadLine(line - 1, "is not JSON")


def _with_progress(error: TailraceError, event_count: int) -> TailraceError:
    """The same failure, with what is stored when that is not nothing."""
    if not event_count and not error.write_attempted:
        return error
    perhaps = " and perhaps those of one request more" if error.write_attempted else ""
    return TailraceError(f"{error}. Stored before: {counted(event_count, 'event')}{perhaps}")
