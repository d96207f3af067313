"""The ends of one replica's log, and where two logs part. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace_broker.model.replication import EpochStart
from tailrace_broker.model.topic import NO_EPOCH


@dataclass(slots=True)
class LogEnds:
    """One log, whatever its replica's role: it stays open over roles and epochs.

    `start`: of the partition, decided by leaders; `base_epoch`: of the batch before it, `epochs` of
    those from there on. `under_way`: writes and cuts that have begun and not ended.
    `high_watermark` falls only with a cut that the range has recorded as a loss.
    """

    start: int = 0
    written: int = 0
    flushed: int = 0
    high_watermark: int = 0
    epochs: list[EpochStart] = field(default_factory=list)
    base_epoch: int = NO_EPOCH
    under_way: int = 0

    @property
    def last_epoch(self) -> int:
        """Of the last batch."""
        return self.epochs[-1].epoch if self.epochs else self.base_epoch

    def counted(self, *, is_synced: bool) -> int:
        """The end that the topic's durability counts."""
        return self.flushed if is_synced else self.written

    def begin_epoch(self, epoch: int, first: int) -> None:
        """A batch of this epoch stands at `first`."""
        assert epoch >= self.last_epoch, (epoch, self)
        if not self.epochs or self.epochs[-1].epoch != epoch:
            self.epochs.append(EpochStart(epoch, first))

    def epoch_before(self, offset: int) -> int:
        """The epoch of the batch that ends at `offset`. O(epochs behind it)."""
        for epoch, first in reversed(self.epochs):
            if first < offset:
                return epoch
        return self.base_epoch

    def known_epochs(self) -> tuple[EpochStart, ...]:
        """All epochs of which the log is known to hold, or to have held, what their leaders had."""
        if self.base_epoch == NO_EPOCH or (self.epochs and self.epochs[0].epoch == self.base_epoch):
            return tuple(self.epochs)
        return (EpochStart(self.base_epoch, self.start), *self.epochs)

    def move_start(self, start: int) -> None:
        """Retention has removed what is before; what is under way may continue the last epoch."""
        assert self.start <= start <= self.written, (start, self)
        self.base_epoch = self.epoch_before(start)
        while len(self.epochs) > 1 and self.epochs[1].first <= start:
            del self.epochs[0]
        if self.epochs and self.epochs[0].first < start:
            self.epochs[0] = EpochStart(self.epochs[0].epoch, start)
        self.start = start

    def cut(self, end: int) -> None:
        """Forget what is known of offsets from `end` on."""
        self.written = min(self.written, end)
        self.flushed = min(self.flushed, end)
        while self.epochs and self.epochs[-1].first >= end:
            self.epochs.pop()

    def reset(self, end: int, epoch: int) -> None:
        """The log is empty, and goes on at `end` behind a batch of `epoch`."""
        self.start = self.written = self.flushed = self.high_watermark = end
        self.base_epoch = epoch
        self.epochs.clear()

    def validate(self) -> None:
        """Assert what always holds."""
        assert 0 <= self.start <= self.written, self
        assert self.flushed <= self.written, self
        assert 0 <= self.high_watermark <= self.written, self
        assert all(a < b for a, b in zip(self.epochs, self.epochs[1:], strict=False)), self


def common_end(
    mine: Sequence[EpochStart], my_end: int, theirs: Sequence[EpochStart], their_end: int
) -> int | None:
    """The end of what two logs share: the smaller end of their largest common epoch.

    None: they share no epoch. Whoever has a batch of an epoch has all that its leader had before,
    so nothing earlier is compared (KIP-101, KIP-279). O(epochs).
    """
    i, j = len(mine) - 1, len(theirs) - 1
    while i >= 0 and j >= 0:
        if mine[i].epoch == theirs[j].epoch:
            return min(my_end, their_end)
        if mine[i].epoch > theirs[j].epoch:
            my_end = mine[i].first
            i -= 1
        else:
            their_end = theirs[j].first
            j -= 1
    return None
