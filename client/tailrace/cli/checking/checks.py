"""The checks of `tailrace doctor`; each detail of one that is not ok says what to do."""

import resource
import time
from collections.abc import Iterator, Sequence
from importlib import metadata

from tailrace import __version__
from tailrace.cli.checking.check import FAILED, OK, WARNING, Check
from tailrace.cli.checking.damage_checks import (
    DamagedPartitions,
    damage_check,
    damaged_partitions,
    range_check,
    unknown_range_check,
)
from tailrace.cli.checking.group_checks import group_checks
from tailrace.cli.lib.options import short_size
from tailrace.cli.lib.ring_rows import filled_in, is_own
from tailrace.errors import ProblemError, TailraceError
from tailrace.extras import install_command
from tailrace.sansio.routing import broker_urls
from tailrace.spark.java import JAVA_MAJOR_MIN, can_run_spark, java_version
from tailrace.sync import Client
from tailrace.values import BrokerStatus, PartitionDetails, RingStatus

CLOCK_SKEW_US_MAX = 1_000_000  # records by time are off by that much; a broker refuses an hour
DURABLE_WRITE_MS_MAX = 20.0  # what a spinning disk takes; every acknowledgement waits for one
DISK_SHARE_FULL = 0.95
DISK_SHARE_HIGH = 0.85
OPEN_FILES_MIN = 10_240  # a broker's 8,192 connections, and its files


def broker_checks(client: Client) -> list[Check]:
    """Read the ring's state; when it does not answer, only that."""
    asked_ns = time.time_ns()
    try:
        status = client.brokers()
    except TailraceError as error:
        return [Check(FAILED, "broker", str(error))]
    here_us = (asked_ns + time.time_ns()) // 2000  # in the middle of question and answer
    skew_us = status.now_us - here_us
    status = filled_in(client, status)
    damaged = damaged_partitions(client, status)
    return [
        *ring_checks(client.url, status, skew_us=skew_us, damaged=damaged),
        checked_ranges(client, status),
        *group_checks(client, now_us=status.now_us),
    ]


def machine_checks() -> list[Check]:
    """What Spark and a broker on this machine need."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return [java_check(java_version()), _pyspark_check(), open_files_check(limit)]


def ring_checks(
    url: str, status: RingStatus, *, skew_us: int, damaged: DamagedPartitions
) -> Iterator[Check]:
    """Of the ring as a whole, then of each broker."""
    version = status.ring.version
    yield Check(OK, "broker", f"{url} answers")
    yield Check(
        OK if version == __version__ else WARNING,
        "version",
        version
        if version == __version__
        else f"{version}, and this client is {__version__}: install the same",
    )
    is_right = abs(skew_us) <= CLOCK_SKEW_US_MAX
    remedy = "" if is_right else ": synchronise both clocks (NTP)"
    yield Check(OK if is_right else WARNING, "clock", f"skew {skew_us / 1000:.1f} ms{remedy}")
    known = [broker for broker in status.brokers if is_own(broker)]
    missing_count = status.length - len(known)
    if missing_count:
        yield Check(FAILED, "ring", f"{missing_count} of {status.length} brokers do not answer")
    for broker in known:
        prefix = f"broker {broker.ordinal} " if status.length > 1 else ""
        for check in _of_broker(broker, damaged.get(broker.ordinal, ())):
            yield check._replace(name=prefix + check.name)


def checked_ranges(client: Client, status: RingStatus) -> Check:
    """Of all that is committed: a broker that is cut off would show what has been.

    Of brokers behind one address only those are silent that the ring does not hear.
    """
    are_asked = bool(broker_urls(client.url, status))
    others = (each for each in status.brokers if not is_own(each))
    silent = {each.ordinal for each in others if are_asked or not each.alive}
    try:
        return range_check(client.ring(consistent=True), silent)
    except TailraceError as error:
        if isinstance(error, ProblemError) and error.type == "not-agreed":
            return unknown_range_check(error.detail)
        return Check(FAILED, "ranges", str(error))


def java_check(version: str | None) -> Check:
    """Of Spark's Java; None: there is none."""
    if version is not None and can_run_spark(version):
        return Check(OK, "Java", version)
    return Check(
        WARNING,
        "Java",
        f"{version or 'not found'}: Spark needs {JAVA_MAJOR_MIN} or newer; install it, "
        "or set JAVA_HOME",
    )


def open_files_check(limit: int) -> Check:
    """Of a broker that is started here."""
    if limit in (resource.RLIM_INFINITY, -1):
        return Check(OK, "open files", "no limit")
    if limit < OPEN_FILES_MIN:
        return Check(
            WARNING,
            "open files",
            f"{limit:,} are few for a broker started here: ulimit -n {OPEN_FILES_MIN}",
        )
    return Check(OK, "open files", f"up to {limit:,}")


def _of_broker(
    broker: BrokerStatus, damaged: Sequence[tuple[str, PartitionDetails]]
) -> Iterator[Check]:
    yield damage_check(broker, damaged)
    yield _disk_check(broker)
    if broker.direct_io:
        yield Check(OK, "O_DIRECT", "files bypass the page cache")
    else:
        yield Check(WARNING, "O_DIRECT", "missing: the kernel keeps a second copy; use ext4 or XFS")
    yield _durable_write_check(broker.durable_write_ms)


def _disk_check(broker: BrokerStatus) -> Check:
    if broker.disk_used_bytes is None or broker.disk_bytes is None:
        return Check(FAILED, "disk", "the broker cannot reach its data directory: see its log")
    share = broker.disk_used_bytes / max(broker.disk_bytes, 1)
    detail = f"{short_size(broker.disk_used_bytes)} of {short_size(broker.disk_bytes)} used"
    if share < DISK_SHARE_HIGH:
        return Check(OK, "disk", detail)
    state = FAILED if share >= DISK_SHARE_FULL else WARNING
    return Check(state, "disk", f"{detail} ({share:.0%}): free some, or enlarge it")


def _durable_write_check(duration_ms: float | None) -> Check:
    if duration_ms is None:
        return Check(WARNING, "durable write", "not measured: the broker could not write its probe")
    detail = f"{duration_ms:.1f} ms for a block"
    if duration_ms > DURABLE_WRITE_MS_MAX:
        detail += ": each acknowledgement waits for one; use a faster disk"
        return Check(WARNING, "durable write", detail)
    return Check(OK, "durable write", detail)


def _pyspark_check() -> Check:
    try:
        return Check(OK, "PySpark", metadata.version("pyspark"))
    except metadata.PackageNotFoundError:
        return Check(
            WARNING, "PySpark", f"not installed; for Spark jobs: {install_command('spark')}"
        )
