"""Journal files as frames and documents, and what is found wrong with them."""

import io
from pathlib import Path

import pytest

from tailrace.cli.stored import segments
from tailrace.cli.stored.journals import journal_documents, journal_findings, read_journal
from tailrace.errors import CorruptBatchError
from tailrace_broker.codec.journal import (
    JournalFileHeader,
    encode_file_header,
    encode_frame_header,
)
from tests.support.storage.batches import PARTITION, TOPIC_ID, Event, batch_of

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
        batch_count=len(batches),
    )
    return filled(head + b"".join(batches))


def filled(stored: bytes) -> bytes:
    return stored + bytes(-len(stored) % BLOCK)


def journal_of(first_sequence: int, *frames: bytes, boot: int = 1) -> bytes:
    """A file's present round."""
    head = encode_file_header(JournalFileHeader(boot, ID, first_sequence))
    return filled(head) + b"".join(frames)


def flipped(stored: bytes, position: int) -> bytes:
    changed = bytearray(stored)
    changed[position] ^= 1
    return bytes(changed)


THREE = journal_of(5, frame(5, BATCHES[0], BATCHES[1]), frame(6, BATCHES[2]), frame(7, BATCHES[3]))
FIRST, SECOND, THIRD = BLOCK, 2 * BLOCK, 3 * BLOCK
OLD = frame(3, BATCHES[8])


def sequences_of(stored: bytes) -> list[tuple[int, str]]:
    journal = read_journal(io.BytesIO(stored), len(stored))
    return [(each.sequence, each.checksum) for each in journal.frames] if journal else []


def findings_of(folder: Path, *files: bytes) -> list[tuple[str, int | None, str, bool]]:
    paths = []
    for index, stored in enumerate(files):
        paths.append(folder / f"{index}.journal")
        paths[-1].write_bytes(stored)
    found, _ = journal_findings(paths)
    return [(each.file.name, each.position, each.text, each.is_bad) for each in found]


def test_a_journal_is_told_frame_by_frame() -> None:
    documents = list(journal_documents(read_journal(io.BytesIO(THREE), len(THREE))))

    assert documents[0] == {
        "position": FIRST,
        "kind": "frame",
        "sequence": 5,
        "durableSequence": 5,
        "bytes": 48 + len(BATCHES[0]) + len(BATCHES[1]),
        "checksum": "ok",
    }
    assert [each["kind"] for each in documents] == [
        *("frame", "batch", "batch", "frame", "batch", "frame", "batch")
    ]
    assert documents[2]["position"] == FIRST + 48 + len(BATCHES[0])
    assert (documents[2]["topicId"], documents[2]["partition"]) == (str(TOPIC_ID), PARTITION)
    assert (documents[2]["firstOffset"], documents[2]["checksum"]) == (1, "ok")


def test_what_an_older_round_has_left_is_not_told() -> None:
    assert sequences_of(THREE + OLD + OLD) == [(5, "ok"), (6, "ok"), (7, "ok")]
    assert sequences_of(THREE + frame(8, BATCHES[4], journal_id=1)) == sequences_of(THREE)


def test_space_that_was_never_used_holds_nothing() -> None:
    assert read_journal(io.BytesIO(bytes(2 * BLOCK)), 2 * BLOCK) is None
    assert list(journal_documents(None)) == []
    assert sequences_of(journal_of(1, bytes(5 * BLOCK), b"TRLJ")) == []


@pytest.mark.parametrize(
    ("stored", "reason"),
    [(flipped(THREE, 20), "the head of the journal file is damaged"), (b"TRLK", "too short")],
)
def test_a_damaged_head_is_told(tmp_path: Path, stored: bytes, reason: str) -> None:
    with pytest.raises(CorruptBatchError, match=reason):
        read_journal(io.BytesIO(stored), len(stored))

    [found] = findings_of(tmp_path, stored)
    assert (found[0], found[1], found[3]) == ("0.journal", 0, True)


def test_a_whole_journal_has_no_findings(tmp_path: Path) -> None:
    newer = journal_of(8, frame(8, BATCHES[4]), OLD)

    assert findings_of(tmp_path, newer, THREE, bytes(BLOCK)) == []
    assert findings_of(tmp_path, *()) == []


@pytest.mark.parametrize("position", [FIRST, FIRST + 9, FIRST + 30])
def test_a_frame_that_a_later_one_says_was_durable_is_missed(tmp_path: Path, position: int) -> None:
    assert findings_of(tmp_path, flipped(THREE, position)) == [
        ("0.journal", FIRST, "frame 5 cannot be read", True)
    ]


def test_the_last_frame_of_a_file_is_missed_when_the_next_goes_on_behind_it(
    tmp_path: Path,
) -> None:
    newer = journal_of(8, frame(8, BATCHES[4]))

    assert findings_of(tmp_path, newer, flipped(THREE, THIRD)) == [
        ("1.journal", THIRD, "frame 7 cannot be read", True)
    ]


@pytest.mark.parametrize("at", [0, 33, 150])
def test_a_damaged_batch_of_a_durable_frame_is_damage(tmp_path: Path, at: int) -> None:
    position = FIRST + 48 + len(BATCHES[0])

    assert findings_of(tmp_path, flipped(THREE, position + at)) == [
        ("0.journal", position, "frame 5 has a batch of a wrong checksum", True)
    ]


def test_a_frame_that_nobody_says_was_durable_may_be_torn(tmp_path: Path) -> None:
    torn = "not proven to have been acknowledged; the next start leaves it out"
    unsynced = journal_of(
        5, frame(5, BATCHES[0], durable=2), b"x" * BLOCK, frame(7, BATCHES[2], durable=2)
    )

    assert findings_of(tmp_path, flipped(THREE, THIRD + 48 + 150)) == [
        (
            "0.journal",
            THIRD + 48,
            f"frame 7 has a batch of a wrong checksum: {torn}",
            False,
        )
    ]
    assert findings_of(tmp_path, flipped(THREE, THIRD + 1)) == [
        ("0.journal", THIRD, f"frame 7 cannot be read: {torn}", False)
    ]
    assert findings_of(tmp_path, unsynced) == [
        ("0.journal", SECOND, f"frame 6 is missing: {torn}", False)
    ]


def test_what_a_later_boot_says_is_no_proof(tmp_path: Path) -> None:
    later = journal_of(8, frame(8, BATCHES[4]), boot=2)

    assert [found[3] for found in findings_of(tmp_path, flipped(THREE, THIRD), later)] == [False]
    assert [found[3] for found in findings_of(tmp_path, flipped(THREE, FIRST), later)] == [True]


def test_a_frame_whose_batches_end_too_early_is_damaged() -> None:
    cut = THREE[: FIRST + 200]

    assert sequences_of(cut) == [(5, "bad")]


def test_without_the_checksum_package_nothing_is_called_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments, "crc32c", None)

    assert {checksum for _, checksum in sequences_of(THREE)} == {"unchecked"}
