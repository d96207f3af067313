"""Checks what brokers have stored below a directory.

Beside a running broker what is being written just then is no finding: a second pass has to find
the same.
"""

import fcntl
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from tailrace.wire import (
    CLEAN_STOP_FILE,
    DAMAGE_FILE,
    DAMAGED_SUFFIX,
    DELETED_TOPIC_FILE,
    INVENTORY_FILE,
    LOG_START_FILE,
    META_FILE,
    METADATA_LOGS,
    PURGED_SUFFIX,
    TRASH,
)
from tailrace_broker.codec.batch import read_header, verify_batch
from tailrace_broker.codec.damage import decode_damage
from tailrace_broker.codec.metadata import (
    decode_clean_stop,
    decode_deleted,
    decode_identity,
    decode_inventory,
    decode_log_start,
)
from tailrace_broker.codec.metadata_log import decode_snapshot
from tailrace_broker.codec.producers import decode_checkpoint
from tailrace_broker.codec.ring_snapshot import decode_state
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.errors import CorruptBatchError, StoredDataError
from tailrace_broker.storage.inspection.disk import InspectedDisk, first_segment
from tailrace_broker.storage.inspection.findings import Finding, Report, refused
from tailrace_broker.storage.inspection.journals import check_journal_files
from tailrace_broker.storage.inspection.logs import check_log
from tailrace_broker.storage.log.producer_recovery import PRODUCERS
from tailrace_broker.storage.log.recovery import INDEX_NAME, SEGMENT_NAME, LogEvidence
from tailrace_broker.storage.log.rescued_tail import RESCUED
from tailrace_broker.storage.segments.writer import LogPlace

_LOOKS_MAX = 10
# Holds the largest batch that a broker takes, and a window around it.
_POOL_BYTES = 64 * 1024 * 1024


def check_brokers(directory: Path) -> list[Report]:
    """Check each broker whose directory lies there, and the files that are in none.

    Each is checked by its own files alone.
    """
    homes = sorted({path.parent for path in directory.rglob("data") if _is_broker(path.parent)})
    others = [home for home in homes if home != directory]
    reports = []
    for unit in (directory, *others):
        inner = [home for home in others if home != unit and home.is_relative_to(unit)]
        reports.append(check_files(unit, without=inner))
    return [report for report in reports if report.file_count or report.findings]


def check_files(directory: Path, without: Sequence[Path] = ()) -> Report:
    """Check all files of a broker below the directory, but for those below `without`.

    When that is a part of the broker's directory, its other files still say what must be there.
    """
    home = _broker_of(directory)
    if home != directory:  # an absolute one
        directory = directory.absolute()
    report = _look(home, directory, without)
    if not (report.findings and _is_in_use(home)):
        return report
    again = _look(home, directory, without)
    kept = [finding for finding in again.findings if finding.is_bad and finding in report.findings]
    return again._replace(findings=kept)


def _look(home: Path, directory: Path, without: Sequence[Path]) -> Report:
    """Again when a running broker takes files away meanwhile."""
    for _ in range(_LOOKS_MAX):
        look = _Look(home, directory, without)
        try:
            look.check_small_files()
            look.check_home()
            look.check_loose_files()
            break
        except FileNotFoundError:
            if not _is_in_use(home):
                raise
    return Report(directory, len(look.sizes), sum(look.sizes.values()), look.findings)


class _Look:
    """One pass over the files; each file is reported by whoever reads it first."""

    def __init__(self, home: Path, directory: Path, without: Sequence[Path]) -> None:
        self.findings: list[Finding] = []
        self.sizes: dict[Path, int] = {}
        self._home = home
        self._directory = directory
        self._without = without
        self._pool = BufferPool(_POOL_BYTES)
        self._checked: set[Path] = set()  # directories of logs
        for path in sorted(directory.rglob("*")):
            if _is_known(path.name) and self._is_asked_for(path):
                with suppress(FileNotFoundError):
                    self.sizes[path] = path.stat().st_size

    def check_small_files(self) -> None:
        """Check each file that is read as a whole."""
        for path in self.sizes:
            check = next((each for name, each in _CHECKS if name.fullmatch(path.name)), None)
            if check is not None:
                self._add(_checked(path, check))

    def check_home(self) -> None:
        """Check what a start of the broker checks."""
        disk = InspectedDisk.read(self._home / "data")
        logs = list(disk.logs())
        self._add(disk.findings)
        self._add(_missing_marks(disk))
        self._add(_set_aside(disk))
        for log in logs:
            if self._is_asked_for(log.place.directory) or self._directory.is_relative_to(
                log.place.directory
            ):
                self._checked.add(log.place.directory)
                self._add(check_log(log.place, log.evidence, log.epoch, self._pool))

    def check_loose_files(self) -> None:
        """Check journals and logs that lie where no broker has them."""
        journals: dict[Path, list[Path]] = {}
        logs: set[Path] = set()
        for path in self.sizes:
            if _JOURNAL_NAME.fullmatch(path.name):
                journals.setdefault(path.parent, []).append(path)
            elif SEGMENT_NAME.fullmatch(path.name) or INDEX_NAME.fullmatch(path.name):
                logs.add(path.parent)
        journals.pop(self._home / "data" / "journal", None)
        for paths in journals.values():
            self._add(check_journal_files(paths)[0])
        for directory in sorted(logs - self._checked):
            place = _place_by_batches(directory)
            if place is not None:
                start = first_segment(directory)
                evidence = LogEvidence(start, is_start_known=False)
                self._add(check_log(place, evidence, None, self._pool))

    def _add(self, findings: Sequence[Finding]) -> None:
        known = {finding.file for finding in self.findings}
        self.findings += [
            finding
            for finding in findings
            if finding.file not in known and self._is_asked_for(finding.file)
        ]

    def _is_asked_for(self, path: Path) -> bool:
        """It is below the directory, not below another broker's, and of a log that is in use."""
        return (
            path.is_relative_to(self._directory)
            and not any(path.is_relative_to(other) for other in self._without)
            and not any(
                part.endswith((PURGED_SUFFIX, DAMAGED_SUFFIX))
                for part in path.relative_to(self._directory).parts
            )
        )


