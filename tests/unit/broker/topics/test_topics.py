"""Topics altered and deleted, with appends under way, failing disks and stops in between."""

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from time import time_ns
from uuid import UUID

import msgspec
import pytest
from structlog.testing import capture_logs

from tailrace.wire import LOG_START_FILE
from tailrace_broker.app import broker as app_broker
from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.codec.metadata import decode_deleted
from tailrace_broker.core.ring.commands import apply_command
from tailrace_broker.model.commands import (
    CreateTopic,
    DeleteTopic,
    PurgeTopics,
    RestoreTopic,
    Stamped,
)
from tailrace_broker.model.errors import (
    InvalidTopicNameError,
    NotAgreedError,
    NotReadyError,
    StorageFailedError,
    TopicExistsError,
    TopicNotFoundError,
)
from tailrace_broker.model.ring_state import RingState
from tailrace_broker.model.topic import Topic, TopicSettings
from tailrace_broker.node.ring import _Request
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.log.partition_log import PartitionLog
from tests.support.broker.brokers import open_broker, started_broker, wait_until_gone
from tests.support.ring.ring_disk import put_ring_state, ring_state_on
from tests.support.storage.storage import Appends, FaultyDisk, values_in
from tests.support.storage.topics import new_topic
from tests.support.waits import until

ONE = TopicSettings(partitions_per_range=1)
HOUR_MS = 3_600_000


