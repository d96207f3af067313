"""What is found in a log beside what a start decides, which `LogFiles.recover_as` compares."""

from pathlib import Path

import pytest

from tailrace_broker.codec.batch import read_header, stamp_batch
from tailrace_broker.codec.metadata import LogStart
from tailrace_broker.codec.segment import SegmentIndex, decode_index, encode_index
from tailrace_broker.core.log.journal_replay import NO_FILE, JournaledBatch
from tailrace_broker.model.damage import Loss
from tailrace_broker.storage.files.direct_file import write_file_atomically
from tailrace_broker.storage.inspection import pieces_in
from tailrace_broker.storage.inspection.logs import check_log
from tailrace_broker.storage.log.damage_file import record_loss
from tailrace_broker.storage.log.recovery import LogEvidence
from tailrace_broker.storage.log.trim import save_log_start
from tests.support.storage.batches import Event, batch_of, body_of, place_of
from tests.support.storage.storage import LogFiles, append

BLOCK = 4096
NOTHING_LOST = "no event is in it, and nothing is lost; check the disk, which has changed it"
DAMAGED_FILL = f"a pad whose fill is not zero: {NOTHING_LOST}"


@pytest.fixture
def files(tmp_path: Path) -> LogFiles:
    """Three segments: of offsets 0 and 1, 2 and 3, and 4; each write has one."""
    files = LogFiles(tmp_path)
    writer = files.writer(segment_bytes=2 * BLOCK)
    for number in range(5):
        append(writer, [b"%d" % number])
    writer.close()
    return files


def flip(path: Path, position: int) -> None:
    stored = bytearray(path.read_bytes())
    stored[position] ^= 1
    path.write_bytes(stored)


def found_in(
    files: LogFiles, evidence: LogEvidence | None = None, epoch: int | None = None
) -> list[tuple[str, str, bool]]:
    """Names of files, what is wrong, and whether that is damage."""
    found = check_log(files.place, evidence or LogEvidence(0), epoch, files.pool)
    return [(each.file.name, each.text, each.is_bad) for each in found]


def test_a_whole_log_has_no_findings(files: LogFiles) -> None:
    assert found_in(files, LogEvidence(0, newest_segment=4, exact_end=5), epoch=1) == []
    assert found_in(files, LogEvidence(0, is_start_known=False)) == []


def test_a_finished_segment_is_read_whatever_its_index_says(files: LogFiles) -> None:
    flip(files.segment(), 140)

    assert files.recovered().damages == [], "a start trusts the index"
    assert found_in(files) == [(f"{0:020d}.log", "offsets 0 to 0 cannot be read", True)]


def test_damage_that_a_start_passes_over_is_found(files: LogFiles) -> None:
    flip(files.segment(), 4000)
    flip(files.segment(2).with_suffix(".idx"), 40)

    assert found_in(files) == [
        (f"{0:020d}.log", DAMAGED_FILL, False),
        (
            f"{2:020d}.idx",
            "index file: checksum does not match: a broker writes it again at its next start",
            True,
        ),
    ]


def test_damage_before_which_readers_do_not_stop_is_a_pad(tmp_path: Path) -> None:
    """A start gives the batch behind it an entry of the index; without that readers stop there."""
    files = LogFiles(tmp_path)
    writer = files.writer()
    for number in range(3):
        append(writer, [b"%d" % number])
    writer.close()
    with files.segment().open("rb") as file:
        pads = [each for each in pieces_in(file, 2 * BLOCK) if each.kind == "pad"]
    flip(files.segment(), pads[0].position + 4)

    assert found_in(files) == [
        (f"{0:020d}.log", f"a pad whose head is damaged: {NOTHING_LOST}", False)
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("end_offset", "has another end than its segment, offset 2"),
        ("last_epoch", "the head does not fit the batches of its segment"),
    ],
)
def test_an_index_that_does_not_fit_its_segment_is_found(
    files: LogFiles, name: str, text: str
) -> None:
    path = files.segment().with_suffix(".idx")
    index = decode_index(path.read_bytes())
    path.write_bytes(encode_index(SegmentIndex(**{**index._asdict(), name: 9})))

    assert (f"{0:020d}.idx", text, True) in found_in(files)


def test_an_entry_of_an_index_that_names_no_batch_is_found(files: LogFiles) -> None:
    path = files.segment().with_suffix(".idx")
    index = decode_index(path.read_bytes())
    path.write_bytes(encode_index(index._replace(entries=[index.entries[0]._replace(position=8)])))

    text = "an entry for byte 8, where no such batch starts"
    assert found_in(files) == [(f"{0:020d}.idx", text, True)]


def test_what_a_torn_write_has_left_is_no_damage(files: LogFiles) -> None:
    with files.segment(4).open("ab") as file:
        file.write(b"torn" * 1024)

    [(name, text, is_bad)] = found_in(files)
    assert (name, is_bad) == (f"{4:020d}.log", False)
    assert text.endswith("not proven to have been acknowledged; the next start cuts them away")


