"""What of a log is known to be damaged."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tailrace_broker.model.errors import CorruptPartitionError, TailraceError


class Damage(NamedTuple):
    """Offsets `[first_offset, end_offset)` that cannot be read, and where the damage begins.

    `is_accepted`: no file has them, and a person has accepted that.
    """

    path: Path
    position: int
    first_offset: int
    end_offset: int
    is_accepted: bool = False


# Offsets `[first, end)` of a sealed log that the ring knows to be lost, as a person has accepted.
Accepted = Sequence[tuple[int, int]]


def is_accepted(accepted: Accepted, first: int, end: int) -> bool:
    """Whether all of these offsets are among those."""
    for known_first, known_end in sorted(accepted):
        if known_first <= first:
            first = max(first, known_end)
    return first >= end


class Loss(NamedTuple):
    """Offsets `[first_offset, end_offset)` that no file has; the log goes on at the end."""

    first_offset: int
    end_offset: int
    accepted_us: int = 0  # 0: nobody has; who goes on there knew the end


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


def given_up(error: TailraceError) -> range | None:
    """Return the offsets that a read met and that are lost for good, as somebody has accepted."""
    return unreadable(error) if error.members.get("accepted") is True else None


def unreadable(error: TailraceError) -> range | None:
    """Return the offsets that a read met and that cannot be read, where reading can go on."""
    first, end = error.members.get("firstOffset"), error.members.get("nextOffset")
    is_damage = isinstance(error, CorruptPartitionError)
    if not is_damage or not isinstance(first, int) or not isinstance(end, int):
        return None
    return range(first, end)
