"""Journal files as frames, and what a start would say of them."""

import io
from pathlib import Path
from uuid import UUID

import pytest

from tailrace_broker.codec.journal import (
    JournalCut,
    JournalFileHeader,
    encode_cut,
    encode_file_header,
    encode_frame_header,
)
from tailrace_broker.model.errors import CorruptBatchError
from tailrace_broker.storage.inspection import frames_in
from tailrace_broker.storage.inspection.journals import check_journal_files
from tests.support.storage.batches import Event, batch_of

ID = 77
BLOCK = 4096
BATCHES = [batch_of([Event(b"%d" % n)], base_offset=n, previous_epoch=min(n, 1)) for n in range(9)]


def frame(
    sequence: int, *batches: bytes, durable: int | None = None, journal_id: int = ID
) -> bytes:
    """Blocks with one frame."""
    head = encode_frame_header(
        frame_bytes=48 + sum(map(len, batches)),
        journal_id=journal_id,
        sequence=sequence,
        durable_sequence=sequence if durable is None else durable,
        entry_count=len(batches),
    )
    return filled(head + b"".join(batches))


def filled(stored: bytes) -> bytes:
    return stored + bytes(-len(stored) % BLOCK)


def journal_of(first_sequence: int, *frames: bytes, boot: int = 1) -> bytes:
    """A file's present round."""
    size_bytes = BLOCK + sum(map(len, frames))
    head = encode_file_header(JournalFileHeader(boot, ID, first_sequence, size_bytes))
    return filled(head) + b"".join(frames)


def flipped(stored: bytes, position: int) -> bytes:
    changed = bytearray(stored)
    changed[position] ^= 1
    return bytes(changed)


THREE = journal_of(5, frame(5, BATCHES[0], BATCHES[1]), frame(6, BATCHES[2]), frame(7, BATCHES[3]))
FIRST, SECOND, THIRD = BLOCK, 2 * BLOCK, 3 * BLOCK
OLD = frame(3, BATCHES[8])


def sequences_of(stored: bytes) -> list[tuple[int, bool]]:
    return [(each.sequence, each.is_whole) for each in frames_in(io.BytesIO(stored))]


def findings_of(folder: Path, *files: bytes, accepts: int | None = None) -> list[tuple[str, bool]]:
    """Texts in short, and whether each is damage. `accepts`: the loss of something of a file."""
    paths = []
    for index, stored in enumerate(files):
        paths.append(folder / f"{index}.journal")
        paths[-1].write_bytes(stored)
    if accepts is not None:
        (folder / f"{accepts}.journal.lost").touch()
    found, _ = check_journal_files(paths)
    return [(f"{each.file.name}:{each.position}: {each.text[:18]}", each.is_bad) for each in found]


def test_a_journal_is_shown_frame_by_frame() -> None:
    first, *_ = found = list(frames_in(io.BytesIO(THREE)))

    assert [(each.position, each.sequence, each.is_whole) for each in found] == [
        (FIRST, 5, True),
        (SECOND, 6, True),
        (THIRD, 7, True),
    ]
    assert first.size_bytes == 48 + len(BATCHES[0]) + len(BATCHES[1])
    assert [piece.position for piece in first.entries] == [
        FIRST + 48,
        FIRST + 48 + len(BATCHES[0]),
    ]


def test_a_cut_is_shown_among_the_batches_of_its_frame() -> None:
    cut = JournalCut(UUID(int=1).bytes, 3, 95)
    (found,) = frames_in(
        io.BytesIO(journal_of(5, frame(5, BATCHES[0], encode_cut(cut), BATCHES[1])))
    )

    assert [piece.kind for piece in found.entries] == ["batch", "cut", "batch"]
    assert (found.is_whole, found.entries[1].cut) == (True, cut)


def test_what_an_older_round_has_left_is_not_shown() -> None:
    assert sequences_of(THREE + OLD + OLD) == [(5, True), (6, True), (7, True)]
    assert sequences_of(THREE + frame(8, BATCHES[4], journal_id=1)) == sequences_of(THREE)


