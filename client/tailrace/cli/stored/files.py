"""What is wrong with the files below a directory, and which of them tell what of others.

Reads only. Beside a running broker what is being written just then is no finding: a second look
has to find the same.
"""

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from tailrace.cli.stored.damage_files import parse_damage, read_damage
from tailrace.cli.stored.journals import journal_findings
from tailrace.cli.stored.logs import INDEX_NAME, SEGMENT_NAME, Expected, Finding, log_findings
from tailrace.cli.stored.missing_files import missing_files
from tailrace.cli.stored.segments import BAD, Piece, pieces, verdict
from tailrace.errors import CorruptBatchError
from tailrace.local.broker import is_in_use
from tailrace.wire import (
    CLEAN_STOP_FILE,
    DAMAGE_FILE,
    DELETED_TOPIC_FILE,
    INVENTORY_FILE,
    LOG_START_FILE,
    META_FILE,
    PURGED_SUFFIX,
    TRASH,
    BatchHeader,
)

NO_EPOCH = 0  # of the batch before a partition's first
RESCUED = "journaled.batches"
TOKEN_MIN, TOKEN_END = -(2**63), 2**63

SNAPSHOT_MAGIC = b"TRLS"
SNAPSHOT_CRC_BYTES = 4
SNAPSHOT_BYTES_MIN = 24  # head and end
# What a start of a disk may follow on.
LOSSES = ("clean", "process", "power", "disk")

# Topic id and partition.
LogKey = tuple[UUID, int]

Document = dict[str, Any]


class Report(NamedTuple):
    """What a check found at one broker, or in a folder with some of its files."""

    directory: Path
    file_count: int
    size_bytes: int
    findings: list[Finding]

    @property
    def bad_count(self) -> int:
        """Findings that are damage."""
        return sum(each.is_bad for each in self.findings)


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
    check = _Check(is_live=is_in_use(home))
    files = _Files(directory, without)
    for name, find in _FINDERS.items():
        for path in files.named(name):
            check.count(path)
            check.add(partial(find, path))
    journals = files.named(_JOURNAL_NAME)
    for path in journals:
        check.count(path)
    journaled: list[BatchHeader] = []

    def check_journals() -> list[Finding]:
        nonlocal journaled
        findings, journaled = journal_findings(journals)
        return findings

    check.add(check_journals)
    if home != directory and not check.is_live:
        _, journaled = journal_findings(_Files(home / "data").named(_JOURNAL_NAME))
    expected = {} if check.is_live else _expected_logs(home, journaled)
    logs = files.named(SEGMENT_NAME) + files.named(INDEX_NAME)
    known_paths = {home / "data" / str(topic_id) / str(number) for topic_id, number in expected}
    below = {path for path in known_paths if path.is_relative_to(directory)}
    for path in sorted({path.parent for path in logs} | below):
        key = _log_key(path)
        is_deleted = path.parent.parent.name == TRASH
        known = expected.get(key, Expected()) if key and not is_deleted else Expected()
        check.add(partial(log_findings, path, _with_own_files(path, known), check.count))
    reported = {each.file for each in check.findings}

    def find_missing() -> list[Finding]:
        return [
            each
            for each in _missing_of(home)
            if each.file.is_relative_to(directory) and each.file not in reported
        ]

    check.add(find_missing)
    return Report(directory, len(check.sizes), sum(check.sizes.values()), check.findings)


class _Files:
    """Paths below a directory, without those below some others, and those being removed."""

    def __init__(self, directory: Path, without: Sequence[Path] = ()) -> None:
        self._paths = [
            path
            for path in sorted(directory.rglob("*"))
            if not any(path.is_relative_to(other) for other in without)
            and not any(part.endswith(PURGED_SUFFIX) for part in path.relative_to(directory).parts)
        ]

    def named(self, name: re.Pattern[str]) -> list[Path]:
        """Those with such a name."""
        return [path for path in self._paths if name.fullmatch(path.name)]


