"""Deleted topics brought back, with failing disks and stops in between, and on full disks."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.core.ring.commands import apply_command
from tailrace_broker.model.commands import RestoreTopic, Stamped
from tailrace_broker.model.errors import (
    CorruptPartitionError,
    DiskFullError,
    InvalidParameterError,
    InvalidTopicNameError,
    NotInTrashError,
    NotReadyError,
    StorageFailedError,
    TopicExistsError,
)
from tailrace_broker.model.topic import Topic, TopicSettings
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.files.direct_file import BLOCK_BYTES
from tailrace_broker.topics import local_topics
from tests.support.broker.brokers import open_broker, started_broker
from tests.support.ring.ring_disk import put_ring_state, ring_state_on
from tests.support.storage.full_disk import full_disk
from tests.support.storage.storage import MEBIBYTE, Appends, FaultyDisk, records_of
from tests.support.waits import until

ONE = TopicSettings(partitions_per_range=1)
HOUR_MS = 3_600_000
# Not compressible, and too large for the journal.
LARGE = Random(1).randbytes(200_000)


@pytest.fixture(autouse=True)
def small_spares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real ones take milliseconds to write."""
    monkeypatch.setattr("tailrace_broker.storage.files.spare_files.SPARE_BYTES", 8192)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    return FaultyDisk(monkeypatch, spares_metadata=True)


async def create_and_delete(broker: LocalBroker, *values: bytes, name: str = "t") -> Topic:
    """A deleted topic of one partition with these records."""
    topic, _ = await broker.create_topic(name, ONE)
    if values:
        await Appends(broker.hosted(name).log_of(0)).batch(list(values))
    await broker.delete_topic(name)
    return topic


async def values_of(broker: LocalBroker, name: str = "t") -> list[bytes | None]:
    batches = await broker.hosted(name).log_of(0).read(0, MEBIBYTE)
    return [record.value for record in records_of(batches)]


def names_of(broker: LocalBroker) -> list[str]:
    return [hosted.topic.name for hosted in broker.topics()]


async def trashed_names(broker: LocalBroker) -> list[str]:
    return [each.topic.name for each in await broker.trashed_topics()]


async def test_a_restored_topic_is_what_it_was_and_stays_so(tmp_path: Path) -> None:
    async with started_broker(tmp_path) as broker:
        topic = await create_and_delete(broker, b"0", b"1")
        restored = await broker.restore_topic("t", None)
        assert (restored.name, restored.topic_id) == ("t", topic.topic_id)
        assert restored.settings == topic.settings
        assert await values_of(broker) == [b"0", b"1"]
        assert await Appends(broker.hosted("t").log_of(0)).event(b"2") == 2
        assert await trashed_names(broker) == []
    async with started_broker(tmp_path) as broker:
        assert await values_of(broker) == [b"0", b"1", b"2"]
        await broker.delete_topic("t")
        assert await trashed_names(broker) == ["t"]


async def test_a_topic_without_a_record_comes_back_too(tmp_path: Path) -> None:
    async with started_broker(tmp_path) as broker:
        topic = await create_and_delete(broker)
        await broker.restore_topic(str(topic.topic_id), None)
        assert await Appends(broker.hosted("t").log_of(0)).event(b"0") == 0


async def test_the_trash_tells_since_when_until_when_and_how_much(tmp_path: Path) -> None:
    async with started_broker(tmp_path, delete_retention_ms=HOUR_MS) as broker:
        before_us = broker.now_us()
        await create_and_delete(broker, b"0", name="first")
        await create_and_delete(broker, b"0", name="second")
        latest, earliest = await broker.trashed_topics()
        assert (latest.topic.name, earliest.topic.name) == ("second", "first")
        assert before_us <= earliest.deleted_us <= latest.deleted_us <= broker.now_us()
        assert latest.purge_us - latest.deleted_us == HOUR_MS * 1000
        assert latest.size_bytes >= 4096


