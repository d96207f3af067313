"""`tailrace consume --group`, `tailrace group`, `tailrace bench`, and topics' --dry-run."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.cli.consuming import deliveries
from tailrace.cli.consuming.deliveries import Deliveries
from tailrace.cli.verbs.bench import NAMES
from tailrace.consumer import Consumer
from tailrace.errors import GroupKindError, GroupNotFoundError
from tailrace.protocol.group_values import GroupConsumer
from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.cli.commands import (
    TIMEOUT_S,
    assert_fails,
    environment,
    ndjson,
    reported,
    run,
    started,
    values_of,
)

pytestmark = pytest.mark.integration

MEBIBYTE = 1 << 20
EPOCH_START = "1970-01-01T00:00Z"


@pytest.fixture
def topic(tmp_path: Path) -> str:
    """A name of this test alone, for its group too."""
    return tmp_path.name


@pytest.fixture
def ten(shared_broker: RunningBroker, topic: str) -> str:
    """A topic of one partition with ten events."""
    with Client(shared_broker.url) as client:
        client.create_topic(topic, partitions_per_range=1)
        client.produce_lines(topic, ndjson(range(10)))
    return topic


def read(broker: RunningBroker, topic: str, *options: str) -> list[object]:
    """The values that the group of the topic's name prints."""
    return values_of(run("consume", topic, "--group", topic, *options, url=broker.url))


def position(broker: RunningBroker, topic: str, group: str | None = None) -> int:
    """Of that group in a topic of one partition."""
    with Client(broker.url) as client:
        [partition] = client.group(group or topic).partitions
    return partition.position


def consumer_count(broker: RunningBroker, group: str) -> int:
    with Client(broker.url) as client:
        return len(consumers(client, group))


def consumers(client: Client, group: str) -> tuple[GroupConsumer, ...]:
    """None while the group does not exist."""
    try:
        return client.group(group).consumers
    except GroupNotFoundError:
        return ()


def lines(process: "subprocess.Popen[bytes]") -> Iterator[object]:
    """The values that it prints, as they come."""
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)["value"]


def ended(process: "subprocess.Popen[bytes]") -> tuple[int, str]:
    """Exit status and what was reported on stderr."""
    _, errors = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, errors.decode()


# --- consume --group ------------------------------------------------------------------------------


def test_a_group_reads_on_where_it_was_and_no_record_more_than_was_wanted(
    shared_broker: RunningBroker, ten: str
) -> None:
    assert read(shared_broker, ten, "--max", "3") == [0, 1, 2]
    assert position(shared_broker, ten) == 3
    assert read(shared_broker, ten, "--max", "4") == [3, 4, 5, 6]
    assert read(shared_broker, ten) == [7, 8, 9]
    assert read(shared_broker, ten) == []
    assert consumer_count(shared_broker, ten) == 0


def test_more_than_a_page_is_read_in_order(shared_broker: RunningBroker, topic: str) -> None:
    with Client(shared_broker.url) as client:
        client.create_topic(topic, partitions_per_range=1)
        client.produce_lines(topic, ndjson(range(2_500)))

    assert read(shared_broker, topic, "--max", "2400") == list(range(2_400))
    assert read(shared_broker, topic) == list(range(2_400, 2_500))


def test_records_name_their_topic_and_a_table_can_be_had(
    shared_broker: RunningBroker, ten: str
) -> None:
    group = ("--group", ten, "--max", "1")
    line = reported(run("consume", ten, *group, url=shared_broker.url))
    table = reported(run("consume", ten, *group, "-o", "table", url=shared_broker.url))

    assert json.loads(line)["topic"] == ten
    assert [row.split()[:2] for row in table.splitlines()] == [["PARTITION", "OFFSET"], ["0", "1"]]


def test_a_new_group_can_start_at_the_end(shared_broker: RunningBroker, ten: str) -> None:
    assert read(shared_broker, ten, "--from", "latest") == []
    with Client(shared_broker.url) as client:
        client.produce(ten, b"10")

    assert read(shared_broker, ten, "--from", "latest") == [10]


