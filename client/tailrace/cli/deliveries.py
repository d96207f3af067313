"""What a consumer group gives one consumer, page by page; each record at least once.

A page counts as printed when the next one is asked for, or the pages' end: who takes them has then
written and flushed it. What was printed is confirmed by the next poll, or when this ends; what was
not comes again. The first Ctrl-C takes effect between pages, or ends a wait at once.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Self

from tailrace.errors import (
    ConsumerNotRegisteredError,
    StaleAssignmentError,
    StaleDeliveryError,
    TailraceError,
)

if TYPE_CHECKING:
    from tailrace.group_values import OnNewGroup, Polled
    from tailrace.sync import Client

SESSION_MS = 30_000
WAIT_MS = 10_000  # of one long poll; far below the client's timeout
RETRY_AFTER_S = 0.5
NOTHING_ASSIGNED_S = 5.0  # the retry-after that says so: docs/protocol.md


class Deliveries:
    """A consumer's membership in a group, for a block; `note` gets what a person should know."""

    def __init__(
        self,
        client: "Client",
        *,
        group: str,
        topic: str,
        consumer_id: str,
        on_new_group: "OnNewGroup",
        page_records: int,
        note: Callable[[str], None],
    ) -> None:
        self._client = client
        self._group = group
        self._topic = topic
        self._id = consumer_id
        self._on_new_group = on_new_group
        self._page_records = page_records
        self._note = note
        self._is_unanswered = self._is_left_out = False  # as noted last
        self._interrupts = _Interrupts()
        self._printed = 0  # the last delivery that was; 0: none
        self._epoch: int | None = None

    def __enter__(self) -> Self:
        self._register()
        self._interrupts.install()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._leave()
            else:
                self._client.close()  # perhaps in the middle of an answer
                with suppress(TailraceError):
                    self._leave()
        finally:
            self._interrupts.remove()

    def pages(self, max_records: int | None, *, follow: bool) -> Iterator[bytes]:
        """Records as NDJSON, `max_records` at most; None: all there are, and with `follow` those
        that come.
        """
        remaining = max_records
        was_empty = False
        while remaining != 0:
            page_records = min(remaining or self._page_records, self._page_records)
            polled = self._poll_until_answered(page_records, follow=follow)
            if polled.body:
                yield polled.body
                self._printed = polled.delivery
                remaining = None if remaining is None else remaining - polled.body.count(b"\n")
            elif was_empty and not follow:
                return
            # An empty answer may have confirmed what its partitions' children waited for.
            was_empty = not polled.body

    def _poll_until_answered(self, page_records: int, *, follow: bool) -> "Polled":
        """Once; with `follow` until the broker answers, and with the pause that it wants."""
        while True:
            start_s = time.monotonic()
            try:
                with self._interrupts.waiting():
                    polled = self._poll(page_records, WAIT_MS if follow else 0)
            except TailraceError as error:
                if not (follow and error.retriable):
                    raise
                if not self._is_unanswered:
                    self._note(f"{str(error).partition('. ')[0]}; trying again")
                self._is_unanswered = True
                self._pause(RETRY_AFTER_S)
                continue
            self._tell_state(polled)
            if follow and polled.retry_after_s is not None:
                self._pause(start_s + polled.retry_after_s - time.monotonic())
            return polled

    def _poll(self, page_records: int, wait_ms: int) -> "Polled":
        """Register again when this consumer, or its assignment, is not known any more."""
        with suppress(ConsumerNotRegisteredError, StaleAssignmentError):
            return self._poll_once(page_records, wait_ms)
        self._register()
        self._printed = 0  # what it was told before is void
        return self._poll_once(page_records, wait_ms)

    def _poll_once(self, page_records: int, wait_ms: int) -> "Polled":
        polled = self._client.poll(
            self._id,
            delivery=self._printed,
            assignment_epoch=self._epoch,
            form="ndjson",
            max_records=page_records,
            wait_ms=wait_ms,
        )
        self._epoch = polled.assignment_epoch
        return polled

    def _register(self) -> None:
        registered = self._client.register(
            self._id,
            self._group,
            [self._topic],
            on_new_group=self._on_new_group,
            session_ms=SESSION_MS,
        )
        self._epoch = registered.assignment_epoch

    def _leave(self) -> None:
        """Confirm what was printed, and that alone: another delivery may be on its way."""
        if self._printed:
            try:
                # Refused: the poll that brought a later one has confirmed it.
                with suppress(StaleDeliveryError):
                    self._client.commit(
                        self._id, delivery=self._printed, assignment_epoch=self._epoch
                    )
            except TailraceError as error:
                raise TailraceError(f"{error}. The records printed last may come again") from error
        self._client.goodbye(self._id, commit=False)

    def _tell_state(self, polled: "Polled") -> None:
        """When it is another than before."""
        if self._is_unanswered:
            self._note("the broker answers again")
        is_left_out = (polled.retry_after_s or 0) >= NOTHING_ASSIGNED_S
        if is_left_out and not self._is_left_out:
            self._note(f'other consumers of group "{self._group}" have all partitions')
        self._is_unanswered, self._is_left_out = False, is_left_out

    def _pause(self, seconds: float) -> None:
        with self._interrupts.waiting():
            time.sleep(max(0.0, seconds))


class _Interrupts:
    """Ctrl-C: the first one interrupts only what is `waiting`, each later one anything."""

    def __init__(self) -> None:
        self._is_waiting = False
        self._has_come = False

    def install(self) -> None:
        """Unless it is ignored, as a shell's background jobs do."""
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._on_signal)

    def remove(self) -> None:
        if signal.getsignal(signal.SIGINT) == self._on_signal:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A block that the first one ends too; KeyboardInterrupt, also when it came before."""
        self._is_waiting = True
        try:
            if self._has_come:
                raise KeyboardInterrupt
            yield
        finally:
            self._is_waiting = False

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_waiting or self._has_come:
            raise KeyboardInterrupt
        self._has_come = True
