"""What `tailrace verify` and `tailrace dump` make of the record of a partition's damage."""

import json
from pathlib import Path

import pytest

from tailrace.cli.stored.damage_files import parse_damage
from tailrace.cli.stored.files import check_files
from tailrace.cli.verbs.dump import dump
from tailrace.errors import CorruptBatchError, TailraceError
from tailrace_broker.model.damage import Loss, RecordedDamage
from tailrace_broker.storage.log.damage_file import save_damage
from tests.support.storage.batches import TIME_US
from tests.support.storage.storage import LogFiles, append

KNOWN = RecordedDamage(9, 12, (Loss(3, 5), Loss(7, 9, TIME_US)))


@pytest.fixture
def files(tmp_path: Path) -> LogFiles:
    """Of a log of two batches, the second of which is lost, and a third behind it."""
    files = LogFiles(tmp_path)
    append(files.writer(), [b"a"])
    save_damage(files.place.directory, RecordedDamage(2, 0, (Loss(1, 2, TIME_US),)))
    return files


def test_what_is_recorded_as_lost_is_no_damage(files: LogFiles) -> None:
    for segment in (files.segment(0), files.segment(2)):
        (finding,) = check_files(files.directory).findings
        assert (finding.text, finding.is_bad) == (
            "offsets 1 to 1 are lost, which is recorded",
            False,
        )
        assert finding.file == segment
        append(files.writer(), [b"c"])


def test_what_is_missing_and_not_recorded_is_damage(files: LogFiles) -> None:
    save_damage(files.place.directory, RecordedDamage(2))
    (finding,) = check_files(files.directory).findings

    assert finding.is_bad
    assert finding.text == "the log ends at offset 1, and there were records up to 1"


def test_a_record_that_is_damaged_is_found(files: LogFiles) -> None:
    stored = files.damage_file().read_bytes()
    files.damage_file().write_bytes(stored[:-1] + b"x")

    assert "is damaged itself" in str(check_files(files.directory).findings)
    with pytest.raises(TailraceError, match=r"is damaged itself: .*: restore it from a copy"):
        dump(file=files.damage_file(), records=False, output="table")


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        (lambda stored: b"x" + stored[1:], "not a record of damage"),
        (lambda stored: stored[:20], "not a record of damage"),
        (lambda stored: stored[:4] + b"\2" + stored[5:], "of version 2, and this reads 1"),
        (lambda stored: stored[:-1], "cut short"),
    ],
)
def test_a_file_that_is_none_is_told(files: LogFiles, stored, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(CorruptBatchError, match=text):
        parse_damage(stored(files.damage_file().read_bytes()))


def test_a_record_is_dumped(files: LogFiles, capsys: pytest.CaptureFixture[str]) -> None:
    save_damage(files.place.directory, KNOWN)
    dump(file=files.damage_file(), records=False, output="json")
    document = json.loads(capsys.readouterr().out)
    dump(file=files.damage_file(), records=False, output="table")

    assert document["provenEnd"] == 9
    assert [each["accepted"] is None for each in document["losses"]] == [True, False]
    assert "FIRST LOST" in capsys.readouterr().out
