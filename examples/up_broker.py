"""The broker of `make up`: its start, its measurements from outside, and the end of its data."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from examples.up_events import UpError
from tailrace.local.broker import LocalBroker, PortTakenError, exported_settings


class Usage(NamedTuple):
    """What a process has used so far, by the kernel's books."""

    cpu_seconds: float
    rss_bytes: int


@contextmanager
def running_broker(data_dir: Path, *, port: int) -> Iterator[LocalBroker]:
    """A ready broker that logs beside its data; at the block's end it is stopped."""
    log_path = data_dir.with_suffix(".log")
    settings = exported_settings()
    try:
        with LocalBroker(data_dir, port=port, settings=settings, log_path=log_path) as broker:
            broker.wait_ready()
            yield broker
    except PortTakenError as error:
        raise UpError(f"{error}; choose others: make up PORT={port + 100}") from error


def usage_of(pid: int) -> Usage | None:
    """CPU time, user and system, and resident memory (proc(5)); None without /proc."""
    proc = Path(f"/proc/{pid}")
    if not proc.exists():
        return None
    # The command's name, in brackets, may hold spaces; the third field follows it.
    fields = (proc / "stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    resident_pages = int((proc / "statm").read_text().split()[1])
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), resident_pages * os.sysconf("SC_PAGE_SIZE"))


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
