"""Which files of the journal and which partitions must be on this disk: `inventory.json`.

By it a start and `tailrace verify` notice what is gone. A file of the journal is added when it is
there, durably, and has no frame yet. A partition is added when its first segment is there, durably,
and before anybody relies on it: before the append is acknowledged, or the journal gives up what it
holds. So what is listed was there, whatever has stopped the broker; and what is not holds nothing
that was acknowledged. It costs a small write for the first segment of a partition, none afterwards.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path
from threading import Lock
from uuid import UUID

from msgspec.structs import replace

from tailrace_broker.codec.metadata import KnownFiles, encode_inventory
from tailrace_broker.storage.files.direct_file import write_file_atomically

INVENTORY = "inventory.json"

# Topic id and partition.
LogKey = tuple[UUID, int]


class Inventory:
    """Of one data directory. What changes it blocks, and is durable on return.

    Each may raise DiskFullError and StorageFailedError, and has changed nothing then.
    """

    def __init__(self, path: Path, known: KnownFiles) -> None:
        """`known`: as the file has it."""
        self._path = path
        self._known = known
        self._lock = Lock()
        self._waiting: list[LogKey] = []  # whoever writes next takes them along

    @property
    def journal_files(self) -> tuple[str, ...]:
        """Names of the journal's files that must be there."""
        return self._known.journal_files

    def has(self, topic_id: UUID, partition: int) -> bool:
        """Whether the partition must have segments, or have lost them to retention."""
        return partition in self._known.partitions.get(topic_id, ())

    def add_journal_file(self, name: str) -> None:
        """It is there, durably."""
        if name not in self.journal_files:
            self.keep_journal_files([*self.journal_files, name])

    def keep_journal_files(self, names: Iterable[str]) -> None:
        """These must be there from now on, and no others."""
        with self._lock:
            self._save(replace(self._known, journal_files=tuple(sorted(names))))

    def add_partitions(self, keys: Collection[LogKey]) -> None:
        """They have segments, durably."""
        if self._has_all(keys):
            return
        self._waiting.extend(keys)
        with self._lock:
            if self._has_all(keys):  # another thread took them along
                return
            waiting, self._waiting = self._waiting, []
            new = defaultdict(set)
            for topic_id, partition in (*waiting, *keys):
                new[topic_id].add(partition)
            known = self._known.partitions
            added = {each: sorted({*known.get(each, ()), *new[each]}) for each in new}
            self._save(replace(self._known, partitions={**known, **added}))

    def forget_partition(self, topic_id: UUID, partition: int) -> None:
        """What it had is accepted as lost: it need not have segments until it gets one again."""
        with self._lock:
            known = self._known.partitions
            if self.has(topic_id, partition):
                left = [each for each in known[topic_id] if each != partition]
                self._save(replace(self._known, partitions={**known, topic_id: left}))

    def forget_topic(self, topic_id: UUID) -> None:
        """Its data is being removed."""
        with self._lock:
            known = self._known.partitions
            if topic_id in known:
                kept = {each: known[each] for each in known if each != topic_id}
                self._save(replace(self._known, partitions=kept))

    def _has_all(self, keys: Collection[LogKey]) -> bool:
        return all(self.has(*key) for key in keys)

    def _save(self, known: KnownFiles) -> None:
        write_file_atomically(self._path, encode_inventory(known))
        self._known = known
