"""Damaged logs of ranges with several replicas: set aside, and fetched again from the others.

<root>/data/<topic id>/<partition>/                  the log
<root>/data/<topic id>/<partition>.damaged/found     empty: that log is damaged
<root>/data/<topic id>/<partition>.damaged/log/      what was set aside first

The directory of the last two is there, durably, from when damage is found until this replica is in
sync again. While it is there, each start registers the range as damaged: a stop in between forgets
nothing (SAFETY 1). Without `found` in it, the log is what was fetched since. All methods block but
`forget`; call them in an I/O thread.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from tailrace.wire import DAMAGED_SUFFIX
from tailrace_broker.model.replication import LogKey
from tailrace_broker.storage.files.direct_file import sync_directory, translated_errors
from tailrace_broker.storage.files.inventory import Inventory

# In the directory beside a damaged log.
_FOUND = "found"
_LOG = "log"


class DamagedLogs:
    """Of one data directory.

    `known`: logs that are marked; of a log that was never opened nobody has looked. `unreset`:
    those of which the journal still holds what they were. Both may be read on the event loop.
    """

    def __init__(self, path_of: Callable[[UUID, int], Path], inventory: Inventory) -> None:
        """`path_of` returns the directory of a partition."""
        self.known: set[LogKey] = set()
        self.unreset: set[LogKey] = set()
        self._path_of = path_of
        self._inventory = inventory

    def is_to_be_set_aside(self, key: LogKey) -> bool:
        """Return whether damage was found in the log that is there. StorageFailedError."""
        marker = self._marker(key)
        with translated_errors(marker):
            if not marker.is_dir():
                return False
            self.known.add(key)
            return (marker / _FOUND).exists()

    def mark(self, key: LogKey) -> None:
        """Note that the log is damaged; durable on return. DiskFullError, StorageFailedError."""
        directory = self._marker(key).parent
        with translated_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
            sync_directory(directory.parent)
            self._mark(key)

    def mark_in_place(self, key: LogKey) -> bool:
        """As `mark`. False: its topic's directory is gone, to the trash if the topic was deleted.

        Nothing is made in its place: what comes back from the trash would find it in the way.
        """
        with translated_errors(self._marker(key)):
            try:
                self._mark(key)
            except FileNotFoundError:
                return False
        return True

    def _mark(self, key: LogKey) -> None:
        marker = self._marker(key)
        marker.mkdir(exist_ok=True)
        (marker / _FOUND).touch()
        sync_directory(marker)
        sync_directory(marker.parent)
        self.known.add(key)

    def set_aside(self, key: LogKey) -> None:
        """Move the files of a log away, marked; durable on return. The next one is empty.

        What was set aside before is kept: the log since then is only a copy of what others have.
        DiskFullError, StorageFailedError.
        """
        self.mark(key)
        path, marker = self._path_of(*key), self._marker(key)
        with translated_errors(path):
            if path.exists():
                if (marker / _LOG).exists():
                    shutil.rmtree(path)
                else:
                    path.rename(marker / _LOG)
            sync_directory(marker)
            sync_directory(path.parent)
        self._inventory.cut_segments(key.topic_id, key.partition, None)
        with translated_errors(marker):
            (marker / _FOUND).unlink()
            sync_directory(marker)
        self.unreset.add(key)

    def set_aside_path(self, key: LogKey) -> Path:
        """Return where a log lies that was set aside, if one was."""
        return self._marker(key) / _LOG

    def remove(self, key: LogKey) -> None:
        """The log has again all that is committed. DiskFullError, StorageFailedError."""
        marker = self._marker(key)
        with translated_errors(marker):
            if marker.exists():
                shutil.rmtree(marker)
                sync_directory(marker.parent)
        self.known.discard(key)

    def forget(self, key: LogKey) -> None:
        """Its topic is gone, with all its files."""
        self.known.discard(key)
        self.unreset.discard(key)

    def _marker(self, key: LogKey) -> Path:
        path = self._path_of(*key)
        return path.with_name(f"{path.name}{DAMAGED_SUFFIX}")