def test_a_topic_that_does_not_exist_is_not_created(
    shared_broker: RunningBroker, topic: str
) -> None:
    result = run("consume", topic, "--group", topic, "-f", url=shared_broker.url)

    assert_fails(result, 1, f'topic "{topic}" does not exist')
    with Client(shared_broker.url) as client:
        assert topic not in [each.name for each in client.topics()]


def test_following_prints_what_comes_and_ctrl_c_confirms_it(
    shared_broker: RunningBroker, ten: str
) -> None:
    command = ("consume", ten, "--group", ten, "--consumer", "c1", "-f")
    with started(*command, url=shared_broker.url) as process, Client(shared_broker.url) as client:
        values = lines(process)
        assert [next(values) for _ in range(10)] == list(range(10))
        client.produce(ten, b"10")
        assert next(values) == 10
        assert [consumer.consumer_id for consumer in client.group(ten).consumers] == ["c1"]
        process.send_signal(signal.SIGINT)

        assert ended(process) == (130, "")
    assert position(shared_broker, ten) == 11
    assert consumer_count(shared_broker, ten) == 0


def test_following_ends_after_the_wanted_count(shared_broker: RunningBroker, ten: str) -> None:
    command = ("consume", ten, "--group", ten, "-f", "--max", "12")
    with started(*command, url=shared_broker.url) as process, Client(shared_broker.url) as client:
        values = lines(process)
        assert [next(values) for _ in range(10)] == list(range(10))
        client.produce_lines(ten, b"10\n11\n12\n")

        assert list(values) == [10, 11]
        assert ended(process) == (0, "")
    assert position(shared_broker, ten) == 12


