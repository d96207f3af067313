"""One broker as a child process: started, measured from outside, stopped."""

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

from examples.up_events import UpError
from tailrace.sync import Client

HOST = "127.0.0.1"
DOORS = 4  # public, produce, read, metrics: docs/protocol.md
METRICS_DOOR = 3
START_SECONDS_MAX = 60.0  # recovery reads the end of every partition
STOP_SECONDS_MAX = 30.0
POLL_SECONDS = 0.02


class Usage(NamedTuple):
    """What a process has used so far, by the kernel's books."""

    cpu_seconds: float
    rss_bytes: int


class Broker:
    """A broker process on `data_dir`; made by `running_broker`."""

    def __init__(self, data_dir: Path, *, port: int) -> None:
        self.port = port
        self.url = f"http://{HOST}:{port}"
        self.log_path = data_dir.with_suffix(".log")
        self._data_dir = data_dir
        data_dir.mkdir(parents=True, exist_ok=True)
        settings = {"DATA_DIR": str(data_dir), "HOST": HOST, "PORT": str(port)}
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tailrace_broker"],
                env=os.environ | {f"TAILRACE_{name}": value for name, value in settings.items()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # a terminal's Ctrl-C is for us, who then stop the broker
            )

    def wait_until_ready(self) -> None:
        """UpError when the process ends before it serves, or takes too long."""
        deadline = time.monotonic() + START_SECONDS_MAX
        with Client(self.url) as client:
            while not client.is_ready():
                if self._process.poll() is not None:
                    said = self.log_path.read_text(errors="replace").strip().rpartition("\n")[2]
                    raise UpError(f"the broker did not start: {said} (all: {self.log_path})")
                if time.monotonic() > deadline:
                    raise UpError(f"not ready after {START_SECONDS_MAX:.0f} s: {self.log_path}")
                time.sleep(POLL_SECONDS)

    def wait(self) -> int:
        """Until it ends; its exit code."""
        return self._process.wait()

    def stop(self) -> int:
        """SIGTERM, and SIGKILL when that does not help; its exit code."""
        self._process.terminate()
        try:
            return self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def usage(self) -> Usage | None:
        """CPU time, user and system, and resident memory (proc(5)); None without /proc."""
        proc = Path(f"/proc/{self._process.pid}")
        if not proc.exists():
            return None
        # The command's name, in brackets, may hold spaces; the third field follows it.
        fields = (proc / "stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        resident_pages = int((proc / "statm").read_text().split()[1])
        return Usage(ticks / os.sysconf("SC_CLK_TCK"), resident_pages * os.sysconf("SC_PAGE_SIZE"))

    def has_direct_io(self) -> bool:
        """Whether data files bypass the page cache, as the broker's metrics say."""
        with urlopen(f"http://{HOST}:{self.port + METRICS_DOOR}/metrics", timeout=5) as answer:
            return b"\ntailrace_direct_io 1" in answer.read()

    def log_bytes(self) -> int:
        """All segment files, with what is written ahead in them."""
        return sum(path.stat().st_size for path in self._data_dir.rglob("*.log"))


@contextmanager
def running_broker(data_dir: Path, *, port: int) -> Iterator[Broker]:
    """A ready broker; at the block's end it is stopped. UpError when it does not end cleanly."""
    check_ports_are_free(port)
    broker = Broker(data_dir, port=port)
    try:
        broker.wait_until_ready()
        yield broker
    except BaseException:
        broker.stop()
        raise
    exit_code = broker.stop()
    if exit_code:
        raise UpError(f"the broker ended with exit code {exit_code}: {broker.log_path}")


def remove_data(data_dir: Path) -> None:
    """Remove a broker's data; UpError when a broker, on whatever port, has it open."""
    lock_path = data_dir / "lock"
    if lock_path.exists():
        with lock_path.open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UpError(f"{data_dir} is in use by another broker; stop it first") from None
    shutil.rmtree(data_dir, ignore_errors=True)


def check_ports_are_free(port: int) -> None:
    """UpError with the remedy when something else listens where the broker is to."""
    for door_port in range(port, port + DOORS):
        with socket.socket() as probe:
            # As the broker binds: connections that linger from its last run are no hindrance.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, door_port))
            except OSError:
                raise UpError(
                    f"port {door_port} is taken; choose others: make up PORT={port + 100}"
                ) from None
