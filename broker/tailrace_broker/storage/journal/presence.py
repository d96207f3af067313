"""Checks that no file of the journal is missing before a start changes anything. Blocks.

A person accepts the loss of a file that is missing, or of what of a file cannot be read, by making
`<n>.journal.lost`; to rename a damaged file to that is the same. The start keeps it with the number
of the boot before behind its name, and with the first sequence of the file's round in it: what is
lost of a later round needs its own.
"""

from pathlib import Path

import structlog

from tailrace.wire import JOURNAL_BLOCK_BYTES
from tailrace_broker.codec.journal import JournalFileHeader, read_file_header
from tailrace_broker.model.errors import CorruptMetadataError, ReadFailedError
from tailrace_broker.storage.files.direct_file import (
    sync_directory,
    translated_errors,
    write_file_atomically,
)
from tailrace_broker.storage.files.inventory import Inventory

ACCEPTED_SUFFIX = ".lost"

_log = structlog.get_logger()


def check_journal(journal: Path, inventory: Inventory, *, boot: int, is_clean: bool) -> None:
    """`boot`: the last one; `is_clean`: it was stopped, and nothing is only in the journal.

    CorruptMetadataError: a file is missing, and with it acknowledged events. DiskFullError,
    StorageFailedError.
    """
    _accept_damaged(journal, boot)
    missing = [name for name in inventory.journal_files if not (journal / name).exists()]
    accepted = [name for name in missing if marker(journal / name).exists()]
    unknown = [name for name in missing if name not in accepted]
    if unknown and not is_clean:
        path = journal / unknown[0]
        raise CorruptMetadataError(
            f"{path} is missing, and the broker was not stopped: events may be lost that only "
            f"this file held; restore it from a copy, or go on without them: mkdir -p {journal} "
            f"&& touch {marker(path)}"
        )
    if missing:
        _log.warning("journal.missing", files=missing, accepted=accepted)
        inventory.keep_journal_files(set(inventory.journal_files) - set(missing))
    with translated_errors(journal):
        for name in accepted:  # once: a later loss needs its own marker
            marker(journal / name).replace(journal / f"{name}{ACCEPTED_SUFFIX}.{boot}")


def is_accepted(path: Path, header: JournalFileHeader | None) -> bool:
    """Whether somebody has accepted what is lost of the round of this file."""
    with translated_errors(path, ReadFailedError):
        markers = path.parent.glob(f"{path.name}{ACCEPTED_SUFFIX}.*")
        return any(each.read_bytes() == _round_name(header) for each in markers)


def marker(path: Path) -> Path:
    """Where a person accepts the loss."""
    return path.with_name(path.name + ACCEPTED_SUFFIX)


def _accept_damaged(journal: Path, boot: int) -> None:
    """Note for which round of a file its loss is accepted; a renamed file gets its name back."""
    with translated_errors(journal):
        for found in sorted(journal.glob(f"*.journal{ACCEPTED_SUFFIX}")):
            path = found.with_suffix("")
            stored = found if not path.exists() else path
            if not stored.stat().st_size:
                continue  # the file is missing
            with stored.open("rb") as file:
                header = read_file_header(memoryview(file.read(JOURNAL_BLOCK_BYTES)))
            write_file_atomically(found.with_name(f"{found.name}.{boot}"), _round_name(header))
            found.unlink() if path.exists() else found.rename(path)
            sync_directory(journal)
            _log.warning("journal.accepted", file=str(path))


def _round_name(header: JournalFileHeader | None) -> bytes:
    return b"" if header is None else b"%d\n" % header.first_sequence
