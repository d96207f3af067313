"""`tailrace dev`: a broker on this machine for as long as the command runs.

The broker is a child process that never outlives the command: not a signal, not an error, and on
Linux not even SIGKILL of the command leaves it behind.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Never

import typer

from tailrace.errors import TailraceError

if TYPE_CHECKING:
    import subprocess
    from types import FrameType

HOST = "127.0.0.1"
DEFAULT_PORT = 9250
PORT_STRIDE = 10  # brokers of a local ring are that far apart (docs/protocol.md)
DOORS = (
    ("public", "", "every path: topics, produce, read, offsets, health"),
    ("produce", "", "the fast door for events"),
    ("read", "", "records and offsets"),
    ("metrics", "/metrics", "for Prometheus"),
)
# The `broker` extra's packages that no other extra brings: one missing means that it is missing.
BROKER_PACKAGES = ("aiohttp", "httptools", "mmh3", "msgspec", "pydantic_settings", "structlog")
READY_DEADLINE_S = 120.0  # recovery reads the tails of all logs
STOP_DEADLINE_S = 30.0  # a clean stop syncs all logs
POLL_INTERVAL_S = 0.02
DEMO_KEY = "SFO"
DEMO_PARTITION = 2  # where a broker puts DEMO_KEY in a topic of its default four partitions
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def dev(
    data: Annotated[
        Path, typer.Option(help="Where data stays between runs.", metavar="DIR", file_okay=False)
    ] = Path(".tailrace"),
    port: Annotated[
        int,
        typer.Option(
            min=1, max=65535 - len(DOORS) + 1, help="The first of four ports.", metavar="PORT"
        ),
    ] = DEFAULT_PORT,
    brokers: Annotated[int, typer.Option(help="The ring's size.", metavar="N")] = 1,
) -> None:
    """Run a broker on this machine until Ctrl-C; its data stays.

    \b
    Example:
      tailrace dev --data /tmp/events --port 19250
    """
    if brokers != 1:
        raise typer.BadParameter("this version runs rings of one broker", param_hint="--brokers")
    _require_broker_extra()
    _require_free_ports(port)
    _exit_on_signals()
    data_dir = data / "0"
    data_dir.mkdir(parents=True, exist_ok=True)
    with _child_broker(data_dir, port) as child:
        _wait_ready(child, f"http://{HOST}:{port}")
        print(_welcome(data_dir, port), flush=True)
        exit_code = child.wait()
    raise TailraceError(f"the broker ended by itself with exit status {exit_code}")


def _require_broker_extra() -> None:
    from importlib.util import find_spec

    if not all(map(find_spec, BROKER_PACKAGES)):
        raise TailraceError(
            "the broker is not installed. Install it: pip install 'tailrace[broker]'"
        )


def _require_free_ports(port: int) -> None:
    """Tell now what the broker would find out; else another's /ready could be taken for ours."""
    import socket

    for taken in range(port, port + len(DOORS)):
        with socket.socket() as candidate:
            # As the broker binds: connections that linger from its last run are no hindrance.
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                candidate.bind((HOST, taken))
            except OSError as error:
                raise TailraceError(
                    f"port {taken} cannot be used ({error.strerror}). "
                    f"Choose others: tailrace dev --port {port + PORT_STRIDE}"
                ) from error


def _exit_on_signals() -> None:
    """Let these unwind the stack as Ctrl-C does, so that the broker is stopped."""
    import signal

    def leave(_number: int, _frame: "FrameType | None") -> Never:
        raise typer.Exit(0)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)


@contextmanager
def _child_broker(data_dir: Path, port: int) -> "Iterator[subprocess.Popen[bytes]]":
    """A broker process; at the block's end it is stopped cleanly, or killed if it hangs."""
    import os
    import subprocess
    import sys
    from contextlib import suppress

    environment = os.environ | {
        "TAILRACE_DATA_DIR": str(data_dir),
        "TAILRACE_HOST": HOST,
        "TAILRACE_PORT": str(port),
    }
    environment.setdefault("TAILRACE_LOG_LEVEL", "warning")
    child = subprocess.Popen(
        [sys.executable, "-m", "tailrace_broker"],
        env=environment,
        stdin=subprocess.DEVNULL,
        process_group=0,  # a terminal's Ctrl-C reaches this process only, which then ends the child
        preexec_fn=_die_with_parent(),
    )
    try:
        yield child
    finally:
        child.terminate()
        try:
            with suppress(subprocess.TimeoutExpired):
                child.wait(STOP_DEADLINE_S)
        finally:
            child.kill()
            child.wait()


def _die_with_parent() -> Callable[[], None] | None:
    """For the child before it runs: the kernel kills it when its parent is gone (prctl(2))."""
    import ctypes
    import os
    import sys

    if sys.platform != "linux":
        return None
    import signal

    prctl = ctypes.CDLL(None).prctl
    parent_pid = os.getpid()

    def arm() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:  # gone already, so no signal will come
            os._exit(1)

    return arm


def _wait_ready(child: "subprocess.Popen[bytes]", url: str) -> None:
    """Until the broker serves. When it ends before, it has told why on stderr."""
    import subprocess
    import time
    from contextlib import suppress

    from tailrace.sync import Client

    deadline_s = time.monotonic() + READY_DEADLINE_S
    with Client(url) as client:
        while not client.is_ready():
            if time.monotonic() > deadline_s:
                raise TailraceError(f"the broker is not ready after {READY_DEADLINE_S:.0f} s")
            with suppress(subprocess.TimeoutExpired):
                raise typer.Exit(child.wait(POLL_INTERVAL_S) or 1)


def _welcome(data_dir: Path, port: int) -> str:
    """The doors, and two lines to paste."""
    doors = [
        f"  {name:8} http://{HOST}:{port + index}{path:9} {purpose}"
        for index, (name, path, purpose) in enumerate(DOORS)
    ]
    url = f"http://{HOST}:{port}/v1/topic/demo"
    return "\n".join(
        [
            f"✓ broker 0 ready, data in {data_dir}",
            *doors,
            "Produce, then read:",
            f"""  curl -d '{{"origin":"{DEMO_KEY}"}}' -H 'content-type: application/json' """
            f"'{url}/messages?partitionKey={DEMO_KEY}'",
            f"  curl '{url}/partitions/{DEMO_PARTITION}/records?offset=earliest'",
            "Ctrl-C ends it, data stays.",
        ]
    )
