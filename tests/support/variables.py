"""Numbers that environment variables give to runs: how long, how many, which seed."""

import os
from collections.abc import Mapping
from typing import TypeVar

Default = TypeVar("Default")


class WrongVariableError(Exception):
    """A variable has no sensible value; says which, and what is meant."""


def whole_number(
    name: str,
    default: Default,
    *,
    least: int = 0,
    meaning: str,
    variables: Mapping[str, str] = os.environ,
) -> int | Default:
    """A variable's value, one that is empty counts as none; `meaning` is for the error."""
    given = variables.get(name, "").strip()
    if not given:
        return default
    if not (given.isascii() and given.isdigit() and int(given) >= least):
        raise WrongVariableError(
            f'{name}: "{given}" is not a whole number of {least} or more: give {meaning}'
        )
    return int(given)


def is_on(name: str, *, meaning: str, variables: Mapping[str, str] = os.environ) -> bool:
    """Whether a variable is 1; it may be 0, or empty, or not be there."""
    given = variables.get(name, "").strip()
    if given not in {"", "0", "1"}:
        raise WrongVariableError(f'{name}: "{given}" is not 0 or 1: give {name}=1 {meaning}')
    return given == "1"
