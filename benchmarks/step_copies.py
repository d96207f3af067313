"""How fast is what a leaving broker held copied, and what do producers notice of it?

A ring of four brokers holds `STEPS_MIB` (1,024 by default) of events and shrinks to three. The step
copies nothing. Then each range of which the leaving broker had a copy gets another one, which is
read back before it counts; three quarters of all events are copied. Beside that 1,000 events a
second of 100 bytes go to any broker, before the step and until all is copied.

`disk_mib_per_s`: what one writer reaches on this disk with direct I/O of 1 MiB, just before. All
brokers share that disk, and each byte is read, written and read back.

Sketch of a GiB (620 MiB stored), CPU s: read (0.10), sent and received (0.25), checksums (0.06),
written (0.15), read back (0.16). Bound: two cores, of which producers need a half.
"""

import mmap
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from benchmarks.broker import DATA_DIR
from benchmarks.brokers import Brokers, brokers_on_disk
from benchmarks.load import LoadResult, cpu_seconds
from benchmarks.report import MIB, Row
from benchmarks.steps import BEFORE_COUNT, PARTITIONS_PER_RANGE, STEPS_MIB, load, write
from tests.support.ring.ring_steps import step_to, wait_copied

FIRST_COUNT, LAST_COUNT = 4, 3
DISK_MIB = 512
AIMS = {"p99_ratio": 2}  # and `disk_share` at least 0.5


def run() -> Iterator[Row]:
    """Ask once."""
    with brokers_on_disk(FIRST_COUNT) as brokers:
        brokers.create_topic(PARTITIONS_PER_RANGE)
        write(brokers, STEPS_MIB)
        brokers.members = brokers.members[:LAST_COUNT]  # the loads are of those that stay
        disk_mib_per_s = _disk_mib_per_s()
        before = [load(brokers) for _ in range(BEFORE_COUNT)]
        stored_mib = _stored_mib()
        cpu_before_s = sum(map(cpu_seconds, brokers.pids))
        during: list[LoadResult] = []
        with ThreadPoolExecutor(1) as others:
            copying = others.submit(_shrink, brokers)
            while not copying.done():
                during.append(load(brokers))
        seconds = copying.result()
        cpu_s = sum(map(cpu_seconds, brokers.pids)) - cpu_before_s
        copied_mib = _stored_mib() - stored_mib
    p99_ms, p99_before_ms = (median(each.p99_ms for each in loads) for loads in (during, before))
    figures = {
        "copied_mib": copied_mib,
        "copied_s": seconds,
        "copied_mib_per_s": copied_mib / seconds,
        "disk_mib_per_s": disk_mib_per_s,
        "disk_share": copied_mib / seconds / disk_mib_per_s,
        "cpu_s": cpu_s,
        "p99_ms": p99_ms,
        "p99_max_ms": max(each.p99_ms for each in during),
        "p99_before_ms": p99_before_ms,
        "p99_ratio": p99_ms / p99_before_ms,
        "other_cores": median(each.other_cores for each in during),
    }
    asked = f"a ring shrinks from {FIRST_COUNT} to {LAST_COUNT} brokers, {STEPS_MIB:,} MiB stored"
    yield Row("step_copies", asked, figures, AIMS)


def _shrink(brokers: Brokers) -> float:
    """Until all is copied; seconds since the step."""
    assert brokers.ring is not None
    step_to(brokers.ring, LAST_COUNT)
    began_s = time.monotonic()
    wait_copied(brokers.ring)
    return time.monotonic() - began_s


def _stored_mib() -> float:
    """What the files of those that stay take on the disk, what was written beside it included."""
    files = (path.stat() for name in range(LAST_COUNT) for path in _files_of(name))
    return sum(each.st_blocks * 512 for each in files) / MIB


def _files_of(ordinal: int) -> Iterator[Path]:
    yield from (path for path in DATA_DIR.glob(f"*{ordinal}/**/*") if path.is_file())


def _disk_mib_per_s() -> float:
    """One file, one writer, 1 MiB at a time, then a sync."""
    path = DATA_DIR / "disk"
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, MIB) as aligned:
            aligned.write(os.urandom(MIB))
            began_s = time.monotonic()
            for _ in range(DISK_MIB):
                os.write(file, aligned)
            os.fdatasync(file)
            return DISK_MIB / (time.monotonic() - began_s)
    finally:
        os.close(file)
        path.unlink()
