"""Frames and file headers of the journal: what is read back, and what never is."""

from random import Random

import pytest

from tailrace.wire import JOURNAL_BLOCK_BYTES, JOURNAL_FILE_HEADER, align_up
from tailrace_broker.codec.journal import (
    FRAME_HEADER_BYTES,
    JournalCut,
    JournalFileHeader,
    JournalFrame,
    encode_cut,
    encode_file_header,
    encode_frame_header,
    first_frame_id,
    has_traces,
    read_cut,
    read_file_header,
    read_frames,
)
from tests.support.storage.batches import PARTITION, TOPIC_ID, Event, batch_of, forged_batch

ID = 2**63 + 5
HEADER = JournalFileHeader(boot=3, journal_id=ID, first_sequence=7, size_bytes=JOURNAL_BLOCK_BYTES)
BLOCK = JOURNAL_BLOCK_BYTES
NOISE = Random(9)
SMALL = batch_of([Event(b"1")])
OTHER = batch_of([Event(b"2")], partition=4, base_offset=9, high_watermark=9)
LARGE = batch_of([Event(NOISE.randbytes(9_000))])
CUT = JournalCut(TOPIC_ID.bytes, PARTITION, 2**40)


def frame_of(
    *batches: bytes, sequence: int = 7, durable: int = 7, journal_id: int = ID, count: int = -1
) -> bytes:
    """A frame as it is written, with the zeros that fill its last block."""
    contents = b"".join(batches)
    frame = encode_frame_header(
        frame_bytes=FRAME_HEADER_BYTES + len(contents),
        journal_id=journal_id,
        sequence=sequence,
        durable_sequence=durable,
        entry_count=len(batches) if count < 0 else count,
    )
    stored = frame + contents
    return stored.ljust(align_up(len(stored), BLOCK), b"\0")


def file_of(*frames: bytes, header: JournalFileHeader = HEADER, size_bytes: int = 0) -> bytes:
    """A journal file."""
    stored = encode_file_header(header).ljust(BLOCK, b"\0") + b"".join(frames)
    return stored.ljust(size_bytes, b"\0")


def frames_in(stored: bytes, first_sequence: int = 7) -> list[JournalFrame]:
    return read_frames(memoryview(stored), ID, first_sequence)


def sequences_in(stored: bytes) -> list[int]:
    return [frame.sequence for frame in frames_in(stored)]


def flipped(stored: bytes, position: int, bit: int = 0) -> bytes:
    damaged = bytearray(stored)
    damaged[position] ^= 1 << bit
    return bytes(damaged)


# --- the file's header ----------------------------------------------------------------------------


def test_a_file_header_comes_back() -> None:
    assert read_file_header(memoryview(file_of())) == HEADER


