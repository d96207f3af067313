"""Keys and values of lines, by the options of `tailrace produce`."""

import pytest

from tailrace.cli.producing.form import BadLine, Form, parse_key_path, record_key


@pytest.mark.parametrize(
    ("text", "path"), [(".origin", ("origin",)), (".customer.id", ("customer", "id"))]
)
def test_a_field_path_starts_with_a_dot(text: str, path: tuple[str, ...]) -> None:
    assert parse_key_path(text) == path


@pytest.mark.parametrize("text", ["", ".", "origin", "a.b", ".a.", "..a", ".a..b"])
def test_anything_else_is_no_field_path(text: str) -> None:
    with pytest.raises(ValueError, match="not a field path"):
        parse_key_path(text)


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ('{"k": "SFO"}', b"SFO"),
        ('{"k": ""}', b""),
        ('{"k": "\\u00e9"}', "é".encode()),
        ('{"k": "\\ud83d\\ude00"}', "😀".encode()),
        ('{"k": "\\\\ud800"}', rb"\ud800"),
        ('{"k": 1.50}', b"1.50"),
        ('{"k": 1e400}', b"1e400"),
        ('{"k": -7}', b"-7"),
        ('{"k": true}', b"true"),
        ('{"k": false}', b"false"),
    ],
)
def test_a_key_is_the_fields_text_as_written(value: str, key: bytes) -> None:
    assert Form(key_path=("k",)).records([value.encode()], json_check=True).keys == [key]


def test_a_key_may_lie_in_an_object() -> None:
    form = Form(key_path=("customer", "id"))

    assert form.records([b'{"customer": {"id": "c7"}}'], json_check=True).keys == [b"c7"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"k": "a"', r"is not JSON \(expecting ',' delimiter at character 10\)"),
        (b'{"k": "a', r"is not JSON \(unterminated string starting at character 7\)"),
        (b'{"k": NaN}', r"is not JSON \(NaN is not a JSON value\)"),
        (b'{"k": "\xff"}', r"is not JSON \(not UTF-8 at byte 8\)"),
        (b"[" * 100_000, r"is not JSON \(nested too deeply\)"),
        (b'{"other": 1}', "has no .k"),
        (b'{"k": null}', "has no .k"),
        (b'"text"', "has no .k"),
        (b"[1]", "has no .k"),
        (b'{"k": [1]}', "has no text or number in .k"),
        (b'{"k": {}}', "has no text or number in .k"),
        (b'{"k": "\\ud800"}', r"is not JSON \(.ud800 is half of a surrogate pair\)"),
        (b'{"k": "a", "x": "\\udE00\\ud83d"}', r"is not JSON \(.udE00 is half of a surrogate"),
    ],
)
def test_a_line_without_a_key_says_why(value: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}"):
        record_key(value, ["k"])


def test_records_end_before_the_first_bad_line() -> None:
    lines = [b'{"k":"a"}\r\n', b"\n", b"\r\n", b'{"k":"b"}\n', b'{"x":1}\n', b'{"k":"c"}']
    form = Form(key_path=("k",))

    assert form.records(lines, json_check=True) == (
        [b"a", b"b"],
        [b'{"k":"a"}', b'{"k":"b"}'],
        [0, 3],
        BadLine(4, "has no .k"),
    )
    assert form.records(lines[:4], json_check=True).bad_line is None


def test_the_first_separator_ends_the_key() -> None:
    form = Form(separator=b": ")

    assert form.records([b"a: b: c\n", b": \n", b"a:b"], json_check=False) == (
        [b"a", b""],
        [b"b: c", b""],
        [0, 1],
        BadLine(2, "has no separator ': ' behind its key"),
    )


def test_an_event_that_is_an_argument_is_taken_as_it_is() -> None:
    form = Form(key=b"k", is_lines=False)

    assert form.records([b"1\n", b""], json_check=False) == (
        [b"k"] * 2,
        [b"1\n", b""],
        [0, 1],
        None,
    )
    assert form.records([b""], json_check=True).bad_line == BadLine(
        0, "is not JSON (expecting value at character 1)"
    )
