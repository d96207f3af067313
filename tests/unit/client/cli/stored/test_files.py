"""What files of a broker tell of each other; found on directories that a test lays out."""

import fcntl
import json
import shutil
from pathlib import Path
from uuid import UUID

import pytest

from tailrace.cli.stored.files import check_brokers, check_files
from tailrace_broker.codec.damage import encode_damage
from tailrace_broker.codec.metadata import (
    CleanStop,
    DeletionMark,
    LogStart,
    encode_clean_stop,
    encode_deleted,
    encode_log_start,
)
from tailrace_broker.codec.metadata_log import encode_snapshot
from tailrace_broker.codec.segment import encode_pad
from tailrace_broker.model.agreement import INITIAL_ID, Configuration, DiskId
from tailrace_broker.model.damage import Loss, RecordedDamage
from tailrace_broker.model.topic import TopicSettings
from tests.support.storage.batches import TOPIC_ID, Event, batch_of
from tests.support.storage.topics import new_topic


def batch(offset: int) -> bytes:
    """Of one record, behind all others."""
    return batch_of(
        [Event(b"1")],
        partition=0,
        base_offset=offset,
        previous_epoch=min(offset, 1),
        high_watermark=offset,
    )


WRITES = [batch(offset) + encode_pad(-len(batch(offset)) % 4096) for offset in range(2)]
STORED = b"".join(WRITES)
ENDS_AT_0 = "the log ends at offset 0, and there were records up to 1"
ENDS_AT_1 = "the log ends at offset 1, and there were records up to 1"


IDENTITY: dict[str, object] = {
    "clusterId": None,
    "incarnation": str(TOPIC_ID),
    "ordinal": 0,
    "version": 3,
}


class BrokerFiles:
    """A stopped broker's directory with one topic of one partition."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = root / "data"
        self.partition = self.data / str(TOPIC_ID) / "0"
        for directory in (self.partition, self.data / "metadata"):
            directory.mkdir(parents=True)
        (root / "lock").touch()
        self.write_json("meta.json", IDENTITY)
        self.write_json("inventory.json", {"version": 1})

    def write_json(self, name: str, document: dict[str, object]) -> None:
        """One of the broker's own."""
        (self.data / name).write_text(json.dumps(document))

    def segment(self, stored: bytes) -> None:
        """The one of the partition."""
        (self.partition / f"{0:020d}.log").write_bytes(stored)

    def found(self, directory: Path | None = None) -> list[tuple[str, str, bool]]:
        """Names of files, what is wrong, and whether that is damage."""
        report = check_files(directory or self.root)
        assert report.bad_count == sum(each.is_bad for each in report.findings)
        return [(each.file.name, each.text, each.is_bad) for each in report.findings]


@pytest.fixture
def files(tmp_path: Path) -> BrokerFiles:
    return BrokerFiles(tmp_path / "broker")


def test_files_that_fit_each_other_are_right(files: BrokerFiles) -> None:
    files.segment(STORED)

    assert files.found() == []
    assert check_files(files.root).file_count == 3


def test_a_clean_stop_tells_how_far_a_log_reached(files: BrokerFiles) -> None:
    stop = encode_clean_stop(CleanStop(1, {TOPIC_ID: [2], UUID(int=1): [None]}))
    (files.data / "clean-stop.json").write_bytes(stop)
    nothing = files.found()
    files.segment(WRITES[0])

    assert nothing == [("0", ENDS_AT_0, True)]
    assert files.found() == [(f"{0:020d}.log", ENDS_AT_1, True)]
    assert files.found(files.partition) == files.found()


def test_a_clean_stop_tells_where_a_log_begins(files: BrokerFiles) -> None:
    """A child of a step does not begin at 0."""
    files.segment(STORED)
    found = []
    for first_offset in (0, 1):
        stop = CleanStop(1, {TOPIC_ID: [2]}, {TOPIC_ID: [first_offset]})
        (files.data / "clean-stop.json").write_bytes(encode_clean_stop(stop))
        found.append([is_bad for *_, is_bad in files.found()])

    assert found == [[], [True]]


def test_retention_tells_where_a_log_begins(files: BrokerFiles) -> None:
    start = files.partition / "log-start.json"
    start.write_bytes(encode_log_start(LogStart(2, 1, 0)))
    (files.data / "clean-stop.json").write_bytes(encode_clean_stop(CleanStop(1, {TOPIC_ID: [2]})))
    trimmed = files.found()
    files.segment(STORED)

    assert trimmed == []
    assert files.found() == [], "what a stop has left of it is removed by the next start"


