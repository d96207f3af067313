"""Where a broker's metadata records go on disk, and what is found there at a start.

Two files take turns. One *generation* begins with a frame at a file's start that holds everything
that is still needed on top of the snapshot it names; frames follow, one for each write. The next
generation begins in the other file, in one frame again: until that is durable the one before is
whole, and from then on nothing of it is needed. A generation begins

- when the file has no room: with what it held, without what has been superseded, on the same
  snapshot;
- when a compaction ends: its snapshot is durable before, and all that was kept since the
  compaction began has been kept in the old generation as well;
- when everything is replaced: the same, with nothing of what was before.

So recovery reads one generation, the newest of which there is a whole frame. One write is in flight
at a time. A frame that is not whole was never acknowledged when nothing whole of its generation
follows it, and is damage when something does. Damage to the very last frame looks like a torn
write.

No I/O here: the methods return what is to be done, in this order, each after the one before.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, assert_never

from tailrace.wire import METADATA_LOGS
from tailrace_broker.codec.metadata_log import (
    BLOCK_BYTES,
    Frame,
    damaged,
    decode_records,
    decode_snapshot,
    encode_frame,
    encode_record,
    encode_snapshot,
    frame_bytes,
    read_frames,
)
from tailrace_broker.model.agreement import (
    NOTHING,
    Block,
    BlockId,
    Commit,
    Head,
    Kept,
    Record,
    Reserved,
    Snapshot,
    Stored,
    Term,
)
from tailrace_broker.model.errors import StorageFailedError

LOG_BYTES = 4 * 1024 * 1024
SNAPSHOT_SUFFIX = ".snapshot"
# Of a snapshot that is being written.
TEMPORARY_SUFFIX = SNAPSHOT_SUFFIX + ".new"


@dataclass(frozen=True, slots=True)
class Reserve:
    """Extend a file with written zeros to this size; it and its name are durable when done."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Sync:
    """What is in a file is durable when done, whoever wrote it."""

    name: str


@dataclass(frozen=True, slots=True)
class Write:
    """Whole blocks within a reserved file; durable when done."""

    name: str
    position: int
    contents: bytes


@dataclass(frozen=True, slots=True)
class WriteSnapshot:
    """A file of these slices, under a name with `.new`, synced, renamed, the directory synced."""

    name: str
    slices: Iterable[bytes]


@dataclass(frozen=True, slots=True)
class Remove:
    """A file, if it is there; need not be durable."""

    name: str


FileAction = Reserve | Sync | Write | WriteSnapshot | Remove


