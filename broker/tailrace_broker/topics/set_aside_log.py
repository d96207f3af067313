"""A log that was set aside because it is damaged: what else of it is whole may be the last copy.

A copy that is made meanwhile takes from here what its source cannot read.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from operator import attrgetter

from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.model.errors import CorruptBatchError, StoredDataError
from tailrace_broker.storage.inspection.logs import NotedRepairs
from tailrace_broker.storage.log.recovery import LogEvidence, recover_with
from tailrace_broker.storage.log.resources import LogResources
from tailrace_broker.storage.segments.reader import read_batches
from tailrace_broker.storage.segments.writer import LogPlace, segment_path
from tailrace_broker.topics.log_copy import PIECE_BYTES


class SetAsideLog:
    """Nothing of it is changed. `place`: of its files, where they lie now."""

    def __init__(self, place: LogPlace, first_offset: int, resources: LogResources) -> None:
        """`first_offset`: of the partition."""
        self._place = place
        self._first_offset = first_offset
        self._resources = resources
        self._segments: Sequence[SegmentState] | None = None

    async def batches(self, start: int, end: int) -> Sequence[StoredBatch]:
        """Some from the one that holds `start`, below `end`; each is verified.

        None of them: it is damaged there as well. ReadMemoryFullError.
        """
        reading = self._resources.catch_up
        try:
            if self._segments is None:
                self._segments = await reading.io.run(self._recover)
            return await reading.io.run(partial(self._read, self._segments, start, end))
        except (CorruptBatchError, StoredDataError):
            return []

    def _recover(self) -> Sequence[SegmentState]:
        if not self._place.directory.exists():
            return []
        evidence = LogEvidence(self._first_offset)
        pool = self._resources.pool
        return recover_with(NotedRepairs(), self._place, evidence, pool, is_direct=False).segments

    def _read(
        self, segments: Sequence[SegmentState], start: int, end: int
    ) -> Sequence[StoredBatch]:
        index = bisect_right(segments, start, key=attrgetter("base_offset")) - 1
        if index < 0 or start >= segments[index].end_offset:
            raise CorruptBatchError(f"no batch holds offset {start}")
        state = segments[index]
        return read_batches(
            self._resources.files,
            segment_path(self._place.directory, state.base_offset),
            state,
            self._resources.catch_up.memory,
            offset=start,
            end_offset=min(end, state.end_offset),
            max_bytes=PIECE_BYTES,
        )
