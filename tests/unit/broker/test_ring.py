import pytest

from tailrace_broker.core.ring import (
    TOKEN_END,
    TOKEN_MIN,
    UNIT_TOKENS,
    UNITS,
    find_slice,
    slice_bounds,
    token,
)

# For ever: the same key must find its partition. The first five are known from Murmur3's other
# implementations; `test_ring_properties.py` has one that computes them all.
TOKENS = {
    b"": 0,
    b"hello": -3758069500696749310,  # cbd8a7b341bd9b02
    b"hello, world": 3760413751763713166,  # 342fac623a5ebc8e
    b"19 Jan 2038 at 3:14:07 AM": -5143575280686223364,  # b89e5988b737affc
    b"The quick brown fox jumps over the lazy dog.": -3631792323850337591,  # cd99481f9ee902c9
    b"\0": 5048724184180415669,
    b"0": 3083240331115144064,
    b"a": -8839064797231613815,
    b"SFO": 2992318910848388463,
    b"LAX": 181854786162878482,
    b"customer-42": 9216292585851122729,
    b"012345678901234": -6579192003445081693,
    b"0123456789abcdef": 5467490433528156583,
    b"0123456789abcdefg": -8200385122730116642,
    "Zürich".encode(): -6453566445790259100,
    "東京".encode(): -8469772027178506456,
    "🚀".encode(): 519771732810531389,
    b"\x7f": 5072634478945617755,
    b"\x80": 7017059463262962058,
    b"\xff": 5177511712917721324,
    b"\xff" * 15: 3214754608959450708,
    b"\xff" * 16: -2824192546314762522,
    b"\xff" * 17: -7803652383643453137,
    bytes(range(256)): 2060892794568774329,
    b"x" * 2**20: 2663241956190024733,
    b"\x80" * 2**20: 5694009728007733535,
}


@pytest.mark.parametrize("key", TOKENS, ids=lambda key: f"{key[:20]!r} of {len(key)}")
def test_the_token_of_a_key_never_changes(key: bytes) -> None:
    assert token(key) == TOKENS[key]


@pytest.mark.parametrize("count", range(1, 257))
def test_the_slices_of_all_tokens_cover_each_once(count: int) -> None:
    bounds = slice_bounds(TOKEN_MIN, UNITS, count)

    ends = [end for _, end in bounds]
    assert [start for start, _ in bounds] == [TOKEN_MIN, *ends[:-1]]
    assert ends == sorted(set(ends))
    assert (len(ends), ends[-1]) == (count, TOKEN_END)


def test_the_slices_of_a_topic_never_change() -> None:
    assert slice_bounds(TOKEN_MIN, UNITS, 4) == [
        (-9223372036854775808, -4611686018427388928),
        (-4611686018427388928, -2048),
        (-2048, 4611686018427384832),
        (4611686018427384832, 9223372036854775808),
    ]


def test_a_range_in_the_middle_ends_where_the_next_one_starts() -> None:
    start = TOKEN_MIN + UNIT_TOKENS * 4096

    assert slice_bounds(start, 4096, 2) == [
        (start, start + UNIT_TOKENS * 2048),
        (start + UNIT_TOKENS * 2048, start + UNIT_TOKENS * 4096),
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 255, 256])
def test_a_slice_is_found_at_both_of_its_ends(count: int) -> None:
    bounds = slice_bounds(TOKEN_MIN, UNITS, count)
    starts = [start for start, _ in bounds]

    assert [find_slice(starts, start) for start, _ in bounds] == list(range(count))
    assert [find_slice(starts, end - 1) for _, end in bounds] == list(range(count))


def test_a_token_below_all_slices_is_our_bug() -> None:
    with pytest.raises(AssertionError):
        find_slice([0, 10], -1)
