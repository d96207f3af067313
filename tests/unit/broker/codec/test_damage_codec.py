"""The record of a partition's damage."""

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tailrace.wire import DAMAGE_HEADER
from tailrace_broker.codec.damage import decode_damage, encode_damage
from tailrace_broker.model.damage import Loss, RecordedDamage
from tailrace_broker.model.errors import CorruptBatchError

int64s = st.integers(-(2**63), 2**63 - 1)
losses = st.lists(st.builds(Loss, int64s, int64s, int64s), max_size=3).map(tuple)
KNOWN = RecordedDamage(9, 12, (Loss(3, 5), Loss(7, 9, 1)))


@given(st.builds(RecordedDamage, int64s, int64s, losses))
def test_it_is_read_as_it_was_written(known: RecordedDamage) -> None:
    assert decode_damage(encode_damage(known)) == known


@given(st.integers(0, 7), st.integers(0, 1_000))
def test_a_flipped_bit_is_found(bit: int, place: int) -> None:
    stored = bytearray(encode_damage(KNOWN))
    stored[place % len(stored)] ^= 1 << bit
    with pytest.raises(CorruptBatchError, match="damage file"):
        decode_damage(bytes(stored))


@given(st.integers(0, 1_000))
def test_a_cut_is_found(size_bytes: int) -> None:
    stored = encode_damage(KNOWN)
    with pytest.raises(CorruptBatchError, match="damage file"):
        decode_damage(stored[: size_bytes % len(stored)])


def test_another_version_is_refused() -> None:
    stored = bytearray(encode_damage(RecordedDamage()))
    stored[4] = 2
    stored[DAMAGE_HEADER.size :] = crc32c(bytes(stored[: DAMAGE_HEADER.size])).to_bytes(4, "little")
    with pytest.raises(CorruptBatchError, match="magic, version or size does not fit"):
        decode_damage(bytes(stored))


def test_a_loss_that_is_recorded_again_is_there_once() -> None:
    assert KNOWN.loss_at(3) == Loss(3, 5)
    assert KNOWN.loss_at(4) is None
    assert KNOWN.with_loss(Loss(3, 20, 8)) == RecordedDamage(20, 0, (Loss(3, 20, 8), Loss(7, 9, 1)))