async def test_a_name_that_is_in_use_again_needs_another(tmp_path: Path) -> None:
    async with started_broker(tmp_path) as broker:
        first = await create_and_delete(broker, b"first")
        second = await create_and_delete(broker, b"second")
        await broker.create_topic("t", ONE)
        with pytest.raises(InvalidParameterError, match="give the id"):
            await broker.restore_topic("t", None)
        with pytest.raises(TopicExistsError, match="another name") as refused:
            await broker.restore_topic(str(first.topic_id), None)
        assert refused.value.members == {"topic": "t"}
        with pytest.raises(InvalidTopicNameError):
            await broker.restore_topic(str(first.topic_id), "../t")
        await broker.restore_topic(str(first.topic_id), "old")
        await broker.restore_topic("t", "newer")
        assert names_of(broker) == ["newer", "old", "t"]
        assert await values_of(broker, "old") == [b"first"]
        assert broker.hosted("newer").topic.topic_id == second.topic_id
    async with started_broker(tmp_path) as broker:
        assert await values_of(broker, "newer") == [b"second"]


async def test_what_is_not_there_is_not_restored(tmp_path: Path) -> None:
    async with open_broker(tmp_path) as broker:
        with pytest.raises(NotReadyError):
            await broker.restore_topic("t", None)
        with pytest.raises(NotReadyError):
            await broker.trashed_topics()
        await broker.start()
        assert await trashed_names(broker) == []
        for wanted in ("t", "../t", ""):
            with pytest.raises(NotInTrashError):
                await broker.restore_topic(wanted, None)