def test_what_was_set_aside_for_a_damaged_log_tells_how_far_it_reached(
    files: BrokerFiles,
) -> None:
    rescued = files.partition / "journaled.batches"
    rescued.write_bytes(batch(2))
    files.segment(STORED)
    whole = files.found()
    files.segment(WRITES[0])
    missing = files.found()
    rescued.write_bytes(batch(2)[:150] + b"x" + batch(2)[151:])

    assert whole == []
    assert missing == [(f"{0:020d}.log", ENDS_AT_1, True)]
    assert files.found()[0] == ("journaled.batches", "no batch that matches its checksum", True)


def test_beside_a_running_broker_a_torn_write_is_none(files: BrokerFiles) -> None:
    files.segment(STORED + b"torn" * 1024)
    [(_, text, is_bad)] = files.found()
    with (files.root / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        assert files.found() == []
    assert not is_bad
    assert text.endswith("the next start cuts away: it is not proven to have been acknowledged")


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("meta.json", {"clusterId": "no"}, "ValueError('badly formed"),
        ("meta.json", {"incarnation": "no"}, "ValueError('badly formed"),
        ("inventory.json", {"version": None}, "ValueError('None')"),
        ("inventory.json", {"journalFiles": ["../x"]}, "ValueError(\"'../x'\")"),
        ("inventory.json", {"newestSegments": {"no": {}}}, "ValueError('badly formed"),
        ("inventory.json", {"newestSegments": {str(TOPIC_ID): {"-1": 0}}}, "'-1'"),
        ("meta.json", {**IDENTITY, "starts": [[str(TOPIC_ID), "no"]]}, "ValueError(\"'no'\")"),
        ("meta.json", {**IDENTITY, "starts": [["no", "clean"]]}, "ValueError('badly formed"),
        ("clean-stop.json", {"logEnds": {}, "firstOffsets": {str(TOPIC_ID): [-1]}}, "'-1'"),
        ("clean-stop.json", {"logEnds": {"no": []}}, "ValueError('badly formed"),
        ("clean-stop.json", {"logEnds": []}, "AttributeError"),
        (f"{TOPIC_ID}/topic.json", {"deletedUs": None}, "ValueError('None')"),
        (f"{TOPIC_ID}/0/log-start.json", {"logStart": "1"}, "ValueError(\"'1'\")"),
    ],
)
def test_what_a_json_file_must_have_is_looked_at(
    files: BrokerFiles, name: str, change: dict[str, object], text: str
) -> None:
    files.segment(STORED)
    path = files.data / name
    document = json.loads(path.read_bytes()) if path.exists() else {"version": 1}
    path.write_text(json.dumps(document | change))

    [(found, told, is_bad)] = [each for each in files.found() if each[0] == path.name]
    assert (found, is_bad) == (path.name, True)
    assert told.startswith("does not hold what it should: ")
    assert text in told


def test_a_snapshot_of_what_the_ring_agreed_is_checked(files: BrokerFiles) -> None:
    voters = Configuration((DiskId(0, TOPIC_ID),))
    stored = b"".join(encode_snapshot(INITIAL_ID, voters, [b"state"]))
    path = files.data / "metadata" / "0-0.snapshot"
    path.write_bytes(stored)
    whole = files.found()
    found = []
    for damaged in (b"", stored[:-1], stored[:20], b"x" + stored[1:], stored[:-20] + bytes(20)):
        path.write_bytes(damaged)
        found.append(files.found())

    assert whole == []
    assert found == [[("0-0.snapshot", "does not match its checksum", True)]] * 5


# --- what is missing ------------------------------------------------------------------------------


LISTED: dict[str, object] = {
    "version": 1,
    "journalFiles": ["1.journal"],
    "newestSegments": {str(TOPIC_ID): {"0": 0}},
}
STORED_IDENTITY: dict[str, object] = {**IDENTITY, "clusterId": str(TOPIC_ID), "boot": 3}
NO_SEGMENTS = ("0", "has lost its segments; restore it from a copy", True)
NO_META = "is missing: it says whose disk this is, and the broker does not start"


def test_partitions_that_the_inventory_lists_have_segments(files: BrokerFiles) -> None:
    files.write_json("inventory.json", {**LISTED, "journalFiles": []})
    empty = files.found()
    files.segment(STORED)
    whole = files.found()
    files.segment(b"")
    cut = files.found()
    shutil.rmtree(files.partition.parent)

    assert (empty, whole, cut) == ([NO_SEGMENTS], [], [])
    assert files.found() == [NO_SEGMENTS]
    assert files.found(files.data / "metadata") == []


@pytest.mark.parametrize("place", ["being removed", "all to retention"])
def test_what_was_removed_on_purpose_is_not_missing(files: BrokerFiles, place: str) -> None:
    files.write_json("inventory.json", {**LISTED, "journalFiles": []})
    topic, trash = files.partition.parent, files.data / "trash"
    if place == "all to retention":
        start = encode_log_start(LogStart(2, 1, 0))
        (files.partition / "log-start.json").write_bytes(start)
    else:
        (files.partition / f"{0:020d}.idx").write_bytes(b"its segment is gone first")
        trash.mkdir()
        topic.rename(trash / f"{topic.name}.purged")

    assert files.found() == []


