"""The log of one replica on a simulated disk: what the storage engine promises, and no more.

Writes and cuts of a log are done one after the other and take time. A killed process leaves what
was written, and of what was under way a part or nothing; a loss of power also takes any tail of
what was not flushed. A failed write may stand behind the end, where only a recovery finds it.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from tailrace_broker.core.replication.log_ends import LogEnds
from tailrace_broker.model.replication import EpochStart
from tailrace_broker.model.topic import NO_EPOCH
from tests.simulation.ring.schedule import Schedule

Crash = Literal["process", "power"]
WRITE_US = (50, 3000)
SLOW_WRITE_US = 60_000
SLOW_WRITES = 0.02
CLOSE_US = 5000


class Entry(NamedTuple):
    """A batch of one record; `committed`: the high watermark that its header notes."""

    epoch: int
    value: int
    committed: int
    size_bytes: int


class _Operation(NamedTuple):
    """An append of `entries` at `end`, or (None) a cut to it."""

    entries: Sequence[Entry] | None
    is_durable: bool
    end: int
    is_reset: bool
    epoch: int
    then: Callable[[bool], None]


class ModelLog:
    """Entries at offsets `start` and on; those below `durable` survive a loss of power."""

    def __init__(
        self,
        schedule: Schedule,
        generator: random.Random,
        slowness_us: Callable[[], int] = lambda: 0,
    ) -> None:
        """`slowness_us`: how much longer everything takes now."""
        self.start = 0
        self.entries: list[Entry] = []
        self.durable = 0
        self.failures = 0  # so many of the next appends fail
        self._base_epoch = NO_EPOCH  # of the batch before `start`
        self._leftover: list[Entry] = []
        self._schedule = schedule
        self._random = generator
        self._slowness_us = slowness_us
        self._operations: deque[_Operation] = deque()
        self._life = 0

    @property
    def end(self) -> int:
        """Behind the last entry that was written."""
        return self.start + len(self.entries)

    @property
    def last_epoch(self) -> int:
        """Of the last entry."""
        return self.entries[-1].epoch if self.entries else self._base_epoch

    def epoch_before(self, offset: int) -> int:
        """Of the entry before."""
        return (
            self.entries[offset - self.start - 1].epoch
            if offset > self.start
            else (self._base_epoch)
        )

    def read(self, first: int, end: int) -> list[Entry]:
        """Of offsets `[first, end)`."""
        return self.entries[first - self.start : end - self.start]

    def append(
        self,
        first: int,
        entries: Sequence[Entry],
        *,
        is_durable: bool,
        then: Callable[[bool], None],
    ) -> None:
        """Behind what is under way; `then(False)`: it has failed."""
        self._begin(_Operation(entries, is_durable, first, False, 0, then))

    def cut(self, end: int, *, is_reset: bool, epoch: int, then: Callable[[], None]) -> None:
        """Durably."""
        self._begin(_Operation(None, True, end, is_reset, epoch, lambda _: then()))

    def flush(self, then: Callable[[int], None]) -> None:
        """What is written by now."""
        end, life = self.end, self._life

        def done() -> None:
            if life == self._life:
                self.durable = max(self.durable, min(end, self.end))
                then(self.durable)

        self._schedule.after(self._delay_us(), done)

    def close(self, then: Callable[[], None]) -> None:
        """When nothing is under way any more, and all is durable."""
        life = self._life

        def closed() -> None:
            if life == self._life:
                self.close(then)

        if self._operations:
            self._schedule.after(CLOSE_US, closed)
        else:
            self.flush(lambda end: then())

    def set_start(self, start: int) -> None:
        """Remove what is before; at once, and durably."""
        self._base_epoch = self.epoch_before(start)
        del self.entries[: start - self.start]
        self.start, self.durable = start, max(start, self.durable)

    def seal(self) -> None:
        """It ends here, as the ring knows: a recovery takes nothing that is behind."""
        self._leftover = []

    def damage(self, offset: int) -> None:
        """A recovery finds that nothing from there on can be read, and sets it aside."""
        del self.entries[offset - self.start :]
        self._leftover = []
        self.durable = min(self.durable, self.end)

    def set_aside(self, first_offset: int = 0) -> None:
        """Begin again, empty; nothing is under way any more."""
        self._life += 1
        self._operations.clear()
        self.entries, self._leftover, self._base_epoch = [], [], NO_EPOCH
        self.start = self.durable = first_offset

    def crashed(self, crash: Crash) -> None:
        """Leave on the disk what a crash may leave."""
        self._life += 1
        left = [*self.entries]
        operation = self._operations[0] if self._operations else None
        self._operations.clear()
        if operation is None or operation.entries is None:
            left += self._part(self._leftover)
        elif operation.end == self.end:
            left += self._part(operation.entries)
        if operation is not None and operation.entries is None and self._random.random() < 0.5:
            self._apply_cut(operation)
            left = self.entries
        if crash == "power":
            durable_count = self.durable - self.start
            left = left[: self._random.randint(min(durable_count, len(left)), len(left))]
        self.entries, self._leftover = left, []
        self.durable = self.end  # a recovery flushes what it finds

    def recovered(self) -> LogEnds:
        """The ends as a new process finds them."""
        epochs: list[EpochStart] = []
        for offset, entry in enumerate(self.entries, start=self.start):
            if not epochs or entry.epoch != epochs[-1].epoch:
                epochs.append(EpochStart(entry.epoch, offset))
        committed = max((each.committed for each in self.entries), default=self.start)
        committed = max(committed, self.start)
        committed = min(committed, self.end)
        return LogEnds(self.start, self.end, self.end, committed, epochs, self._base_epoch)

    def _begin(self, operation: _Operation) -> None:
        self._operations.append(operation)
        if len(self._operations) == 1:
            self._run()

    def _run(self) -> None:
        life = self._life

        def done() -> None:
            if life == self._life:
                self._done()

        self._schedule.after(self._delay_us(), done)

    def _done(self) -> None:
        operation = self._operations.popleft()
        is_well = True
        if operation.entries is None:
            self._apply_cut(operation)
        elif operation.end != self.end:  # one before it has failed
            is_well = False
        elif self.failures:
            behind = sum(each.entries is not None for each in self._operations)
            self.failures += behind - 1  # which fail too
            is_well = False
            self._leftover = self._part(operation.entries)
        else:
            self._leftover = []
            self.entries += operation.entries
            if operation.is_durable:
                self.durable = self.end
        has_more = bool(self._operations)
        operation.then(is_well)  # which may begin another
        if has_more and self._operations:
            self._run()

    def _apply_cut(self, cut: _Operation) -> None:
        self._leftover = []
        if cut.is_reset:
            self.entries, self.start, self._base_epoch = [], cut.end, cut.epoch
        del self.entries[max(0, cut.end - self.start) :]
        self.durable = self.end if cut.is_reset else min(self.durable, self.end)

    def _part(self, entries: Sequence[Entry]) -> list[Entry]:
        return list(entries[: self._random.randint(0, len(entries))])

    def _delay_us(self) -> int:
        slowness_us = self._slowness_us()
        if self._random.random() < SLOW_WRITES:
            return slowness_us + self._random.randrange(SLOW_WRITE_US)
        return slowness_us + self._random.randrange(*WRITE_US)
