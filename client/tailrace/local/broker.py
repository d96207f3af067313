"""A broker as a child process on this machine: start, wait until it serves, stop.

It never outlives its parent: not a signal, not an error, and on Linux not even SIGKILL of the
parent leaves it behind (prctl(2), PR_SET_PDEATHSIG).
"""

import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Never, Self
from urllib.request import urlopen

from tailrace.errors import TailraceError
from tailrace.sync import Client

HOST = "127.0.0.1"
LISTENER_COUNT = 4  # public, produce, read, metrics: docs/protocol.md
METRICS_LISTENER = 3
PEER_LISTENERS = (5, 6)  # for the other brokers of a ring: messages, and replication
SETTING_PREFIX = "TAILRACE_"
STOP_S_MAX = 30.0  # a clean stop syncs all logs
METRICS_TIMEOUT_S = 10.0
POLL_INTERVAL_S = 0.02
# What the child runs on Linux: the kernel is to kill it when its parent is gone. Done here and not
# before exec (preexec_fn), which is not safe in a parent with threads. 1 is PR_SET_PDEATHSIG.
_DIE_WITH_PARENT = f"""
import ctypes, os, runpy
ctypes.CDLL(None).prctl(1, {signal.SIGKILL:d})
if os.getppid() != {{parent_pid}}:  # gone already, so no signal will come
    os._exit(1)
runpy.run_module("tailrace_broker", run_name="__main__", alter_sys=True)
"""


class PortTakenError(TailraceError):
    """Something else listens where the broker is to."""


class DataDirectoryError(TailraceError):
    """A broker's data cannot be where it is to be."""


class BrokerEndedError(TailraceError):
    """The process exited, or not cleanly."""

    def __init__(self, exit_code: int, data_dir: Path, log_path: Path | None) -> None:
        self.exit_code = exit_code
        self.how = _how_it_ended(exit_code)
        said = ""
        if exit_code <= 0:  # it has not said why
            said = f"; its data is in {data_dir}, and nothing is served until it is started again"
        elif log_path:
            last_line = log_path.read_text(errors="replace").strip().rpartition("\n")[2]
            said = f": {last_line} (all: {log_path})"
        super().__init__(f"the broker {self.how}{said}")


