"""The line that makes a body too large has a number, in whatever pieces the body comes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_broker.net.http.long_line import LongLine


@given(
    st.lists(st.integers(0, 12), max_size=12).map(lambda sizes: [b"x" * size for size in sizes]),
    st.integers(1, 12),
    st.integers(1, 30),
)
def test_the_first_line_that_is_too_long_is_found(
    lines: list[bytes], bytes_max: int, piece_bytes: int
) -> None:
    body = b"\n".join(lines)
    search = LongLine(bytes_max)
    for start in range(0, len(body), piece_bytes):
        search.add(body[start : start + piece_bytes])
    too_long = [number for number, line in enumerate(lines, 1) if len(line) > bytes_max]

    assert search.number == (too_long[0] if too_long else None)


@pytest.mark.parametrize("pieces", [[b""], [b"\n" * 100], [b"12345", b"", b"\n12345"]])
def test_lines_that_fit_are_none(pieces: list[bytes]) -> None:
    search = LongLine(5)
    for piece in pieces:
        search.add(piece)

    assert search.number is None
