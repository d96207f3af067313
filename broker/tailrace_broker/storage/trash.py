"""Deleted topics: their data stays in `data/trash/` for a time, so that it can be brought back.

The ring commits the deletion; then `mark` writes `topic.json` beside the topic's partitions, and
`bury` moves its directory to the trash. To restore is the same backwards: the ring commits it,
`exhume` moves the directory, mark and all, back, and `unmark` removes the mark. What a stop in
between leaves, or what was committed while this broker was away, the next start does:
`finish_deletions`.

A full disk empties the trash before its time, the oldest deletion first: `with_room`. What is kept
in its place only the ring can give up: `on_full`.

What other brokers have copies of stays where it is, marked, until the ring forgets it: `discard`.

<root>/data/<topic id>/topic.json        marked: in between, or kept there
<root>/data/trash/<topic id>/            buried
"""

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import NamedTuple, TypeVar
from uuid import UUID

import structlog

from tailrace.wire import DELETED_TOPIC_FILE, PURGED_SUFFIX, TRASH
from tailrace_broker.codec.metadata import DeletionMark, decode_deleted, encode_deleted
from tailrace_broker.model.counters import Counters
from tailrace_broker.model.errors import (
    DiskFullError,
    InvalidParameterError,
    NotInTrashError,
    StorageFailedError,
    StoredDataError,
)
from tailrace_broker.model.topic import Topic
from tailrace_broker.storage.files.direct_file import sync_directory, translated_errors
from tailrace_broker.storage.files.disk_use import tree_bytes
from tailrace_broker.storage.files.spare_files import SpareFiles

T = TypeVar("T")

_log = structlog.get_logger()


class Buried(NamedTuple):
    """One deleted topic of the trash."""

    deleted: DeletionMark
    directory: Path

    def size_bytes(self) -> int:
        """Return the bytes that its removal frees."""
        return tree_bytes(self.directory)


