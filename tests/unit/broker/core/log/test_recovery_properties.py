"""Recovery of logs that a crash or a bad disk left behind, against the list of what was written."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tailrace.wire import HEADER_BYTES, PAD_HEADER
from tailrace_broker.core.log.recovery import (
    BLOCK_BYTES_MIN,
    LogScan,
    SegmentState,
    durable_end_behind,
)
from tests.support.storage.batches import (
    PARTITION,
    TOPIC_ID,
    WRITE_ALIGNMENT_BYTES,
    Event,
    Log,
    Piece,
    body_of,
    log_of,
)

# Around a sector and around a block; of random bytes, so that what is stored is as long.
value_bytes = st.sampled_from([1, 96, 300, 600, 3800, 5000])
batches = st.builds(
    lambda count, size, seed: body_of([Event(Random(seed).randbytes(size))] * count),
    count=st.integers(1, 3),
    size=value_bytes,
    seed=st.integers(0, 99),
)
writes = st.lists(batches, min_size=1, max_size=4)
logs = st.lists(writes, min_size=1, max_size=5).map(log_of)
fills = st.sampled_from([b"", bytes(WRITE_ALIGNMENT_BYTES * 2), bytes(65_536)])
garbage = st.integers(0, 2**32).map(lambda seed: Random(seed).randbytes(WRITE_ALIGNMENT_BYTES))
blocks = st.just(bytes(WRITE_ALIGNMENT_BYTES)) | garbage


def scan_of(stored: bytes, window_bytes: int | None = None) -> LogScan:
    """A scan that has followed `stored` in windows, each as small as it may be."""
    scan = LogScan(TOPIC_ID, PARTITION, SegmentState(0, 0))
    wanted_bytes = 0
    while not scan.ended:
        start = scan.state.position
        end = len(stored) if window_bytes is None else start + max(window_bytes, wanted_bytes)
        window = memoryview(stored)[start:end]
        wanted_bytes = scan.feed(window, is_last=start + len(window) == len(stored))
        assert scan.ended or wanted_bytes > len(stored[scan.state.position : end])
    return scan


def is_whole(log: Log, piece: Piece, stored: bytes) -> bool:
    """Whether a piece is as it was written; of a pad only the header counts."""
    end = piece.end if piece.header else piece.start + PAD_HEADER.size
    is_unchanged = stored[piece.start : end] == log.stored[piece.start : end]
    return is_unchanged and piece.end <= len(stored)


def end_of(log: Log, stored: bytes) -> tuple[int, int]:
    """Position and offset behind the pieces from the start on that are whole."""
    position = end_offset = 0
    for piece in log.pieces:
        if not is_whole(log, piece, stored):
            break
        position, end_offset = piece.end, piece.end_offset
    return position, end_offset


def is_damage(scan: LogScan, stored: bytes) -> bool:
    behind = -(-scan.state.position // WRITE_ALIGNMENT_BYTES) * WRITE_ALIGNMENT_BYTES
    return durable_end_behind(scan, memoryview(stored)[behind:]) > scan.state.end_offset


def check_end(log: Log, stored: bytes) -> LogScan:
    scan = scan_of(stored)
    assert (scan.state.position, scan.state.end_offset) == end_of(log, stored)
    return scan


@given(logs, fills)
def test_a_whole_log_ends_behind_its_last_write(log: Log, fill: bytes) -> None:
    scan = check_end(log, log.stored + fill)

    assert scan.state.position == log.write_ends[-1]
    assert not is_damage(scan, log.stored + fill)


@given(logs, st.data(), fills)
def test_a_log_cut_at_any_byte_ends_behind_the_last_whole_piece(
    log: Log, draw: st.DataObject, fill: bytes
) -> None:
    cut = draw.draw(st.integers(0, len(log.stored)))
    stored = log.stored[:cut] + fill

    scan = check_end(log, stored)

    assert not is_damage(scan, stored)


def test_a_log_cut_at_every_byte_ends_behind_the_last_whole_piece() -> None:
    log = log_of([[body_of([Event(b"1")]), body_of([Event(b"2")])]])
    for cut in range(log.pieces[-1].start + HEADER_BYTES):
        check_end(log, log.stored[:cut])
        check_end(log, log.stored[:cut] + bytes(256))


@given(logs, st.data(), blocks)
def test_a_log_with_a_spoilt_block_ends_behind_the_last_whole_piece(
    log: Log, draw: st.DataObject, block: bytes
) -> None:
    start = draw.draw(st.integers(0, len(log.stored) // len(block) - 1)) * len(block)

    check_end(log, log.stored[:start] + block + log.stored[start + len(block) :])


@given(logs, st.data(), blocks)
def test_windows_of_any_size_find_the_same_end(log: Log, draw: st.DataObject, block: bytes) -> None:
    cut = draw.draw(st.integers(0, len(log.stored)))
    stored = log.stored[:cut] + block
    window_bytes = draw.draw(st.integers(0, 600) | st.integers(0, len(stored)))

    assert scan_of(stored, window_bytes) == scan_of(stored)


@given(logs, st.data())
def test_a_torn_last_write_never_looks_like_damage(log: Log, draw: st.DataObject) -> None:
    """Any of its sectors may be on the disk, in whatever order they came there."""
    last_start = [0, *log.write_ends][-2]
    stored = bytearray(log.stored)
    for start in range(last_start, len(stored), BLOCK_BYTES_MIN):
        if draw.draw(st.booleans()):
            stored[start : start + BLOCK_BYTES_MIN] = bytes(BLOCK_BYTES_MIN)

    scan = check_end(log, bytes(stored))

    assert scan.state.position >= last_start
    assert not is_damage(scan, bytes(stored))


@given(logs, st.data())
def test_a_damaged_batch_is_proven_by_any_later_write(log: Log, draw: st.DataObject) -> None:
    piece = draw.draw(st.sampled_from([piece for piece in log.pieces if piece.header]))
    is_acknowledged = piece.end <= [0, *log.write_ends][-2]
    stored = bytearray(log.stored)
    stored[draw.draw(st.integers(piece.start, piece.end - 1))] ^= draw.draw(st.integers(1, 255))

    scan = check_end(log, bytes(stored))

    assert scan.state.position == piece.start
    assert is_damage(scan, bytes(stored)) == is_acknowledged
