import pytest

from tailrace.settings.quantities import DURATION, SIZE, Quantity


def test_a_quantity_says_what_it_can_be() -> None:
    assert Quantity(DURATION, 60_000, or_none=True).described == (
        "a duration from 1m on or none; units are ms, s, m, h, d, w"
    )
    assert Quantity(SIZE, 0, 16 * 2**20).described == (
        "a size from 0 to 16Mi; units are k, Ki, M, Mi, G, Gi, T, Ti"
    )


def test_a_quantity_is_read_in_ms_or_bytes() -> None:
    assert Quantity(DURATION, 0).read("7d") == 604_800_000
    assert Quantity(SIZE, 0).read("10Gi") == 10 * 2**30
    assert Quantity(SIZE, 0, or_none=True).read("none") is None


@pytest.mark.parametrize("word", ["", "none", "7", "6d", "8d", "7D"])
def test_what_is_no_such_quantity_is_refused(word: str) -> None:
    week_ms = 604_800_000

    with pytest.raises(ValueError, match=r"^not a duration from 7d to 7d; units are ms,"):
        Quantity(DURATION, week_ms, week_ms).read(word)
