"""A broker process to measure: data on a real disk below this directory, removed at the end."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from tests.fixtures import HOST, RunningBroker, start_broker

DATA_DIR = Path(".tailrace-bench")
MEMORY_FILESYSTEMS = {"ramfs", "tmpfs"}
KIB_PER_MIB = 1024


@contextmanager
def broker_on_disk(**settings: str | int | bool) -> Iterator[RunningBroker]:
    """A ready broker with nothing stored yet; OSError when the disk is memory."""
    shutil.rmtree(DATA_DIR, ignore_errors=True)
    DATA_DIR.mkdir()
    try:
        filesystem = _filesystem(DATA_DIR)
        if filesystem in MEMORY_FILESYSTEMS:
            raise OSError(f"{DATA_DIR.absolute()} is {filesystem}: run this on a disk")
        with start_broker(DATA_DIR, log_level="warning", **settings) as broker:
            yield broker
    finally:
        shutil.rmtree(DATA_DIR)


def rss_mib(broker: RunningBroker) -> float:
    """Resident memory now."""
    return _status_mib(broker, "VmRSS")


def rss_max_mib(broker: RunningBroker) -> float:
    """The most that was resident at a time."""
    return _status_mib(broker, "VmHWM")


def counter(broker: RunningBroker, name: str) -> float:
    """One of the broker's metrics, summed over its labels."""
    with urlopen(f"http://{HOST}:{broker.port + 3}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if re.match(rf"{name}[ {{]", line))


def _status_mib(broker: RunningBroker, field: str) -> float:
    """A size that /proc/PID/status gives in KiB (proc(5))."""
    for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) / KIB_PER_MIB
    raise AssertionError(f"no {field} of process {broker.pid}")


def _filesystem(path: Path) -> str:
    """The type of filesystem that holds `path`; "unknown" where device numbers do not tell."""
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split()[2] == wanted:
            return source.split()[0]
    return "unknown"
