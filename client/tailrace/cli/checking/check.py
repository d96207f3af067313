"""A finding of `tailrace doctor`."""

from typing import NamedTuple

OK, WARNING, FAILED = "ok", "warning", "failed"
SIGNS = {OK: "✓", WARNING: "!", FAILED: "✗"}


class Check(NamedTuple):
    """A state, the thing that was checked, and the result; unless it is ok, also what to do."""

    state: str
    name: str
    detail: str
