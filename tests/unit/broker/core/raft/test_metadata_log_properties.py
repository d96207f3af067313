"""The metadata log on a disk that stops within any action: what was acknowledged is found again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailrace.wire import METADATA_LOGS
from tailrace_broker.codec.metadata_log import BLOCK_BYTES, encode_record, encode_snapshot
from tailrace_broker.core.raft.metadata_log import (
    FileAction,
    MetadataLog,
    Remove,
    Reserve,
    Sync,
    Write,
    WriteSnapshot,
    owns,
    snapshot_name,
)
from tailrace_broker.model.agreement import (
    NOTHING,
    Block,
    BlockId,
    Commit,
    Configuration,
    DiskId,
    Head,
    Kept,
    Record,
    Reserved,
    Snapshot,
    Stored,
    Term,
)

LOG_BYTES = 8 * BLOCK_BYTES
SECTOR_BYTES = 512
DISK_ID = DiskId(1, UUID(int=7))
VOTERS = Configuration((DISK_ID,))


class Disk:
    """Files as a process sees them, and as they are after a power failure."""

    def __init__(self) -> None:
        self.seen: dict[str, bytes] = {}
        self.durable: dict[str, bytes] = {}

    def do(self, action: FileAction) -> None:
        """All of it, durably."""
        match action:
            case Reserve(name, size_bytes):
                self._put(name, self.seen.get(name, b"").ljust(size_bytes, b"\0"))
            case Sync(name):
                self._put(name, self.seen[name])
            case Write(name, position, contents):
                self._put(name, written(self.seen[name], position, contents))
            case WriteSnapshot(name, slices):
                self._put(name, b"".join(slices))
            case Remove(name):
                self.seen.pop(name, None)  # its entry may come back

    def stop_within(self, action: FileAction, generator: Random) -> None:
        """Some of it is seen, and of that as much is durable as pleases the disk."""
        share = generator.choice((0.0, 0.5, 0.9, 1.0))
        for files in (self.seen, self.durable):
            match action:
                case Reserve(name, size_bytes):
                    files[name] = files.get(name, b"").ljust(int(share * size_bytes), b"\0")
                case Sync(name):
                    self.durable[name] = self.seen[name]
                case Write(name, position, contents):
                    if files is self.durable:
                        contents = self.seen[name][position : position + len(contents)]
                    contents = torn(files[name], position, contents, share, generator)
                    files[name] = written(files[name], position, contents)
                case WriteSnapshot(name, slices):
                    whole = b"".join(slices)
                    files[name + ".new"] = whole[: int(share * len(whole))]
                    if share == 1.0:
                        files[name] = files.pop(name + ".new")
                case Remove(name):
                    files.pop(name, None)
            share *= generator.choice((0.0, 0.5, 1.0))
        if generator.random() < 0.5:
            self.fail_power()

    def fail_power(self) -> None:
        """What is not durable is lost."""
        self.seen = dict(self.durable)

    def _put(self, name: str, contents: bytes) -> None:
        self.seen[name] = self.durable[name] = contents


def written(stored: bytes, position: int, contents: bytes) -> bytes:
    assert position % BLOCK_BYTES == len(contents) % BLOCK_BYTES == 0
    assert position + len(contents) <= len(stored)
    return stored[:position] + contents + stored[position + len(contents) :]


def torn(stored: bytes, position: int, contents: bytes, share: float, generator: Random) -> bytes:
    """The bytes there when some sectors of a write have arrived."""
    sectors = b""
    for start in range(0, len(contents), SECTOR_BYTES):
        source, offset = (contents, 0) if generator.random() < share else (stored, position)
        sectors += source[offset + start : offset + start + SECTOR_BYTES]
    return sectors


@dataclass
class Model:
    """What counts of all that was kept."""

    snapshot: Snapshot | None = None
    records: list[Record] = field(default_factory=list)

    def kept(self) -> Kept:
        def last(kind: type[Record], otherwise: Record) -> Record:
            return next(
                (record for record in self.records[::-1] if type(record) is kind), otherwise
            )

        base = self.snapshot.id if self.snapshot else NOTHING
        blocks = {
            record.block.id: record.block for record in self.records if isinstance(record, Stored)
        }
        term, head, commit, reserved = (
            last(Term, Term(0)),
            last(Head, Head(base)),
            last(Commit, Commit(base)),
            last(Reserved, Reserved(UUID(int=0))),
        )
        assert isinstance(term, Term)
        assert isinstance(head, Head)
        assert isinstance(commit, Commit)
        assert isinstance(reserved, Reserved)
        bootstrap = reserved.bootstrap if reserved.bootstrap.int else None
        return Kept(term, self.snapshot, tuple(blocks.values()), head.id, commit.id, bootstrap)

    def with_(self, records: Sequence[Record]) -> "Model":
        return Model(self.snapshot, [*self.records, *records])


class Broker:
    """Keeps, replaces and compacts on one disk, and starts again after each stop."""

    def __init__(self, generator: Random) -> None:
        self.disk = Disk()
        self.generator = generator
        self.model = Model()  # of what was acknowledged
        self.under_way: list[Model] = []  # at stops since the last acknowledgement
        self.later: Model | None = None  # what a compaction will leave
        self.height = 0
        self.log = self.start()

    def start(self) -> MetadataLog:
        """What was under way at a stop is there as a whole, or not at all.

        It may be there only after a later power failure: where a killed process tore a write, the
        disk had older bytes than the page cache.
        """
        self.later = None
        possible = [self.model, *self.under_way]
        while True:
            files = {name: stored for name, stored in self.disk.seen.items() if owns(name)}
            kept, log = MetadataLog.recover(files, log_bytes=LOG_BYTES)
            found = [model for model in possible if model.kept() == kept]
            assert found, (kept, [model.kept() for model in possible])
            if self.do(log.prepare(), stops=self.generator.random() < 0.3):
                self.model = found[-1]
                return log

    def do(self, actions: Sequence[FileAction], *, stops: bool) -> bool:
        """False: the disk stopped within one of them."""
        stop_at = self.generator.randrange(len(actions)) if stops and actions else len(actions)
        for action in actions[:stop_at]:
            self.disk.do(action)
        for action in actions[stop_at : stop_at + 1]:
            self.disk.stop_within(action, self.generator)
        return stop_at == len(actions)

    def change(self, actions: Sequence[FileAction], after: Model, *, stops: bool) -> None:
        """Do this; after a stop within it start again."""
        if self.do(actions, stops=stops):
            self.model = after
            self.under_way.clear()
        else:
            self.under_way.append(after)
            self.log = self.start()

    def keep(self, records: Sequence[Record], *, stops: bool) -> None:
        if sum(map(len, map(encode_record, records))) + 500 > LOG_BYTES - self.log._held.size_bytes:
            return  # a compaction is due
        actions = self.log.keep(records)
        if self.later is not None:
            self.later = self.later.with_(records)
        self.change(actions, self.model.with_(records), stops=stops)

    def replace(self, *, stops: bool) -> None:
        self.height += 1
        state = self.generator.randbytes(self.generator.randrange(1000))
        snapshot = Snapshot(BlockId(1, self.height), VOTERS, state)
        records = (Term(self.height, DISK_ID),)
        self.later = None
        actions = self.log.replace(snapshot, records)
        self.change(actions, Model(snapshot, list(records)), stops=stops)

    def begin_compaction(self, *, stops: bool) -> None:
        """On the newest block; the half of those before go, as if the others were not committed."""
        kept = self.model.kept()
        if self.log.is_compacting or not kept.blocks:
            return
        base = kept.blocks[-1].id
        rest = kept.blocks[len(kept.blocks) // 2 : -1]
        records: list[Record] = [kept.term, *map(Stored, rest), Head(base), Commit(base)]
        self.later = Model(Snapshot(base, VOTERS, b"state"), records)
        actions = self.log.begin_compaction(base, records)
        reported = self.model.with_(
            [record for record in records if not isinstance(record, Stored)]
        )
        self.change(actions, reported, stops=stops)

    def end_compaction(self, *, stops: bool) -> None:
        if self.later is None:
            return
        later = self.later
        assert later.snapshot is not None
        self.later = None
        slices = WriteSnapshot(
            snapshot_name(later.snapshot.id), (written_snapshot(later.snapshot),)
        )
        self.change([slices, *self.log.end_compaction(later.snapshot.id)], later, stops=stops)
        assert not self.log.is_compacting

    def block(self) -> Stored:
        self.height += 1
        size_bytes = self.generator.choice((0, 10, 10, 100, 4000, 9000))
        payload = self.generator.randbytes(size_bytes)
        return Stored(Block(BlockId(1, self.height), BlockId(1, self.height - 1), 0, payload))

    def records(self) -> list[Record]:
        made: list[Callable[[], Record]] = [
            self.block,
            lambda: Term(self.generator.randrange(9), DISK_ID),
            lambda: Head(BlockId(1, self.height)),
            lambda: Commit(BlockId(1, self.height)),
            lambda: Reserved(UUID(int=self.generator.randrange(1, 9))),
        ]
        return [self.generator.choice(made)() for _ in range(self.generator.randrange(4))]

    def live(self) -> None:
        """Do something; one in five times the disk stops within it."""
        stops = self.generator.random() < 0.2
        what = self.generator.choice("kkkkkkkkcerx")
        if what == "k":
            self.keep(self.records(), stops=stops)
        elif what == "c":
            self.begin_compaction(stops=stops)
        elif what == "e":
            self.end_compaction(stops=stops)
        elif what == "r" and self.generator.random() < 0.3:
            self.replace(stops=stops)
        elif what == "x":
            self.disk.fail_power()
            self.log = self.start()


def written_snapshot(snapshot: Snapshot) -> bytes:
    return b"".join(encode_snapshot(snapshot.id, snapshot.configuration, (snapshot.state,)))


@given(st.integers(0, 2**32))
@example(186762)  # shows what was under way at one stop after the next
@settings(max_examples=30)
def test_a_start_finds_what_was_acknowledged_wherever_the_disk_stopped(seed: int) -> None:
    broker = Broker(Random(seed))
    for _ in range(60):
        broker.live()
    broker.disk.fail_power()
    broker.start()
    assert len(broker.disk.seen) <= 3
    assert all(len(broker.disk.seen[name]) == LOG_BYTES for name in METADATA_LOGS)
