"""`tailrace dev --brokers N` as a process, and what it prints."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tailrace.local.broker import plain_environment
from tests.support.cli.commands import TAILRACE, TIMEOUT_S


class Dev(NamedTuple):
    """`tailrace dev` with three brokers; `lines`: its welcome."""

    process: "subprocess.Popen[bytes]"
    port: int
    data: Path
    lines: list[str]

    def url(self, ordinal: int) -> str:
        return f"http://127.0.0.1:{self.port + 10 * ordinal}"

    def pid(self, ordinal: int) -> int:
        [line] = [each for each in self.lines if each.startswith(f"broker {ordinal} ")]
        return int(line.partition("pid ")[2].split()[0])

    def noted(self) -> str:
        """The next line on stderr, but for what it says of a start that takes long."""
        assert self.process.stderr is not None
        line = self.process.stderr.readline().decode()
        return self.noted() if line.startswith("still waiting") else line


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
    """`tailrace dev` with these arguments, ready, and what it has printed; killed at the end."""
    process = subprocess.Popen(
        [TAILRACE, "dev", *arguments],
        cwd=folder,
        env=plain_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        try:
            assert process.stdout is not None
            lines: list[str] = []
            for line in process.stdout:
                lines.append(line.decode())
                if lines[-1].startswith("Ctrl-C"):
                    break
            assert lines[-1:] == ["Ctrl-C ends it, data stays.\n"], process.communicate()
            yield process, "".join(lines)
        finally:
            process.kill()


@contextmanager
def running(folder: Path, *arguments: str, port: int) -> Iterator[Dev]:
    """Ready; killed at the end, with its brokers."""
    with started(folder, "--data", "ring", "--port", str(port), *arguments) as (process, printed):
        lines = [line.strip() for line in printed.splitlines()]
        yield Dev(process, port, folder / "ring", lines)


def end_by_hand(dev: Dev) -> None:
    """Ctrl-C."""
    dev.process.send_signal(signal.SIGINT)
    dev.process.communicate(timeout=TIMEOUT_S)
