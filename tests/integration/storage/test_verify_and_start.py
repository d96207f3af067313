"""`tailrace verify` and a start of the broker say the same of the same damaged folder."""

import asyncio
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from tailrace_broker.codec.metadata import LogStart
from tailrace_broker.model.errors import TailraceError
from tailrace_broker.model.ring_state import Replica
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.files.direct_file import write_file_atomically
from tailrace_broker.storage.inspection import Report, pieces_in
from tailrace_broker.storage.inspection.brokers import check_brokers, check_files
from tailrace_broker.storage.log.trim import save_log_start
from tests.support.broker.brokers import started_broker
from tests.support.ring.ring_disk import put_ring_state, ring_state_on
from tests.support.storage.damaged import flip
from tests.support.storage.storage import Appends

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

MEMORY = Path("/dev/shm")  # nothing here is about the disk itself
SETTINGS: dict[str, Any] = {
    "segment_bytes": 1 << 20,
    "journal_bytes": 8 << 20,
    "scrub_bytes_per_second": 0,
}
BATCHES = {"large": [[2_000] * 50] * 26, "small": [[600]] * 20}


@pytest.fixture(scope="module")
def images() -> Iterator[dict[str, Path]]:
    """Of a broker that was stopped, and of one that was killed with a journal in use."""
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        found = {each: Path(name) / each for each in ("stopped", "killed")}
        asyncio.run(_produce(found["stopped"], found["killed"]))
        yield found


async def _produce(root: Path, killed: Path) -> None:
    """Fill a directory; `killed` becomes what it is while the broker runs."""
    noise = random.Random(1)
    async with started_broker(root, **SETTINGS) as broker:
        for topic, batches in BATCHES.items():
            await broker.create_topic(topic, TopicSettings(partitions_per_range=1))
            for sizes in batches:
                log = broker.hosted(topic).log_of(0)
                await Appends(log).batch([noise.randbytes(size) for size in sizes])
        await broker.create_topic("gone", TopicSettings(partitions_per_range=1))
        await Appends(broker.hosted("gone").log_of(0)).batch([b"1"])
        await broker.delete_topic("gone")
        shutil.copytree(root, killed)


def segments_of(root: Path) -> list[Path]:
    """Of the log that has several."""
    largest = max(root.glob("data/*/*/*.log"), key=lambda path: path.stat().st_size)
    return sorted(largest.parent.glob("*.log"))


def newest_journal(root: Path) -> Path:
    return max((root / "data" / "journal").glob("*.journal"), key=lambda path: path.stat().st_mtime)


def nothing(_: Path) -> None:
    pass


def remove_last_segment(root: Path) -> None:
    segments_of(root)[-1].unlink()


def remove_middle_segment(root: Path) -> None:
    segment = segments_of(root)[1]
    segment.unlink()
    segment.with_suffix(".idx").unlink()


def remove_partition(root: Path) -> None:
    shutil.rmtree(segments_of(root)[0].parent)


def remove_journal(root: Path) -> None:
    shutil.rmtree(root / "data" / "journal")


def accept_lost_journal(root: Path) -> None:
    path = newest_journal(root)
    path.rename(path.with_name(f"{path.name}.lost"))
    path.with_name(f"{path.name}.lost").write_bytes(b"")


def remove_journal_and_inventory(root: Path) -> None:
    remove_journal(root)
    (root / "data" / "inventory.json").unlink()


def make_inventory_again(root: Path) -> None:
    (root / "data" / "inventory.json").write_text('{"version":1}')


def remove_journal_and_make_inventory_again(root: Path) -> None:
    """As a start says that does not find the inventory."""
    remove_journal_and_inventory(root)
    make_inventory_again(root)


