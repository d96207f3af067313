"""The `tailrace` command: its verbs, and how every failure is reported.

Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 143 ended by SIGTERM. A failure is
one sentence on stderr.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from io import BufferedWriter, RawIOBase, TextIOWrapper
from typing import cast

from tailrace import __version__
from tailrace.cli.lib import options
from tailrace.cli.lib.parser import UsageError, Verb, leading_options, parse, shown
from tailrace.cli.lib.remedies import with_url
from tailrace.cli.lib.termination import EXIT_TERMINATED, Termination
from tailrace.cli.lib.unreached import with_ring_remedy
from tailrace.cli.lib.variables import check_variables
from tailrace.cli.verbs import (
    bench,
    completion,
    consume,
    context,
    dev,
    dev_start,
    doctor,
    dump,
    group,
    losses,
    produce,
    ring,
    ring_size,
    ring_verify,
    status,
    topic,
    trash,
    verify,
)
from tailrace.errors import (
    ConnectionFailedError,
    GroupNotFoundError,
    TailraceError,
    TopicNotFoundError,
)
from tailrace.settings.near_names import close_to

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
HELP = ("--help", "-h")

VERBS: dict[str, Verb] = {
    "dev": dev.VERB,
    "dev start": dev_start.VERB,
    "status": status.VERB,
    "topic create": topic.CREATE,
    "topic list": topic.LIST,
    "topic describe": topic.DESCRIBE,
    "topic alter": topic.ALTER,
    "topic delete": topic.DELETE,
    "topic restore": trash.RESTORE,
    "topic accept-loss": losses.VERB,
    "produce": produce.VERB,
    "consume": consume.VERB,
    "group list": group.LIST,
    "group describe": group.DESCRIBE,
    "group reset": group.RESET,
    "group delete": group.DELETE,
    "ring status": ring.STATUS,
    "ring history": ring.HISTORY,
    "ring verify": ring_verify.VERB,
    "ring found": ring.FOUND,
    "ring plan": ring_size.PLAN,
    "ring grow": ring_size.GROW,
    "ring shrink": ring_size.SHRINK,
    "ring drain": ring_size.DRAIN,
    "ring accept-loss": ring.ACCEPT_LOSS,
    "metadata recover": ring.RECOVER,
    "bench": bench.VERB,
    "doctor": doctor.VERB,
    "dump": dump.VERB,
    "verify": verify.VERB,
    "context set": context.SET,
    "context list": context.LIST,
    "context use": context.USE,
    "context delete": context.DELETE,
    "completion": completion.VERB,
}
ENVIRONMENT = {
    "TAILRACE_URL": "a broker's URL; goes before the context's, behind --url",
    "TAILRACE_TOKEN": "sent as bearer token; goes before the context's",
    "TAILRACE_CA_FILE": "PEM, trusted in place of the system's; goes before the context's",
}
SUMMARY = "Tailrace, an event log: curl in, Spark out."
FIRST_STEPS = (
    "tailrace dev                                       a broker on this machine",
    "tailrace produce orders -f orders.ndjson --key .customer",
    "tailrace consume orders --max 10",
)


class Call:
    """What a failure must know of the command that failed."""

    url: str | None = None  # as given


def main() -> None:
    """Run the command of `sys.argv` and exit."""
    termination = Termination()
    try:
        with termination:
            _prepare_output()
            exit_code = _exit_code(sys.argv[1:])
    except KeyboardInterrupt as error:
        if error.args:  # what a verb has to say about it
            print(error, file=sys.stderr)
        exit_code = EXIT_TERMINATED if termination.has_come else EXIT_INTERRUPTED
    sys.exit(exit_code)


def overview() -> str:
    """What `tailrace --help` prints."""
    return "\n".join(
        [
            "usage: tailrace VERB ...",
            "",
            SUMMARY,
            "",
            *_listed(VERBS),
            "",
            "options:",
            "  --help, -h  this help",
            "  --version   the version",
            "  --url URL   any broker's, as the option of a verb",
            "  -o FORM     table, json or yaml, as the option of a verb",
            "",
            "environment:",
            *(f"  {name:16}  {meaning}" for name, meaning in ENVIRONMENT.items()),
            "",
            "examples:",
            *(f"  {step}" for step in FIRST_STEPS),
        ]
    )


def family_overview(first: str) -> str:
    """What `tailrace topic --help` prints: the verbs that begin with this word."""
    return "\n".join([f"usage: tailrace {first} VERB ...", "", *_listed(_family(first))])


def _listed(verbs: Mapping[str, Verb]) -> list[str]:
    """Each with its first sentence."""
    width = max(map(len, verbs))
    lines = [f"  {name:{width}}  {verb.help}" for name, verb in verbs.items()]
    return ["verbs (tailrace VERB --help says more):", *lines]


def _family(first: str) -> Mapping[str, Verb]:
    return {name: verb for name, verb in VERBS.items() if name.startswith(f"{first} ")}


def _prepare_output() -> None:
    """Make what is printed no reason to fail."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started this
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        # A terminal may have no ✓, and a name need not be UTF-8.
        getattr(sys, name).reconfigure(errors="backslashreplace")
    if isinstance(sys.stdout, TextIOWrapper) and isinstance(sys.stdout.buffer, RawIOBase):
        # PYTHONUNBUFFERED, as images set it: a write that a signal interrupts would end early.
        encoding, errors = sys.stdout.encoding, sys.stdout.errors
        raw = cast("RawIOBase", sys.stdout.detach())
        sys.stdout = TextIOWrapper(
            BufferedWriter(raw), encoding=encoding, errors=errors, line_buffering=raw.isatty()
        )


