"""The metadata on real files: group commit, compaction, full disks, writes that fail."""

import asyncio
import errno
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest

from tailrace.wire import METADATA_LOGS
from tailrace_broker.core.raft.metadata_log import LOG_BYTES
from tailrace_broker.model.agreement import (
    Block,
    BlockId,
    Commit,
    Configuration,
    DiskId,
    Head,
    Kept,
    Record,
    Snapshot,
    Stored,
    Term,
)
from tailrace_broker.model.errors import (
    CorruptMetadataError,
    DiskFullError,
    ReadFailedError,
    StorageFailedError,
    TailraceError,
)
from tailrace_broker.storage.files.direct_file import has_direct_io, write_file_atomically
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.files.spare_files import SpareFiles
from tailrace_broker.storage.metadata.files import MetadataFiles
from tests.support.storage.full_disk import full_disk
from tests.support.storage.storage import FaultyDisk
from tests.support.waits import until

SMALL_LOG_BYTES = 64 * 1024
BLOCK_BYTES = 4096
VOTERS = Configuration((DiskId(0, UUID(int=1)),))
Write = Callable[[Path, bytes], None]


def block_of(height: int, payload: bytes = b"") -> Block:
    return Block(BlockId(1, height), BlockId(1, height - 1), 0, payload)


def block(height: int, payload: bytes = b"") -> tuple[Record, ...]:
    return (Stored(block_of(height, payload)), Head(BlockId(1, height)))


class Metadata:
    """The files of a running broker; what is asked of them has numbers as they come."""

    def __init__(self, files: MetadataFiles) -> None:
        self.files = files
        self.kept = Kept()
        self.reported: list[tuple[int, type[TailraceError] | None]] = []
        self.snapshots: list[Snapshot] = []
        self._number = 0

    def keep(self, *records: Record) -> None:
        self.files.keep(self._next(), records, self._done)

    def replace(self, snapshot: Snapshot, *records: Record) -> None:
        self.files.replace(self._next(), snapshot, records, self._done)

    def compact(self, height: int, state: Iterator[bytes], *records: Record) -> None:
        self.files.compact(
            self._next(),
            BlockId(1, height),
            VOTERS,
            state,
            records,
            self._done,
            self.snapshots.append,
        )

    async def all_reported(self) -> None:
        await until(lambda: len(self.reported) == self._number)

    async def compacted(self, count: int) -> None:
        await until(lambda: len(self.snapshots) == count)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _done(self, number: int, error: TailraceError | None) -> None:
        self.reported.append((number, None if error is None else type(error)))


@asynccontextmanager
async def started(
    tmp_path: Path,
    *,
    log_bytes: int = SMALL_LOG_BYTES,
    write_file: Write = write_file_atomically,
) -> AsyncIterator[Metadata]:
    bugs: list[BaseException] = []
    io = IoThreads(2, bugs.append)
    io.start()
    files = MetadataFiles(
        tmp_path / "metadata",
        io,
        is_direct=has_direct_io(tmp_path),
        write_file=write_file,
        log_bytes=log_bytes,
        retry_s=0.001,
    )
    metadata = Metadata(files)
    try:
        metadata.kept = await files.load()
        yield metadata
    finally:
        await files.close()
        io.stop()
        assert bugs == []


async def restarted(tmp_path: Path) -> Kept:
    """What the next process finds."""
    async with started(tmp_path) as metadata:
        return metadata.kept


def names(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "metadata").iterdir()}


def kept_all(count: int) -> list[tuple[int, None]]:
    return [(number, None) for number in range(1, count + 1)]


async def test_a_new_directory_belongs_to_no_ring_and_has_its_space(tmp_path: Path) -> None:
    async with started(tmp_path) as metadata:
        assert metadata.kept == Kept()
        assert metadata.files.size_bytes == 2 * SMALL_LOG_BYTES
    for name in METADATA_LOGS:
        assert (tmp_path / "metadata" / name).stat().st_size == SMALL_LOG_BYTES


async def test_a_full_disk_is_reported_before_anything_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with full_disk(monkeypatch), pytest.raises(DiskFullError):
        await restarted(tmp_path)
    assert await restarted(tmp_path) == Kept()


