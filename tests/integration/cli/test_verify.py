"""`tailrace verify` on the files of real brokers, stopped and running; `dump` of their journal."""

import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tailrace.extras import install_command
from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.cli.commands import assert_fails, ndjson, reported, run, run_bare

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a broker with finished segments, after a clean stop."""
    with start_broker(tmp_path_factory.mktemp("stopped"), segment_bytes=1 << 20) as broker:
        fill(broker)
        with Client(broker.url) as client:
            for _ in range(3):
                client.produce_lines("gone", ndjson(range(10)), key="k")
            client.delete_topic("gone")
        broker.stop()
    return broker.data_dir


@pytest.fixture
def copied(stopped: Path, tmp_path: Path) -> Path:
    """One of its own, to be damaged."""
    return Path(shutil.copytree(stopped, tmp_path / "copied"))


def fill(broker: RunningBroker) -> None:
    """More than a segment of one partition, then small events that the journal holds."""
    with Client(broker.url) as client:
        for number in range(12):
            noise = Random(number)
            events = ndjson([{"n": n, "noise": noise.randbytes(40).hex()} for n in range(2_000)])
            client.produce_lines("t", events, key="k")
        for number in range(5):
            client.produce("t", b"%d" % number, key="k")


def flip(path: Path, position: int) -> None:
    stored = bytearray(path.read_bytes())
    stored[position] ^= 1
    path.write_bytes(stored)


def segments_of(directory: Path) -> list[Path]:
    """The log that has finished segments."""
    largest = max(directory.glob("data/*/*/*.log"), key=lambda path: path.stat().st_size)
    return sorted(largest.parent.glob("*.log"))


def test_whole_files_are_counted(stopped: Path) -> None:
    document = json.loads(reported(run("verify", str(stopped), "-o", "json")))

    assert re.fullmatch(r"✓ \d+ files, [\d.]+ MiB, 0 bad\n", reported(run("verify", str(stopped))))
    assert len(segments_of(stopped)) >= 2
    assert document == {
        "files": document["files"],
        "bytes": document["bytes"],
        "bad": 0,
        "brokers": [
            {
                "directory": str(stopped),
                "files": document["files"],
                "bytes": document["bytes"],
                "bad": 0,
            }
        ],
        "findings": [],
    }


def test_a_part_of_a_directory_is_checked_by_what_all_of_it_reports(copied: Path) -> None:
    folder = segments_of(copied)[0].parent

    assert reported(run("verify", str(folder))).startswith("✓")
    for segment in segments_of(copied)[1:]:
        segment.unlink()
    result = run("verify", str(folder))
    shutil.rmtree(folder)
    gone = run("verify", str(copied))

    assert (result.returncode, gone.returncode) == (1, 1)
    assert "to 24004 were acknowledged and are missing" in result.stdout.decode()
    assert (
        f"✗ {folder}: has lost its segments: offsets from 0 to 24004 were acknowledged and are "
        "missing"
    ) in gone.stdout.decode()


def test_the_first_bad_byte_of_each_damage_is_reported(copied: Path) -> None:
    first, *_ = segments_of(copied)
    [batch, *_] = json.loads(reported(run("dump", str(first), "-o", "json")))
    flip(first, 300)
    flip(first.with_suffix(".idx"), 40)

    result = run("verify", str(copied))
    document = json.loads(run("verify", str(copied), "-o", "json").stdout)

    assert result.returncode == 1
    lines = result.stdout.decode().splitlines()
    assert lines[0] == f"✗ {first}, byte 0: offsets 0 to {batch['lastOffset']} cannot be read"
    assert lines[1] == (
        f"✗ {first.with_suffix('.idx')}, byte 0: index file: checksum does not match: a broker "
        "writes it again at its next start"
    )
    assert re.fullmatch(r"✗ \d+ files, [\d.]+ MiB, 2 bad", lines[2])
    assert document["bad"] == 2
    assert document["findings"][0] == {
        "file": str(first),
        "byte": 0,
        "finding": lines[0].partition(": ")[2],
        "bad": True,
    }


def test_what_lies_in_the_trash_is_checked_too(copied: Path) -> None:
    (segment,) = copied.glob("data/trash/*/*/*.log")
    flip(segment, 200)

    assert f"✗ {segment}, byte 0" in run("verify", str(copied)).stdout.decode()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda text: text.replace("{", "[", 1), "topic.json cannot be read: Expected `object`"),
        (lambda text: text.replace("topicId", "topicIx"), "missing required field `topicId`"),
    ],
)
def test_what_a_deleted_topic_was_is_checked(
    copied: Path, change: Callable[[str], str], text: str
) -> None:
    (file,) = copied.glob("data/trash/*/topic.json")
    file.write_text(change(file.read_text()))

    result = run("verify", str(copied))

    assert result.returncode == 1
    [line] = [line for line in result.stdout.decode().splitlines() if str(file) in line]
    assert re.search(text, line), line


def test_damage_to_what_the_ring_committed_is_reported(copied: Path) -> None:
    (snapshot,) = copied.glob("data/metadata/*.snapshot")
    flip(snapshot, 40)

    assert f"✗ {snapshot}, byte 0" in run("verify", str(copied)).stdout.decode()


@pytest.mark.parametrize("name", ["meta.json", "clean-stop.json"])
def test_each_file_of_metadata_is_looked_at(copied: Path, name: str) -> None:
    (copied / "data" / name).write_bytes(b"\xff{}")

    assert f"{name}, byte 0: {name} cannot be read: " in run("verify", str(copied)).stdout.decode()


def test_without_the_broker_what_is_to_be_installed_is_said(copied: Path) -> None:
    command = re.escape(install_command("broker"))
    for verb in ("verify", "dump"):
        directory = copied if verb == "verify" else segments_of(copied)[0]
        assert_fails(run_bare(verb, str(directory)), 1, f"is not installed .*: {command}")


def test_a_directory_without_files_of_a_broker_is_reported(tmp_path: Path) -> None:
    assert_fails(run("verify", str(tmp_path)), 1, "has no files of a broker: name its data dir")
    assert_fails(run("verify", str(tmp_path / "no")), 1, "no: No such file or directory")


# --- beside a running broker, and behind a killed one ---------------------------------------------


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningBroker]:
    with start_broker(tmp_path, segment_bytes=1 << 20) as broker:
        fill(broker)
        yield broker


def test_beside_a_busy_broker_nothing_is_found_that_is_none(running: RunningBroker) -> None:
    stop = threading.Event()

    def produce() -> None:
        while not stop.is_set():
            fill(running)

    producers = [threading.Thread(target=produce) for _ in range(2)]
    for producer in producers:
        producer.start()
    try:
        results = [run("verify", str(running.data_dir)) for _ in range(8)]
    finally:
        stop.set()
        for producer in producers:
            producer.join()

    assert [(result.returncode, result.stderr) for result in results] == [(0, b"")] * 8
    assert all(result.stdout.endswith(b", 0 bad\n") for result in results)


def test_beside_a_running_broker_damage_is_reported(running: RunningBroker) -> None:
    first, *_ = segments_of(running.data_dir)
    flip(first, 300)

    result = run("verify", str(running.data_dir))

    assert result.returncode == 1
    assert f"✗ {first}, byte 0: offsets 0 to " in result.stdout.decode()


def test_what_a_killed_broker_left_of_a_write_is_reported_and_is_no_damage(
    running: RunningBroker,
) -> None:
    running.kill()
    *_, last = segments_of(running.data_dir)
    entries = json.loads(run("dump", str(last), "-o", "json").stdout)
    end = next((entry["position"] for entry in entries if entry["kind"] == "zeros"), None)
    with last.open("r+b") as file:
        file.seek(last.stat().st_size if end is None else end)
        file.write(b"torn" * 1024)

    result = run("verify", str(running.data_dir))

    assert result.returncode == 0
    note, summary = result.stdout.decode().splitlines()
    assert note.startswith(f"! {last}, byte ")
    assert "the next start" in note
    assert summary.startswith("✓")


def test_a_journal_is_dumped(running: RunningBroker) -> None:
    running.kill()
    [journal] = [
        path
        for path in (running.data_dir / "data" / "journal").glob("*.journal")
        if path.stat().st_size
    ]
    documents: list[dict[str, Any]] = json.loads(reported(run("dump", str(journal), "-o", "json")))
    titles, first, second, *_ = reported(run("dump", str(journal))).splitlines()

    assert titles.split()[:4] == ["POSITION", "KIND", "SEQUENCE", "DURABLE"]
    assert first.split()[:3] == ["4096", "frame", "1"]
    assert second.split()[1] == "batch"
    assert {document["checksum"] for document in documents} == {"ok"}
    assert max(document.get("lastOffset", 0) for document in documents) == 24_004

    flip(journal, documents[1]["position"] + 150)
    damaged = run("dump", str(journal))
    assert damaged.returncode == 1
    assert b"is damaged from byte 4096 on" in damaged.stderr
    flip(journal, 20)
    assert_fails(run("dump", str(journal)), 1, "the head of the journal file is damaged")
