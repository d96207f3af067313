import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli.lib.quantities import duration, past_duration, size
from tailrace.settings.quantities import duration_quantity, size_quantity


def refusal_of(read: object, word: str) -> str:
    assert callable(read)
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        read(word)
    return str(refused.value)


@pytest.mark.parametrize(
    ("word", "expected_ms"),
    [
        ("0", 0),
        ("250ms", 250),
        ("1s", 1000),
        ("90m", 5_400_000),
        ("36h", 129_600_000),
        ("7d", 604_800_000),
        ("1w", 604_800_000),
    ],
)
def test_a_duration_has_a_unit(word: str, expected_ms: int) -> None:
    assert duration(0)(word) == expected_ms


@pytest.mark.parametrize(
    ("word", "expected_bytes"),
    [
        ("4096", 4096),
        ("1k", 1000),
        ("1Ki", 1024),
        ("2M", 2_000_000),
        ("2Mi", 2_097_152),
        ("10G", 10_000_000_000),
        ("10Gi", 10_737_418_240),
        ("1T", 10**12),
        ("1Ti", 2**40),
    ],
)
def test_a_size_is_a_quantity_of_kubernetes(word: str, expected_bytes: int) -> None:
    assert size(0)(word) == expected_bytes


@pytest.mark.parametrize(
    "word", ["", "7", "d", "-1s", "1.5h", "1 s", "1S", "1M", "7d1h", "٣s", "9" * 20 + "s", "none"]
)
def test_what_is_no_duration_is_refused_with_the_bounds_and_the_units(word: str) -> None:
    refusal = refusal_of(duration(1, 3_600_000), word)

    assert refusal.endswith(" is not a duration from 1ms to 1h; units are ms, s, m, h, d, w")


@pytest.mark.parametrize("word", ["", "Ki", "-1", "1.5Gi", "1K", "1KiB", "1m", "1 Ki", "none"])
def test_what_is_no_size_is_refused_with_the_bounds_and_the_units(word: str) -> None:
    refusal = refusal_of(size(4096), word)

    assert refusal.endswith(" is not a size from 4Ki on; units are k, Ki, M, Mi, G, Gi, T, Ti")


def test_both_bounds_can_be_reached_and_not_passed() -> None:
    read = duration(1000, 60_000)

    assert (read("1s"), read("1m")) == (1000, 60_000)
    for word in ("999ms", "0", "60001ms", "1h"):
        assert "is not a duration from 1s to 1m;" in refusal_of(read, word)


def test_none_is_a_quantity_where_it_means_something() -> None:
    read = duration(60_000, or_none=True)

    assert (read("none"), read("7d")) == (None, 604_800_000)
    assert "is not a duration from 1m on or none;" in refusal_of(read, "None")


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [(None, "none"), (0, "0"), (1, "1ms"), (1500, "1500ms"), (90_000, "90s"), (604_800_000, "7d")],
)
def test_a_duration_is_shown_in_the_largest_unit_that_is_whole(
    duration_ms: int | None, text: str
) -> None:
    assert duration_quantity(duration_ms) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(None, "none"), (0, "0"), (1000, "1000"), (16 * 2**20, "16Mi"), (10 * 2**30, "10Gi")],
)
def test_a_size_is_shown_in_the_largest_unit_that_is_whole(
    size_bytes: int | None, text: str
) -> None:
    assert size_quantity(size_bytes) == text


@pytest.mark.parametrize(
    ("word", "expected_ms"),
    [
        ("1ms", 1),
        ("90s", 90_000),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        ("0.5s", 500),
        ("1w2d3h4m5s6ms", 788_645_006),
        ("1d0h", 86_400_000),
    ],
)
def test_how_long_ago_can_have_several_units_and_decimals(word: str, expected_ms: int) -> None:
    assert past_duration(word) == expected_ms


@pytest.mark.parametrize("word", ["", "0", "0s", "1", "h", "1h 30m", "1h30", ".5h", "1.h", "٣s"])
def test_what_is_not_how_long_ago_is_refused_with_examples(word: str) -> None:
    assert refusal_of(past_duration, word).endswith(
        " is not a duration of 1ms or more, like 90s, 1h30m or 1.5h; units are ms, s, m, h, d, w"
    )


def test_a_negative_duration_is_refused_with_the_positive_one() -> None:
    assert refusal_of(past_duration, "-1h") == '"-1h" is negative; it is how long ago, as 1h'


@given(st.integers(0, 10**18))
def test_what_is_shown_can_be_typed(value: int) -> None:
    assert duration(0)(duration_quantity(value)) == value
    assert size(0)(size_quantity(value)) == value
