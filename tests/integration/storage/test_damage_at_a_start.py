"""One flipped byte that a start finds: all else of the partition is served, and it takes events."""

import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tailrace.sync import Client
from tailrace.wire import HEADER_BYTES
from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.broker.metrics import wait_for_metric
from tests.support.cli.commands import TAILRACE, environment, run
from tests.support.http.http11 import Connection, document, get, messages, records, request
from tests.support.storage.damaged import flip, read_all, stored_batches

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

SECRET = "a-secret-of-32-visible-characters"
EVENTS = 6_502
EVENTS_PER_REQUEST = 501  # above 64 KiB: they go to the segment at once


def produce(broker: RunningBroker, count: int, seed: int) -> None:
    noise = random.Random(seed)
    with Client(broker.url) as client:
        for start in range(0, count, EVENTS_PER_REQUEST):
            number = min(EVENTS_PER_REQUEST, count - start)
            lines = "\n".join(noise.randbytes(100).hex() for _ in range(number))
            client.produce_lines("t", lines.encode())


def topic_of(broker: RunningBroker) -> Any:
    with Connection(broker.port) as connection:
        return document(connection.exchange(get("/v1/topics/t")))["partitionDetails"][0]


@pytest.mark.parametrize("byte", [3, 60, HEADER_BYTES + 500], ids=["magic", "header", "payload"])
def test_a_flipped_byte_takes_its_batch_and_nothing_else(tmp_path: Path, byte: int) -> None:
    with start_broker(tmp_path, scrub_bytes_per_second=0) as broker:
        with Client(broker.url) as client:
            client.create_topic("t", partitions_per_range=1, json_check=False)
        produce(broker, EVENTS, 1)
        broker.kill()
        (segment,) = broker.data_dir.rglob("*.log")
        position, header = stored_batches(segment)[6]
        hurt = range(header.base_offset, header.end_offset)
        flip(segment, position + byte, 0)
        flipped = segment.read_bytes()
        damage = {
            "firstOffset": hurt.start,
            "lastOffset": hurt.stop - 1,
            "file": str(segment),
            "byte": position,
            "accepted": False,
        }

        end_offset = EVENTS
        for life in range(3):
            broker.restart()
            wait_for_metric(broker, "tailrace_quarantined_batches", 1)
            assert broker.metrics()["tailrace_damaged_partitions"] == 0
            found = topic_of(broker)
            assert (found["state"], found["highWatermark"]) == ("open", end_offset)
            assert found["quarantined"] == [damage]
            produce(broker, 100, 2 + life)
            end_offset += 100
            problems, offsets = read_all(broker.port, end_offset, max_records=1_000)
            assert [
                (
                    problem["type"],
                    problem["firstOffset"],
                    problem["lastOffset"],
                    problem["nextOffset"],
                )
                for problem in problems
            ] == [("/v1/problems/corrupt-partition", hurt.start, hurt.stop - 1, hurt.stop)]
            assert offsets == [n for n in range(end_offset) if n not in hurt]
            check_skipped(broker, hurt, offsets)
            if not life:
                check_group_goes_on(broker, hurt, offsets)
            broker.kill() if life else broker.stop()

        lines = broker.log_path.read_text().splitlines()
        verified = run("verify", str(broker.data_dir))

    assert sum('"batch.quarantined"' in line for line in lines) == 3
    assert not any('"partition.damaged"' in line for line in lines)
    assert segment.read_bytes().startswith(flipped)
    assert verified.returncode == 1
    assert f"{segment}, byte {position}: " in verified.stdout.decode()


