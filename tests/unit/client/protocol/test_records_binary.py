"""Records become the bytes of a records+binary body."""

import pytest

from tailrace.protocol.records_binary import encode_records


def test_records_need_one_element_a_record_in_each_sequence() -> None:
    with pytest.raises(ValueError, match="one element a record"):
        encode_records([b"k"], [b"v", b"w"])
    with pytest.raises(ValueError, match="one element a record"):
        encode_records([b"k"], [b"v"], [])
    with pytest.raises(ValueError, match="one element a record"):
        encode_records([b"k"], [b"v"], None, [])


def test_a_small_records_body_is_these_bytes() -> None:
    body = encode_records([b"k", None], [b"vv", b""], [1, -1])

    assert body == bytes.fromhex(
        "54524c52 0100 0100 02000000 01000000 02000000 00000000 00000000 00000000"  # header
        "01000000 ffffffff"  # key lengths
        "02000000 00000000"  # value lengths
        "0100000000000000 ffffffffffffffff"  # timestamps
        "6b00000000000000"  # keys, filled
        "7676"  # values, without fill
    )


def test_headers_are_columns_of_their_own() -> None:
    body = encode_records([None, None], [b"v", b"w"], None, [[(b"a", b"x"), (b"b", b"")], []])

    assert body == bytes.fromhex(
        "54524c52 0100 0200 02000000 00000000 02000000 02000000 02000000 01000000"  # header
        "ffffffff ffffffff"  # key lengths
        "01000000 01000000"  # value lengths
        "02000000 00000000"  # header counts
        "01000000 01000000"  # header key lengths
        "01000000 00000000"  # header value lengths
        "7677000000000000"  # values, filled
        "6162000000000000"  # header keys, filled
        "78"  # header values, without fill
    )
