"""Where a scrub begins, by sizes and time."""

from hypothesis import given
from hypothesis import strategies as st

from tailrace_broker.core.log.scrub import first_segment

PACE = 1_000


def test_as_time_passes_each_segment_is_the_first_for_as_long_as_it_takes_to_read() -> None:
    sizes_bytes = [2_000, 0, 3_000, 1_000]
    firsts = [
        first_segment(sizes_bytes, second * 1_000_000, bytes_per_second=PACE)
        for second in range(12)
    ]

    assert firsts == 2 * [0, 0, 2, 2, 2, 3]


def test_where_nothing_is_stored_it_begins_with_the_first() -> None:
    assert first_segment([], 5_000_000, bytes_per_second=PACE) == 0
    assert first_segment([0, 0], 5_000_000, bytes_per_second=PACE) == 0


@given(st.lists(st.integers(0, 2**40), min_size=1), st.integers(0, 2**60), st.integers(1, 2**40))
def test_it_begins_with_a_segment_that_holds_something(
    sizes_bytes: list[int], now_us: int, bytes_per_second: int
) -> None:
    index = first_segment(sizes_bytes, now_us, bytes_per_second=bytes_per_second)

    assert sizes_bytes[index] > 0 or not any(sizes_bytes)
