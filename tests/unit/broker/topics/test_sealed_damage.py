"""A copy of a sealed log that a start cannot read is reported: others may have it."""

import asyncio
import time
from functools import partial
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from tailrace.wire import INVENTORY_FILE
from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.core.node.events import Recovered
from tailrace_broker.model.commands import AcceptLoss
from tailrace_broker.model.damage import Loss
from tailrace_broker.model.errors import CorruptPartitionError, NoLeaderError, RingRefusedError
from tailrace_broker.model.replication import LogKey
from tailrace_broker.model.ring_state import LostOffsets
from tailrace_broker.model.topic import Topic, TopicSettings
from tailrace_broker.net.api.read import _times_of_last
from tailrace_broker.node.ring import RingNode
from tailrace_broker.storage.data_directory import load_inventory
from tailrace_broker.storage.files.inventory import Inventory
from tailrace_broker.storage.log.damage_file import record_loss
from tailrace_broker.storage.log.rescued_tail import save_rescued
from tailrace_broker.topics.lost_here import lost_here
from tailrace_broker.topics.sealed_copies import _Copying
from tailrace_broker.topics.sealed_retention import SealedRetention
from tests.support.broker.brokers import started_broker
from tests.support.ring.ring_disk import put_ring_state, ring_state_on
from tests.support.ring.split_on_disk import ends_of, split_on_disk
from tests.support.storage.damaged import flip, stored_batches
from tests.support.storage.storage import Appends
from tests.support.waits import until


async def sealed_log(root: Path) -> tuple[Topic, Path]:
    """Have a sealed partition whose log is one segment; its topic and the segment."""
    async with started_broker(root) as broker:
        topic, _ = await broker.create_topic("t", TopicSettings(partitions_per_range=1))
        await Appends(broker.hosted("t").log_of(0)).batch([b"0" * 100_000])
        ends = ends_of(broker)
    split_on_disk(root, ends)
    (segment,) = (root / "data" / str(topic.topic_id) / "0").glob("*.log")
    return topic, segment


def test_a_sealed_log_that_the_disk_does_not_read_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[Recovered] = []
    shipped = RingNode.register

    async def register(self: RingNode, recovered: Recovered) -> None:
        registered.append(recovered)
        await shipped(self, recovered)

    async def scenario() -> None:
        _, segment = await sealed_log(tmp_path)
        segment.rename(segment.with_suffix(".kept"))
        segment.mkdir()
        monkeypatch.setattr(RingNode, "register", register)
        async with started_broker(tmp_path) as broker:
            with pytest.raises(CorruptPartitionError):
                broker.hosted("t").log_of(0)
        assert [each.damaged for each in registered] == [(0,)]

    asyncio.run(scenario())


def test_damage_that_is_found_when_a_sealed_log_is_opened_again_is_noted(tmp_path: Path) -> None:
    """At runtime: no registration follows that would say so."""

    async def scenario() -> None:
        topic, segment = await sealed_log(tmp_path)
        noted: list[LogKey] = []
        async with started_broker(tmp_path) as broker:
            local = broker._topics.local
            await local.reopen(topic.topic_id, 0)
            assert dict(local._healing._found) == {}
            segment.rename(segment.with_suffix(".kept"))
            await local.reopen(topic.topic_id, 0)
            noted += local._healing._found
            for segment in (tmp_path / "data" / str(topic.topic_id) / "0").glob("*.kept"):
                segment.rename(segment.with_suffix(".log"))
            await local.reopen(topic.topic_id, 0)
            assert dict(local._healing._found) == {}
        assert noted == [LogKey(topic.topic_id, 0)]

    asyncio.run(scenario())


def test_a_sealed_log_is_opened_when_its_copy_is_closed(tmp_path: Path) -> None:
    """A broker that is fetching a log may have to open it: its copy counts as whole suddenly."""

    async def scenario() -> None:
        topic, _ = await sealed_log(tmp_path)
        async with started_broker(tmp_path) as broker:
            local = broker._topics.local
            closed = asyncio.Event()
            local.copies._copying = _Copying(topic.topic_id, topic.partitions[0], closed)
            opening = asyncio.create_task(local.reopen(topic.topic_id, 0))
            looking = asyncio.create_task(broker.lost_here(0))
            await until(lambda: len(local.copies._needed) == 2)
            assert not opening.done()
            assert not looking.done()
            closed.set()
            await opening
            assert await looking == []

    asyncio.run(scenario())


def lost_of(topic: Topic, *spans: tuple[int, int]) -> list[LostOffsets]:
    return [LostOffsets(topic.topic_id, 0, *span) for span in spans]


def put_copies(root: Path, **copies: tuple[int, ...]) -> None:
    """Who is to have range 0, and who has it, as the ring has it."""
    state = ring_state_on(root)
    held = replace(state.ranges[0], **copies)
    put_ring_state(root, replace(state, ranges={**state.ranges, 0: held}))


