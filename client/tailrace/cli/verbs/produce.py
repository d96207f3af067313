"""`tailrace produce`: send events of the command line, of a file, or of standard input."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tailrace.cli.lib.options import OUTPUT, TOPIC, URL, connect, counted, size_text
from tailrace.cli.lib.parser import SHOWN_CHARACTERS_MAX, UsageError, Verb, parameter, shown, text
from tailrace.cli.lib.times import time_text, time_us
from tailrace.cli.lib.unreached import with_ring_remedy
from tailrace.errors import ConnectionFailedError, ProblemError, TailraceError, TopicNotFoundError

if TYPE_CHECKING:
    from tailrace.cli.lib.interrupts import Interrupts
    from tailrace.cli.producing.form import Form
    from tailrace.cli.producing.input import Input
    from tailrace.cli.producing.resume import Token
    from tailrace.cli.producing.run import Run

STANDARD_INPUT = Path("-")


def produce(
    *,
    topic: str,
    events: Sequence[str],
    file: Path | None,
    key: str | None,
    key_separator: bytes | None,
    headers: Sequence[tuple[bytes, bytes]],
    timestamp: int | None,
    resume: "Token | None",
    output: str,
    url: str | None,
) -> None:
    """Store events in a topic, in order per key.

    Each EVENT is one event; without any, each line of a file or of standard input is one. Lines of
    a pipe are stored when no more follow; Ctrl-C stores what has been read, and ends. A run that
    is cut prints the command that goes on: with its --resume each line is stored exactly once.
    Empty lines are no events: they are skipped.
    """
    import time

    from tailrace.cli.lib.interrupts import Interrupts
    from tailrace.cli.producing.form import Form
    from tailrace.cli.producing.input import opened, unread_bytes
    from tailrace.cli.producing.requests import Target
    from tailrace.cli.producing.run import Run

    if events and file is not None:
        raise UsageError("give events or --file, not both. See: tailrace produce --help")
    form = Form(
        separator=key_separator or b"",
        headers=tuple(headers),
        timestamp_us=timestamp,
        is_lines=not events,
    )
    form = _with_key(form, key)
    start_s = time.perf_counter()
    with (
        connect(url) as client,
        Interrupts() as interrupts,
        opened(events, file or STANDARD_INPUT, interrupts, is_resumed=resume is not None) as source,
    ):
        run = Run(client, Target(topic, form), resume=resume, sleep=interrupts.sleep)
        try:
            _send_all(run, source, interrupts)
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(_interrupted(run, source)) from error
        except TopicNotFoundError as error:
            reason = error.detail.partition(";")[0]  # behind it: the remedy in HTTP
            raise TailraceError(f"{reason}. Create it: tailrace topic create {topic}") from error
        except TailraceError as error:
            if isinstance(error, ConnectionFailedError):
                error = with_ring_remedy(error, client.url)
            _fail(_with_remedy(error, run, events, timestamp), run)
    if events and unread_bytes(0):
        print(
            "warning: standard input has data, which was not read, since events are given as "
            "arguments: a command without them stores its lines",
            file=sys.stderr,
        )
    _show(output, topic, run, time.perf_counter() - start_s)


def _show(output: str, topic: str, run: "Run", duration_s: float) -> None:
    """What is stored; an output that fails does not hide it."""
    from tailrace.cli.lib.output import show
    from tailrace.cli.producing.summary import resumed_text

    document = {
        "topic": topic,
        "events": run.account.event_count,
        "earlierEvents": run.account.earlier_count,
        "bytes": run.account.sent_bytes,
        "seconds": duration_s,
        "topicCreated": run.has_created_topic,
    }
    stored = f"{counted(run.account.event_count, 'event')}, {size_text(run.account.sent_bytes)}"
    if run.account.replay is not None:
        stored = resumed_text(run.account, stored)
    try:
        show(output, document, f"✓ {stored}, {duration_s:.1f} s")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}. All is stored: {stored}") from error


def _with_key(form: "Form", key: str | None) -> "Form":
    """A key with a dot in front is a field's path, in lines as in events."""
    from tailrace.cli.producing.form import parse_key_path

    if key is None:
        return form
    if not form.is_lines and not key.startswith("."):
        return form._replace(key=key.encode())
    try:
        return form._replace(key_path=parse_key_path(key))
    except ValueError as error:
        hint = "; one key for all goes with events that are arguments" if form.is_lines else ""
        raise UsageError(f"--key: {error}{hint}") from error


