"""The broker's data directory: who this disk is, how its starts ended, where partitions lie.

<root>/lock                                       held while a broker runs here
<root>/data/meta.json                             identity of the disk
<root>/data/inventory.json                        what must be there (`storage.inventory`)
<root>/data/clean-stop.json                       where the logs ended; gone while it runs
<root>/data/metadata/                             the ring's metadata (`storage/metadata`)
<root>/data/journal/<n>.journal                   small appends (`storage.journal`)
<root>/data/spare/                                what a full disk is given (`storage.spare_files`)
<root>/data/<topic id>/<partition>.damaged/       set aside (`storage.log.damaged_logs`)
<root>/data/trash/<topic id>/                     deleted topics (`storage.trash`)
<root>/data/<topic id>/topic.json                 marks a deletion (`storage.trash`)
<root>/data/<topic id>/<partition id>/
    <base offset>.log                             segments, `.idx` beside finished ones
    log-start.json                                when retention has moved it (`storage.log_trim`)
    <end offset>.cut                              while it is cut there (`storage.segments.cut`)
    producers                                     what they sent (`storage.producer_recovery`)
    journaled.batches                             out of the journal (`storage.rescued_tail`)
"""

import fcntl
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from uuid import UUID, uuid4

import msgspec
import structlog

from tailrace.wire import CLEAN_STOP_FILE, INVENTORY_FILE, META_FILE
from tailrace_broker.codec.metadata import (
    CleanStop,
    DiskIdentity,
    KnownFiles,
    decode_clean_stop,
    decode_identity,
    decode_inventory,
    encode_clean_stop,
    encode_identity,
    encode_inventory,
)
from tailrace_broker.model.errors import (
    CorruptMetadataError,
    DataDirectoryInUseError,
    DiskFullError,
    InvalidSettingError,
    TailraceError,
)
from tailrace_broker.model.ring_state import LOSSES, Loss, Start
from tailrace_broker.storage.files.direct_file import (
    has_direct_io,
    sync_directory,
    translated_errors,
    write_file_atomically,
)
from tailrace_broker.storage.files.inventory import Inventory
from tailrace_broker.storage.journal.presence import check_journal
from tailrace_broker.storage.log.damaged_logs import DamagedLogs
from tailrace_broker.storage.trash import Trash, topic_directories

# Of starts that no ring has registered; more only come when a broker fails again and again.
STARTS_MAX = 256
# In the directory of a disk whose broker has left the ring; and where its data goes.
RETIRED_MARK = "retired"
RETIRED_DIRECTORY = "retired"

_log = structlog.get_logger()


class PreviousEnd(NamedTuple):
    """How the boot before ended, by what its data may have lost.

    `kind`: "clean" (stopped cleanly), "process" (killed, the kernel went on), "power" (another
    boot of the kernel), "disk" (a new data directory). `log_ends`: of a clean one, by topic and
    partition id; null: damaged, or another broker's.
    """

    kind: Loss
    log_ends: dict[UUID, list[int | None]]


