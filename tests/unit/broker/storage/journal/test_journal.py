"""The journal under real logs: group commit, the ring of its files, writes that fail."""

import asyncio
import errno
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tailrace.wire import JOURNAL_BLOCK_BYTES
from tailrace_broker.core.log.producers import Producer
from tailrace_broker.core.log.replica_tail import LARGE_GROUP_BYTES
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.errors import DiskFullError, StorageFailedError
from tailrace_broker.model.topic import TopicSettings
from tests.support.storage.batches import Event, body_of
from tests.support.storage.storage import (
    MEBIBYTE,
    Appends,
    Engine,
    FaultyDisk,
    LogFiles,
    open_engine_on,
    open_log,
    values_in,
)
from tests.support.waits import until

# Some write megabytes, half a second on an idle machine.
pytestmark = pytest.mark.timeout(20)

NOISE = Random(3)
FILE_BYTES = 128 * 1024
SMALL_FRAME_BYTES = 128 * 1024
# Files of this size hold two such events each, each in a frame of its own.
EVENT_BYTES = 50_000


def new_value(size_bytes: int = EVENT_BYTES) -> bytes:
    """Bytes that do not compress."""
    return NOISE.randbytes(size_bytes)


def descriptor_of(path: Path) -> int:
    """The one that this process has open."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    (fd,) = [int(link.name) for link in links if link.readlink() == path]
    return fd


async def all_values(engine: Engine) -> list[list[bytes | None]]:
    return [await values_in(log) for log in engine.logs]


# --- group commit ---------------------------------------------------------------------------------


@pytest.mark.parametrize("uses_kernel_aio", [False, True], ids=["threads", "kernel"])
async def test_what_many_logs_append_in_one_turn_is_one_write(
    files: LogFiles, uses_kernel_aio: bool
) -> None:
    counters = Counters()

    async with open_engine_on(
        files, partitions=range(50), counters=counters, uses_kernel_aio=uses_kernel_aio
    ) as engine:
        answers = [Appends(log).event(b"%d" % n) for n, log in enumerate(engine.logs)]
        assert await asyncio.gather(*answers) == [0] * 50
        assert (counters.journal_writes, counters.log_writes) == (1, 0)
        assert await all_values(engine) == [[b"%d" % number] for number in range(50)]
    assert len(files.journal()) == 1


@pytest.mark.parametrize("uses_kernel_aio", [False, True], ids=["threads", "kernel"])
async def test_what_is_in_the_journal_alone_is_there_after_a_kill(
    files: LogFiles, uses_kernel_aio: bool
) -> None:
    for number in range(5):
        async with open_engine_on(
            files, partitions=range(3), uses_kernel_aio=uses_kernel_aio, is_killed=True
        ) as engine:
            assert await all_values(engine) == [[b"%d" % n for n in range(number)]] * 3
            for log in engine.logs:
                assert await Appends(log).event(b"%d" % number) == number
    # Each start used another file; the fifth the first again, which was spilled before.
    assert len(files.journal()) == 4
    assert all(1 <= len(files.recover_all(number).pending) < 5 for number in range(3))


async def test_a_log_that_stops_leaves_the_journal_nothing_to_replay(files: LogFiles) -> None:
    async with open_log(files) as log:
        await Appends(log).event(b"0")
    assert files.recover_all().pending == []
    assert files.values() == [b"0"]


async def test_a_group_that_grows_large_while_it_waits_goes_to_its_segment(
    files: LogFiles, disk: FaultyDisk
) -> None:
    counters = Counters()

    async with open_log(files, counters=counters) as log:
        await Appends(log).event(b"0")
        disk.hold_writes()
        appends = Appends(log)
        appends.event(b"1")
        await disk.wait_for_held_write()
        appends.event(b"2")
        appends.event(new_value(LARGE_GROUP_BYTES))
        disk.let_writes_go_on()
        assert await appends.outcomes() == [1, 2, 3]
        assert (counters.journal_writes, counters.log_writes) == (2, 1)
        assert log.pending_bytes == 0  # it went along, in the same write
    assert len(files.values()) == 4


async def test_an_event_that_is_not_large_when_it_is_asked_for_becomes_so_before_the_frame(
    files: LogFiles,
) -> None:
    """Both in one turn of the loop: the journal was asked for the first."""
    counters = Counters()

    async with open_log(files, counters=counters) as log:
        appends = Appends(log)
        appends.event(b"0")
        appends.event(new_value(LARGE_GROUP_BYTES))
        assert await appends.outcomes() == [0, 1]
        assert (counters.journal_writes, counters.log_writes) == (0, 1)
    assert files.journal() == []


# --- bounds ---------------------------------------------------------------------------------------


def fill_with_events(engine: Engine, size_bytes: int) -> None:
    for log in engine.logs:
        Appends(log).event(new_value(size_bytes))


def fill_with_tiny_batches(engine: Engine, _: int) -> None:
    """Their headers are most of what is stored."""
    body = body_of([Event(b"", key=None)])
    for number, log in enumerate(engine.logs):
        appends = Appends(log)
        for sequence in range(60_000 // (128 + len(body.payload) + 32)):
            producer = Producer(number.to_bytes(16, "big"), sequence)
            appends.body(body, producer)


def fill_with_keys(engine: Engine, _: int) -> None:
    for log in engine.logs:
        appends = Appends(log)
        for number in range(60):
            appends.event(b"", key=new_value(1_000 - 16) if number else None)


def fill_with_events_between_batches(engine: Engine, _: int) -> None:
    for log in engine.logs:
        appends = Appends(log)
        for _ in range(340):
            appends.batch([b""])
            appends.event(b"")


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("fill", "size_bytes"),
    [
        (fill_with_events, 60 * 1024),
        (fill_with_events, LARGE_GROUP_BYTES - 19 - 1),
        (fill_with_tiny_batches, 0),
        (fill_with_keys, 0),
        (fill_with_events_between_batches, 0),
    ],
    ids=["incompressible", "just not large", "tiny batches", "long keys", "batches and events"],
)
async def test_a_frame_holds_what_its_bounds_let_in(
    files: LogFiles,
    monkeypatch: pytest.MonkeyPatch,
    fill: Callable[[Engine, int], None],
    size_bytes: int,
) -> None:
    """Each log brings the most that it may, until the frame is full: here after two or three."""
    monkeypatch.setattr(
        "tailrace_broker.storage.journal.journal.FRAME_BYTES_MAX", SMALL_FRAME_BYTES
    )
    counters = Counters()

    async with open_engine_on(
        files,
        partitions=range(7),
        counters=counters,
        journal_file_bytes=2 * MEBIBYTE,
        is_killed=True,
    ) as engine:
        fill(engine, size_bytes)
        await until(lambda: all(log.high_watermark for log in engine.logs))
        kept = await all_values(engine)
    async with open_engine_on(files, partitions=range(7)) as engine:
        assert await all_values(engine) == kept
    assert counters.log_write_errors == 0
    assert counters.journal_writes >= 3
    assert counters.journal_written_bytes / counters.journal_writes > SMALL_FRAME_BYTES // 2


async def test_batches_that_are_mostly_header_are_not_taken_for_small(files: LogFiles) -> None:
    """By their payloads alone they would all go into one frame, and not fit."""
    body = body_of([Event(b"", key=b"")])
    count = LARGE_GROUP_BYTES // len(body.payload) - 10
    counters = Counters()

    async with open_engine_on(files, partitions=range(3), counters=counters) as engine:
        appends = [Appends(log) for log in engine.logs]
        for sequence in range(count):
            for number, each in enumerate(appends):
                each.body(body, Producer(number.to_bytes(16, "big"), sequence))
        for each in appends:
            assert await each.outcomes() == list(range(count))
    assert counters.log_writes >= 3


# --- the ring -------------------------------------------------------------------------------------


async def test_the_ring_goes_round_and_what_it_held_is_in_the_segments(files: LogFiles) -> None:
    values: list[bytes | None] = [new_value() for _ in range(30)]
    counters = Counters()

    async with open_log(
        files, counters=counters, journal_file_bytes=FILE_BYTES, is_killed=True
    ) as log:
        for value in values:
            await Appends(log).event(value or b"")
        assert await values_in(log) == values
    async with open_log(files, journal_file_bytes=FILE_BYTES) as log:
        assert await values_in(log) == values
    assert (counters.journal_writes, len(files.journal())) == (30, 4)
    assert {path.stat().st_size for path in files.journal()} == {FILE_BYTES}


async def test_a_tail_that_is_too_large_for_one_write_is_spilled_in_several(
    files: LogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file holds four such events, and each write of a segment takes one."""
    monkeypatch.setattr("tailrace_broker.core.log.replica_tail.SPILL_BYTES", MEBIBYTE)
    monkeypatch.setattr("tailrace_broker.storage.log.tail.GROUP_BYTES_MAX", 1)
    values: list[bytes | None] = [new_value(EVENT_BYTES // 2) for _ in range(20)]

    async with open_log(files, journal_file_bytes=FILE_BYTES) as log:
        for value in values:
            await Appends(log).event(value or b"")
        assert await values_in(log) == values
    assert len(files.journal()) == 4


async def test_a_file_is_in_the_inventory_from_its_first_round_on(files: LogFiles) -> None:
    async with open_log(files, journal_file_bytes=FILE_BYTES) as log:
        noted = []
        for _ in range(5):
            await Appends(log).event(new_value())
            noted.append(files.inventory.journal_files)
    assert noted == [
        ("1.journal",),
        ("1.journal",),
        ("1.journal", "2.journal"),
        ("1.journal", "2.journal"),
        ("1.journal", "2.journal", "3.journal"),
    ]


async def test_all_that_the_journal_holds_is_brought_to_the_segments(files: LogFiles) -> None:
    async with open_engine_on(files, partitions=range(3)) as engine:
        for log in engine.logs[:2]:
            await Appends(log).event(b"0")
        await engine.resources.journal.spill_all()
        assert [log.pending_bytes for log in engine.logs] == [0] * 3
        assert await all_values(engine) == [[b"0"], [b"0"], []]


async def test_a_file_is_spilled_before_it_is_needed(files: LogFiles, disk: FaultyDisk) -> None:
    """So that the next round can begin at once."""

    async with open_engine_on(files, partitions=range(9), journal_file_bytes=FILE_BYTES) as engine:
        for log in engine.logs[:6]:  # three files
            await Appends(log).event(new_value())
        assert [log.pending_bytes > 0 for log in engine.logs] == [True] * 6 + [False] * 3
        await Appends(engine.logs[6]).event(new_value())  # the last file's round begins
        await until(lambda: not any(log.pending_bytes for log in engine.logs[:2]))
        assert [log.pending_bytes > 0 for log in engine.logs[2:7]] == [True] * 5


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
async def test_a_spill_that_fails_answers_the_appends_that_need_the_space(
    files: LogFiles, disk: FaultyDisk, error: int
) -> None:
    kind = DiskFullError if error == errno.ENOSPC else StorageFailedError
    values: list[bytes | None] = [new_value() for _ in range(12)]

    async with open_engine_on(files, partitions=range(12), journal_file_bytes=FILE_BYTES) as engine:
        outcomes: list[int | BaseException] = []
        for number, (log, value) in enumerate(zip(engine.logs, values, strict=True)):
            if number == 8:  # all four files are in use; no other segment can be created
                await until(lambda: not any(each.pending_bytes for each in engine.logs[:2]))
                for _ in range(20):
                    disk.fail("open", error)
            append = Appends(log).event(value or b"")
            outcomes += await asyncio.gather(append, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [int] * 10 + [kind] * 2
        disk.forget_faults()
        for log, value in zip(engine.logs[10:], values[10:], strict=True):
            assert await Appends(log).event(value or b"") == 0
        assert await all_values(engine) == [[value] for value in values]


async def test_a_round_that_cannot_begin_is_begun_by_the_next_append(
    files: LogFiles, disk: FaultyDisk
) -> None:
    async with open_log(files, is_killed=True) as log:
        for call in ("open", "pwritev", "fsync", "fdatasync"):
            disk.fail(call, errno.ENOSPC)
            with pytest.raises(DiskFullError):
                await Appends(log).event(b"lost")
        assert await Appends(log).event(b"0") == 0
    async with open_log(files) as log:
        assert await values_in(log) == [b"0"]


# --- writes that fail -----------------------------------------------------------------------------


@pytest.mark.parametrize("kept_bytes", [0, JOURNAL_BLOCK_BYTES, 3 * JOURNAL_BLOCK_BYTES])
async def test_a_frame_that_failed_is_written_over_by_the_next(
    files: LogFiles, disk: FaultyDisk, kept_bytes: int
) -> None:
    counters = Counters()

    async with open_log(files, counters=counters, is_killed=True) as log:
        assert await Appends(log).event(b"0") == 0
        disk.fail("pwritev", kept_bytes=kept_bytes)
        with pytest.raises(StorageFailedError):
            await Appends(log).event(new_value(10_000))
        assert counters.log_write_errors == 1
        assert await Appends(log).event(b"1") == 1
    async with open_log(files) as log:
        assert await values_in(log) == [b"0", b"1"]


async def test_the_frame_behind_one_that_failed_is_durable(
    files: LogFiles, disk: FaultyDisk
) -> None:
    """Else a loss of power could leave the one that failed."""
    settings = TopicSettings(partitions_per_range=1, durability="written", flush_ms=60_000)

    async with open_log(files, settings=settings) as log:
        assert await Appends(log).event(b"0") == 0
        await log.flush_all()
        disk.fail("pwritev", kept_bytes=JOURNAL_BLOCK_BYTES)
        with pytest.raises(StorageFailedError):
            await Appends(log).event(b"lost")
        assert await Appends(log).event(b"1") == 1
        assert log.durable_end == 2
        assert await Appends(log).event(b"2") == 2
        assert log.durable_end == 2


async def test_a_frame_that_failed_does_not_come_back_when_the_next_goes_to_another_file(
    files: LogFiles, disk: FaultyDisk
) -> None:
    """It is whole on the disk, and has the sequence of the next."""

    async with open_log(files, journal_file_bytes=FILE_BYTES, is_killed=True) as log:
        assert await Appends(log).event(new_value(60_000)) == 0
        assert await Appends(log).event(new_value(30_000)) == 1
        disk.fail("pwritev", kept_bytes=10 * JOURNAL_BLOCK_BYTES)
        with pytest.raises(StorageFailedError):
            await Appends(log).event(b"lost")
        assert await Appends(log).event(kept := new_value(50_000)) == 2
    async with open_log(files, journal_file_bytes=FILE_BYTES) as log:
        assert (await values_in(log))[2:] == [kept]


@pytest.mark.parametrize("failure", ["closed", "read-only"])
async def test_a_write_that_the_kernel_refuses_is_reported_and_the_next_is_stored(
    files: LogFiles, failure: str
) -> None:
    if not files.is_direct:
        pytest.skip("no direct I/O here")

    async with open_engine_on(files, uses_kernel_aio=True, is_killed=True) as engine:
        (log,) = engine.logs
        assert await Appends(log).event(b"0") == 0
        (path,) = files.journal()
        fd = descriptor_of(path)
        kept = os.dup(fd)
        if failure == "closed":
            os.close(fd)
        else:
            read_only = os.open(path, os.O_RDONLY)
            os.dup2(read_only, fd)
            os.close(read_only)
        with pytest.raises(StorageFailedError, match=r"\.journal: Bad file descriptor"):
            await Appends(log).event(b"lost")
        os.dup2(kept, fd)
        os.close(kept)
        assert await Appends(log).event(b"1") == 1
    async with open_log(files) as log:
        assert await values_in(log) == [b"0", b"1"]


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """The kernel writes no further into any file of this process."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize(
    ("blocks", "kind", "detail"),
    [(2, DiskFullError, "no space left"), (3, StorageFailedError, "4096 of 12288 bytes written")],
    ids=["nothing", "a part"],
)
async def test_a_frame_of_which_the_kernel_writes_less_is_written_over(
    files: LogFiles, blocks: int, kind: type[Exception], detail: str
) -> None:
    if not files.is_direct:
        pytest.skip("no direct I/O here")

    async with open_log(files, uses_kernel_aio=True, is_killed=True) as log:
        assert await Appends(log).event(b"0") == 0
        with largest_file(blocks * JOURNAL_BLOCK_BYTES), pytest.raises(kind, match=detail):
            await Appends(log).event(new_value(10_000))
        assert await Appends(log).event(b"1") == 1
    async with open_log(files) as log:
        assert await values_in(log) == [b"0", b"1"]


# --- any kill -------------------------------------------------------------------------------------


async def test_a_kill_at_any_time_keeps_what_was_acknowledged(
    files: LogFiles, tmp_path: Path
) -> None:
    """Copies of the files as they are when the answers come, between spills and rounds."""
    images = tmp_path / "images"
    answered: list[tuple[Path, list[int]]] = []

    async with open_engine_on(
        files, partitions=range(3), journal_file_bytes=FILE_BYTES, segment_bytes=200_000
    ) as engine:
        for number in range(24):
            log = engine.logs[number % 3]
            await Appends(log).event(new_value(NOISE.choice([100, 30_000, 60_000, 90_000])))
            ends = [log.high_watermark for log in engine.logs]
            image = images / str(number)
            for part in ("journal", "topic"):
                if (files.directory / part).exists():
                    # A checkpoint may just be being replaced in a thread: no answer says so.
                    half_made = shutil.ignore_patterns("*.new")
                    shutil.copytree(files.directory / part, image / part, ignore=half_made)
            answered.append((image, ends))

    for image, ends in answered:
        async with open_engine_on(
            LogFiles(image), partitions=range(3), journal_file_bytes=FILE_BYTES, is_killed=True
        ) as engine:
            assert [log.high_watermark for log in engine.logs] == ends
            assert [len(values) for values in await all_values(engine)] == ends
