"""What a start gives up, and what a replica takes for damage, after a loss of power."""

import asyncio
import errno
import json
import os
import shutil
from collections.abc import MutableMapping
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from structlog.testing import capture_logs

from tailrace.wire import BatchHeader
from tailrace_broker.app import broker as app_broker
from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.codec.batch import read_header, stamp_batch
from tailrace_broker.model.errors import StorageFailedError
from tailrace_broker.model.ring_state import RangeEnd, Replica
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.files import room
from tailrace_broker.storage.log.rescued_tail import RESCUED, load_rescued, save_rescued
from tests.support.broker.brokers import open_broker, started_broker
from tests.support.ring.ring_disk import put_ring_state, ring_state_on
from tests.support.storage.batches import Event, body_of, place_of
from tests.support.storage.full_disk import full_disk
from tests.support.storage.storage import Appends, append_large
from tests.support.waits import until

# Each starts a broker, which takes as long as the disk does.
pytestmark = pytest.mark.timeout(20)


@pytest.mark.parametrize("fails_first", [False, True])
async def test_what_a_loss_of_power_has_taken_from_a_replica_is_no_damage_to_later_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_first: bool
) -> None:
    """The journal says that more was committed: of several copies that proves nothing then.

    A start that cannot cut the journal is none: nothing may be appended above what is to go.
    """
    lost, killed = tmp_path / "lost", tmp_path / "killed"

    await replica_that_lost_power(tmp_path / "live", lost)
    if fails_first:
        with monkeypatch.context() as patch:
            let_writes_fail(patch, lost / "data/journal")
            with pytest.raises(ExceptionGroup) as raised:
                async with started_broker(lost):
                    pass
            assert raised.group_contains(StorageFailedError)
    async with started_broker(lost) as broker:
        check_registration(broker)
        shutil.copytree(lost, killed)
    await check_without_damage(killed)


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_a_start_that_must_cut_the_journal_waits_until_a_full_disk_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_stopped: bool
) -> None:
    """It says so, and tells nobody of ends that are to be cut. It may be stopped meanwhile."""
    monkeypatch.setattr(app_broker, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(room, "RETRY_SECONDS", 0.01)
    lost, has_room = tmp_path / "lost", False
    await replica_that_lost_power(tmp_path / "live", lost)

    with capture_logs() as lines, full_disk(monkeypatch, lambda: not has_room):
        async with open_broker(lost) as broker:
            starting = asyncio.create_task(broker.start())
            await until(lambda: starting.done() or any(is_full(line) for line in lines))
            await until(lambda: starting.done() or broker.counters.log_write_errors > 2)
            assert not starting.done()
            assert (broker.ring.registration, broker.is_ready) == (None, False)
            assert sum(map(is_waiting, lines)) == 1
            if is_stopped:
                starting.cancel()
            else:
                has_room = True
                await starting
                check_registration(broker)
                shutil.copytree(lost, tmp_path / "killed")
    if is_stopped:
        async with started_broker(lost) as broker:
            check_registration(broker)
            shutil.copytree(lost, tmp_path / "killed")
    await check_without_damage(tmp_path / "killed")


async def test_a_start_that_must_end_a_cut_of_segments_waits_likewise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "RETRY_SECONDS", 0.01)
    has_room = False
    async with started_broker(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", TopicSettings(partitions_per_range=2))
        for log in broker.hosted("t").all_logs():
            await append_large(log)
    directory = tmp_path / "data" / str(topic.topic_id) / "1"
    (directory / f"{1:020}.cut").touch()

    with capture_logs() as lines, full_disk(monkeypatch, lambda: not has_room):
        async with open_broker(tmp_path) as broker:
            starting = asyncio.create_task(broker.start())
            await until(lambda: starting.done() or any(map(is_waiting, lines)))
            assert (starting.done(), broker.ring.registration) == (False, None)
            has_room = True
            await starting
            assert [log.log_end for log in broker.hosted("t").all_logs()] == [1, 1]
    assert sorted(each.name for each in directory.glob("*.???")) == [
        f"{0:020}.idx", f"{0:020}.log", f"{1:020}.log",
    ]  # fmt: skip


def is_waiting(line: MutableMapping[str, Any]) -> bool:
    """The log line of a start that does so."""
    return bool(line["event"] == "start.waits")


def is_full(line: MutableMapping[str, Any]) -> bool:
    """The log line that says so of the disk."""
    return line["event"] == "health.changed" and line["full"] is True


def check_registration(broker: LocalBroker) -> None:
    """It has lost power, and what it had; it knows of nothing that was committed."""
    mine = broker.ring.registration
    assert mine is not None
    assert (mine.loss, mine.ends) == ("power", (RangeEnd(0, last_epoch=0, end=0),))


async def check_without_damage(killed: Path) -> None:
    """A later start does not take what was cut for proof of a loss."""
    with capture_logs() as lines:
        async with started_broker(killed):
            pass
    assert "partition.damaged" not in {line["event"] for line in lines}


async def replica_that_lost_power(live: Path, lost: Path) -> UUID:
    """A broker's disk that has lost the first write to a log's segment, which others have too."""
    async with started_broker(live) as broker:
        topic, _ = await broker.create_topic("t", TopicSettings(partitions_per_range=1))
        log = broker.hosted("t").log_of(0)
        await append_large(log)
        for value in (b"1", b"2"):
            await Appends(log).event(value)
        shutil.copytree(live, lost)
    state = ring_state_on(lost)
    owner = state.ranges[0]
    shared = msgspec.structs.replace(
        owner, replicas=(0, 1), isr=(*owner.isr, Replica(1, 1)), leader=None
    )
    put_ring_state(lost, msgspec.structs.replace(state, ranges={0: shared}))
    lose_power(lost / "data", topic.topic_id)
    return topic.topic_id


async def test_what_a_later_opening_gives_up_is_cut_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal may still have what was set aside. Where that fails, the log is opened later."""

    async with started_broker(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", TopicSettings(partitions_per_range=1))
        log = broker.hosted("t").open_log_of(0)
        await Appends(log).event(b"0")
        await log.spilled()
        directory = tmp_path / "data" / str(topic.topic_id) / "0"
        set_aside_with_a_stale_one(directory, topic.topic_id)
        reopen = partial(broker._topics.local.reopen, topic.topic_id, 0)
        with monkeypatch.context() as patch:
            let_writes_fail(patch, tmp_path / "data/journal")
            await reopen()
        assert isinstance(broker.hosted("t").logs[0], StorageFailedError)
        assert len(load_rescued(directory)) == 2
        writes = broker.counters.journal_writes
        await reopen()
        assert broker.hosted("t").open_log_of(0).log_end == 1
        assert (broker.counters.journal_writes, load_rescued(directory)) == (writes + 1, [])


def set_aside_with_a_stale_one(directory: Path, topic_id: UUID) -> BatchHeader:
    """The first batch of a log, as it was in the journal, and one behind a hole."""
    segment = memoryview((directory / f"{0:020}.log").read_bytes())
    first = read_header(segment)
    place = place_of(base_offset=5, epoch=first.epoch, previous_epoch=first.epoch)
    place = place._replace(topic_id=topic_id, partition=0)
    stale = stamp_batch(body_of([Event(b"stale")]), place)
    save_rescued(directory, [segment[: first.batch_bytes], bytes(stale.contents())])
    return first


def let_writes_fail(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Of files in this directory."""
    pwritev = os.pwritev

    def write(fd: int, *args: Any) -> int:
        if Path(f"/proc/self/fd/{fd}").readlink().parent == directory:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pwritev(fd, *args)

    monkeypatch.setattr(os, "pwritev", write)


def lose_power(data: Path, topic_id: UUID) -> None:
    """It takes the first write to a log's segment."""
    segment = data / str(topic_id) / "0" / f"{0:020}.log"
    segment.write_bytes(bytes(segment.stat().st_size))
    meta = data / "meta.json"
    known = json.loads(meta.read_bytes())
    meta.write_text(json.dumps({**known, "kernelBootId": "another"}))


async def test_what_is_given_up_of_what_was_set_aside_goes_before_anything_is_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest may stay, when it cannot be removed."""
    killed = tmp_path / "killed"

    async with started_broker(tmp_path / "live") as broker:
        topic, _ = await broker.create_topic("t", TopicSettings(partitions_per_range=1))
        log = broker.hosted("t").log_of(0)
        await Appends(log).event(b"0")
        await log.spilled()
        shutil.copytree(tmp_path / "live", killed)
    directory = killed / "data" / str(topic.topic_id) / "0"
    first = set_aside_with_a_stale_one(directory, topic.topic_id)
    unlink = os.unlink

    def failing(path: Path) -> None:
        if path == directory / RESCUED:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        unlink(path)

    monkeypatch.setattr(os, "unlink", failing)
    async with started_broker(killed) as broker:
        assert broker.hosted("t").open_log_of(0).log_end == 1
        assert [each.header for each in load_rescued(directory)] == [first]