async def lost_on_disk(broker: LocalBroker) -> list[LostOffsets]:
    """As of a broker that has not opened the logs."""
    state, resources = broker.ring.state, broker._resources
    assert state is not None
    assert resources is not None
    return await lost_here(state, 0, lambda _: None, broker._directory, resources)


def accepted_on_disk(root: Path, lost: list[LostOffsets]) -> None:
    """As the ring has it when a person has given that up."""
    state = ring_state_on(root)
    held = replace(state.ranges[0], accepted=tuple(lost))
    put_ring_state(root, replace(state, ranges={**state.ranges, 0: held}))


def test_what_a_broker_lacks_is_shown_and_given_up(tmp_path: Path) -> None:
    """Batches of a record; the second is damaged, and the last segment is gone."""

    async def scenario() -> None:
        async with started_broker(tmp_path, segment_bytes=1 << 20) as broker:
            topic, _ = await broker.create_topic("t", TopicSettings(partitions_per_range=1))
            appends = Appends(broker.hosted("t").log_of(0))
            for number in range(5):
                await appends.batch([Random(number).randbytes(500_000)])
            ends = ends_of(broker)
        split_on_disk(tmp_path, ends)
        folder = tmp_path / "data" / str(topic.topic_id) / "0"
        first, *_, last = sorted(folder.glob("*.log"))
        lost_from = int(last.stem)
        position, _ = stored_batches(first)[1]
        flip(first, position + 200, 0)
        last.unlink()
        async with started_broker(tmp_path) as broker:
            assert await broker.lost_here(99) == []
            log = broker.hosted("t").log_of(0)
            assert log.lost_end is not None
            with pytest.raises(CorruptPartitionError):
                await log.read(1, 1)
            lost = await broker.lost_here(0)
            assert lost == lost_of(topic, (1, 2), (lost_from, 5))
            assert await lost_on_disk(broker) == lost
            aside = folder.with_name("0.damaged") / "log"
            aside.mkdir(parents=True)
            with pytest.raises(RingRefusedError, match=r"0\.damaged/log holds what was set aside"):
                await broker.lost_here(0)
            aside.parent.rename(tmp_path / "kept")
        accepted_on_disk(tmp_path, lost)
        for _ in range(2):
            async with started_broker(tmp_path) as broker:
                log = broker.hosted("t").log_of(0)
                assert (log.lost_end, log.high_watermark) == (None, 5)
                for offset, following in ((1, 2), (lost_from, 5)):
                    with pytest.raises(CorruptPartitionError) as raised:
                        await log.read(offset, 1)
                    assert raised.value.members["accepted"]
                    assert raised.value.members["nextOffset"] == following
                assert await broker.lost_here(0) == []

    asyncio.run(scenario())


def test_what_is_damaged_in_the_only_copy_is_given_up_while_it_takes_events(
    tmp_path: Path,
) -> None:
    """Nobody else has it: readers go on behind it, and it is no news any more."""

    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            topic, _ = await broker.create_topic("t", TopicSettings(partitions_per_range=1))
            appends = Appends(broker.hosted("t").log_of(0))
            for number in range(3):
                await appends.batch([Random(number).randbytes(100_000)])
        (segment,) = (tmp_path / "data" / str(topic.topic_id) / "0").glob("*.log")
        position, _ = stored_batches(segment)[1]
        for is_accepted in False, True, True:
            async with started_broker(tmp_path) as broker:
                if not is_accepted:
                    flip(segment, position + 200, 0)
                with pytest.raises(CorruptPartitionError) as raised:
                    await broker.hosted("t").log_of(0).read(1, 1)
                assert raised.value.members["accepted"] is is_accepted
                assert broker.quarantined_count == int(not is_accepted)
                lost = await broker.lost_here(0)
                assert lost == ([] if is_accepted else lost_of(topic, (1, 2)))
                if lost:
                    assert dict(broker._topics.local._healing._found)
                    state = broker.ring.state
                    assert state is not None
                    epoch, number = state.ranges[0].epoch, state.brokers[0].number
                    await broker.ring.change(AcceptLoss(0, epoch, 0, number, tuple(lost)))
                    await broker._topics.local.reached()
                    assert dict(broker._topics.local._healing._found) == {}
                log = broker.hosted("t").log_of(0)
                with pytest.raises(CorruptPartitionError) as raised:
                    await log.read(1, 1)
                assert raised.value.members["accepted"]
                assert broker.quarantined_count == 0
                end = log.log_end
                await Appends(log).batch([b"0"])
                assert log.log_end == end + 1

    asyncio.run(scenario())


def test_what_was_set_aside_of_a_range_that_takes_events_is_in_the_way_of_a_loss(
    tmp_path: Path,
) -> None:
    """A broker that leads what it has removes it, and it may be the last copy."""

    async def scenario() -> None:
        async with started_broker(tmp_path) as broker:
            topic, _ = await broker.create_topic("t", TopicSettings(partitions_per_range=1))
            assert await broker.lost_here(0) == []
            aside = tmp_path / "data" / str(topic.topic_id) / "0.damaged" / "log"
            aside.mkdir(parents=True)
            with pytest.raises(RingRefusedError, match=r"0\.damaged/log holds what was set aside"):
                await broker.lost_here(0)

    asyncio.run(scenario())