def test_what_could_not_be_printed_comes_again(shared_broker: RunningBroker, ten: str) -> None:
    result = subprocess.run(
        ["bash", "-c", f"tailrace consume {ten} --group {ten} >/dev/full"],
        env=environment(shared_broker.url),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )

    assert_fails(result, 1, "No space left on device")
    assert position(shared_broker, ten) == 0
    assert consumer_count(shared_broker, ten) == 0
    assert read(shared_broker, ten) == list(range(10))


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_ctrl_c_takes_effect_behind_the_page_that_is_printed(
    monkeypatch: pytest.MonkeyPatch, shared_broker: RunningBroker, topic: str, unbuffered: str
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    wide = "x" * 2_000  # a page is more than a pipe holds
    with Client(shared_broker.url) as client:
        client.create_topic(topic, partitions_per_range=1)
        client.produce_lines(topic, ndjson([wide] * 1_000))
        client.produce_lines(topic, b"1")
    with started("consume", topic, "--group", topic, url=shared_broker.url) as process:
        assert process.stdout is not None
        first = os.read(process.stdout.fileno(), 1)  # it prints
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == 130
    assert [json.loads(line)["offset"] for line in (first + rest).splitlines()] == [*range(1_000)]
    assert position(shared_broker, topic) == 1_000
    assert read(shared_broker, topic) == [1]


@pytest.mark.parametrize("max_records", [10, None], ids=["some", "all"])
def test_a_reader_slower_than_the_session_gets_each_record_and_the_group_moves(
    monkeypatch: pytest.MonkeyPatch,
    shared_broker: RunningBroker,
    ten: str,
    max_records: int | None,
) -> None:
    monkeypatch.setattr(deliveries, "SESSION_MS", 1_000)  # the shortest
    monkeypatch.setattr(deliveries, "SLICE_BYTES", 400)  # of which ten have three
    with Client(shared_broker.url) as client, Client(shared_broker.url) as other:
        printed = []
        with Deliveries(
            client,
            group=ten,
            topics=(ten,),
            consumer_id="slow",
            on_new_group="startFromEarliest",
            page_records=10,
            follow=False,
            note=print,
        ) as consumer:
            for slice_ in consumer.slices(max_records):
                printed.append([json.loads(line)["value"] for line in slice_.splitlines()])
                while consumers(other, ten):
                    pass

    assert len(printed) > 1
    assert [value for values in printed for value in values] == list(range(10))
    assert position(shared_broker, ten) == 10


def test_a_consumer_that_gets_no_partition_is_reported_why(
    shared_broker: RunningBroker, ten: str
) -> None:
    command = ("consume", ten, "--group", ten, "-f")
    with started(*command, url=shared_broker.url) as process:
        assert next(lines(process)) == 0  # it has the one partition
        result = run("consume", ten, "--group", ten, url=shared_broker.url)

        assert reported(result) == ""
        assert result.stderr.decode() == (
            f'note: other consumers of group "{ten}" have all partitions\n'
        )


def test_consumers_share_a_topic_and_one_that_ends_hands_over(
    shared_broker: RunningBroker, topic: str
) -> None:
    url = shared_broker.url
    command = ("consume", topic, "--group", topic, "-f")
    with Client(url) as client:
        client.create_topic(topic)

        def produce(numbers: range) -> None:
            """And wait until all is read and confirmed."""
            for number in numbers:
                client.produce(topic, b"%d" % number, key=f"k{number}")
            while client.group(topic).info.lag:
                pass

        with started(*command, url=url) as first, started(*command, url=url) as second:
            while [len(consumer.partitions) for consumer in consumers(client, topic)] != [2, 2]:
                pass
            produce(range(40))
            first.send_signal(signal.SIGINT)
            printed_by_first = first.communicate(timeout=TIMEOUT_S)[0].splitlines()
            produce(range(40, 80))
            second.send_signal(signal.SIGINT)
            printed_by_second = second.communicate(timeout=TIMEOUT_S)[0].splitlines()

    assert printed_by_first
    assert len(printed_by_second) > 40
    values = [json.loads(line)["value"] for line in printed_by_first + printed_by_second]
    assert sorted(values) == list(range(80))


def test_a_restart_of_the_broker_loses_nothing(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        with Client(broker.url) as client:
            client.create_topic("t", partitions_per_range=1)
            client.produce_lines("t", ndjson(range(5)))
        with started("consume", "t", "--group", "g", "-f", url=broker.url) as process:
            values = lines(process)
            assert [next(values) for _ in range(5)] == list(range(5))
            broker.restart()
            with Client(broker.url) as client:
                client.produce_lines("t", ndjson(range(5, 8)))
            found = []
            while 7 not in found:  # those that were printed and not confirmed come again
                found.append(next(values))
            process.send_signal(signal.SIGINT)
            exit_code, notes = ended(process)

        assert exit_code == 130
        assert found[-3:] == [5, 6, 7]
        assert re.fullmatch("(note: .*; trying again\nnote: the broker answers again\n)*", notes)
        assert position(broker, "t", "g") == 8


# --- group ----------------------------------------------------------------------------------------


def test_groups_are_listed_with_their_lag(shared_broker: RunningBroker, ten: str) -> None:
    read(shared_broker, ten, "--max", "4")
    table = reported(run("group", "list", url=shared_broker.url)).splitlines()
    documents = json.loads(reported(run("group", "list", "-o", "json", url=shared_broker.url)))
    [document] = [each for each in documents if each["group"] == ten]
    [row] = [line for line in table if line.startswith(f"{ten} ")]

    assert re.split(r"  +", table[0]) == [
        "GROUP",
        "MEMBERS",
        "TOPICS",
        "LAG",
        "LOST",
        "STATE",
        "OLDEST UNREAD",
    ]
    assert re.fullmatch(rf"{ten} +0 +{ten} +6 +0 +idle +\d+[sm]", row)
    assert (document["lag"], document["topics"], document["members"]) == (6, [ten], 0)


def test_a_group_that_lost_records_to_retention_shows_them_before_it_reads_again(
    tmp_path: Path,
) -> None:
    with start_broker(tmp_path, segment_bytes=MEBIBYTE) as broker, Client(broker.url) as client:
        client.create_topic("t", partitions_per_range=1, retention_bytes=MEBIBYTE)
        client.produce_lines("t", b"0\n")
        assert read(broker, "t") == [0]
        while (client.topic("t").partition_details[0].log_start or 0) < 3:
            client.produce_lines("t", b'"%s"\n' % os.urandom(MEBIBYTE // 2).hex().encode())
        row = reported(run("group", "list", url=broker.url)).splitlines()[1].split()
        table = reported(run("group", "describe", "t", url=broker.url)).splitlines()
        document = json.loads(reported(run("group", "describe", "t", "-o", "json", url=broker.url)))
        checked = run("doctor", url=broker.url).stdout.decode()
        read(broker, "t")
        [caught_up] = client.groups()

    [partition] = document["partitions"]
    titles = re.split(r"  +", table[1])
    assert partition["position"] == 1
    assert partition["lost"] == partition["logStart"] - 1 == document["lost"] >= 2
    # Retention may have removed more between two commands.
    assert 2 <= int(row[4]) <= document["lost"] <= caught_up.lost
    assert re.search(r" lost \d+$", table[0])
    assert 2 <= int(table[2].split()[titles.index("LOST")]) <= document["lost"]
    assert re.search(
        r"! retention +1 group lost \d+ records to retention or damage: t: keep", checked
    )
    assert caught_up.lag == 0


def test_a_group_whose_reader_publishes_its_offsets_has_no_members(
    shared_broker: RunningBroker, ten: str
) -> None:
    with Client(shared_broker.url) as client:
        client.publish_offsets(f"spark:{ten}", "spark", {ten: {0: 10}})
    table = reported(run("group", "list", url=shared_broker.url)).splitlines()
    [row] = [line for line in table if line.startswith(f"spark:{ten} ")]

    assert row.split() == [f"spark:{ten}", "-", ten, "0", "0", "spark", "-"]


def test_a_group_of_spark_is_neither_read_nor_reset(shared_broker: RunningBroker, ten: str) -> None:
    group = f"spark:{ten}"
    with Client(shared_broker.url) as client:
        client.publish_offsets(group, "spark", {ten: {0: 4}})
        for words in (
            ("consume", ten, "--group", group),
            ("group", "reset", group, "--to", "earliest"),
            ("group", "reset", group, "--to", "earliest", "--dry-run"),
        ):
            refused = run(*words, url=shared_broker.url)
            assert (refused.returncode, refused.stdout) == (1, b"")
            assert b"its offsets are in Spark's checkpoint" in refused.stderr
            assert b"a new checkpointLocation and startingOffsets" in refused.stderr
        with pytest.raises(GroupKindError), Consumer(client, group, ten) as consumer:
            next(iter(consumer))
        assert client.group(group).info.lag == 6


def test_a_group_is_described_by_consumer_and_partition(
    shared_broker: RunningBroker, ten: str
) -> None:
    with Client(shared_broker.url) as client:
        client.register("c1", ten, [ten], on_new_group="startFromEarliest")
        text = reported(run("group", "describe", ten, url=shared_broker.url))
        document = json.loads(
            reported(run("group", "describe", ten, "-o", "json", url=shared_broker.url))
        )
        client.goodbye("c1")
    headline, _, consumer, titles, partition = text.splitlines()

    assert headline.startswith(f"GROUP {ten}   active   assignment epoch ")
    assert re.fullmatch(rf"c1 +{ten} +1 +[\d.]+s ago +120s", consumer)
    assert titles.split()[:6] == ["TOPIC", "PARTITION", "POSITION", "STORED", "START", "END"]
    assert re.fullmatch(rf"{ten} +0 +0 +0 +0 +10 +10 +0 +open +\d+[sm] +c1", partition)
    assert document["consumers"][0]["partitions"] == [{"topic": ten, "partition": 0}]
    assert document["partitions"][0]["lag"] == 10


@pytest.mark.parametrize(
    ("options", "moved", "after"),
    [
        (["--to", "earliest"], "1 partition back by 4 events", 0),
        (["--to", "latest"], "1 partition forward by 6 events", 10),
        (["--to", EPOCH_START], "1 partition back by 4 events", 0),
        (["--to-offsets", "{}:0=3"], "1 partition back by 1 event", 3),
        (["--to", "latest", "--topic", "{}"], "1 partition forward by 6 events", 10),
    ],
    ids=["earliest", "latest", "time", "offsets", "topic"],
)
def test_a_reset_reports_what_it_does_and_a_dry_run_does_not_do_it(
    shared_broker: RunningBroker, ten: str, options: list[str], moved: str, after: int
) -> None:
    read(shared_broker, ten, "--max", "4")
    command = ["group", "reset", ten, *(option.format(ten) for option in options)]

    dry = reported(run(*command, "--dry-run", url=shared_broker.url))
    assert dry == f"would move {moved}; group is idle: yes\n"
    assert position(shared_broker, ten) == 4
    assert reported(run(*command, url=shared_broker.url)) == f"✓ {ten}: moved {moved}\n"
    assert position(shared_broker, ten) == after
    again = reported(run(*command, "-o", "json", url=shared_broker.url))
    assert json.loads(again)["partitions"] == [
        {"topic": ten, "partition": 0, "from": after, "to": after}
    ]
    assert reported(run(*command, url=shared_broker.url)) == f"✓ {ten}: is there already\n"


def test_a_group_with_consumers_is_neither_moved_nor_deleted(
    shared_broker: RunningBroker, ten: str
) -> None:
    url = shared_broker.url
    with Client(url) as client:
        client.register("c2", ten, [ten])
        reset = run("group", "reset", ten, "--to", "earliest", url=url)
        dry_reset = reported(run("group", "reset", ten, "--to", "earliest", "--dry-run", url=url))
        delete = run("group", "delete", ten, url=url)
        dry_delete = reported(run("group", "delete", ten, "--dry-run", url=url))
        client.goodbye("c2")

    assert_fails(reset, 1, "has consumers: 1. Stop")
    assert_fails(delete, 1, "has consumers: 1. Stop")
    assert dry_reset == (
        "would move 1 partition back by 10 events; group is idle: no, stop its consumers first\n"
    )
    assert dry_delete == (
        "would forget its position in 1 partition; group is idle: no, stop its consumers first\n"
    )


def test_a_deleted_group_starts_again(shared_broker: RunningBroker, ten: str) -> None:
    read(shared_broker, ten, "--max", "4")
    dry = reported(run("group", "delete", ten, "--dry-run", "-o", "json", url=shared_broker.url))
    assert json.loads(dry)["deleted"] is False
    assert position(shared_broker, ten) == 4

    assert reported(run("group", "delete", ten, url=shared_broker.url)) == f"✓ {ten}: deleted\n"
    assert read(shared_broker, ten, "--max", "1") == [0]


@pytest.mark.parametrize("verb", ["describe", "reset", "delete"])
def test_a_group_that_does_not_exist_is_reported_with_the_remedy(
    shared_broker: RunningBroker, verb: str
) -> None:
    options = ["--to", "latest"] if verb == "reset" else []
    result = run("group", verb, "nosuch", *options, url=shared_broker.url)

    assert_fails(result, 1, 'group "nosuch" does not exist. Those that do: tailrace group list')


def test_offsets_that_are_not_there_are_refused(shared_broker: RunningBroker, ten: str) -> None:
    read(shared_broker, ten, "--max", "4")
    command = ("group", "reset", ten, "--to-offsets", f"{ten}:0=11")

    assert_fails(run(*command, url=shared_broker.url), 1, r"offset 11 of partition 0 .* \[0, 10\]")
    assert position(shared_broker, ten) == 4


# --- bench ----------------------------------------------------------------------------------------


def test_bench_measures_and_leaves_nothing(shared_broker: RunningBroker) -> None:
    result = run("bench", "--seconds", "1", "-o", "json", url=shared_broker.url)
    document = json.loads(reported(result))
    phases = {phase["phase"]: phase for phase in document["phases"]}
    with Client(shared_broker.url) as client:
        names = [each.name for each in client.topics()] + [group.group for group in client.groups()]

    assert list(phases) == list(NAMES)
    assert all(phase["events"] > 0 and phase["eventsPerSecond"] > 0 for phase in phases.values())
    assert all(phases[name]["p50Ms"] <= phases[name]["p99Ms"] for name in list(NAMES)[:3])
    assert document["isBrokerOnThisMachine"]
    assert not any(name.startswith("bench-") for name in names)


def test_bench_produces_so_many_events_and_reads_each(
    shared_broker: RunningBroker, topic: str
) -> None:
    options = ("--events", "1000", "--size", "1Ki", "--durability", "written", "--seconds", "60")
    table = reported(run("bench", topic, *options, "--connections", "2", url=shared_broker.url))
    rows = [re.split(r"  +", line) for line in table.splitlines()[2:7]]

    assert table.startswith(f"BENCH {topic}   events of 1.0 KiB   2 connections   durability ")
    assert [row[:2] for row in rows] == [
        ["produce", "1,000"],
        ["produce, one event a request", "1,000"],
        ["produce to receive, one event", "1,000"],
        ["read by a group", "1,000"],
        ["read partition by partition", "2,000"],
    ]
    assert "note: client and broker share this machine" in table
    with Client(shared_broker.url) as client:
        assert topic not in [each.name for each in client.topics()]


def test_bench_does_not_touch_a_topic_of_others(shared_broker: RunningBroker, ten: str) -> None:
    assert_fails(run("bench", ten, url=shared_broker.url), 1, "exists, and bench deletes the topic")
    assert values_of(run("consume", ten, url=shared_broker.url)) == list(range(10))


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_bench_leaves_nothing(
    shared_broker: RunningBroker, topic: str, number: signal.Signals, exit_code: int
) -> None:
    with (
        Client(shared_broker.url) as client,
        started("bench", topic, "--seconds", "600", url=shared_broker.url) as process,
    ):
        while topic not in [group.group for group in client.groups()]:
            assert process.poll() is None
        process.send_signal(number)

        assert ended(process) == (exit_code, "")
        assert topic not in [each.name for each in client.topics()]
        assert topic not in [group.group for group in client.groups()]


# --- dry runs of topics ---------------------------------------------------------------------------


def test_creating_can_be_tried(shared_broker: RunningBroker, topic: str) -> None:
    command = ("topic", "create", topic, "--retention", "36h", "--linger-size", "2Mi", "--dry-run")
    url = shared_broker.url

    assert reported(run(*command, url=url)) == (
        f"would create {topic}: retention 36h, linger-size 2Mi\n"
    )
    with Client(url) as client:
        assert topic not in [each.name for each in client.topics()]
        client.create_topic(topic, retention_ms=36 * 3_600_000)
        assert_fails(run(*command, url=url), 1, f'"{topic}" exists with linger-size 0. Change it')
        client.alter_topic(topic, linger_bytes=2 * 1024 * 1024)
    assert "would create nothing" in reported(run(*command, url=url))
    assert_fails(run("topic", "create", "__a", "--dry-run", url=url), 1, "cannot be a topic's name")


def test_altering_can_be_tried(shared_broker: RunningBroker, ten: str) -> None:
    alter = ("topic", "alter", ten, "--dry-run")
    changing = run(*alter, "--retention", "none", "--no-json-check", url=shared_broker.url)
    same = run(*alter, "--compression", "lz4", "-o", "json", url=shared_broker.url)
    nosuch = run("topic", "alter", "nosuch", "--json-check", "--dry-run", url=shared_broker.url)

    assert reported(changing) == "would change retention 7d to none, json-check yes to no\n"
    assert json.loads(reported(same)) == {"name": ten, "dryRun": True, "changes": {}}
    assert_fails(nosuch, 1, 'topic "nosuch" does not exist')
    with Client(shared_broker.url) as client:
        assert client.topic(ten).topic.json_check


def test_deleting_can_be_tried(shared_broker: RunningBroker, ten: str) -> None:
    read(shared_broker, ten, "--max", "1")
    dry = reported(run("topic", "delete", ten, "--dry-run", url=shared_broker.url))

    assert re.fullmatch(
        rf"would delete {ten}: 1 partition, 10 records, [\d.,]+ \w+; read by {ten}\n", dry
    )
    assert values_of(run("consume", ten, url=shared_broker.url)) == list(range(10))


def test_restoring_can_be_tried(shared_broker: RunningBroker, ten: str) -> None:
    url = shared_broker.url
    restore = ("topic", "restore", ten, "--dry-run")
    assert_fails(run(*restore, url=url), 1, "no deleted topic .* tailrace topic list --deleted")
    with Client(url) as client:
        client.delete_topic(ten)
        would = reported(run(*restore, url=url))
        assert re.match(f"would restore {ten}: 1 partition, .*, deleted ", would)
        client.create_topic(ten)
        assert_fails(run(*restore, url=url), 1, f'topic "{ten}" exists: .*--as')
        renamed = reported(run(*restore, "--as", f"{ten}-2", "-o", "json", url=url))
        client.delete_topic(ten)
        assert_fails(run(*restore, url=url), 1, "2 deleted topics had the name .*: give the id")

    assert json.loads(renamed)["name"] == f"{ten}-2"
