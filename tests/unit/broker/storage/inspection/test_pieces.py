"""Segment files as batches, pads, zeros and damage, and the records of a batch."""

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_broker.codec.segment import encode_pad
from tailrace_broker.model.errors import CorruptBatchError
from tailrace_broker.storage.inspection import lines_in, pieces_in
from tests.support.storage.batches import Event, batch_of, forged_batch

SEGMENT = (Path(__file__).parents[4] / "golden" / "formats" / "segment.log").read_bytes()
BATCH = batch_of([Event(b"1"), Event(None, key=None)])
WRITE = BATCH + encode_pad(4096 - len(BATCH))


def kinds_of(stored: bytes) -> list[tuple[str, int, bool]]:
    found = pieces_in(io.BytesIO(stored), len(stored))
    return [(piece.kind, piece.position, piece.is_whole) for piece in found]


def flipped(stored: bytes, position: int) -> bytes:
    changed = bytearray(stored)
    changed[position] ^= 1
    return bytes(changed)


def test_a_segment_is_batches_and_pads() -> None:
    assert kinds_of(SEGMENT) == [
        ("batch", 0, True),
        ("pad", 288, True),
        ("batch", 4096, True),
        ("batch", 4320, True),
        ("pad", 4608, True),
        ("batch", 8192, True),
        ("pad", 8896, True),
    ]


def test_zeros_behind_the_last_write_are_one_piece() -> None:
    assert kinds_of(WRITE + bytes(3 * 4096))[2:] == [("zeros", 4096, True)]


def test_behind_a_damaged_payload_or_pad_reading_goes_on() -> None:
    for position, index in ((len(BATCH) - 20, 0), (len(BATCH) + 40, 1)):
        found = kinds_of(flipped(WRITE * 2, position))
        assert [is_whole for *_, is_whole in found] == [each != index for each in range(4)]


@pytest.mark.parametrize("position", [4, 12, 40, 127])
def test_behind_a_damaged_header_reading_goes_on_with_the_next_write(position: int) -> None:
    assert kinds_of(flipped(WRITE * 2, position))[:2] == [
        ("damage", 0, False),
        ("batch", 4096, True),
    ]


def test_a_batch_that_is_cut_off_is_damage() -> None:
    assert kinds_of(BATCH[:-16]) == [("damage", 0, False)]


def test_damage_and_zeros_are_distinguished() -> None:
    stored = WRITE + b"x" * 4096 + bytes(4096) + b"y" * 100

    assert kinds_of(stored)[2:] == [
        ("damage", 4096, False),
        ("zeros", 8192, True),
        ("damage", 12288, False),
    ]


@given(st.binary(max_size=300), st.integers(0, len(WRITE)), st.integers(0, 5000))
def test_whatever_a_file_holds_its_pieces_are_all_of_it(
    noise: bytes, position: int, zero_bytes: int
) -> None:
    stored = WRITE[:position] + noise + WRITE[position:] + bytes(zero_bytes)
    end = 0
    for piece in pieces_in(io.BytesIO(stored), len(stored)):
        assert piece.position == end
        end += piece.size_bytes

    assert end == len(stored)


def lines_of(stored: bytes) -> list[bytes]:
    file = io.BytesIO(stored)
    return lines_in(file, next(pieces_in(file, len(stored))))


def test_records_are_as_a_read_answers_them() -> None:
    assert lines_of(SEGMENT)[1] == (
        b'{"partition":3,"offset":1,"timestamp":"2025-11-24T16:00:00.000000Z","key":"SFO",'
        b'"value":{"origin":"SFO","delay":-3}}'
    )


@pytest.mark.parametrize(
    "stored", [forged_batch(b"no columns"), batch_of([Event(b"1", timestamp_us=2**62)])]
)
def test_records_that_cannot_be_read_are_refused(stored: bytes) -> None:
    with pytest.raises(CorruptBatchError):
        lines_of(stored)
