"""SIGTERM ends a verb as Ctrl-C does: it cleans up, and says what Ctrl-C would make it say."""

import signal
from types import FrameType, TracebackType
from typing import Self

EXIT_TERMINATED = 128 + signal.SIGTERM


class Termination:
    """For a block; leaves a SIGTERM alone that is ignored, or that a verb takes itself."""

    def __init__(self) -> None:
        self.has_come = False

    def __enter__(self) -> Self:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Also where SIGINT is ignored, as a shell has it in what it starts with "&"."""
        self.has_come = True
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):
            raise KeyboardInterrupt
        interrupt(number, frame)
