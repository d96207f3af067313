"""What no copy of a sealed range has any more is given up by a person, and the ring goes on."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import ProblemError
from tailrace.sync import Client
from tests.support.cli.commands import TAILRACE, TIMEOUT_S, environment, reported
from tests.support.ring.local_ring import SECRET, WHOLE_S_MAX, LocalRing, founded_ring
from tests.support.ring.ring_steps import (
    TOPIC,
    produce_many,
    sealed_ranges,
    step_to,
    wait_copied,
)
from tests.support.storage.damaged import flip, stored_batches

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

EVENTS = 2_000
GROUP = "readers"


@pytest.fixture
def make_ring(tmp_path: Path) -> Iterator[Callable[..., LocalRing]]:
    """Start brokers, of which the first ones found a ring with a topic."""
    with ExitStack() as stack:

        def make(count: int, founders: int, **settings: Any) -> LocalRing:
            ring = stack.enter_context(
                founded_ring(
                    tmp_path,
                    count=count,
                    founders=founders,
                    segment_bytes=1 << 20,
                    journal_bytes=8 << 20,
                    cache_bytes=1 << 20,
                    log_level="info",
                    **settings,
                )
            )
            ring.call(0, "POST", "/v1/topics", {"name": TOPIC, "partitionsPerRange": 1})
            return ring

        yield make


def tailrace(ring: LocalRing, at: int, *arguments: str) -> str:
    """What a command prints, tried again for as long as the ring asks for that."""
    while True:
        done = subprocess.run(
            [TAILRACE, *arguments],
            env=environment(ring.brokers[at].url) | {"TAILRACE_TOKEN": SECRET},
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if b"try again" not in done.stderr:
            return reported(done)


def readable(ring: LocalRing, at: int, partition: int) -> list[int]:
    """The offsets that a reader gets who goes on where the problems say, all of them accepted."""
    found: list[int] = []
    with Client(ring.brokers[at].url) as client:
        (end,) = (
            each.high_watermark
            for each in client.topic(TOPIC).partition_details
            if each.partition == partition
        )
        assert end is not None
        offset = 0
        while offset < end:
            try:
                fetched = client.read_lines(TOPIC, partition, offset, max_records=500)
            except ProblemError as error:
                problem = error
            else:
                found += [json.loads(line)["offset"] for line in fetched.body.splitlines()]
                offset = fetched.next_offset
                continue
            if problem.retriable:  # the log is opened again
                continue
            assert problem.members.get("accepted"), problem
            next_offset = problem.members["nextOffset"]
            assert isinstance(next_offset, int)
            offset = next_offset
    return found


def test_damage_of_the_only_copy_is_given_up_and_copied_as_a_gap(
    make_ring: Callable[..., LocalRing],
) -> None:
    ring = make_ring(3, 1)
    produce_many(ring, EVENTS)
    [segment, *_] = sorted(ring.brokers[0].data_dir.glob("data/*-*/0/*.log"))
    ring.brokers[0].stop()
    position, header = stored_batches(segment)[2]
    flip(segment, position + 200, 0)
    ring.brokers[0].start()
    ring.wait_ready(0)
    step_to(ring, 2)
    log = ring.root / "1.log"
    ring.until(lambda: "copy.interrupted" in log.read_text(), WHOLE_S_MAX)
    [held] = sealed_ranges(ring)
    assert held["complete"] == [0]

    first, last = header.base_offset, header.end_offset - 1
    command = ("ring", "accept-loss", str(held["id"]), "--broker", "0")
    planned = tailrace(ring, 1, *command, "--dry-run")
    line = f"  {TOPIC}, partition 0: offsets {first} to {last}"
    assert planned == f"range 0, sealed: would give up what broker 0 lacks:\n{line}\n"
    assert tailrace(ring, 1, *command) == (
        f"range 0, sealed: ✓ what broker 0 lacks is given up:\n{line}\n"
    )
    assert f"{TOPIC}/0 offsets {first} to {last}" in tailrace(ring, 0, "ring", "history")
    wait_copied(ring)
    offsets = [each for each in range(EVENTS) if not first <= each <= last]
    for at in (0, 1):
        assert readable(ring, at, 0) == offsets

    # From the copy with the gap another is made, and a start finds nothing to complain about.
    step_to(ring, 3)
    wait_copied(ring)
    for broker in ring.brokers:
        broker.stop()
    ring.start_all()
    ring.wait_ready()
    assert {tuple(sorted(each["complete"])) for each in sealed_ranges(ring) if each["id"] == 0} == {
        (0, 1, 2)
    }
    assert readable(ring, 2, 0) == offsets


def test_a_sealed_range_whose_last_copy_is_lost_lets_its_children_and_groups_go_on(
    make_ring: Callable[..., LocalRing],
) -> None:
    ring = make_ring(4, 3, copies=1)
    produce_many(ring, EVENTS)
    tailrace(ring, 1, "consume", TOPIC, "--group", GROUP, "--max", "10")
    step_to(ring, 4)
    ring.kill(0)
    ring.wipe(0)
    ring.brokers[0].start()
    ring.wait_live(0)
    ring.until(lambda: ring.call(1, "GET", "/v1/ring")["ranges"] != [], WHOLE_S_MAX)

    def lost() -> list[int]:
        return [each["id"] for each in sealed_ranges(ring, at=1) if not each["complete"]]

    ring.until(lambda: lost() != [], WHOLE_S_MAX)
    ring.wait_ready(0)
    for held in lost():
        assert f"{TOPIC}, partition 0: offsets 0 to" in tailrace(
            ring, 1, "ring", "accept-loss", str(held), "--broker", "0", "--dry-run"
        )
        tailrace(ring, 1, "ring", "accept-loss", str(held), "--broker", "0")
    for each in ring.call(1, "GET", "/v1/ring")["ranges"]:
        if each["state"] == "waiting":
            tailrace(ring, 1, "ring", "accept-loss", str(each["id"]), "--broker", "0")
    assert lost() == []
    values = produce_many(ring, 200, at=1, first=EVENTS)

    def has_read_on() -> bool:
        with suppress(AssertionError):
            return bool(tailrace(ring, 1, "consume", TOPIC, "--group", GROUP))
        return False

    ring.until(has_read_on, WHOLE_S_MAX)
    assert values
    found = ring.call(1, "GET", f"/v1/groups/{GROUP}")
    assert found["lost"] > 0
    assert {each["state"] for each in found["partitions"]} <= {"open", "done"}
