"""`tailrace consume -f` and the other ways to say which records: as they come, and by time."""

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker
from tests.support.broker.stored import split
from tests.support.cli.commands import (
    TIMEOUT_S,
    assert_fails,
    ndjson,
    reported,
    run,
    started,
    values_of,
)

pytestmark = pytest.mark.integration


@pytest.fixture
def topic(tmp_path: Path) -> str:
    """A name of this test alone."""
    return tmp_path.name


def values_read(process: "subprocess.Popen[bytes]") -> Iterator[object]:
    """The values that it prints, as they come."""
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)["value"]


def ended(process: "subprocess.Popen[bytes]") -> tuple[int, str]:
    """Exit status and what was reported on stderr."""
    _, errors = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, errors.decode()


# --- follow ---------------------------------------------------------------------------------------


def test_records_are_printed_as_they_come_until_ctrl_c(
    shared_broker: RunningBroker, topic: str
) -> None:
    with Client(shared_broker.url) as client:
        client.create_topic(topic)
        with started("consume", topic, "-f", url=shared_broker.url) as process:
            values = values_read(process)
            for n in range(20):  # keyless: to all partitions in turn
                client.produce(topic, b"%d" % n)
                assert next(values) == n
            process.send_signal(signal.SIGINT)

            assert ended(process) == (130, "")


def test_what_is_stored_comes_before_what_is_followed(
    shared_broker: RunningBroker, topic: str
) -> None:
    with Client(shared_broker.url) as client:
        client.produce_lines(topic, ndjson(range(3_000)), key="k")
        with started("consume", topic, "--from", "-2500", "-f", url=shared_broker.url) as process:
            values = values_read(process)
            stored = [next(values) for _ in range(2_500)]
            client.produce_lines(topic, ndjson(range(3_000, 6_000)), key="k")
            followed = [next(values) for _ in range(3_000)]

    assert stored + followed == list(range(500, 6_000))


def test_the_last_records_come_before_what_is_followed(
    shared_broker: RunningBroker, topic: str
) -> None:
    with Client(shared_broker.url) as client:
        for n in range(8):
            client.produce(topic, b"%d" % n)
        with started("consume", topic, "--last", "3", "-f", url=shared_broker.url) as process:
            values = values_read(process)
            last = [next(values) for _ in range(3)]
            client.produce(topic, b"8")

            assert [*last, next(values)] == [5, 6, 7, 8]


def test_following_ends_after_the_wanted_count(shared_broker: RunningBroker, topic: str) -> None:
    with Client(shared_broker.url) as client:
        client.produce_lines(topic, b"1\n2\n", key="k")
        with started("consume", topic, "-f", "--max", "4", url=shared_broker.url) as process:
            values = values_read(process)
            assert [next(values), next(values)] == [1, 2]
            client.produce_lines(topic, b"3\n4\n5\n", key="k")

            assert list(values) == [3, 4]
            assert ended(process) == (0, "")


def test_one_partition_can_be_followed_as_a_table(shared_broker: RunningBroker, topic: str) -> None:
    with Client(shared_broker.url) as client:
        partition = client.produce(topic, b"1", key="k").partition
        arguments = ("--partition", str(partition), "-o", "table", "-f")
        with started("consume", topic, *arguments, url=shared_broker.url) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline().split() for _ in range(2)]
            client.produce(topic, b"2", key="k")
            lines.append(process.stdout.readline().split())

    assert lines[0] == [b"PARTITION", b"OFFSET", b"TIMESTAMP", b"KEY", b"VALUE", b"HEADERS"]
    assert [[*line[1:2], *line[3:]] for line in lines[1:]] == [
        [b"0", b"k", b"1"],
        [b"1", b"k", b"2"],
    ]


def test_following_outlives_a_broker_that_is_started_again(broker: RunningBroker) -> None:
    with Client(broker.url) as client, started("consume", "t", "-f", url=broker.url) as process:
        assert ended(process)[0] == 1, "there is no such topic yet"
        client.create_topic("t")
    with Client(broker.url) as client, started("consume", "t", "-f", url=broker.url) as process:
        values = values_read(process)
        client.produce("t", b"1", key="k")
        assert next(values) == 1
        broker.kill()
        assert process.stderr is not None
        noted = [process.stderr.readline().decode()]
        broker.restart()
        noted.append(process.stderr.readline().decode())
        client.close()
        client.produce("t", b"2", key="k")

        assert next(values) == 2
        process.send_signal(signal.SIGINT)
        assert ended(process) == (130, "")

    assert re.fullmatch(
        rf"note: no broker answers at {broker.url} \(.*\); trying again\n", noted[0]
    )
    assert noted[1] == "note: the broker answers again\n"


