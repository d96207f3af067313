"""A log knows where its epochs start, whatever its start has to find that in."""

from pathlib import Path

import pytest

from tailrace_broker.core.log.epochs import EpochEnd
from tests.support.storage.storage import Appends, LogFiles, open_engine_on


async def append_in(files: LogFiles, epoch: int, *, rolls: bool, is_killed: bool = False) -> None:
    """Two events of this epoch, each a batch; in a segment of their own if the log `rolls`."""
    files.epoch = epoch
    async with open_engine_on(files, is_killed=is_killed) as engine:
        (log,) = engine.logs
        if rolls:
            await log.roll()
        appends = Appends(log)
        await appends.event(b"one")
        await appends.event(b"two")
        assert log.end_of_epoch(epoch) == EpochEnd(epoch, log.log_end)


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "in the journal"])
@pytest.mark.parametrize("has_indexes", [True, False], ids=["indexes", "no indexes"])
async def test_epochs_end_where_they_did_before_a_start(
    tmp_path: Path, is_killed: bool, has_indexes: bool
) -> None:
    files = LogFiles(tmp_path)
    await append_in(files, 3, rolls=False)
    await append_in(files, 5, rolls=True)
    await append_in(files, 8, rolls=False, is_killed=is_killed)
    if not has_indexes:
        for path in files.place.directory.glob("*.idx"):
            path.unlink()

    async with open_engine_on(files) as engine:
        (log,) = engine.logs
        ends = [log.end_of_epoch(epoch) for epoch in (2, 3, 6, 9)]
        await log.trim(2)
        trimmed = log.end_of_epoch(4)

    assert ends == [EpochEnd(None, 0), EpochEnd(3, 2), EpochEnd(5, 4), EpochEnd(8, 6)]
    assert trimmed == EpochEnd(None, 2)
