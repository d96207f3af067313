"""The open segment files of a broker: an LRU, so that thousands of partitions need few descriptors.

Readers and writers of a segment share one descriptor. Used in I/O threads.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tailrace_broker.storage.files.direct_file import DirectFile

OPEN_SEGMENTS_MAX = 1024


@dataclass(slots=True)
class _OpenFile:
    file: DirectFile
    user_count: int = 0
    is_forgotten: bool = False  # its last user closes it


class OpenSegments:
    """Files by path; over `count_max` the one that was unused for longest is closed."""

    def __init__(self, *, is_direct: bool, count_max: int = OPEN_SEGMENTS_MAX) -> None:
        self._is_direct = is_direct
        self._count_max = count_max
        self._open: OrderedDict[Path, _OpenFile] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    @contextmanager
    def use(self, path: Path) -> Iterator[DirectFile]:
        """An existing file, open while the block lasts. ReadFailedError."""
        with self._lock:
            found = self._open.get(path)
            if found is None:
                file = DirectFile.open(path, is_direct=self._is_direct)
                found = self._open[path] = _OpenFile(file)
            self._open.move_to_end(path)
            found.user_count += 1
        try:
            yield found.file
        finally:
            with self._lock:
                found.user_count -= 1
                if found.is_forgotten and not found.user_count:
                    found.file.close()
                self._close_unused()

    def create(self, path: Path, *, is_durable: bool) -> None:
        """An empty file; it and the directories above it are durable on return, if asked for."""
        self.forget(path)
        file = DirectFile.create(path, is_direct=self._is_direct, is_durable=is_durable)
        with self._lock:
            self._open[path] = _OpenFile(file)
            self._close_unused()

    def forget(self, *paths: Path) -> None:
        """The files are going away: close them, those in use when their last user has ended."""
        with self._lock:
            for path in paths:
                found = self._open.pop(path, None)
                if found is not None:
                    found.is_forgotten = True
                    if not found.user_count:
                        found.file.close()

    def close(self) -> None:
        """Close all; none is in use."""
        self.forget(*list(self._open))

    def _close_unused(self) -> None:
        """Down to the bound, as far as they are not in use."""
        over_count = len(self._open) - self._count_max
        if over_count > 0:
            unused = (path for path, each in self._open.items() if not each.user_count)
            for path in [path for path, _ in zip(unused, range(over_count), strict=False)]:
                self._open.pop(path).file.close()
