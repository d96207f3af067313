"""The verbs that manage topics and the ring, and the forms of what verbs show."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from random import Random

import pytest

from tailrace import __version__
from tailrace.cli.checking import group_checks
from tailrace.cli.checking.check import WARNING
from tailrace.cli.checking.checks import broker_checks
from tailrace.sync import Client
from tailrace.wire import HEADER_BYTES
from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.cli.commands import (
    TIMEOUT_S,
    assert_fails,
    environment,
    ndjson,
    reported,
    run,
    run_bare,
)
from tests.support.storage.batches import forged_batch

pytestmark = pytest.mark.integration

MEBIBYTE = 1024 * 1024
# Index files and producers' checkpoints, which are not counted.
SMALL_FILES_BYTES = 64 * 1024
INDEX = Path(__file__).parents[2] / "golden" / "formats" / "long.idx"


@pytest.fixture
def topic(tmp_path: Path) -> str:
    """A name of this test alone."""
    return tmp_path.name


def rows_of(result: subprocess.CompletedProcess[bytes]) -> list[list[str]]:
    """A table's cells, titles first."""
    return [re.split(r"  +", line) for line in reported(result).splitlines()]


# --- topics ---------------------------------------------------------------------------------------


def test_a_topic_is_described_partition_by_partition(
    shared_broker: RunningBroker, topic: str
) -> None:
    with Client(shared_broker.url) as client:
        stored = client.produce_lines(topic, ndjson(range(10)), key="k").partition
    settings, titles, *rows = rows_of(run("topic", "describe", topic, url=shared_broker.url))
    document = json.loads(
        reported(run("topic", "describe", topic, "-o", "json", url=shared_broker.url))
    )

    assert settings == [
        f"TOPIC {topic}",
        "retention 7d",
        "retention-size none",
        "durability fsync",
        "linger 0",
        "linger-size 0",
        "compression lz4",
        "json-check yes",
        "min-in-sync-replicas 2",
        "partitions-per-range 4",
    ]
    assert titles == [
        "PARTITION",
        "RANGE",
        "SLICE",
        "LEADER",
        "ISR",
        "START",
        "COMMITTED",
        "END",
        "SIZE",
        "PARENTS",
        "STATE",
    ]
    assert [row[:5] for row in rows] == [[str(n), "0", f"{n}/4", "0", "0"] for n in range(4)]
    *offsets, size, parents, state = rows[stored][5:]
    size_bytes = document["partitionDetails"][stored]["sizeBytes"]
    assert offsets == ["0", "10", "10"]
    assert (size, parents, state) == (f"{size_bytes} bytes", "-", "open")
    assert HEADER_BYTES < size_bytes < 1024  # of the batch alone: it is in the journal yet
    assert document["name"] == topic
    assert [partition_detail["partition"] for partition_detail in document["partitionDetails"]] == [
        0,
        1,
        2,
        3,
    ]
    assert document["partitionDetails"][stored]["highWatermark"] == 10


def test_a_topic_is_altered(shared_broker: RunningBroker, topic: str) -> None:
    url = shared_broker.url
    run("topic", "create", topic, url=url)
    refused = run("produce", topic, url=url, stdin=b"text\n")
    altered = run("topic", "alter", topic, "--no-json-check", url=url)
    taken = run("produce", topic, url=url, stdin=b"text\n")

    assert refused.returncode == 1
    assert reported(altered).startswith(f"✓ {topic}: retention 7d   ")
    assert "   json-check no   " in reported(altered)
    assert reported(taken).startswith("✓ 1 event")
    assert "json-check yes" in reported(run("topic", "alter", topic, "--json-check", url=url))


