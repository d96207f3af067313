"""The broker's data directory: who this disk is, the topics, and where partitions lie.

<root>/lock                                       held while a broker runs here
<root>/data/meta.json                             identity of the disk
<root>/data/clean-stop.json                       where the logs ended; gone while it runs
<root>/data/metadata/topics.json                  topics and partitions
<root>/data/journal/<n>.journal                   small appends (`storage.journal`)
<root>/data/spare/                                what a full disk is given (`storage.spare_files`)
<root>/data/trash/<topic id>/                     deleted topics (`storage.trash`)
<root>/data/<topic id>/topic.json                 marks a deletion (`storage.trash`)
<root>/data/<topic id>/<partition id>/
    <base offset>.log                             segments, `.idx` beside finished ones
    log-start.json                                when retention has moved it (`storage.log_trim`)
    producers                                     what they sent (`storage.producer_recovery`)
    journaled.batches                             out of the journal (`storage.rescued_tail`)
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from uuid import UUID, uuid4

import msgspec

from tailrace_broker.codec.metadata import (
    CleanStop,
    DiskIdentity,
    decode_clean_stop,
    decode_identity,
    decode_topics,
    encode_clean_stop,
    encode_identity,
    encode_topics,
)
from tailrace_broker.model.errors import (
    CorruptMetadataError,
    DataDirectoryInUseError,
    DiskFullError,
)
from tailrace_broker.model.topic import Topic
from tailrace_broker.storage.direct_file import (
    has_direct_io,
    sync_directory,
    translated_errors,
    write_file_atomically,
)
from tailrace_broker.storage.trash import Trash, topic_directories

FIRST_ORDINAL = 0
FIRST_REGISTRATION = 1


class Restart(NamedTuple):
    """How the boot before ended, by what its data may have lost.

    `kind`: "clean" (stopped by itself), "process" (killed, the kernel went on), "power" (another
    boot of the kernel), "disk" (a new data directory). `log_ends`: of a clean one, by topic and
    partition id; null: damaged.
    """

    kind: str
    log_ends: dict[UUID, list[int | None]]


class DataDirectory:
    """An open data directory; one broker at a time."""

    def __init__(self, root: Path) -> None:
        """Open or found it. DataDirectoryInUseError, CorruptMetadataError, StorageFailedError."""
        root = root.resolve()
        self.path = root / "data"
        with translated_errors(root):
            self._topics_path.parent.mkdir(parents=True, exist_ok=True)
            self._lock_fd = _lock(root)
            for directory in self._topics_path.parents:
                with suppress(PermissionError):  # one that is not ours was there before us
                    sync_directory(directory)
            self.is_direct = has_direct_io(self.path)
        self.identity = self._load_identity()
        self.trash = Trash(self.path)

    def begin_boot(self) -> Restart:
        """Count this start; durable on return, unless a full disk has no spare file left either."""
        restart = self._restart()
        boot, kernel_boot_id = self.identity.boot + 1, _kernel_boot_id()
        identity = msgspec.structs.replace(self.identity, boot=boot, kernel_boot_id=kernel_boot_id)
        with suppress(DiskFullError):
            self.trash.spares.write(self._identity_path, encode_identity(identity))
            self.identity = identity
        with translated_errors(self._clean_stop_path):
            self._clean_stop_path.unlink(missing_ok=True)
            sync_directory(self.path)
        return restart

    def end_boot(self, log_ends: dict[UUID, list[int | None]]) -> None:
        """A clean stop: all logs are durable up to these ends."""
        stop = CleanStop(self.identity.boot, log_ends)
        write_file_atomically(self._clean_stop_path, encode_clean_stop(stop))

    def load_topics(self) -> list[Topic]:
        """The topics; none in a new directory. CorruptMetadataError."""
        path = self._topics_path
        with translated_errors(path):
            if path.exists():
                return decode_topics(path.read_bytes())
        for orphan in topic_directories(self.path):
            raise CorruptMetadataError(
                f"{path} is missing, but {orphan} holds a topic's data; restore the file"
            )
        return []

    def save_topics(self, topics: list[Topic], *, may_use_spare: bool = True) -> None:
        """Replace the topics; durable on return. With a spare file a full disk takes them, too."""
        write = self.trash.spares.write if may_use_spare else write_file_atomically
        write(self._topics_path, encode_topics(topics))

    def partition_path(self, topic_id: UUID, partition: int) -> Path:
        """Directory of a partition's segments; made with its first record."""
        return self.path / str(topic_id) / str(partition)

    def disk_bytes(self) -> tuple[int, int] | None:
        """Used, and all, of the file system, as df tells them; None: it does not answer.

        Blocks; call it in an I/O thread.
        """
        try:
            found = os.statvfs(self.path)
        except OSError:
            return None
        return (found.f_blocks - found.f_bfree) * found.f_frsize, found.f_blocks * found.f_frsize

    def close(self) -> None:
        """Let another broker have it."""
        os.close(self._lock_fd)

    def _restart(self) -> Restart:
        """What came before. A stop marker that cannot be read counts as none."""
        if not self.identity.boot:
            return Restart("disk", {})
        with suppress(FileNotFoundError, CorruptMetadataError):
            stop = decode_clean_stop(self._clean_stop_path.read_bytes())
            if stop.boot == self.identity.boot:
                return Restart("clean", stop.log_ends)
        is_same_kernel = self.identity.kernel_boot_id == _kernel_boot_id() != ""
        return Restart("process" if is_same_kernel else "power", {})

    @property
    def _clean_stop_path(self) -> Path:
        return self.path / "clean-stop.json"

    @property
    def _identity_path(self) -> Path:
        return self.path / "meta.json"

    @property
    def _topics_path(self) -> Path:
        return self.path / "metadata" / "topics.json"

    def _load_identity(self) -> DiskIdentity:
        with translated_errors(self._identity_path):
            if self._identity_path.exists():
                return decode_identity(self._identity_path.read_bytes())
            return self._found()

    def _found(self) -> DiskIdentity:
        path = self._identity_path
        if self._topics_path.exists() or topic_directories(self.path):
            raise CorruptMetadataError(
                f"{path} is missing, but the directory holds data; restore the file"
            )
        identity = DiskIdentity(uuid4(), FIRST_ORDINAL, uuid4(), FIRST_REGISTRATION, boot=0)
        write_file_atomically(path, encode_identity(identity))
        return identity


def _kernel_boot_id() -> str:
    """Changes with every boot of the kernel (proc(5)); empty where it is not told."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _lock(root: Path) -> int:
    """Hold the directory until the process ends, whatever ends it."""
    fd = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise DataDirectoryInUseError(
            f"{root} is in use by another broker; stop it, or choose another data directory"
        ) from error
    return fd
