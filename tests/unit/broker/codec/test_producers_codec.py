"""Producer tables, and the checkpoint of a partition's producers."""

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tailrace_broker.codec.batch import read_header, stamp_batch, verify_batch
from tailrace_broker.codec.producers import (
    ROW,
    Checkpoint,
    ProducerState,
    TableEntry,
    decode_checkpoint,
    decode_table,
    encode_checkpoint,
    encode_table,
    with_table,
)
from tailrace_broker.model.errors import CorruptBatchError
from tests.support.storage.batches import Event, body_of, forged_batch, place_of

STATE = ProducerState(bytes(range(16)), 41, 1_764_000_000_000_000, ROW.pack(42, 7, 1, 3))

ids = st.binary(min_size=16, max_size=16)
int64s = st.integers(-(2**63), 2**63 - 1)
uint32s = st.integers(0, 2**32 - 1)
rows = st.builds(ROW.pack, int64s, int64s, int64s, uint32s)
states = st.builds(ProducerState, ids, int64s, int64s, st.lists(rows, max_size=3).map(b"".join))


@given(st.lists(st.builds(TableEntry, ids, int64s, uint32s, uint32s)))
def test_a_table_is_read_as_it_was_written(entries: list[TableEntry]) -> None:
    assert list(decode_table(encode_table(entries))) == entries


def test_a_body_that_is_made_already_takes_a_table() -> None:
    table = encode_table([TableEntry(bytes(16), 1, 0, 1)])
    batch = stamp_batch(with_table(body_of([Event(b"1")]), table), place_of())

    assert verify_batch(memoryview(b"".join(batch.buffers))) == batch.header
    assert batch.header.producer_table_bytes == len(table)


def test_a_batch_whose_table_is_none_is_damaged() -> None:
    with pytest.raises(CorruptBatchError, match="its producer table is none"):
        read_header(memoryview(forged_batch(bytes(64), producer_table_bytes=31)))


@given(int64s, st.lists(states, max_size=4))
def test_a_checkpoint_is_read_as_it_was_written(
    end_offset: int, producers: list[ProducerState]
) -> None:
    checkpoint = Checkpoint(end_offset, producers)

    assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint


@given(st.integers(0, 7), st.integers(0, 1_000))
def test_a_flipped_bit_is_found(bit: int, place: int) -> None:
    stored = bytearray(encode_checkpoint(Checkpoint(50, [STATE, STATE])))
    stored[place % len(stored)] ^= 1 << bit
    with pytest.raises(CorruptBatchError, match="producers file"):
        decode_checkpoint(bytes(stored))


@given(st.integers(0, 1_000))
def test_a_cut_is_found(size_bytes: int) -> None:
    stored = encode_checkpoint(Checkpoint(50, [STATE, STATE]))
    with pytest.raises(CorruptBatchError, match="producers file"):
        decode_checkpoint(stored[: size_bytes % len(stored)])


@pytest.mark.parametrize("missing", ["producer", "row"])
def test_a_checkpoint_that_says_more_than_it_has_is_damaged(missing: str) -> None:
    """Its checksum may be right all the same."""
    whole = encode_checkpoint(Checkpoint(9, [STATE, STATE]))
    head_bytes = len(encode_checkpoint(Checkpoint(9, [])))
    state_bytes = (len(whole) - head_bytes) // 2
    rest = whole[head_bytes:-state_bytes] if missing == "producer" else whole[head_bytes:-1]
    head = whole[: head_bytes - 4]
    forged = head + crc32c(rest, crc32c(head)).to_bytes(4, "little") + rest

    with pytest.raises(CorruptBatchError, match=f"fewer {missing}s than it says"):
        decode_checkpoint(forged)