class Trash:
    """The trash of one data directory. All methods block; call them in an I/O thread."""

    def __init__(self, data: Path, forget: Callable[[UUID], None]) -> None:
        """`data`: where the directories of topics are; `forget`: called for each that is purged."""
        self.counters = Counters()
        self.on_full: Callable[[], None] = lambda: None  # nothing of the trash makes room
        self.spares = SpareFiles(data)
        self._data = data
        self._forget = forget
        self._path = data / TRASH
        # Nothing is removed while another thread removes or restores.
        self._lock = Lock()
        self._emptied_count = 0

    def mark(self, topic: Topic, deleted_us: int) -> None:
        """Write down what is about to be deleted; durable on return. Works on a full disk."""
        directory = self._data / str(topic.topic_id)
        self.spares.make_directory(directory)  # a topic without a record has none
        with translated_errors(directory):
            sync_directory(self._data)
        self.spares.write(
            directory / DELETED_TOPIC_FILE, encode_deleted(DeletionMark(topic, deleted_us))
        )

    def unmark(self, topic_id: UUID) -> None:
        """The topic stays after all, or again: remove its mark, if it has one."""
        mark = self._data / str(topic_id) / DELETED_TOPIC_FILE
        with _logged_failures(mark):
            if mark.exists():
                mark.unlink()
                sync_directory(mark.parent)

    def bury(self, topic_id: UUID) -> None:
        """Move the data of a deleted topic here; when that fails, the next start does it."""
        directory = self._data / str(topic_id)
        with _logged_failures(directory):
            self.spares.make_directory(self._path)
            directory.rename(self._path / directory.name)
            sync_directory(self._path)
            sync_directory(self._data)

    def finish_deletions(
        self,
        living: Collection[UUID],
        deleted: Mapping[UUID, tuple[Topic, int]],
        kept: Collection[UUID] = (),
    ) -> None:
        """Do what was interrupted, or committed meanwhile; say which data belongs to no topic.

        `deleted`: by id what each deleted topic was, and when it was deleted, in µs; `kept`: the
        deleted ones that stay where they are.
        StorageFailedError: what is to be restored cannot be moved; all else that fails is logged,
        and done by the next start.
        """
        for directory in self._restored(living):
            with translated_errors(directory):
                self._move_back(directory)
        for directory in topic_directories(self._data):
            topic_id = UUID(directory.name)
            if topic_id in living:
                self.unmark(topic_id)
            elif topic_id in kept:
                continue
            elif (directory / DELETED_TOPIC_FILE).exists():
                self.bury(topic_id)
            elif topic_id in deleted:
                with _logged_failures(directory):
                    self.mark(*deleted[topic_id])
                    self.bury(topic_id)
            else:
                _log.warning("topic.unknown", path=str(directory))

    def gone(self, topic_ids: Iterable[UUID]) -> set[UUID]:
        """Those of these topics, none of them living, of which nothing is left.

        A deletion moves a topic's directory from the first place to the second, a purge away.
        """
        places = self._data, self._path
        return {
            topic_id
            for topic_id in topic_ids
            if not any((place / str(topic_id)).exists() for place in places)
        }

    def buried(self) -> list[Buried]:
        """Return the topics in the trash that have a readable mark, the latest deletion first."""
        return _latest_first(self._marked(self._path))

    def restorable(self) -> list[Buried]:
        """As `buried`, with those that are marked where they are."""
        return _latest_first([*self._marked(self._path), *self._marked(self._data)])

    def _marked(self, parent: Path) -> list[Buried]:
        found = []
        with _logged_failures(parent):
            for directory in topic_directories(parent):
                mark = directory / DELETED_TOPIC_FILE
                if parent == self._path or mark.exists():
                    with _logged_failures(directory):
                        found.append(Buried(decode_deleted(mark.read_bytes()), directory))
        return found

    def find(self, wanted: str) -> Topic:
        """The deleted topic of this id, or of this name when no other had it.

        NotInTrashError, InvalidParameterError.
        """
        topics = [each.deleted.topic for each in self.restorable()]
        matching = [topic for topic in topics if wanted in (topic.name, str(topic.topic_id))]
        if not matching:
            raise not_in_trash(wanted)
        if len(matching) > 1:
            ids = ", ".join(str(topic.topic_id) for topic in matching)
            raise InvalidParameterError(
                f'{len(matching)} deleted topics were named "{wanted}"; give the id of one, '
                f"the latest deletion first: {ids}",
                parameter="topic",
            )
        return matching[0]

    def exhume(self, topic: Topic) -> None:
        """Move a deleted topic's data back, still marked; unless it was never moved.

        NotInTrashError, StorageFailedError.
        """
        directory = self._path / str(topic.topic_id)
        with self._lock, translated_errors(directory):
            if not directory.exists():
                if (self._data / directory.name / DELETED_TOPIC_FILE).exists():
                    return
                raise not_in_trash(topic.name)
            self._move_back(directory)

    def purge(self, before_us: int) -> int | None:
        """Remove what was deleted by then; when the oldest of the rest was, None: no rest."""
        kept_us = []
        with self._lock, _logged_failures(self._path):
            for buried in reversed(self.buried()):
                if buried.deleted.deleted_us > before_us:
                    kept_us.append(buried.deleted.deleted_us)
                else:
                    with _logged_failures(buried.directory):
                        self._remove(buried, is_early=False)
            self._remove_rubbish()
        return min(kept_us, default=None)

    def discard(self, topic: Topic) -> None:
        """Remove what is kept of a deleted topic, marked or not: the ring has forgotten it."""
        directory = self._data / str(topic.topic_id)
        with self._lock, _logged_failures(directory):
            if directory.exists():
                self.spares.make_directory(self._path)
                self._remove(Buried(DeletionMark(topic, 0), directory), is_early=False)
            self._remove_rubbish()

    def with_room(self, work: Callable[[], T]) -> T:
        """Run `work`; while the disk is too full for it, remove from the trash and run it again.

        `work` must have left nothing behind when it raises DiskFullError.
        """
        while True:
            emptied_count = self._emptied_count
            try:
                return work()
            except DiskFullError:
                if not self._make_room(emptied_count):
                    raise

    def _restored(self, living: Collection[UUID]) -> list[Path]:
        """Return the directories of existing topics. StorageFailedError."""
        try:
            directories = topic_directories(self._path)
        except StorageFailedError as error:  # one by one: that none is missed is what counts
            _log.warning("trash.failed", detail=error.detail)
            with translated_errors(self._path):
                return [path for each in living if (path := self._path / str(each)).exists()]
        return [path for path in directories if UUID(path.name) in living]

    def _move_back(self, directory: Path) -> None:
        directory.rename(self._data / directory.name)
        sync_directory(self._data)
        sync_directory(self._path)

    def _make_room(self, emptied_count: int) -> bool:
        """Remove the oldest deletion, unless another thread did it since that count was read.

        False: nothing is left to remove.
        """
        with self._lock, _logged_failures(self._path):
            if emptied_count != self._emptied_count:
                return True
            for oldest in self.buried()[-1:]:
                self._remove(oldest, is_early=True)
            if self._remove_rubbish():
                self._emptied_count += 1
                self.spares.fill()
                return True
        self.on_full()
        return False

    def _remove(self, buried: Buried, *, is_early: bool) -> None:
        """First to a name that needs no mark to be known for rubbish after a stop."""
        directory, topic = buried.directory, buried.deleted.topic
        size_bytes = buried.size_bytes()
        directory.rename(self._path / f"{directory.name}{PURGED_SUFFIX}")
        self.counters.purged_topics += 1
        self.counters.purged_early_topics += is_early
        self.counters.purged_bytes += size_bytes
        _log.info(
            "topic.purged",
            topic=topic.name,
            id=directory.name,
            size_bytes=size_bytes,
            is_early=is_early,
        )

    def _remove_rubbish(self) -> bool:
        """Remove rubbish; return whether there was any."""
        names = self._path.glob(f"*{PURGED_SUFFIX}")
        rubbish = [directory for directory in names if _is_uuid(directory.stem)]
        for directory in rubbish:
            for path in directory.iterdir():
                path.unlink() if path.is_file() else shutil.rmtree(path)
            self._forget(UUID(directory.stem))  # before nothing is left that records its purge
            directory.rmdir()
        return bool(rubbish)


def _latest_first(found: list[Buried]) -> list[Buried]:
    return sorted(found, key=lambda each: each.deleted.deleted_us, reverse=True)


def topic_directories(parent: Path) -> list[Path]:
    """The directories of topics' data in `parent`; other files are not ours."""
    with translated_errors(parent):
        paths = parent.iterdir() if parent.exists() else ()
        return sorted(path for path in paths if _is_uuid(path.name) and path.is_dir())


@contextmanager
def _logged_failures(path: Path) -> Iterator[None]:
    """Log failures: the state is settled, and the next start tries again."""
    try:
        with translated_errors(path):
            yield
    except StoredDataError as error:
        _log.warning("trash.failed", detail=error.detail)


def not_in_trash(wanted: str) -> NotInTrashError:
    """Return the error of a name or id that is not in the trash."""
    return NotInTrashError(
        f'no deleted topic "{wanted}" is in the trash; what is: GET /v1/trash, '
        "or tailrace topic list --deleted",
        topic=wanted,
    )


def _is_uuid(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False