class DataDirectory:
    """An open data directory; one broker at a time."""

    def __init__(self, root: Path, *, ordinal: int = 0) -> None:
        """Open or found it, for the broker of this ordinal.

        DataDirectoryInUseError, InvalidSettingError, CorruptMetadataError, StorageFailedError.
        """
        root = root.resolve()
        self.path = root / "data"
        self.metadata_path = self.path / "metadata"
        with translated_errors(root):
            root.mkdir(parents=True, exist_ok=True)
            self._lock_fd = _lock(root)
            _set_retired_aside(self.path)
            self.metadata_path.mkdir(parents=True, exist_ok=True)
            for directory in (self.metadata_path, *self.metadata_path.parents):
                with suppress(PermissionError):  # one that is not ours was there before us
                    sync_directory(directory)
            self.is_direct = has_direct_io(self.path)
        try:
            self.identity = self._load_identity(ordinal)
            self.inventory = self._load_inventory()
        except TailraceError:
            self.close()
            raise
        self.damaged = DamagedLogs(self.partition_path, self.inventory)
        self.trash = Trash(self.path, self.inventory.forget_topic)

    def mark_retired(self) -> None:
        """The broker has left the ring with this disk: the next start begins with an empty one.

        StorageFailedError, DiskFullError.
        """
        with translated_errors(self.path):
            (self.path / RETIRED_MARK).touch()
            sync_directory(self.path)

    def begin_boot(self) -> PreviousEnd:
        """Count this start; durable on return. DiskFullError: not even a spare file was left."""
        restart = restart_of(self.path, self.identity)
        self._save_identity(
            msgspec.structs.replace(
                self.identity,
                boot=self.identity.boot + 1,
                kernel_boot_id=_kernel_boot_id(),
                starts=_bounded((*self.identity.starts, Start(uuid4(), restart.kind))),
            )
        )
        with translated_errors(self._clean_stop_path):
            self._clean_stop_path.unlink(missing_ok=True)
            sync_directory(self.path)
        return restart

    def keep_starts_from(self, start: UUID) -> None:
        """This one is registered: what came before it is of no interest any more.

        On a full disk they stay: no spare file is spent on that.
        """
        starts = self.identity.starts
        known = next((index for index, each in enumerate(starts) if each.id == start), 0)
        if known:
            identity = msgspec.structs.replace(self.identity, starts=starts[known:])
            with suppress(DiskFullError):
                write_file_atomically(self._identity_path, encode_identity(identity))
                self.identity = identity

    @property
    def has_lost_power(self) -> bool:
        """Since the last start that the ring knows, whose logs were recovered."""
        return has_lost_power(self.identity.starts)

    def belong_to(self, cluster_id: UUID) -> None:
        """The disk belongs to this ring from now on.

        CorruptMetadataError: it belongs to a different one.
        """
        known = self.identity.cluster_id
        if known is None:
            self._save_identity(msgspec.structs.replace(self.identity, cluster_id=cluster_id))
        elif known != cluster_id:
            raise CorruptMetadataError(
                f"{self._identity_path} says that this disk belongs to the ring {known}, but "
                f"{self.metadata_path} holds metadata of the ring {cluster_id}; restore the files"
            )

    def end_boot(self, log_ends: dict[UUID, list[int | None]]) -> None:
        """A clean stop: all logs are durable up to these ends."""
        stop = CleanStop(self.identity.boot, log_ends)
        write_file_atomically(self._clean_stop_path, encode_clean_stop(stop))

    def check_metadata(self) -> None:
        """CorruptMetadataError when data has lost what says whose it is."""
        check_metadata(self.path, self.identity)

    def check_journal(self) -> None:
        """CorruptMetadataError when a file is missing that may have held events."""
        boot = self.identity.boot
        is_clean = restart_of(self.path, self.identity).kind == "clean"
        check_journal(self.path / "journal", self.inventory, boot=boot, is_clean=is_clean)

    def partition_path(self, topic_id: UUID, partition: int) -> Path:
        """Directory of a partition's segments; made with its first record."""
        return self.path / str(topic_id) / str(partition)

    def disk_bytes(self) -> tuple[int, int] | None:
        """Used, and all, of the file system, as df reports them; None: it does not answer.

        Blocks; call it in an I/O thread.
        """
        try:
            disk = os.statvfs(self.path)
        except OSError:
            return None
        return (disk.f_blocks - disk.f_bfree) * disk.f_frsize, disk.f_blocks * disk.f_frsize

    def close(self) -> None:
        """Let another broker have it."""
        os.close(self._lock_fd)

    @property
    def _clean_stop_path(self) -> Path:
        return self.path / CLEAN_STOP_FILE

    @property
    def _identity_path(self) -> Path:
        return self.path / META_FILE

    def _load_identity(self, ordinal: int) -> DiskIdentity:
        identity = load_identity(self.path) or self._found(ordinal)
        if identity.ordinal != ordinal:
            raise InvalidSettingError(
                f"TAILRACE_ORDINAL: {self.path} is the disk of broker {identity.ordinal}, not of "
                f"{ordinal}; give each broker its own data directory"
            )
        return identity

    def _load_inventory(self) -> Inventory:
        return Inventory(self.path / INVENTORY_FILE, load_inventory(self.path))

    def _found(self, ordinal: int) -> DiskIdentity:
        write_file_atomically(self.path / INVENTORY_FILE, encode_inventory(KnownFiles(())))
        identity = DiskIdentity(None, ordinal, uuid4(), boot=0, kernel_boot_id="", starts=())
        write_file_atomically(self._identity_path, encode_identity(identity))
        return identity

    def _save_identity(self, identity: DiskIdentity) -> None:
        """Save the identity. DiskFullError, StorageFailedError."""
        self.trash.spares.write(self._identity_path, encode_identity(identity))
        self.identity = identity


