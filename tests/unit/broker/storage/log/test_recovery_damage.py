"""Damage that a start finds in a log: what of it is read, and whether it takes writes."""

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tailrace.wire import BatchHeader
from tailrace_broker.codec.batch import StoredBatch, stamp_batch
from tailrace_broker.codec.metadata import KnownFiles
from tailrace_broker.codec.producers import TableEntry, encode_table
from tailrace_broker.core.log.journal_replay import NO_FILE, JournaledBatch
from tailrace_broker.core.log.producers import Duplicate, Producer, Verdict
from tailrace_broker.model.damage import Damage, Loss, LostEnd, RecordedDamage
from tailrace_broker.model.errors import (
    CorruptBatchError,
    CorruptPartitionError,
    SequenceUnknownError,
)
from tailrace_broker.storage.files.direct_file import BLOCK_BYTES
from tailrace_broker.storage.files.inventory import Inventory
from tailrace_broker.storage.log.damage_file import load_damage, record_loss, save_damage
from tailrace_broker.storage.log.recovery import UNKNOWN_OFFSETS_MAX, LogEvidence, RecoveredLog
from tailrace_broker.storage.log.repairs import DiskRepairs
from tests.support.storage.batches import TIME_US, Event, body_of, place_of
from tests.support.storage.damaged import stored_batches
from tests.support.storage.storage import MEBIBYTE, LogFiles, append, records_of

NOISE = random.Random(7)


def written(files: LogFiles, *writes: list[list[bytes]]) -> bytes:
    """Append the writes to a new segment; its bytes."""
    writer = files.writer()
    for batches in writes:
        append(writer, *batches)
    writer.close()
    return files.segment().read_bytes()


def three_segments(files: LogFiles) -> None:
    """Of offsets 0 and 1, 2 and 3, and 4; each write has one."""
    writer = files.writer(segment_bytes=2 * BLOCK_BYTES)
    for number in range(5):
        append(writer, [b"%d" % number])
    writer.close()


def flip(path: Path, position: int) -> None:
    stored = bytearray(path.read_bytes())
    stored[position] ^= 1
    path.write_bytes(stored)


def offsets_of(files: LogFiles, **known: int) -> tuple[list[int], list[range]]:
    """Those that are read, and those that are damaged; together they are dense.

    Recovered twice: the second time finds what the first left.
    """
    first = files.recovered(**known)
    contents = files.contents()
    found = files.recovered()
    assert files.contents() == contents
    assert (found.damages, found.losses, found.lost_end) == first[4:7]
    offsets = [record.offset for record in records_of(read(files))]
    damaged = [range(each[2], each[3]) for each in [*found.damages, *found.losses]]
    end_offset = found.segments[-1].end_offset
    assert sorted([*offsets, *(n for each in damaged for n in each)]) == list(range(end_offset))
    return offsets, damaged


def read(files: LogFiles) -> list[StoredBatch]:
    """All batches in the segments, going on behind what is damaged."""
    found = files.recovered()
    gaps = {each.first_offset: each.end_offset for each in [*found.damages, *found.losses]}
    batches: list[StoredBatch] = []
    offset, end_offset = 0, found.segments[-1].end_offset
    while offset < end_offset:
        if offset in gaps:
            offset = gaps[offset]
            continue
        state = [each for each in found.segments if each.base_offset <= offset][-1]
        batches += files.read(state, offset, end_offset=end_offset)
        offset = batches[-1].header.end_offset
    return batches


# --- in the segment that takes writes -------------------------------------------------------------


@pytest.mark.parametrize("behind", [b"", bytes(4 * MEBIBYTE)], ids=["near", "far away"])
def test_behind_a_lost_write_the_log_goes_on(files: LogFiles, behind: bytes) -> None:
    stored = written(files, [[b"a"]], [[b"b"]], [[b"c"]])
    hole = bytes(BLOCK_BYTES)
    files.write_segment(stored[:BLOCK_BYTES] + hole + behind + stored[2 * BLOCK_BYTES :])

    assert offsets_of(files) == ([0, 2], [range(1, 2)])


