"""Times as people write them; without a zone they are UTC."""

import pytest

from tailrace.cli.lib.times import record_time_us, time_us
from tailrace.wire import INTEGER_US_MIN

MIDNIGHT_US = 1_795_219_200_000_000


@pytest.mark.parametrize(
    ("word", "after_midnight_s"),
    [
        ("2026-11-21", 0),
        ("2026-11-21T09:00Z", 9 * 3600),
        ("2026-11-21T09:00", 9 * 3600),
        ("2026-11-21 09:00:00.5", 9 * 3600 + 0.5),
        ("2026-11-21T09:00+02:00", 7 * 3600),
    ],
)
def test_a_time_or_a_date_is_read(
    monkeypatch: pytest.MonkeyPatch, word: str, after_midnight_s: float
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")

    assert time_us(word) == MIDNIGHT_US + after_midnight_s * 1_000_000


def test_a_time_before_all_records_is_the_first_one() -> None:
    assert time_us("1969-07-20") == 0


def test_a_records_time_is_a_date_or_microseconds() -> None:
    assert record_time_us(str(INTEGER_US_MIN)) == INTEGER_US_MIN
    assert record_time_us("2001-01-01T00:00Z") == INTEGER_US_MIN
    assert record_time_us("1999-01-01T00:00Z") < INTEGER_US_MIN