def load_identity(data: Path) -> DiskIdentity | None:
    """Return whose disk it is, by `meta.json`; None is a new one.

    CorruptMetadataError, StorageFailedError.
    """
    path, journal = data / META_FILE, data / "journal"
    remedy = (
        f"restore the file from a copy, or move the data away: mv {data} {data}.lost; the broker "
        "then begins again, empty"
    )
    with translated_errors(path):
        if path.exists():
            return decode_identity(path.read_bytes(), str(path), remedy)
        metadata = data / "metadata"
        has_data = any(
            directory.exists() and any(directory.iterdir()) for directory in (metadata, journal)
        )
    if has_data or topic_directories(data):
        raise CorruptMetadataError(f"{path} is missing, but the directory holds data; {remedy}")
    return None


def load_inventory(data: Path) -> KnownFiles:
    """Return what must be there, by `inventory.json`. CorruptMetadataError, StorageFailedError."""
    path = data / INVENTORY_FILE
    remedy = (
        "restore it from a copy, or make a new one, which can name nothing else that is missing: "
        f"echo '{{\"version\":1}}' > {path}"
    )
    with translated_errors(path):
        if path.exists():
            return decode_inventory(path.read_bytes(), str(path), remedy)
    raise CorruptMetadataError(f"{path} is missing; {remedy}")


def restart_of(data: Path, identity: DiskIdentity) -> PreviousEnd:
    """Return how the previous process ended. A stop marker that cannot be read counts as none."""
    if not identity.boot:
        return PreviousEnd("disk", {})
    with suppress(FileNotFoundError, CorruptMetadataError):
        stop = decode_clean_stop((data / CLEAN_STOP_FILE).read_bytes())
        if stop.boot == identity.boot:
            return PreviousEnd("clean", stop.log_ends)
    is_same_kernel = identity.kernel_boot_id == _kernel_boot_id() != ""
    return PreviousEnd("process" if is_same_kernel else "power", {})


def has_lost_power(starts: Sequence[Start]) -> bool:
    """Whether the disk lost power since the first of these starts, whose logs were recovered."""
    return any(start.loss not in ("clean", "process") for start in starts[1:])


def check_metadata(data: Path, identity: DiskIdentity) -> None:
    """CorruptMetadataError when data has lost what says whose it is."""
    metadata = data / "metadata"
    if any(metadata.glob("*.snapshot")):
        return
    if identity.cluster_id is not None:
        raise CorruptMetadataError(
            f"{metadata} has lost committed metadata, a .snapshot file; restore "
            "its files, or move the data directory away: the broker then begins again"
        )
    for orphan in topic_directories(data):
        raise CorruptMetadataError(
            f"{metadata} is empty, but {orphan} holds a topic's data; restore its files"
        )


def _bounded(starts: tuple[Start, ...]) -> tuple[Start, ...]:
    """The first, which the ring most likely knows, and the latest; none of the losses is lost."""
    if len(starts) <= STARTS_MAX:
        return starts
    known, dropped, oldest, *later = starts
    worst = max(dropped.loss, oldest.loss, key=LOSSES.index)
    return (known, Start(oldest.id, worst), *later)


def _kernel_boot_id() -> str:
    """Changes with every boot of the kernel (proc(5)); empty where it is unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _set_retired_aside(path: Path) -> None:
    """To a folder beside, in place of what was there before."""
    if not (path / RETIRED_MARK).exists():
        return
    aside = path.with_name(RETIRED_DIRECTORY)
    if aside.exists():
        shutil.rmtree(aside)
    path.rename(aside)
    sync_directory(path.parent)
    _log.warning("data.retired", moved_to=str(aside), reason="the broker left with this disk")


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
