"""The split against a plain one: line by line, with the JSON reader of the standard library."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_broker.codec.ndjson import is_json, split_lines
from tailrace_broker.model.errors import InvalidBodyError, InvalidRecordError

WHITE_SPACE = [b" ", b"\t", b"\n", b"\r", b"\r\n"]
TEXTS = [b"5", b"-0.5e1", b"null", b'""', b'"a b"', b"[]", b'{"a":[1, 2]}', '"ü"'.encode()]
SPOILT = [b"[", b"]", b'"', b"{", b"}", b",", b"1", b"\xff", b"\xc3", b'"\xff"', b'"a\nb"', b"\x00"]
bodies = st.lists(st.sampled_from([*TEXTS, *SPOILT, *WHITE_SPACE]), max_size=12).map(b"".join)
good_lines = st.tuples(
    st.sampled_from([b"", b" ", b"\t ", b"\r"]),
    st.sampled_from(TEXTS),
    st.sampled_from([b"", b"  ", b"\r"]),
    st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\r\n\r\n"]),
).map(b"".join)
good_bodies = st.lists(good_lines, min_size=1, max_size=12).map(b"".join)


def lines_of(body: bytes) -> list[tuple[int, int, bytes]]:
    """Number, position and value of each line that is not blank."""
    lines = []
    position = 0
    for number, line in enumerate(body.split(b"\n"), start=1):
        value = line.removesuffix(b"\r")
        if value:
            lines.append((number, position, value))
        position += len(line) + 1
    return lines


def is_one_json_text(value: bytes) -> bool:
    """As RFC 8259 has it: the standard library also takes three names of numbers."""
    try:
        json.loads(value.decode(), parse_constant=lambda _: 1 / 0)
    except (ValueError, ZeroDivisionError):
        return False
    return True


def split(body: bytes, *, json_check: bool) -> list[bytes]:
    lines = split_lines(body, json_check=json_check)
    values = []
    position = 0
    for length in lines.lengths.tolist():
        values.append(lines.values[position : position + length])
        position += length
    assert position == len(lines.values)
    return values


def check_split(body: bytes) -> None:
    """Compare one body's outcome, and where it is refused, with the plain split's."""
    lines = lines_of(body)
    bad = [(number, at, value) for number, at, value in lines if not is_one_json_text(value)]
    if not lines:
        with pytest.raises(InvalidBodyError):
            split_lines(body, json_check=True)
    elif bad:
        with pytest.raises(InvalidRecordError) as refused:
            split_lines(body, json_check=True)
        number, position, value = bad[0]
        assert refused.value.members == {"line": number}
        detail = refused.value.detail
        if value.strip(b" \t\r"):
            byte = int(detail.rpartition(" at byte ")[2].partition(";")[0])
            assert position <= byte <= position + len(value)
        else:
            assert detail == "the line has no value; nothing was stored"
    else:
        assert split(body, json_check=True) == [value for _, _, value in lines]


@given(bodies)
def test_any_body_is_split_or_refused_where_it_is_wrong(body: bytes) -> None:
    check_split(body)


@given(good_bodies)
def test_a_body_of_json_texts_is_split(body: bytes) -> None:
    assert split(body, json_check=True) == [value for _, _, value in lines_of(body)]


@given(st.binary(max_size=60))
def test_any_bytes_are_split_or_refused(body: bytes) -> None:
    check_split(body)


@given(st.binary(max_size=60))
def test_without_the_check_every_line_that_is_not_blank_is_a_value(body: bytes) -> None:
    values = [value for _, _, value in lines_of(body)]

    if values:
        assert split(body, json_check=False) == values
    else:
        with pytest.raises(InvalidBodyError):
            split_lines(body, json_check=False)


@pytest.mark.timeout(20)  # half a second alone
def test_texts_that_cover_other_lines_than_their_own_are_refused() -> None:
    """Every arrangement of up to six of these: lengths alone may look as if all were well."""
    pieces = [b"[", b"]", b"5", b" ", b"\n"]
    arrangements = [b""]
    for _ in range(6):
        arrangements = [body + piece for body in arrangements for piece in pieces]
        for body in arrangements:
            lines = lines_of(body)
            expected = bool(lines) and all(is_one_json_text(value) for _, _, value in lines)
            assert is_taken(body) == expected, body


def is_taken(body: bytes) -> bool:
    try:
        split_lines(body, json_check=True)
    except (InvalidBodyError, InvalidRecordError):
        return False
    return True


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(json_values, st.booleans(), st.sampled_from([None, 2]))
def test_whatever_the_standard_library_writes_is_json(
    value: object, ascii_only: bool, indent: int | None
) -> None:
    assert is_json(json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode())
