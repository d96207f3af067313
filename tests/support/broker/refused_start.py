"""A server that must not start: what it says."""

import subprocess
import sys

from tailrace.local.broker import plain_environment

START_TIMEOUT_S = 30.0


def refusal_to_start(**settings: object) -> str:
    """Start a broker that must exit with exit code 1; the one line that it wrote."""
    variables = {f"TAILRACE_{name.upper()}": str(value) for name, value in settings.items()}
    ended = run_server("tailrace_broker", variables)
    assert (ended.returncode, ended.stdout) == (1, ""), ended.stderr
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert ended.stderr.startswith("error: ")
    return ended.stderr


def run_server(module: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Start `python -m module` and wait for its end."""
    return subprocess.run(
        [sys.executable, "-m", module],
        env=plain_environment() | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
