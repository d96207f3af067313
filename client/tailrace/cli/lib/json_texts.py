"""Pure: JSON texts -> values, with numbers that Python does not hold."""

import json
import math
from collections.abc import Callable
from typing import Any, Never


def number_or_text(written: str) -> int | float | str:
    """A number of JSON; what neither `int` nor `float` holds stays as it is written."""
    try:
        return int(written)
    except ValueError:  # a fraction or an exponent, or more digits than Python converts
        number = float(written)
        return number if math.isfinite(number) else written


def parse_json(stored: bytes, *, read_number: Callable[[str], Any] = number_or_text) -> Any:
    """One JSON text in UTF-8. ValueError: it is none, or is nested too deeply to be read here."""
    try:
        return json.loads(
            stored.decode(),
            parse_int=read_number,
            parse_float=read_number,
            parse_constant=_refuse_constant,
        )
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _refuse_constant(name: str) -> Never:
    """NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError(f"{name} is not a JSON value")