def test_where_headers_prove_nothing_the_log_ends_at_a_hole(files: LogFiles) -> None:
    """Of several copies: what a header says is committed may have been durable elsewhere only."""
    stored = written(files, [[b"a"]], [[b"b"]], [[b"c"]])
    files.write_segment(stored[:BLOCK_BYTES] + bytes(BLOCK_BYTES) + stored[2 * BLOCK_BYTES :])
    evidence = LogEvidence(0, journaled=[journaled(3, 3)], headers_prove=False)

    found = files.recover_as(files.place, evidence)

    assert (found.damages, found.losses, found.lost_end) == ([], [], None)
    assert (found.segments[-1].end_offset, found.pending) == (1, [])
    assert files.segment().stat().st_size == BLOCK_BYTES, "nothing is behind the end"
    assert found.journal_cut == 1
    assert files.recover_as(files.place, evidence._replace(journaled=[])).journal_cut is None


@pytest.mark.parametrize("headers_prove", [True, False])
def test_what_the_journal_has_above_the_end_is_cut_there_unless_it_proves_a_loss(
    files: LogFiles, headers_prove: bool
) -> None:
    written(files, [[b"a"]], [[b"b"]])
    stored = files.segment().read_bytes()

    def cut(*batches: JournaledBatch) -> int | None:
        files.damage_file().unlink(missing_ok=True)
        files.write_segment(stored)
        evidence = LogEvidence(0, journaled=batches, headers_prove=headers_prove)
        return files.recover_as(files.place, evidence).journal_cut

    assert cut(journaled(1, 1)) is None, "it is in the segment"
    assert cut(journaled(2, 2)) is None, "it follows"
    assert cut(journaled(3, 2)) == 2, "what was before it was never committed"
    assert cut(journaled(3, 2), journaled(2, 2)) == 3, "behind it another has followed"
    assert cut(journaled(3, 3)) == (None if headers_prove else 2), "a loss"


def test_what_the_journal_has_above_a_known_end_failed(files: LogFiles) -> None:
    written(files, [[b"a"]], [[b"b"]])
    evidence = LogEvidence(0, journaled=[journaled(2, 2)], exact_end=2)

    found = files.recover_as(files.place, evidence)

    assert (found.pending, found.segments[-1].end_offset, found.journal_cut) == ([], 2, 2)


def test_several_damages_are_each_passed_over(files: LogFiles) -> None:
    written(files, *[[[b"%d" % number]] for number in range(8)])
    for number in (0, 3, 4):
        flip(files.segment(), number * BLOCK_BYTES + 140)

    assert offsets_of(files) == ([1, 2, 5, 6, 7], [range(1), range(3, 4), range(4, 5)])


def test_a_log_takes_writes_behind_damage_and_a_torn_write_there_is_cut(files: LogFiles) -> None:
    written(files, [[b"a"]], [[b"b"]], [[b"c"]])
    flip(files.segment(), BLOCK_BYTES + 3)
    writer = files.writer()
    append(writer, [b"d"])
    append(writer, [b"torn"])
    writer.close()
    stored = files.segment().read_bytes()
    files.write_segment(stored[: 4 * BLOCK_BYTES] + bytes(16) + stored[4 * BLOCK_BYTES + 16 :])

    assert offsets_of(files) == ([0, 2, 3], [range(1, 2)])
    assert files.segment().stat().st_size == 4 * BLOCK_BYTES


def test_what_the_next_start_cannot_prove_is_recorded(files: LogFiles) -> None:
    """Two batches in the last write before a clean stop, of which only the second is whole."""
    written(files, [[b"a"]], [[b"b"], [b"c"]])
    flip(files.segment(), BLOCK_BYTES + 3)

    assert offsets_of(files, exact_end=3) == ([0, 2], [range(1, 2)])
    assert load_damage(files.place.directory) == RecordedDamage(3)


