"""A run of `tailrace produce` cuts its lines into requests."""

from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli.producing.run import cut


@given(st.lists(st.binary(max_size=20)), st.integers(1, 40))
def test_requests_are_within_their_size_but_for_a_line_that_is_not(
    lines: list[bytes], bytes_max: int
) -> None:
    parts = list(cut(lines, bytes_max))

    assert [line for part in parts for line in part] == lines
    assert all(len(part) == 1 or sum(map(len, part)) <= bytes_max for part in parts)
    assert all(parts)