def _send_all(run: "Run", source: "Input", interrupts: "Interrupts") -> None:
    """Send all of the input, or, when interrupted, the lines that were read."""
    from tailrace.cli.lib.progress import Progress

    with Progress(source.size_bytes, is_wanted=not source.is_terminal) as progress:
        try:
            for lines in source.batches():
                _take(run, lines)
                progress.update(
                    done=source.position(),
                    events=run.account.event_count,
                    size_bytes=run.account.sent_bytes,
                )
                interrupts.check()
        except KeyboardInterrupt:
            if run.account.is_settled:
                _take(run, source.take_rest())
            raise
        run.end()


def _take(run: "Run", lines: Sequence[bytes]) -> None:
    """Store them, and report the topic that this created, also where an error ends the run."""
    from tailrace.cli.producing.summary import created_text

    had_created_topic = run.has_created_topic
    try:
        run.take(lines)
    finally:
        if run.has_created_topic and not had_created_topic:
            print(created_text(run.client, run.topic), file=sys.stderr)


# --- a run that was cut ---------------------------------------------------------------------------


def _with_remedy(
    error: TailraceError, run: "Run", events: Sequence[str], timestamp: int | None
) -> TailraceError:
    """The same failure, with what to do where an argument or the kind of input is the reason."""
    from tailrace.cli.producing.run import BadLineError

    if isinstance(error, BadLineError) and not error.is_json:
        if events:
            error.args = (f"{error}; {_json_remedy(events[error.number - 1], run)}",)
        elif not run.account.has_begun and not run.needs_json:
            error.args = (f"{error}; for lines of plain text: {_text_command(run)}",)
    is_ahead = isinstance(error, ProblemError) and error.members.get("parameter") == "timestamp"
    if is_ahead and timestamp is not None:
        return TailraceError(
            f"--timestamp: {time_text(timestamp)} is more than an hour ahead of the broker's clock"
        )
    return error


def _json_remedy(event: str, run: "Run") -> str:
    """Of an event that is not JSON: it is a file's name, or a text."""
    import json
    import shlex
    from contextlib import suppress

    with suppress(OSError):  # a name that is too long
        if Path(event).is_file():
            return f"the lines of that file are stored by -f {shlex.quote(event)}"
    quoted = shlex.quote(json.dumps(event[:SHOWN_CHARACTERS_MAX], ensure_ascii=False))
    return f"quote a text, as {quoted}" + ("" if run.needs_json else f", or: {_text_command(run)}")


def _text_command(run: "Run") -> str:
    """What makes the topic take values that are not JSON."""
    import shlex

    from tailrace.cli.producing.summary import exists

    verb = "alter" if exists(run.client, run.topic) else "create"
    return f"tailrace topic {verb} {shlex.quote(run.topic)} --no-json-check"


