import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.wire import Flag
from tailrace_broker.codec.columns import (
    column_of_lengths,
    column_of_one,
    column_of_texts,
    column_of_values,
    pack_columns,
    pack_events,
    validity_bitmap,
)
from tests.support.storage.batches import Event, columns_of


def test_values_become_their_bytes_and_where_each_starts() -> None:
    column = column_of_values([b"ab", b"", memoryview(b"cde")])

    assert column.data == b"abcde"
    assert column.offsets.tolist() == [0, 2, 2, 5]
    assert column.validity is None


def test_null_values_take_no_bytes_and_are_marked() -> None:
    column = column_of_values([b"ab", None, b"", None])

    assert column.data == b"ab"
    assert column.offsets.tolist() == [0, 2, 2, 2, 2]
    assert column.validity == bytes([0b0101])


def test_a_column_of_no_values_is_empty() -> None:
    assert column_of_values([]).offsets.tolist() == [0]


@pytest.mark.parametrize(
    "texts", [["a"], [""], ["ab", "", "ü"], ["a\0", "b"], ["\0"], ["", "", ""]]
)
def test_texts_become_their_utf_8(texts: list[str]) -> None:
    column, values = column_of_texts(texts), column_of_values([text.encode() for text in texts])

    assert column.data == values.data
    assert column.offsets.tolist() == values.offsets.tolist()


def test_lengths_cut_a_column() -> None:
    column = column_of_lengths(b"abc", np.array([1, 0, 2], np.int32))

    assert column.offsets.tolist() == [0, 1, 1, 3]


@pytest.mark.parametrize("count", [1, 8, 9])
@pytest.mark.parametrize("value", [b"SFO", b"", None], ids=["some bytes", "empty", "null"])
def test_one_value_many_times_is_as_many_values(value: bytes | None, count: int) -> None:
    one, many = column_of_one(value, count), column_of_values([value] * count)

    assert one.data == many.data
    assert one.offsets.tolist() == many.offsets.tolist()
    assert one.validity == many.validity


def test_the_first_entry_is_the_lowest_bit() -> None:
    assert validity_bitmap([True, False, True, True]) == bytes([0b1101])
    assert validity_bitmap([False] * 8 + [True]) == bytes([0, 1])


@pytest.mark.parametrize(
    ("event", "flags"),
    [
        (Event(b"1"), Flag(0)),
        (Event(None), Flag.NULL_VALUES),
        (Event(b"1", key=None), Flag.NULL_KEYS),
        (Event(b"1", headers=[(b"h", b"v")]), Flag.HEADERS),
        (
            Event(None, key=None, headers=[(b"", b"")]),
            Flag.NULL_VALUES | Flag.NULL_KEYS | Flag.HEADERS,
        ),
    ],
)
def test_the_flags_say_which_columns_there_are(event: Event, flags: Flag) -> None:
    assert columns_of([event]).flags == flags
    assert columns_of([event], flags=Flag.JSON_VALUES).flags == flags | Flag.JSON_VALUES


def test_every_column_starts_at_a_multiple_of_8_bytes() -> None:
    payload = columns_of([Event(b"values", key=b"keys", headers=[(b"name", b"content")])]).payload

    assert len(payload) % 8 == 0
    assert all(payload.index(column) % 8 == 0 for column in (b"values", b"keys", b"name", b"conte"))


def test_the_columns_know_the_first_and_the_largest_time() -> None:
    columns = columns_of([Event(b"1", timestamp_us=time_us) for time_us in (20, 10, 30, 15)])

    assert (columns.record_count, columns.first_timestamp_us) == (4, 20)
    assert columns.largest_timestamp_us == 30


@pytest.mark.parametrize(("value_count", "count"), [(2, 1), (1, 2), (0, 0)])
def test_columns_of_different_lengths_or_none_are_our_bug(value_count: int, count: int) -> None:
    with pytest.raises(AssertionError):
        pack_columns(
            column_of_values([b"v"] * value_count),
            column_of_values([b"k"] * count),
            np.zeros(count, np.int64),
        )


events = st.lists(
    st.tuples(
        st.binary(max_size=20), st.none() | st.binary(max_size=10), st.integers(-(2**63), 2**63 - 1)
    ),
    min_size=1,
    max_size=40,
)


@given(events, st.sampled_from([Flag(0), Flag.JSON_VALUES | Flag.BROKER_TIMESTAMPS]))
def test_a_few_events_become_the_same_columns_as_many(
    rows: list[tuple[bytes, bytes | None, int]], flags: Flag
) -> None:
    values, keys, timestamps_us = zip(*rows, strict=True)
    columns = pack_columns(
        column_of_values(values),
        column_of_values(keys),
        np.array(timestamps_us, np.int64),
        flags=flags,
    )

    assert pack_events(values, keys, timestamps_us, flags=flags) == columns
