"""The end of a log that is in the journal and in memory, and not in its segments yet."""

from bisect import bisect_right
from collections.abc import Sequence

from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.storage.journal.file import JournaledLog, JournalFile


class PendingTail:
    """Consecutive batches of one log. The journal's files know which logs they hold something of.

    Bounded by the size of the journal: a file is not used again while it holds something.
    """

    __slots__ = ("_file_ends", "_log", "batches", "size_bytes")

    def __init__(self, log: JournaledLog) -> None:
        self._log = log
        self._file_ends: dict[JournalFile, int] = {}  # end offset of what each file has of it
        self.batches: list[StoredBatch] = []
        self.size_bytes = 0

    def add(self, batches: Sequence[StoredBatch], file: JournalFile | None) -> None:
        """They follow the last, and are in this file; None: in none of the journal's."""
        self.batches += batches
        for batch in batches:
            self.size_bytes += batch.header.batch_bytes
        if file is not None:
            self._file_ends[file] = batches[-1].header.end_offset
            file.pending[self._log] = None

    def first(self, max_bytes: int) -> list[StoredBatch]:
        """What has been here longest, up to `max_bytes`, at least one batch; or none."""
        return self.read(self.batches[0].header.base_offset, max_bytes) if self.batches else []

    def drop_below(self, offset: int) -> None:
        """What is below is in the segments, durably: the journal need not keep it."""
        count = bisect_right(self.batches, offset, key=_end_offset)
        dropped, self.batches = self.batches[:count], self.batches[count:]
        self.size_bytes -= sum(batch.header.batch_bytes for batch in dropped)
        rest_offset = self.batches[0].header.base_offset if self.batches else offset
        for file, end_offset in list(self._file_ends.items()):
            if end_offset <= rest_offset:
                del self._file_ends[file], file.pending[self._log]

    def cut(self, end_offset: int) -> None:
        """What ends above is in the log no more."""
        count = bisect_right(self.batches, end_offset, key=_end_offset)
        dropped, self.batches = self.batches[count:], self.batches[:count]
        self.size_bytes -= sum(batch.header.batch_bytes for batch in dropped)
        for file, file_end in self._file_ends.items():
            self._file_ends[file] = min(file_end, end_offset)
        self.drop_below(self.batches[0].header.base_offset if self.batches else end_offset)

    def release(self) -> None:
        """The journal need not keep any of it: it is safe elsewhere."""
        for file in self._file_ends:
            del file.pending[self._log]
        self._file_ends.clear()

    def read(self, offset: int, max_bytes: int) -> list[StoredBatch]:
        """Batches from the one that holds `offset`, up to `max_bytes`, at least one; or none."""
        batches = self.batches
        index = bisect_right(batches, offset, key=_base_offset) - 1
        taken: list[StoredBatch] = []
        taken_bytes = 0
        for batch in batches[index:] if index >= 0 else ():
            taken_bytes += batch.header.batch_bytes
            if taken and taken_bytes > max_bytes:
                break
            taken.append(batch)
        return taken

    def find_time(self, timestamp_us: int) -> StoredBatch | None:
        """The first batch that has a record of this time or later."""
        later = (each for each in self.batches if each.header.largest_timestamp_us >= timestamp_us)
        return next(later, None)


def _base_offset(batch: StoredBatch) -> int:
    return batch.header.base_offset


def _end_offset(batch: StoredBatch) -> int:
    return batch.header.end_offset
