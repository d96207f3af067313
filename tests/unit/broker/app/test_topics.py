"""Topics altered and deleted, with appends under way, failing disks and stops in between."""

import asyncio
import errno
import json
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from uuid import UUID

import pytest

from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.codec.metadata import decode_deleted
from tailrace_broker.core.metadata import new_topic
from tailrace_broker.model.errors import (
    InvalidParameterError,
    InvalidTopicNameError,
    NotReadyError,
    StorageFailedError,
    TopicNotFoundError,
)
from tailrace_broker.model.topic import Topic, TopicSettings
from tailrace_broker.storage.data_directory import DataDirectory
from tests.brokers import open_broker, started_broker, wait_until_gone
from tests.storage import Appends, FaultyDisk, values_in

ONE = TopicSettings(partitions_per_range=1)
HOUR_MS = 3_600_000


def run(scenario: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(scenario())


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    return FaultyDisk(monkeypatch)


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


def test_settings_that_are_what_they_were_are_not_written(tmp_path: Path, disk: FaultyDisk) -> None:
    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            topic, _ = await broker.create_topic("t", ONE)
            before = disk.calls["replace"]
            assert await broker.alter_topic("t", {"json_check": True}) == topic
            assert disk.calls["replace"] == before

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


def test_the_number_of_partitions_cannot_be_altered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            await broker.create_topic("t", ONE)
            with pytest.raises(InvalidParameterError, match="create another topic") as refused:
                await broker.alter_topic("t", {"partitions_per_range": 2})
            assert refused.value.members == {"parameter": "partitionsPerRange"}

    run(scenario)


def test_an_alteration_that_cannot_be_saved_is_none(tmp_path: Path, disk: FaultyDisk) -> None:
    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            await broker.create_topic("t", ONE)
            disk.fail("replace", errno.EIO)
            with pytest.raises(StorageFailedError):
                await broker.alter_topic("t", {"json_check": False})
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
        (directory / f"{99:020d}.log").write_bytes(b"")
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


@pytest.mark.parametrize("skipped", [0, 1], ids=["marking it", "saving the topics"])
def test_a_deletion_that_cannot_be_saved_is_none(
    tmp_path: Path, disk: FaultyDisk, skipped: int
) -> None:
    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            topic = await create_with_records(broker, b"0")
            disk.fail("replace", errno.EIO, skipped=skipped)
            with pytest.raises(StorageFailedError):
                await broker.delete_topic("t")
            assert await values_of(broker) == [b"0"]
            assert await Appends(broker.hosted("t").log_of(0)).event(b"1") == 1
            assert not (living_path(tmp_path, topic) / "topic.json").exists()

            await broker.delete_topic("t")
            assert trash_path(tmp_path, topic).is_dir()

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


def stop_after_marking(directory: DataDirectory, topic: Topic) -> None:
    directory.trash.mark(topic, 1)


def stop_after_saving(directory: DataDirectory, topic: Topic) -> None:
    directory.trash.mark(topic, 1)
    directory.save_topics([])


@pytest.mark.parametrize(
    ("stop", "is_deleted"), [(stop_after_marking, False), (stop_after_saving, True)]
)
def test_a_deletion_that_was_stopped_is_finished_or_none(
    tmp_path: Path, stop: Callable[[DataDirectory, Topic], None], is_deleted: bool
) -> None:
    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            topic = await create_with_records(broker, b"0")
        directory = DataDirectory(tmp_path)
        stop(directory, topic)
        directory.close()
        async with started_broker(tmp_path, delete_retention_ms=10**15) as broker:
            assert names_of(broker) == ([] if is_deleted else ["t"])
            assert trash_path(tmp_path, topic).is_dir() == is_deleted
            if not is_deleted:
                assert await values_of(broker) == [b"0"]
                await broker.delete_topic("t")

    run(scenario)


def test_a_deletion_that_was_none_buries_nothing_later(tmp_path: Path) -> None:
    """An older file of topics is put back, which does not know the topic."""

    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            topic = await create_with_records(broker, b"0")
        directory = DataDirectory(tmp_path)
        stop_after_marking(directory, topic)
        directory.close()
        async with started_broker(tmp_path):
            pass
        directory = DataDirectory(tmp_path)
        directory.save_topics([])
        directory.close()
        async with started_broker(tmp_path):
            pass
        directory = DataDirectory(tmp_path)
        directory.save_topics([topic])
        directory.close()
        async with started_broker(tmp_path) as broker:
            assert await values_of(broker) == [b"0"]

    run(scenario)


def test_data_of_no_topic_is_left_alone_and_no_start_fails(tmp_path: Path) -> None:
    """As when an older file of topics has been put back."""

    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            topic = await create_with_records(broker, b"0")
        directory = DataDirectory(tmp_path)
        directory.save_topics([])
        directory.close()
        async with started_broker(tmp_path) as broker:
            assert names_of(broker) == []
            assert (living_path(tmp_path, topic) / "0").is_dir()

    run(scenario)


def test_a_file_of_topics_that_was_replaced_all_the_same_is_replaced_again(
    tmp_path: Path, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails is the sync of its directory, behind the replacement."""
    path = tmp_path / "data" / "metadata" / "topics.json"

    def names_on_disk() -> list[str]:
        return [each["name"] for each in json.loads(path.read_bytes())["topics"]]

    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            topic = await create_with_records(broker, b"0")
            replace = os.replace

            def replace_and_fail(source: Path, target: Path) -> None:
                replace(source, target)
                if not names_on_disk():
                    disk.fail("fsync")

            monkeypatch.setattr(os, "replace", replace_and_fail)
            with pytest.raises(StorageFailedError):
                await broker.delete_topic("t")
            assert names_on_disk() == ["t"]
            assert not (living_path(tmp_path, topic) / "topic.json").exists()
            assert await values_of(broker) == [b"0"]

    run(scenario)


def test_a_mark_stays_when_the_file_of_topics_cannot_be_replaced_again(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    """The next start finds out whether the topic is deleted."""

    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            topic = await create_with_records(broker, b"0")
            for _ in range(2):
                disk.fail("replace", skipped=1)
            with pytest.raises(StorageFailedError):
                await broker.delete_topic("t")
            assert (living_path(tmp_path, topic) / "topic.json").exists()
            assert names_of(broker) == ["t"]
        async with started_broker(tmp_path) as broker:
            assert await values_of(broker) == [b"0"]
            assert not (living_path(tmp_path, topic) / "topic.json").exists()

    run(scenario)


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
