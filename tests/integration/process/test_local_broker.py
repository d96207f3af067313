"""A broker as a child process: how it ends is reported, and what it uses is checked before."""

from pathlib import Path

import pytest

from tailrace.local.broker import (
    BrokerEndedError,
    DataDirectoryError,
    LocalBroker,
    PortTakenError,
    make_directory,
)
from tests.support.broker.fixtures import RunningBroker, free_port_base

pytestmark = pytest.mark.integration


def local_broker(tmp_path: Path, **settings: str | float) -> LocalBroker:
    return LocalBroker(
        tmp_path / "broker",
        port=free_port_base(),
        settings=settings,
        log_path=tmp_path / "broker.log",
    )


def test_it_runs_for_the_block_and_again_for_the_next(tmp_path: Path) -> None:
    broker = local_broker(tmp_path)
    for _ in range(2):
        with broker:
            broker.wait_ready()
            assert broker.metrics()["tailrace_ready"] == 1
        assert not broker.is_running()


def test_one_that_ends_before_it_serves_is_not_waited_for(tmp_path: Path) -> None:
    with (
        pytest.raises(BrokerEndedError, match=r"exit code 1: error: .*LOG_LEVEL.*broker\.log"),
        local_broker(tmp_path, log_level="loud") as broker,
    ):
        broker.wait_ready()


def test_an_end_that_is_not_clean_is_an_error(tmp_path: Path) -> None:
    broker = local_broker(tmp_path)
    broker.start()
    broker.kill()

    with pytest.raises(BrokerEndedError) as caught:
        broker.stop()
    assert caught.value.exit_code == -9


def test_one_that_is_asked_twice_to_stop_ends_cleanly_and_starts_again(tmp_path: Path) -> None:
    """As each broker of a ring is: all are asked at once, then each is waited for."""
    broker = local_broker(tmp_path)
    for _ in range(2):
        broker.start()
        broker.wait_ready()
        broker.terminate()
        while broker.is_running():
            broker.terminate()
        broker.stop()

    assert not broker.is_running()


def test_a_taken_port_is_reported_before_anything_starts(
    shared_broker: RunningBroker, tmp_path: Path
) -> None:
    broker = LocalBroker(tmp_path / "broker", port=shared_broker.port - 3)
    with pytest.raises(PortTakenError, match=f"port {shared_broker.port} cannot be used"):
        broker.start()
    assert not broker.is_running()


def test_the_directories_above_the_data_are_made(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    for _ in range(2):
        make_directory(tmp_path / "link" / "a" / "b")

    assert (tmp_path / "disk" / "a" / "b").is_dir()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("file", r"file cannot be a directory \(File exists\)"),
        ("file/below", r"file cannot be a directory \(File exists\)"),
        ("link/below", "link is a link to nowhere, which does not exist: make that directory"),
        ("circle", "circle is a link to circle, which does not exist"),
        ("x" * 300, "cannot be a directory .*name too long"),
    ],
)
def test_what_is_in_a_directorys_way_is_named_before_anything_starts(
    tmp_path: Path, path: str, reason: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "circle").symlink_to("circle")
    broker = LocalBroker(tmp_path / path, port=free_port_base())
    with pytest.raises(DataDirectoryError, match=f"(?i){reason}.* choose another for the data"):
        broker.start()
    assert not broker.is_running()