def remove(name: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        path = root / "data" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    change.__name__ = f"remove_{name}"
    return change


def flip_last_segment(root: Path) -> None:
    flip(segments_of(root)[-1], 300, 0)


def flip_fill_of_pads(root: Path) -> None:
    """Of each write's pad the last byte, in a finished segment and in the last one."""
    for segment in (segments_of(root)[0], segments_of(root)[-1]):
        for end in ends_of_pads(segment):
            flip(segment, end - 1, 0)


def flip_head_of_a_pad(root: Path) -> None:
    """Of one between two writes of the last segment."""
    segment = segments_of(root)[-1]
    with segment.open("rb") as file:
        pads = [each for each in pieces_in(file, segment.stat().st_size) if each.kind == "pad"]
    flip(segment, pads[0].position + 4, 0)


def ends_of_pads(segment: Path) -> list[int]:
    with segment.open("rb") as file:
        pieces = pieces_in(file, segment.stat().st_size)
        return [each.position + each.size_bytes for each in pieces if each.kind == "pad"]


def flip_snapshot(root: Path) -> None:
    [snapshot] = root.glob("data/metadata/*.snapshot")
    flip(snapshot, 40, 0)


def flip_durable_frame(root: Path) -> None:
    """The magic of its header and the header of its batch: nobody can say what it held."""
    for position in (4096, 4096 + 48):
        flip(newest_journal(root), position, 0)


def cut_journal_short(root: Path) -> None:
    os.truncate(newest_journal(root), 8192)


def accept_journal_that_is_cut_short(root: Path) -> None:
    cut_journal_short(root)
    path = newest_journal(root)
    path.with_name(f"{path.name}.lost").touch()


def tear_last_write(root: Path) -> None:
    with segments_of(root)[-1].open("ab") as file:
        file.write(b"torn" * 1024)


def stop_in_retention(root: Path) -> None:
    """Between the removal of a segment and that of its index."""
    first, second, *_ = segments_of(root)
    offset = int(second.stem)
    save_log_start(first.parent, LogStart(offset, offset, 1, 0), write_file_atomically)
    first.unlink()


def start_inside_of_the_last_segment(root: Path) -> None:
    """A stop came before the segments below it were removed."""
    *_, last = segments_of(root)
    offset = int(last.stem)
    start = LogStart(offset + 1, offset, 1, 0)
    save_log_start(last.parent, start, write_file_atomically)


def start_above_all_segments(root: Path) -> None:
    """As after a loss of power that took what was not flushed."""
    first, *_ = segments_of(root)
    start = LogStart(1 << 30, 0, 0, 0)
    save_log_start(first.parent, start, write_file_atomically)


def write_with_another_version(root: Path) -> None:
    """Of Tailrace, which this one does not know."""
    path = root / "data" / "meta.json"
    document = json.loads(path.read_bytes())
    path.write_text(json.dumps(document | {"version": 99}))


CHANGES = [
    nothing,
    remove_last_segment,
    remove_middle_segment,
    remove_partition,
    remove_journal,
    accept_lost_journal,
    remove_journal_and_inventory,
    make_inventory_again,
    remove_journal_and_make_inventory_again,
    remove("inventory.json"),
    remove("meta.json"),
    remove("metadata"),
    remove("metadata/1.blocks"),
    flip_last_segment,
    flip_fill_of_pads,
    flip_head_of_a_pad,
    flip_snapshot,
    flip_durable_frame,
    cut_journal_short,
    accept_journal_that_is_cut_short,
    tear_last_write,
    stop_in_retention,
    start_inside_of_the_last_segment,
    start_above_all_segments,
    write_with_another_version,
]


@pytest.mark.parametrize("image", ["stopped", "killed"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_verify_finds_damage_where_a_start_does(
    images: dict[str, Path], tmp_path: Path, image: str, change: Callable[[Path], None]
) -> None:
    work = tmp_path / "work"
    shutil.copytree(images[image], work)
    change(work)
    before = contents_of(work)
    report = check_files(work)

    assert contents_of(work) == before
    said = asyncio.run(started(work))
    assert bool(report.bad_count) == bool(said), (said, report.findings)


@pytest.mark.parametrize("has_lost_power", [True, False])
def test_after_a_loss_of_power_a_hole_in_one_of_several_copies_is_no_damage(
    images: dict[str, Path], tmp_path: Path, has_lost_power: bool
) -> None:
    """Headers behind it say what was committed, perhaps by the other copies alone."""
    work = tmp_path / "work"
    shutil.copytree(images["killed"], work)
    state = ring_state_on(work)
    owner = state.ranges[0]
    isr = (*owner.isr, Replica(1, 1))
    shared = msgspec.structs.replace(owner, replicas=(0, 1), isr=isr, leader=None)
    put_ring_state(work, msgspec.structs.replace(state, ranges={0: shared}))
    with segments_of(work)[-1].open("r+b") as file:
        file.write(bytes(4096))
    if has_lost_power:
        meta = work / "data" / "meta.json"
        meta.write_text(json.dumps(json.loads(meta.read_bytes()) | {"kernelBootId": "another"}))
    report = check_files(work)

    with capture_logs() as lines:
        assert asyncio.run(started(work)) == [], "a damaged copy is replaced"
    # The topic that was deleted is in the trash already, as only a single copy is.
    damaged = {line["topic"] for line in lines if line["event"] == "partition.damaged"} - {"gone"}
    expected = set() if has_lost_power else {"large"}
    assert ({"large"} if report.bad_count else set(), damaged) == (expected, expected)


def test_a_journal_and_the_inventory_that_are_gone_together_are_found(
    images: dict[str, Path], tmp_path: Path
) -> None:
    found = {}
    for image in images:
        for change in (remove_journal_and_inventory, remove_journal_and_make_inventory_again):
            work = tmp_path / f"{image}-{change.__name__}"
            shutil.copytree(images[image], work)
            change(work)
            found[image, change] = [finding.file.name for finding in check_files(work).findings]

    assert list(found.values()) == [["inventory.json"], [], ["inventory.json"], ["0.journal"]]


def contents_of(root: Path) -> dict[Path, tuple[bytes, int]]:
    files = [path for path in root.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


async def started(root: Path) -> list[str]:
    """What a start of the broker says of damage."""
    said: list[str] = []
    try:
        async with started_broker(root, **SETTINGS) as broker:
            said += ["damaged"] * broker.damaged_count
            said += ["quarantined"] * broker.quarantined_count
    except* TailraceError as refused:
        said += map(str, refused.exceptions)
    return said


def test_loose_copies_are_checked_without_what_a_broker_knows(
    images: dict[str, Path], tmp_path: Path
) -> None:
    first, second, *_ = segments_of(images["killed"])
    for path in (second, newest_journal(images["killed"])):
        shutil.copy(path, tmp_path)
    whole = check_brokers(tmp_path)
    flip(tmp_path / second.name, 300, 0)

    assert first.name != second.name
    assert [(each.file_count, each.findings) for each in whole] == [(2, [])]
    [report] = check_brokers(tmp_path)
    assert [finding.position for finding in report.findings] == [0]


def test_a_part_of_a_broker_is_checked_by_what_all_of_it_says(images: dict[str, Path]) -> None:
    root = images["killed"]
    partition = segments_of(root)[0].parent
    parts: list[list[Report]] = [
        check_brokers(each) for each in (root, partition, partition.parent, root / "data")
    ]

    assert [[report.directory for report in reports] for reports in parts] == [
        [root],
        [partition],
        [partition.parent],
        [root / "data"],
    ]
    assert all(not report.findings for reports in parts for report in reports)
