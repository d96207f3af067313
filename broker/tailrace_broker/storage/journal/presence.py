"""Checks that no file of the journal is missing before a start changes anything. Blocks.

A file that a person has renamed to `<n>.journal.lost`, or made under that name, is one whose loss
is accepted: the start goes on without it, once.
"""

from pathlib import Path

import structlog

from tailrace_broker.model.errors import CorruptMetadataError
from tailrace_broker.storage.files.direct_file import translated_errors
from tailrace_broker.storage.files.inventory import Inventory

ACCEPTED_SUFFIX = ".lost"

_log = structlog.get_logger()


def check_journal(journal: Path, inventory: Inventory, *, boot: int, is_clean: bool) -> None:
    """`boot`: the last one; `is_clean`: it was stopped, and nothing is only in the journal.

    CorruptMetadataError: a file is missing, and with it acknowledged events. DiskFullError,
    StorageFailedError.
    """
    missing = [name for name in inventory.journal_files if not (journal / name).exists()]
    accepted = [name for name in missing if _marker(journal / name).exists()]
    unknown = [name for name in missing if name not in accepted]
    if unknown and not is_clean:
        path = journal / unknown[0]
        raise CorruptMetadataError(
            f"{path} is missing, and the broker was not stopped: events may be lost that only "
            f"this file held; restore it from a copy, or go on without them: mkdir -p {journal} "
            f"&& touch {_marker(path)}"
        )
    if missing:
        _log.warning("journal.missing", files=missing, accepted=accepted)
        inventory.keep_journal_files(set(inventory.journal_files) - set(missing))
    with translated_errors(journal):
        for name in accepted:  # once: a later loss needs its own marker
            _marker(journal / name).replace(journal / f"{name}{ACCEPTED_SUFFIX}.{boot}")


def _marker(path: Path) -> Path:
    return path.with_name(path.name + ACCEPTED_SUFFIX)