def test_without_a_proof_the_same_is_a_torn_write(files: LogFiles) -> None:
    written(files, [[b"a"]], [[b"b"], [b"c"]])
    flip(files.segment(), BLOCK_BYTES + 3)

    assert offsets_of(files) == ([0], [])
    assert files.segment().stat().st_size == BLOCK_BYTES
    assert not files.damage_file().exists()


def test_what_stands_above_the_proven_end_behind_damage_is_not_served(files: LogFiles) -> None:
    """The last write is torn, and the one before it damaged: of the last nothing was answered."""
    stored = written(files, [[b"a"]], [[b"b"]], [[os.urandom(BLOCK_BYTES - 200)], [b"d"]])
    second = [position for position, header in stored_batches(files.segment())][-1]
    assert second % BLOCK_BYTES
    hole = bytes(512)
    aligned = second // 512 * 512
    files.write_segment(
        stored[:BLOCK_BYTES] + bytes(BLOCK_BYTES) + hole + stored[2 * BLOCK_BYTES + 512 : aligned]
    )
    save_damage(files.place.directory, RecordedDamage(2))
    found = files.recovered()

    assert found.lost_end == LostEnd(1, 2, 2 + UNKNOWN_OFFSETS_MAX)


def test_the_last_batch_before_a_clean_stop_tells_where_the_log_goes_on_by_its_header(
    files: LogFiles,
) -> None:
    written(files, [[b"a"]], [[b"b", b"c"]])
    flip(files.segment(), BLOCK_BYTES + 140)

    assert offsets_of(files, exact_end=3) == ([0], [range(1, 3)])
    append(files.writer(), [b"d"])
    assert offsets_of(files) == ([0, 3], [range(1, 3)])


# --- finished segments ----------------------------------------------------------------------------


@pytest.mark.parametrize("position", [3, 60, 140, BLOCK_BYTES + 3, BLOCK_BYTES + 140])
@pytest.mark.parametrize("base_offset", [0, 2])
def test_damage_in_a_finished_segment_that_is_scanned_takes_its_batch_alone(
    files: LogFiles, base_offset: int, position: int
) -> None:
    three_segments(files)
    path = files.segment(base_offset)
    path.with_suffix(".idx").unlink()
    flip(path, position)
    hurt = base_offset + position // BLOCK_BYTES

    offsets, damaged = offsets_of(files)

    assert damaged == [range(hurt, hurt + 1)]
    assert offsets == [n for n in range(5) if n != hurt]
    assert not path.with_suffix(".idx").exists()  # the next start looks again


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("base_offset", [0, 2])
def test_where_a_segment_is_gone_the_next_one_tells_where_the_log_goes_on(
    files: LogFiles, base_offset: int, change: Callable[[Path], object]
) -> None:
    three_segments(files)
    change(files.segment(base_offset))

    offsets, damaged = offsets_of(files)

    assert damaged == [range(base_offset, base_offset + 2)]
    assert offsets == [n for n in range(5) if n not in damaged[0]]


def test_a_segment_that_begins_within_a_batch_of_the_one_before_is_refused(
    files: LogFiles,
) -> None:
    writer = files.writer(segment_bytes=BLOCK_BYTES)
    append(writer, [b"0", b"1"])
    append(writer, [b"2"])
    writer.close()
    files.segment(2).rename(files.segment(1))
    contents = files.contents()
    with pytest.raises(CorruptPartitionError, match="begins below offset 2"):
        files.recovered()
    assert files.contents() == contents


# --- the end is lost ------------------------------------------------------------------------------


