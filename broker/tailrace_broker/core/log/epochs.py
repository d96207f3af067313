"""Where the epochs of a log start: what two replicas compare to find where their logs part.

The follower names an epoch of its own, the leader answers with the end of that epoch in its log
(KIP-101), or of the largest below it that it has (KIP-279).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from tailrace_broker.codec.segment import EpochStart


class EpochEnd(NamedTuple):
    """All batches of this epoch are below `offset`; `epoch` None: the log has none up to it."""

    epoch: int | None
    offset: int


def note_epoch(starts: list[EpochStart], epoch: int, offset: int) -> None:
    """Add the epoch of the batch at `offset`, the next one of the log, unless it is the last's."""
    if not starts or starts[-1].epoch < epoch:
        starts.append(EpochStart(epoch, offset))


def joined(parts: Iterable[Sequence[EpochStart]]) -> list[EpochStart]:
    """Return the starts of consecutive parts of a log, each of which names its first epoch."""
    starts: list[EpochStart] = []
    for part in parts:
        for epoch, offset in part:
            note_epoch(starts, epoch, offset)
    return starts


def cut_epochs(starts: Sequence[EpochStart], end_offset: int) -> list[EpochStart]:
    """Return those of a log that is cut at `end_offset`."""
    return list(starts[: bisect_left(starts, end_offset, key=attrgetter("offset"))])


def trim_epochs(starts: Sequence[EpochStart], log_start: int) -> list[EpochStart]:
    """Return those of a log that begins at `log_start`: the epoch there starts with it."""
    first = bisect_right(starts, log_start, key=attrgetter("offset")) - 1
    if first < 0:
        return list(starts)
    return [EpochStart(starts[first].epoch, log_start), *starts[first + 1 :]]


def end_of_epoch(starts: Sequence[EpochStart], log_end: int, epoch: int) -> EpochEnd:
    """Return the largest epoch up to this one, and where it ends in a log that ends at `log_end`.

    It ends where the next begins. Below the first one the log has nothing in common with anybody.
    """
    count = bisect_right(starts, epoch, key=attrgetter("epoch"))
    offset = starts[count].offset if count < len(starts) else log_end
    return EpochEnd(starts[count - 1].epoch if count else None, offset)