@pytest.mark.parametrize("is_set_aside", [True, False], ids=["in the journal", "in the segment"])
def test_what_is_no_whole_copy_is_not_read_before_a_person_accepts_it(
    tmp_path: Path, *, is_set_aside: bool
) -> None:
    """It may end with what was never committed: its leader was cut off when it wrote that."""

    async def scenario() -> None:
        topic, segment = await sealed_log(tmp_path)
        put_copies(tmp_path, replicas=(0, 1), complete=())
        if is_set_aside:  # as of a broker that was killed
            (_, header), *_ = stored_batches(segment)
            save_rescued(segment.parent, [segment.read_bytes()[: header.batch_bytes]])
            segment.unlink()
            data = tmp_path / "data"
            inventory = Inventory(data / INVENTORY_FILE, load_inventory(data))
            inventory.cut_segments(topic.topic_id, 0, None)
        async with started_broker(tmp_path) as broker:
            with pytest.raises(NoLeaderError):
                broker.hosted("t").log_of(0)
            assert await broker.lost_here(0) == []
        put_copies(tmp_path, complete=(0,))
        async with started_broker(tmp_path) as broker:
            log = broker.hosted("t").log_of(0)
            assert (log.lost_end, log.high_watermark) == (None, 1)
            assert len(await log.read(0, 1)) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("kept_count", [0, 3])  # of the first segment
@pytest.mark.parametrize("is_accepted", [True, False])
def test_what_is_lost_at_the_end_keeps_no_sealed_log(
    tmp_path: Path, kept_count: int, *, is_accepted: bool
) -> None:
    """All that is there of it is old; of five batches the last are lost. Unless that was accepted
    others may have them.
    """

    async def scenario() -> None:
        async with started_broker(tmp_path, segment_bytes=1 << 20) as broker:
            settings = TopicSettings(partitions_per_range=1, retention_ms=60_000)
            topic, _ = await broker.create_topic("t", settings)
            appends = Appends(broker.hosted("t").log_of(0))
            for number in range(5):
                await appends.batch([Random(number).randbytes(500_000)])
            ends = ends_of(broker)
        split_on_disk(tmp_path, ends)
        for path in (tmp_path / "data" / str(topic.topic_id) / "0").glob("*"):
            if path.suffix in (".log", ".idx") and int(path.stem) >= kept_count:
                path.unlink()
        async with started_broker(tmp_path) as broker:
            lost = await broker.lost_here(0)
        assert [each[2:] for each in lost] == [(kept_count, 5)]
        if is_accepted:
            accepted_on_disk(tmp_path, lost)
        else:
            path = tmp_path / "data" / str(topic.topic_id) / "0"
            record_loss(path, Loss(kept_count, 5))
        async with started_broker(tmp_path) as broker:
            ring, hosted = broker.ring, broker.hosted("t")
            now_us = time.time_ns() // 1000
            end = 5 if is_accepted else kept_count
            for later_us, start in (0, 0 if kept_count else end), (61_000_000, end):
                clock = partial(int, now_us + later_us)
                made = SealedRetention(ring, lambda _: hosted, clock, keep_seconds=0)
                settings, key = topic.settings, LogKey(topic.topic_id, 0)
                assert made._start_of({topic.topic_id: settings}, key) == start
                altered = replace(settings, retention_ms=None)  # not here yet
                assert made._start_of({topic.topic_id: altered}, key) is None
            log = hosted.log_of(0)
            await log.trim(end)
            assert (log.log_start, log.log_end) == (end, 5)

    asyncio.run(scenario())


def test_the_last_records_are_found_where_the_log_start_is_among_lost_ones(tmp_path: Path) -> None:
    """The ring had moved the log start before the copy that counts lost the first segment."""

    async def scenario() -> None:
        async with started_broker(tmp_path, segment_bytes=1 << 20) as broker:
            topic, _ = await broker.create_topic("t", TopicSettings(partitions_per_range=1))
            appends = Appends(broker.hosted("t").log_of(0))
            for number in range(5):
                await appends.batch([Random(number).randbytes(500_000)])
            ends = ends_of(broker)
        split_on_disk(tmp_path, ends)
        (tmp_path / "data" / str(topic.topic_id) / "0" / f"{0:020d}.log").unlink()
        async with started_broker(tmp_path) as broker:
            lost = await broker.lost_here(0)
        assert [each[2:] for each in lost] == [(0, 3)]
        accepted_on_disk(tmp_path, lost)
        async with started_broker(tmp_path) as broker:
            log = broker.hosted("t").log_of(0)
            await log.trim(1)
            assert log.log_start == 1
            for count, offsets in (5, [3, 4]), (2, [3, 4]), (1, [4]):
                found = [offset async for _, offset in _times_of_last(broker, log, count)]
                assert found == offsets

    asyncio.run(scenario())