def test_a_log_that_has_lost_its_end_is_read_and_stays_as_it_is(files: LogFiles) -> None:
    written(files, [[b"a"]], [[b"b"]])
    whole = files.segment().read_bytes()
    for spoilt in (whole[:BLOCK_BYTES], whole[:BLOCK_BYTES] + bytes(BLOCK_BYTES)):
        files.write_segment(spoilt)
        for known in ({"exact_end": 2}, {}):
            found = files.recovered(**known)
            assert found.lost_end == LostEnd(1, 2, 2)
            assert [record.value for record in records_of(read(files))] == [b"a"]
            assert files.segment().read_bytes() == spoilt
        files.write_segment(whole)
        assert offsets_of(files) == ([0, 1], [])
        assert load_damage(files.place.directory) == RecordedDamage(2)
        files.damage_file().unlink()


def test_a_log_whose_only_segment_is_gone_has_lost_its_end(files: LogFiles) -> None:
    written(files, [[b"a"]], [[b"b"]])
    files.segment().unlink()

    assert files.recovered(exact_end=2).lost_end == LostEnd(0, 2, 2)


@pytest.mark.parametrize("has_index", [False, True])
def test_a_last_segment_that_is_gone_is_noticed(files: LogFiles, has_index: bool) -> None:
    """By the inventory, or by its index."""
    three_segments(files)
    contents = files.contents()
    files.segment(4).unlink()
    if has_index:
        files.segment(4).with_suffix(".idx").write_bytes(b"x")
        files.inventory = Inventory(files.directory / "other.json", KnownFiles(()))
    for _ in range(2):
        found = files.recovered()
        assert found.segments[-1].end_offset == 4
        assert found.lost_end == LostEnd(4, 5, 5 + UNKNOWN_OFFSETS_MAX)
    files.segment(4).write_bytes(contents[files.segment(4).name])

    assert offsets_of(files) == ([*range(5)], [])


def test_behind_the_accepted_loss_of_a_last_segment_the_next_one_is_missed_too(
    files: LogFiles,
) -> None:
    three_segments(files)
    files.segment(4).unlink()
    found = files.recovered().lost_end
    assert found is not None
    record_loss(files.place.directory, Loss(4, found.next_offset, TIME_US))
    for _ in range(2):
        assert files.recovered().lost_end is None
    append(files.writer(), [b"behind"])
    assert files.recovered().lost_end is None
    files.segment(found.next_offset).unlink()

    lost = files.recovered().lost_end
    assert lost is not None
    assert lost.proven_end == found.next_offset + 1


def test_of_a_lost_segment_is_served_what_the_journal_has(files: LogFiles) -> None:
    """It stays out of the files, where the segment may be restored, until the loss is accepted."""
    written(files, [[b"a"]], [[b"b"]])
    files.segment().unlink()
    batches = [journaled(0, 0), journaled(1, 0)]
    for _ in range(2):
        found = recovered_with(files, batches)
        assert found.lost_end == LostEnd(2, 3, 2 + UNKNOWN_OFFSETS_MAX)
        assert found.pending == batches
        assert not files.segment().exists()
    record_loss(files.place.directory, Loss(2, 2 + UNKNOWN_OFFSETS_MAX, TIME_US))

    found = recovered_with(files, batches)
    assert found.lost_end is None
    assert [record.offset for record in records_of(read(files))] == [0, 1]
    assert found.segments[-1].base_offset == 2 + UNKNOWN_OFFSETS_MAX


def test_a_loss_that_was_accepted_is_passed_over(files: LogFiles) -> None:
    written(files, [[b"a"]], [[b"b"]])
    flip(files.segment(), BLOCK_BYTES + 3)
    lost = files.recovered(exact_end=2).lost_end
    assert lost is not None
    known = load_damage(files.place.directory)
    save_damage(files.place.directory, known.with_loss(Loss(1, lost.next_offset, TIME_US)))
    spoilt = files.segment().read_bytes()

    found = files.recovered()
    path = files.segment()
    assert found.losses == [Damage(path, BLOCK_BYTES, 1, 2, is_accepted=True)]
    assert [each.base_offset for each in found.segments] == [0, 2]
    for value in (b"c", b"d"):
        append(files.writer(), [value])
    assert offsets_of(files) == ([0, 2, 3], [range(1, 2)])
    assert path.read_bytes() == spoilt