def test_what_the_journal_alone_has_is_named_and_not_said_to_be_unacknowledged(
    files: LogFiles,
) -> None:
    stored = files.segment(4).read_bytes()
    header = read_header(memoryview(stored))
    journaled = [JournaledBatch(header, memoryview(stored)[: header.batch_bytes], NO_FILE)]
    flip(files.segment(4), 140)

    [(name, text, is_bad)] = found_in(files, LogEvidence(0, journaled=journaled))
    assert (name, is_bad) == (f"{4:020d}.log", False)
    assert text.endswith(
        "bytes behind the end of the log: the next start cuts them away, and goes on with what the "
        "journal alone has: offsets 4 to 4, which may have been acknowledged"
    )


def test_what_was_acknowledged_in_a_damaged_last_write_is_damage(tmp_path: Path) -> None:
    """A later batch of the same write says so; what a torn write left never does."""
    files = LogFiles(tmp_path)
    batches = [
        batch_of([Event(b"1")], base_offset=n, previous_epoch=min(n, 1), high_watermark=n)
        for n in range(3)
    ]
    files.write_segment(b"".join(batches))
    flip(files.segment(), 140)

    [(_, text, is_bad)] = found_in(files)
    assert is_bad
    assert "some were acknowledged, and the next start cuts them away" in text


def test_a_log_that_has_lost_its_end_names_what_is_missing(files: LogFiles) -> None:
    files.segment(4).unlink()
    inventory = found_in(files, LogEvidence(0, newest_segment=4))
    stopped = found_in(files, LogEvidence(0, exact_end=5))
    for path in files.place.directory.iterdir():
        path.unlink()
    nothing = found_in(files, LogEvidence(0, newest_segment=4))

    assert inventory[0][0] == f"{4:020d}.log"
    assert inventory[0][1].startswith("is missing: it was the last segment; offsets from 4 on")
    assert stopped[0][1].startswith("offsets from 4 to 4 were acknowledged and are missing")
    assert nothing[0][1].startswith("has lost its segments: offsets from 0 on are missing")
    assert {is_bad for *_, is_bad in (*inventory, *stopped, *nothing)} == {True}


def test_a_loss_that_is_recorded_is_no_damage(files: LogFiles) -> None:
    for suffix in (".log", ".idx"):
        files.segment(2).with_suffix(suffix).unlink()
    unknown = found_in(files)
    record_loss(files.place.directory, Loss(2, 4))

    assert unknown == [(f"{0:020d}.log", "offsets 2 to 3 are lost", True)]
    assert found_in(files) == [
        (f"{0:020d}.log", "offsets 2 to 3 are lost, which is recorded", False)
    ]


def test_a_loss_that_the_next_start_takes_for_accepted_is_no_damage(files: LogFiles) -> None:
    """The journal goes on behind it, and somebody has made the `.lost` file of one of its files."""
    place = place_of(base_offset=7, previous_epoch=1, high_watermark=7)
    batch = stamp_batch(body_of([Event(b"j")]), place)
    journaled = [JournaledBatch(batch.header, memoryview(batch.contents()), NO_FILE)]
    found = found_in(files, LogEvidence(0, journaled=journaled, is_journal_lossy=True))

    said = "offsets 5 to 6 are lost, which somebody has accepted"
    assert found == [(f"{4:020d}.log", said, False)]


def test_what_retention_has_left_of_a_segment_is_not_missed(files: LogFiles) -> None:
    """It was stopped between the removal of the segment and that of its index."""
    save_log_start(files.place.directory, LogStart(2, 2, 1, 0), write_file_atomically)
    files.segment().unlink()

    assert files.segment().with_suffix(".idx").exists()
    assert found_in(files, LogEvidence(0, newest_segment=4)) == []


def test_damage_below_the_log_start_is_harmless(files: LogFiles) -> None:
    flip(files.segment(2), 140)
    save_log_start(files.place.directory, LogStart(2, 2, 1, 0), write_file_atomically)
    [read] = found_in(files)
    save_log_start(files.place.directory, LogStart(3, 2, 1, 0), write_file_atomically)
    [unread] = found_in(files)

    assert read == (f"{2:020d}.log", "offsets 2 to 2 cannot be read", True)
    assert unread == (f"{2:020d}.log", f"{read[1]}: below the log start, where nobody reads", False)


def test_what_is_lost_below_the_log_start_is_not_missed(files: LogFiles) -> None:
    for suffix in (".log", ".idx"):
        files.segment(2).with_suffix(suffix).unlink()
    save_log_start(files.place.directory, LogStart(3, 0, 0, 0), write_file_atomically)
    assert found_in(files) == [(f"{0:020d}.log", "offsets 2 to 3 are lost", True)]

    save_log_start(files.place.directory, LogStart(4, 0, 0, 0), write_file_atomically)
    assert found_in(files) == []


def test_what_a_start_refuses_is_found(files: LogFiles) -> None:
    newer = found_in(files, epoch=0)
    (files.place.directory / "log-start.json").write_bytes(b"{")

    assert [text.partition(";")[0] for _, text, _ in newer] == [
        "the log ends in epoch 1, but the ring is in epoch 0: "
        f"{files.directory / 'metadata'} is an older copy"
    ]
    [(_, text, is_bad)] = found_in(files)
    assert text.startswith("log-start.json cannot be read")
    assert is_bad