def test_a_partition_that_has_lost_its_end_is_read_and_goes_on_when_that_is_accepted(
    tmp_path: Path,
) -> None:
    with start_broker(tmp_path, ring_secret=SECRET, scrub_bytes_per_second=0) as broker:
        with Client(broker.url) as client:
            client.create_topic("t", partitions_per_range=1, json_check=False)
        produce(broker, EVENTS, 1)
        broker.stop()
        (segment,) = broker.data_dir.rglob("*.log")
        position, header = stored_batches(segment)[-1]
        first, end = header.base_offset, header.end_offset
        assert end == EVENTS
        flip(segment, position + 60, 0)
        spoilt = segment.read_bytes()

        for _ in range(2):  # what a clean stop reported is known at the start after the next, too
            broker.restart()
            found = topic_of(broker)
            assert (found["state"], found["highWatermark"]) == ("damaged", first)
            assert broker.metrics()["tailrace_damaged_partitions"] == 1
            problems, offsets = read_all(broker.port, first, max_records=EVENTS_PER_REQUEST)
            assert (problems, offsets) == ([], list(range(first)))
            with Connection(broker.port) as connection:
                answers = [
                    connection.exchange(get(records("t", offset=first))),
                    connection.exchange(request(messages("t"), b"1")),
                ]
            for answer in answers:
                assert answer.status == 503
                assert f"offsets from {first} to {end - 1} were" in document(answer)["detail"]
                assert "tailrace topic accept-loss t 0" in document(answer)["detail"]
            broker.kill()

        broker.restart()
        check_consume(broker, first)
        refused = accept_loss(broker, secret="")
        assert b"TAILRACE_TOKEN" in refused.stderr
        planned = accept_loss(broker, "--dry-run")
        text = f"offsets {first} to {end - 1} of partition 0"
        assert planned.stdout.decode() == f"would give up {text}, and go on at {end}\n"
        assert topic_of(broker)["state"] == "damaged"
        done = accept_loss(broker)
        assert done.stdout.decode() == f"✓ t: gave up {text}; it goes on at {end}\n"
        again = accept_loss(broker)
        assert (again.returncode, b"nothing that has to be accepted" in again.stderr) == (1, True)

        for life in range(2):
            found = topic_of(broker)
            assert (found["state"], found["highWatermark"]) == ("open", end + 100 * life)
            assert [(each["firstOffset"], each["lastOffset"]) for each in found["quarantined"]] == [
                (first, end - 1)
            ]
            produce(broker, 100, 2 + life)
            problems, offsets = read_all(
                broker.port, end + 100 * (life + 1), max_records=EVENTS_PER_REQUEST
            )
            assert [(problem["firstOffset"], problem["nextOffset"]) for problem in problems] == [
                (first, end)
            ]
            assert offsets == [*range(first), *range(end, end + 100 * (life + 1))]
            broker.kill()
            broker.restart()
        lines = broker.log_path.read_text().splitlines()

    assert sum('"loss.accepted"' in line for line in lines) == 1
    assert segment.read_bytes() == spoilt


def check_skipped(broker: RunningBroker, hurt: range, offsets: list[int]) -> None:
    """All else is printed; the damage is named where it is met, and at the end."""
    consumed = run("consume", "t", "--format", r"%o\n", url=broker.url)
    assert [int(line) for line in consumed.stdout.split()] == offsets
    assert consumed.returncode == 1
    span = f"offsets {hurt.start}–{hurt.stop - 1}"  # noqa: RUF001
    assert consumed.stderr.decode().splitlines() == [
        f'! partition 0 of topic "t": {span} are quarantined (damaged); going on at {hurt.stop}',
        f'error: not read: {span} of partition 0 of topic "t": they are damaged: restore the files '
        "that the broker's log names and start it again",
    ]


def check_group_goes_on(broker: RunningBroker, hurt: range, offsets: list[int]) -> None:
    """A group's error at the damage names the command with which it reads the rest."""
    consume = ("consume", "t", "--group", "g", "--format", r"%o\n")
    stuck = run(*consume, url=broker.url)
    assert [int(line) for line in stuck.stdout.split()] == list(range(hurt.start))
    command = f"group reset g --to-offsets t:0={hurt.stop}"
    assert stuck.returncode == 1
    assert stuck.stderr.decode().endswith(f". To go on behind it: tailrace {command}\n")
    assert run(*command.split(), url=broker.url).returncode == 0
    rest = run(*consume, url=broker.url)
    assert (rest.returncode, rest.stderr) == (0, b"")
    assert [int(line) for line in rest.stdout.split()] == [n for n in offsets if n >= hurt.stop]


def check_consume(broker: RunningBroker, first_lost: int) -> None:
    """All that is there is printed; then it says what is not, with a group too."""
    form = ("--format", r"%o\n")
    for options in ((), ("--group", "g")):
        consumed = run("consume", "t", *options, *form, url=broker.url)
        assert consumed.stdout.decode().split() == [str(n) for n in range(first_lost)]
        assert consumed.returncode == 1
        assert consumed.stderr.decode().endswith("tailrace topic accept-loss t 0\n")
        if not options:
            assert consumed.stderr.decode().startswith(
                'error: the last records are lost of partition 0 of topic "t" (from offset '
                f"{first_lost} on). Restore the files"
            )
    listed = run("group", "list", url=broker.url).stdout.decode().splitlines()
    described = run("group", "describe", "g", url=broker.url).stdout.decode().splitlines()
    assert "idle, damaged" in listed[1]
    assert "damaged" in described[-1].split()


def accept_loss(
    broker: RunningBroker, *arguments: str, secret: str = SECRET
) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [TAILRACE, "topic", "accept-loss", "t", "0", *arguments],
        env=environment(broker.url) | ({"TAILRACE_TOKEN": secret} if secret else {}),
        capture_output=True,
        timeout=30,
        check=False,
    )
