"""Lines come in pieces: of a large batch several, of several small batches one."""

import json
from itertools import chain

from tailrace_broker.codec.batch import StoredBatch, verify_batch
from tailrace_broker.net.api.record_texts import PIECE_BYTES, lines_of
from tests.support.storage.batches import Event, batch_of

VALUE = b'"%s"' % (b"x" * 1000)


def batches_of(counts: list[int]) -> list[StoredBatch]:
    """One after the other from offset 0, of so many records each."""
    batches: list[StoredBatch] = []
    for count in counts:
        base_offset = batches[-1].header.end_offset if batches else 0
        stored = batch_of([Event(VALUE)] * count, base_offset=base_offset)
        batches.append(StoredBatch(verify_batch(memoryview(stored)), (stored,)))
    return batches


def read_pieces(batches: list[StoredBatch], offset: int, end: int) -> list[list[int]]:
    """The offsets of each piece, checked to be `[offset, end)` together."""
    pieces = [
        [json.loads(line)["offset"] for line in lines]
        for lines in lines_of(0, batches, offset, end)
    ]
    assert list(chain.from_iterable(pieces)) == list(range(offset, end))
    return pieces


def test_small_batches_become_text_together_up_to_a_bound() -> None:
    batches = batches_of([10] * 40)

    pieces = read_pieces(batches, 3, 395)

    batches_a_piece = PIECE_BYTES // batches[0].header.uncompressed_bytes
    assert 1 < batches_a_piece < 20
    assert [len(piece) for piece in pieces[1:-1]] == [batches_a_piece * 10] * (len(pieces) - 2)
    assert len(pieces) == -(-40 // batches_a_piece)


def test_a_large_batch_becomes_text_piece_by_piece() -> None:
    count = 3 * PIECE_BYTES // len(VALUE)
    batches = batches_of([10, count, 10, 10])
    end = count + 30

    pieces = read_pieces(batches, 0, end)

    assert pieces[0] == list(range(10))
    assert max(map(len, pieces)) <= PIECE_BYTES // len(VALUE)
    assert len(pieces) >= 5


def test_no_records_are_no_piece() -> None:
    assert read_pieces(batches_of([2]), 2, 2) == []
    assert read_pieces([], 0, 0) == []
