"""What is whole of a log that was set aside is found in it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.memory.pool import Quota
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.topics import set_aside_log
from tailrace_broker.topics.set_aside_log import SetAsideLog
from tests.support.storage.damaged import flip, stored_batches
from tests.support.storage.followers import follow
from tests.support.storage.storage import Appends, LogFiles, open_engine_on

COUNT = 6


def offsets(batches: Sequence[StoredBatch]) -> list[int]:
    return [each.header.base_offset for each in batches]


async def log_aside(tmp_path: Path) -> tuple[LogFiles, Path]:
    """A log of batches that do not compress, and where its files lie now."""
    (tmp_path / "before").mkdir()
    files = LogFiles(tmp_path / "before")
    async with open_engine_on(files, segment_bytes=1 << 20) as engine:
        for number in range(COUNT):
            await Appends(engine.logs[0]).batch([Random(number).randbytes(80_000)])
    aside = tmp_path / "aside"
    files.place.directory.rename(aside)
    (tmp_path / "now").mkdir()
    return files, aside


async def test_of_a_long_span_a_piece_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one that is larger than the memory of those that catch up could never be copied."""
    monkeypatch.setattr(set_aside_log, "PIECE_BYTES", 100_000)
    files, aside = await log_aside(tmp_path)
    async with follow(LogFiles(tmp_path / "now")) as engine:
        catch_up = engine.resources.catch_up._replace(memory=Quota(300_000))
        resources = replace(engine.resources, catch_up=catch_up)
        found = SetAsideLog(replace(files.place, directory=aside), 0, resources)
        offset = 0
        while offset < COUNT:
            piece = offsets(await found.batches(offset, COUNT))
            assert piece == [*range(offset, offset + len(piece))] != []
            offset += len(piece)


async def test_all_but_what_is_damaged_is_found(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    files = LogFiles(tmp_path / "before")
    async with open_engine_on(files, segment_bytes=1 << 20) as engine:
        log: PartitionLog = engine.logs[0]
        for number in range(COUNT):
            await Appends(log).batch([bytes([number]) * 80_000])
    aside = tmp_path / "aside"
    files.place.directory.rename(aside)
    [segment] = aside.glob("*.log")
    position, _ = stored_batches(segment)[2]
    flip(segment, position + 150, 0)
    (tmp_path / "now").mkdir()
    now = LogFiles(tmp_path / "now")
    async with follow(now) as engine:
        found = SetAsideLog(replace(files.place, directory=aside), 0, engine.resources)
        for start, end, wanted in ((0, 2, [0, 1]), (1, 4, [1]), (2, 3, []), (3, 9, [3, 4, 5])):
            assert offsets(await found.batches(start, end)) == wanted
        gone = SetAsideLog(replace(files.place, directory=tmp_path / "no"), 0, engine.resources)
        assert await gone.batches(0, 1) == []