class MetadataLog:
    """The log as it will be when all that was asked for is done. `recover` makes it."""

    def __init__(self, newest: "_Generation", *, log_bytes: int) -> None:
        assert log_bytes % BLOCK_BYTES == 0, log_bytes
        self._log_bytes = log_bytes
        self._generation = newest.generation
        self._index = newest.index
        self._sequence = newest.sequence
        self._position = newest.end
        self._snapshot_id = newest.snapshot_id
        self._held = _Held()
        # Since a compaction began: what its generation will begin with, and on which snapshot.
        self._next: _Next | None = None
        self._preparation: list[FileAction] = []

    @staticmethod
    def recover(
        files: Mapping[str, bytes], *, log_bytes: int = LOG_BYTES
    ) -> tuple[Kept, "MetadataLog"]:
        """Return the contents of the files (`owns`), and the log that goes on after `prepare`.

        CorruptMetadataError: what has been acknowledged is not all there.
        """
        newest = _newest_generation(files)
        log = MetadataLog(newest, log_bytes=log_bytes)
        snapshot = _find_snapshot(files, newest)
        name = METADATA_LOGS[newest.index]
        records = [record for frame in newest.frames for record in decode_records(name, frame)]
        log._held.add(records)
        log._prepare(files)
        return _kept(snapshot, records), log

    def prepare(self) -> list[FileAction]:
        """Return the actions that are due after `recover`, before its result is used."""
        actions, self._preparation = self._preparation, []
        return actions

    @property
    def snapshot_name(self) -> str | None:
        """The file of the snapshot in force."""
        return None if self._snapshot_id == NOTHING else snapshot_name(self._snapshot_id)

    @property
    def is_compacting(self) -> bool:
        """A compaction has begun and not ended."""
        return self._next is not None

    def keep(self, records: Sequence[Record]) -> list[FileAction]:
        """Put these behind what is there, all or none. StorageFailedError: there is no room."""
        encoded = self._held.add(records)
        if self._next is not None:
            self._next.held.add(records)
        size_bytes = frame_bytes(sum(map(len, encoded)))
        assert size_bytes <= self._log_bytes, size_bytes
        if self._position + size_bytes > self._log_bytes:
            return [self._begin_generation()]
        return [self._write(encoded)]

    def replace(self, snapshot: Snapshot, records: Sequence[Record]) -> list[FileAction]:
        """Put this in place of all that is there, in one instant; a compaction is given up.

        The records have the disk's term, since what is there no longer does. StorageFailedError.
        """
        assert any(isinstance(record, Term) for record in records)
        self._next = _Next(snapshot.id, _Held(records))
        slices = tuple(encode_snapshot(snapshot.id, snapshot.configuration, (snapshot.state,)))
        return [
            WriteSnapshot(snapshot_name(snapshot.id), slices),
            *self.end_compaction(snapshot.id),
        ]

    def begin_compaction(self, snapshot_id: BlockId, records: Sequence[Record]) -> list[FileAction]:
        """Keep two generations from now on: as before, and these records with all later ones.

        The blocks among the records have been kept before. What else they say is kept as well.
        """
        assert self._next is None, self._next
        assert any(isinstance(record, Term) for record in records)
        later = _Held(records)
        assert later.blocks.keys() <= self._held.blocks.keys()
        actions = self.keep([record for record in records if not isinstance(record, Stored)])
        self._next = _Next(snapshot_id, later)
        return actions

    def end_compaction(self, snapshot_id: BlockId) -> list[FileAction]:
        """Its snapshot is durable: what is before that goes, or, when all was replaced since, it.

        StorageFailedError: there is no room.
        """
        written, before = snapshot_name(snapshot_id), self.snapshot_name
        if self._next is None or self._next.snapshot_id != snapshot_id:
            return [] if written == before else [Remove(written)]
        self._snapshot_id, self._held = self._next
        self._next = None
        begun = self._begin_generation()
        return [begun] if before in {None, written} else [begun, Remove(str(before))]

    def _begin_generation(self) -> Write:
        """Begin a generation in the other file, with all that is held."""
        encoded = self._held.encoded()
        if frame_bytes(self._held.size_bytes) > self._log_bytes:
            raise StorageFailedError(
                "the metadata log is full, since no snapshot could be written: free space on the "
                "disk of the data directory"
            )
        self._generation += 1
        self._index = 1 - self._index
        self._position = 0
        return self._write(encoded)

    def _write(self, encoded: Sequence[bytes]) -> Write:
        self._sequence += 1
        contents = encode_frame(
            encoded,
            generation=self._generation,
            sequence=self._sequence,
            snapshot_id=self._snapshot_id,
        )
        position = self._position
        self._position += len(contents)
        assert self._position <= self._log_bytes, self._position
        return Write(METADATA_LOGS[self._index], position, contents)

    def _prepare(self, files: Mapping[str, bytes]) -> None:
        is_new = not self._generation
        # What a killed process wrote may have been found, and be lost with the next power failure.
        if not is_new:
            self._preparation.append(Sync(METADATA_LOGS[self._index]))
        self._preparation += [
            Reserve(name, self._log_bytes)
            for name in METADATA_LOGS
            if is_new or len(files[name]) < self._log_bytes
        ]
        if is_new:
            self._preparation.append(self._begin_generation())
        in_force = {*METADATA_LOGS, self.snapshot_name}
        self._preparation += [
            Remove(name) for name in sorted(files) if owns(name) and name not in in_force
        ]


def owns(name: str) -> bool:
    """Return whether this is a file of the log, among others in its directory."""
    return name in METADATA_LOGS or name.endswith((SNAPSHOT_SUFFIX, TEMPORARY_SUFFIX))


def snapshot_name(snapshot_id: BlockId) -> str:
    """The file of the snapshot of the state after this block."""
    return f"{snapshot_id.term}-{snapshot_id.height}{SNAPSHOT_SUFFIX}"


