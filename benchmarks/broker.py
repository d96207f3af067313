"""A broker process to measure: data on a real disk below this directory, removed at the end."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.local_broker import LocalBroker

DATA_DIR = Path(".tailrace-bench")
PORT = 9350  # not that of a broker that somebody works with
KIB_PER_MIB = 1024


@contextmanager
def broker_on_disk() -> Iterator[LocalBroker]:
    """A ready broker with nothing stored yet; OSError when there is no disk below its files."""
    shutil.rmtree(DATA_DIR, ignore_errors=True)
    try:
        with LocalBroker(
            DATA_DIR / "broker", port=PORT, settings={"log_level": "warning"}
        ) as broker:
            broker.wait_ready()
            if not broker.metrics()["tailrace_direct_io"]:
                raise OSError(f"{DATA_DIR.absolute()} has no direct I/O: run this on a disk")
            yield broker
    finally:
        shutil.rmtree(DATA_DIR, ignore_errors=True)


def rss_mib(broker: LocalBroker) -> float:
    """Resident memory now."""
    return _status_mib(broker, "VmRSS")


def rss_max_mib(broker: LocalBroker) -> float:
    """The most that was resident at a time."""
    return _status_mib(broker, "VmHWM")


def _status_mib(broker: LocalBroker, field: str) -> float:
    """A size that /proc/PID/status gives in KiB (proc(5))."""
    for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) / KIB_PER_MIB
    raise AssertionError(f"no {field} of process {broker.pid}")