def test_nothing_behind_a_loss_comes_back(files: LogFiles) -> None:
    """A batch that stands there whole was given up with what is lost before it."""
    stored = written(files, [[b"a"]], [[b"b"]], [[b"c"]])
    files.write_segment(stored[:BLOCK_BYTES] + stored[2 * BLOCK_BYTES :])
    save_damage(files.place.directory, RecordedDamage(9, 0, (Loss(1, 9, TIME_US),)))

    found = files.recovered()
    assert [range(each[2], each[3]) for each in found.losses] == [range(1, 9)]
    append(files.writer(), [b"d"])
    found = files.recovered()
    assert [range(each[2], each[3]) for each in found.losses] == [range(1, 9)]
    with pytest.raises(CorruptBatchError, match="no batch holds offset 1"):
        files.read(found.segments[0], 1, end_offset=10)


def test_a_segment_that_was_restored_after_its_loss_was_accepted_is_read(files: LogFiles) -> None:
    whole = written(files, [[b"a"]], [[b"b"]])
    save_damage(files.place.directory, RecordedDamage(9, 0, (Loss(1, 9, TIME_US),)))
    files.write_segment(whole[:BLOCK_BYTES])
    append(files.writer(), [b"c"])
    files.write_segment(whole)
    found = files.recovered()

    assert [each[2:] for each in found.losses] == [(2, 9, True)]
    assert [record.offset for record in records_of(read(files))] == [0, 1, 9]


def test_a_damage_file_that_is_damaged_is_named(files: LogFiles) -> None:
    written(files, [[b"a"]])
    files.damage_file().write_bytes(b"x")
    with pytest.raises(CorruptPartitionError, match="damage file: too short; restore the file"):
        files.recovered()


# --- producers ------------------------------------------------------------------------------------


def test_what_a_producer_sent_into_damage_is_neither_stored_nor_new(files: LogFiles) -> None:
    writer = files.writer()
    for sequence in range(4):
        table = encode_table([TableEntry(*Producer.named(b"p", sequence), 0, 1)])
        writer.write([body_of([Event(b"x")], producer_table=table)])
    writer.close()
    flip(files.segment(), 2 * BLOCK_BYTES + 3)
    windows = files.recovered().windows

    assert windows is not None
    windows.validate()
    verdicts = {
        sequence: windows.begin(Producer.named(b"p", sequence), 1, TIME_US)
        for sequence in (0, 1, 3, 4)
    }
    assert verdicts == {0: Duplicate(0), 1: Duplicate(1), 3: Duplicate(3), 4: Verdict.NEW}
    with pytest.raises(SequenceUnknownError):
        windows.begin(Producer.named(b"p", 2), 1, TIME_US)


# --- what the journal holds behind damage ---------------------------------------------------------


def journaled(base_offset: int, high_watermark: int) -> JournaledBatch:
    before = 1 if base_offset else 0
    place = place_of(base_offset=base_offset, previous_epoch=before, high_watermark=high_watermark)
    batch = stamp_batch(body_of([Event(b"j")]), place)
    return JournaledBatch(batch.header, memoryview(batch.contents()), NO_FILE)


def recovered_with(
    files: LogFiles,
    batches: list[JournaledBatch],
    damaged: Sequence[BatchHeader] = (),
    *,
    is_lossy: bool = False,
) -> RecoveredLog:
    return files.recover_as(
        files.place,
        LogEvidence(0, journaled=batches, damaged=damaged, is_journal_lossy=is_lossy),
    )


