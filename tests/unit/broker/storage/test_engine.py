"""What all logs share, opened: the journal's files have the size that the setting allows."""

from pathlib import Path

import pytest

from tailrace.wire import JOURNAL_BLOCK_BYTES
from tests.support.storage.storage import Appends, LogFiles, open_log, values_in

FILE_BYTES = 40 * JOURNAL_BLOCK_BYTES


@pytest.mark.parametrize("beyond_bytes", [0, 1, 700, JOURNAL_BLOCK_BYTES - 1])
async def test_a_journal_file_has_whole_blocks_of_its_share(
    tmp_path: Path, beyond_bytes: int
) -> None:
    files = LogFiles(tmp_path)

    for number in range(2):
        async with open_log(
            files, journal_file_bytes=FILE_BYTES + beyond_bytes, is_killed=True
        ) as log:
            assert await Appends(log).event(b"%d" % number) == number
            assert await values_in(log) == [b"%d" % each for each in range(number + 1)]
            assert {path.stat().st_size for path in files.journal()} == {FILE_BYTES}