def _fail(error: TailraceError, run: "Run") -> NoReturn:
    """Raise the failure, with the events that are stored and the command that goes on."""
    from tailrace.cli.producing.resume import ResumeRefusedError
    from tailrace.cli.producing.run import BadLineError
    from tailrace.cli.producing.summary import summary

    if not run.account.has_begun or isinstance(error, ResumeRefusedError):
        raise error
    stored = summary(run.account, run.requests, noun=run.noun)
    if isinstance(error, ProblemError) and error.type == "sequence-unknown":
        behind, again = run.account.tokens_of_doubt()
        raise TailraceError(
            f"{error}. {stored}. Read the topic. When all of them are stored, go on behind "
            f"them:\n  {_resuming_command(behind)}\nWhen none is, send them again:"
            f"\n  {_resuming_command(again)}"
        ) from error
    if isinstance(error, ProblemError) and error.type == "sequence-reused" and run.account.replay:
        raise TailraceError(
            "another run has gone on from this --resume already, with other requests. When it "
            "printed ✓, all is stored; else go on with the --resume that it printed"
        ) from error
    wanted = "Correct it, and store" if isinstance(error, BadLineError) else "Store"
    raise TailraceError(
        f"{error}. {stored}. {wanted} the rest of the same input, each {run.noun} once:"
        f"\n  {_resuming_command(run.account.token())}"
    ) from error


def _interrupted(run: "Run", source: "Input") -> str:
    """The message after Ctrl-C: the events that are stored, and the command that goes on."""
    from tailrace.cli.producing.summary import summary

    stored = "0 events are stored"
    if run.account.has_begun:
        stored = summary(run.account, run.requests, noun=run.noun)
    said = f"interrupted: {stored}"
    if source.unfinished_bytes:
        size = size_text(source.unfinished_bytes)
        said += f"; {size} of a line without an end were not sent"
    if source.is_terminal or not run.account.has_begun:
        return said
    return f"{said}. Store the rest of the same input:\n  {_resuming_command(run.account.token())}"


def _resuming_command(token: "Token") -> str:
    """This command as it was typed, with the token."""
    import shlex

    from tailrace.cli.producing.resume import resuming

    return shlex.join(["tailrace", *resuming(sys.argv[1:], token)])


# --- types of values ------------------------------------------------------------------------------


def _separator(word: str) -> bytes:
    if not word:
        raise argparse.ArgumentTypeError("it is empty")
    return text(word).replace("\\t", "\t").encode()


def _header(word: str) -> tuple[bytes, bytes]:
    name, found, value = text(word).partition("=")
    if not name or not found:
        raise argparse.ArgumentTypeError(f"{shown(word)} is not NAME=VALUE")
    return name.encode(), value.encode()


def _token(word: str) -> "Token":
    from tailrace.cli.producing.resume import parse_token

    try:
        return parse_token(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{shown(word)} {error}") from error


VERB = Verb(
    produce,
    (
        TOPIC,
        parameter(
            "events",
            metavar="EVENT",
            nargs="*",
            type=text,
            default=[],
            help="an event, mostly JSON",
        ),
        parameter(
            "-f",
            "--file",
            metavar="FILE",
            type=Path,
            help="NDJSON, one event a line, or such a file's .gz; - is standard input, the default",
            complete="file",
        ),
        parameter(
            "--key",
            metavar="KEY",
            type=text,
            help=".FIELD is the field that is each event's key; with EVENTs a text without a dot "
            "in front is the key of all of them",
        ),
        parameter(
            "--key-separator",
            metavar="SEP",
            type=_separator,
            help=r"what separates key and value in each line or EVENT; \t is a tab",
        ),
        parameter(
            "--header",
            dest="headers",
            metavar="NAME=VALUE",
            type=_header,
            action="append",
            default=[],
            help="a header of all events; can be repeated",
        ),
        parameter(
            "--timestamp",
            metavar="TIME",
            type=time_us,
            help="the time of all events, like 2026-11-21T09:00Z or microseconds since the epoch; "
            "a time without a zone is UTC; default: when the broker stores them",
        ),
        parameter(
            "--resume",
            metavar="TOKEN",
            type=_token,
            help="go on with the same input where a run ended that printed this",
        ),
        OUTPUT,
        URL,
    ),
    (
        "tailrace produce orders -f orders.ndjson --key .customer",
        "tail -n 100 app.ndjson | tailrace produce logs",
        """tailrace produce orders '{"item": 3}' --key till-7 --header source=web""",
    ),
    exclusive=(("--key", "--key-separator"),),
)
