"""The main job without Spark: what `make up` runs."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailrace.local.broker import plain_environment
from tests.support.broker.fixtures import free_ring_port

ROOT = Path(__file__).parents[3]
RUN_S_MAX = 100

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@contextmanager
def up(folder: Path, **variables: str) -> Iterator["subprocess.Popen[str]"]:
    """Run the main job on data below the folder; it is ended with the block."""
    given = {"SPARK": "0", "PORT": str(free_ring_port(3)), **variables}
    with subprocess.Popen(
        [sys.executable, "-m", "examples.up"],
        cwd=folder,
        env=plain_environment() | {"PYTHONPATH": str(ROOT)} | given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def test_a_killed_leader_loses_nothing_and_comes_back(tmp_path: Path) -> None:
    with up(tmp_path, CHAOS="1", ONCE="1") as process:
        said, _ = process.communicate(timeout=RUN_S_MAX)

    assert process.returncode == 0, said
    assert re.search(
        r'✓ polled +20,000 events by 2 consumers of group "demo", 1 killed; [\d,]+ came twice', said
    )
    assert re.search(r"✓ killed +broker \d by SIGKILL: led [1-9]", said)
    assert re.search(r"✓ whole +broker \d is back; each range has all its replicas in sync", said)
    kept = re.search(r"✓ kept +([\d,]+) events acknowledged, ([\d,]+) read back, each once", said)
    assert kept is not None
    assert kept[1] == kept[2]


def test_a_broker_alone_does_the_same(tmp_path: Path) -> None:
    with up(tmp_path, BROKERS="1", ONCE="1") as process:
        said, _ = process.communicate(timeout=RUN_S_MAX)

    assert process.returncode == 0, said
    assert "1 broker ready" in said
    assert re.search(r'✓ polled +20,000 events by 2 consumers of group "demo", 1 killed', said)


def test_a_ring_stays_up_without_one_broker_and_its_lines_work(tmp_path: Path) -> None:
    with up(tmp_path) as process:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line.strip())
            if line.startswith("  kill -9"):
                break
        curls = [shlex.split(line) for line in lines if line.startswith("curl ")]
        answers = [
            subprocess.run([*words, "--fail", "--silent"], capture_output=True, check=False)
            for words in curls
        ]
        killed = re.fullmatch(r"kill -9 (\d+) +# broker 2", lines[-1])
        assert killed is not None, lines
        os.kill(int(killed[1]), signal.SIGKILL)
        noted = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=RUN_S_MAX)

    assert [answer.returncode for answer in answers] == [0, 0, 0]
    assert noted == (
        "broker 2 has ended; the others go on. Start it: .venv/bin/tailrace dev start 2\n"
    )
    assert "Ended; `make up` starts it again on the same data." in rest