class _Held:
    """What counts of the records that were kept, encoded: all blocks, the last of the others."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.size_bytes = 0
        self.blocks: dict[BlockId, bytes] = {}
        self._last: dict[type[Record], bytes] = {}
        self.add(records)

    def add(self, records: Iterable[Record]) -> list[bytes]:
        """Returns them encoded, all of them."""
        all_encoded = []
        for record in records:
            encoded = encode_record(record)
            all_encoded.append(encoded)
            if isinstance(record, Stored):
                before = self.blocks.get(record.block.id, b"")
                self.blocks[record.block.id] = encoded
            else:
                before = self._last.get(type(record), b"")
                self._last[type(record)] = encoded
            self.size_bytes += len(encoded) - len(before)
        return all_encoded

    def encoded(self) -> list[bytes]:
        """Return the records in an order in which they may be kept again."""
        return [*self.blocks.values(), *self._last.values()]


class _Next(NamedTuple):
    snapshot_id: BlockId
    held: _Held


@dataclass(frozen=True, slots=True)
class _Generation:
    """As it was found; 0: there is none."""

    index: int = 1
    frames: tuple[Frame, ...] = ()
    generation: int = 0
    sequence: int = 0
    snapshot_id: BlockId = NOTHING
    end: int = 0


def _newest_generation(files: Mapping[str, bytes]) -> _Generation:
    """CorruptMetadataError when it is not whole, or nothing is left of it."""
    logs = [list(read_frames(name, files.get(name, b""))) for name in METADATA_LOGS]
    newest = max((frame.generation for frames in logs for frame in frames), default=0)
    if not newest:
        _check_is_new(files)
        return _Generation()
    for name in METADATA_LOGS:
        if name not in files:
            raise damaged(name, "it is missing")
    index = 0 if any(frame.generation == newest for frame in logs[0]) else 1
    frames = tuple(frame for frame in logs[index] if frame.generation == newest)
    position, sequence = 0, frames[0].sequence
    for frame in frames:
        if (frame.position, frame.sequence) != (position, sequence):
            raise damaged(METADATA_LOGS[index], f"what is at {position} was acknowledged, and lost")
        position, sequence = frame.end, sequence + 1
    snapshot_id = frames[0].snapshot_id
    return _Generation(index, frames, newest, sequence - 1, snapshot_id, position)


def _check_is_new(files: Mapping[str, bytes]) -> None:
    """There may be what a stop has left of a log before its first record, and nothing else."""
    for name, stored in files.items():
        # The first frame of all is empty: it takes one block of the first file.
        torn_bytes = frame_bytes(0) if name == METADATA_LOGS[0] else 0
        is_empty = stored.count(0, torn_bytes) == max(0, len(stored) - torn_bytes)
        if name.endswith(SNAPSHOT_SUFFIX) or (name in METADATA_LOGS and not is_empty):
            raise damaged(name, "the log has no whole frame, and was in use")


def _find_snapshot(files: Mapping[str, bytes], newest: _Generation) -> Snapshot | None:
    """The one on which a generation is based."""
    if newest.snapshot_id == NOTHING:
        return None
    name = snapshot_name(newest.snapshot_id)
    if name not in files:
        raise damaged(name, "it is missing")
    snapshot = decode_snapshot(name, files[name])
    if snapshot.id != newest.snapshot_id:
        raise damaged(name, "it belongs to a different one")
    return snapshot


def _kept(snapshot: Snapshot | None, records: Iterable[Record]) -> Kept:
    """Return the state of records on top of a snapshot."""
    term, reserved = Term(0), None
    head = commit = NOTHING if snapshot is None else snapshot.id
    blocks: dict[BlockId, Block] = {}
    for record in records:
        match record:
            case Stored(block):
                blocks[block.id] = block
            case Term():
                term = record
            case Head(block_id):
                head = block_id
            case Commit(block_id):
                commit = block_id
            case Reserved(bootstrap):
                reserved = bootstrap
            case _:
                assert_never(record)
    return Kept(term, snapshot, tuple(blocks.values()), head, commit, reserved)
