"""`tailrace dev`: a broker for as long as the command runs, and not longer."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker.fixtures import RunningBroker, free_port_base
from tests.support.cli.commands import TIMEOUT_S, assert_fails, run
from tests.support.cli.dev import started

pytestmark = pytest.mark.integration


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def has_ended(process: int) -> bool:
    """Waits for a process that may be another's child; `process` is of `os.pidfd_open`."""
    return bool(select.select([process], [], [], TIMEOUT_S)[0])


def paste(line: str) -> object:
    """What a shell's user gets for it."""
    result = subprocess.run(["sh", "-c", line], capture_output=True, timeout=TIMEOUT_S, check=True)
    return json.loads(result.stdout)


def test_the_lines_of_dev_work_when_pasted_and_data_stays(tmp_path: Path) -> None:
    port = free_port_base()
    with started(tmp_path, "--port", str(port)) as (dev, welcome):
        lines = map(str.strip, welcome.splitlines())
        produce_line, read_line = [line for line in lines if line.startswith("curl")]
        produced = paste(produce_line)
        read = paste(read_line)
        dev.send_signal(signal.SIGINT)
        _, errors = dev.communicate(timeout=TIMEOUT_S)
        exit_code = dev.returncode
    with started(tmp_path, "--port", str(port)):
        read_later = paste(read_line)

    assert (exit_code, errors) == (130, b"")
    assert isinstance(produced, dict)
    assert isinstance(read, dict)
    assert produced["offset"] == 0
    assert read["value"] == {"origin": "SFO"}
    assert read_later == read
    for listener in range(4):
        assert f"http://127.0.0.1:{port + listener}" in welcome
    assert (tmp_path / ".tailrace" / "0").is_dir()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_dev_and_its_broker(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path, "--data", "events", "--port", str(free_port_base())) as (dev, _):
        [broker_pid] = children_of(dev.pid)
        dev.send_signal(number)
        _, errors = dev.communicate(timeout=TIMEOUT_S)

    assert (dev.returncode, errors) == (0, b"")
    assert not Path(f"/proc/{broker_pid}").exists()
    assert (tmp_path / "events" / "0").is_dir()


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_a_killed_dev_leaves_no_broker(tmp_path: Path) -> None:
    with started(tmp_path, "--port", str(free_port_base())) as (dev, _):
        [broker_pid] = children_of(dev.pid)
        broker = os.pidfd_open(broker_pid)
        dev.kill()

        assert has_ended(broker)
        os.close(broker)


def test_a_broker_that_exits_ends_dev(tmp_path: Path) -> None:
    with started(tmp_path, "--port", str(free_port_base())) as (dev, _):
        [broker_pid] = children_of(dev.pid)
        os.kill(broker_pid, signal.SIGKILL)
        _, errors = dev.communicate(timeout=TIMEOUT_S)

    assert dev.returncode == 1
    assert b"error: the broker was killed by SIGKILL" in errors


def test_a_taken_port_is_reported_with_the_remedy(
    shared_broker: RunningBroker, tmp_path: Path
) -> None:
    taken = shared_broker.port
    for base in (taken, taken - 3):  # the broker's first port as our first and as our last
        result = run("dev", "--port", str(base), cwd=tmp_path)

        assert_fails(result, 1, f"port {taken} cannot be used .*tailrace dev --port {base + 10}")


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ("file", r"file cannot be a directory \(File exists\)"),
        ("taken", r"taken/0 cannot be a directory \(File exists\)"),
        ("link", "link is a link to .*nowhere, which does not exist: make that directory"),
        ("link/below", "link is a link to .*nowhere, which does not exist"),
        ("file/below", r"file cannot be a directory \(File exists\)"),
        ("/proc/events", r"/proc/events cannot be a directory \(No such file or directory\)"),
    ],
)
def test_a_directory_that_cannot_be_is_reported_with_the_remedy(
    tmp_path: Path, data: str, error: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "0").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    before = sorted(tmp_path.iterdir())
    result = run("dev", "--data", data, "--port", str(free_port_base()), cwd=tmp_path)

    assert_fails(result, 1, f"{error}.* choose another for the data")
    assert sorted(tmp_path.iterdir()) == before


def test_an_empty_directory_name_is_not_the_present_directory(tmp_path: Path) -> None:
    result = run("dev", "--data", "", "--port", str(free_port_base()), cwd=tmp_path)

    assert_fails(result, 2, "a directory's name is needed")
    assert list(tmp_path.iterdir()) == []


def test_a_link_to_a_directory_holds_the_data(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    with started(tmp_path, "--data", "link", "--port", str(free_port_base())):
        assert (tmp_path / "disk" / "0" / "data").is_dir()


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "events" / "0" / "data").mkdir(parents=True)
    (tmp_path / "events" / "0" / "data" / "meta.json").write_text("{")
    result = run("dev", "--data", "events", "--port", str(free_port_base()), cwd=tmp_path)

    assert_fails(result, 1, "meta.json")
