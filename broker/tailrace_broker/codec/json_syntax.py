"""What is wrong with bytes that are not one JSON text: a reason and its byte."""

import re
from typing import NamedTuple

# Group 1 is an escape of half a surrogate pair; whole pairs and other escapes are passed over.
_HALF_PAIR = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)
_WHITE_SPACE = b" \t\r\n"


class SyntaxFault(NamedTuple):
    """The first byte that does not fit, counted from the text's start, and why."""

    reason: str
    byte: int


def syntax_fault(text: bytes | bytearray, message: str) -> SyntaxFault:
    """Read msgspec's message about `text`, which does not always say what is wrong.

    Of half a surrogate pair it says that the data was truncated.
    """
    reason, _, shown = message.removeprefix("JSON is malformed: ").partition(" (byte ")
    byte = int(shown.rstrip(")")) if shown else len(text)
    half_pair = next((found for found in _HALF_PAIR.finditer(text, endpos=byte) if found[1]), None)
    if half_pair is not None:
        return SyntaxFault(
            f"{half_pair[1].decode()} is half of a surrogate pair", half_pair.start()
        )
    if not shown:
        return SyntaxFault("the JSON is cut short", byte)
    # Of trailing characters msgspec names the byte behind the first.
    return SyntaxFault(reason, byte - (reason == "trailing characters"))


def is_blank(text: bytes | bytearray) -> bool:
    """Return whether there is nothing but white space."""
    return not text.strip(_WHITE_SPACE)