def test_behind_an_accepted_loss_of_the_journal_its_later_batches_are_taken(
    files: LogFiles,
) -> None:
    written(files, [[b"a"]])
    batches = [journaled(1, 1), journaled(4, 4), journaled(5, 5)]
    assert recovered_with(files, batches).lost_end is not None
    for is_lossy in (True, False):  # the next start knows it from what is recorded
        found = recovered_with(files, batches, is_lossy=is_lossy)
        assert found.lost_end is None
        assert [each[2:] for each in found.losses] == [(2, 4, True)]
        assert found.pending == batches[1:]


@pytest.mark.parametrize("is_lossy", [False, True])
def test_behind_one_damaged_batch_at_a_segments_end_the_journal_goes_on(
    files: LogFiles, is_lossy: bool
) -> None:
    """Who has accepted what the journal lost has not given up what a segment may get back."""
    written(files, [[b"a"]], [[b"b"]])
    flip(files.segment(), BLOCK_BYTES + 3)
    batches = [journaled(2, 2), journaled(3, 3)]
    for _ in range(2):
        found = recovered_with(files, batches, is_lossy=is_lossy)
        assert found.lost_end is None
        assert [each[2:] for each in found.losses] == [(1, 2, False)]
        assert [each.base_offset for each in found.segments] == [0, 2]
        assert found.pending == batches
    assert load_damage(files.place.directory).losses == (Loss(1, 2),)


@pytest.mark.parametrize("left", [BLOCK_BYTES, 3 * BLOCK_BYTES])
def test_behind_a_segment_of_which_more_is_gone_nobody_knows_where_the_log_goes_on(
    files: LogFiles, left: int
) -> None:
    """Behind what the journal holds a large write may have followed, and be gone with the rest."""
    stored = written(files, [[b"a"]], [[b"b"]])
    files.write_segment(stored[:BLOCK_BYTES] + bytes(left - BLOCK_BYTES))
    found = recovered_with(files, [journaled(2, 2)])

    assert found.lost_end == LostEnd(1, 2, 3 + UNKNOWN_OFFSETS_MAX)
    assert found.pending == []


def test_what_the_journal_holds_before_damage_is_brought_to_the_segment(files: LogFiles) -> None:
    written(files, [[b"a"]])
    lost = journaled(2, 2).header
    batches = [journaled(1, 1), journaled(3, 3)]
    for _ in range(2):
        found = recovered_with(files, batches, [lost])
        assert [range(each[2], each[3]) for each in found.losses] == [range(2, 3)]
        assert found.pending == batches[1:]
        assert [(each.base_offset, each.end_offset) for each in found.segments] == [(0, 2), (3, 3)]
        assert [record.offset for record in records_of(read(files))] == [0, 1]


def test_what_a_torn_write_left_goes_before_batches_of_the_journal_take_its_place(
    files: LogFiles,
) -> None:
    written(files, [[b"a"]])
    segments = files.recover()
    with files.segment().open("ab") as file:
        file.write(NOISE.randbytes(2 * BLOCK_BYTES))
    repairs = DiskRepairs(files.place, files.pool, files.inventory, is_direct=files.is_direct)

    repairs.write_pending(segments, [journaled(1, 1)])

    assert files.segment().stat().st_size == 2 * BLOCK_BYTES
    assert len(files.values()) == 2


def test_a_damaged_batch_in_the_journal_tells_where_the_log_goes_on(files: LogFiles) -> None:
    found = recovered_with(files, [journaled(0, 0)], [journaled(1, 1).header])

    assert found.lost_end is None
    assert found.segments[-1].base_offset == 2


def test_what_is_gone_from_behind_a_loss_is_missed_as_well(files: LogFiles) -> None:
    """Else the log would give its offsets out again."""
    save_damage(files.place.directory, RecordedDamage(9, 0, (Loss(0, 9, TIME_US),)))
    assert files.recovered().lost_end is None
    append(files.writer(), [b"a"])
    (segment,) = files.place.directory.glob("*.log")
    segment.unlink()

    assert files.recovered().lost_end == LostEnd(9, 10, 10 + UNKNOWN_OFFSETS_MAX)