async def test_a_restored_topic_whose_data_cannot_be_moved_is_opened_later(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    async with started_broker(tmp_path) as broker:
        await create_and_delete(broker, b"0")
        disk.fail("rename")
        with pytest.raises(StorageFailedError):
            await broker.restore_topic("t", None)
        with pytest.raises(StorageFailedError):
            broker.hosted("t").log_of(0)
        assert broker.damaged_count == 0
        await broker.create_topic("other", ONE)  # the ring has agreed on something
        assert await values_of(broker) == [b"0"]
        assert await trashed_names(broker) == []


async def test_a_restored_topic_whose_data_was_removed_stands_still(tmp_path: Path) -> None:
    """It must not begin again under the same offsets."""

    async with started_broker(tmp_path) as broker:
        topic = await create_and_delete(broker, b"0")
        shutil.rmtree(tmp_path / "data" / "trash" / str(topic.topic_id))
        await broker.ring.change(RestoreTopic(topic.topic_id))
        await broker.create_topic("other", ONE)
        with pytest.raises(CorruptPartitionError, match="was removed before") as refused:
            broker.hosted("t").log_of(0)
        assert refused.value.members == {"topic": "t", "partition": 0}
        assert broker.damaged_count == 1


async def delete_with_a_torn_end(root: Path, broker: LocalBroker, value: bytes) -> None:
    """So that to open it again is to cut it, which a disk can refuse."""
    topic = await create_and_delete(broker, value)
    (segment,) = (root / "data" / "trash" / str(topic.topic_id) / "0").glob("*.log")
    with segment.open("ab") as file:
        file.write(bytes(BLOCK_BYTES))


async def test_a_restored_topic_that_cannot_be_opened_is_opened_later(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    async with started_broker(tmp_path) as broker:
        await delete_with_a_torn_end(tmp_path, broker, b"0")
        disk.fail("ftruncate")
        with pytest.raises(StorageFailedError):
            await broker.restore_topic("t", None)
        assert names_of(broker) == ["t"]
        _, is_new = await broker.create_topic("t", ONE)
        assert not is_new
        assert await values_of(broker) == [b"0"]


async def test_a_restored_topic_that_cannot_be_opened_is_opened_by_the_next_start(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    async with started_broker(tmp_path) as broker:
        await delete_with_a_torn_end(tmp_path, broker, b"0")
        disk.fail("ftruncate")
        with pytest.raises(StorageFailedError):
            await broker.restore_topic("t", None)
    async with started_broker(tmp_path) as broker:
        assert await values_of(broker) == [b"0"]
        assert await trashed_names(broker) == []


async def test_a_topic_that_cannot_be_opened_is_tried_again_by_time(
    tmp_path: Path, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_topics, "RETRY_SECONDS", 0.01)

    async with started_broker(tmp_path) as broker:
        await delete_with_a_torn_end(tmp_path, broker, b"0")
        for _ in range(2):
            disk.fail("ftruncate")
        with pytest.raises(StorageFailedError):
            await broker.restore_topic("t", None)
        await until(lambda: broker.hosted("t").failure() is None)
        assert await values_of(broker) == [b"0"]


def stop_after_agreeing(root: Path, topic: Topic) -> None:
    restored = Stamped(1, RestoreTopic(topic.topic_id))
    put_ring_state(root, apply_command(ring_state_on(root), restored))


def stop_after_exhuming(root: Path, topic: Topic) -> None:
    stop_after_agreeing(root, topic)
    directory = DataDirectory(root)
    directory.trash.exhume(topic)
    directory.close()


@pytest.mark.parametrize("stop", [stop_after_agreeing, stop_after_exhuming])
async def test_a_restoration_that_was_stopped_is_finished(
    tmp_path: Path, stop: Callable[[Path, Topic], None]
) -> None:
    async with started_broker(tmp_path) as broker:
        topic = await create_and_delete(broker, b"0")
    stop(tmp_path, topic)
    for _ in range(2):
        async with started_broker(tmp_path) as broker:
            assert await trashed_names(broker) == []
            assert await values_of(broker) == [b"0"]


async def test_a_restoration_that_a_start_cannot_finish_ends_it(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    """Without its data the topic would begin again under the same offsets."""

    async with started_broker(tmp_path) as broker:
        topic = await create_and_delete(broker, b"0")
    stop_after_agreeing(tmp_path, topic)
    async with open_broker(tmp_path) as broker:
        disk.fail("rename")
        with pytest.raises(StorageFailedError):
            await broker.start()
    async with started_broker(tmp_path) as broker:
        assert await values_of(broker) == [b"0"]


# --- a full disk ----------------------------------------------------------------------------------


async def test_a_full_disk_takes_deletions_and_restorations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started_broker(tmp_path) as broker:
        await broker.create_topic("t", ONE)
        await Appends(broker.hosted("t").log_of(0)).batch([LARGE])
        with full_disk(monkeypatch):
            await broker.create_topic("other", ONE)  # the log of the ring has its space
            await broker.delete_topic("t")
            assert names_of(broker) == ["other"]
            assert await trashed_names(broker) == ["t"]
    async with started_broker(tmp_path) as broker:
        with full_disk(monkeypatch):
            await broker.restore_topic("t", None)
        assert await values_of(broker) == [LARGE]


async def test_a_topic_without_a_record_can_be_deleted_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started_broker(tmp_path) as broker:
        await broker.create_topic("t", ONE)
        with full_disk(monkeypatch):
            await broker.delete_topic("t")
    async with started_broker(tmp_path) as broker:
        assert names_of(broker) == []
        assert await trashed_names(broker) == ["t"]


async def test_an_append_to_a_full_disk_empties_the_trash_and_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started_broker(tmp_path) as broker:
        gone = await create_and_delete(broker, b"old", name="gone")
        buried = tmp_path / "data" / "trash" / str(gone.topic_id)
        await broker.create_topic("t", ONE)
        appends = Appends(broker.hosted("t").log_of(0))
        with full_disk(monkeypatch, buried.exists):
            assert await appends.batch([LARGE]) == 0
        assert await trashed_names(broker) == []
        assert broker.counters.purged_early_topics == 1
        with full_disk(monkeypatch):
            refused = (await asyncio.gather(appends.batch([LARGE]), return_exceptions=True))[0]
            assert isinstance(refused, DiskFullError)
            assert refused.retriable
            assert not refused.write_attempted
            assert await values_of(broker) == [LARGE]
        assert await appends.batch([LARGE]) == 1