def test_a_topic_is_created_and_altered_with_units(
    shared_broker: RunningBroker, topic: str
) -> None:
    url = shared_broker.url
    wanted = "--retention 36h --retention-size 10Gi --durability written --flush 250ms"
    run("topic", "create", topic, *wanted.split(), "--compression", "none", url=url)
    created = json.loads(reported(run("topic", "describe", topic, "-o", "json", url=url)))
    changes = "--retention none --flush-size 1Mi --linger 5ms --linger-size 64Ki --compression zstd"
    changes += " --min-in-sync-replicas 3"
    altered = reported(run("topic", "alter", topic, *changes.split(), url=url))
    described, *_ = rows_of(run("topic", "describe", topic, url=url))
    listed = rows_of(run("topic", "list", url=url))

    assert (created["retentionMs"], created["retentionBytes"]) == (129_600_000, 10 * 2**30)
    assert (created["durability"], created["flushMs"]) == ("written", 250)
    assert created["compression"] == "none"
    assert altered == (
        f"✓ {topic}: retention none   retention-size 10Gi   durability written   flush 250ms   "
        "flush-size 1Mi   linger 5ms   linger-size 64Ki   compression zstd   json-check yes   "
        "min-in-sync-replicas 3   partitions-per-range 4\n"
    )
    assert described == [f"TOPIC {topic}", *altered.strip().partition(": ")[2].split("   ")]
    assert [topic, "4", "1", "none", "written", "zstd", "yes"] in listed


@pytest.mark.timeout(120)
def test_a_topic_gets_more_and_fewer_partitions(tmp_path: Path, topic: str) -> None:
    """On a broker of its own: other topics come to be in another range, too."""
    with start_broker(tmp_path) as broker:
        url = broker.url
        run("topic", "create", topic, url=url)
        run("topic", "create", "other", url=url)
        reported(run("produce", topic, "1", "2", "--key", "k", url=url))
        alter = ("topic", "alter", topic, "--partitions-per-range")
        planned = json.loads(reported(run(*alter, "8", "--dry-run", "-o", "json", url=url)))
        assert planned["changes"] == {"partitionsPerRange": {"from": 4, "to": 8}}
        plan = planned["reslice"]
        assert (plan["ranges"], plan["sealedPartitions"], plan["newPartitions"]) == (1, 4, 8)

        for count in ("8", "2"):
            assert f"partitions-per-range {count}\n" in reported(run(*alter, count, url=url))
            described = run("topic", "describe", topic, "-o", "json", url=url)
            states = [each["state"] for each in json.loads(reported(described))["partitionDetails"]]
            assert states.count("open") == int(count)
        reported(run("produce", topic, "3", "--key", "k", url=url))

        consumed = run("consume", topic, "--from", "earliest", "--max", "3", url=url)
        values = [json.loads(line)["value"] for line in reported(consumed).splitlines()]
        assert values == [1, 2, 3]
        _, *rows = rows_of(run("topic", "list", url=url))
        assert {row[0]: row[1] for row in rows} == {topic: "2 (12 sealed)", "other": "4 (8 sealed)"}
        again = reported(run("topic", "create", "other", url=url))
        assert again.startswith("✓ other: 4 partitions, ready in ")


def test_a_topic_is_found_again_by_what_is_given(shared_broker: RunningBroker, topic: str) -> None:
    url = shared_broker.url
    run("topic", "create", topic, "--retention", "1h", "--linger", "5ms", url=url)

    for same in ([], ["--retention", "60m"], ["--linger", "5ms", "--json-check"]):
        assert reported(run("topic", "create", topic, *same, url=url)).startswith(f"✓ {topic}: 4 ")
    other = run("topic", "create", topic, "--retention", "7d", "--no-json-check", url=url)
    assert_fails(
        other,
        1,
        rf"exists with retention 1h, json-check yes. Change it: tailrace topic alter {topic} "
        "--retention 7d --no-json-check; or choose another name",
    )


def test_other_partitions_for_a_topic_are_refused_with_what_can_be_done(
    shared_broker: RunningBroker, topic: str
) -> None:
    url = shared_broker.url
    run("topic", "create", topic, url=url)
    words = ["topic", "create", topic, "--partitions-per-range", "8"]

    other = run(*words, "--retention", "1h", url=url)
    planned = run(*words, "--dry-run", url=url)

    change = f"Change it: tailrace topic alter {topic} --partitions-per-range 8"
    assert_fails(
        other,
        1,
        "exists with partitions-per-range 4, retention 7d. Change it: tailrace topic alter "
        rf"{topic} --partitions-per-range 8 --retention 1h; or",
    )
    assert_fails(planned, 1, f"exists with partitions-per-range 4. {change}; or")


