"""How much of the disk a broker's data takes, besides the segments that its logs know of."""

import os
from contextlib import suppress
from pathlib import Path

from tailrace.wire import TRASH

# Of few files each.
SMALL = ("", "journal", "metadata", "spare")
# st_blocks counts in these, whatever the file system's blocks are (stat(2)).
STAT_BLOCK_BYTES = 512


class DiskUse:
    """Of one data directory; measured in an I/O thread."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._trashed: dict[str, int] = {}  # bytes by directory

    def other_bytes(self) -> int | None:
        """Return those of journal, metadata, spare files and trash; None: the disk does not answer.

        Costs a stat of some 20 files. A topic does not change in the trash: its files are looked
        at once.
        """
        if not self._data.exists():
            return None
        known = self._trashed
        self._trashed = {
            name: known[name] if name in known else tree_bytes(self._data / TRASH / name)
            for name in _entries(self._data / TRASH)[0]
        }
        small_bytes = sum(_bytes_in(self._data / name) for name in SMALL)
        return small_bytes + sum(self._trashed.values())


def tree_bytes(directory: Path) -> int:
    """Return the size of all files below it, in whole blocks; vanished ones count nothing."""
    return sum(_bytes_in(Path(each)) for each, *_ in os.walk(directory))


def _bytes_in(directory: Path) -> int:
    """Return the blocks of its own files in bytes."""
    size_bytes = 0
    for name in _entries(directory)[1]:
        with suppress(OSError):
            size_bytes += (directory / name).stat().st_blocks * STAT_BLOCK_BYTES
    return size_bytes


def _entries(directory: Path) -> tuple[list[str], list[str]]:
    """Names of its directories and of its files; none when it cannot be listed."""
    _, directories, files = next(os.walk(directory), ("", [], []))
    return directories, files
