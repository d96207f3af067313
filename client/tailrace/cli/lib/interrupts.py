"""Ctrl-C and SIGTERM where nothing is half done."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

Signal = tuple[int, FrameType | None]


class Interrupts:
    """For a block: the first signal takes effect at the next `check`, `waiting` or `sleep`.

    The second takes effect at once. A signal that the program ignores stays ignored, and one that
    comes when all is done has no effect.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], object]] = {}
        self._held: Signal | None = None
        self._is_waiting = False

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()

    def check(self) -> None:
        """Let a signal that has come take effect, by default as KeyboardInterrupt."""
        if self._held is not None:
            held, self._held = self._held, None
            self._apply(held)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A wait that a signal ends at once."""
        self._is_waiting = True
        try:
            self.check()
            yield
        finally:
            self._is_waiting = False

    def sleep(self, duration_s: float) -> None:
        """`time.sleep` that a signal ends."""
        with self.waiting():
            time.sleep(duration_s)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_waiting or self._held is not None:
            self._apply((number, frame))
        else:
            self._held = (number, frame)

    def _apply(self, held: Signal) -> None:
        """By the handler that was there before; it is there again from now on."""
        number, frame = held
        handler = self._handlers[number]
        self._restore()
        handler(number, frame)

    def _restore(self) -> None:
        handlers, self._handlers = self._handlers, {}
        for number, handler in handlers.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, handler)
