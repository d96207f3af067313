import asyncio
import errno
import os
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from tailrace_broker.app.metrics import metrics_text
from tailrace_broker.core.ring import topic_commands
from tailrace_broker.model.commands import CreateTopic
from tailrace_broker.model.errors import (
    NotLeaderError,
    NotReadyError,
    ProduceMemoryFullError,
    StorageFailedError,
    TailraceError,
    TopicExistsError,
)
from tailrace_broker.model.group import Subscription
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.files import direct_file
from tailrace_broker.storage.files.direct_file import BLOCK_BYTES
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.topics.hosted_topic import HostedTopic
from tailrace_broker.topics.topics import TopicUse
from tests.support.broker.brokers import PEERS, open_broker, start_ring, started_broker
from tests.support.broker.fixtures import free_ring_port
from tests.support.storage.storage import MEBIBYTE, Appends, FaultyDisk
from tests.support.waits import until


class Uses:
    """Callers of `with_topic`, and what each got, in the order in which they got it."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str]] = []
        self.creators: list[str] = []
        self._changed = asyncio.Event()

    def __call__(self, name: str) -> TopicUse:
        def use(hosted: HostedTopic | None, error: TailraceError | None, is_new: bool) -> None:
            self.got.append((name, hosted.topic.name if hosted else type(error).__name__))
            if is_new:
                self.creators.append(name)
            self._changed.set()

        return use

    async def wait_for(self, count: int) -> None:
        """Until so many have got something."""
        while len(self.got) < count:
            self._changed.clear()
            await self._changed.wait()


async def test_no_topic_is_created_before_all_are_known(tmp_path: Path) -> None:
    """The file of topics is written as a whole: those not read yet would be gone."""

    async with open_broker(tmp_path) as broker:
        with pytest.raises(NotReadyError):
            await broker.create_topic("new", TopicSettings())
        await broker.start()
        await broker.create_topic("old", TopicSettings())
    async with open_broker(tmp_path) as broker:
        with pytest.raises(NotReadyError):
            await broker.create_topic("new", TopicSettings())
        await broker.start()
        assert [hosted.topic.name for hosted in broker.topics()] == ["old"]


async def test_calls_for_a_topic_that_is_being_created_wait_in_order(tmp_path: Path) -> None:
    uses = Uses()
    async with open_broker(tmp_path) as broker:
        await broker.start()
        broker.with_topic("t", uses("first"))
        broker.with_topic("t", uses("second"))
        broker.with_topic("other", uses("third"))
        assert uses.got == []

        await uses.wait_for(3)
        broker.with_topic("t", uses("fourth"))
        assert uses.got == [
            ("first", "t"),
            ("second", "t"),
            ("third", "other"),
            ("fourth", "t"),
        ]
        assert uses.creators == ["first", "third"]


async def test_who_waits_for_a_topic_that_is_not_committed_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_commands, "TOPICS_MAX", 1)

    uses = Uses()
    async with started_broker(tmp_path) as broker:
        await broker.create_topic("t", TopicSettings())
        broker.with_topic("u", uses("first"))
        broker.with_topic("u", uses("second"))
        await uses.wait_for(2)
        assert uses.got == [("first", "RingRefusedError"), ("second", "RingRefusedError")]
        assert broker.topic_count == 1

        await broker.delete_topic("t")
        broker.with_topic("u", uses("third"))
        await uses.wait_for(3)
        assert uses.got[2:] == [("third", "u")]


async def test_a_first_produce_takes_a_topic_that_was_created_meanwhile_with_other_settings(
    tmp_path: Path,
) -> None:
    uses = Uses()
    async with open_broker(tmp_path) as broker:
        await broker.start()
        settings = TopicSettings(partitions_per_range=2)
        creating = asyncio.create_task(broker.create_topic("t", settings))
        await asyncio.sleep(0)
        broker.with_topic("t", uses("first"))
        assert uses.got == []

        await uses.wait_for(1)
        assert uses.got == [("first", "t")]
        assert uses.creators == []
        assert broker.hosted("t").topic.settings == settings
        assert await creating == (broker.hosted("t").topic, True)
        with pytest.raises(TopicExistsError):
            await broker.create_topic("t", TopicSettings())


async def test_a_topic_that_is_being_created_at_a_stop_takes_nothing(tmp_path: Path) -> None:
    """Nobody would wait for its appends."""

    uses = Uses()
    async with open_broker(tmp_path) as broker:
        await broker.start()
        broker.with_topic("t", uses("first"))
        await broker.stop()
        broker.with_topic("t", uses("second"))
        await uses.wait_for(2)
        assert sorted(uses.got) == [("first", "NotReadyError"), ("second", "NotReadyError")]


def accept_missing_journal(journal: Path) -> None:
    """Remove its files, and accept their loss."""
    for path in [*journal.iterdir()]:
        path.unlink()
        path.with_name(f"{path.name}.lost").touch()


@pytest.mark.parametrize("kind", ["clean", "process"])
async def test_damage_to_the_last_write_is_found_after_a_clean_stop(
    tmp_path: Path, kind: str
) -> None:
    """After a kill it may be a write that was torn."""

    async with started_broker(tmp_path) as broker:
        assert broker.restart_kind == "disk"
        await broker.create_topic("t", TopicSettings(partitions_per_range=1))
        log = broker.hosted("t").log_of(0)
        for value in (b"0", b"1"):
            await Appends(log).event(value)
            await log.spilled()
        segment = log.place.directory / f"{0:020d}.log"
    if kind == "process":
        (tmp_path / "data" / "clean-stop.json").unlink()
    accept_missing_journal(tmp_path / "data" / "journal")
    os.truncate(segment, BLOCK_BYTES)
    async with started_broker(tmp_path) as broker:
        assert broker.restart_kind == kind
        assert broker.damaged_count == (kind == "clean")


@pytest.mark.parametrize("call", ["fdatasync", "replace"])
async def test_a_stop_that_cannot_say_that_all_is_durable_counts_as_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    disk = FaultyDisk(monkeypatch, spares_metadata=True)

    async with started_broker(tmp_path) as broker:
        settings = TopicSettings(partitions_per_range=1, durability="written")
        await broker.create_topic("t", settings)
        log = broker.hosted("t").log_of(0)
        await Appends(log).event(bytes(100_000))
        for skipped in range(3):
            disk.fail(call, skipped=skipped)
    disk.forget_faults()
    assert not (tmp_path / "data" / "clean-stop.json").exists()
    async with started_broker(tmp_path) as broker:
        assert broker.restart_kind == "process"
        assert broker.hosted("t").log_of(0).high_watermark == 1


async def test_a_stop_before_the_start_has_ended_is_no_clean_one(tmp_path: Path) -> None:
    async with open_broker(tmp_path):
        pass
    assert not (tmp_path / "data" / "clean-stop.json").exists()


async def test_a_data_disk_that_hangs_does_not_delay_the_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk(monkeypatch, spares_metadata=True)
    async with started_broker(tmp_path, io_threads=1) as broker:
        await broker.create_topic("t", TopicSettings(partitions_per_range=1))
        disk.hold_writes()
        append = Appends(broker.hosted("t").log_of(0)).event(bytes(100_000))
        await disk.wait_for_held_write()

        await broker.ring.change(CreateTopic("u", uuid4(), TopicSettings()))

        assert broker.ring.state is not None
        assert "u" in broker.ring.state.topics
        assert not append.done()
        disk.let_writes_go_on()
        assert await append == 0


async def test_produce_memory_is_given_until_it_is_used_up(tmp_path: Path) -> None:
    async with open_broker(tmp_path) as broker:
        broker.take_produce_memory(64 * MEBIBYTE)
        with pytest.raises(ProduceMemoryFullError, match="67108864 of 67108864 bytes"):
            broker.take_produce_memory(1)
        broker.return_produce_memory(64 * MEBIBYTE)
        broker.take_produce_memory(1)
        assert broker.produce_memory_used_bytes == 1


async def test_what_is_recovered_is_durable_before_it_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process may have left it in the page cache, or in the disk's."""
    was_ready = []

    async with open_broker(tmp_path) as broker:
        monkeypatch.setattr(direct_file, "syncfs", lambda fd: was_ready.append(broker.is_ready))
        await broker.start()
        monkeypatch.undo()

    assert was_ready == [False]