def test_a_topic_is_deleted(shared_broker: RunningBroker, topic: str) -> None:
    url = shared_broker.url
    run("topic", "create", topic, url=url)
    deleted = run("topic", "delete", topic, url=url)
    again = run("topic", "delete", topic, url=url)

    assert reported(deleted) == f"✓ {topic}: deleted\n"
    assert_fails(again, 1, f'topic "{topic}" does not exist. Those that do: tailrace topic list')
    assert topic not in reported(run("topic", "list", url=url))


def test_every_verb_that_needs_a_topic_says_which_there_are(shared_broker: RunningBroker) -> None:
    for verb in ("topic describe", "topic alter --json-check", "topic delete", "consume"):
        result = run(*verb.split(), "nosuch", url=shared_broker.url)

        assert_fails(result, 1, 'topic "nosuch" does not exist. Those that do: tailrace topic list')


# --- status and doctor ----------------------------------------------------------------------------


def test_the_disk_of_a_broker_is_what_its_own_data_takes(broker: RunningBroker) -> None:
    """Segments, journal, metadata, and what lies in the trash: as du counts them."""

    def sizes() -> tuple[int, int]:
        files = (path for path in (broker.data_dir / "data").rglob("*") if path.is_file())
        taken_bytes = sum(path.stat().st_blocks * 512 for path in files)
        (row,) = json.loads(reported(run("status", "-o", "json", url=broker.url)))["brokers"]
        return row["dataBytes"], taken_bytes

    empty = sizes()
    noise = ndjson([{"noise": Random(n).randbytes(512).hex()} for n in range(4_000)])
    run("produce", "kept", url=broker.url, stdin=noise)
    full = sizes()
    run("topic", "delete", "kept", url=broker.url)
    trashed = sizes()

    for reported_bytes, taken_bytes in (empty, full, trashed):
        assert abs(reported_bytes - taken_bytes) < SMALL_FILES_BYTES
    assert full[0] > empty[0] + MEBIBYTE
    assert trashed[0] > empty[0] + MEBIBYTE
    disk = re.split(r"  +", reported(run("status", url=broker.url)).splitlines()[2])[4]
    assert re.fullmatch(r"\d+M of \d+[GT]", disk)


def test_the_ring_is_a_line_and_each_broker_one(shared_broker: RunningBroker) -> None:
    headline, *table = reported(run("status", url=shared_broker.url)).splitlines()
    titles, broker = (re.split(r"  +", line) for line in table)

    assert headline == (
        "RING local   brokers 1/1   ranges 1   copies 1   under-replicated 0   "
        f"metadata leader 0 (term 1)   version {__version__}"
    )
    assert titles == [
        "BROKER",
        "TOKEN",
        "LEADS",
        "REPLICATES",
        "DISK",
        "LAG MAX",
        "DIRECT I/O",
        "INCARNATION",
        "UP",
    ]
    assert broker[:2] == ["0", "-9223372036854775808"]
    assert re.fullmatch(r"[\d.]+[KMGT] of [\d.]+[KMGT]", broker[4])
    assert re.fullmatch(r"[0-9a-f]{4}", broker[7])
    assert re.fullmatch(r"\d+[smh]", broker[8])


def test_a_healthy_broker_has_nothing_wrong(shared_broker: RunningBroker) -> None:
    result = run("doctor", url=shared_broker.url)
    checks = json.loads(reported(run("doctor", "-o", "json", url=shared_broker.url)))

    assert f"✓ broker         {shared_broker.url} answers\n" in reported(result)
    assert "✓ partitions     none damaged\n" in reported(result)
    assert [line[2:16].strip() for line in reported(result).splitlines()] == [
        check["name"] for check in checks
    ]
    assert {check["state"] for check in checks} <= {"ok", "warning"}


