"""`tailrace produce`: send a file of events, or those of standard input."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.cli.options import OUTPUT, TOPIC, URL, connect, counted, size_text
from tailrace.cli.parser import UsageError, Verb, parameter, text
from tailrace.errors import ProblemError, TailraceError, TopicNotFoundError

if TYPE_CHECKING:
    from tailrace.cli.ndjson import BadLine, Batch
    from tailrace.request_producer import RequestProducer
    from tailrace.sync import Client

# One request: large enough that its cost is the bytes', far below the broker's maxRequestBytes.
# Lines are two bytes or more: these are fewer than the broker's 500,000 events.
BATCH_BYTES = 960 * 1024
STANDARD_INPUT = Path("-")


def produce(*, topic: str, file: Path, key: str | None, output: str, url: str | None) -> None:
    """Store the events of a file in a topic, in order per key."""
    import time

    from tailrace.cli.output import show

    key_path = _key_path(key)
    start_s = time.perf_counter()
    with connect(url) as client:
        try:
            event_count, sent_bytes = _produce_file(client, topic, file, key_path)
        except TopicNotFoundError as error:
            reason = error.detail.partition(";")[0]  # behind it: the remedy in HTTP
            raise TailraceError(f"{reason}. Create it: tailrace topic create {topic}") from error
    duration_s = time.perf_counter() - start_s
    show(
        output,
        {"topic": topic, "events": event_count, "bytes": sent_bytes, "seconds": duration_s},
        f"✓ {counted(event_count, 'event')}, {size_text(sent_bytes)}, {duration_s:.1f} s",
    )


def _key_path(key: str | None) -> tuple[str, ...]:
    """Empty without a key."""
    from tailrace.cli.ndjson import parse_key_path

    try:
        return parse_key_path(key) if key is not None else ()
    except ValueError as error:
        raise UsageError(f"--key: {error}") from error


def _produce_file(
    client: "Client", topic: str, file: Path, key_path: Sequence[str]
) -> tuple[int, int]:
    """Send it batch by batch -> events stored, bytes read. Errors and Ctrl-C tell the former."""
    import gzip
    import zlib

    from tailrace.cli.ndjson import read_batches
    from tailrace.cli.progress import Progress
    from tailrace.request_producer import RequestProducer

    producer = RequestProducer(client)
    event_count = read_bytes = 0
    with (
        open(0, "rb") if file == STANDARD_INPUT else file.open("rb") as raw,
        Progress(os.fstat(raw.fileno()).st_size) as progress,
    ):
        stream = gzip.GzipFile(fileobj=raw) if file.suffix == ".gz" else raw
        try:
            for batch in read_batches(stream, BATCH_BYTES):
                event_count += _store_batch(producer, topic, batch, key_path, event_count)
                read_bytes += sum(map(len, batch.lines))
                position = raw.tell() if raw.seekable() else 0
                progress.update(done=position, events=event_count, size_bytes=read_bytes)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise TailraceError(
                f"{file} is not a whole gzip file ({error}); "
                f"stored before that: {counted(event_count, 'event')}"
            ) from error
        except KeyboardInterrupt as error:
            were = "was" if event_count == 1 else "were"
            raise KeyboardInterrupt(
                f"interrupted: {counted(event_count, 'event')} {were} stored, "
                "and perhaps those of one request more"
            ) from error
    if not event_count:
        client.offsets([topic])  # TopicNotFoundError; an event would have told, or created it
    return event_count, read_bytes


def _store_batch(
    producer: "RequestProducer",
    topic: str,
    batch: "Batch",
    key_path: Sequence[str],
    stored_before: int,
) -> int:
    """Store a batch -> its events. An error tells what was stored, before the batch and of it."""
    try:
        stored_count, bad_line = _store(producer, topic, batch.lines, key_path)
    except TailraceError as error:
        raise _with_progress(error, stored_before) from error
    if bad_line:
        raise TailraceError(
            f"line {batch.first_line + bad_line.line_index} {bad_line.reason}; "
            f"stored before it: {counted(stored_before + stored_count, 'event')}. "
            "Mend it, and send from that line on"
        )
    return stored_count


def _store(
    producer: "RequestProducer", topic: str, lines: Sequence[bytes], key_path: Sequence[str]
) -> tuple[int, "BadLine | None"]:
    """Store the events up to the first bad line -> their count, and that line."""
    if key_path:
        from tailrace.cli.ndjson import keyed_records

        keys, values, bad_line = keyed_records(lines, key_path)
        produced = producer.produce_records(topic, keys, values) if values else []
        return sum(each.count for each in produced), bad_line
    if not any(line.strip(b"\r\n") for line in lines):
        return 0, None
    try:
        return producer.produce_lines(topic, b"".join(lines)).count, None
    except ProblemError as error:
        bad_line = _refused_line(error)
        if bad_line is None:
            raise
    stored_count, _ = _store(producer, topic, lines[: bad_line.line_index], ())
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


VERB = Verb(
    produce,
    (
        TOPIC,
        parameter(
            "-f",
            "--file",
            metavar="FILE",
            type=Path,
            default=STANDARD_INPUT,
            help="NDJSON, one event a line, or such a file's .gz; - is standard input",
            complete="file",
        ),
        parameter("--key", metavar=".FIELD", type=text, help="the field that is each event's key"),
        OUTPUT,
        URL,
    ),
    (
        "tailrace produce orders -f orders.ndjson --key .customer",
        "tail -n 100 app.ndjson | tailrace produce logs",
    ),
)