async def test_a_disk_that_does_not_sync_what_is_recovered_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    async with open_broker(tmp_path) as broker:
        monkeypatch.setattr(direct_file, "syncfs", fail)
        with pytest.raises(StorageFailedError):
            await broker.start()
        monkeypatch.undo()
        assert not broker.is_ready


# --- a broker of a ring of several ----------------------------------------------------------------


async def test_a_broker_with_peers_waits_to_be_founded(tmp_path: Path) -> None:
    """Which here it is alone, so that nobody has to answer."""

    async with open_broker(tmp_path, **PEERS, port=free_ring_port(1)) as broker:
        starting = asyncio.create_task(broker.start())
        await until(lambda: broker.ring.view().applied == -1 and broker.ring.peers is not None)
        with pytest.raises(NotReadyError):
            broker.check_ready()
        assert broker.ring.state is None

        await broker.ring.found(1)
        await starting
        broker.check_ready()
        assert broker.ring.state is not None


async def test_a_broker_that_waits_to_be_founded_can_be_stopped(tmp_path: Path) -> None:
    async with open_broker(tmp_path, **PEERS, port=free_ring_port(1)) as broker:
        starting = asyncio.create_task(broker.start())
        await until(lambda: broker.ring.peers is not None)
        starting.cancel()
    assert not (tmp_path / "data" / "clean-stop.json").exists()


