"""What a consumer group gives one consumer, slice by slice; each record at least once.

A shell around `tailrace.sansio.consuming`, as `tailrace.consumer`. A slice counts as printed when
the next one is asked for, or the slices' end: who takes them has then written and flushed it. What
was printed is confirmed by the next poll, or when this ends; what was not comes again. Between
slices the consumer shows that it lives. When it is removed all the same, since who reads what is
printed (a pager) takes longer for a slice than the session, it registers again, and prints of what
comes again only what it had not printed. The first Ctrl-C takes effect between deliveries, or ends
a wait at once.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tailrace.cli.consuming.quarantined import Quarantined
from tailrace.cli.lib.interrupts import Interrupts
from tailrace.errors import (
    ConsumerNotRegisteredError,
    StaleDeliveryError,
    TailraceError,
)
from tailrace.sansio.consuming import Consuming, Step
from tailrace.sansio.retries import PATIENCE_S

if TYPE_CHECKING:
    from tailrace.protocol.group_values import OnNewGroup, Polled
    from tailrace.sync import Client

SESSION_MS = 30_000
WAIT_MS = 10_000  # of one long poll; far below the client's timeout
SLICE_BYTES = 16_384  # what a pipe holds is four of them
NOTHING_ASSIGNED_S = 5.0  # the retry-after that says so: docs/protocol.md


class Deliveries:
    """A consumer's membership in a group, for a block; `note` gets what a person should know.

    With `follow` it waits for what comes, and for a broker that is away.
    """

    def __init__(
        self,
        client: "Client",
        *,
        group: str,
        topics: Sequence[str],
        consumer_id: str,
        on_new_group: "OnNewGroup",
        page_records: int,
        follow: bool,
        note: Callable[[str], None],
    ) -> None:
        self._client = client
        self._page_records = page_records
        self._follow = follow
        self._note = note
        self._is_unanswered = self._is_left_out = False  # as noted last
        self._interrupts = Interrupts()
        self._printed: set[bytes] = set()  # lines that are not known to be confirmed
        self._delivered: list[bytes] = []  # all lines of the last delivery
        self._state = Consuming(
            group,
            topics,
            new_id=consumer_id,
            on_new_group=on_new_group,
            session_ms=SESSION_MS,
            wait_ms=WAIT_MS if follow else 0,
            patience_s=math.inf if follow else PATIENCE_S,
        )

    def __enter__(self) -> Self:
        self._register()
        self._interrupts.__enter__()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._confirm_all()
                self._say_goodbye()
            else:
                self._client.close()  # perhaps in the middle of an answer
                with suppress(TailraceError):
                    self._confirm()
                    self._say_goodbye()
        finally:
            self._interrupts.__exit__(error_type, error, traceback)

    def slices(self, max_records: int | None) -> Iterator[bytes]:
        """Records as NDJSON, `max_records` at most; None: all there are, and with `follow` those
        that come.
        """
        remaining = max_records
        was_empty = False
        while remaining != 0:
            page_records = min(remaining or self._page_records, self._page_records)
            is_empty = not self._ask(page_records)
            if is_empty and was_empty and not self._follow:
                return
            # An empty answer may have confirmed what its partitions' children waited for.
            was_empty = is_empty
            while lines := self._state.lines(size_bytes=SLICE_BYTES):
                yield b"".join(lines)
                self._state.take_lines(len(lines))
                self._printed.update(lines)
                remaining = None if remaining is None else remaining - len(lines)
                self._show_life()

    def _ask(self, max_records: int) -> bool:
        """Whether there was something; what of it was printed before is left out."""
        self._state.ask("lines", max_records=max_records)
        is_empty = False
        while (step := self._state.next_step()) is not None:
            self._state.asked(time.monotonic())
            try:
                with self._interrupts.waiting():
                    is_empty = self._execute(step)
            except TailraceError as error:
                self._pause_after(error)
        if self._follow and is_empty:
            self._interrupts.sleep(self._state.idle_s(time.monotonic()))
        return not is_empty

    def _execute(self, step: Step) -> bool:
        """Whether nothing has come."""
        if step is Step.REGISTER:
            self._register()
            return False
        assert step is Step.POLL, step  # of lines there is no more to ask
        wanted = self._state.poll_parameters()
        polled = self._client.poll(self._state.consumer_id, **wanted)
        self._state.polled(polled)
        if wanted["delivery"]:  # it is confirmed
            self._printed.difference_update(self._delivered)
        self._delivered = self._state.lines(size_bytes=len(polled.body))
        if self._delivered and self._printed.isdisjoint(self._delivered):
            self._printed.clear()  # they have come to another meanwhile
        self._state.skip_lines(self._printed)
        self._report_state(polled)
        return polled.retry_after_s is not None

    def _register(self) -> None:
        wanted = self._state.register_parameters()
        self._state.registered(self._client.register(**wanted))

    def _show_life(self) -> None:
        now_s = time.monotonic()
        if self._state.is_sign_due(now_s):
            self._state.asked(now_s)
            try:
                self._register()
            except TailraceError as error:
                self._state.sign_failed(error)

    def _pause_after(self, error: TailraceError) -> None:
        """Before the next attempt; raises the error when there is none."""
        damage = Quarantined.of(error)
        if damage is not None:
            raise TailraceError(
                f"{error}. To go on behind it: tailrace group reset {self._state.group} "
                f"--to-offsets {damage.topic}:{damage.partition}={damage.next_offset}"
            ) from error
        pause_s = self._state.failed(error, time.monotonic())
        if not isinstance(error, ConsumerNotRegisteredError):
            if not self._follow:
                raise error
            if not self._is_unanswered:
                self._note(f"{str(error).partition('. ')[0]}; trying again")
            self._is_unanswered = True
        self._interrupts.sleep(pause_s)

    def _confirm_all(self) -> None:
        """What was printed, even if this consumer was removed while it was."""
        try:
            try:
                self._confirm()
            except ConsumerNotRegisteredError as error:
                self._state.forget()
                self._ask(len(self._printed))
                if self._state.commit_parameters() is None:  # something else has come, or nothing
                    raise error
                self._confirm()
        except TailraceError as error:
            raise TailraceError(f"{error}. The records printed last may come again") from error

    def _confirm(self) -> None:
        """What was printed, and that alone: another delivery may be on its way."""
        named = self._state.commit_parameters()
        if named is not None:
            # Refused: the poll that brought a later one has confirmed it.
            with suppress(StaleDeliveryError):
                self._client.commit(self._state.consumer_id, **named)

    def _say_goodbye(self) -> None:
        """What was not printed goes to others at once."""
        if (named := self._state.goodbye_parameters()) is not None:
            self._client.goodbye(self._state.consumer_id, **named, commit=False)

    def _report_state(self, polled: "Polled") -> None:
        """When it differs from the one before."""
        if self._is_unanswered:
            self._note("the broker answers again")
        is_left_out = (polled.retry_after_s or 0) >= NOTHING_ASSIGNED_S
        if is_left_out and not self._is_left_out:
            self._note(f'other consumers of group "{self._state.group}" have all partitions')
        self._is_unanswered, self._is_left_out = False, is_left_out
