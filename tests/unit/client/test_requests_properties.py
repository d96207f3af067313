"""A records+binary body says what was put in, to a reader that shares no code with its writer."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from tailrace.requests import encode_records

Record = tuple[bytes | None, bytes | None, int]
maybe_bytes = st.none() | st.binary(max_size=20)
timestamps = st.integers(-(2**63), 2**63 - 1)
records = st.lists(st.tuples(maybe_bytes, maybe_bytes, timestamps), max_size=20)


def read_records(body: bytes) -> tuple[list[Record], int]:
    """Record by record, as the table in the format's text reads -> records, bytes used."""
    magic, version, flags, count, key_bytes, value_bytes, *headers = struct.unpack_from(
        "<4sHHIIIIII", body
    )
    assert (magic, version, headers) == (b"TRLR", 1, [0, 0, 0])
    assert flags in (0, 1)
    key_lengths_at = 32
    value_lengths_at = next_multiple_of_8(key_lengths_at + 4 * count)
    timestamps_at = next_multiple_of_8(value_lengths_at + 4 * count)
    key_at = timestamps_at + 8 * count * flags
    value_at = next_multiple_of_8(key_at + key_bytes)
    end = value_at + value_bytes
    found: list[Record] = []
    for index in range(count):
        (key_length,) = struct.unpack_from("<i", body, key_lengths_at + 4 * index)
        (value_length,) = struct.unpack_from("<i", body, value_lengths_at + 4 * index)
        timestamp = struct.unpack_from("<q", body, timestamps_at + 8 * index)[0] if flags else 0
        key = None if key_length < 0 else body[key_at : key_at + key_length]
        value = None if value_length < 0 else body[value_at : value_at + value_length]
        found.append((key, value, timestamp))
        key_at += max(key_length, 0)
        value_at += max(value_length, 0)
    assert value_at == end
    return found, end


def next_multiple_of_8(position: int) -> int:
    while position % 8:
        position += 1
    return position


@given(records)
def test_records_with_timestamps_survive(given_records: list[Record]) -> None:
    keys = [key for key, _, _ in given_records]
    values = [value for _, value, _ in given_records]
    body = encode_records(keys, values, [timestamp for _, _, timestamp in given_records])

    assert read_records(body) == (given_records, len(body))


@given(records)
def test_records_without_timestamps_survive(given_records: list[Record]) -> None:
    untimed = [(key, value, 0) for key, value, _ in given_records]
    body = encode_records([key for key, _, _ in untimed], [value for _, value, _ in untimed])

    assert read_records(body) == (untimed, len(body))