def test_a_topic_that_is_deleted_ends_it(shared_broker: RunningBroker, topic: str) -> None:
    with Client(shared_broker.url) as client:
        client.produce(topic, b"1")
        with started("consume", topic, "-f", url=shared_broker.url) as process:
            assert next(values_read(process)) == 1
            client.delete_topic(topic)
            exit_code, errors = ended(process)

    assert exit_code == 1
    assert errors == (
        f'error: topic "{topic}" does not exist. Those that do: tailrace topic list\n'
    )


def test_a_sealed_partition_is_followed_by_its_children(broker: RunningBroker) -> None:
    stored = [int(value) for value in split(broker, "t")]
    with Client(broker.url) as client:
        states = {row.partition: row.state for row in client.offsets(["t"])}
        whole = ("consume", "t", "-f")
        parent = ("consume", "t", "--partition", "0", "-f")
        with (
            started(*whole, url=broker.url) as of_all,
            started(*parent, url=broker.url) as of_the_parent,
        ):
            every, of_parent = values_read(of_all), values_read(of_the_parent)
            assert [next(every) for _ in stored] == stored
            assert [next(of_parent) for _ in stored] == stored
            partitions = set()
            for n in range(100, 120):
                partitions.add(client.produce("t", b"%d" % n, key=str(n)).partition)
                assert (next(every), next(of_parent)) == (n, n)

    assert states == {0: "sealed", 1: "open", 2: "open"}
    assert partitions == {1, 2}


# --- which records --------------------------------------------------------------------------------


def test_the_last_records_are_those_of_all_partitions(
    shared_broker: RunningBroker, topic: str
) -> None:
    with Client(shared_broker.url) as client:
        for n in range(12):
            client.produce(topic, b"%d" % n)

    def last(count: int, *arguments: str) -> list[object]:
        result = run("consume", topic, "--last", str(count), *arguments, url=shared_broker.url)
        return values_of(result)

    assert last(1) == [11]
    assert last(5) == [7, 8, 9, 10, 11]
    assert last(1_000) == list(range(12))
    assert last(5, "--max", "2") == [7, 8]


def test_so_many_before_each_partitions_end_are_printed(
    shared_broker: RunningBroker, topic: str
) -> None:
    with Client(shared_broker.url) as client:
        partition = client.produce_lines(topic, ndjson(range(10)), key="k").partition

    assert values_of(run("consume", topic, "--from", "-3", url=shared_broker.url)) == [7, 8, 9]
    one = ("--partition", str(partition))
    assert values_of(run("consume", topic, *one, "--from=-99", url=shared_broker.url)) == list(
        range(10)
    )


def test_line_ends_inside_of_a_value_end_no_record(
    shared_broker: RunningBroker, topic: str
) -> None:
    with Client(shared_broker.url) as client:
        for n in range(3):
            client.produce(topic, b'{"a":\r%d,\n"b":"\\u2028"}' % n, key="k")

    wanted = [{"a": n, "b": "\u2028"} for n in range(3)]
    table = reported(run("consume", topic, "-o", "table", url=shared_broker.url))
    assert values_of(run("consume", topic, "--max", "2", url=shared_broker.url)) == wanted[:2]
    assert len(table.splitlines()) == 4
    assert values_of(run("consume", topic, "--last", "3", url=shared_broker.url)) == wanted


def test_records_are_shown_in_each_form(shared_broker: RunningBroker, topic: str) -> None:
    with Client(shared_broker.url) as client:
        client.produce(topic, b'{"a":[1,"x"]}', key="k")
    table = reported(run("consume", topic, "-o", "table", url=shared_broker.url)).splitlines()
    yaml = reported(run("consume", topic, "-o", "yaml", url=shared_broker.url)).splitlines()

    assert table[0].split() == ["PARTITION", "OFFSET", "TIMESTAMP", "KEY", "VALUE", "HEADERS"]
    assert table[1].split()[3:] == ["k", '{"a":[1,"x"]}']
    assert yaml[3:] == ["  key: k", "  value:", "    a:", "    - 1", "    - x"]


def test_a_value_that_is_nested_too_deeply_for_a_form_is_reported(
    shared_broker: RunningBroker, topic: str
) -> None:
    with Client(shared_broker.url) as client:
        client.produce(topic, b"[" * 900 + b"]" * 900)

    as_yaml = run("consume", topic, "-o", "yaml", url=shared_broker.url)

    assert_fails(as_yaml, 1, "a value is nested too deeply for this form: use -o json")
    assert reported(run("consume", topic, url=shared_broker.url)).count("[") == 900
