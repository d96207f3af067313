from hypothesis import given
from hypothesis import strategies as st

from tailrace_broker.core.ring import (
    TOKEN_END,
    TOKEN_MIN,
    UNIT_TOKENS,
    UNITS,
    find_slice,
    slice_bounds,
    token,
)

MASK = 2**64 - 1
C1, C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


def rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & MASK


def mix(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & MASK
    return value ^ value >> 33


def plain_token(key: bytes) -> int:
    """MurmurHash3_x64_128 step by step (Appleby, smhasher), its first half as a signed number.

    A tail that is short of a block is a block with zeros behind, whose first half does not stir.
    """
    h1 = h2 = 0
    whole_bytes = len(key) // 16 * 16
    for position in range(0, len(key), 16):
        block = key[position : position + 16].ljust(16, b"\0")
        k1, k2 = int.from_bytes(block[:8], "little"), int.from_bytes(block[8:], "little")
        h1 ^= rotate(k1 * C1 & MASK, 31) * C2 & MASK
        if position < whole_bytes:
            h1 = (rotate(h1, 27) + h2) * 5 + 0x52DCE729 & MASK
        h2 ^= rotate(k2 * C2 & MASK, 33) * C1 & MASK
        if position < whole_bytes:
            h2 = (rotate(h2, 31) + h1) * 5 + 0x38495AB5 & MASK
    h1, h2 = h1 ^ len(key), h2 ^ len(key)
    h1 = h1 + h2 & MASK
    h2 = h2 + h1 & MASK
    first = mix(h1) + mix(h2) & MASK
    return first - 2**64 if first >= 2**63 else first


@given(st.binary(max_size=100))
def test_a_token_is_plain_murmur3_for_any_key(key: bytes) -> None:
    assert token(key) == plain_token(key)


starts_and_units = st.integers(1, UNITS).flatmap(
    lambda units: st.tuples(
        st.integers(0, UNITS - units).map(lambda first: TOKEN_MIN + UNIT_TOKENS * first),
        st.just(units),
    )
)


@given(starts_and_units, st.integers(1, 256))
def test_slices_cover_every_token_of_a_range_once(
    start_and_units: tuple[int, int], count: int
) -> None:
    start, units = start_and_units
    is_last_range = start + units * UNIT_TOKENS == TOKEN_MIN + UNITS * UNIT_TOKENS

    bounds = slice_bounds(start, units, count)

    ends = [end for _, end in bounds]
    assert len(bounds) == count
    assert [slice_start for slice_start, _ in bounds] == [start, *ends[:-1]]
    assert ends[-1] == (TOKEN_END if is_last_range else start + units * UNIT_TOKENS)
    assert all(slice_start < end for slice_start, end in bounds)


@given(starts_and_units, st.integers(1, 256))
def test_slices_of_a_range_are_equal_but_for_a_remainder(
    start_and_units: tuple[int, int], count: int
) -> None:
    start, units = start_and_units

    lengths = [end - start for start, end in slice_bounds(start, units, count)]

    # What the units leave of the token space, less than one of them, is the last slice's.
    remainder = TOKEN_END - TOKEN_MIN - UNITS * UNIT_TOKENS
    assert max(lengths[:-1], default=0) - min(lengths) <= 1
    assert lengths[-1] - min(lengths) <= 1 + remainder


@given(st.integers(TOKEN_MIN, TOKEN_END - 1), st.integers(1, 256))
def test_a_token_is_found_in_the_slice_that_holds_it(key_token: int, count: int) -> None:
    bounds = slice_bounds(TOKEN_MIN, UNITS, count)

    index = find_slice([start for start, _ in bounds], key_token)

    start, end = bounds[index]
    assert start <= key_token < end
