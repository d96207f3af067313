"""The outcome of an append, as storage reports it to whoever asked for it."""

from collections.abc import Callable
from typing import NamedTuple

from tailrace_broker.model.errors import TailraceError


class Appended(NamedTuple):
    """`offset`: of the request's first record.

    `is_duplicate`: the same request of a producer had stored these records before.
    """

    offset: int
    is_duplicate: bool = False


class AppendFailed(NamedTuple):
    """Whether something of the request may be stored all the same, the error says."""

    error: TailraceError


AppendOutcome = Appended | AppendFailed
# Called once, on the event loop.
OnAppended = Callable[[AppendOutcome], None]
