"""The broker's small JSON files.

`meta.json`: who this disk is, and which starts of it the ring may not know yet. `topic.json` beside
the partitions of a deleted topic: what it was, and when it was deleted. `clean-stop.json`: where
the logs ended at a clean stop. `inventory.json`: which files of the journal and which partitions
must be on the disk. `log-start.json` beside a partition's segments: its log start, once that was
moved.
"""

from typing import TypeVar
from uuid import UUID

import msgspec

from tailrace_broker.model.errors import CallerError, CorruptMetadataError
from tailrace_broker.model.ring_state import Start
from tailrace_broker.model.topic import Topic

FORMAT_VERSION = 1
IDENTITY_VERSION = 4  # of `meta.json`, and so of the data directory
LOG_START_VERSION = 2

RESTORE = "restore the file"

T = TypeVar("T")


class _Versioned(msgspec.Struct, frozen=True):
    version: int


class DiskIdentity(msgspec.Struct, frozen=True, rename="camel"):
    """`meta.json`: written when the data directory is new; `boot` counts its starts.

    `cluster_id`: None until the disk belongs to a ring. `kernel_boot_id`: of the kernel that this
    boot runs on, empty where there is none. `starts`: since the last one that is known to be
    registered, that one first.
    """

    cluster_id: UUID | None
    ordinal: int
    incarnation: UUID
    boot: int
    kernel_boot_id: str
    starts: tuple[Start, ...]
    version: int = IDENTITY_VERSION


class CleanStop(msgspec.Struct, frozen=True, rename="camel"):
    """`clean-stop.json`: written after the last flush of a boot, removed before the next.

    By topic and partition id; an end of null: the log is damaged, or another broker's.
    """

    boot: int
    log_ends: dict[UUID, list[int | None]]
    version: int = FORMAT_VERSION


class KnownFiles(msgspec.Struct, frozen=True, rename="camel"):
    """`inventory.json`: what must be on the disk.

    `journal_files`: None, nobody knows, since a person has made the file again. `newest_segments`:
    by topic id and partition the base offset of the last segment.
    """

    journal_files: tuple[str, ...] | None = None
    newest_segments: dict[UUID, dict[int, int]] = {}
    version: int = FORMAT_VERSION


class LogStart(msgspec.Struct, frozen=True, rename="camel"):
    """`log-start.json`: the log start, and the first segment that may hold something from there on.

    `epoch_before`, `append_time_before_us`: of what the first batch of that segment follows;
    `is_behind_damage`: its epoch is not known, and not above that of the first batch.
    """

    log_start: int
    first_segment: int
    epoch_before: int
    append_time_before_us: int
    is_behind_damage: bool = False
    version: int = LOG_START_VERSION

    def __post_init__(self) -> None:
        """Refuse a log that starts below its segments: no file has what it lacks."""
        if not 0 <= self.first_segment <= self.log_start:
            raise ValueError(f"firstSegment {self.first_segment} is not in [0, {self.log_start}]")


class DeletionMark(msgspec.Struct, frozen=True, rename="camel"):
    """`topic.json`."""

    topic: Topic
    deleted_us: int
    version: int = FORMAT_VERSION


def encode_clean_stop(stop: CleanStop) -> bytes:
    """Return the bytes of `clean-stop.json`."""
    return msgspec.json.encode(stop) + b"\n"


def decode_clean_stop(stored: bytes) -> CleanStop:
    """Read `clean-stop.json`; CorruptMetadataError."""
    return _decode(stored, CleanStop, "clean-stop.json")


def encode_inventory(known: KnownFiles) -> bytes:
    """Return the bytes of `inventory.json`."""
    return msgspec.json.encode(known) + b"\n"


def decode_inventory(
    stored: bytes, name: str = "inventory.json", remedy: str = RESTORE
) -> KnownFiles:
    """Read `inventory.json`; CorruptMetadataError, which says `remedy` of one that is damaged."""
    return _decode(stored, KnownFiles, name, remedy=remedy)


def encode_log_start(start: LogStart) -> bytes:
    """Return the bytes of `log-start.json`."""
    return msgspec.json.encode(start) + b"\n"


def decode_log_start(stored: bytes) -> LogStart:
    """Read `log-start.json`; CorruptMetadataError."""
    return _decode(stored, LogStart, "log-start.json", LOG_START_VERSION)


def encode_identity(identity: DiskIdentity) -> bytes:
    """Return the bytes of `meta.json`."""
    return msgspec.json.format(msgspec.json.encode(identity)) + b"\n"


def decode_identity(stored: bytes, name: str = "meta.json", remedy: str = RESTORE) -> DiskIdentity:
    """Read `meta.json`; CorruptMetadataError, which says `remedy` of one that is damaged."""
    return _decode(stored, DiskIdentity, name, IDENTITY_VERSION, remedy)


def encode_deleted(deleted: DeletionMark) -> bytes:
    """Return the bytes of `topic.json`."""
    return msgspec.json.format(msgspec.json.encode(deleted)) + b"\n"


def decode_deleted(stored: bytes) -> DeletionMark:
    """Read `topic.json`; CorruptMetadataError."""
    return _decode(stored, DeletionMark, "topic.json")


def _decode(
    stored: bytes,
    kind: type[T],
    name: str,
    known: int = FORMAT_VERSION,
    remedy: str = RESTORE,
) -> T:
    """CorruptMetadataError: it is damaged, or of another version, whose members may be others."""
    try:
        version = msgspec.json.decode(stored, type=_Versioned).version
        if version == known:
            return msgspec.json.decode(stored, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, CallerError) as error:
        raise CorruptMetadataError(f"{name} cannot be read: {error}; {remedy}") from error
    raise CorruptMetadataError(
        f"{name}: format version {version}; this broker reads {known}: start the version of "
        "Tailrace that wrote it, or give the broker an empty data directory"
    )