async def test_larger_files_take_over_what_smaller_ones_hold(tmp_path: Path) -> None:
    async with started(tmp_path) as metadata:
        metadata.keep(*block(1))
        await metadata.all_reported()
    async with started(tmp_path, log_bytes=2 * SMALL_LOG_BYTES) as metadata:
        assert metadata.kept.blocks == (block_of(1),)
        metadata.keep(*block(2, b"x" * SMALL_LOG_BYTES))
        await metadata.all_reported()
        assert metadata.reported == kept_all(1)
    assert len((await restarted(tmp_path)).blocks) == 2


async def test_a_restart_finds_what_was_kept(tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "other.json").write_text("another's")

    async with started(tmp_path) as metadata:
        metadata.keep(Term(3, VOTERS.voters[0]), *block(1))
        await metadata.all_reported()
        metadata.keep(*block(2, b"x" * 10_000))
        await metadata.all_reported()
        assert metadata.reported == kept_all(2)
    kept = Kept(
        term=Term(3, VOTERS.voters[0]),
        blocks=(block_of(1), block_of(2, b"x" * 10_000)),
        head=BlockId(1, 2),
    )
    assert await restarted(tmp_path) == await restarted(tmp_path) == kept
    assert names(tmp_path) == {*METADATA_LOGS, "other.json"}