def test_the_doctor_warns_of_a_group_that_lags(
    monkeypatch: pytest.MonkeyPatch, broker: RunningBroker
) -> None:
    monkeypatch.setattr(group_checks, "UNREAD_S_MAX", -1.0)  # any unread record is old
    with Client(broker.url) as client:
        before = reported(run("doctor", url=broker.url))
        client.create_topic("t", partitions_per_range=1)
        client.produce_lines("t", b"1\n2\n3\n")
        client.register("c", "billing", ["t"], on_new_group="startFromEarliest")
        client.goodbye("c")
        [check] = [
            broker_check for broker_check in broker_checks(client) if broker_check.name == "groups"
        ]

    assert "✓ groups         none\n" in before
    assert check.state == WARNING
    assert re.fullmatch(
        r"1 group lags \d+s: billing \(3 events unread, no consumers\): start what reads, or .*",
        check.detail,
    )


def test_without_a_broker_the_doctor_says_so_and_checks_the_machine() -> None:
    result = run("doctor", "--url", "http://127.0.0.1:1")

    assert result.returncode == 1
    lines = result.stdout.decode().splitlines()
    assert re.match(r"✗ broker +no broker answers at http://127.0.0.1:1 .* tailrace dev", lines[0])
    assert [line[2:].split("  ")[0] for line in lines[1:]] == ["Java", "PySpark", "open files"]


def test_a_machine_without_spark_is_reported_what_it_needs() -> None:
    result = run_bare("doctor", "--url", "http://127.0.0.1:1", env={"PATH": "/nonexistent"})

    assert re.search(r"^! Java +not found: Spark needs 17 or newer; install", printed(result), re.M)
    assert re.search(
        r"^! PySpark +not installed; .* pip install -e .*\[spark\]'$", printed(result), re.M
    )


def printed(result: subprocess.CompletedProcess[bytes]) -> str:
    """What was printed, whatever it came to."""
    return result.stdout.decode()


def test_a_damaged_partition_is_wrong(broker: RunningBroker) -> None:
    with Client(broker.url) as client:
        partition = client.produce("t", b"1", key="k").partition
    broker.stop()
    (segment,) = (broker.data_dir / "data").rglob("*.log")
    segment.write_bytes(b"")
    shutil.rmtree(broker.data_dir / "data" / "journal")  # it still has them
    broker.restart()

    result = run("doctor", url=broker.url)

    assert result.returncode == 1
    assert (
        f'✗ partitions     1 damaged: partition {partition} of topic "t" (from offset 0 on): '
        "restore the files that the broker's log names, and start it again; or go on without the "
        f"records that are lost: tailrace topic accept-loss t {partition}\n"
    ) in printed(result)


# --- dump -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a partition of ten events, after a clean stop."""
    folder = tmp_path_factory.mktemp("stopped")
    with start_broker(folder) as broker:
        with Client(broker.url) as client:
            client.produce_lines("t", ndjson([{"n": n} for n in range(10)]), key="k")
        broker.stop()
        (segment,) = (broker.data_dir / "data").rglob("*.log")
    return segment.parent


def test_a_segment_is_dumped_batch_by_batch(stopped_files: Path) -> None:
    segment = str(stopped_files / "00000000000000000000.log")
    titles, batch, pad, *rest = rows_of(run("dump", segment))
    entries = json.loads(reported(run("dump", segment, "-o", "json")))

    assert titles[:6] == ["POSITION", "KIND", "OFFSETS", "COUNT", "CODEC", "BYTES"]
    assert [batch[1], batch[2], batch[3], batch[-1]] == ["batch", "0-9", "10", "ok"]
    assert pad[1] == "pad"
    assert all(row[1] == "zeros" for row in rest)
    assert (entries[0]["kind"], entries[0]["count"]) == ("batch", 10)
    assert sum(entry["bytes"] for entry in entries) == Path(segment).stat().st_size


def test_the_records_of_a_segment_are_those_that_a_broker_reads(stopped_files: Path) -> None:
    segment = str(stopped_files / "00000000000000000000.log")
    records = json.loads(reported(run("dump", segment, "--records", "-o", "json")))
    table = rows_of(run("dump", segment, "--records"))

    assert [record["value"] for record in records] == [{"n": n} for n in range(10)]
    assert {record["key"] for record in records} == {"k"}
    assert [row[1] for row in table[1:]] == [str(n) for n in range(10)]


