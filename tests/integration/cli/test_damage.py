"""Damaged batches of two partitions, as the commands show them: which offsets of which partition.

Partition 0 has one damaged range of offsets, partition 1 has two, partition 2 has none.
"""

import json
import re
import signal
from collections.abc import Iterator
from itertools import count
from random import Random

import pytest

from tailrace.protocol.murmur3 import token
from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.broker.metrics import wait_for_metric
from tests.support.cli.commands import TIMEOUT_S, reported, run, started
from tests.support.storage.damaged import flip, stored_batches

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

# A request's events become one batch, above 64 KiB: it goes to the segment at once.
BATCH_EVENTS = 1_000
BATCHES = 6  # of each partition
DAMAGED = {0: [2], 1: [1, 3]}  # batches by partition
FORM = ("--format", r"%p %o\n")
WARNINGS = [
    f'! partition {partition} of topic "t": offsets {first}–{last} are quarantined (damaged); '  # noqa: RUF001
    f"going on at {last + 1}"
    for partition, first, last in ((0, 2000, 2999), (1, 1000, 1999), (1, 3000, 3999))
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    directory = tmp_path_factory.mktemp("damaged")
    with start_broker(directory, scrub_bytes_per_second=0) as broker:
        with Client(broker.url) as client:
            client.create_topic("t", partitions_per_range=3, json_check=False)
            starts = [
                int(partition_detail.token_start)
                for partition_detail in client.topic("t").partition_details
            ]
            for partition in range(3):
                key = key_of(starts, partition)
                for number in range(BATCHES):
                    noise = Random(number)
                    texts = [noise.randbytes(50).hex() for _ in range(BATCH_EVENTS)]
                    client.produce_lines("t", "\n".join(texts).encode(), key=key)
        broker.stop()
        for partition, batches in DAMAGED.items():
            (segment,) = broker.data_dir.glob(f"data/*/{partition}/*.log")
            positions = [position for position, _ in stored_batches(segment)]
            assert len(positions) == BATCHES
            for number in batches:
                flip(segment, positions[number] + 500, 0)
        broker.restart()
        wait_for_metric(broker, "tailrace_quarantined_batches", 3)
        yield broker


def key_of(token_starts: list[int], partition: int) -> str:
    """A key of this partition."""
    for number in count():
        place = token(b"%d" % number)
        if sum(start <= place for start in token_starts) == partition + 1:
            return str(number)
    raise AssertionError


def readable(partition: int) -> list[int]:
    """Its offsets that are not damaged."""
    batches = [n for n in range(BATCHES) if n not in DAMAGED.get(partition, [])]
    return [batch * BATCH_EVENTS + n for batch in batches for n in range(BATCH_EVENTS)]


def test_describe_shows_the_offsets_in_the_state(broker: RunningBroker) -> None:
    table = reported(run("topic", "describe", "t", url=broker.url)).splitlines()[2:]
    document = json.loads(reported(run("topic", "describe", "t", "-o", "json", url=broker.url)))

    assert [re.split("  +", line)[-1] for line in table] == [
        "open, quarantined 2000-2999",
        "open, quarantined 1000-1999 and 1 more",
        "open",
    ]
    spans = [
        [(each["firstOffset"], each["lastOffset"]) for each in partition["quarantined"]]
        for partition in document["partitionDetails"]
    ]
    assert spans == [[(2000, 2999)], [(1000, 1999), (3000, 3999)], []]


def test_consume_names_what_it_passes_over(broker: RunningBroker) -> None:
    consumed = run("consume", "t", *FORM, url=broker.url)

    printed = [tuple(map(int, line.split())) for line in consumed.stdout.splitlines()]
    assert printed == [(p, offset) for p in range(3) for offset in readable(p)]
    assert consumed.returncode == 1
    *warnings, last = consumed.stderr.decode().splitlines()
    assert warnings == WARNINGS
    assert last.startswith('error: not read: offsets 2000–2999 of partition 0 of topic "t", ')  # noqa: RUF001


def test_consume_that_follows_goes_on_behind_damage(broker: RunningBroker) -> None:
    expected = {p: readable(p) for p in range(3)}
    read: dict[int, list[int]] = {p: [] for p in range(3)}
    arguments = ("consume", "t", "--from", "earliest", "-f", *FORM)
    with started(*arguments, url=broker.url) as process:
        assert process.stdout is not None
        while read != expected:
            partition, offset = map(int, process.stdout.readline().split())
            read[partition].append(offset)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == 130
    assert sorted(errors.decode().splitlines()) == WARNINGS


def test_the_error_of_a_group_names_the_partition_and_the_remedy(broker: RunningBroker) -> None:
    consume = ("consume", "t", "--group", "g", *FORM)
    errors, printed = [], []
    while (consumed := run(*consume, url=broker.url)).returncode:
        printed += consumed.stdout.splitlines()
        error = consumed.stderr.decode()
        damage = re.search(r"offsets \d+ to \d+ of partition \d of topic \S+", error)
        remedy = re.search(r"tailrace (group reset g --to-offsets \S+)\n", error)
        assert damage, error
        assert remedy, error
        errors.append(damage[0])
        reported(run(*remedy[1].split(), url=broker.url))
    printed += consumed.stdout.splitlines()

    assert sorted(errors) == [
        'offsets 1000 to 1999 of partition 1 of topic "t"',
        'offsets 2000 to 2999 of partition 0 of topic "t"',
        'offsets 3000 to 3999 of partition 1 of topic "t"',
    ]
    assert {tuple(map(int, line.split())) for line in printed} == {
        (partition, offset) for partition in range(3) for offset in readable(partition)
    }


def test_doctor_names_the_partitions_and_the_offsets(broker: RunningBroker) -> None:
    checked = run("doctor", url=broker.url)

    assert checked.returncode == 1
    (line,) = [line for line in checked.stdout.decode().splitlines() if "partitions" in line]
    assert line.startswith("✗ partitions ")
    assert line.endswith(
        '  3 ranges of offsets quarantined: partition 0 of topic "t" (offsets 2000-2999), '
        'partition 1 of topic "t" (offsets 1000-1999 and 1 more): restore the files that the '
        "broker's log names, and start it again"
    )
