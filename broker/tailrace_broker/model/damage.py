"""What of a log is known to be damaged."""

from pathlib import Path
from typing import NamedTuple


class Damage(NamedTuple):
    """Offsets `[first_offset, end_offset)` that cannot be read, and where the damage begins."""

    path: Path
    position: int
    first_offset: int
    end_offset: int


class Loss(NamedTuple):
    """Offsets `[first_offset, end_offset)` that no file has; the log goes on at the end."""

    first_offset: int
    end_offset: int
    accepted_us: int = 0  # 0: nobody had to, since the end was known


class RecordedDamage(NamedTuple):
    """What is recorded beside the segments; `proven_end`: the log was durable to there at least.

    `largest_end`: no record was ever at this offset or above, when `proven_end` was recorded.
    """

    proven_end: int = 0
    largest_end: int = 0
    losses: tuple[Loss, ...] = ()

    def loss_at(self, end_offset: int) -> Loss | None:
        """Return the loss where a segment ends."""
        return next((loss for loss in self.losses if loss.first_offset == end_offset), None)

    def cut(self, end_offset: int) -> "RecordedDamage":
        """Of a log that ends here now: what was at later offsets is of no interest."""
        if self.proven_end <= end_offset:
            return self
        kept = tuple(each for each in self.losses if each.end_offset <= end_offset)
        return RecordedDamage(end_offset, 0, kept)

    def with_loss(self, loss: Loss) -> "RecordedDamage":
        """Add this loss, behind which the log goes on."""
        others = (each for each in self.losses if each.first_offset != loss.first_offset)
        proven_end = max(self.proven_end, loss.end_offset)
        return RecordedDamage(proven_end, 0, tuple(sorted((*others, loss))))


class LostEnd(NamedTuple):
    """A log has lost its end: it was durable to `proven_end`, and is there up to `first_offset`.

    No record was ever at `next_offset` or above.
    """

    first_offset: int
    proven_end: int
    next_offset: int

    @property
    def is_exact(self) -> bool:
        """The log is known to have ended at `proven_end`."""
        return self.next_offset == self.proven_end
