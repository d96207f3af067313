"""Moves a partition's log start: saved first, then the segments that end below it are removed.

The log start is an offset of the partition: it may be inside of a segment, which then stays. A stop
in between leaves segments that the next start removes. Blocks; runs in an I/O thread.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from tailrace.wire import LOG_START_FILE
from tailrace_broker.codec.metadata import LogStart, decode_log_start, encode_log_start
from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.model.errors import ReadFailedError
from tailrace_broker.storage.files.direct_file import sync_directory, translated_errors


def log_start_in(
    segments: Sequence[SegmentState], before: LogStart, log_start: int
) -> tuple[LogStart, int]:
    """Return where a log starts whose start was `before`, and how many segments end below that.

    `log_start` is not below the one before, nor above the end of the last segment.
    """
    bases = [state.base_offset for state in segments]
    count = bisect_right(bases, log_start) - 1
    if not count:
        return replace(before, log_start=log_start), 0
    gone, first = segments[count - 1], segments[count]
    start = LogStart(
        log_start,
        first.base_offset,
        gone.last_epoch,
        gone.last_append_time_us,
        is_behind_damage=gone.is_behind_damage or gone.end_offset < first.base_offset,
    )
    return start, count


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
