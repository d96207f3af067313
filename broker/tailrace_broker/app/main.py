"""`python -m tailrace_broker`: read the settings, run, exit 0, or 1 with one line that says why."""

import os
import sys

import uvloop

from tailrace.servers.logs import configure_logs
from tailrace.servers.settings import (
    CLIENT_VARIABLES,
    Server,
    WrongSettingsError,
    read_settings,
)
from tailrace_broker.app.allocator import keep_freed_memory
from tailrace_broker.app.runtime import run
from tailrace_broker.app.settings import Settings
from tailrace_broker.model.errors import TailraceError

BROKER = Server(
    title="a broker",
    prefix="TAILRACE_",
    page="docs/settings.md",
    names=tuple(Settings.model_fields),
    others=(*CLIENT_VARIABLES, "TAILRACE_OPERATOR_"),
)


def main() -> int:
    """Run the broker; the exit code."""
    if not __debug__:
        sys.stderr.write("error: assertions are part of Tailrace; start Python without -O\n")
        return 1
    try:
        settings = read_settings(BROKER, Settings, os.environ)
    except WrongSettingsError as wrong:
        for mistake in wrong.mistakes:
            sys.stderr.write(f"error: {mistake}\n")
        return 1
    code = 0
    try:
        configure_logs(settings.log_level)
        keep_freed_memory()
        uvloop.run(run(settings))
    except* TailraceError as group:
        for error in _leaves(group):
            sys.stderr.write(f"error: {error}\n")
        code = 1
    return code


def _leaves(group: BaseExceptionGroup[TailraceError]) -> list[TailraceError]:
    found: list[TailraceError] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
