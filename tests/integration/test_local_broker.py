"""A broker as a child process: how it ends is told, and what it uses is checked before."""

from pathlib import Path

import pytest

from tailrace.local_broker import BrokerEndedError, LocalBroker, PortTakenError
from tests.fixtures import RunningBroker, free_port_base

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


def test_a_taken_port_is_told_before_anything_starts(
    shared_broker: RunningBroker, tmp_path: Path
) -> None:
    broker = LocalBroker(tmp_path / "broker", port=shared_broker.port - 3)
    with pytest.raises(PortTakenError, match=f"port {shared_broker.port} cannot be used"):
        broker.start()
    assert not broker.is_running()
