"""The name that was probably meant by one that does not exist."""

from collections.abc import Sequence


def close_to(word: str, known: Sequence[str], *, prefix: str = "", end: str = "") -> str:
    """A guess as a clause with this end; empty without a guess.

    `prefix`: of all names, which are given without.
    """
    import difflib

    matches = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {prefix}{matches[0]}{end}" if matches else ""
