"""What `-o json` prints of values that look like bytes."""

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
