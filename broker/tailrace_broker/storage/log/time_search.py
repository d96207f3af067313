"""The first record of a time or later, looked for in the records of a log one after the other."""

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.codec.segment import INDEX_INTERVAL_BYTES
from tailrace_broker.model.errors import OffsetOutOfRangeError
from tailrace_broker.storage.files.io_threads import IoThreads
from tailrace_broker.storage.segments.reader import first_of_time


class SearchedLog(Protocol):
    """What is searched."""

    @property
    def log_start(self) -> int:
        """The first offset that can be read."""

    @property
    def high_watermark(self) -> int:
        """The end of what can be read."""

    async def read(self, offset: int, max_bytes: int) -> Sequence[StoredBatch]:
        """Committed batches from the one that holds `offset`."""


async def find_by_reading(
    log: SearchedLog, timestamp_us: int, end_offset: int, io: IoThreads
) -> int | None:
    """From the log start on, below which a segment has a record of this time or later.

    The next one is near, unless times are not in order. None: there is none below `end_offset`.
    """
    offset = log.log_start
    while offset < min(end_offset, log.high_watermark):
        try:
            batches = await log.read(offset, INDEX_INTERVAL_BYTES)
        except OffsetOutOfRangeError:  # retention was faster
            offset = max(offset, log.log_start)
            continue
        for batch in batches:
            if batch.header.largest_timestamp_us >= timestamp_us:
                work = partial(first_of_time, batch, timestamp_us, first_offset=offset)
                found = await io.run(work)
                if found is not None:
                    return found
            offset = batch.header.end_offset
    return None
