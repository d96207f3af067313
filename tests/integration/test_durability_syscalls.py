"""What the kernel sees of one produce: a direct file, a durable write, only then the answer."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailrace.local_broker import HOST
from tailrace.sync import Client
from tests.fixtures import RunningBroker

TRACED_CALLS = "openat,fsync,pwritev2,write,writev,sendto,sendmsg"
STRACE = shutil.which("strace")
ANSWER = r"\"topic\":\"traced\""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        STRACE is None and not os.environ.get("CI"), reason="strace is not installed"
    ),
]


@contextmanager
def traced(broker: RunningBroker, output: Path) -> Iterator[None]:
    """Write the calls of all of the broker's threads to `output` while the block runs.

    `-y` adds the path to a descriptor; 400 bytes of each buffer hold a whole answer.
    """
    assert STRACE is not None, "CI needs strace: apt install strace"
    options = ["-f", "-y", "-s", "400", "-e", f"trace={TRACED_CALLS}", "-o", str(output)]
    command = [STRACE, *options, "-p", str(broker.pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr is not None
        first_line = strace.stderr.readline()
        assert "attached" in first_line, first_line
        try:
            yield
        finally:
            strace.terminate()
            strace.stderr.read()


def returned_at(calls: list[str], call: str, *contents: str) -> list[int]:
    """Where in the trace the calls that hold all of `contents` returned, without error.

    A call during which another thread called is two lines: `PID call(… <unfinished ...>` and
    `PID <... call resumed>…`.
    """
    places = []
    for index, line in enumerate(calls):
        if f" {call}(" not in line or not all(content in line for content in contents):
            continue
        end = index
        if line.endswith("<unfinished ...>"):
            thread = line.split()[0]
            resumed = re.compile(rf"{thread} +<\.\.\. {call} resumed>")
            end = next(i for i in range(index, len(calls)) if resumed.match(calls[i]))
        if re.search(r"= \d+", calls[end]):
            places.append(end)
    return places


@pytest.mark.parametrize("door", [0, 1], ids=["public", "fast"])
def test_an_answer_is_sent_after_a_durable_write_to_a_direct_file(
    broker: RunningBroker, tmp_path: Path, door: int
) -> None:
    output = tmp_path / "trace"
    with traced(broker, output), Client(f"http://{HOST}:{broker.port + door}") as client:
        client.produce("traced", b'{"a":1}', key="k")
    calls = output.read_text().splitlines()
    (segment,) = broker.data_dir.resolve().rglob("*.log")

    (opened,) = returned_at(calls, "openat", f'"{segment}"', "O_DIRECT")
    (directory_synced,) = returned_at(calls, "fsync", f"<{segment.parent}>")
    (written,) = returned_at(calls, "pwritev2", f"<{segment}>", "RWF_DSYNC")
    answered = next(index for index, line in enumerate(calls) if ANSWER in line)

    assert opened < directory_synced < written < answered