def _broker_of(directory: Path) -> Path:
    """The broker's directory that this one is or lies in; itself when it is a broker's nowhere."""
    above = (directory, *directory.absolute().parents)
    return next(filter(_is_broker, above), directory)


def _is_broker(directory: Path) -> bool:
    data = directory / "data"
    return data.is_dir() and any(each.is_file() for each in (directory / "lock", data / META_FILE))


def _is_in_use(home: Path) -> bool:
    """A broker runs there: it holds a lock."""
    with suppress(FileNotFoundError), (home / "lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _missing_marks(disk: InspectedDisk) -> list[Finding]:
    """Find topics in the trash without a mark: they cannot be restored, and are not purged."""
    marks = [
        disk.data / TRASH / str(topic_id) / DELETED_TOPIC_FILE
        for topic_id in disk.known.newest_segments
    ]
    text = "is missing: without it the topic cannot be restored; restore it from a copy"
    return [
        Finding(mark, None, text) for mark in marks if mark.parent.exists() and not mark.exists()
    ]


def _set_aside(disk: InspectedDisk) -> list[Finding]:
    """Find logs that were damaged, and that other replicas give back."""
    text = "was damaged and set aside, and other replicas have not given back all that it held"
    paths = sorted(disk.data.glob(f"*-*/*{DAMAGED_SUFFIX}"))
    return [Finding(path.with_suffix(""), None, text, is_bad=False) for path in paths]


def _place_by_batches(directory: Path) -> LogPlace | None:
    """Return the partition of loose segments by the first readable header; None: none."""
    for path in sorted(directory.iterdir()):
        if SEGMENT_NAME.fullmatch(path.name):
            with suppress(CorruptBatchError), path.open("rb") as file:
                header = read_header(memoryview(file.read(4096)))
                topic_id = UUID(bytes=header.topic_id)
                return LogPlace(directory, str(topic_id), topic_id, header.partition, 0)
    return None


def _checked(path: Path, check: Callable[[str, bytes], object]) -> list[Finding]:
    try:
        check(path.name, path.read_bytes())
    except StoredDataError as error:
        return [refused(path, error.detail, 0)]
    return []


def _check_snapshot(name: str, stored: bytes) -> None:
    decode_state(decode_snapshot(name, stored).state)


def _check_rescued(_: str, stored: bytes) -> None:
    rest = memoryview(stored)
    while rest:
        rest = rest[verify_batch(rest).batch_bytes :]


def _named(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name))


_JOURNAL_NAME = re.compile(r"[0-9]+\.journal")
_CHECKS: list[tuple[re.Pattern[str], Callable[[str, bytes], object]]] = [
    (_named(META_FILE), lambda _, stored: decode_identity(stored)),
    (_named(INVENTORY_FILE), lambda _, stored: decode_inventory(stored)),
    (_named(DELETED_TOPIC_FILE), lambda _, stored: decode_deleted(stored)),
    (_named(CLEAN_STOP_FILE), lambda _, stored: decode_clean_stop(stored)),
    (_named(LOG_START_FILE), lambda _, stored: decode_log_start(stored)),
    (_named(DAMAGE_FILE), lambda _, stored: decode_damage(stored)),
    (_named(PRODUCERS), lambda _, stored: decode_checkpoint(stored)),
    (_named(RESCUED), _check_rescued),
    (re.compile(r"[0-9]+-[0-9]+\.snapshot"), _check_snapshot),
]
_OTHERS = [_JOURNAL_NAME, SEGMENT_NAME, INDEX_NAME, *map(_named, METADATA_LOGS)]


def _is_known(name: str) -> bool:
    return any(other.fullmatch(name) for other in [*(name for name, _ in _CHECKS), *_OTHERS])
