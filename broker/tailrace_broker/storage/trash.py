"""Deleted topics: their data stays in `data/trash/` for a time, so that it can be brought back.

A deletion is a file and a rename. `mark` writes `topic.json` beside the topic's partitions; the
topic goes from `topics.json`, which is the deletion; `bury` moves its directory to the trash. What
a stop in between leaves, the next start finishes: the marked directory of no topic is buried, and a
topic that is still there loses its mark, so that no later start takes it for deleted.

<root>/data/<topic id>/topic.json        marked: about to be deleted, or deleted and not buried yet
<root>/data/trash/<topic id>/            buried
"""

import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import structlog

from tailrace_broker.codec.metadata import DeletedTopic, decode_deleted, encode_deleted
from tailrace_broker.model.errors import StoredDataError
from tailrace_broker.model.topic import Topic
from tailrace_broker.storage.direct_file import (
    sync_directory,
    translated_errors,
    write_file_atomically,
)

MARK = "topic.json"
RUBBISH_SUFFIX = ".purged"

_log = structlog.get_logger()


class Trash:
    """The trash of one data directory. All methods block; call them in an I/O thread."""

    def __init__(self, data: Path) -> None:
        """`data`: where the directories of topics are."""
        self._data = data
        self._path = data / "trash"

    def mark(self, topic: Topic, deleted_us: int) -> None:
        """Write down what is about to be deleted; durable on return."""
        directory = self._data / str(topic.topic_id)
        with translated_errors(directory):
            directory.mkdir(exist_ok=True)  # a topic without a record has none
            sync_directory(self._data)
        write_file_atomically(directory / MARK, encode_deleted(DeletedTopic(topic, deleted_us)))

    def unmark(self, topic_id: UUID) -> None:
        """The topic stays after all: remove its mark, if it has one."""
        mark = self._data / str(topic_id) / MARK
        with _logged_failures(mark):
            if mark.exists():
                mark.unlink()
                sync_directory(mark.parent)

    def bury(self, topic_id: UUID) -> None:
        """Move the data of a deleted topic here; when that fails, the next start does it."""
        directory = self._data / str(topic_id)
        with _logged_failures(directory):
            self._path.mkdir(exist_ok=True)
            directory.rename(self._path / directory.name)
            sync_directory(self._path)
            sync_directory(self._data)

    def finish_deletions(self, living: Collection[UUID]) -> None:
        """Finish or undo what was interrupted; say which data belongs to no topic."""
        for directory in topic_directories(self._data):
            topic_id = UUID(directory.name)
            if topic_id in living:
                self.unmark(topic_id)
            elif (directory / MARK).exists():
                self.bury(topic_id)
            else:
                _log.warning("topic.unknown", path=str(directory))

    def purge(self, before_us: int) -> int | None:
        """Remove what was deleted by then; when the oldest of the rest was, None: no rest."""
        kept_us = []
        with _logged_failures(self._path):
            for directory in topic_directories(self._path):
                with _logged_failures(directory):
                    deleted = decode_deleted((directory / MARK).read_bytes())
                    if deleted.deleted_us > before_us:
                        kept_us.append(deleted.deleted_us)
                    else:
                        # First a name that needs no mark to be known for rubbish after a stop.
                        directory.rename(directory.with_suffix(RUBBISH_SUFFIX))
                        _log.info("topic.purged", topic=deleted.topic.name, id=directory.name)
            for directory in self._path.glob(f"*{RUBBISH_SUFFIX}"):
                shutil.rmtree(directory)
        return min(kept_us, default=None)


def topic_directories(parent: Path) -> list[Path]:
    """The directories of topics' data in `parent`; other files are not ours."""
    with translated_errors(parent):
        found = parent.iterdir() if parent.exists() else ()
        return sorted(path for path in found if _is_uuid(path.name) and path.is_dir())


@contextmanager
def _logged_failures(path: Path) -> Iterator[None]:
    """Which topics there are is settled: what fails here is tried again at the next start."""
    try:
        with translated_errors(path):
            yield
    except StoredDataError as error:
        _log.warning("trash.failed", detail=error.detail)


def _is_uuid(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False