@pytest.mark.parametrize(("secret", "is_reported"), [("", True), ("s", False)])
def test_a_broker_whose_peers_prove_nothing_says_so_once(
    tmp_path: Path, secret: str, *, is_reported: bool
) -> None:
    port = free_ring_port(1)

    async def scenario() -> None:
        async with open_broker(tmp_path, **PEERS, port=port, ring_secret=secret) as broker:
            starting = asyncio.create_task(broker.start())
            await until(lambda: broker.ring.peers is not None)
            starting.cancel()

    with capture_logs() as lines:
        asyncio.run(scenario())
    warnings = [line for line in lines if line["event"] == "secret.missing"]
    assert len(warnings) == is_reported
    for line in warnings:
        assert line["log_level"] == "warning"
        assert line["reason"].startswith(f"port {port + 5}, and the requests that change the ring")
        assert "TAILRACE_RING_SECRET" in line["remedy"]


@pytest.mark.timeout(10)
async def test_a_ring_of_two_shares_ranges_and_groups(tmp_path: Path) -> None:
    wanted = Subscription("c", "g", ("t",), "startFromEarliest")

    async with AsyncExitStack() as stack:
        brokers = await start_ring(stack, tmp_path, 2)
        for broker in brokers:
            assert b"tailrace_led_ranges 1.0" in await metrics_text(broker, connection_count=0)
        topic, _ = await brokers[0].create_topic("t", TopicSettings(partitions_per_range=2))
        await until(lambda: brokers[1].topic_count == 1)
        assert len(topic.partitions) == 4
        for broker in brokers:
            hosted = broker.hosted("t")
            logs = [log for log in hosted.logs.values() if isinstance(log, PartitionLog)]
            led = [log.place.partition for log in logs if log.is_served]
            assert {hosted.partition_of_key(None) for _ in range(6)} == {*led}
            assert (len(led), len(logs), broker.partition_count) == (2, 4, 4)
            keys = [b"%d" % number for number in range(50)]
            assert {hosted.partition_of_key(key) for key in keys} == {0, 1, 2, 3}
        outcomes = await asyncio.gather(
            *(broker.groups.register(wanted) for broker in brokers), return_exceptions=True
        )
        [refused] = [each for each in outcomes if isinstance(each, NotLeaderError)]
        [coordinator] = [broker for broker in brokers if list(broker.groups.views())]
        assert refused.members["leader"] == coordinator.ordinal
