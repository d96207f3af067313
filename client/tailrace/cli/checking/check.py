"""A finding of `tailrace doctor`."""

from collections.abc import Sequence
from typing import NamedTuple

OK, WARNING, FAILED = "ok", "warning", "failed"
SIGNS = {OK: "✓", WARNING: "!", FAILED: "✗"}

NAMES_SHOWN_MAX = 3


class Check(NamedTuple):
    """A state, the thing that was checked, and the result; unless it is ok, also what to do."""

    state: str
    name: str
    detail: str


def checks_text(checks: Sequence[Check]) -> str:
    """A line for each."""
    width = max(len(check.name) for check in checks)
    return "\n".join(f"{SIGNS[each.state]} {each.name:{width}}  {each.detail}" for each in checks)


def shown_names(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    others = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return ", ".join(names[:NAMES_SHOWN_MAX]) + others
