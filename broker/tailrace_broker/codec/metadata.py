"""The broker's small JSON files.

`meta.json`: who this disk is, and which starts of it the ring may not know yet. `topic.json` beside
the partitions of a deleted topic: what it was, and when it was deleted. `clean-stop.json`: where
the logs ended at a clean stop. `inventory.json`: which files of the journal and which partitions
must be on the disk. `log-start.json` beside a partition's segments: where retention has
moved its log start. `metadata/topics.json`: the topics of a disk of an earlier version, which is no
longer written.
"""

from typing import TypeVar
from uuid import UUID

import msgspec

from tailrace_broker.model.agreement import DiskId
from tailrace_broker.model.errors import CallerError, CorruptMetadataError
from tailrace_broker.model.ring_state import Start
from tailrace_broker.model.topic import Topic

FORMAT_VERSION = 1
# Of `meta.json`. In the first a disk was its own cluster, and no ring knew of its starts. From the
# third on `inventory.json` is beside it.
IDENTITY_VERSION = 3
VERSION_WITHOUT_INVENTORY = 2
# In a file of before there was a count: all starts had the same epoch.
BOOT_DEFAULT = 1

T = TypeVar("T")


class DiskIdentity(msgspec.Struct, frozen=True, rename="camel"):
    """`meta.json`: founded when the data directory is new; `boot` counts its starts.

    `cluster_id`: None until the disk belongs to a ring. `starts`: since the last one that is known
    to be registered, that one first.
    """

    cluster_id: UUID | None
    ordinal: int
    incarnation: UUID
    boot: int = BOOT_DEFAULT
    kernel_boot_id: str = ""  # of the kernel that this boot runs on, where it tells one
    starts: tuple[Start, ...] = ()
    version: int = IDENTITY_VERSION

    @property
    def disk(self) -> DiskId:
        """Who votes by it."""
        return DiskId(self.ordinal, self.incarnation)


class CleanStop(msgspec.Struct, frozen=True, rename="camel"):
    """`clean-stop.json`: written after the last flush of a boot, removed before the next.

    By topic and partition id; an end of null: the log is damaged, or another broker's.
    """

    boot: int
    log_ends: dict[UUID, list[int | None]]
    first_offsets: dict[UUID, list[int]] = {}
    version: int = FORMAT_VERSION


class KnownFiles(msgspec.Struct, frozen=True, rename="camel"):
    """`inventory.json`: what must be on the disk; partitions by topic id, in their order.

    `newest_segments`: by topic id and partition the base offset of the last segment.
    """

    journal_files: tuple[str, ...] = ()
    partitions: dict[UUID, list[int]] = {}
    newest_segments: dict[UUID, dict[int, int]] = {}
    version: int = FORMAT_VERSION


class LogStart(msgspec.Struct, frozen=True, rename="camel"):
    """`log-start.json`, with what the first batch from there on follows."""

    log_start: int
    epoch_before: int
    append_time_before_us: int
    version: int = FORMAT_VERSION


class DeletedTopic(msgspec.Struct, frozen=True, rename="camel"):
    """`topic.json`."""

    topic: Topic
    deleted_us: int
    version: int = FORMAT_VERSION


class _Topics(msgspec.Struct, frozen=True, rename="camel"):
    topics: list[Topic]
    version: int = FORMAT_VERSION


def encode_clean_stop(stop: CleanStop) -> bytes:
    """`clean-stop.json`."""
    return msgspec.json.encode(stop) + b"\n"


def decode_clean_stop(stored: bytes) -> CleanStop:
    """Read `clean-stop.json`; CorruptMetadataError."""
    stop = _decode(stored, CleanStop, "clean-stop.json")
    _check_version(stop.version, "clean-stop.json")
    return stop


def encode_inventory(known: KnownFiles) -> bytes:
    """`inventory.json`."""
    return msgspec.json.encode(known) + b"\n"


def decode_inventory(stored: bytes) -> KnownFiles:
    """Read `inventory.json`; CorruptMetadataError."""
    known = _decode(stored, KnownFiles, "inventory.json")
    _check_version(known.version, "inventory.json")
    return known


def encode_log_start(start: LogStart) -> bytes:
    """`log-start.json`."""
    return msgspec.json.encode(start) + b"\n"


def decode_log_start(stored: bytes) -> LogStart:
    """Read `log-start.json`; CorruptMetadataError."""
    start = _decode(stored, LogStart, "log-start.json")
    _check_version(start.version, "log-start.json")
    return start


def encode_identity(identity: DiskIdentity) -> bytes:
    """`meta.json`, in the present version."""
    present = msgspec.structs.replace(identity, version=IDENTITY_VERSION)
    return msgspec.json.format(msgspec.json.encode(present)) + b"\n"


def decode_identity(stored: bytes) -> DiskIdentity:
    """Read `meta.json`, of this version or an earlier one; CorruptMetadataError."""
    identity = _decode(stored, DiskIdentity, "meta.json")
    if identity.version == FORMAT_VERSION:
        return msgspec.structs.replace(identity, cluster_id=None)
    if identity.version != VERSION_WITHOUT_INVENTORY:
        _check_version(identity.version, "meta.json", IDENTITY_VERSION)
    return identity


def decode_topics(stored: bytes) -> list[Topic]:
    """Read `metadata/topics.json`; CorruptMetadataError."""
    file = _decode(stored, _Topics, "metadata/topics.json")
    _check_version(file.version, "metadata/topics.json")
    return file.topics


def encode_deleted(deleted: DeletedTopic) -> bytes:
    """`topic.json`."""
    return msgspec.json.format(msgspec.json.encode(deleted)) + b"\n"


def decode_deleted(stored: bytes) -> DeletedTopic:
    """Read `topic.json`; CorruptMetadataError."""
    deleted = _decode(stored, DeletedTopic, "topic.json")
    _check_version(deleted.version, "topic.json")
    return deleted


def _check_version(version: int, name: str, known: int = FORMAT_VERSION) -> None:
    if version != known:
        raise CorruptMetadataError(f"{name}: format version {version}; this broker reads {known}")


def _decode(stored: bytes, kind: type[T], name: str) -> T:
    try:
        return msgspec.json.decode(stored, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, CallerError) as error:
        raise CorruptMetadataError(f"{name} cannot be read: {error}; restore the file") from error
