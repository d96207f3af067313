"""A run that was cut goes on where it was: each line is sent once more at most."""

from collections.abc import Sequence
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli.producing.resume import Replay, ResumeRefusedError, Token, parse_token, resuming

ID = "0123456789abcdef" * 2
SEED = crc32(b"options")
LINES = [b"%d\n" % number for number in range(9)]


def token_of(lines: Sequence[bytes], line: int, line_count: int) -> Token:
    """Of a run that was cut with this request under way."""
    return Token(ID, 7, line, line_count, crc32(b"".join(lines[: line - 1 + line_count]), SEED))


@given(
    st.integers(0, 10**18 - 1),
    st.integers(1, 10**15 - 1),
    st.integers(0, 500_000),
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 4_095)),
)
def test_a_token_is_a_text(
    sequence: int, line: int, count: int, checksum: int, stored: list[int]
) -> None:
    token = Token(ID, sequence, line, count, checksum, tuple(stored))

    assert parse_token(str(token)) == token


@pytest.mark.parametrize("text", ["", ID, f"{ID}-1-0-0-00000000", f"{ID}-1-1-0-0000000g"])
def test_another_text_is_no_token(text: str) -> None:
    with pytest.raises(ValueError, match="no token"):
        parse_token(text)


@given(
    st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=30),
    st.integers(0, 30),
    st.integers(0, 30),
    st.integers(1, 7),
)
def test_a_replay_gives_the_request_that_was_under_way_and_then_all_behind_it(
    lines: list[bytes], skipped: int, begun: int, batch_lines: int
) -> None:
    skipped = min(skipped, len(lines) - 1)
    begun = min(begun, len(lines) - skipped)
    replay = Replay(token_of(lines, skipped + 1, begun), SEED)
    given_again = [
        part
        for first in range(0, len(lines), batch_lines)
        if not replay.is_done
        for part in replay.take(lines[first : first + batch_lines])
    ]
    requests = [list(some) for is_begun, some in given_again if is_begun]
    rest = [line for is_begun, some in given_again if not is_begun for line in some]

    assert replay.is_done
    assert requests == ([lines[skipped : skipped + begun]] if begun else [])
    assert rest == lines[skipped + begun :][: len(rest)]
    assert replay.checksum == crc32(b"".join(lines[:skipped]), SEED)


@pytest.mark.parametrize("changed", [0, 3, 5])
def test_another_input_is_refused_before_anything_is_sent(changed: int) -> None:
    replay = Replay(token_of(LINES, 4, 3), SEED)
    lines = [*LINES]
    lines[changed] = b"other\n"

    with pytest.raises(ResumeRefusedError, match="or the input up to line 6 differs from"):
        list(replay.take(lines))
    assert not replay.is_done


def test_other_options_are_refused() -> None:
    replay = Replay(token_of(LINES, 1, 0), crc32(b"others"))

    with pytest.raises(ResumeRefusedError, match="does not fit: the topic, an option, or the"):
        list(replay.take(LINES))


@pytest.mark.parametrize(("line", "count", "missing"), [(4, 3, 1), (4, 3, 4), (7, 0, 1)])
def test_an_input_with_too_few_lines_is_refused(line: int, count: int, missing: int) -> None:
    replay = Replay(token_of(LINES, line, count), SEED)

    assert list(replay.take(LINES[: 6 - missing])) == []
    with pytest.raises(ResumeRefusedError, match="the input has fewer than 6 lines, and nothing"):
        replay.end()


def test_a_token_behind_the_last_line_needs_no_more_of_them() -> None:
    replay = Replay(token_of(LINES, 1, 0), SEED)

    assert list(replay.take(())) == []
    replay.end()


@pytest.mark.parametrize(
    ("words", "resumed"),
    [
        ("produce t", "produce t --resume T"),
        ("produce t --resume old -f a", "produce t -f a --resume T"),
        ("produce t --resume=old", "produce t --resume T"),
        ("produce t -- -1 --resume 2", "produce t --resume T -- -1 --resume 2"),
    ],
)
def test_a_command_is_resumed_as_it_was_typed(words: str, resumed: str) -> None:
    token = Token(ID, 1, 1, 0, 0)

    assert resuming(words.split(), token) == resumed.replace("T", str(token)).split()
