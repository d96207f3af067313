"""A broker process to measure: data on a real disk below this directory, removed at the end."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from urllib.request import Request, urlopen

from benchmarks.load import Load, LoadResult, Target, run_in_own_process
from tailrace.local.broker import LocalBroker
from tailrace_broker.core.ring.arithmetic import TOKEN_MIN, UNITS, find_slice, slice_bounds, token

DATA_DIR = Path(".tailrace-bench")
PORT = 9350  # not that of a broker that somebody works with
KIB_PER_MIB = 1024
TOPIC = "bench"
PRODUCE_LISTENER, READ_LISTENER = 1, 2
ANSWER_S_MAX = 30.0


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


def create_topic(broker: LocalBroker, name: str = TOPIC, **settings: str | int) -> None:
    """With settings by their names on the wire; HTTPError when the broker refuses one."""
    body = json.dumps({"name": name, **settings}).encode()
    headers = {"Content-Type": "application/json"}
    request = Request(f"{broker.url}/v1/topics", body, headers)
    urlopen(request, timeout=ANSWER_S_MAX).close()


def produce(
    broker: LocalBroker, requests: list[bytes], request_count: int, connection_count: int
) -> LoadResult:
    """Requests in turn to the produce listener, one outstanding a connection."""
    port = broker.port + PRODUCE_LISTENER
    load = Load([Target(port, requests)], request_count, connection_count, [broker.pid])
    return run_in_own_process(load)


def keys_of_partitions(partition_count: int) -> list[str]:
    """A key of each partition of a topic, in the order of the partitions."""
    starts = [start for start, _ in slice_bounds(TOKEN_MIN, UNITS, partition_count)]
    keys: dict[int, str] = {}
    for number in count():
        if len(keys) == partition_count:
            break
        key = f"d-{number:05x}"
        keys.setdefault(find_slice(starts, token(key.encode())), key)
    return [keys[partition] for partition in range(partition_count)]


def write_count(broker: LocalBroker) -> float:
    """Of the disk, to journal and segments, since its start."""
    metrics = broker.metrics()
    return metrics["tailrace_journal_writes_total"] + metrics["tailrace_log_writes_total"]


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
