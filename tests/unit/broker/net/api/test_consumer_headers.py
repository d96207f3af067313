"""What a consumer's headers say of what it got."""

import pytest

from tailrace_broker.model.errors import InvalidParameterError
from tailrace_broker.model.group import Confirmation
from tailrace_broker.net.api.consumer_headers import read_confirmation

NAMES = {"Tailrace-Delivery": "delivery", "Tailrace-Assignment-Epoch": "epoch"}
each_header = pytest.mark.parametrize("header", NAMES)


def headers_of(header: str, value: bytes) -> dict[bytes, bytes]:
    """As a request has it, beside one of another kind."""
    return {header.lower().encode(): value, b"tailrace-sequence": b"x"}


def test_without_the_headers_nothing_is_said() -> None:
    assert read_confirmation({}) == Confirmation(None, None)


@each_header
@pytest.mark.parametrize("number", [0, 41, 2**63 - 1])
def test_each_header_says_its_own(header: str, number: int) -> None:
    said = read_confirmation(headers_of(header, b"%d" % number))

    assert said == Confirmation(**{NAMES[header]: number})


@each_header
@pytest.mark.parametrize("value", [b"", b"-1", b"+1", b"1.0", b"1, 1", b"\xb2", b"%d" % 2**63])
def test_what_is_wrong_with_a_header_is_reported_by_its_name(header: str, value: bytes) -> None:
    with pytest.raises(InvalidParameterError) as refused:
        read_confirmation(headers_of(header, value))

    shown = value.decode("latin-1")
    assert (
        refused.value.detail == f"{header} is {shown}; it is a whole number from 0 to {2**63 - 1}"
    )
    assert refused.value.members == {"parameter": header}