def test_every_flipped_bit_of_a_file_header_is_noticed() -> None:
    stored = encode_file_header(HEADER)
    for bit in range(len(stored) * 8):
        assert read_file_header(memoryview(flipped(stored, bit // 8, bit % 8))) is None


def test_a_file_that_is_too_short_or_was_never_used_has_no_header() -> None:
    for size_bytes in range(JOURNAL_FILE_HEADER.size):
        assert read_file_header(memoryview(file_of()[:size_bytes])) is None
    assert read_file_header(memoryview(bytes(BLOCK))) is None


# --- frames ---------------------------------------------------------------------------------------


def test_frames_come_back_in_their_order_with_their_batches() -> None:
    stored = file_of(
        frame_of(SMALL, OTHER, durable=5),
        frame_of(LARGE, sequence=8, durable=6),
        frame_of(SMALL, sequence=9, durable=9),
        size_bytes=20 * BLOCK,
    )
    frames = frames_in(stored)

    assert [(frame.sequence, frame.durable_sequence) for frame in frames] == [
        (7, 5),
        (8, 6),
        (9, 9),
    ]
    assert [[bytes(batch) for _, batch in frame.batches] for frame in frames] == [
        [SMALL, OTHER],
        [LARGE],
        [SMALL],
    ]
    assert [(header.partition, header.base_offset) for header, _ in frames[0].batches] == [
        (3, 0),
        (4, 9),
    ]
    assert [frame.damaged for frame in frames] == [[], [], []]


@pytest.mark.parametrize("size_bytes", [0, 100, BLOCK - 1, BLOCK, BLOCK + 1])
def test_a_file_without_a_whole_block_behind_its_header_has_no_frame(size_bytes: int) -> None:
    assert frames_in(file_of(frame_of(SMALL))[:size_bytes]) == []


def test_a_frame_that_the_file_cuts_off_is_none() -> None:
    stored = file_of(frame_of(SMALL), frame_of(LARGE, sequence=8))
    for size_bytes in range(2 * BLOCK, len(stored), BLOCK):
        assert sequences_in(stored[:size_bytes]) == [7]
    assert sequences_in(stored) == [7, 8]


def test_what_is_behind_a_torn_frame_is_found() -> None:
    """It may be a later one that was never synced either, or proof that something is lost."""
    torn = frame_of(LARGE, sequence=8)
    for start in range(0, len(torn), 512):
        spoilt = torn[:start] + bytes(512) + torn[start + 512 :]
        stored = file_of(frame_of(SMALL), spoilt, frame_of(SMALL, sequence=9))
        first, *middle, last = frames_in(stored)

        assert (first.sequence, last.sequence) == (7, 9)
        if start * 2 < len(SMALL):
            assert middle == []  # of its header, or the batch's
        assert all(frame.batches == [] or spoilt == torn for frame in middle)


def test_whatever_bit_of_a_frames_header_is_flipped_its_batches_are_read() -> None:
    stored = file_of(
        frame_of(SMALL), frame_of(SMALL, LARGE, sequence=8), frame_of(SMALL, sequence=9)
    )
    whole = [(frame.sequence, frame.batches) for frame in frames_in(stored)]
    for block in (1, 2, 5):
        for bit in range(FRAME_HEADER_BYTES * 8):
            spoilt = flipped(stored, block * BLOCK + bit // 8, bit % 8)
            assert [(frame.sequence, frame.batches) for frame in frames_in(spoilt)] == whole


def test_a_frame_of_a_damaged_header_may_end_with_a_block() -> None:
    room = BLOCK - FRAME_HEADER_BYTES - len(forged_batch(b""))
    frame = frame_of(forged_batch(bytes(room)))
    assert len(frame) == BLOCK

    assert sequences_in(file_of(flipped(frame, 9), frame_of(SMALL, sequence=8))) == [7, 8]


def test_a_frame_of_a_damaged_header_and_a_damaged_batch_says_which_batch() -> None:
    frame = flipped(flipped(frame_of(SMALL, OTHER), 9), FRAME_HEADER_BYTES + len(SMALL) + 130)
    (found,) = frames_in(file_of(frame))

    assert [bytes(batch) for _, batch in found.batches] == [SMALL]
    assert [header.partition for header in found.damaged] == [4]


def test_a_frame_of_a_damaged_header_is_none_when_not_all_its_batches_can_be_reported() -> None:
    """Nor when it may be of an older round, or does not begin where the one before ends."""
    second = FRAME_HEADER_BYTES + len(SMALL) + 20
    torn = flipped(frame_of(LARGE), 9)
    for spoilt in (
        flipped(flipped(frame_of(SMALL, OTHER), 9), second),
        flipped(flipped(frame_of(SMALL), 9), FRAME_HEADER_BYTES + 20),
        flipped(flipped(frame_of(SMALL), 0), 25),
        flipped(frame_of(SMALL, sequence=3), 0),
        bytes(BLOCK) + flipped(frame_of(SMALL), 9),
        torn[: 2 * BLOCK],
    ):
        assert frames_in(file_of(spoilt)) == []


def test_a_damaged_batch_is_reported_and_the_others_of_its_frame_are_read() -> None:
    frame = frame_of(SMALL, OTHER, SMALL)
    at = FRAME_HEADER_BYTES + len(SMALL) + 130
    (found,) = frames_in(file_of(flipped(frame, at)))

    assert [bytes(batch) for _, batch in found.batches] == [SMALL, SMALL]
    assert [(header.partition, header.end_offset) for header in found.damaged] == [(4, 10)]


def test_a_frame_whose_batches_cannot_be_reported_is_none() -> None:
    """Whose events it held, nobody can say."""
    for frame in (frame_of(SMALL, SMALL, count=1), frame_of(SMALL, b"\0" * 16, count=1)):
        assert frames_in(file_of(frame)) == []


def test_behind_a_damaged_header_of_a_batch_a_frame_is_broken_off() -> None:
    damaged_header = flipped(frame_of(SMALL, OTHER), FRAME_HEADER_BYTES + len(SMALL) + 20)
    for frame in (damaged_header, frame_of(SMALL, count=2)):
        first, second = frames_in(file_of(frame, frame_of(OTHER, sequence=8)))
        assert [bytes(batch) for _, batch in first.batches] == [SMALL]
        assert (first.is_broken_off, second.is_broken_off) == (True, False)


def test_the_first_frame_reports_the_journals_id() -> None:
    stored = file_of(frame_of(SMALL))
    assert first_frame_id(memoryview(stored)) == ID
    assert first_frame_id(memoryview(flipped(stored, BLOCK + 9))) is None
    assert first_frame_id(memoryview(stored[:BLOCK])) is None


def test_a_frame_of_another_round_is_none() -> None:
    stale = frame_of(SMALL, sequence=3)

    assert sequences_in(file_of(stale)) == []
    assert sequences_in(file_of(frame_of(SMALL), stale, stale)) == [7]


def test_a_frame_that_comes_again_counts_once() -> None:
    frame = frame_of(SMALL)

    assert sequences_in(file_of(frame, frame, frame_of(SMALL, sequence=8))) == [7, 8]


def test_a_frame_inside_a_value_is_no_frame_though_it_begins_on_a_block() -> None:
    """Even with the right id: its block is of the frame that holds it."""
    forged = frame_of(SMALL, sequence=8)
    lead = BLOCK - FRAME_HEADER_BYTES - 128 - 8
    value = forged_batch(bytes(lead + 8) + forged)
    frame = frame_of(value)

    assert frame.index(forged) == BLOCK
    assert sequences_in(file_of(frame, frame_of(SMALL, sequence=8))) == [7, 8]


def test_a_forged_frame_in_a_torn_one_has_another_id() -> None:
    """Else a producer could write into any partition. Nobody is reported the id."""
    lead = BLOCK - FRAME_HEADER_BYTES - 128
    value = forged_batch(bytes(lead) + frame_of(OTHER, sequence=8, journal_id=ID - 1))
    frame = frame_of(value)
    torn = bytes(BLOCK) + frame[BLOCK:]

    assert torn[BLOCK : BLOCK + 4] == b"TRLJ"
    assert frames_in(file_of(torn)) == []


def test_of_a_frame_that_cannot_be_read_traces_are_left() -> None:
    """Whatever bit of its header is flipped, or one of its batches."""
    frames = [frame_of(SMALL), frame_of(LARGE, sequence=8)]
    stored = file_of(*frames, size_bytes=20 * BLOCK)

    assert [
        bit
        for bit in (*range(FRAME_HEADER_BYTES * 8), BLOCK * 8)
        if not has_traces(memoryview(flipped(stored, 2 * BLOCK + bit // 8, bit % 8)), ID, 8)
    ] == []


def test_frames_that_can_be_read_are_no_traces() -> None:
    """Nor are those of an older round."""
    stored = file_of(frame_of(SMALL), frame_of(LARGE, sequence=8), frame_of(SMALL, sequence=3))

    assert not has_traces(memoryview(stored), ID, 9)
    assert not has_traces(memoryview(stored + b"a block that is cut off"), ID, 9)
    assert not has_traces(memoryview(b""), ID, 8)


# --- cuts -----------------------------------------------------------------------------------------


def test_a_cut_comes_back_among_the_batches_of_its_frame() -> None:
    stored = file_of(frame_of(SMALL, encode_cut(CUT), OTHER), frame_of(SMALL, sequence=8))
    first, second = frames_in(stored)

    assert (first.cuts, second.cuts) == ((CUT,), ())
    assert [bytes(batch) for _, batch in first.batches] == [SMALL, OTHER]
    assert not first.is_broken_off
    assert b"".join(CUT.buffers) == encode_cut(CUT)


def test_every_flipped_bit_of_a_cut_is_noticed() -> None:
    raw = encode_cut(CUT)
    for bit in range(len(raw) * 8):
        spoilt = flipped(raw, bit // 8, bit % 8)
        assert read_cut(memoryview(spoilt)) is None
        (frame,) = frames_in(file_of(frame_of(SMALL, spoilt)))
        assert frame.is_broken_off
    assert read_cut(memoryview(raw[:-1])) is None


def test_a_frame_that_is_broken_off_keeps_the_cut_before() -> None:
    (frame,) = frames_in(file_of(frame_of(encode_cut(CUT), flipped(SMALL, 20))))

    assert (frame.is_broken_off, frame.cuts, frame.batches) == (True, (CUT,), [])


def test_a_cut_is_read_from_a_frame_whose_header_is_damaged() -> None:
    stored = file_of(frame_of(encode_cut(CUT), SMALL))
    (frame,) = frames_in(flipped(stored, BLOCK + 40))

    assert (frame.is_walked, frame.cuts, len(frame.batches)) == (True, (CUT,), 1)