class LocalBroker:
    """A broker on `data_dir`, its listeners from `port` on; settings by their lower-case name.

    As a context manager it runs for the block. It writes to `log_path`, by default to stderr.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int,
        settings: Mapping[str, str | float] | None = None,
        log_path: Path | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.port = port
        self.url = f"http://{HOST}:{port}"
        self.log_path = log_path
        given = {**(settings or {}), "data_dir": str(data_dir), "host": HOST, "port": port}
        self._environment = plain_environment() | {
            f"{SETTING_PREFIX}{name.upper()}": str(value) for name, value in given.items()
        }
        self._has_peers = "peer_host" in given
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ending = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        except BrokerEndedError:
            if error is None:  # else that error is what there is to say
                raise

    @property
    def pid(self) -> int:
        """Of the process that runs, or ran last."""
        return self._child.pid

    def is_running(self) -> bool:
        """Whether the process is there, ready or not."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process. PortTakenError, DataDirectoryError; what else it cannot live with
        it says itself.
        """
        assert not self.is_running()
        check_ports_are_free(self.port, has_peers=self._has_peers)
        make_directory(self.data_dir)
        self._is_ending = False
        log = self.log_path.open("ab") if self.log_path else None
        try:
            self._process = subprocess.Popen(  # noqa: S603  # a module of ours
                [sys.executable, *_arguments()],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # a terminal's Ctrl-C is for the parent, which then stops this
            )
        finally:
            if log:
                log.close()

    def wait_ready(self, timeout_s: float = float("inf")) -> None:
        """Until the broker serves: as long as it lives, since recovery reads the end of every log.

        BrokerEndedError; TailraceError when `timeout_s` is over.
        """
        deadline_s = time.monotonic() + timeout_s
        with Client(self.url) as client:
            while not client.is_ready():
                if time.monotonic() > deadline_s:
                    raise TailraceError(f"the broker is not ready after {timeout_s:.0f} s")
                with suppress(subprocess.TimeoutExpired):
                    self._raise_ended(self._child.wait(POLL_INTERVAL_S))

    def wait(self) -> Never:
        """Wait until it exits, which is a BrokerEndedError."""
        self._raise_ended(self._child.wait())

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when that does not help; BrokerEndedError unless it ends cleanly."""
        if self._process is None:
            return
        self.terminate()
        try:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S_MAX)
        finally:
            self.kill()
        if self._process.returncode:
            self._raise_ended(self._process.returncode)

    def terminate(self) -> None:
        """SIGTERM, once, without waiting for its end; nothing happens when it has ended already.

        A second one would kill a broker whose stop is nearly done.
        """
        if self._process is not None and not self._is_ending:
            self._is_ending = True
            self._process.terminate()

    def kill(self) -> None:
        """SIGKILL; nothing happens when it has ended already."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def metrics(self) -> dict[str, float]:
        """Every metric by its name, summed over its labels."""
        url = f"http://{HOST}:{self.port + METRICS_LISTENER}/metrics"
        with urlopen(url, timeout=METRICS_TIMEOUT_S) as answer:
            text = answer.read().decode()
        values: dict[str, float] = defaultdict(float)
        for name, value in re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", text, re.MULTILINE):
            values[name] += float(value)
        return dict(values)

    @property
    def _child(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "not started"
        return self._process

    def _raise_ended(self, exit_code: int) -> Never:
        raise BrokerEndedError(exit_code, self.data_dir, self.log_path)


def check_ports_are_free(port: int, *, has_peers: bool = False) -> None:
    """PortTakenError now: later, another's answers could be taken for the broker's."""
    check_listeners_are_free(port, [*range(LISTENER_COUNT), *(PEER_LISTENERS if has_peers else ())])


def check_listeners_are_free(port: int, listeners: Iterable[int]) -> None:
    """PortTakenError: one of these, counted from the broker's port, is used."""
    for listener_port in [port + listener for listener in listeners]:
        with socket.socket() as candidate:
            # As the broker binds: connections that linger from its last run are no hindrance.
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                candidate.bind((HOST, listener_port))
            except OSError as error:
                raise PortTakenError(
                    f"port {listener_port} cannot be used ({error.strerror})"
                ) from error


def is_listening(port: int) -> bool:
    """Whether a broker, or something else, takes connections there."""
    with socket.socket() as attempt:
        return attempt.connect_ex((HOST, port)) == 0


def is_in_use(data_dir: Path) -> bool:
    """Whether a broker runs on this directory, whoever has started it: it holds a lock there."""
    absent = (FileNotFoundError, NotADirectoryError, PermissionError)  # whoever starts here says it
    with suppress(*absent), (data_dir / "lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def make_directory(path: Path) -> None:
    """With those above it; DataDirectoryError names the one that is in the way."""
    for parent in [*reversed(path.parents), path]:
        try:
            if parent.is_symlink() and not parent.exists():
                raise DataDirectoryError(
                    f"{parent} is a link to {parent.readlink()}, which does not exist: make that "
                    "directory, or choose another for the data"
                )
            parent.mkdir(exist_ok=True)
        except OSError as error:
            raise DataDirectoryError(
                f"{parent} cannot be a directory ({error.strerror}): choose another for the data"
            ) from error


def plain_environment() -> dict[str, str]:
    """This process's, without Tailrace's settings."""
    return {name: value for name, value in os.environ.items() if not _is_setting(name)}


def exported_settings() -> dict[str, str]:
    """Tailrace's settings in this process's environment, by their lower-case name."""
    return {
        name.removeprefix(SETTING_PREFIX).lower(): value
        for name, value in os.environ.items()
        if _is_setting(name)
    }


def _how_it_ended(exit_code: int) -> str:
    if exit_code == -signal.SIGKILL:
        return "was killed by SIGKILL (kill -9, or the machine ran out of memory)"
    if exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}"
    if exit_code == 0:
        return "was stopped (SIGTERM or SIGINT)"
    return f"exited with exit code {exit_code}"


def _is_setting(name: str) -> bool:
    return name.startswith(SETTING_PREFIX)


def _arguments() -> list[str]:
    """Of Python."""
    if sys.platform != "linux":
        return ["-m", "tailrace_broker"]
    return ["-c", _DIE_WITH_PARENT.format(parent_pid=os.getpid())]