class _Check:
    """Counts files, and collects the findings in them."""

    def __init__(self, *, is_live: bool) -> None:
        """`is_live`: a broker runs there."""
        self.is_live = is_live
        self.sizes: dict[Path, int] = {}
        self.findings: list[Finding] = []

    def count(self, path: Path) -> None:
        """Count a file that is about to be read."""
        with self._unless_gone():
            self.sizes[path] = path.stat().st_size

    def add(self, find: Callable[[], list[Finding]]) -> None:
        """Add findings. Beside a running broker a torn write is none: it is found once only."""
        with self._unless_gone():
            found = find()
            if found and self.is_live:
                found = [each for each in find() if each.is_bad and each in found]
            self.findings += found

    @contextmanager
    def _unless_gone(self) -> Iterator[None]:
        """Retention and deletions of a running broker take files away."""
        try:
            yield
        except FileNotFoundError:
            if not self.is_live:
                raise


def _broker_of(directory: Path) -> Path:
    """The broker's directory that this one is or lies in; itself when it is a broker's nowhere."""
    above = (directory, *directory.absolute().parents)
    return next(filter(_is_broker, above), directory)


def _is_broker(directory: Path) -> bool:
    data = directory / "data"
    return data.is_dir() and any(each.is_file() for each in (directory / "lock", data / META_FILE))


def _missing_of(home: Path) -> list[Finding]:
    data = home / "data"
    names = {"meta": META_FILE, "stop": CLEAN_STOP_FILE, "inventory": INVENTORY_FILE}
    return missing_files(data, **{key: _read_json(data / name) for key, name in names.items()})


def _expected_logs(home: Path, headers: Iterable[BatchHeader]) -> dict[LogKey, Expected]:
    """What a stopped broker's other files tell of its logs; those that cannot be read: nothing.

    `headers`: of the batches in its journal.
    """
    ends: dict[LogKey, int] = {}
    stop = _read_json(home / "data" / CLEAN_STOP_FILE)
    for topic_id, log_ends in stop.get("logEnds", {}).items():
        for partition, end in enumerate(log_ends):
            ends[UUID(topic_id), partition] = end or 0
    journaled: dict[LogKey, list[BatchHeader]] = defaultdict(list)
    for header in headers:
        journaled[UUID(bytes=header.topic_id), header.partition].append(header)
    firsts = {
        (UUID(topic_id), partition): offset
        for topic_id, offsets in stop.get("firstOffsets", {}).items()
        for partition, offset in enumerate(offsets)
    }
    # Where a log begins only a clean stop tells: it need not be 0.
    return {
        key: Expected(firsts.get(key, 0), NO_EPOCH, ends[key], journaled[key])
        if key in ends
        else Expected(journaled=journaled[key])
        for key in [*ends, *journaled]
    }


def _with_own_files(directory: Path, expected: Expected) -> Expected:
    """Also what lies beside the segments tells: where retention has moved the log start, and what
    the journal held of a log that was damaged.
    """
    start = _read_json(directory / LOG_START_FILE)
    if start:
        expected = expected._replace(
            first_offset=start["logStart"], epoch_before=start["epochBefore"]
        )
    recorded = read_damage(directory)
    if recorded is not None:
        expected = expected._replace(
            end_offset=max(expected.end_offset, recorded.proven_end),
            losses=[each[:2] for each in recorded.losses],
        )
    rescued = [piece.header for piece in _batches_in(directory / RESCUED) if piece.header]
    return expected._replace(journaled=[*expected.journaled, *rescued])


def _damage_findings(path: Path) -> list[Finding]:
    try:
        parse_damage(path.read_bytes())
    except CorruptBatchError as error:
        return [Finding(path, 0, f"is {error}; restore it from a copy")]
    return []


def _rescued_findings(path: Path) -> list[Finding]:
    text = "no batch that matches its checksum"
    return [
        Finding(path, piece.position, text) for piece in _batches_in(path) if piece.checksum == BAD
    ]


def _snapshot_findings(path: Path) -> list[Finding]:
    """That what the ring agreed on is whole: a CRC of all that is before it ends the file."""
    stored = path.read_bytes()
    is_whole = stored.startswith(SNAPSHOT_MAGIC) and len(stored) >= SNAPSHOT_BYTES_MIN
    crc = int.from_bytes(stored[-SNAPSHOT_CRC_BYTES:], "little")
    if is_whole and verdict(stored[:-SNAPSHOT_CRC_BYTES], crc) != BAD:
        return []
    return [Finding(path, 0, "does not match its checksum")]


