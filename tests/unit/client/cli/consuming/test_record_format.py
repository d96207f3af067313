"""`--format` prints of a record what its directives name, byte by byte."""

import argparse

import pytest

from tailrace.cli.consuming.record_format import record_format
from tailrace.protocol.records_ndjson import Record

TIME_US = 1_795_255_763_114_502
RECORD = Record("flights", 3, 1702, TIME_US, b"SFO", b'{"a": 1}', (("trace", b"\xff"), ("b", b"2")))


@pytest.mark.parametrize(
    ("format_", "printed"),
    [
        ("", b""),
        (r"%k %v\n", b'SFO {"a": 1}\n'),
        (r"%t/%p\t%o", b"flights/3\t1702"),
        ("%T", b"2026-11-21T10:09:23.114502Z"),
        ("%h", b"trace=\xff,b=2"),
        ("100 %% \u00fcber\n", "100 % \u00fcber\n".encode()),
        (r"\\n\r\0", b"\\n\r\0"),
    ],
)
def test_a_directive_prints_what_the_record_has(format_: str, printed: bytes) -> None:
    assert record_format(format_).render(RECORD) == printed


def test_what_a_record_has_none_of_is_empty() -> None:
    bare = RECORD._replace(key=None, value=None, headers=())

    assert record_format("[%k|%v|%h]").render(bare) == b"[||]"


@pytest.mark.parametrize(
    ("format_", "error"),
    [
        ("%k %s", '"%s" is none of %t %p %o %T %k %v %h %%'),
        ("%", '"%" is none of'),
        ("%\n", '"%\n" is none of'),
        (r"%v\x", r'"\x" is none of \n \t \r \0 \\'),
        ("%v\\", '"\\" is none of'),
    ],
)
def test_what_no_directive_is_called_is_refused_by_name(format_: str, error: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        record_format(format_)

    assert error in str(refused.value)
