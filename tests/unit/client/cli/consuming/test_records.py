"""What is printed of values that look like bytes, and of headers."""

import pytest

from tailrace.cli.consuming.records import as_output

_HEAD = b'{"partition":0,"offset":1,"timestamp":"2026-01-01T00:00:00.000000Z","key":null,"value":'
_MEMBER = b'{"valueEncoding":"base64","n":%b}'


@pytest.mark.parametrize(
    "value",
    [_MEMBER % (b"9" * 5_000), _MEMBER % (b"[" * 5_000 + b"]" * 5_000), _MEMBER % b"1.50"],
    ids=["a long number", "nested deeply", "another number"],
)
def test_a_json_value_is_printed_as_it_is(
    value: bytes, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    line = _HEAD + value + b"}\n"

    as_output("json", names_topics=False)(iter([line]))

    assert capsysbinary.readouterr().out == line


def test_bytes_that_are_text_are_printed_as_text(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    line = _HEAD + b'{"base64":"aGk="},"valueEncoding":"base64"}\n'

    as_output("json", names_topics=False)(iter([line]))

    assert capsysbinary.readouterr().out == _HEAD + b'"hi","valueEncoding":"text"}\n'


def test_a_table_shows_headers_as_name_and_value(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    headers = (
        b',"headers":[{"key":"source","value":"web"},{"key":"a","value":{"base64":"/w=="}},'
        b'{"key":{"base64":"/w=="},"value":"x\\u001b"}]}\n'
    )

    as_output("table", names_topics=False)(iter([_HEAD + b"1" + headers + _HEAD + b"2}\n"]))

    titles, *rows = [line.split() for line in capsysbinary.readouterr().out.decode().splitlines()]
    assert titles[-2:] == ["VALUE", "HEADERS"]
    assert [row[4:] for row in rows] == [
        ["1", 'source=web,a={"base64":"/w=="},{"base64":"/w=="}="x\\u001b"'],
        ["2"],
    ]
