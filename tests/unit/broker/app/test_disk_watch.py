"""What a broker says of its disk: writes that do not end, and a disk without room."""

import asyncio
import threading
from pathlib import Path

import pytest

from tailrace_broker.app import broker as app_broker
from tailrace_broker.app import disk_watch
from tailrace_broker.app.disk_watch import DISK_STALL_SECONDS, FULL_SECONDS, DiskWatch
from tailrace_broker.core.node.events import Health
from tailrace_broker.storage.files.writes_under_way import writing
from tests.support.broker.brokers import started_broker
from tests.support.waits import until

WAIT_S = 5.0


def test_a_write_that_does_not_end_has_stalled_until_it_ends() -> None:
    now_s, since_s = [100.0], [None, None]
    watch = DiskWatch(lambda: since_s[0], lambda: None, now_s=lambda: now_s[0])
    watch.writers.append(lambda: since_s[1])
    assert watch.health() == Health()

    since_s[1] = 100.0  # type: ignore[call-overload]
    now_s[0] += DISK_STALL_SECONDS
    assert watch.health() == Health()
    now_s[0] += 0.001
    assert watch.health() == Health(is_stalled=True)
    assert not watch.health().is_fit
    since_s[1] = None
    assert watch.health() == Health()


def test_a_disk_that_had_no_room_is_full_for_a_while() -> None:
    now_s = [100.0]
    watch = DiskWatch(lambda: None, lambda: 100.0, now_s=lambda: now_s[0])
    assert watch.health() == Health(is_full=True)
    now_s[0] += FULL_SECONDS

    assert watch.health() == Health()
    assert watch.health(is_stopping=True) == Health(is_stopping=True)


async def test_a_broker_reports_a_write_that_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And that it has ended."""
    monkeypatch.setattr(app_broker, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(disk_watch, "DISK_STALL_SECONDS", 0.0)

    go_on = threading.Event()

    def write() -> None:
        with writing():
            assert go_on.wait(WAIT_S)

    async with started_broker(tmp_path) as broker:
        control = broker.ring._control
        assert control is not None
        under_way = asyncio.ensure_future(broker._io.run(write))
        await until(lambda: not control.gossip.is_fit(0))
        go_on.set()
        await under_way
        await until(lambda: control.gossip.is_fit(0))
