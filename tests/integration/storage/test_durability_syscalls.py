"""What the kernel sees of produces: direct files, durable writes, only then the answers."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailrace.errors import ProblemError
from tailrace.local.broker import HOST
from tailrace.protocol.records_binary import encode_records
from tailrace.protocol.requests import produce_request
from tailrace.sync import Client
from tailrace.wire import RECORDS_CONTENT_TYPE
from tests.support.broker.fixtures import RunningBroker
from tests.support.http.http11 import Connection, request
from tests.support.waits import wait_until

TRACED_CALLS = "openat,fsync,fdatasync,io_submit,io_getevents,pwritev2,write,writev,sendto,sendmsg"
STRACE = shutil.which("strace")
ANSWER = r"\"topic\":\"traced\""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        STRACE is None and not os.environ.get("CI"), reason="strace is not installed"
    ),
]


@contextmanager
def traced(broker: RunningBroker, output: Path, *changes: str) -> Iterator[None]:
    """Write the calls of all of the broker's threads to `output` while the block runs.

    `-y` adds the path to a descriptor; 400 bytes of each buffer hold a whole answer. `changes`
    are further options of strace.
    """
    assert STRACE is not None, "CI needs strace: apt install strace"
    options = ["-f", "-y", "-s", "400", "-e", f"trace={TRACED_CALLS}", "-o", str(output)]
    command = [STRACE, *options, *changes, "-p", str(broker.pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr is not None
        first_line = strace.stderr.readline()
        assert "attached" in first_line, first_line
        try:
            yield
        finally:
            strace.terminate()
            strace.stderr.read()


def lines_of(output: Path) -> list[str]:
    return output.read_text().splitlines()


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
            rest = range(index, len(calls))
            end = next((at for at in rest if resumed.match(calls[at])), index)
        if re.search(r"= \d+", calls[end]):
            places.append(end)
    return places


def answered_at(calls: list[str], count: int = 1) -> int:
    """Where the first of so many answers is sent, which must all be there."""
    places = [index for index, line in enumerate(calls) if ANSWER in line]
    assert len(places) == count
    return places[0]


@pytest.mark.parametrize("listener", [0, 1], ids=["public", "fast"])
def test_a_small_append_is_answered_after_a_durable_write_to_a_direct_journal(
    broker: RunningBroker, tmp_path: Path, listener: int
) -> None:
    output = tmp_path / "trace"
    with traced(broker, output), Client(f"http://{HOST}:{broker.port + listener}") as client:
        client.produce("traced", b'{"a":1}', key="k")
    calls = lines_of(output)
    (journal,) = broker.data_dir.resolve().rglob("*.journal")
    assert list(broker.data_dir.rglob("*.log")) == []

    opened = returned_at(calls, "openat", f'"{journal}"', "O_DIRECT")
    (directory_synced,) = returned_at(calls, "fsync", f"<{journal.parent}>")
    (zeros_synced,) = returned_at(calls, "fdatasync", f"<{journal}>")
    (header_written,) = returned_at(calls, "pwritev2", f"<{journal}>", "RWF_DSYNC")
    (submitted,) = returned_at(calls, "io_submit", f"<{journal}>", "RWF_DSYNC")
    ended = next(at for at in returned_at(calls, "io_getevents") if at > submitted)

    assert opened[0] < directory_synced < zeros_synced < header_written < submitted
    assert submitted < ended < answered_at(calls)


def test_a_large_append_is_answered_after_a_durable_write_to_a_direct_segment(
    broker: RunningBroker, tmp_path: Path
) -> None:
    output = tmp_path / "trace"
    with traced(broker, output), Client(broker.url) as client:
        client.produce("traced", b'"%s"' % (b"large" * 20_000), key="k")
    calls = lines_of(output)
    (segment,) = broker.data_dir.resolve().rglob("*.log")

    (opened,) = returned_at(calls, "openat", f'"{segment}"', "O_DIRECT")
    (directory_synced,) = returned_at(calls, "fsync", f"<{segment.parent}>")
    (written,) = returned_at(calls, "pwritev2", f"<{segment}>", "RWF_DSYNC")

    assert opened < directory_synced < written < answered_at(calls)
    assert returned_at(calls, "io_submit") == []


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_what_is_only_written_is_answered_before_it_is_flushed(
    broker: RunningBroker, tmp_path: Path, large: bool
) -> None:
    output = tmp_path / "trace"
    value = b'"%s"' % (b"large" * 20_000 if large else b"small")
    with Client(broker.url) as client:
        client.create_topic("traced", durability="written", flush_ms=300, partitions_per_range=1)
        client.produce("traced", value)  # makes the file
        with traced(broker, output):
            client.produce("traced", value)
            (path,) = broker.data_dir.resolve().rglob("*.log" if large else "*.journal")
            wait_until(lambda: returned_at(lines_of(output), "fdatasync", f"<{path}>"))
    calls = lines_of(output)

    call = "pwritev2" if large else "io_submit"
    (written,) = returned_at(calls, call, f"<{path}>")
    assert "DSYNC" not in calls[written]
    flushed = returned_at(calls, "fdatasync", f"<{path}>")[-1]
    assert written < answered_at(calls) < flushed


def test_appends_to_many_partitions_are_one_write_to_the_journal(
    broker: RunningBroker, tmp_path: Path
) -> None:
    """What comes while a write is in flight, or in one read from a connection, joins."""
    output = tmp_path / "trace"
    body = encode_records([b"key-%d" % number for number in range(64)], [b"1"] * 64)
    with Client(broker.url) as client:
        client.create_topic("traced", partitions_per_range=16)
        client.produce("traced", b"1")
        with traced(broker, output):
            sent = produce_request("traced", body, content_type=RECORDS_CONTENT_TYPE)
            with Connection(broker.port) as connection:
                produce = request(sent.target, sent.body, content_type=RECORDS_CONTENT_TYPE)
                answer = connection.exchange(produce)
    calls = lines_of(output)
    (journal,) = broker.data_dir.resolve().rglob("*.journal")

    assert len(json.loads(answer.body)) == 16
    assert len(returned_at(calls, "io_submit", f"<{journal}>", "RWF_DSYNC")) == 1
    assert returned_at(calls, "pwritev2") == []


def test_after_a_failed_write_the_range_is_led_in_the_next_epoch(
    broker: RunningBroker, tmp_path: Path
) -> None:
    """The failed offsets are given again, in an epoch that distinguishes the two batches."""
    fail_once = ("-e", "inject=io_submit:error=EIO:when=1")
    with Client(f"http://{HOST}:{broker.port}") as client:
        client.produce("traced", b'{"a":1}', key="k")
        [before] = client.ring().ranges
        with traced(broker, tmp_path / "trace", *fail_once), pytest.raises(ProblemError) as failure:
            client.produce("traced", b'{"a":2}', key="k")
        stored = client.produce("traced", b'{"a":3}', key="k")
        [after] = client.ring().ranges

    assert failure.value.status == 500
    assert stored.offset == 1
    assert after.epoch == before.epoch + 1
