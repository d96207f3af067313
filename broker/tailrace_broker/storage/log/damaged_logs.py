"""Damaged logs of ranges with several replicas: set aside, and fetched again from the others.

<root>/data/<topic id>/<partition>/             the log
<root>/data/<topic id>/<partition>.damaged/     its files from before, once it was set aside

The second directory is there, durably, from when damage is found until this replica is in sync
again. While it is there, each start registers the range as damaged: a stop in between forgets
nothing (SAFETY 1). All methods block, except where noted; call them in an I/O thread.
"""

import shutil
from pathlib import Path

from tailrace.wire import DAMAGED_SUFFIX
from tailrace_broker.model.replication import LogKey
from tailrace_broker.storage.files.direct_file import sync_directory, translated_errors
from tailrace_broker.storage.files.inventory import Inventory


class DamagedLogs:
    """Of one data directory.

    `known`: logs that are marked; of a log that was never opened nobody has looked. `unreset`:
    those of which the journal still holds what they were. Both may be read on the event loop.
    """

    def __init__(self, data: Path, inventory: Inventory) -> None:
        self.known: set[LogKey] = set()
        self.unreset: set[LogKey] = set()
        self._data = data
        self._inventory = inventory

    def is_to_be_set_aside(self, key: LogKey) -> bool:
        """Return whether damage was found in the log that is there. StorageFailedError."""
        marker = self._marker(key)
        with translated_errors(marker):
            if not marker.is_dir():
                return False
            self.known.add(key)
            return not any(marker.iterdir())

    def mark(self, key: LogKey) -> None:
        """Note that the log is damaged; durable on return. DiskFullError, StorageFailedError."""
        marker = self._marker(key)
        with translated_errors(marker):
            marker.mkdir(parents=True, exist_ok=True)
            sync_directory(marker.parent)
            sync_directory(marker.parent.parent)
        self.known.add(key)

    def set_aside(self, key: LogKey) -> None:
        """Move the files of a log away, marked; durable on return. The next one is empty.

        What was set aside before is kept: the log since then is only a copy of what others have.
        DiskFullError, StorageFailedError.
        """
        self.mark(key)
        path, marker = self._path(key), self._marker(key)
        with translated_errors(path):
            if not any(marker.iterdir()):
                if path.exists():
                    path.rename(marker)
            elif path.exists():
                shutil.rmtree(path)
            sync_directory(path.parent)
        self._inventory.cut_segments(key.topic_id, key.partition, None)
        self.unreset.add(key)

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

    def _path(self, key: LogKey) -> Path:
        return self._data / str(key.topic_id) / str(key.partition)

    def _marker(self, key: LogKey) -> Path:
        return self._path(key).with_name(f"{key.partition}{DAMAGED_SUFFIX}")
