import struct

import pytest
from crc32c import crc32c

from tailrace.wire import INDEX_HEADER, PAD_HEADER
from tailrace_broker.codec.segment import (
    NO_TIMESTAMP_US,
    EpochStart,
    IndexEntry,
    SegmentIndex,
    decode_index,
    encode_index,
    encode_pad,
    find_position,
    find_time,
    read_pad,
)
from tailrace_broker.model.errors import CorruptBatchError

INDEX = SegmentIndex(
    segment_bytes=262_144,
    end_offset=5_000_000_000,
    last_epoch=3,
    last_append_time_us=1_764_000_000_000_000,
    largest_timestamp_us=2**50,
    entries=[
        IndexEntry(0, 0, NO_TIMESTAMP_US),
        IndexEntry(120, 65_552, 70),
        IndexEntry(300, 131_104, 70),
        IndexEntry(400, 200_000, 2**40),
    ],
    epochs=[EpochStart(2, 4_000_000_000), EpochStart(3, 4_999_999_000)],
)


def refusal_of(stored: bytes) -> str:
    with pytest.raises(CorruptBatchError) as refused:
        decode_index(stored)
    return refused.value.detail


@pytest.mark.parametrize("pad_bytes", [16, 32, 4080, 4096])
def test_a_pad_fills_exactly_what_is_asked_and_is_found_again(pad_bytes: int) -> None:
    pad = encode_pad(pad_bytes)

    assert len(pad) == pad_bytes
    assert read_pad(memoryview(pad + bytes(48))) == pad_bytes


def test_a_write_that_ends_on_its_block_needs_no_pad() -> None:
    assert encode_pad(0) == b""


def test_a_pad_too_small_for_its_header_is_our_bug() -> None:
    with pytest.raises(AssertionError):
        encode_pad(15)


def test_a_hole_is_never_taken_for_a_pad() -> None:
    assert read_pad(memoryview(bytes(4096))) == 0


def test_a_header_of_something_else_is_no_pad() -> None:
    head = b"TRLX" + encode_pad(64)[4:8]

    assert read_pad(memoryview(head + struct.pack("<I4x", crc32c(head)))) == 0


def test_a_damaged_pad_header_is_no_pad() -> None:
    pad = encode_pad(64)
    for bit in range(12 * 8):
        damaged = bytearray(pad)
        damaged[bit // 8] ^= 1 << bit % 8

        assert read_pad(memoryview(damaged)) == 0


def test_a_pad_header_that_is_cut_off_is_no_pad() -> None:
    for size_bytes in range(PAD_HEADER.size):
        assert read_pad(memoryview(encode_pad(64)[:size_bytes])) == 0


@pytest.mark.parametrize("index", [INDEX, INDEX._replace(entries=[]), INDEX._replace(epochs=[])])
def test_an_index_comes_back_from_its_file(index: SegmentIndex) -> None:
    assert decode_index(encode_index(index)) == index


def test_every_truncation_of_an_index_is_refused() -> None:
    stored = encode_index(INDEX)
    for size_bytes in range(len(stored)):
        assert refusal_of(stored[:size_bytes])


def test_every_flipped_bit_of_an_index_is_refused() -> None:
    stored = encode_index(INDEX)
    for bit in range(len(stored) * 8):
        damaged = bytearray(stored)
        damaged[bit // 8] ^= 1 << bit % 8

        assert refusal_of(bytes(damaged))


def test_an_index_with_more_behind_it_is_refused() -> None:
    assert "size does not fit" in refusal_of(encode_index(INDEX) + bytes(16))


@pytest.mark.parametrize("start", [b"TRLI\1\0\0\0", b"TRLX\3\0\0\0"], ids=["version", "magic"])
def test_an_index_of_another_version_or_none_is_refused(start: bytes) -> None:
    stored = encode_index(INDEX)
    head = start + stored[8 : INDEX_HEADER.size]
    entries = stored[INDEX_HEADER.size + 4 :]
    crc = struct.pack("<I", crc32c(entries, crc32c(head)))

    assert "magic, version or size" in refusal_of(head + crc + entries)


@pytest.mark.parametrize(
    ("relative_offset", "position"),
    [
        (0, 0),
        (119, 0),
        (120, 65_552),
        (121, 65_552),
        (299, 65_552),
        (300, 131_104),
        (10**9, 200_000),
    ],
)
def test_a_find_starts_at_the_last_entry_that_is_not_behind(
    relative_offset: int, position: int
) -> None:
    assert find_position(INDEX.entries, relative_offset) == position


def test_a_find_without_an_entry_starts_at_the_start() -> None:
    assert find_position([], 5) == 0


@pytest.mark.parametrize(
    ("timestamp_us", "position"),
    [
        (NO_TIMESTAMP_US, 0),
        (0, 0),
        (70, 0),
        (71, 131_104),
        (2**40, 131_104),
        (2**40 + 1, 200_000),
        (2**60, 200_000),
    ],
)
def test_a_find_by_time_starts_behind_all_that_is_earlier(timestamp_us: int, position: int) -> None:
    assert find_time(INDEX.entries, timestamp_us).position == position
