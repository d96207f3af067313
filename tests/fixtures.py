"""One constructor per real component that tests need: a broker process on loopback."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tailrace.sync import Client

HOST = "127.0.0.1"
DOOR_COUNT = 4  # public, produce, read, metrics
# Below Linux's ephemeral ports, so that no outgoing connection takes a port between choice and use.
PORT_BASES = range(20_000, 32_000, 10)
READY_DEADLINE_S = 20.0
STOP_DEADLINE_S = 20.0
POLL_INTERVAL_S = 0.02


class RunningBroker:
    """A broker process; `log_path` has what it wrote. Made by `start_broker`."""

    def __init__(self, data_dir: Path, port: int, environment: Mapping[str, str]) -> None:
        self.data_dir = data_dir
        self.port = port
        self.url = f"http://{HOST}:{port}"
        self.log_path = data_dir.with_suffix(".log")
        self._environment = environment
        self._process = self._start()

    @property
    def pid(self) -> int:
        """Of the process that runs, or ran last."""
        return self._process.pid

    def stop(self) -> None:
        """SIGTERM; the broker must end by itself, cleanly."""
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(STOP_DEADLINE_S)
        assert code == 0, f"exit {code} after SIGTERM:\n{self.log_path.read_text()}"

    def kill(self) -> None:
        """SIGKILL; nothing happens when it has ended already."""
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        """Start again on the same data and ports, after a clean stop if it still runs."""
        if self._process.poll() is None:
            self.stop()
        self._process = self._start()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Until the broker serves; AssertionError with its log when it ends or takes too long."""
        deadline_s = time.monotonic() + READY_DEADLINE_S
        with Client(self.url) as client:
            while not client.is_ready():
                assert time.monotonic() < deadline_s, f"not ready:\n{self.log_path.read_text()}"
                assert not self._has_ended(), f"ended early:\n{self.log_path.read_text()}"

    def _start(self) -> "subprocess.Popen[bytes]":
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tailrace_broker"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _has_ended(self) -> bool:
        """Waits a little for it, as the pause of a poll."""
        try:
            self._process.wait(POLL_INTERVAL_S)
        except subprocess.TimeoutExpired:
            return False
        return True


@contextmanager
def start_broker(tmp_path: Path, **settings: str | int | bool) -> Iterator[RunningBroker]:
    """A ready broker with its data below `tmp_path`; it is gone when the block ends.

    Settings by their lower-case name, as in `auto_create_topics=False`.
    """
    data_dir = tmp_path / "broker"
    data_dir.mkdir(exist_ok=True)
    port = free_port_base()
    values = {"data_dir": data_dir, "host": HOST, "port": port, **settings}
    environment = plain_environment() | {
        f"TAILRACE_{name.upper()}": str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
    }
    broker = RunningBroker(data_dir, port, environment)
    try:
        broker.wait_ready()
        yield broker
    finally:
        broker.kill()


def plain_environment() -> dict[str, str]:
    """This process's, without settings of Tailrace that a developer may have exported."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}


def free_port_base() -> int:
    """A port that is free with the next three; not from the seeded generator that tests share."""
    for base in random.SystemRandom().sample(PORT_BASES, len(PORT_BASES)):
        if _are_free(range(base, base + DOOR_COUNT)):
            return base
    raise AssertionError(f"no {DOOR_COUNT} free ports in a row in {PORT_BASES}")


def _are_free(ports: range) -> bool:
    with ExitStack() as stack:
        for port in ports:
            candidate = stack.enter_context(socket.socket())
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                candidate.bind((HOST, port))
            except OSError:
                return False
    return True
