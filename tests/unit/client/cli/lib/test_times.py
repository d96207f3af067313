"""Times as people write them; without a zone they are UTC."""

from argparse import ArgumentTypeError

import pytest

from tailrace.cli.lib.times import time_us
from tailrace.wire import INTEGER_US_MIN
from tailrace_broker.model.errors import InvalidParameterError
from tailrace_broker.net.http.timestamps import read_timestamp

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


def test_a_time_is_a_date_or_microseconds() -> None:
    assert time_us(str(INTEGER_US_MIN)) == INTEGER_US_MIN
    assert time_us("2001-01-01T00:00Z") == INTEGER_US_MIN
    assert time_us("20010101") == INTEGER_US_MIN
    assert time_us("1999-01-01T00:00Z") < INTEGER_US_MIN


@pytest.mark.parametrize("word", ["1764000000000", "1764000000", "1764000000000000000"])
def test_an_integer_of_another_unit_is_refused_as_by_the_broker(word: str) -> None:
    with pytest.raises(ArgumentTypeError) as refused:
        time_us(word)
    with pytest.raises(InvalidParameterError) as by_broker:
        read_timestamp(word)

    said = f"{word}; it is in microseconds; did you mean 1764000000000000?"
    assert str(refused.value) == said
    assert by_broker.value.detail == f"timestamp is {said}"
