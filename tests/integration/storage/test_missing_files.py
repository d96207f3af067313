"""Files of a killed broker are removed: its start and `tailrace verify` notice each of them."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random

import pytest

from tailrace.errors import ProblemError
from tailrace.sync import Client
from tailrace_broker.storage.inspection import frames_in
from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.broker.metrics import wait_for_metric
from tests.support.cli.commands import ndjson, reported, run
from tests.support.storage.damaged import flip, read_all
from tests.support.storage.storage import MEBIBYTE

# A test has up to five starts and a dozen commands, each some seconds on a busy machine.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

# They go straight to a segment, and do not become small there.
EVENTS = ndjson([{"n": n, "noise": Random(n).randbytes(50).hex()} for n in range(2_000)])


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[RunningBroker]:
    """Of topic "large" all is in segments, of "small" all is in the journal."""
    with start_broker(tmp_path) as broker:
        with Client(broker.url) as client:
            for key in ("a", "b", "c"):
                client.produce_lines("large", EVENTS, key=key)
            for number in range(5):
                client.produce("small", b"%d" % number)
        broker.kill()
        yield broker


def data_of(broker: RunningBroker) -> Path:
    return broker.data_dir / "data"


def topic_of(broker: RunningBroker) -> Path:
    """The directory of the topic that has segments."""
    (segment, *_) = sorted(data_of(broker).glob("*/*/*.log"))
    return segment.parents[1]


def verified(directory: Path) -> tuple[int, list[str]]:
    result: subprocess.CompletedProcess[bytes] = run("verify", str(directory))
    assert result.stderr == b""
    return result.returncode, result.stdout.decode().splitlines()


def refusal_of(broker: RunningBroker) -> str:
    with pytest.raises(AssertionError, match="exited with exit code 1: error: ") as ended:
        broker.restart()
    return str(ended.value)


def test_a_killed_broker_has_lost_nothing(killed: RunningBroker) -> None:
    code, lines = verified(killed.data_dir)

    assert (code, len(lines)) == (0, 1)
    killed.restart()
    with Client(killed.url) as client:
        assert len(client.last_lines("small", 9).splitlines()) == 5


def test_a_missing_journal_is_refused_and_found(killed: RunningBroker) -> None:
    journal = data_of(killed) / "journal"
    (name,) = [path.name for path in journal.iterdir()]
    shutil.rmtree(journal)

    code, lines = verified(killed.data_dir)
    assert code == 1
    assert lines[0] == (
        f"✗ {journal / name}: is missing, and the broker was not stopped: events may be lost that "
        "only this file held; restore it from a copy, or go on without them: "
        f"mkdir -p {journal} && touch {journal / name}.lost"
    )
    assert lines[1].endswith(", 1 bad")
    refusal = refusal_of(killed)
    assert f"{journal / name} is missing, and the broker was not stopped" in refusal
    assert f"mkdir -p {journal} && touch {journal / name}.lost" in refusal


@pytest.mark.parametrize("kept_bytes", [0, 4096], ids=["emptied", "first block kept"])
@pytest.mark.parametrize("is_full_of_zeros", [False, True])
def test_a_journal_without_its_frames_is_refused_as_a_missing_one_is(
    killed: RunningBroker, kept_bytes: int, is_full_of_zeros: bool
) -> None:
    """Until somebody accepts the loss."""
    (path,) = (data_of(killed) / "journal").iterdir()
    size_bytes = path.stat().st_size
    os.truncate(path, 0 if is_full_of_zeros else kept_bytes)
    if is_full_of_zeros:
        os.truncate(path, size_bytes - kept_bytes)

    code, lines = verified(killed.data_dir)
    assert code == 1
    assert lines[0].startswith(f"✗ {path}: is empty, and the broker was not stopped: events may")
    assert f"{path} is empty, and the broker was not stopped" in refusal_of(killed)
    path.with_name(f"{path.name}.lost").touch()
    assert verified(killed.data_dir)[0] == 0
    killed.restart()
    with Client(killed.url) as client:
        client.produce("small", b"5")
    killed.kill()
    assert verified(killed.data_dir)[0] == 0
    killed.restart()


def test_a_journal_that_is_cut_short_is_refused_until_somebody_accepts_the_loss(
    killed: RunningBroker,
) -> None:
    """Of five frames one is left, and what was behind it nobody can know by frames."""
    (path,) = (data_of(killed) / "journal").iterdir()
    with path.open("rb") as file:
        first, *others = frames_in(file)
    size_bytes, kept_bytes = path.stat().st_size, first.position + 4096
    assert len(others) >= 4
    os.truncate(path, kept_bytes)

    code, lines = verified(killed.data_dir)
    assert code == 1
    cut = f"is cut short to {kept_bytes:,} of {size_bytes:,} bytes"
    assert lines[0] == (
        f"✗ {path}, byte {kept_bytes}: {cut}, and may have held more events; "
        "restore the file from a copy"
    )
    refusal = refusal_of(killed)
    assert f"{path} {cut}" in refusal
    path.with_name(f"{path.name}.lost").touch()
    assert verified(killed.data_dir)[0] == 0
    for _ in range(2):
        killed.restart()
        with Client(killed.url) as client:
            client.produce("small", b"5")
        killed.kill()
        assert verified(killed.data_dir)[0] == 0


def test_the_loss_of_a_journal_is_accepted_once(killed: RunningBroker) -> None:
    journal = data_of(killed) / "journal"
    (path,) = journal.iterdir()
    path.unlink()
    path.with_name(f"{path.name}.lost").touch()

    code, lines = verified(killed.data_dir)
    assert (code, lines[0][0]) == (0, "!")
    assert "which somebody has accepted: the next start goes on without it" in lines[0]
    killed.restart()
    with Client(killed.url) as client:
        client.produce("small", b"5")
    killed.kill()
    (used,) = [each for each in journal.iterdir() if each.suffix == ".journal"]
    used.unlink()
    assert f"{used} is missing" in refusal_of(killed)


def test_of_a_damaged_journal_all_is_served_but_what_cannot_be_read(killed: RunningBroker) -> None:
    """Of three events of one partition the second is lost, by the header of its batch."""
    killed.restart()
    with Client(killed.url) as client:
        client.create_topic("t", partitions_per_range=1)
        for number in range(3):
            client.produce("t", b"%d" % number)
        client.produce("small", b"5")
    killed.kill()
    *_, path = sorted((data_of(killed) / "journal").glob("*.journal"))
    with path.open("rb") as file:
        batches = [piece for frame in frames_in(file) for piece in frame.entries if piece.header]
    flip(path, batches[-3].position + 20, 0)

    assert f"touch {path}.lost" in refusal_of(killed)
    path.with_name(f"{path.name}.lost").touch()
    for _ in range(2):
        killed.restart()
        problems, offsets = read_all(killed.port, 3, max_records=10)
        (problem,) = problems
        assert (problem["firstOffset"], problem["lastOffset"], problem["accepted"]) == (1, 1, True)
        assert offsets == [0, 2]
        with Client(killed.url) as client:
            assert client.topic("t").partition_details[0].state == "open"
            assert len(client.last_lines("small", 9).splitlines()) == 6
        killed.kill()
    assert '"journal.accepted"' in killed.log_path.read_text()
    assert any(f"{path.name}.lost." in line for line in verified(killed.data_dir)[1])


@pytest.mark.parametrize("kept", [0, 1], ids=["missing", "cut short"])
def test_readers_go_on_behind_what_an_accepted_loss_of_a_journal_has_taken(
    killed: RunningBroker, kept: int
) -> None:
    """Whoever makes the `.lost` file has accepted it: nothing of it is to be repaired later."""
    killed.restart()
    with Client(killed.url) as client:
        client.create_topic("t", partitions_per_range=1)
        for number in range(3):
            client.produce("t", b"%d" % number)
    killed.kill()
    *_, path = sorted((data_of(killed) / "journal").glob("*.journal"))
    killed.restart()
    with Client(killed.url) as client:
        for number in range(3, 5):
            client.produce("t", b"%d" % number)
    killed.kill()
    with path.open("rb") as file:
        ends = [
            frame.position + 4096
            for frame in frames_in(file)
            for piece in frame.entries
            if piece.header
        ]
    os.truncate(path, ends[-4 + kept]) if kept else path.unlink()
    path.with_name(f"{path.name}.lost").touch()

    assert verified(killed.data_dir)[0] == 0
    for new in range(5, 7):
        killed.restart()
        consumed = run("consume", "t", "--format", r"%o\n", url=killed.url)
        grouped = run("consume", "t", "--group", "g", "--format", r"%o\n", url=killed.url)
        assert list(map(int, consumed.stdout.split())) == [*range(kept), *range(3, new)]
        assert (consumed.returncode, grouped.returncode) == (0, 0), consumed.stderr
        assert b"are lost, which was accepted" in consumed.stderr
        with Client(killed.url) as client:
            assert client.group("g").info.lost == 3 - kept
            client.produce("t", b"%d" % new)
        killed.kill()
        assert verified(killed.data_dir)[0] == 0


def test_after_a_clean_stop_a_missing_journal_held_nothing(killed: RunningBroker) -> None:
    killed.restart()
    killed.stop()
    shutil.rmtree(data_of(killed) / "journal")

    code, lines = verified(killed.data_dir)
    assert (code, [line[0] for line in lines]) == (0, ["!", "✓"])
    killed.restart()
    with Client(killed.url) as client:
        assert len(client.last_lines("small", 9).splitlines()) == 5
    killed.kill()
    assert verified(killed.data_dir)[0] == 0


@pytest.mark.parametrize("whole_topic", [True, False])
def test_missing_partitions_take_no_writes_and_the_rest_is_served(
    killed: RunningBroker, whole_topic: bool
) -> None:
    topic = topic_of(killed)
    partitions = sorted(int(path.name) for path in topic.iterdir())
    lost = partitions if whole_topic else partitions[:1]
    shutil.rmtree(topic if whole_topic else topic / str(lost[0]))

    code, lines = verified(killed.data_dir)
    assert code == 1
    assert [line.partition(": offsets from 0 on")[0] for line in lines[:-1]] == [
        f"✗ {topic / str(each)}: has lost its segments" for each in lost
    ]
    killed.restart()
    with Client(killed.url) as client:
        for partition in partitions:
            if partition in lost:
                with pytest.raises(ProblemError, match="has lost its segments") as refused:
                    client.read_lines("large", partition)
                assert refused.value.type == "corrupt-partition"
            else:
                assert client.read_lines("large", partition).body
        assert len(client.last_lines("small", 9).splitlines()) == 5


@pytest.mark.parametrize(
    ("name", "finding", "refusal"),
    [
        ("meta.json", "meta.json: is missing, but the directory", "meta.json is missing"),
        ("inventory.json", "inventory.json: is missing", "inventory.json is missing"),
        ("metadata", "metadata: has lost committed metadata", "has lost committed metadata"),
        ("metadata/0.blocks", "metadata: metadata/0.blocks: it is missing", "0.blocks"),
    ],
)
def test_missing_metadata_is_refused_and_found(
    killed: RunningBroker, name: str, finding: str, refusal: str
) -> None:
    path = data_of(killed) / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()

    code, lines = verified(killed.data_dir)
    assert code == 1
    assert lines[0].startswith(f"✗ {data_of(killed) / finding}")
    assert refusal in refusal_of(killed)


def test_without_its_identity_a_broker_begins_again_when_the_data_is_moved_away(
    killed: RunningBroker,
) -> None:
    (data_of(killed) / "meta.json").unlink()

    refusal = refusal_of(killed)
    assert "restore the file from a copy" in refusal
    command = re.search(r"move the data away: (mv \S+ \S+); ", refusal)
    assert command, refusal
    subprocess.run(command[1].split(), check=True)
    killed.restart()
    with Client(killed.url) as client:
        assert client.topics() == []
        client.produce("small", b"0")
    assert (killed.data_dir / "data.lost").is_dir()


@pytest.mark.parametrize("is_segment", [True, False], ids=["a segment", "a partition"])
def test_a_partition_that_cannot_be_opened_names_itself_and_the_way_on(
    killed: RunningBroker, is_segment: bool
) -> None:
    large = topic_of(killed)  # before the stop, which writes "small" to segments, too
    killed.restart()
    killed.stop()
    segment = next(large.glob("*/*.log"))
    partition, path = int(segment.parent.name), segment if is_segment else segment.parent
    path.rename(killed.data_dir / "kept")
    path.mkdir() if is_segment else path.write_bytes(b"")

    killed.restart()
    accept_loss = ("topic", "accept-loss", "large", str(partition))
    refused = run(*accept_loss, url=killed.url)
    error = refused.stderr.decode()
    assert refused.returncode == 1
    assert f'partition {partition} of topic "large" cannot be opened: {path}: ' in error
    assert error.endswith(f": tailrace {' '.join(accept_loss)}\n")
    consumed = run("consume", "large", "--partition", str(partition), url=killed.url)
    assert f'partition {partition} of topic "large" is damaged' in consumed.stderr.decode()
    described = reported(run("topic", "describe", "large", url=killed.url))
    assert described.splitlines()[2 + partition].split()[-1] == "damaged"
    assert verified(killed.data_dir)[0] == 1

    killed.stop()  # as the error says
    path.rename(killed.data_dir.parent / "moved")
    killed.restart()
    reported(run(*accept_loss, url=killed.url))
    with Client(killed.url) as client:
        assert client.topic("large").partition_details[partition].state == "open"


def test_what_a_deletion_and_retention_have_removed_is_not_missing(tmp_path: Path) -> None:
    settings = {"delete_retention_ms": 0, "segment_bytes": MEBIBYTE}
    with start_broker(tmp_path, **settings) as broker:
        with Client(broker.url) as client:
            client.create_topic("short", retention_bytes=MEBIBYTE, partitions_per_range=1)
            for topic in ("short", "gone"):
                for _ in range(10):
                    client.produce_lines(topic, EVENTS, key="k")
            client.delete_topic("gone")
            wait_for_metric(broker, "tailrace_purged_topics_total", 1)
        broker.kill()

        assert [line[0] for line in verified(broker.data_dir)[1]] == ["✓"]
        broker.restart()
        assert [line[0] for line in verified(broker.data_dir)[1]] == ["✓"]


def test_a_missing_last_segment_is_noticed_and_its_offsets_are_not_given_again(
    tmp_path: Path,
) -> None:
    with start_broker(tmp_path, segment_bytes=MEBIBYTE) as broker:
        with Client(broker.url) as client:
            client.create_topic("rolled", partitions_per_range=1)
            for _ in range(10):
                client.produce_lines("rolled", EVENTS)
        broker.kill()
        *_, before, last = sorted(data_of(broker).glob("*/*/*.log"))
        first_lost, stored = int(last.stem), last.read_bytes()
        assert before.with_suffix(".idx").exists()
        last.unlink()
        for _ in range(2):
            code, lines = verified(broker.data_dir)
            assert code == 1
            assert lines[0].startswith(
                f"✗ {last}: is missing: it was the last segment; offsets from {first_lost} on"
            )
            broker.restart()
            with Client(broker.url) as client:
                (found,) = client.topic("rolled").partition_details
                assert (found.state, found.high_watermark) == ("damaged", first_lost)
                with pytest.raises(ProblemError, match=f"offsets from {first_lost} on are missing"):
                    client.produce("rolled", b"1")
            broker.kill()
        last.write_bytes(stored)
        broker.restart()
        with Client(broker.url) as client:
            (found,) = client.topic("rolled").partition_details
            assert (found.state, found.high_watermark) == ("open", 20_000)
        broker.kill()
        last.unlink()
        broker.restart()
        with Client(broker.url) as client:
            lost = client.accept_partition_loss("rolled", 0)
            assert lost.first_offset == first_lost
            assert client.produce("rolled", b"1").offset == lost.next_offset > 20_000
        broker.kill()
        assert verified(broker.data_dir)[0] == 0
        broker.restart()
        with Client(broker.url) as client:
            assert client.produce("rolled", b"1").offset == lost.next_offset + 1


@pytest.mark.parametrize("lost", ["partition", "segment"])
def test_a_restored_topic_that_has_lost_files_is_damaged_there(
    killed: RunningBroker, lost: str
) -> None:
    killed.restart()
    with Client(killed.url) as client:
        client.delete_topic("large")
    killed.kill()
    segment = sorted(data_of(killed).glob("trash/*/*/*.log"))[0]
    partition = segment.parent
    shutil.rmtree(partition) if lost == "partition" else segment.unlink()

    code, lines = verified(killed.data_dir)
    assert code == 1
    assert lines[0].startswith(f"✗ {partition}: has lost its segments: offsets from 0 on")
    killed.restart()
    with Client(killed.url) as client:
        client.restore_topic("large")
        details = client.topic("large").partition_details
        assert [detail.partition for detail in details if detail.state == "damaged"] == [
            int(partition.name)
        ]
        with pytest.raises(ProblemError, match="has lost its segments") as refused:
            client.read_lines("large", int(partition.name))
        assert refused.value.type == "corrupt-partition"


def test_each_broker_of_a_folder_is_verified_for_itself(
    killed: RunningBroker, tmp_path: Path
) -> None:
    """Their journals, taken for one, would lack what the other holds."""
    top = tmp_path / "ring"
    for ordinal in ("0", "1"):
        shutil.copytree(killed.data_dir, top / ordinal)
    whole = verified(top)
    (journal,) = (top / "1" / "data" / "journal").iterdir()
    journal.unlink()
    code, lines = verified(top)
    document = json.loads(run("verify", str(top), "-o", "json").stdout)

    assert whole[0] == 0
    assert [line.partition(": ")[0] for line in whole[1]] == [f"✓ {top / '0'}", f"✓ {top / '1'}"]
    assert code == 1
    assert lines[0].startswith(f"✓ {top / '0'}: ")
    assert lines[1].startswith(f"✗ {journal}: is missing")
    assert lines[2].startswith(f"✗ {top / '1'}: ")
    assert [(broker["directory"], broker["bad"]) for broker in document["brokers"]] == [
        (str(top / "0"), 0),
        (str(top / "1"), 1),
    ]
    assert document["bad"] == 1
    assert reported(run("verify", str(top / "0"))).startswith("✓ ")


@pytest.mark.parametrize("lost", ["1", "1/data"])
def test_a_ring_that_has_lost_a_broker_is_found(
    killed: RunningBroker, tmp_path: Path, lost: str
) -> None:
    top = tmp_path / "ring"
    for ordinal in ("0", "1", "2"):
        shutil.copytree(killed.data_dir, top / ordinal)
        (top / ordinal / "ring.json").write_text('{"brokers": 3}')
    (top / "ring.json").write_text('{"brokers": 3, "port": 9250}')
    whole = verified(top)
    shutil.rmtree(top / lost)
    code, lines = verified(top)
    (top / "ring.json").unlink()

    assert (whole[0], [line[0] for line in whole[1]]) == (0, ["✓"] * 3)
    assert code == 1
    assert [line.partition(", as ")[0].partition(": ")[0] for line in lines] == [
        f"✓ {top / '0'}",
        f"✗ {top / '1'}",
        f"✗ {top / '1'}",
        f"✓ {top / '2'}",
    ]
    assert f"has lost the data of a broker of the ring, as {top / 'ring.json'} says" in lines[1]
    assert verified(top)[0] == 1, "the other brokers know how many they are"
    assert verified(top / "0")[0] == 0


def test_a_partition_without_its_directory_goes_on_when_the_loss_is_accepted(
    killed: RunningBroker,
) -> None:
    topic = topic_of(killed)
    killed.restart()
    with Client(killed.url) as client:
        partition = client.produce_lines("large", b"{}", key="a").partition
    killed.kill()
    shutil.rmtree(topic / str(partition))
    killed.restart()
    accepted = reported(run("topic", "accept-loss", "large", str(partition), url=killed.url))
    begin = end = int(accepted.split()[-1])
    from_begin = ("--partition", str(partition), "--from", str(begin), "--format", r"%o\n")

    assert accepted.startswith("✓ large: gave up offsets 0 and above of ")
    for events, stop in product((b"{}", EVENTS), (killed.kill, killed.stop)):
        with Client(killed.url) as client:
            assert client.produce_lines("large", events, key="a").offset == end
            end += len(events.splitlines())
            found = client.topic("large").partition_details[partition]
            assert (found.state, found.high_watermark) == ("open", end)
        stop()
        code, lines = verified(killed.data_dir)
        assert (code, lines[-1][0]) == (0, "✓"), lines
        killed.restart()
        offsets = reported(run("consume", "large", *from_begin, url=killed.url)).split()
        assert offsets == [str(offset) for offset in range(begin, end)]
