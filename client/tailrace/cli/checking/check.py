"""A finding of `tailrace doctor`."""

from typing import NamedTuple

OK, WARNING, FAILED = "ok", "warning", "failed"
SIGNS = {OK: "✓", WARNING: "!", FAILED: "✗"}


class Check(NamedTuple):
    """A state, what was looked at, and what was seen; of one that is not ok also what to do."""

    state: str
    name: str
    detail: str
