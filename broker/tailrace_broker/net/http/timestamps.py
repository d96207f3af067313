"""The time that a request names: ISO 8601 with its zone, or microseconds since the epoch.

Other systems count milliseconds: an integer that is a time before 2001 in microseconds is refused.
Such a time can be written as text.
"""

from datetime import UTC, datetime, timedelta

from tailrace.wire import check_integer_us
from tailrace_broker.model.errors import InvalidParameterError
from tailrace_broker.net.http.router import DIGITS_MAX, shortened

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMESTAMP_FORMS = "ISO 8601 with a zone, like 2026-11-21T09:00:00Z, or microseconds since the epoch"


def read_timestamp(given: str | int) -> int:
    """µs since the epoch of the parameter or field `timestamp`; InvalidParameterError."""
    text = str(given)
    if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX:
        return _of_integer(int(text))
    # A + that was not percent-encoded is a space.
    iso = text.replace(" ", "+") if "T" in text else text
    try:
        time = datetime.fromisoformat(iso)
    except ValueError:
        raise _refused(f"is {shortened(text)}; it is {TIMESTAMP_FORMS}") from None
    if time.tzinfo is None:
        raise _refused(f"is {shortened(text)}, which has no zone; add one: Z is UTC, or +01:00")
    timestamp_us = (time - _EPOCH) // timedelta(microseconds=1)
    if timestamp_us < 0:
        raise _refused(f"is {shortened(text)}; it is 1970-01-01T00:00:00Z or later")
    return timestamp_us


def _of_integer(value: int) -> int:
    try:
        check_integer_us(value)
    except ValueError as error:
        raise _refused(f"is {error}") from None
    return value


def _refused(what: str) -> InvalidParameterError:
    return InvalidParameterError(f"timestamp {what}", parameter="timestamp")
