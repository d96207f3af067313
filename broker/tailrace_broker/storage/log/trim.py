"""Moves a partition's log start: written down first, then the segments below it are removed.

A stop in between leaves segments that the next start removes. Blocks; runs in an I/O thread.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from tailrace.wire import LOG_START_FILE
from tailrace_broker.codec.metadata import LogStart, decode_log_start, encode_log_start
from tailrace_broker.model.errors import ReadFailedError
from tailrace_broker.storage.files.direct_file import sync_directory, translated_errors

# Beside the segments, once retention has moved the log start.


def load_log_start(directory: Path) -> LogStart | None:
    """None: it was never moved. CorruptMetadataError, ReadFailedError."""
    path = directory / LOG_START_FILE
    with translated_errors(path, ReadFailedError):
        return decode_log_start(path.read_bytes()) if path.exists() else None


def save_log_start(
    directory: Path, start: LogStart, write_file: Callable[[Path, bytes], None]
) -> None:
    """Durable on return; `write_file` as `write_file_atomically`."""
    write_file(directory / LOG_START_FILE, encode_log_start(start))


def remove_segments(paths: Iterable[Path]) -> None:
    """Remove segments and their indexes. Below the log start nobody needs them."""
    for path in paths:
        with translated_errors(path):
            path.unlink(missing_ok=True)
            path.with_suffix(".idx").unlink(missing_ok=True)
            sync_directory(path.parent)
