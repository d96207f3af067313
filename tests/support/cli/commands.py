"""The `tailrace` command as a user runs it."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tailrace.local.broker import plain_environment

TAILRACE = str(Path(sys.executable).with_name("tailrace"))
CLIENT_FOLDER = Path(__file__).parents[3] / "client"
TIMEOUT_S = 60.0  # on a busy machine


def environment(url: str | None = None) -> dict[str, str]:
    """This process's, with the command on its path and no settings but `url`."""
    folder = str(Path(TAILRACE).parent)
    path = {"PATH": os.pathsep.join([folder, os.environ.get("PATH", "")])}
    return plain_environment() | path | ({"TAILRACE_URL": url} if url else {})


def run(
    *arguments: str, url: str | None = None, stdin: bytes = b"", cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """One `tailrace` command, to its end."""
    return subprocess.run(
        [TAILRACE, *arguments],
        input=stdin,
        capture_output=True,
        env=environment(url),
        cwd=cwd,
        timeout=TIMEOUT_S,
        check=False,
    )


def run_bare(
    *arguments: str, prelude: str = "pass", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """The command without any package but the standard library; `prelude`: Python before it."""
    code = f"import sys; from tailrace.cli.main import main; {prelude}; main()"
    return subprocess.run(
        [sys.executable, "-S", "-c", code, *arguments],
        capture_output=True,
        env={"PYTHONPATH": str(CLIENT_FOLDER), **(env or {})},
        timeout=TIMEOUT_S,
        check=False,
    )


@contextmanager
def started(*arguments: str, url: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A command that goes on until it is ended; killed when the block ends."""
    process = subprocess.Popen(
        [TAILRACE, *arguments],
        env=environment(url),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def assert_fails(result: subprocess.CompletedProcess[bytes], exit_code: int, error: str) -> None:
    """One sentence on stderr that matches, nothing on stdout."""
    reported = result.stderr.decode()
    assert (result.returncode, result.stdout) == (exit_code, b""), reported
    assert re.fullmatch(f"error: .*{error}.*\n", reported), reported


def reported(result: subprocess.CompletedProcess[bytes]) -> str:
    """What a command that succeeded has printed."""
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode()


def ndjson(events: Sequence[object]) -> bytes:
    """A line an event."""
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def records_of(result: subprocess.CompletedProcess[bytes]) -> list[dict[str, object]]:
    """The records that `tailrace consume` has printed."""
    return [json.loads(line) for line in io.BytesIO(reported(result).encode()).readlines()]


def values_of(result: subprocess.CompletedProcess[bytes]) -> list[object]:
    """Their values."""
    return [record["value"] for record in records_of(result)]
