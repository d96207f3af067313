"""The brokers of `make up`: start, measurements from outside, and the end of their data."""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Never

from examples.up_events import UpError
from tailrace.local.broker import (
    PEER_LISTENERS,
    LocalBroker,
    PortTakenError,
    exported_settings,
    is_in_use,
    make_directory,
)
from tailrace.local.ring import (
    BROKERS_MAX,
    PORT_STRIDE,
    RING_FILE,
    SECRET_FILE,
    LocalRing,
    begun_with,
)

DATA_DIR = Path(".tailrace")
PORT_MAX = 65_535
WATCH_SECONDS = 0.2


class Usage(NamedTuple):
    """What a process has used so far, by the kernel's books."""

    cpu_seconds: float
    rss_bytes: int


@contextmanager
def running_brokers(top: Path, *, count: int, port: int) -> Iterator[Sequence[LocalBroker]]:
    """Ready brokers that log beside their data; at the block's end they are stopped.

    UpError: ports are taken, or the data below `top` is that of a ring of another size.
    """
    last_port = port + PORT_STRIDE * (count - 1) + PEER_LISTENERS[-1]
    if count > 1 and last_port > PORT_MAX:
        port_max = PORT_MAX - last_port + port
        raise UpError(f"PORT={port} leaves no room for {count} brokers: give at most {port_max}")
    check_count(top, count)
    settings = exported_settings()
    try:
        if count == 1:
            make_directory(top)
            (top / RING_FILE).write_text('{"brokers": 1}\n')
            log_path = top / "0.log"
            with LocalBroker(top / "0", port=port, settings=settings, log_path=log_path) as broker:
                broker.wait_ready()
                yield [broker]
        else:
            with LocalRing(top, broker_count=count, port=port, settings=settings) as ring:
                ring.wait_ready(lambda note: print(note, flush=True))
                yield ring.brokers
    except PortTakenError as error:
        raise UpError(f"{error}; choose others: make up PORT={port + 100}") from error


def check_count(top: Path, count: int) -> None:
    """UpError: another number of brokers has its data below `top`."""
    if count == 1 and not (top / RING_FILE).exists():
        return  # data of one broker without that file is of an earlier version
    begun_count = begun_with(top)
    if begun_count not in (None, count):
        raise UpError(
            f"{top} holds the data of BROKERS={begun_count}: give that number, or start from no "
            f"data: make up BROKERS={count} FRESH=1"
        )


def watch(brokers: Sequence[LocalBroker]) -> Never:
    """Report a broker that ends; BrokerEndedError when half of them, or more, have ended.

    One that another process has started again counts as running.
    """
    reported: set[int] = set()
    while True:
        ended = [
            ordinal
            for ordinal, broker in enumerate(brokers)
            if not broker.is_running() and not is_in_use(broker.data_dir)
        ]
        if 2 * len(ended) >= len(brokers):
            brokers[ended[0]].wait()
        for ordinal in sorted({*ended} - reported):
            again = f".venv/bin/tailrace dev start {ordinal}"
            print(f"broker {ordinal} has ended; the others go on. Start it: {again}", flush=True)
        reported = {*ended}
        time.sleep(WATCH_SECONDS)


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


def remove_data(top: Path) -> None:
    """Remove all brokers' data; UpError when a broker, on whatever port, has some of it open."""
    data_dirs = [top / str(ordinal) for ordinal in range(BROKERS_MAX)]
    for data_dir in data_dirs:
        if is_in_use(data_dir):
            raise UpError(f"{data_dir} is in use by another broker; stop it first")
    for data_dir in data_dirs:
        shutil.rmtree(data_dir, ignore_errors=True)
    for name in (RING_FILE, SECRET_FILE):
        (top / name).unlink(missing_ok=True)