def test_space_that_was_never_used_holds_nothing() -> None:
    assert sequences_of(bytes(2 * BLOCK)) == []
    assert sequences_of(journal_of(1, bytes(5 * BLOCK), b"TRLJ")) == []


def test_a_frame_that_cannot_be_read_is_shown_where_it_should_be() -> None:
    batch = flipped(THREE, FIRST + 48 + 20)
    gone = THREE[:SECOND] + b"x" * BLOCK + THREE[THIRD:]

    assert sequences_of(batch) == [(5, False), (6, True), (7, True)]
    assert sequences_of(gone) == [(5, True), (6, False), (7, True)]


@pytest.mark.parametrize("stored", [flipped(THREE, 20), b"TRLK"])
def test_a_damaged_head_is_refused_and_found(tmp_path: Path, stored: bytes) -> None:
    with pytest.raises(CorruptBatchError, match="the head of the journal file is damaged"):
        list(frames_in(io.BytesIO(stored)))
    head = flipped(THREE, 20)

    assert findings_of(tmp_path, head) == [("0.journal:0: the head of the jo", True)]


def test_a_journal_whose_first_blocks_are_gone_is_refused(tmp_path: Path) -> None:
    stored = bytes(BLOCK) + b"x" * BLOCK

    assert findings_of(tmp_path, stored) == [("0.journal:0: is damaged: its fi", True)]
    assert findings_of(tmp_path, stored, accepts=0) == []


def test_a_whole_journal_has_no_findings(tmp_path: Path) -> None:
    newer = journal_of(8, frame(8, BATCHES[4]), OLD)

    assert findings_of(tmp_path, newer, THREE, bytes(BLOCK)) == []


def test_a_durable_frame_that_cannot_be_read_is_damage_unless_that_is_accepted(
    tmp_path: Path,
) -> None:
    stored = THREE[:SECOND] + b"x" * BLOCK + THREE[THIRD:]

    assert findings_of(tmp_path, stored) == [("0.journal:8192: frame 6 is missing", True)]
    assert findings_of(tmp_path, stored, accepts=0) == [
        ("0.journal:8192: frame 6 is missing", False)
    ]


@pytest.mark.parametrize("at", [0, 33, 150])
def test_a_damaged_batch_or_header_of_a_durable_frame_is_damage(tmp_path: Path, at: int) -> None:
    """Of a header whose batches can be read nothing is lost."""
    for position in (FIRST, FIRST + 48 + len(BATCHES[0])):
        [(_, is_bad)] = findings_of(tmp_path, flipped(THREE, position + at))
        assert is_bad


def test_a_frame_that_nobody_says_was_durable_may_be_torn(tmp_path: Path) -> None:
    unsynced = journal_of(
        5, frame(5, BATCHES[0], durable=2), b"x" * BLOCK, frame(7, BATCHES[2], durable=2)
    )

    for stored in (flipped(THREE, THIRD + 48 + 150), filled(THREE[: THIRD + 100]), unsynced):
        assert [is_bad for _, is_bad in findings_of(tmp_path, stored)] == [False]


def test_what_a_later_boot_says_is_no_proof(tmp_path: Path) -> None:
    later = journal_of(8, frame(8, BATCHES[4]), boot=2)

    cut = THREE[:THIRD] + b"x" * BLOCK
    assert [is_bad for _, is_bad in findings_of(tmp_path, cut, later)] == [False]


@pytest.mark.parametrize("end", [SECOND, THIRD, THIRD + 100])
def test_a_file_that_is_cut_short_may_have_lost_its_last_frames(tmp_path: Path, end: int) -> None:
    """Its frames do not show it: without the next they are whole."""
    whole_blocks = end // BLOCK * BLOCK
    for accepts, is_bad in ((None, True), (0, False)):
        [(text, is_damage)] = findings_of(tmp_path, THREE[:end], accepts=accepts)
        assert text.startswith(f"0.journal:{whole_blocks}: is cut short to")
        assert is_damage == is_bad
