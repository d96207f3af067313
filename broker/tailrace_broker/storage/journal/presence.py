"""Checks that no file of the journal is missing before a start changes anything. Blocks.

A person accepts the loss of a file that is missing, or of what of a file cannot be read, by making
`<n>.journal.lost`; to rename a damaged file to that is the same. The start keeps it with the number
of the boot before behind its name, and with the first sequence of the file's round in it: what is
lost of a later round needs its own.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

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
# Stands for the files of a journal of which nobody knows the names.
_UNKNOWN_FILE = "0.journal"
_READ_BYTES = 64 * 1024

_log = structlog.get_logger()


class MissingJournal(NamedTuple):
    """Files of the journal that must be there and are not, or hold nothing.

    Of `accepted` somebody has accepted the loss. `refused`, with what a start says: nobody has,
    and they may have held events.
    """

    missing: Sequence[str]
    accepted: Sequence[str]
    refused: Mapping[str, str]

    def check(self) -> None:
        """CorruptMetadataError: with a file acknowledged events are missing."""
        for detail in self.refused.values():
            raise CorruptMetadataError(detail)


def missing_journal(
    journal: Path, names: Sequence[str] | None, *, is_clean: bool
) -> MissingJournal:
    """Return which of these files are missing, or were emptied.

    `names` None: nobody knows them, so that there must be one at least. `is_clean`: the broker was
    stopped, and nothing is only in the journal.
    """
    if names is None:
        has_files = is_clean or any(journal.glob("*.journal"))
        names = [] if has_files else [_UNKNOWN_FILE]
        why = "inventory.json was made again, so nobody knows what it held"
    else:
        why = "the broker was not stopped"
    missing = [name for name in names if _is_lost(stored_at(journal / name))]
    accepted = [name for name in missing if marker(journal / name).exists()]
    refused = {
        name: f"{journal / name} is {'empty' if (journal / name).exists() else 'missing'}, and "
        f"{why}: events may be lost that only this file held; restore it from a copy, or go on "
        f"without them: mkdir -p {journal} && touch {marker(journal / name)}"
        for name in missing
        if not is_clean and name not in accepted
    }
    return MissingJournal(missing, accepted, refused)


def stored_at(path: Path) -> Path:
    """Where the contents of this file are: who accepts what is lost of it may have renamed it."""
    renamed = marker(path)
    is_renamed = not path.exists() and renamed.exists() and renamed.stat().st_size > 0
    return renamed if is_renamed else path


def check_journal(journal: Path, inventory: Inventory, *, boot: int, is_clean: bool) -> None:
    """Check what `missing_journal` finds, and note what is accepted. `boot`: the last one.

    CorruptMetadataError as `MissingJournal.check`. DiskFullError, StorageFailedError.
    """
    _accept_damaged(journal, boot)
    found = missing_journal(journal, inventory.journal_files, is_clean=is_clean)
    found.check()
    if found.missing:
        _log.warning("journal.missing", files=found.missing, accepted=found.accepted)
    with translated_errors(journal):
        for name in found.accepted:  # once: a later loss needs its own marker
            marker(journal / name).replace(journal / f"{name}{ACCEPTED_SUFFIX}.{boot}")
        if found.accepted:
            sync_directory(journal)
    if inventory.journal_files is None:
        inventory.keep_journal_files(path.name for path in journal.glob("*.journal"))
    elif found.missing:
        inventory.keep_journal_files(set(inventory.journal_files) - set(found.missing))


def is_accepted(path: Path, header: JournalFileHeader | None) -> bool:
    """Whether somebody has accepted what is lost of the round of this file."""
    with translated_errors(path, ReadFailedError):
        noted = path.parent.glob(f"{path.name}{ACCEPTED_SUFFIX}.*")
        return marker(path).exists() or any(
            each.read_bytes() == _round_name(header) for each in noted
        )


def marker(path: Path) -> Path:
    """Where a person accepts the loss."""
    return path.with_name(path.name + ACCEPTED_SUFFIX)


def _accept_damaged(journal: Path, boot: int) -> None:
    """Note for which round of a file its loss is accepted; a renamed file gets its name back."""
    with translated_errors(journal):
        for found in sorted(journal.glob(f"*.journal{ACCEPTED_SUFFIX}")):
            path = found.with_suffix("")
            stored = found if not path.exists() else path
            if _is_lost(stored):
                continue  # the file counts as missing
            with stored.open("rb") as file:
                header = read_file_header(memoryview(file.read(JOURNAL_BLOCK_BYTES)))
            write_file_atomically(found.with_name(f"{found.name}.{boot}"), _round_name(header))
            found.unlink() if path.exists() else found.rename(path)
            sync_directory(journal)
            _log.warning("journal.accepted", file=str(path))


def _is_lost(path: Path) -> bool:
    """Whether nothing of a listed file is there: its first block was durable before it was listed,
    in a file of zeros.
    """
    with translated_errors(path, ReadFailedError):
        if not path.exists() or path.stat().st_size <= JOURNAL_BLOCK_BYTES:
            return True
        with path.open("rb") as file:
            if read_file_header(memoryview(file.read(JOURNAL_BLOCK_BYTES))) is not None:
                return False
            rest = iter(partial(file.read, _READ_BYTES), b"")
            return not any(stored.strip(b"\0") for stored in rest)


def _round_name(header: JournalFileHeader | None) -> bytes:
    return b"" if header is None else b"%d\n" % header.first_sequence
