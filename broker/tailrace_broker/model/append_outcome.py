"""The outcome of an append, as storage reports it to whoever asked for it."""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from tailrace_broker.model.errors import TailraceError


class Appended(NamedTuple):
    """`offset`: of the request's first record.

    `is_duplicate`: the same request of a producer had stored these records before. `copies`: so
    many brokers have them, as the topic's durability asks for. `partition`: where they are, if that
    is an ancestor of the one that was asked.
    """

    offset: int
    is_duplicate: bool = False
    copies: int = 1
    partition: int | None = None


class AppendFailed(NamedTuple):
    """Whether something of the request may be stored all the same, the error says.

    `written_end`: it is written, and committed when the high watermark reaches this, unless the
    epoch ends before.
    """

    error: TailraceError
    written_end: int | None = None


AppendOutcome = Appended | AppendFailed
# Called once, on the event loop.
OnAppended = Callable[[AppendOutcome], None]


# --- of a follower's log ---


class MisfitReason(Enum):
    """Why batches that a leader sent cannot be appended."""

    DAMAGED = "damaged"
    OTHER_LOG = "of another log"
    GAP = "at another offset than the next"
    OTHER_EPOCH = "behind a batch of another epoch"
    FALLING_EPOCH = "of an older epoch than the batch before"
    CUT_FAILED = "a cut of the log has failed, and must be repeated first"
    CLOSED = "the log takes no batches"


class Misfit(NamedTuple):
    """The batches do not continue the log; nothing of them was written."""

    reason: MisfitReason
    detail: str


class LogIsCut(NamedTuple):
    """The log ends at `end_offset`, durably: nothing brings back what was there."""

    end_offset: int


class CutRefused(NamedTuple):
    """The log cannot be cut there; nothing was changed."""

    detail: str


class CutFailed(NamedTuple):
    """The disk has failed. What the cut takes away may be there in part; it must be repeated."""

    error: TailraceError


CutOutcome = LogIsCut | CutRefused | CutFailed
# Called once, on the event loop.
OnCut = Callable[[CutOutcome], None]