def test_an_index_is_dumped() -> None:
    head, *table = reported(run("dump", str(INDEX))).splitlines()

    assert "endOffset" in head
    assert re.split(r"  +", table[1]) == ["0", "0", "-"]


def test_damage_is_reported_behind_all_that_was_found(stopped_files: Path, tmp_path: Path) -> None:
    contents = bytearray((stopped_files / "00000000000000000000.log").read_bytes())
    contents[140] ^= 1
    spoiled = tmp_path / "0.log"
    spoiled.write_bytes(contents)

    result = run("dump", str(spoiled))
    records = run("dump", str(spoiled), "--records")

    assert result.returncode == 1
    assert len(result.stdout.splitlines()) >= 3
    assert re.fullmatch(
        r"error: .*0\.log is damaged from byte 0 on: .* next start cuts away\n",
        result.stderr.decode(),
    )
    assert (records.returncode, records.stdout) == (1, b"")
    assert records.stderr == result.stderr


def test_records_end_where_the_damage_begins(stopped_files: Path, tmp_path: Path) -> None:
    write = (stopped_files / "00000000000000000000.log").read_bytes()[:4096]
    spoiled = tmp_path / "0.log"
    spoiled.write_bytes(write + b"x" * 40 + write[40:])
    (tmp_path / "noise.log").write_bytes(b"x" * 5_000)

    result = run("dump", str(spoiled), "--records", "-o", "json")
    noise = run("dump", str(tmp_path / "noise.log"), "--records")

    assert [record["value"] for record in json.loads(result.stdout)] == [
        {"n": n} for n in range(10)
    ]
    assert result.returncode == 1
    assert b"0.log is damaged from byte 4096 on: restore it" in result.stderr
    assert_fails(noise, 1, "noise.log is damaged from byte 0 on: restore it")


def test_a_batch_that_only_its_records_show_to_be_damaged_is_reported(tmp_path: Path) -> None:
    spoiled = tmp_path / "0.log"
    spoiled.write_bytes(forged_batch(b"no columns"))

    result = run("dump", str(spoiled), "--records")

    assert_fails(result, 1, r"0\.log: offset 0 cannot be read \(.*\): restore it")


def test_a_damaged_or_foreign_index_is_reported(tmp_path: Path) -> None:
    index = tmp_path / "0.idx"
    index.write_bytes(INDEX.read_bytes()[:-1])

    assert_fails(
        run("dump", str(index)), 1, "0.idx: index file: .* does not fit: a broker writes it again"
    )


# --- completion -----------------------------------------------------------------------------------

BASH = """
. "$1"
COMP_LINE="$2"
COMP_POINT=${#2}
_tailrace tailrace
printf '%s\\n' "${COMPREPLY[@]}"
"""


def bash_completes(script: Path, line: str, url: str) -> list[str]:
    result = subprocess.run(
        ["bash", "-c", BASH, "bash", str(script), line],
        env=environment(url),
        capture_output=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert result.stderr == b""
    return result.stdout.decode().split()


def test_bash_completes_verbs_options_and_live_topics(
    shared_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    run("topic", "create", topic, url=shared_broker.url)
    script = tmp_path / "tailrace"
    script.write_text(reported(run("completion", "bash")))

    def completed(line: str, url: str = shared_broker.url) -> list[str]:
        return bash_completes(script, line, url)

    assert completed("tailrace top") == ["topic"]
    assert completed("tailrace topic de") == ["describe", "delete"]
    assert completed(f"tailrace consume {topic[:-1]}") == [topic]
    assert completed(f"tailrace consume --url {shared_broker.url} {topic[:-1]}", "-") == [topic]
    assert completed("tailrace consume t --fol") == ["--follow"]
    assert completed("tailrace consume ", "http://127.0.0.1:1") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_one_that_its_shell_reads(shell: str, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(reported(run("completion", shell)))
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")

    result = subprocess.run([shell, "-n", str(script)], capture_output=True, timeout=TIMEOUT_S)

    assert (result.returncode, result.stderr) == (0, b"")