async def test_what_comes_while_a_write_is_under_way_is_one_write(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    async with started(tmp_path) as metadata:
        disk.hold_writes()
        before = disk.calls["pwritev"]
        metadata.keep(*block(1))
        await disk.wait_for_held_write()
        for height in range(2, 6):
            metadata.keep(*block(height))
        assert metadata.reported == []
        disk.let_writes_go_on()
        await metadata.all_reported()
        assert metadata.reported == kept_all(5)
        assert disk.calls["pwritev"] == before + 2
    assert (await restarted(tmp_path)).blocks == tuple(map(block_of, range(1, 6)))


async def test_a_write_takes_a_quarter_of_a_file_at_most(tmp_path: Path, disk: FaultyDisk) -> None:
    async with started(tmp_path) as metadata:
        before = disk.calls["pwritev"]
        for height in range(1, 7):
            metadata.keep(*block(height, b"x" * 7000))
        await metadata.all_reported()
        # The first at once; then two join one.
        assert disk.calls["pwritev"] == before + 3
    assert len((await restarted(tmp_path)).blocks) == 6


async def test_after_a_failed_write_nothing_is_kept_until_a_restart(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    async with started(tmp_path) as metadata:
        metadata.keep(*block(1))
        await metadata.all_reported()
        disk.fail("pwritev", errno.EIO, kept_bytes=512)
        disk.hold_writes()
        metadata.keep(*block(2, b"x" * 1000))
        await disk.wait_for_held_write()
        metadata.keep(*block(3))
        metadata.compact(3, iter([b"state"]), Term(1))
        metadata.replace(Snapshot(BlockId(1, 9), VOTERS, b"other"), Term(2))
        disk.let_writes_go_on()
        await metadata.all_reported()
        metadata.keep(Term(8))
        assert len(metadata.reported) == 5  # never at once
        await metadata.all_reported()
        assert metadata.reported == [
            (1, None),
            *((number, StorageFailedError) for number in range(2, 7)),
        ]
        assert metadata.snapshots == []
    assert await restarted(tmp_path) == Kept(blocks=(block_of(1),), head=BlockId(1, 1))


async def test_who_asks_again_at_once_after_a_failure_does_not_stop_the_loop(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    async with started(tmp_path) as metadata:
        errors: list[TailraceError | None] = []

        def ask_again(number: int, error: TailraceError | None) -> None:
            errors.append(error)
            if len(errors) < 1000:
                metadata.files.keep(number + 1, [Term(1)], ask_again)

        disk.fail("pwritev", errno.EIO)
        metadata.files.keep(1, [Term(1)], ask_again)
        await until(lambda: len(errors) > 2)
        assert len(errors) < 1000
        assert {type(error) for error in errors} == {StorageFailedError}
        assert "Input/output error; check the disk and restart" in str(errors[-1])
        await until(lambda: len(errors) == 1000)


async def test_a_compaction_leaves_its_snapshot_and_what_came_since(tmp_path: Path) -> None:
    async with started(tmp_path) as metadata:
        for height in (2, 4):
            metadata.keep(*block(height - 1), *block(height), Commit(BlockId(1, height)))
            state = iter([b"sta", b"te", b"%d" % height])
            metadata.compact(height, state, Term(1), Head(BlockId(1, height)))
            metadata.keep(*block(height + 1))
            await metadata.compacted(height // 2)
        await metadata.all_reported()
        assert metadata.reported == kept_all(6)
        assert metadata.snapshots[1] == Snapshot(BlockId(1, 4), VOTERS, b"state4")
        assert metadata.files.size_bytes == 2 * SMALL_LOG_BYTES + len(b"state4")
    assert names(tmp_path) == {*METADATA_LOGS, "1-4.snapshot"}
    snapshot = Snapshot(BlockId(1, 4), VOTERS, b"state4")
    base, head = BlockId(1, 4), BlockId(1, 5)
    assert await restarted(tmp_path) == Kept(Term(1), snapshot, (block_of(5),), head, base)


async def test_a_stop_gives_up_a_snapshot_that_is_not_yet_being_written(tmp_path: Path) -> None:
    async with started(tmp_path) as metadata:
        metadata.keep(*block(1))
        metadata.compact(1, iter([b"state"]), Term(1), Head(BlockId(1, 1)))
    assert names(tmp_path) == set(METADATA_LOGS)
    assert (await restarted(tmp_path)).blocks == (block_of(1),)


async def test_a_replacement_is_there_with_what_came_after_it(tmp_path: Path) -> None:
    snapshot = Snapshot(BlockId(1, 5), VOTERS, b"installed")

    async with started(tmp_path) as metadata:
        metadata.keep(*block(1))
        metadata.replace(snapshot, Term(4))
        metadata.keep(*block(6))
        await metadata.all_reported()
        assert metadata.reported == kept_all(3)
        assert metadata.files.size_bytes == 2 * SMALL_LOG_BYTES + len(b"installed")
    head = BlockId(1, 6)
    assert await restarted(tmp_path) == Kept(Term(4), snapshot, (block_of(6),), head, snapshot.id)


async def test_a_replacement_during_a_compaction_wins(tmp_path: Path) -> None:
    snapshot = Snapshot(BlockId(1, 5), VOTERS, b"installed")

    async with started(tmp_path) as metadata:
        metadata.keep(*block(1))
        metadata.compact(1, iter([b"state"]), Term(1), Head(BlockId(1, 1)))
        metadata.replace(snapshot, Term(4))
        await metadata.compacted(1)
        await metadata.all_reported()
        assert metadata.reported == kept_all(3)
    assert names(tmp_path) == {*METADATA_LOGS, "1-5.snapshot"}
    assert (await restarted(tmp_path)).snapshot == snapshot


async def test_a_snapshot_waits_until_a_full_disk_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    def write_file(path: Path, contents: bytes) -> None:
        nonlocal tries
        tries += 1
        write_file_atomically(path, contents)

    async with started(tmp_path, write_file=write_file) as metadata:
        with full_disk(monkeypatch):
            metadata.keep(*block(1))
            metadata.compact(1, iter([b"state"]), Term(1), Head(BlockId(1, 1)))
            metadata.keep(*block(2))
            await metadata.all_reported()
            await until(lambda: tries > 2)
            assert metadata.snapshots == []
            metadata.replace(Snapshot(BlockId(1, 9), VOTERS, b"installed"), Term(2))
            metadata.keep(*block(10))
            await until(lambda: tries > 5)
        await metadata.all_reported()
        assert metadata.reported == kept_all(5)
    kept = await restarted(tmp_path)
    assert (kept.snapshot, kept.blocks) == (
        Snapshot(BlockId(1, 9), VOTERS, b"installed"),
        (block_of(10),),
    )


async def test_a_full_disk_gives_a_snapshot_a_spare_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spares = SpareFiles(tmp_path)
    spares.fill()

    async with started(tmp_path, write_file=spares.write) as metadata:
        with full_disk(monkeypatch):
            metadata.keep(*block(1))
            metadata.compact(1, iter([b"state"]), Term(1), Head(BlockId(1, 1)))
            await metadata.compacted(1)
    assert names(tmp_path) == {*METADATA_LOGS, "1-1.snapshot"}
    assert (await restarted(tmp_path)).snapshot == Snapshot(BlockId(1, 1), VOTERS, b"state")


async def test_what_a_disk_had_room_for_of_a_snapshot_is_removed(tmp_path: Path) -> None:
    is_full = True

    def write_file(path: Path, contents: bytes) -> None:
        if is_full:
            path.with_suffix(".snapshot.new").write_bytes(contents[:5])
            raise DiskFullError("no space")
        write_file_atomically(path, contents)

    async with started(tmp_path, write_file=write_file) as metadata:
        metadata.replace(Snapshot(BlockId(0, 0), VOTERS, b"initial"), Term(0))
        await asyncio.to_thread(lambda: None)
        is_full = False
        await metadata.all_reported()
    assert names(tmp_path) == {*METADATA_LOGS, "0-0.snapshot"}


async def test_a_stop_on_a_full_disk_does_not_wait_for_room(tmp_path: Path) -> None:
    tries = Counter[str]()

    def write_file(path: Path, contents: bytes) -> None:
        tries[path.name] += 1
        raise DiskFullError("no space")

    async with started(tmp_path, write_file=write_file) as metadata:
        metadata.keep(*block(1))
        metadata.compact(1, iter([b"state"]), Term(1), Head(BlockId(1, 1)))
        metadata.replace(Snapshot(BlockId(1, 9), VOTERS, b"installed"), Term(2))
        metadata.keep(*block(10))
        await until(lambda: len(tries) == 2 and min(tries.values()) > 1)
    metadata.keep(*block(11))
    await metadata.all_reported()
    failed = [(number, StorageFailedError) for number in (3, 4, 5)]
    assert metadata.reported == [*kept_all(2), *failed]
    assert (await restarted(tmp_path)).blocks == (block_of(1),)


async def test_a_snapshot_that_cannot_be_written_ends_it_all(tmp_path: Path) -> None:
    def write_file(path: Path, contents: bytes) -> None:
        raise StorageFailedError(f"{path}: Input/output error")

    async with started(tmp_path, write_file=write_file) as metadata:
        metadata.keep(*block(1))
        await metadata.all_reported()
        metadata.compact(1, iter([b"state"]), Term(1), Head(BlockId(1, 1)))
        await until(lambda: metadata.files._failure is not None)
        metadata.keep(*block(2))
        await metadata.all_reported()
        assert metadata.reported == [*kept_all(2), (3, StorageFailedError)]
    assert (await restarted(tmp_path)).blocks == (block_of(1),)


async def test_a_log_that_is_full_keeps_nothing_more(tmp_path: Path) -> None:
    async with started(tmp_path) as metadata:
        for height in range(1, 11):
            metadata.keep(*block(height, b"x" * 8000))
            await metadata.all_reported()
        assert metadata.reported == [
            *kept_all(8),
            *((number, StorageFailedError) for number in (9, 10)),
        ]
    assert len((await restarted(tmp_path)).blocks) == 8


async def test_a_damaged_log_keeps_the_broker_from_starting(tmp_path: Path) -> None:
    async with started(tmp_path) as metadata:
        for height in (1, 2):
            metadata.keep(*block(height))
            await metadata.all_reported()
    path = tmp_path / "metadata" / METADATA_LOGS[0]
    stored = bytearray(path.read_bytes())
    stored[BLOCK_BYTES + 60] ^= 1
    path.write_bytes(stored)
    with pytest.raises(CorruptMetadataError, match=r"0\.blocks: what is at 4096 .* move the"):
        await restarted(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(ReadFailedError):
        await restarted(tmp_path)


@pytest.mark.timeout(120)  # a second, on an idle machine
async def test_a_hundred_thousand_records_take_no_more_than_two_files(tmp_path: Path) -> None:
    def keep_many(metadata: Metadata, heights: Sequence[int]) -> None:
        for height in heights:
            records = [each for step in range(24) for each in block(height * 24 + step, b"x" * 99)]
            metadata.keep(*records, Commit(BlockId(1, height * 24)))

    async with started(tmp_path, log_bytes=LOG_BYTES) as metadata:
        for compaction in range(5):
            keep_many(metadata, range(compaction * 410, compaction * 410 + 410))
            await metadata.all_reported()
            base = compaction * 410 * 24 + 9
            metadata.compact(base, iter([b"s" * 1000]), Term(1), Head(BlockId(1, base)))
            await metadata.compacted(compaction + 1)
        assert metadata.files.size_bytes <= 2 * LOG_BYTES + 2000
    sizes = [path.stat().st_size for path in (tmp_path / "metadata").iterdir()]
    assert sum(sizes) <= 2 * LOG_BYTES + 2000