def test_files_of_a_deleted_topic_are_missed_in_the_trash(files: BrokerFiles) -> None:
    files.write_json("inventory.json", {**LISTED, "journalFiles": []})
    files.segment(STORED)
    topic = new_topic("t", TopicSettings(partitions_per_range=1), TOPIC_ID)
    mark = files.partition.parent / "topic.json"
    mark.write_bytes(encode_deleted(DeletionMark(topic, 1)))
    trash = files.data / "trash"
    trash.mkdir()
    files.partition.parent.rename(trash / str(TOPIC_ID))
    buried = trash / str(TOPIC_ID)
    whole = files.found()
    stored = (buried / "topic.json").read_bytes()
    (buried / "topic.json").unlink()
    without_mark = files.found()
    (buried / "topic.json").write_bytes(stored)
    shutil.rmtree(buried / "0")

    assert whole == []
    text = "is missing: without it the topic cannot be restored; restore it from a copy"
    assert without_mark == [("topic.json", text, True)]
    assert files.found() == [NO_SEGMENTS]


def test_the_last_segment_that_the_inventory_names_is_missed(files: BrokerFiles) -> None:
    newest = {"newestSegments": {str(TOPIC_ID): {"0": 2}}}
    files.write_json("inventory.json", {**LISTED, "journalFiles": [], **newest})
    nothing = files.found()
    files.segment(STORED)
    gone = files.found()
    damage = files.partition / "damage"
    found = []
    for end_offset in (2, 3):
        damage.write_bytes(encode_damage(RecordedDamage(end_offset, 0, (Loss(2, end_offset),))))
        found.append([name for name, _, is_bad in files.found() if is_bad])
    damage.unlink()
    (files.partition / f"{2:020d}.log").write_bytes(b"")

    assert nothing == [NO_SEGMENTS]
    text = "is missing: it was the last segment; restore it from a copy"
    assert gone == [(f"{2:020d}.log", text, True)]
    assert found == [[f"{2:020d}.log"], []]
    assert files.found() == []


def test_a_missing_file_of_the_journal_is_damage_unless_nothing_was_in_it(
    files: BrokerFiles,
) -> None:
    files.segment(STORED)
    files.write_json("meta.json", {**IDENTITY, "boot": 3})
    files.write_json("inventory.json", {**LISTED, "newestSegments": {}})
    killed = files.found()
    (files.data / "journal").mkdir()
    (files.data / "journal" / "1.journal.lost").touch()
    accepted = files.found()
    stops = []
    for boot in (2, 3):
        (files.data / "clean-stop.json").write_bytes(encode_clean_stop(CleanStop(boot, {})))
        (files.data / "journal" / "1.journal.lost").unlink(missing_ok=True)
        stops.append([is_bad for *_, is_bad in files.found()])
    (files.data / "journal" / "1.journal").touch()

    journal = files.data / "journal"
    lost = (
        "is missing, with events that only it held; restore it from a copy, or accept the loss: "
        f"mkdir -p {journal} && touch {journal / '1.journal.lost'}"
    )
    assert killed == [("1.journal", lost, True)]
    assert [is_bad for *_, is_bad in accepted] == [False]
    assert stops == [[True], [False]]
    assert files.found() == []


def test_what_says_whose_disk_it_is_is_missed_when_the_disk_holds_data(files: BrokerFiles) -> None:
    (files.data / "meta.json").unlink()
    founding = files.found()
    files.segment(STORED)
    found = files.found()

    assert founding == []
    assert found == [("meta.json", f"{NO_META}; restore it from a copy", True)]


def test_the_metadata_of_a_disk_in_a_ring_is_missed(files: BrokerFiles) -> None:
    files.segment(STORED)
    (files.data / "inventory.json").unlink()
    files.write_json("meta.json", STORED_IDENTITY)

    assert [name for name, *_ in files.found()] == [
        "inventory.json",
        "metadata",
        "0.blocks",
        "1.blocks",
    ]


def test_each_broker_of_a_folder_is_looked_at_for_itself(tmp_path: Path) -> None:
    for name in ("0", "1"):
        BrokerFiles(tmp_path / "ring" / name).segment(STORED if name == "0" else WRITES[1])
    reports = check_brokers(tmp_path / "ring")
    (tmp_path / "ring" / f"{0:020d}.log").write_bytes(STORED)

    assert [(each.directory.name, each.file_count) for each in reports] == [("0", 3), ("1", 3)]
    assert [each.directory.name for each in check_brokers(tmp_path / "ring")] == ["ring", "0", "1"]
    assert [each.directory.name for each in check_brokers(tmp_path / "ring" / "1")] == ["1"]
    assert check_brokers(tmp_path / "ring" / "1" / "data" / "metadata") == []
