"""Moves the log start of an open log, in its turn to write segments."""

from collections.abc import Callable
from functools import partial

from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.storage.log.resources import LogResources
from tailrace_broker.storage.log.tail import LogTail
from tailrace_broker.storage.log.trim import log_start_in, remove_segments, save_log_start
from tailrace_broker.storage.segments.writer import segment_path


async def trim_tail(
    tail: LogTail,
    segments: list[SegmentState],
    resources: LogResources,
    log_start: int,
    on_trimmed: Callable[[int], None] | None,
) -> None:
    """Move the log start up to there, or to where the segments end. Called with the turn to write
    segments; `on_trimmed` gets the new log start before files are removed.
    """
    last, directory = segments[-1], tail.place.directory
    if last.base_offset < log_start == last.end_offset:
        await tail.roll()
    log_start = min(log_start, segments[-1].end_offset)
    if log_start <= tail.start.log_start:
        return
    start, count = log_start_in(segments, tail.start, log_start)
    if count:
        await tail.save_producers()
    await resources.io.run(partial(save_log_start, directory, start, resources.write_file))
    tail.start = start
    tail.replica.trim(log_start)
    removed = [segment_path(directory, state.base_offset) for state in segments[:count]]
    del segments[:count]
    tail.unflushed.forget(removed)
    resources.files.forget(*removed)
    if on_trimmed is not None:
        on_trimmed(log_start)
    await resources.io.run(partial(remove_segments, removed))
