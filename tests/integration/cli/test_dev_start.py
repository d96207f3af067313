"""`tailrace dev start N`: one broker of a local ring again, beside those that run."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tailrace.cli.main import VERBS
from tailrace.sync import Client
from tests.support.broker.fixtures import free_port_base, free_ring_port
from tests.support.cli.commands import TIMEOUT_S, assert_fails, reported, run
from tests.support.cli.dev import Dev, end_by_hand, running, started

pytestmark = pytest.mark.integration


def is_served(dev: Dev, ordinal: int) -> bool:
    """Whether a broker is ready at the URL that the ring's welcome names."""
    with Client(dev.url(ordinal), timeout_s=TIMEOUT_S) as client:
        return client.is_ready()


def start(folder: Path, ordinal: int) -> "subprocess.CompletedProcess[bytes]":
    return run("dev", "start", str(ordinal), "--data", "ring", cwd=folder)


def test_a_killed_broker_of_a_ring_is_started_again_beside_the_others(tmp_path: Path) -> None:
    with running(tmp_path, "--brokers", "3", port=free_ring_port(3)) as dev:
        os.kill(dev.pid(1), signal.SIGKILL)
        note = dev.noted()
        with started(tmp_path, "start", "1", "--data", "ring") as (broker, printed):
            is_there = is_served(dev, 1)
            os.kill(dev.pid(2), signal.SIGKILL)
            second_note = dev.noted()
            is_still_there = is_served(dev, 1)
            broker.send_signal(signal.SIGINT)
            broker.communicate(timeout=TIMEOUT_S)
        end_by_hand(dev)

    assert note == (
        "broker 1 was killed by SIGKILL (kill -9, or the machine ran out of memory); others serve "
        "its partitions until it runs again: tailrace dev start 1 --data ring. The ring goes on "
        "with 0, 2\n"
    )
    assert printed == (
        f"✓ broker 1 ready, data in ring/1\n  {dev.url(1)}  pid "
        + re.findall(r"pid (\d+)", printed)[0]
        + "  log ring/1.log\nCtrl-C ends it, data stays.\n"
    )
    assert (is_there, is_still_there) == (True, True)
    assert second_note.endswith("The ring goes on with 0, 1\n")
    assert (broker.returncode, dev.process.returncode) == (130, 130)


def test_what_cannot_be_started_alone_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with running(tmp_path, "--brokers", "2", port=free_ring_port(2)) as dev:
        running_already = start(tmp_path, 1)
        no_such = start(tmp_path, 2)
        os.kill(dev.pid(1), signal.SIGKILL)
        dev.noted()
        secret = tmp_path / "ring" / "ring-secret"
        secret.rename(tmp_path / "kept")
        without_secret = start(tmp_path, 1)
        (tmp_path / "kept").rename(secret)
        (tmp_path / "ring" / "ring.json").write_text('{"brokers": 2}')
        without_port = start(tmp_path, 1)

    assert_fails(running_already, 1, f"broker 1 of ring runs already: {dev.url(1)}")
    assert_fails(no_such, 1, "ring has brokers 0 and 1, and no broker 2")
    assert_fails(without_secret, 1, r"ring/ring-secret .*: put it back, or end all .* tailrace dev")
    assert_fails(without_port, 1, r"ring/ring.json does not say the ring's port: .* tailrace dev")


def test_without_a_ring_the_way_to_one_is_named(tmp_path: Path) -> None:
    empty = start(tmp_path, 0)
    with running(tmp_path, port=free_port_base()) as alone:
        end_by_hand(alone)
    single = start(tmp_path, 0)
    shutil.rmtree(tmp_path / "ring")

    assert_fails(empty, 1, "ring holds no ring of several brokers; start one: tailrace dev .*")
    assert_fails(single, 1, "ring holds one broker; start it: tailrace dev --data ring")


@pytest.mark.parametrize("lost", ["0", "0/data"])
def test_a_broker_alone_that_has_lost_its_data_begins_again_only_when_asked_to(
    tmp_path: Path, lost: str
) -> None:
    with running(tmp_path, port=free_port_base()) as dev:
        reported(run("produce", "kept", "{}", url=dev.url(0)))
        end_by_hand(dev)
    shutil.rmtree(tmp_path / "ring" / lost)
    refused = run("dev", "--data", "ring", "--port", str(dev.port), cwd=tmp_path)
    (tmp_path / "ring" / "0" / "data").mkdir(parents=True)
    with running(tmp_path, port=dev.port) as dev:
        with Client(dev.url(0), timeout_s=TIMEOUT_S) as client:
            topics = client.topics()
        end_by_hand(dev)

    assert_fails(
        refused,
        1,
        "ring/0/data is missing, but ring/ring.json says that the ring had its data there: restore "
        "it from a copy; or give the events up: mkdir -p ring/0/data; the ring then begins again",
    )
    assert topics == []


@pytest.mark.parametrize(
    ("number", "how"),
    [
        (signal.SIGKILL, "was killed by SIGKILL (kill -9, or the machine ran out of memory)"),
        (signal.SIGTERM, "was stopped (SIGTERM or SIGINT)"),
    ],
)
def test_a_broker_alone_that_ends_says_by_what_where_its_data_is_and_how_to_start_it(
    tmp_path: Path, number: signal.Signals, how: str
) -> None:
    with running(tmp_path, port=free_port_base()) as dev:
        tasks = Path(f"/proc/{dev.process.pid}/task")
        [child] = (tasks / str(dev.process.pid) / "children").read_text().split()
        os.kill(int(child), number)
        _, errors = dev.process.communicate(timeout=TIMEOUT_S)

    assert dev.process.returncode == 1
    assert errors.decode().endswith(
        f"error: the broker {how}; its data is in ring/0, and nothing is served until it is "
        f"started again: tailrace dev --data ring --port {dev.port}\n"
    )


def test_a_broker_of_a_ring_that_is_killed_says_how_to_start_it_again(tmp_path: Path) -> None:
    with running(tmp_path, "--brokers", "3", port=free_ring_port(3)) as dev:
        os.kill(dev.pid(1), signal.SIGKILL)
        dev.noted()
        with started(tmp_path, "start", "1", "--data", "ring") as (broker, printed):
            os.kill(int(re.findall(r"pid (\d+)", printed)[0]), signal.SIGKILL)
            _, errors = broker.communicate(timeout=TIMEOUT_S)
        end_by_hand(dev)

    assert broker.returncode == 1
    assert errors.decode().endswith(
        "error: broker 1 was killed by SIGKILL (kill -9, or the machine ran out of memory); its "
        "data is in ring/1, and the ring is without it until it runs again: tailrace dev start 1 "
        "--data ring\n"
    )


def test_the_examples_of_this_verb_are_what_is_tried_here() -> None:
    assert VERBS["dev start"].examples == (
        "tailrace dev start 1",
        "tailrace dev start 2 --data /tmp/ring",
    )
