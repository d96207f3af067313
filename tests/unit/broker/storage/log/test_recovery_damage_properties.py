"""One damaged byte in any log, against the list of what was written."""

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.storage.batches import Event, Log, body_of, log_of
from tests.support.storage.storage import LogFiles

# Nothing here is about the disk itself.
MEMORY = Path("/dev/shm")
PAD_BYTES = 12  # of a pad that are looked at
# Where a header has the sizes of its payload and its producer table.
SIZE_FIELDS = {*range(16, 20), *range(68, 72)}

batches = st.builds(
    lambda count, size, seed: body_of([Event(Random(seed).randbytes(size))] * count),
    count=st.integers(1, 3),
    size=st.sampled_from([1, 96, 600, 3800, 5000]),
    seed=st.integers(0, 99),
)
logs = st.lists(st.lists(batches, min_size=1, max_size=4), min_size=2, max_size=5).map(log_of)


@pytest.mark.timeout(30)
@given(logs, st.integers(0, 10**9), st.integers(0, 10**9), st.integers(1, 255), st.booleans())
def test_one_damaged_byte_takes_its_batch_alone(
    log: Log, piece_drawn: int, byte_drawn: int, bits: int, was_stopped: bool
) -> None:
    """All that is behind it in its write when what it hits is the batch's size.

    In the last write of a killed broker, and in the pad before it, damage looks like a torn
    one.
    """
    piece = log.pieces[piece_drawn % len(log.pieces)]
    end = piece.end if piece.header else piece.start + PAD_BYTES
    position = piece.start + byte_drawn % (end - piece.start)
    stored = bytearray(log.stored)
    stored[position] ^= bits
    log_end = log.pieces[-1].end_offset
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        files = LogFiles(Path(name))
        files.write_segment(bytes(stored))
        found = files.recovered(exact_end=log_end if was_stopped else None)
        is_kept = files.segment().read_bytes() == stored

    write_start, write_end = next(
        (start, end)
        for start, end in zip([0, *log.write_ends], log.write_ends, strict=False)
        if position < end
    )
    hurt = range(0)
    if piece.header:
        hurt = range(piece.header.base_offset, piece.header.end_offset)
    in_write = [each for each in log.pieces if write_start <= each.start < write_end]
    end_offset = found.segments[-1].end_offset
    damaged = [range(each.first_offset, each.end_offset) for each in found.damages]
    is_last = write_end == len(log.stored)
    is_before_last = write_end == [0, *log.write_ends][-2]
    if is_last and not was_stopped:
        assert (end_offset, found.damages) == (hurt.start if hurt else log_end, [])
    elif is_before_last and not piece.header and not was_stopped:
        assert (end_offset, found.damages) == (piece.end_offset, [])
    elif found.lost_end is not None:
        assert is_last
        assert position - piece.start in range(128)
        assert found.lost_end.first_offset == end_offset == hurt.start
        assert found.lost_end.next_offset == log_end
    elif piece.header and position - piece.start in SIZE_FIELDS:
        (gap,) = damaged
        assert gap.start == hurt.start
        assert hurt.stop <= gap.stop <= in_write[-1].end_offset
    else:
        assert damaged == ([hurt] if hurt else [])
        assert end_offset == log_end
        assert is_kept or is_last