def _batches_in(path: Path) -> list[Piece]:
    """Of a file that is batches back to back; none when there is no such file."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        return list(pieces(file, os.fstat(file.fileno()).st_size))
    return []


def _log_key(directory: Path) -> LogKey | None:
    """Of a partition's directory; None: it is another."""
    with suppress(ValueError):
        return UUID(directory.parent.name), int(directory.name)
    return None


def _read_json(path: Path) -> Document:
    """Empty when it cannot be read: `_json_findings` tells that."""
    return {} if not path.exists() or _json_findings(path) else json.loads(path.read_bytes())


def _json_findings(path: Path) -> list[Finding]:
    """That it is whole, has what it must have, and that the topics cover all tokens."""
    stored = path.read_bytes()
    try:
        document = json.loads(stored)
    except json.JSONDecodeError as error:
        return [Finding(path, error.pos, f"is not JSON: {error.msg}")]
    except UnicodeDecodeError as error:
        return [Finding(path, error.start, "is not UTF-8")]
    try:
        _JSON_CHECKS[path.name](document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return [Finding(path, 0, f"does not hold what it should: {error!r}")]
    return []


def _check_identity(document: Document) -> None:
    if document["clusterId"] is not None:
        UUID(document["clusterId"])
    UUID(document["incarnation"])
    for name in ("ordinal", "version"):
        _check_number(document[name])
    for start, loss in document.get("starts", []):
        UUID(start)
        if loss not in LOSSES:
            raise ValueError(f"{loss!r}")


def _check_inventory(document: Document) -> None:
    _check_number(document["version"])
    for name in document.get("journalFiles", ()):
        if not _JOURNAL_NAME.fullmatch(name):
            raise ValueError(f"{name!r}")
    for topic_id, newest in document.get("newestSegments", {}).items():
        UUID(topic_id)
        for partition, base_offset in newest.items():
            _check_number(int(partition))
            _check_number(base_offset)


def _check_deleted(document: Document) -> None:
    _check_number(document["version"])
    _check_number(document["deletedUs"])
    _check_topic(document["topic"])


def _check_topic(topic: Document) -> None:
    """Its partitions are dense, and those that are not sealed have each token once."""
    UUID(topic["topicId"])
    name, partitions = str(topic["name"]), topic["partitions"]
    if [each["partition"] for each in partitions] != list(range(len(partitions))):
        raise ValueError(f"the partitions of {name}")
    for each in partitions:
        _check_number(each["firstOffset"])
    unsealed = [each for each in partitions if each.get("sealedEnd") is None]
    bounds = sorted((each["tokenStart"], each["tokenEnd"]) for each in unsealed)
    if [TOKEN_MIN, *(end for _, end in bounds)] != [*(start for start, _ in bounds), TOKEN_END]:
        raise ValueError(f"the tokens of {name}")


def _check_stop(document: Document) -> None:
    _check_number(document["version"])
    for topic_id, ends in document["logEnds"].items():
        UUID(topic_id)
        for end in ends:
            _check_number(end or 0)
    for topic_id, offsets in document.get("firstOffsets", {}).items():
        UUID(topic_id)
        for offset in offsets:
            _check_number(offset)


def _check_start(document: Document) -> None:
    for name in ("version", "logStart", "epochBefore"):
        _check_number(document[name])


def _check_number(value: object) -> None:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r}")


_JSON_CHECKS: dict[str, Callable[[Document], None]] = {
    META_FILE: _check_identity,
    INVENTORY_FILE: _check_inventory,
    DELETED_TOPIC_FILE: _check_deleted,
    CLEAN_STOP_FILE: _check_stop,
    LOG_START_FILE: _check_start,
}
_JSON_NAME = re.compile("|".join(map(re.escape, _JSON_CHECKS)))
_SNAPSHOT_NAME = re.compile(r"[0-9]+-[0-9]+\.snapshot")
_JOURNAL_NAME = re.compile(r"[0-9]+\.journal")
_FINDERS: dict[re.Pattern[str], Callable[[Path], list[Finding]]] = {
    _JSON_NAME: _json_findings,
    re.compile(DAMAGE_FILE): _damage_findings,
    re.compile(re.escape(RESCUED)): _rescued_findings,
    _SNAPSHOT_NAME: _snapshot_findings,
}
