"""What the headers of a request that may be sent again say."""

import pytest

from tailrace_broker.core.log.producers import Producer
from tailrace_broker.model.errors import InvalidParameterError
from tailrace_broker.net.api.producer_headers import Sender, read_sender

SEQUENCE_WANTED = "it is a whole number from 0 to 9223372036854775807"
ID_WANTED = "it is 1 to 128 visible ASCII characters"


def headers_of(name: bytes | None, sequence: bytes | None) -> dict[bytes, bytes]:
    """As a request has them, beside one of another kind."""
    given = {b"tailrace-producer-id": name, b"tailrace-sequence": sequence}
    known = {header: value for header, value in given.items() if value is not None}
    return {**known, b"tailrace-delivery": b"1"}


def test_without_the_headers_nobody_is_named() -> None:
    assert read_sender({}) is None
    assert read_sender(headers_of(None, None)) is None


@pytest.mark.parametrize("name", [b"a", b"till-7", b"!~", b"x" * 128])
@pytest.mark.parametrize("sequence", [0, 41, 2**63 - 1])
def test_a_name_and_a_sequence_are_a_producer(name: bytes, sequence: int) -> None:
    sender = Sender(name, Producer.named(name, sequence))

    assert read_sender(headers_of(name, str(sequence).encode())) == sender


@pytest.mark.parametrize(
    ("name", "sequence", "header", "detail"),
    [
        (None, b"1", "Tailrace-Producer-Id", "is missing; Tailrace-Sequence needs it"),
        (b"a", None, "Tailrace-Sequence", "is missing; Tailrace-Producer-Id needs it"),
        (b"", b"1", "Tailrace-Producer-Id", f"is ; {ID_WANTED}"),
        (b"a, a", b"1", "Tailrace-Producer-Id", f"is a, a; {ID_WANTED}"),
        (b"\xc3\xa9", b"1", "Tailrace-Producer-Id", f"is \xc3\xa9; {ID_WANTED}"),
        (b"x" * 129, b"1", "Tailrace-Producer-Id", f"is {'x' * 40}…; {ID_WANTED}"),
        (b"a", b"", "Tailrace-Sequence", f"is ; {SEQUENCE_WANTED}"),
        (b"a", b"-1", "Tailrace-Sequence", f"is -1; {SEQUENCE_WANTED}"),
        (b"a", b"+1", "Tailrace-Sequence", f"is +1; {SEQUENCE_WANTED}"),
        (b"a", b"1.0", "Tailrace-Sequence", f"is 1.0; {SEQUENCE_WANTED}"),
        (b"a", b"1, 1", "Tailrace-Sequence", f"is 1, 1; {SEQUENCE_WANTED}"),
        (b"a", b"\xb2", "Tailrace-Sequence", f"is \xb2; {SEQUENCE_WANTED}"),
        (
            b"a",
            b"9223372036854775808",
            "Tailrace-Sequence",
            f"is 9223372036854775808; {SEQUENCE_WANTED}",
        ),
        (b"a", b"0" * 41, "Tailrace-Sequence", f"is {'0' * 40}…; {SEQUENCE_WANTED}"),
    ],
)
def test_what_is_wrong_with_a_header_is_reported_by_its_name(
    name: bytes | None, sequence: bytes | None, header: str, detail: str
) -> None:
    with pytest.raises(InvalidParameterError) as refused:
        read_sender(headers_of(name, sequence))

    assert refused.value.detail == f"{header} {detail}"
    assert refused.value.members == {"parameter": header}
