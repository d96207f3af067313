"""A partition of a ring has lost its end: any broker is asked to go on without it."""

import subprocess
from pathlib import Path
from random import Random

import pytest

from tailrace.sync import Client
from tests.support.cli.commands import TAILRACE, TIMEOUT_S, environment, reported
from tests.support.ring.local_ring import SECRET, LocalRing, founded_ring
from tests.support.storage.damaged import flip, stored_batches

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

LEADER = 1  # of partition 1, as there is one partition a range
NAMES = [f"g{number}" for number in range(9)]  # of groups, coordinated by all three brokers
# A batch of its own, above 64 KiB: it goes to the segment at once.
EVENTS = b"\n".join(b'"%s"' % Random(n).randbytes(50).hex().encode() for n in range(2_000))


def accept_loss(
    ring: LocalRing, ordinal: int, *options: str
) -> "subprocess.CompletedProcess[bytes]":
    return at_broker(ring, ordinal, "topic", "accept-loss", "t", str(LEADER), *options)


def at_broker(
    ring: LocalRing, ordinal: int, *arguments: str
) -> "subprocess.CompletedProcess[bytes]":
    """By the command line, at this broker."""
    return subprocess.run(
        [TAILRACE, *arguments],
        env=environment(ring.brokers[ordinal].url) | {"TAILRACE_TOKEN": SECRET},
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def state_of(ring: LocalRing) -> tuple[str, int]:
    found = ring.call(LEADER, "GET", "/v1/topics/t")["partitionDetails"][LEADER]
    return found["state"], found["highWatermark"]


def test_a_loss_is_accepted_through_a_broker_that_does_not_lead(tmp_path: Path) -> None:
    with founded_ring(tmp_path, copies=1) as ring:
        ring.call(0, "POST", "/v1/topics", {"name": "t", "partitionsPerRange": 1})
        leader = ring.brokers[LEADER]
        with Client(leader.url, token=SECRET) as client:
            keys = (f"k{number}" for number in range(1_000))
            key = next(
                key for key in keys if client.produce("t", b"0", key=key).partition == LEADER
            )
            for _ in range(2):
                end = client.produce_lines("t", EVENTS, key=key).offset + 2_000
        leader.stop()
        (segment,) = leader.data_dir.glob(f"data/*/{LEADER}/*.log")
        position, header = stored_batches(segment)[-1]
        first = header.base_offset
        flip(segment, position + 60, 0)
        leader.start()
        ring.wait_ready(LEADER)
        ring.until(lambda: ring.is_answered(LEADER, "GET", "/v1/topics/t"), 30.0)
        ring.until(lambda: state_of(ring)[0] != "waiting", 30.0)

        assert state_of(ring) == ("damaged", first)
        text = f"offsets {first} to {end - 1} of partition {LEADER}"
        planned = reported(accept_loss(ring, 0, "--dry-run"))
        assert planned == f"would give up {text}, and go on at {end}\n"
        assert state_of(ring) == ("damaged", first)
        done = reported(accept_loss(ring, 2))
        assert done == f"✓ t: gave up {text}; it goes on at {end}\n"
        assert state_of(ring) == ("open", end)
        with Client(ring.brokers[0].url, token=SECRET) as client:
            assert client.produce("t", b"1", key=key).offset == end
        afar = at_broker(ring, 0, "consume", "t", "--partition", str(LEADER), "--format", r"%o\n")
        assert list(map(int, reported(afar).split())) == [*range(first), end]
        for name in NAMES:
            assert read_on(ring, name) == ([*range(first), end], end + 1, end - first)
        groups = [ring.call(0, "GET", f"/v1/groups/{name}") for name in NAMES]
        ends = {group["partitions"][LEADER]["highWatermark"] for group in groups}
        assert ends == {end + 1}  # of coordinators that have the log, and of others


def read_on(ring: LocalRing, group: str) -> tuple[list[int], int, int]:
    """What a group has not read yet of the partition; where it is then, and what it counts."""
    consumed = at_broker(ring, 0, "consume", "t", "--group", group, "--format", r"%p %o\n")
    pairs = [tuple(map(int, line.split())) for line in reported(consumed).splitlines()]
    found = ring.call(2, "GET", f"/v1/groups/{group}")
    offsets = [offset for partition, offset in pairs if partition == LEADER]
    return offsets, found["partitions"][LEADER]["position"], found["lost"]
