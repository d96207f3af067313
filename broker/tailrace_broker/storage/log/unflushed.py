"""The segments of a log that were written and are not durable yet."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.storage.segments.writer import segment_path


class UnflushedSegments:
    """Their paths. State changes on the event loop only."""

    __slots__ = ("_directory", "_paths", "_segments")

    def __init__(self, directory: Path, segments: Sequence[SegmentState]) -> None:
        """`segments`: of the log, as it changes."""
        self._directory = directory
        self._segments = segments
        self._paths: set[Path] | None = None

    def add(self, paths: Iterable[Path]) -> None:
        """They were written."""
        self._paths = {*paths, *(self._paths or ())}

    def add_all(self) -> None:
        """All that the log has: what was closed before its flush passes for durable when opened."""
        self.add(self._written())

    def take(self) -> list[Path]:
        """Return all: they are about to be flushed."""
        paths, self._paths = self._paths, None
        return list(paths or ())

    def keep(self, paths: Iterable[Path] = ()) -> None:
        """These are not durable either; those that a cut has removed are of no interest."""
        self.add(paths)
        kept = self._paths and self._paths & self._written()
        self._paths = kept or None

    def forget(self, paths: Iterable[Path]) -> None:
        """They are being removed."""
        if self._paths:
            self._paths.difference_update(paths)

    def _written(self) -> set[Path]:
        written = (state.base_offset for state in self._segments if state.position)
        return {segment_path(self._directory, at) for at in written}
