"""What the journal holds for a partition that cannot take it: set aside, since the journal goes on.

So for one that is damaged, and for one of a deleted topic whose segment the disk has no space for.

`journaled.batches` beside the segments, batches back to back. When the partition's files have been
restored, the next start takes them as it would have taken them from the journal. Blocks.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from tailrace.wire import HEADER_BYTES
from tailrace_broker.codec.batch import verify_batch
from tailrace_broker.core.log.journal_replay import NO_FILE, JournaledBatch
from tailrace_broker.model.errors import CorruptBatchError, ReadFailedError
from tailrace_broker.storage.files.direct_file import (
    sync_directory,
    translated_errors,
    write_file_atomically,
)

RESCUED = "journaled.batches"


def save_rescued(
    directory: Path,
    batches: Iterable[bytes | memoryview],
    write_file: Callable[[Path, bytes], None] = write_file_atomically,
) -> None:
    """Behind those that were set aside before, each once; durable on return.

    DiskFullError, StorageFailedError.
    """
    path = directory / RESCUED
    with translated_errors(path):
        directory.mkdir(parents=True, exist_ok=True)
        sync_directory(directory.parent)
        sync_directory(directory.parent.parent)
        kept = {_header_of(each.stored): each.stored for each in _batches_in(path)}
    kept_count = len(kept)
    for stored in batches:
        kept.setdefault(_header_of(stored), memoryview(stored))
    if len(kept) > kept_count:
        write_file(path, b"".join(kept.values()))


def load_rescued(directory: Path) -> list[JournaledBatch]:
    """In their order, up to the first that is damaged. ReadFailedError."""
    path = directory / RESCUED
    with translated_errors(path, ReadFailedError):
        return _batches_in(path)


def cut_rescued(
    directory: Path, end_offset: int, write_file: Callable[[Path, bytes], None]
) -> None:
    """Take out what ends above; durable on return. DiskFullError, StorageFailedError."""
    path = directory / RESCUED
    if not path.exists():
        return
    with translated_errors(path):
        batches = _batches_in(path)
    kept = [bytes(each.stored) for each in batches if each.end_offset <= end_offset]
    if not kept:
        remove_rescued(directory)
    elif len(kept) < len(batches):
        write_file(path, b"".join(kept))


def remove_rescued(directory: Path) -> None:
    """They are in the segments. StorageFailedError."""
    path = directory / RESCUED
    with translated_errors(path):
        path.unlink(missing_ok=True)
        sync_directory(directory)


def _header_of(stored: bytes | memoryview) -> bytes:
    """With its offset, epoch and checksums: no two batches of a log have the same."""
    return bytes(stored[:HEADER_BYTES])


def _batches_in(path: Path) -> list[JournaledBatch]:
    stored = memoryview(path.read_bytes() if path.exists() else b"")
    batches = []
    try:
        while stored:
            header = verify_batch(stored)
            batches.append(JournaledBatch(header, stored[: header.batch_bytes], NO_FILE))
            stored = stored[header.batch_bytes :]
    except CorruptBatchError:
        pass  # those behind it do not follow: the headers of later ones tell that some are missing
    return batches
