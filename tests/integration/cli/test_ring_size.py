"""`tailrace ring grow`, `shrink` and `drain` on a ring of `tailrace dev`, which starts brokers."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker.fixtures import free_ring_port
from tests.support.cli.commands import TAILRACE, environment

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

VERB_S_MAX = 90.0
MOST = 4  # brokers of a ring here
READY = "Ctrl-C ends it"


class DevRing:
    """A ring in a directory, and the command line beside it."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.port = free_ring_port(MOST)
        self._runs = 0

    @contextmanager
    def running(self, *options: str) -> Iterator[Path]:
        """`tailrace dev`, until Ctrl-C; the file with what it prints."""
        self._runs += 1
        said = self.top.with_suffix(f".{self._runs}")
        words = [TAILRACE, "dev", "--data", str(self.top), "--port", str(self.port), *options]
        with said.open("wb") as file:
            process = subprocess.Popen(words, stdout=file, stderr=file, env=environment(""))
        try:
            deadline_s = time.monotonic() + VERB_S_MAX
            while READY not in said.read_text():
                assert process.poll() is None, said.read_text()
                assert time.monotonic() < deadline_s, said.read_text()
                time.sleep(0.05)
            yield said
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(VERB_S_MAX)

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """A verb that succeeds, without a secret: it is found in the ring's directory."""
        result = self.try_to(*words)
        assert result.returncode == 0, result.stderr
        return result

    def try_to(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [TAILRACE, *words],
            env=environment(f"http://127.0.0.1:{self.port}"),
            capture_output=True,
            text=True,
            timeout=VERB_S_MAX,
            check=False,
        )

    def resize(self, verb: str, brokers: int) -> "subprocess.CompletedProcess[str]":
        return self.run("ring", verb, "--brokers", str(brokers), "--data", str(self.top))

    def wait_verified(self) -> None:
        """Until `tailrace ring verify` finds nothing."""
        deadline_s = time.monotonic() + VERB_S_MAX
        while (result := self.try_to("ring", "verify")).returncode:
            assert time.monotonic() < deadline_s, result.stdout
            time.sleep(0.1)

    def state(self) -> Any:
        return json.loads(self.run("ring", "status", "-o", "json").stdout)


def test_a_local_ring_grows_and_shrinks_with_one_command_and_keeps_its_size(tmp_path: Path) -> None:
    ring = DevRing(tmp_path / "ring")
    with ring.running("--brokers", "3") as said:
        grown = ring.resize("grow", 4)
        assert "tailrace dev starts broker 3" in grown.stderr
        assert grown.stdout.splitlines()[-1].startswith(
            "✓ ring of 4; 1 step: 1 range sealed, 2 new"
        )
        assert "  broker 3  http://127.0.0.1:" in said.read_text()
    with ring.running("--brokers", "3"):  # as the ring was begun
        state = ring.state()
        assert state["brokers"] == 4
        assert all(each["alive"] for each in state["registrations"])
        plan = ring.run("ring", "plan", "--brokers", "3").stdout
        assert "4 → 3  join" in plan
    with ring.running("--brokers", "3") as said:
        assert f"the ring in {ring.top} has 4 brokers now: all are started\n" in said.read_text()
        drained = ring.resize("drain", 3)
        assert "brokers gone for good: 3" in drained.stdout
        grown = ring.resize("grow", 4)  # with a new disk
        assert "✓ ring of 4" in grown.stdout
        assert "broker 3 has left the ring" in said.read_text()
    assert (ring.top / "3.retired-1").is_dir()


def test_a_broker_that_runs_alone_grows_to_a_ring_of_several(tmp_path: Path) -> None:
    """And so it does when it was one of several, and has been left alone."""
    ring = DevRing(tmp_path / "ring")
    with ring.running() as said:
        stored = subprocess.run(
            [TAILRACE, "produce", "t", '{"a":1}', "--key", "k"],
            env=environment(f"http://127.0.0.1:{ring.port}"),
            capture_output=True,
            timeout=VERB_S_MAX,
            check=True,
        )
        assert stored.returncode == 0
        grown = ring.resize("grow", 3)
        assert "tailrace dev starts broker 1, 2\nfirst it starts broker 0 again" in grown.stderr
        assert "✓ ring of 3; 2 steps" in grown.stdout
        assert all(f"  broker {each}  http://127.0.0.1:" in said.read_text() for each in range(3))
        ring.wait_verified()
        assert '"value":{"a":1}' in ring.run("consume", "t", "--from", "earliest").stdout
    with ring.running():
        ring.resize("drain", 1)
        assert ring.state()["brokers"] == 1
        assert "✓ ring of 2" in ring.resize("grow", 2).stdout
        ring.resize("drain", 1)
    with ring.running():
        assert "✓ ring of 2" in ring.resize("grow", 2).stdout
        ring.wait_verified()


def test_a_broker_that_was_down_when_it_left_hinders_nothing(tmp_path: Path) -> None:
    """Neither the next growth, nor the next start: nobody saw its process end for that."""
    ring = DevRing(tmp_path / "ring")
    with ring.running("--brokers", "3") as said:
        ring.resize("grow", 4)
        os.kill(pids_of(said, 3)[-1], signal.SIGKILL)
        ring.resize("drain", 3)
        assert "✓ ring of 4" in ring.resize("grow", 4).stdout
        os.kill(pids_of(said, 3)[-1], signal.SIGKILL)
        ring.resize("drain", 3)
    with ring.running():
        assert ring.state()["brokers"] == 3
    assert sorted(each.name for each in ring.top.glob("3*retired*")) == [
        "3.retired-1",
        "3.retired-2",
    ]


def pids_of(said: Path, ordinal: int) -> list[int]:
    """Of the processes that `tailrace dev` has started as that broker."""
    return [int(each) for each in re.findall(rf"broker {ordinal} .* pid (\d+)", said.read_text())]


def test_brokers_that_nobody_starts_are_waited_for(tmp_path: Path) -> None:
    """A ring that another command than `tailrace dev` runs."""
    ring = DevRing(tmp_path / "ring")
    with ring.running("--brokers", "2"):
        process = subprocess.Popen(
            [TAILRACE, "ring", "grow", "--data", str(tmp_path / "other")],
            env=environment(f"http://127.0.0.1:{ring.port}")
            | {"TAILRACE_TOKEN": (ring.top / "ring-secret").read_text().strip()},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        assert "when --data names its directory" in process.stderr.readline()
        assert process.stderr.readline() == ("waiting: broker 2 is not there; start it first\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(VERB_S_MAX) == 130
        process.stderr.close()
