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

from tailrace.consumer import Consumer
from tailrace.protocol.murmur3 import token
from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.broker.metrics import wait_for_metric
from tests.support.cli.commands import TIMEOUT_S, assert_fails, reported, run, started
from tests.support.groups.consumers import FORM_NAMES, FORMS, got, poll, register
from tests.support.http.http11 import Connection, document, get, read_listeners
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
        "broker's log names, and start it again; or give up the offsets of range 0: "
        "tailrace ring accept-loss 0 --broker 0"
    )


def test_a_partition_that_has_its_end_names_the_command_for_its_damaged_offsets(
    broker: RunningBroker,
) -> None:
    """The one that the doctor names."""
    refused = run("topic", "accept-loss", "t", "1", url=broker.url)

    assert_fails(
        refused,
        1,
        'End not lost: partition 1 of topic "t" has not lost its end, but cannot read offsets '
        r"1000-1999 and 1 more: .*; or give up the offsets of range 0: tailrace ring accept-loss 0 "
        "--broker 0",
    )


@pytest.fixture(scope="module")
def gap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """Of topic "gap" offsets 1000 to 1999 are lost, which somebody has accepted; five follow."""
    with start_broker(tmp_path_factory.mktemp("gap"), scrub_bytes_per_second=0) as broker:
        with Client(broker.url) as client:
            client.create_topic("gap", partitions_per_range=1)
            for number in range(2):
                texts = [f'"{Random(number).randbytes(50).hex()}"' for _ in range(BATCH_EVENTS)]
                client.produce_lines("gap", "\n".join(texts).encode())
        broker.stop()
        (segment,) = broker.data_dir.glob("data/*/0/*.log")
        flip(segment, stored_batches(segment)[-1][0] + 60, 0)
        broker.restart()
        reported(run("topic", "accept-loss", "gap", "0", url=broker.url))
        with Client(broker.url) as client:
            client.produce_lines("gap", b"\n".join([b"1"] * 5))
        yield broker


LOST = "tailrace_group_lost_records_total"
GAP = (
    '! partition 0 of topic "gap": offsets 1000–1999 are lost, which was accepted; '  # noqa: RUF001
    "going on at 2000\n"
)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("options", "offsets", "said"),
    [
        ((), [*range(1_000), *range(2_000, 2_005)], GAP),
        (("--from", "1500"), [*range(2_000, 2_005)], GAP),
        (("--max", "2"), [0, 1], ""),
        (("--last", "3"), [2_002, 2_003, 2_004], ""),
        (("--last", "9"), [*range(996, 1_000), *range(2_000, 2_005)], ""),
    ],
)
def test_consume_reads_past_a_loss_that_was_accepted(
    gap: RunningBroker, options: tuple[str, ...], offsets: list[int], said: str, restarts: bool
) -> None:
    if restarts:
        gap.stop()
        gap.restart()
    consumed = run("consume", "gap", *options, "--format", r"%o\n", url=gap.url)

    assert list(map(int, consumed.stdout.split())) == offsets
    assert (consumed.returncode, consumed.stderr.decode()) == (0, said)


def test_a_loss_that_was_accepted_is_shown_and_is_nothing_to_repair(gap: RunningBroker) -> None:
    table = reported(run("topic", "describe", "gap", url=gap.url)).splitlines()
    doctor = run("doctor", url=gap.url).stdout.decode()

    assert table[-1].endswith("open, lost 1000-1999")
    assert re.search(r"^✓ partitions +none damaged$", doctor, re.M)


def test_a_group_goes_on_behind_a_loss_that_was_accepted(gap: RunningBroker) -> None:
    """It counts the records as lost, as those that retention removed."""
    lost = gap.metrics().get(LOST, 0)
    consumed = run("consume", "gap", "--group", "cli", "--format", r"%o\n", url=gap.url)

    assert (consumed.returncode, consumed.stderr) == (0, b"")
    assert list(map(int, consumed.stdout.split())) == [*range(1_000), *range(2_000, 2_005)]
    with Client(gap.url) as client:
        group = client.group("cli")
    assert (group.info.lost, group.partitions[0].position, group.info.lag) == (1_000, 2_005, 0)
    wait_for_metric(gap, LOST, lost + 1_000)
    moved = [line for line in gap.log_path.read_text().splitlines() if '"group.moved"' in line]
    counts = [json.loads(line)["lost_records"] for line in moved if '"cli"' in line]
    assert counts == [1_000]
    again = run("consume", "gap", "--group", "cli", url=gap.url)
    assert (again.returncode, again.stdout, again.stderr) == (0, b"", b"")


@read_listeners
@pytest.mark.parametrize("form", FORMS, ids=FORM_NAMES)
def test_polls_go_on_behind_a_loss_that_was_accepted(
    gap: RunningBroker, listener: int, form: str
) -> None:
    """Also those of PolarStreams' clients, which name no delivery."""
    name = f"{listener}-{FORMS.index(form)}"
    with Connection(gap.port) as public, Connection(gap.port + listener) as connection:
        register(public, name, "gap", group=name)
        records = []
        while (answer := connection.exchange(poll(name, accept=form))).status != 204:
            records += got(answer)
        group = document(public.exchange(get(f"/v1/groups/{name}")))

    assert [each.offset for each in records] == [*range(1_000), *range(2_000, 2_005)]
    assert (group["lost"], group["lag"]) == (1_000, 0)


def test_a_loss_that_was_accepted_is_passed_over_while_others_have_records(
    gap: RunningBroker,
) -> None:
    with Client(gap.url) as client, Connection(gap.port) as public:
        client.create_topic("busy", partitions_per_range=1)
        client.produce_lines("busy", b"\n".join([b"1"] * 8_000))
        register(public, "both", "gap", "busy", group="both")
        polled = []
        while (answer := public.exchange(poll("both", maxRecords=500))).status != 204:
            polled.append({each["topic"]: len(each["values"]) for each in document(answer)})

    behind = next(n for n, each in enumerate(polled) if each.get("gap") == 5)
    assert sum(each.get("gap", 0) for each in polled) == 1_005
    assert sum(each.get("busy", 0) for each in polled[behind:]) > 4_000


def test_a_python_consumer_goes_on_behind_a_loss_that_was_accepted(gap: RunningBroker) -> None:
    offsets: list[int] = []
    with Client(gap.url) as client, Consumer(client, "python", "gap", wait_ms=0) as consumer:
        for record in consumer:
            offsets.append(record.offset)
            if record.offset == 2_004:
                break

    assert offsets == [*range(1_000), *range(2_000, 2_005)]
