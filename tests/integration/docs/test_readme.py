"""README's Python programs, run as a reader runs them: in a process each, more than once."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker
from tests.support.cli.commands import environment
from tests.support.docs.console import programs_of
from tests.support.spark.spark import MASTER, SPARK_CONF, SPARK_MARKS

ROOT = Path(__file__).parents[3]
PROGRAMS = [
    program.text
    for program in programs_of((ROOT / "README.md").read_text())
    if program.language == "python"
]
PROGRAM_S_MAX = 280.0
SHUFFLE_TASKS = "spark.sql.shuffle.partitions"
SHUFFLE_TASKS_MAX = 8
OF_SPARK = [*SPARK_MARKS, pytest.mark.timeout(300)]


def printed_by(broker: RunningBroker, marker: str, *, more: str = "", **variables: str) -> str:
    """By the program that has this in it, at this broker; `more` is run behind it."""
    [text] = [program for program in PROGRAMS if marker in program]
    result = subprocess.run(
        [sys.executable, "-c", f"{text.replace('9250', str(broker.port))}\n{more}"],
        capture_output=True,
        env=environment() | variables,
        timeout=PROGRAM_S_MAX,
        check=False,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.integration
def test_the_python_program_confirms_what_it_prints(broker: RunningBroker) -> None:
    with Client(broker.url) as client:
        client.create_topic("flights", partitions_per_range=1)
        client.produce_lines("flights", b"".join(b"%d\n" % n for n in range(7)), key="k")

    printed = [printed_by(broker, "Consumer(") for _ in range(4)]

    offsets = [re.findall(r"^0 ([0-9]+) ", each, re.MULTILINE) for each in printed]
    assert offsets == [["0", "1", "2"], ["3", "4", "5"], ["6"], []]


class TestWithSpark:
    pytestmark = OF_SPARK

    def test_the_spark_program_shuffles_a_stream_into_few_tasks(
        self, broker: RunningBroker, tmp_path: Path
    ) -> None:
        conf = {"spark.master": MASTER} | SPARK_CONF
        del conf[SHUFFLE_TASKS]
        lines = [f"{name} {value}\n" for name, value in conf.items()]
        (tmp_path / "spark-defaults.conf").write_text("".join(lines))
        flight = b'{"origin":"SFO","delayMinutes":4}\n'
        with Client(broker.url) as client:
            client.produce_lines("flights", flight * 3)

        printed = printed_by(
            broker,
            "readStream",
            more="[state] = query.recentProgress[0].stateOperators\n"
            "print('shuffle tasks', state.numShufflePartitions)",
            SPARK_CONF_DIR=str(tmp_path),
        )

        assert re.search(r"^\| +SFO\| +3\| +4\.0\|$", printed, re.MULTILINE)
        [tasks] = re.findall(r"^shuffle tasks ([0-9]+)$", printed, re.MULTILINE)
        assert int(tasks) <= SHUFFLE_TASKS_MAX
