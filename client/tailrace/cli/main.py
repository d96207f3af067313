"""The `tailrace` command: its verbs, and how every failure is told.

Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted. A failure is one sentence on stderr.
"""

import os
import sys
from typing import Annotated

import typer

from tailrace import __version__
from tailrace.cli import consume, dev, produce, topic
from tailrace.errors import TailraceError

EXIT_FAILED = 1

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command("dev")(dev.dev)
app.add_typer(topic.app, name="topic")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)


def main() -> None:
    """Run the command of `sys.argv` and exit."""
    sys.exit(_run())


@app.callback(invoke_without_command=True)
def tailrace(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Tailrace, an event log: curl in, Spark out.

    \b
    Example:
      tailrace dev                                       a broker on this machine
      tailrace produce orders -f orders.ndjson --key .customer
      tailrace consume orders --max 10
    """
    if version:
        print(f"tailrace {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def _run() -> int:
    try:
        exit_code = app(standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        return _fail(_with_help(error), error.exit_code)
    except TailraceError as error:
        return _fail(str(error), EXIT_FAILED)
    except BrokenPipeError:
        # The reader has gone, as `head` does; Python must not flush into the pipe again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:
        return _fail(f"{error.filename or 'input or output'}: {error.strerror}", EXIT_FAILED)
    return exit_code or 0


def _fail(message: str, exit_code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return exit_code


def _with_help(error: typer.TyperException) -> str:
    """What is wrong with the usage, and where the right usage is told."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "tailrace"
    return f"{error.format_message().rstrip('.')}. See: {path} --help"
