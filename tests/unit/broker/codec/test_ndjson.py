import tracemalloc

import pytest

from tailrace_broker.codec.columns import EVENTS_MAX
from tailrace_broker.codec.ndjson import check_json, is_json, split_lines
from tailrace_broker.model.errors import BodyTooLargeError, InvalidBodyError, InvalidRecordError

MEBIBYTE = 1024 * 1024


def values_of(body: bytes | bytearray, *, json_check: bool = True) -> list[bytes]:
    """The values of a body, one by one."""
    lines = split_lines(body, json_check=json_check)
    assert len(lines.values) == lines.lengths.sum()
    rest = iter(lines.values)
    return [bytes(next(rest) for _ in range(length)) for length in lines.lengths]


def refusal_of(body: bytes) -> tuple[int, str]:
    """The line and the reason."""
    with pytest.raises(InvalidRecordError) as refused:
        split_lines(body, json_check=True)
    line = refused.value.members["line"]
    assert isinstance(line, int)
    return line, refused.value.detail.removesuffix("; nothing was stored")


@pytest.mark.parametrize(
    ("body", "values"),
    [
        pytest.param(b"1\n2\n", [b"1", b"2"], id="LF"),
        pytest.param(b"1\r\n2\r\n", [b"1", b"2"], id="CRLF"),
        pytest.param(b"1\n2\r\n3", [b"1", b"2", b"3"], id="mixed"),
        pytest.param(b"1\n2", [b"1", b"2"], id="last line end left out"),
        pytest.param(b"1\r", [b"1"], id="last line feed left out"),
        pytest.param(b"\n\n1\n\r\n\n2\n\n", [b"1", b"2"], id="blank lines"),
        pytest.param(b"1\n\r", [b"1"], id="last blank line without its line feed"),
        pytest.param(b" 1 \n\t[2]\r\n", [b" 1 ", b"\t[2]"], id="white space around values"),
        pytest.param(b"1\r\r\n", [b"1\r"], id="one carriage return belongs to the line end"),
        pytest.param('"Zürich"'.encode(), ['"Zürich"'.encode()], id="UTF-8"),
    ],
)
@pytest.mark.parametrize("json_check", [True, False], ids=["checked", "unchecked"])
def test_a_body_is_one_value_a_line(body: bytes, values: list[bytes], json_check: bool) -> None:
    assert values_of(body, json_check=json_check) == values
    assert values_of(bytearray(body), json_check=json_check) == values


@pytest.mark.parametrize("body", [b"", b"\n", b"\r\n\n", b"\r", b"\n\r"])
@pytest.mark.parametrize("json_check", [True, False], ids=["checked", "unchecked"])
def test_a_body_of_blank_lines_holds_no_event(body: bytes, json_check: bool) -> None:
    with pytest.raises(InvalidBodyError, match="no event"):
        split_lines(body, json_check=json_check)


def test_without_the_check_a_line_may_be_anything() -> None:
    assert values_of(b"not json\n\xff\n  \n", json_check=False) == [b"not json", b"\xff", b"  "]


@pytest.mark.parametrize(
    ("body", "line", "reason"),
    [
        (b"1\nx\n3\n", 2, "invalid character at byte 2"),
        (b"1\n2 3\n", 2, "trailing characters at byte 4"),
        (b"1\r\n\r\n2 3\r\n", 3, "trailing characters at byte 7"),
        (b'{"a":\n1}\n', 1, "the JSON is cut short at byte 5"),
        (b"  [\n] [\n]\n5\n", 1, "the JSON is cut short at byte 3"),
        (b'1\n"\xff"\n', 2, "not UTF-8 at byte 3"),
        (b"\xff", 1, "invalid character at byte 0"),
        (b"\xef\xbb\xbf1\n", 1, "invalid character at byte 0"),
        (b"1\n \n", 2, "the line has no value"),
        (b"\r\r\n", 1, "the line has no value"),
        (b"[1,]", 1, "trailing comma in array at byte 3"),
        (b"1\n" + b"[" * 10_000, 2, "nested too deeply"),
    ],
)
def test_a_refusal_names_the_line_and_the_byte(body: bytes, line: int, reason: str) -> None:
    assert refusal_of(body) == (line, reason)


@pytest.mark.parametrize(
    "value",
    [b"NaN", b"Infinity", b"01", b"1.", b".5", b"+1", b"tru", b"'a'", b'"\t"', b'"\\x"', b"{1:2}"],
)
def test_what_only_looks_like_json_is_refused(value: bytes) -> None:
    assert not is_json(value)


@pytest.mark.parametrize(
    "value",
    [b"null", b"-0.5e-3", b"1e999", b'"\\ud83d\\ude80"', b'{"a":1,"a":2}', b" [ ] ", b'"\x7f"'],
)
def test_every_json_text_is_taken(value: bytes) -> None:
    assert is_json(value)


@pytest.mark.parametrize("half", [r"\ud800", r"\uDBFF", r"\ude80"])
@pytest.mark.parametrize("behind", ["", " ", "abcdefgh", r"\n", r"\u0041 ", r"\ud83d\ude80"])
def test_half_a_surrogate_pair_is_refused_for_it_is_no_character(half: str, behind: str) -> None:
    body = rf'1{chr(10)}{{"a\\ud800":"\ud83d\ude80{half}{behind}"}}'.encode()
    reason = f"{half} is half of a surrogate pair at byte 27"

    assert refusal_of(body) == (2, reason)


def test_half_a_surrogate_pair_behind_another_fault_is_not_what_is_named() -> None:
    assert refusal_of(b'[1 "\\ud800"]') == (1, "expected ',' or ']' at byte 3")


def test_a_value_is_taken_from_any_buffer() -> None:
    check_json(b"[1]")
    check_json(bytearray(b'"\xc3\xbc"'))


def test_a_body_of_one_event_is_its_line_1() -> None:
    with pytest.raises(InvalidRecordError, match="expected ',' or '}' at byte 7") as refused:
        check_json(b'{"a":1 "b":2}')

    assert refused.value.members == {"line": 1}


@pytest.mark.parametrize("json_check", [True, False])
def test_more_events_than_a_request_may_hold_are_refused_before_they_are_cut(
    json_check: bool,
) -> None:
    assert len(split_lines(b"1\n" * EVENTS_MAX, json_check=json_check).lengths) == EVENTS_MAX
    with pytest.raises(BodyTooLargeError) as refused:
        split_lines(b"1\n" * (EVENTS_MAX + 1), json_check=json_check)

    assert refused.value.members == {"maxEvents": EVENTS_MAX}


@pytest.mark.timeout(30)  # the allocations are traced, which is slow
@pytest.mark.parametrize(("text", "line_bytes"), [(b"1 ", 1024), (b"[]", 4 * MEBIBYTE)])
def test_many_texts_on_one_line_are_refused_without_an_object_for_each(
    text: bytes, line_bytes: int
) -> None:
    body = (text * (line_bytes // len(text)) + b"\n") * (4 * MEBIBYTE // line_bytes)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRecordError, match="trailing characters") as refused:
            split_lines(body, json_check=True)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert refused.value.members["line"] == 1
    assert peak_bytes < 100 * MEBIBYTE  # an object for each takes 130 MiB and more
