"""Times as requests name them."""

import pytest

from tailrace.wire import INTEGER_US_MIN, TIMESTAMP_US_MAX
from tailrace_broker.model.errors import InvalidParameterError
from tailrace_broker.net.http.timestamps import read_timestamp

NOON_US = 1_764_072_000_000_000  # 2025-11-25T12:00:00Z
FORMS = "ISO 8601 with a zone, like 2026-11-21T09:00:00Z, or microseconds since the epoch"


@pytest.mark.parametrize(
    ("given", "time_us"),
    [
        (str(NOON_US), NOON_US),
        (NOON_US, NOON_US),
        (INTEGER_US_MIN, INTEGER_US_MIN),
        (TIMESTAMP_US_MAX, TIMESTAMP_US_MAX),
        ("2025-11-25T12:00Z", NOON_US),
        ("2025-11-25T12:00:00.000001Z", NOON_US + 1),
        ("2025-11-25T13:00:00+01:00", NOON_US),
        ("2025-11-25T13:00:00 01:00", NOON_US),  # curl leaves a + as it is
        ("2025-11-25 12:00:00Z", NOON_US),
        ("2001-01-01T00:00:00Z", INTEGER_US_MIN),
        ("1970-01-01T00:00:00Z", 0),
        ("1999-12-31T00:00:00Z", 946_598_400_000_000),
    ],
)
def test_a_time_is_iso_8601_or_microseconds(given: str | int, time_us: int) -> None:
    assert read_timestamp(given) == time_us


@pytest.mark.parametrize(
    ("given", "detail"),
    [
        (1_764_000_000_000, "it is in microseconds; did you mean 1764000000000000?"),
        ("1764000000", "it is in microseconds; did you mean 1764000000000000?"),
        (1_764_000_000_000_000_000, "it is in microseconds; did you mean 1764000000000000?"),
        (0, "in microseconds before 2001; write such a time as text, like 1999-12-31T00:00:00Z"),
        (INTEGER_US_MIN - 1, "in microseconds before 2001; write such a time as text"),
        (10**19 - 1, f"it is at most {TIMESTAMP_US_MAX}, in microseconds"),
        (10**19, f"it is {FORMS}"),
        (-1, f"it is {FORMS}"),
        ("\u0663", f"it is {FORMS}"),
        ("", f"it is {FORMS}"),
        ("yesterday", f"it is {FORMS}"),
        ("2025-11-25T12:00:00", "which has no zone; add one: Z is UTC, or +01:00"),
        ("2025-11-25", "which has no zone; add one: Z is UTC, or +01:00"),
        ("1969-12-31T23:59:59Z", "it is 1970-01-01T00:00:00Z or later"),
        ("0001-01-01T00:00:00+14:00", "it is 1970-01-01T00:00:00Z or later"),
    ],
)
def test_what_is_wrong_with_a_time_is_said_with_the_remedy(given: str | int, detail: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        read_timestamp(given)

    said = caught.value.detail
    assert said.startswith(f"timestamp is {given}")
    assert detail in said
    assert caught.value.members == {"parameter": "timestamp"}
