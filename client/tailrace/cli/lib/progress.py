"""A line on the terminal that says how far work is, when it takes longer than a second."""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from tailrace.cli.lib.options import counted, size_text

SHOWN_AFTER_S = 1.0
REDRAWN_AFTER_S = 0.1
BAR_CHARACTERS = 30
ERASE_LINE = "\r\x1b[K"  # ECMA-48, erase in line


class Progress:
    """Shows events and bytes on stderr when that is a terminal; gone when the block ends.

    `total`: of what `update` gets as `done`; None or 0: unknown.
    """

    def __init__(
        self,
        total: int | None,
        *,
        is_wanted: bool,
        stream: TextIO = sys.stderr,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total
        self._stream = stream
        self._clock_s = clock_s
        self._draw_at_s = clock_s() + SHOWN_AFTER_S
        self._is_drawn = False
        self._is_shown = is_wanted and stream.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_drawn:
            self._stream.write(ERASE_LINE)
            self._stream.flush()

    def update(self, *, done: int, events: int, size_bytes: int) -> None:
        """What is done so far; drawn when it is time for that."""
        now_s = self._clock_s()
        if not self._is_shown or now_s < self._draw_at_s:
            return
        self._draw_at_s = now_s + REDRAWN_AFTER_S
        self._is_drawn = True
        counts = f"{counted(events, 'event')}, {size_text(size_bytes)}"
        self._stream.write(f"{ERASE_LINE}{self._bar(done)}{counts}")
        self._stream.flush()

    def _bar(self, done: int) -> str:
        """Empty when the whole is not known."""
        if not self._total:
            return ""
        share = min(done / self._total, 1.0)
        filled = round(share * BAR_CHARACTERS)
        return f"[{'█' * filled}{' ' * (BAR_CHARACTERS - filled)}] {share:4.0%}  "
