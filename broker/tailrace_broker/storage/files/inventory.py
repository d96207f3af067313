"""Which files of the journal and which partitions must be on this disk: `inventory.json`.

By it a start and `tailrace verify` notice what is gone. A file of the journal is added when it is
there, durably, and has no frame yet. A partition is added when its first segment is there, durably,
and before anybody relies on it: before the append is acknowledged, or the journal gives up what it
holds. So what is listed was there, whatever has stopped the broker; and what is not holds nothing
that was acknowledged. Each later segment of a partition is noted in the same way, since nothing
else on the disk shows that the last one is gone. It costs a small write for each segment.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path
from threading import Lock
from uuid import UUID

from msgspec.structs import replace

from tailrace_broker.codec.metadata import KnownFiles, encode_inventory
from tailrace_broker.storage.files.direct_file import write_file_atomically

# Topic id and partition, and the base offset of its last segment.
ListedSegment = tuple[UUID, int, int]


class Inventory:
    """Of one data directory. What changes it blocks, and is durable on return.

    Each may raise DiskFullError and StorageFailedError, and has changed nothing then.
    """

    def __init__(self, path: Path, known: KnownFiles) -> None:
        """`known`: as the file has it."""
        self._path = path
        self._known = known
        self._lock = Lock()
        self._waiting: list[ListedSegment] = []  # whoever writes next takes them along

    @property
    def journal_files(self) -> tuple[str, ...] | None:
        """Names of the journal's files that must be there; None: nobody knows."""
        return self._known.journal_files

    def newest_segment(self, topic_id: UUID, partition: int) -> int | None:
        """Base offset of the last segment that the partition must have; None: nobody noted it."""
        return self._known.newest_segments.get(topic_id, {}).get(partition)

    def add_journal_file(self, name: str) -> None:
        """Record that the file is there, durably."""
        known = self.journal_files or ()
        if name not in known:
            self.keep_journal_files([*known, name])

    def keep_journal_files(self, names: Iterable[str]) -> None:
        """These must be there from now on, and no others."""
        with self._lock:
            self._save(replace(self._known, journal_files=tuple(sorted(names))))

    def add_segments(self, segments: Collection[ListedSegment]) -> None:
        """They are there, durably, the last of their partitions."""
        if self._has_all(segments):
            return
        self._waiting.extend(segments)
        with self._lock:
            if self._has_all(segments):  # another thread took them along
                return
            waiting, self._waiting = self._waiting, []
            newest = defaultdict(dict, self._known.newest_segments)
            for topic_id, partition, base_offset in (*waiting, *segments):
                known = newest[topic_id]
                base_offset = max(base_offset, known.get(partition, base_offset))
                newest[topic_id] = {**known, partition: base_offset}
            ordered = {each: dict(sorted(newest[each].items())) for each in newest}
            self._save(replace(self._known, newest_segments=ordered))

    def cut_segments(self, topic_id: UUID, partition: int, base_offset: int | None) -> None:
        """Later ones of the partition are being removed; None: all are."""
        with self._lock:
            newest = dict(self._known.newest_segments.get(topic_id, {}))
            known = newest.pop(partition, None)
            if base_offset is not None and known is not None:
                newest[partition] = min(known, base_offset)
            if newest.get(partition) == known:
                return
            others = {**self._known.newest_segments, topic_id: dict(sorted(newest.items()))}
            if not newest:
                del others[topic_id]
            self._save(replace(self._known, newest_segments=others))

    def forget_topic(self, topic_id: UUID) -> None:
        """Its data is being removed."""
        with self._lock:
            newest = self._known.newest_segments
            if topic_id in newest:
                kept = {each: newest[each] for each in newest if each != topic_id}
                self._save(replace(self._known, newest_segments=kept))

    def _has_all(self, segments: Collection[ListedSegment]) -> bool:
        newest = self._known.newest_segments
        return all(
            newest.get(topic_id, {}).get(partition, -1) >= base_offset
            for topic_id, partition, base_offset in segments
        )

    def _save(self, known: KnownFiles) -> None:
        write_file_atomically(self._path, encode_inventory(known))
        self._known = known