def run(scenario: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(scenario())


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    return FaultyDisk(monkeypatch, spares_metadata=True)


async def create_with_records(broker: LocalBroker, *values: bytes) -> Topic:
    """Topic "t" of one partition with these records."""
    topic, _ = await broker.create_topic("t", ONE)
    await Appends(broker.hosted("t").log_of(0)).batch(list(values))
    return topic


async def values_of(broker: LocalBroker) -> list[bytes | None]:
    """The records of topic "t"."""
    return await values_in(broker.hosted("t").log_of(0))


def names_of(broker: LocalBroker) -> list[str]:
    return [hosted.topic.name for hosted in broker.topics()]


def living_path(root: Path, topic: Topic) -> Path:
    return root / "data" / str(topic.topic_id)


def trash_path(root: Path, topic: Topic) -> Path:
    return root / "data" / "trash" / str(topic.topic_id)


# --- create ---------------------------------------------------------------------------------------


def test_a_topic_that_is_agreed_on_is_not_called_missing_until_it_is_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            await broker.ring.change(CreateTopic("t", UUID(int=1), ONE))
            with pytest.raises(NotReadyError, match='opening topic "t"'):
                broker.hosted("t")
            with pytest.raises(TopicExistsError):  # reported when the one that exists can be used
                await broker.create_topic("t", TopicSettings(partitions_per_range=2))
            assert broker.hosted("t").topic.topic_id == UUID(int=1)

    run(scenario)


def test_a_topic_that_is_agreed_on_is_not_gone_for_its_groups_until_nobody_can_restore_it(
    tmp_path: Path,
) -> None:
    """A compaction leaves out the positions in topics that are gone."""

    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            await broker.ring.change(CreateTopic("t", UUID(int=1), ONE))
            assert broker._topics.gone([UUID(int=1), UUID(int=2)]) == {UUID(int=2)}
            await broker.ring.change(DeleteTopic("t", 1))
            assert broker._topics.gone([UUID(int=1)]) == set()
            await broker.ring.change(PurgeTopics({UUID(int=1): 1}))
            assert broker._topics.gone([UUID(int=1)]) == {UUID(int=1)}

    run(scenario)


def test_what_the_ring_has_not_agreed_on_at_a_stop_is_reported(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            creation = asyncio.create_task(broker.create_topic("t", ONE))
            await asyncio.sleep(0)
            reading = broker.ring._loop.create_future()
            broker.ring._requests[0] = _Request(reading, doubt="")
            await broker.ring.stop()
            with pytest.raises(NotAgreedError, match=r"^the broker stops$"):
                await reading
            with pytest.raises(NotAgreedError, match="may still come to be"):
                await creation
            with pytest.raises(NotReadyError):
                await broker.ring.current()

    run(scenario)


def test_a_topic_that_was_deleted_and_restored_meanwhile_has_come_under_its_new_name(
    tmp_path: Path,
) -> None:
    changed: list[str] = []

    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            topic = await create_with_records(broker, b"0")
            broker.groups._topics.local.on_changed = changed.append
            await asyncio.gather(  # the last two are one write, and applied as one
                broker.ring.change(CreateTopic("other", UUID(int=1), ONE)),
                broker.ring.change(DeleteTopic("t", 1, topic.topic_id)),
                broker.ring.change(RestoreTopic(topic.topic_id, "u")),
            )
            await broker.create_topic("last", ONE)
            assert await values_in(broker.hosted("u").log_of(0)) == [b"0"]
            assert names_of(broker) == ["last", "other", "u"]

    run(scenario)

    assert sorted(changed) == ["last", "other", "t", "u"]


# --- alter ----------------------------------------------------------------------------------------


def test_an_altered_topic_is_so_at_once_and_after_a_restart(tmp_path: Path) -> None:
    wanted = TopicSettings(partitions_per_range=1, json_check=False)

    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            await create_with_records(broker, b"0")
            hosted = broker.hosted("t")
            assert (await broker.alter_topic("t", {"json_check": False})).settings == wanted
            assert hosted.topic.settings == wanted
            assert await values_of(broker) == [b"0"]
        async with started_broker(tmp_path) as broker:
            assert broker.hosted("t").topic.settings == wanted

    run(scenario)


def test_settings_that_are_what_they_were_change_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            topic, _ = await broker.create_topic("t", ONE)
            assert await broker.alter_topic("t", {"json_check": True}) == topic
            assert broker.hosted("t").topic == topic

    run(scenario)


def test_alterations_at_the_same_time_keep_each_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            await broker.create_topic("t", ONE)
            await asyncio.gather(
                broker.alter_topic("t", {"json_check": False}),
                broker.alter_topic("t", {"linger_ms": 5}),
            )
            assert broker.hosted("t").topic.settings == TopicSettings(
                partitions_per_range=1, json_check=False, linger_ms=5
            )

    run(scenario)


def test_a_topic_gets_the_partitions_that_it_is_altered_to(tmp_path: Path) -> None:
    """By steps that nobody has to ask for; what is stored stays where it is."""

    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            await create_with_records(broker, b"0", b"1")
            hosted = broker.hosted("t")
            await broker.alter_topic("t", {"partitions_per_range": 3})
            assert len(hosted.topic.partitions) == 1
            await until(lambda: len(hosted.topic.partitions) == 4)

            await broker.alter_topic("t", {"partitions_per_range": 2})
            await until(lambda: len(hosted.logs) == 6 and isinstance(hosted.logs[5], PartitionLog))
            parents = [each.parents for each in hosted.topic.partitions]
            assert parents == [(), (0,), (0,), (0,), (1, 2), (2, 3)]
            ends = [(each.first_offset, each.sealed_end) for each in hosted.topic.partitions]
            assert ends == [(0, 2), (2, 2), (2, 2), (2, 2), (2, None), (2, None)]
            assert await values_of(broker) == [b"0", b"1"]
            await Appends(hosted.log_of(5)).batch([b"2"])
        async with started_broker(tmp_path) as broker:
            assert await values_in(broker.hosted("t").log_of(5)) == [b"2"]

    run(scenario)


def test_a_broker_whose_disk_does_not_take_what_is_agreed_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows what such a disk holds; the next start looks."""
    disk = FaultyDisk(monkeypatch)
    failures: list[BaseException] = []

    async def scenario() -> None:
        async with started_broker(tmp_path, failures=failures) as broker:
            await broker.create_topic("t", ONE)
            disk.fail("pwritev", errno.EIO)
            altering = asyncio.create_task(broker.alter_topic("t", {"json_check": False}))
            await until(lambda: bool(failures))
            assert broker.hosted("t").topic.settings == ONE
            altering.cancel()
        assert isinstance(failures[0], StorageFailedError)
        async with started_broker(tmp_path) as broker:
            assert broker.hosted("t").topic.settings == ONE

    run(scenario)


def test_what_is_no_topic_is_neither_altered_nor_deleted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_broker(tmp_path) as broker:
            with pytest.raises(NotReadyError):
                await broker.delete_topic("t")
            with pytest.raises(NotReadyError):
                await broker.alter_topic("t", {})
            await broker.start()
            for name, kind in (("t", TopicNotFoundError), ("../t", InvalidTopicNameError)):
                with pytest.raises(kind):
                    await broker.delete_topic(name)
                with pytest.raises(kind):
                    await broker.alter_topic(name, {})

    run(scenario)


# --- delete ---------------------------------------------------------------------------------------


def test_a_deleted_topic_is_gone_and_its_data_is_in_the_trash(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            before_us = broker.now_us()
            topic = await create_with_records(broker, b"0")
            await broker.delete_topic("t")
            assert names_of(broker) == []
            with pytest.raises(TopicNotFoundError, match="create it with POST"):
                broker.hosted("t")
            assert not living_path(tmp_path, topic).exists()
            deleted = decode_deleted((trash_path(tmp_path, topic) / "topic.json").read_bytes())
            assert deleted.topic == topic
            assert before_us <= deleted.deleted_us <= broker.now_us()
            assert (trash_path(tmp_path, topic) / "0" / f"{0:020d}.log").exists()
        async with started_broker(tmp_path) as broker:
            assert names_of(broker) == []

    run(scenario)


def test_a_topic_without_a_record_and_one_with_damage_are_deleted_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            empty, _ = await broker.create_topic("empty", ONE)
            damaged, _ = await broker.create_topic("damaged", ONE)
        directory = living_path(tmp_path, damaged) / "0"
        directory.mkdir(parents=True)
        (directory / LOG_START_FILE).write_bytes(b"{")
        async with started_broker(tmp_path) as broker:
            assert broker.damaged_count == 1
            for topic in (empty, damaged):
                await broker.delete_topic(topic.name)
                assert trash_path(tmp_path, topic).is_dir()
            assert broker.partition_count == 0

    run(scenario)


def test_a_topic_of_the_same_name_can_be_created_and_deleted_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        topics = []
        async with started_broker(tmp_path) as broker:
            for value in (b"first", b"second"):
                topics.append(await create_with_records(broker, value))
                assert await values_of(broker) == [value]
                await broker.delete_topic("t")
            assert await create_with_records(broker, b"third") not in topics
            assert await values_of(broker) == [b"third"]
        assert all(trash_path(tmp_path, topic).is_dir() for topic in topics)

    run(scenario)


def test_appends_under_way_end_and_later_ones_are_refused(tmp_path: Path, disk: FaultyDisk) -> None:
    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            topic = await create_with_records(broker, b"0")
            log = broker.hosted("t").log_of(0)
            appends = Appends(log)
            waiting = asyncio.create_task(log.wait_beyond(1))
            disk.hold_writes()
            appends.event(b"1")
            await disk.wait_for_held_write()
            appends.event(b"2")
            deleting = asyncio.create_task(broker.delete_topic("t"))
            await waiting  # it takes no more appends
            appends.event(b"3")
            assert not deleting.done()

            disk.let_writes_go_on()
            first, second, third = await appends.outcomes()
            assert (first, second) == (1, 2)
            assert isinstance(third, TopicNotFoundError)
            await deleting
            assert trash_path(tmp_path, topic).is_dir()

    run(scenario)


def test_the_name_is_free_while_the_deleted_log_still_writes(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            topic = await create_with_records(broker, b"0")
            log = broker.hosted("t").log_of(0)
            disk.hold_writes()
            appends = Appends(log)
            appends.event(b"1")
            await disk.wait_for_held_write()
            deleting = asyncio.create_task(broker.delete_topic("t"))
            await log.wait_beyond(1)
            again, is_new = await broker.create_topic("t", ONE)
            assert is_new
            assert again.topic_id != topic.topic_id
            assert not deleting.done()
            disk.let_writes_go_on()
            await deleting

    run(scenario)


def test_a_deletion_that_cannot_be_marked_is_finished_by_the_next_start(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            topic = await create_with_records(broker, b"0")
            disk.fail("replace", errno.EIO)
            await broker.delete_topic("t")
            assert names_of(broker) == []
            assert living_path(tmp_path, topic).is_dir()
            assert not (living_path(tmp_path, topic) / "topic.json").exists()
        async with started_broker(tmp_path) as broker:
            assert trash_path(tmp_path, topic).is_dir()
            await broker.restore_topic("t", None)
            assert await values_of(broker) == [b"0"]

    run(scenario)


def test_data_that_cannot_be_moved_is_moved_by_the_next_start(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            topic = await create_with_records(broker, b"0")
            disk.fail("rename")
            await broker.delete_topic("t")
            assert living_path(tmp_path, topic).is_dir()
        async with started_broker(tmp_path) as broker:
            assert names_of(broker) == []
            assert not living_path(tmp_path, topic).exists()
            assert trash_path(tmp_path, topic).is_dir()

    run(scenario)


def stop_after_agreeing(root: Path, _: Topic) -> None:
    deleted = Stamped(1, DeleteTopic("t", 10**15))
    put_ring_state(root, apply_command(ring_state_on(root), deleted))


def stop_after_marking(root: Path, topic: Topic) -> None:
    stop_after_agreeing(root, topic)
    mark(root, topic)


def mark(root: Path, topic: Topic) -> None:
    directory = DataDirectory(root)
    directory.trash.mark(topic, 10**15)
    directory.close()


@pytest.mark.parametrize("stop", [stop_after_agreeing, stop_after_marking])
def test_a_deletion_that_was_stopped_is_finished(
    tmp_path: Path, stop: Callable[[Path, Topic], None]
) -> None:
    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            topic = await create_with_records(broker, b"0")
        stop(tmp_path, topic)
        async with started_broker(tmp_path, delete_retention_ms=10**15) as broker:
            assert names_of(broker) == []
            assert trash_path(tmp_path, topic).is_dir()
            (deleted,) = await broker.trashed_topics()
            assert (deleted.topic.name, deleted.deleted_us) == ("t", 10**15)

    run(scenario)


def test_a_mark_of_a_topic_that_is_there_buries_nothing_later(tmp_path: Path) -> None:
    """Older metadata is put back, which does not know the topic."""

    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            topic = await create_with_records(broker, b"0")
        mark(tmp_path, topic)
        async with started_broker(tmp_path):
            pass
        state = ring_state_on(tmp_path)
        put_ring_state(tmp_path, msgspec.structs.replace(state, topics={}))
        async with started_broker(tmp_path):
            pass
        state = msgspec.structs.replace(ring_state_on(tmp_path), topics=state.topics)
        put_ring_state(tmp_path, state)
        async with started_broker(tmp_path) as broker:
            assert await values_of(broker) == [b"0"]

    run(scenario)


def test_data_of_no_topic_is_left_alone_and_no_start_fails(tmp_path: Path) -> None:
    """As when older metadata has been put back."""

    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            topic = await create_with_records(broker, b"0")
        state = ring_state_on(tmp_path)
        put_ring_state(tmp_path, msgspec.structs.replace(state, topics={}))
        with capture_logs() as logs:
            async with started_broker(tmp_path) as broker:
                assert names_of(broker) == []
                assert (living_path(tmp_path, topic) / "0").is_dir()
        unknown = [line["path"] for line in logs if line["event"] == "topic.unknown"]
        assert unknown == [str(living_path(tmp_path, topic))]

    run(scenario)


def test_the_ring_forgets_a_deletion_when_its_data_is_purged(tmp_path: Path) -> None:
    async def scenario() -> None:
        for retention_ms, is_kept in ((HOUR_MS, True), (0, False)):
            async with started_broker(tmp_path, delete_retention_ms=retention_ms) as broker:
                if is_kept:
                    await broker.create_topic("t", ONE)
                    await broker.delete_topic("t")
                await until(lambda: broker.counters.purged_topics == 1 - is_kept)  # noqa: B023
                await until(lambda: bool(ring_of(broker).deleted) == is_kept)  # noqa: B023

    run(scenario)


def ring_of(broker: LocalBroker) -> RingState:
    assert broker.ring.state is not None
    return broker.ring.state


async def see_that_no_stop_ends(root: Path, go_on: Callable[[], None]) -> None:
    """Beside a stop that goes as far as it can; then let it `go_on`."""
    for _ in range(30):
        await asyncio.to_thread(bool)
    has_ended = (root / "data" / "clean-stop.json").exists()
    go_on()
    assert not has_ended


def test_a_stop_waits_for_a_deletion_that_is_being_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, began, may_go_on = os.replace, threading.Event(), threading.Event()

    def slow_replace(source: Path, target: Path) -> None:
        if target.name == "topic.json":
            began.set()
            assert may_go_on.wait(5)
        replace(source, target)

    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            topic = await create_with_records(broker, b"0")
            monkeypatch.setattr(os, "replace", slow_replace)
            deleting = asyncio.create_task(broker.delete_topic("t"))
            assert await asyncio.to_thread(began.wait, 5)
            seeing = asyncio.create_task(see_that_no_stop_ends(tmp_path, may_go_on.set))
        async with asyncio.timeout(5):
            await seeing
            await deleting
        assert trash_path(tmp_path, topic).is_dir()

    run(scenario)


def test_a_stop_waits_for_the_logs_that_a_deletion_closes(tmp_path: Path, disk: FaultyDisk) -> None:
    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            await create_with_records(broker, b"0")
            log = broker.hosted("t").log_of(0)
            appends = Appends(log)
            disk.hold_writes()
            appends.event(b"1")
            await disk.wait_for_held_write()
            appends.event(b"2")
            deleting = asyncio.create_task(broker.delete_topic("t"))
            await log.wait_beyond(1)  # it takes no more appends
            seeing = asyncio.create_task(see_that_no_stop_ends(tmp_path, disk.let_writes_go_on))
        async with asyncio.timeout(5):
            await seeing
            assert await appends.outcomes() == [1, 2]
            await deleting
        async with started_broker(tmp_path) as broker:
            await broker.restore_topic("t", None)
            assert await values_of(broker) == [b"0", b"1", b"2"]

    run(scenario)


# --- purge ----------------------------------------------------------------------------------------


def test_without_retention_a_deleted_topic_frees_its_space_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(tmp_path, delete_retention_ms=0) as broker:
            for _ in range(2):
                topic = await create_with_records(broker, b"0")
                await broker.delete_topic("t")
                await wait_until_gone(trash_path(tmp_path, topic))
        assert list((tmp_path / "data" / "trash").iterdir()) == []

    run(scenario)


def test_a_clock_that_jumps_ahead_makes_no_deletion_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = new_topic("old", ONE, UUID(int=1))

    async def scenario() -> None:
        async with started_broker(tmp_path, delete_retention_ms=HOUR_MS) as broker:
            topic = await create_with_records(broker, b"0")
            await broker.delete_topic("t")
            monkeypatch.setattr(app_broker, "time_ns", lambda: time_ns() + 2 * HOUR_MS * 10**6)
            broker._directory.trash.mark(old, 1)
            broker._directory.trash.bury(old.topic_id)
            broker._topics._purger.look()
            await wait_until_gone(trash_path(tmp_path, old))
            assert trash_path(tmp_path, topic).is_dir()

    run(scenario)


def test_no_deletion_is_old_while_clocks_of_brokers_differ(tmp_path: Path) -> None:
    """Else a broker that starts with a clock that is days ahead ends all that can be restored."""

    async def scenario() -> None:
        async with started_broker(tmp_path, delete_retention_ms=HOUR_MS) as broker:
            topics, after_us = broker._topics, broker.now_us() + 2 * HOUR_MS * 1000
            topics.is_time_sure = lambda: False
            await broker.ring.change(CreateTopic("t", UUID(int=1), ONE))
            await broker.ring.change(DeleteTopic("t", 1))
            assert topics._purge_agreed(after_us) == 1
            assert not topics._is_purging
            topics.is_time_sure = lambda: True
            topics._purge_agreed(after_us)
            await until(lambda: broker.ring.state is not None and not broker.ring.state.deleted)

    run(scenario)


def test_what_is_purged_is_the_deletion_that_was_old(tmp_path: Path) -> None:
    """Not a later one of a topic that was restored while the purge was on its way."""

    async def scenario() -> None:
        async with started_broker(tmp_path, delete_retention_ms=HOUR_MS) as broker:
            await broker.ring.change(CreateTopic("t", UUID(int=1), ONE))
            await broker.ring.change(DeleteTopic("t", 1))
            assert broker.ring.state is not None
            old = broker.ring.state.deleted[UUID(int=1)]
            await broker.ring.change(RestoreTopic(UUID(int=1)))
            await broker.ring.change(DeleteTopic("t", 2))
            await broker._topics._forget_deleted([old])
            assert broker.ring.state.deleted[UUID(int=1)].deleted_us == 2

    run(scenario)


def test_a_start_purges_what_is_old_and_keeps_the_rest(tmp_path: Path) -> None:
    old = new_topic("old", ONE, UUID(int=1))
    new = new_topic("new", ONE, UUID(int=2))

    async def scenario() -> None:
        directory = DataDirectory(tmp_path)
        for topic, deleted_us in ((old, 1), (new, 10**18)):
            directory.trash.mark(topic, deleted_us)
            directory.trash.bury(topic.topic_id)
        directory.close()
        async with started_broker(tmp_path, delete_retention_ms=HOUR_MS):
            await wait_until_gone(trash_path(tmp_path, old))
            assert trash_path(tmp_path, new).is_dir()

    run(scenario)