def _exit_code(words: Sequence[str]) -> int:
    """Run, and report every failure."""
    call = Call()
    try:
        _run(words, call)
        sys.stdout.flush()
    except UsageError as error:
        return _fail(with_url(str(error), call.url), EXIT_USAGE)
    except TailraceError as error:
        return _fail(with_url(_failure(error), call.url), EXIT_FAILED)
    except BrokenPipeError:  # the reader has gone, as `head` does
        _drop_output()
        return EXIT_FAILED
    except OSError as error:
        if error.filename is None:
            _drop_output()
        reason = error.strerror or str(error)
        return _fail(f"{error.filename or 'input or output'}: {reason}", EXIT_FAILED)
    except RecursionError:
        return _fail("a value is nested too deeply for this form: use -o json", EXIT_FAILED)
    return 0


def _failure(error: TailraceError) -> str:
    """What the client's errors say, with the remedy by this command."""
    if isinstance(error, TopicNotFoundError):
        return f"topic {shown(error.topic)} does not exist. Those that do: tailrace topic list"
    if isinstance(error, GroupNotFoundError):
        name = shown(str(error.members.get("group", "")))
        return f"group {name} does not exist. Those that do: tailrace group list"
    if isinstance(error, ConnectionFailedError):
        error = with_ring_remedy(options.with_right_scheme(error), error.url)
        return f"{error}{options.context_note(error.url)}"
    return str(error)


def _run(words: Sequence[str], call: Call) -> None:
    """The verb that the first word, or the first two, name; `call` learns its --url."""
    leading, words = leading_options(words)
    if words and _family(words[0]):
        between, seconds = leading_options(words[1:])
        leading, words = [*leading, *between], [words[0], *seconds]
    if words and words[0] == "help":
        words = [*words[1:], "--help"]
    for count in (2, 1):
        name = " ".join(words[:count])
        if name in VERBS:
            _check_second(name, words[count:])
            arguments = parse(name, VERBS[name], [*leading, *words[count:]])
            call.url = arguments.get("url")
            check_variables(os.environ)
            VERBS[name].run(**arguments)
            return
    first, *rest = words or ["--help"]
    if first == "--version":
        print(f"tailrace {__version__}")
    elif first in HELP:
        print(overview())
    elif rest and rest[0] in HELP and _family(first):
        print(family_overview(first))
    elif first == "__complete" and len(words) == 2:  # by the scripts of `tailrace completion`
        for word in completion.words_after(words[1], VERBS, completion.live_names):
            print(word)
    else:
        raise UsageError(_no_such_verb(first, rest))


def _check_second(name: str, rest: Sequence[str]) -> None:
    """UsageError: a word behind `dev`, which takes none, would be a verb like `dev start`."""
    if not _family(name) or any(not each.is_option for each in VERBS[name].parameters):
        return
    if rest and not rest[0].startswith("-"):
        raise UsageError(_no_such_verb(name, rest))


def _no_such_verb(first: str, rest: Sequence[str]) -> str:
    """What could have been meant."""
    seconds = [name.partition(" ")[2] for name in _family(first)]
    if not seconds:
        firsts = list(dict.fromkeys(name.partition(" ")[0] for name in VERBS))
        return f"no verb {shown(first)}{close_to(first, firsts)}. See: tailrace --help"
    *others, last = seconds
    wanted = f"{', '.join(others)} or {last}" if others else last
    if not rest or rest[0].startswith("-"):
        needed = f"one of {wanted}" if others else f"a second word: {wanted}"
        return f"tailrace {first} needs {needed}. See: tailrace --help"
    return f"tailrace {first} has {wanted}, and no {shown(rest[0])}. See: tailrace --help"


def _drop_output() -> None:
    """What could not be written: Python is not to try that again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, exit_code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return exit_code
