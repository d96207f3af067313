"""What this process is in one range: one object that all its logs of the range share.

So a change of the role is one change, in one turn of the event loop, whatever it interrupts.
"""

from collections.abc import Callable
from typing import Protocol

from tailrace_broker.model.errors import TailraceError

# Makes the error that says who serves a partition instead: of a topic's name, and the partition.
Elsewhere = Callable[[str, int], TailraceError]


class LogInRange(Protocol):
    """What a role asks of a log."""

    def on_role_changed(self) -> None:
        """`RangeRole.epoch` or `RangeRole.elsewhere` has changed."""


class RangeRole:
    """`epoch`: this process leads the range in it; None: it takes no appends.

    `elsewhere`: None when this process serves the range's partitions, at least to readers.
    """

    __slots__ = ("_given_up", "_logs", "_on_given_up", "elsewhere", "epoch")

    def __init__(
        self,
        epoch: int | None,
        elsewhere: Elsewhere | None = None,
        *,
        on_given_up: Callable[[int], None],
    ) -> None:
        """`on_given_up` is called once with each epoch that this process can lead in no more."""
        self.epoch = epoch
        self.elsewhere = elsewhere
        self._on_given_up = on_given_up
        self._given_up: int | None = None
        self._logs: dict[LogInRange, None] = {}

    def change(self, epoch: int | None, elsewhere: Elsewhere | None = None) -> None:
        """Be this from now on. O(logs); those with appends under way answer them."""
        self.epoch, self.elsewhere = epoch, elsewhere
        for log in list(self._logs):
            log.on_role_changed()

    def give_up(self, epoch: int) -> None:
        """A log of the range must not append in this epoch any more."""
        if epoch == self.epoch and epoch != self._given_up:
            self._given_up = epoch
            self._on_given_up(epoch)

    def add(self, log: LogInRange) -> None:
        """The log was opened."""
        self._logs[log] = None

    def remove(self, log: LogInRange) -> None:
        """The log goes."""
        self._logs.pop(log, None)
