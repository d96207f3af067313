"""What the files of one broker say of its logs: read in the order of a start, nothing changed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar
from uuid import UUID, uuid4

from tailrace.wire import (
    DELETED_TOPIC_FILE,
    INVENTORY_FILE,
    META_FILE,
    PURGED_SUFFIX,
    TRASH,
)
from tailrace_broker.codec.metadata import DiskIdentity, KnownFiles, decode_deleted
from tailrace_broker.core.log.journal_replay import JournaledBatch, JournalReplay
from tailrace_broker.core.node.applied import state_at
from tailrace_broker.core.raft.metadata_log import MetadataLog, owns
from tailrace_broker.core.ring.roles import is_replicated
from tailrace_broker.core.ring.topics import topic_of, topic_with_id
from tailrace_broker.model.errors import CorruptMetadataError, StoredDataError
from tailrace_broker.model.ring_state import RingState, Start
from tailrace_broker.model.topic import Partition, Topic
from tailrace_broker.storage.data_directory import (
    check_metadata,
    has_lost_power,
    load_identity,
    load_inventory,
    restart_of,
)
from tailrace_broker.storage.inspection.findings import Finding, refused
from tailrace_broker.storage.inspection.journals import check_journal_files
from tailrace_broker.storage.journal.file import journal_paths
from tailrace_broker.storage.journal.presence import ACCEPTED_SUFFIX, missing_journal
from tailrace_broker.storage.log.recovery import LogEvidence
from tailrace_broker.storage.log.rescued_tail import load_rescued
from tailrace_broker.storage.segments.writer import LogPlace
from tailrace_broker.storage.trash import topic_directories

T = TypeVar("T")


class InspectedLog(NamedTuple):
    """A log of this broker, and what is known of it. `epoch`: of its range; None is not known."""

    place: LogPlace
    evidence: LogEvidence
    epoch: int | None


@dataclass(slots=True)
class InspectedDisk:
    """What could be read, and in `findings` what a start refuses, or goes on without."""

    data: Path
    identity: DiskIdentity | None = None
    known: KnownFiles = field(default_factory=lambda: KnownFiles(()))
    state: RingState | None = None
    replay: JournalReplay = field(default_factory=JournalReplay)
    log_ends: Mapping[UUID, list[int | None]] = field(default_factory=dict)
    is_clean: bool = False
    has_lost_power: bool = False  # as the next start counts
    findings: list[Finding] = field(default_factory=list)

    @staticmethod
    def read(data: Path) -> "InspectedDisk":
        """Read a broker's `data` directory."""
        disk = InspectedDisk(data)
        if data.is_dir():
            disk._read_identity()
            disk._read_metadata()
            disk._read_journal()
        return disk

    def logs(self) -> Iterator[InspectedLog]:
        """The logs that a start opens, and all others of which something is there or must be."""
        opened: set[tuple[UUID, int]] = set()
        for topic, partition in self._hosted():
            opened.add((topic.topic_id, partition.partition))
            yield self._opened(topic, partition)
        for topic_id, number in sorted(self._listed() - opened):
            if not self._is_purged(topic_id):
                yield self._unopened(topic_id, number)

    # --- reading ---

    def _tried(self, path: Path, read: Callable[[], T]) -> T | None:
        """None, and a finding, when it is refused."""
        try:
            return read()
        except StoredDataError as error:
            self.findings.append(refused(path, error.detail))
            return None

    def _read_identity(self) -> None:
        data = self.data
        self.identity = self._tried(data / META_FILE, lambda: load_identity(data))
        if self.identity is None:
            return
        self.known = self._tried(data / INVENTORY_FILE, lambda: load_inventory(data)) or KnownFiles(
            ()
        )
        restart = restart_of(data, self.identity)
        self.is_clean, self.log_ends = restart.kind == "clean", restart.log_ends
        starts = (*self.identity.starts, Start(uuid4(), restart.kind))
        self.has_lost_power = has_lost_power(starts)

    def _read_metadata(self) -> None:
        metadata = self.data / "metadata"
        identity = self.identity
        if identity is None:
            return
        refused_count = len(self.findings)
        self._tried(metadata, lambda: check_metadata(self.data, identity))
        if len(self.findings) == refused_count:
            self.state = self._tried(metadata, lambda: _committed_state(metadata))

    def _read_journal(self) -> None:
        journal = self.data / "journal"
        missing = missing_journal(journal, self.known.journal_files, is_clean=self.is_clean)
        for name in missing.missing:
            path = journal / name
            if name in missing.refused:
                self.findings.append(refused(path, missing.refused[name]))
                continue
            text = (
                "is missing or empty, which somebody has accepted: the next start goes on "
                "without it"
                if name in missing.accepted
                else "is missing or empty; the broker was stopped, so it held nothing that is not "
                "elsewhere"
            )
            self.findings.append(Finding(path, None, text, is_bad=False))
        for path in sorted(journal.glob(f"*.journal{ACCEPTED_SUFFIX}.*")):
            text = (
                "somebody has accepted that events of the journal are lost; of which partitions, "
                "is known where later events show it"
            )
            self.findings.append(Finding(path, None, text, is_bad=False))
        checked = self._tried(journal, lambda: check_journal_files(list(journal_paths(self.data))))
        if checked is not None:
            self.findings += checked[0]
            self.replay = checked[1]

    # --- logs ---

    def _hosted(self) -> Iterator[tuple[Topic, Partition]]:
        """Partitions of which this broker is a replica."""
        if self.state is None or self.identity is None:
            return
        for topic in self.state.topics.values():
            topic_state = topic_of(self.state, topic)
            for partition in topic_state.partitions:
                owner = self.state.ranges[partition.range_id]
                if self.identity.ordinal in ((*owner.complete, *owner.replicas)):
                    yield topic_state, partition

    def _listed(self) -> set[tuple[UUID, int]]:
        """List the partitions that have a directory or must have one."""
        listed = {
            (topic_id, partition)
            for topic_id, newest in self.known.newest_segments.items()
            for partition in newest
        }
        for parent in (self.data, self.data / TRASH):
            listed |= {
                (UUID(topic.name), int(path.name))
                for topic in topic_directories(parent)
                for path in topic.iterdir()
                if path.name.isdecimal() and path.is_dir()
            }
        return listed

    def _is_purged(self, topic_id: UUID) -> bool:
        return (self.data / TRASH / f"{topic_id}{PURGED_SUFFIX}").exists()

    def _opened(self, topic: Topic, partition: Partition) -> InspectedLog:
        """Return a log as a start opens it."""
        number = partition.partition
        ends = self.log_ends.get(topic.topic_id, [])
        exact_end = ends[number] if number < len(ends) else None
        place = self._place(topic.topic_id, number, topic.name)
        evidence = self._evidence(place, partition.first_offset)
        return InspectedLog(
            place,
            evidence._replace(
                headers_prove=self._headers_prove(partition),
                exact_end=partition.sealed_end if partition.is_sealed else exact_end,
                damaged=self.replay.damaged.get((topic.topic_id.bytes, number), []),
            ),
            partition.epoch,
        )

    def _unopened(self, topic_id: UUID, number: int) -> InspectedLog:
        """A deleted topic's, another broker's, or one of which nobody knows the topic."""
        topic = self._topic(topic_id)
        if topic is not None and self.state is not None and topic.name in self.state.topics:
            return self._elsewhere(topic, number)
        place = self._place(topic_id, number, str(topic_id) if topic is None else topic.name)
        partition = None if topic is None else topic.find(number)
        if partition is None:
            return InspectedLog(place, self._evidence(place, None), None)
        evidence = self._evidence(place, partition.first_offset)
        evidence = evidence._replace(headers_prove=self._headers_prove(partition))
        return InspectedLog(place, evidence, None)

    def _headers_prove(self, partition: Partition) -> bool:
        """As a start has it: not in one of several copies that has lost power."""
        owner = self.state.ranges.get(partition.range_id) if self.state is not None else None
        return not (self.has_lost_power and owner is not None and is_replicated(owner))

    def _elsewhere(self, topic: Topic, number: int) -> InspectedLog:
        """Return a partition that another broker has now: nothing of the old copy must be here."""
        place = self._place(topic.topic_id, number, topic.name)
        evidence = LogEvidence(first_segment(place.directory), is_start_known=False)
        return InspectedLog(place, evidence, None)

    def _topic(self, topic_id: UUID) -> Topic | None:
        """Return what is known of a topic that this broker does not open."""
        if self.state is not None:
            deleted = self.state.deleted.get(topic_id)
            trashed = None if deleted is None else deleted.topic
            topic = topic_with_id(self.state, topic_id) or trashed
            if topic is not None:
                return topic_of(self.state, topic)
        for parent in (self.data / TRASH, self.data):
            mark = parent / str(topic_id) / DELETED_TOPIC_FILE
            if mark.exists():
                try:
                    return decode_deleted(mark.read_bytes()).topic
                except CorruptMetadataError:
                    return None
        return None

    def _place(self, topic_id: UUID, number: int, topic: str) -> LogPlace:
        buried = self.data / TRASH / str(topic_id)
        parent = buried if buried.exists() else self.data / str(topic_id)
        return LogPlace(parent / str(number), topic, topic_id, number, range_id=0)

    def _evidence(self, place: LogPlace, first_offset: int | None) -> LogEvidence:
        rescued = self._tried(place.directory, lambda: load_rescued(place.directory)) or []
        journaled: list[JournaledBatch] = []
        if place.directory.parent.parent == self.data:  # who restores a topic does not search there
            key = place.topic_id.bytes, place.partition
            journaled = self.replay.batches.get(key, [])
        return LogEvidence(
            first_offset if first_offset is not None else first_segment(place.directory),
            self.known.newest_segments.get(place.topic_id, {}).get(place.partition),
            [*rescued, *journaled],
            is_journal_lossy=self.replay.is_lossy,
            is_start_known=first_offset is not None,
        )


def first_segment(directory: Path) -> int:
    """Base offset of the first segment there; 0 when there is none."""
    return min((int(path.stem) for path in directory.glob("[0-9]" * 20 + ".log")), default=0)


def _committed_state(metadata: Path) -> RingState | None:
    files = {path.name: path.read_bytes() for path in metadata.iterdir() if owns(path.name)}
    kept, _ = MetadataLog.recover(files)
    return state_at(kept)
