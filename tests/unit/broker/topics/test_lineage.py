"""A broker alone grows to two by commands: what it does in the turn that seals its range."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.core.ring.arithmetic import token
from tailrace_broker.core.ring.topics import slices_in
from tailrace_broker.model.commands import AbortStep, BeginStep, Register, Sealed
from tailrace_broker.model.errors import CorruptPartitionError, NotLeaderError, TopicNotFoundError
from tailrace_broker.model.ring_state import Replica, RingState, Start
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.log.partition_log import PartitionLog
from tailrace_broker.topics import local_topics
from tailrace_broker.topics.hosted_topic import LogOrError, open_logs
from tests.support.broker.brokers import started_broker
from tests.support.storage.storage import Appends, values_in
from tests.support.waits import until

ONE = TopicSettings(partitions_per_range=1)
PARENT, LOW_CHILD, HIGH_CHILD = 0, 1, 2
DAY_US = 86_400_000_000


async def begin_step(broker: LocalBroker) -> RingState:
    """Have a second broker there, and the ring about to grow by it."""
    other = Register(1, UUID(int=1), 1, (Start(UUID(int=2), "disk"),), 0)
    await broker.ring.change(other)
    await broker.ring.change(BeginStep("grow", 1))
    state = broker.ring.state
    assert state is not None
    return state


def seal_of(broker: LocalBroker, state: RingState, *, ends: int = 0) -> Sealed:
    """The leader's report; `ends`: so much is wrong with them."""
    assert state.step is not None
    held = {
        topic_id: tuple(
            broker.hosted(name).replica_of(each).log_end + ends  # type: ignore[union-attr]
            for each in range(slices.first_partition, slices.first_partition + len(slices.starts))
        )
        for topic_id, slices in slices_in(state, 0).items()
        for name in [next(each.name for each in state.topics.values() if each.id == topic_id)]
    }
    replicas = Replica(0, state.brokers[0].number), Replica(1, state.brokers[1].number)
    return Sealed(state.step.id, 0, state.ranges[0].epoch, held, replicas)


async def split(broker: LocalBroker) -> None:
    await broker.ring.change(seal_of(broker, await begin_step(broker)))


def key_of(child: int) -> bytes:
    """One whose token is below, or above, that of the second broker."""
    wanted = {LOW_CHILD: -1, HIGH_CHILD: 1}[child]
    bound = -(2**63) + (2**64 - 1) // 12288 * 4096
    return next(b"%d" % n for n in range(100) if (token(b"%d" % n) - bound) * wanted > 0)


async def test_a_log_is_sealed_as_it_is_and_its_children_follow_it(tmp_path: Path) -> None:
    async with started_broker(tmp_path) as broker:
        await broker.create_topic("t", ONE)
        hosted = broker.hosted("t")
        log = hosted.log_of(PARENT)
        await Appends(log).batch([b"0", b"1"])
        waiting = asyncio.ensure_future(log.wait_beyond(2))

        await split(broker)
        assert hosted.replica_of(PARENT) is log
        assert (log.high_watermark, log.is_served, log.knows_end) == (2, True, True)
        await waiting  # in the turn of the state: nothing more comes
        parent, low, high = hosted.topic.partitions
        assert (parent.sealed_end, parent.children) == (2, (LOW_CHILD, HIGH_CHILD))
        assert (low.first_offset, high.first_offset) == (2, 2)
        assert hosted.partition_of_key(key_of(LOW_CHILD)) == LOW_CHILD
        with pytest.raises(NotLeaderError, match="sealed; its keys go on in partitions 1, 2"):
            hosted.open_log_of(PARENT)
        with pytest.raises(NotLeaderError, match="broker 1 leads") as elsewhere:
            hosted.log_of(HIGH_CHILD)
        assert elsewhere.value.members["leader"] == 1

        await until(lambda: isinstance(hosted.logs[LOW_CHILD], PartitionLog))
        child = hosted.open_log_of(LOW_CHILD)
        appended = Appends(child).event(b"2")  # committed when the second broker has it
        await until(lambda: child.log_end == 3)
        appended.cancel()
        assert (child.log_start, child.high_watermark) == (2, 2)
        assert hosted.log_of(PARENT) is log
        assert await values_in(log) == [b"0", b"1"]
    async with started_broker(tmp_path) as broker:
        log = broker.hosted("t").log_of(PARENT)
        assert await values_in(log) == [b"0", b"1"]
        assert broker.hosted("t").logs[LOW_CHILD].log_end == 3  # type: ignore[union-attr]


async def test_a_log_that_is_sealed_is_trimmed_by_no_clock_of_its_own_from_that_turn_on(
    tmp_path: Path,
) -> None:
    """Its leader did not trust its clock while another replica had a different time."""
    async with started_broker(tmp_path) as broker:
        await broker.create_topic("t", replace(ONE, retention_ms=60_000))
        retention, now_us = broker._retention, broker.now_us
        retention.now_us = lambda: now_us() + 8 * DAY_US
        retention.is_time_sure = lambda _: False
        log = broker.hosted("t").log_of(PARENT)
        await Appends(log).batch([b"0", b"1"])

        def look(_: RingState | None, after: RingState) -> None:
            if after.ranges[0].is_sealed:
                retention.is_time_sure = lambda log: log.place.range_id == 0
                retention.check_all()

        broker.ring.on_applied.append(look)
        await split(broker)
        await until(lambda: isinstance(broker.hosted("t").logs[LOW_CHILD], PartitionLog))
        await until(lambda: not retention._is_trimming)
        assert await values_in(log) == [b"0", b"1"]


async def test_what_waits_when_the_log_is_sealed_was_not_attempted(tmp_path: Path) -> None:
    async with started_broker(tmp_path) as broker:
        await broker.create_topic("t", ONE)
        hosted = broker.hosted("t")
        log = hosted.log_of(PARENT)
        appends = Appends(log)
        await appends.event(b"0")
        state = await begin_step(broker)
        broker._topics.local._roles.of(0).hold()
        appends.event(b"held")
        appends.batch([b"held", b"too"])

        await broker.ring.change(seal_of(broker, state))
        _, *refused = await appends.outcomes()
        for each in refused:
            assert isinstance(each, NotLeaderError)
            assert each.members["children"] == [LOW_CHILD, HIGH_CHILD]
            assert (each.retriable, each.write_attempted) == (True, False)
        assert await values_in(log) == [b"0"]
        with pytest.raises(NotLeaderError, match="sealed"):
            await appends.event(b"late")


async def test_a_log_that_is_being_opened_when_its_partition_is_sealed_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, may_open = asyncio.Event(), asyncio.Event()

    async def open_later(*args: Any) -> dict[int, LogOrError]:
        opening.set()
        await may_open.wait()
        return await open_logs(*args)

    async with started_broker(tmp_path) as broker:
        await broker.create_topic("t", ONE)
        monkeypatch.setattr(local_topics, "open_logs", open_later)
        creating = asyncio.create_task(broker.create_topic("u", ONE))
        await opening.wait()
        state = await begin_step(broker)
        assert state.step is not None
        ends: dict[UUID, tuple[int, ...]] = dict.fromkeys(slices_in(state, 0), (0,))
        replicas = Replica(0, state.brokers[0].number), Replica(1, 1)
        await broker.ring.change(Sealed(state.step.id, 0, 1, ends, replicas))
        may_open.set()
        await creating
        log = broker.hosted("u").log_of(PARENT)
        async with asyncio.timeout(10):
            await log.wait_beyond(0)  # nothing will come
        with pytest.raises(NotLeaderError, match="sealed"):
            await Appends(log).event(b"0")


async def test_a_copy_that_ends_elsewhere_than_its_partition_is_not_served(tmp_path: Path) -> None:
    async with started_broker(tmp_path) as broker:
        await broker.create_topic("t", ONE)
        log = broker.hosted("t").log_of(PARENT)
        await Appends(log).event(b"0")
        state = await begin_step(broker)
        await broker.ring.change(seal_of(broker, state, ends=1))
        with pytest.raises(CorruptPartitionError, match="ends at 1, and was sealed at 2"):
            await log.read(0, 1)


async def test_a_topic_deleted_before_a_step_is_no_part_of_it(tmp_path: Path) -> None:
    async with started_broker(tmp_path) as broker:
        await broker.create_topic("t", ONE)
        await broker.create_topic("u", ONE)
        await Appends(broker.hosted("u").log_of(PARENT)).event(b"0")
        await broker.delete_topic("u")
        await split(broker)
        with pytest.raises(TopicNotFoundError):
            broker.hosted("u")
        assert len(broker.hosted("t").topic.partitions) == 3
    async with started_broker(tmp_path) as broker:
        assert [each.topic.name for each in broker.topics()] == ["t"]


async def test_a_step_that_is_cancelled_changes_no_topic(tmp_path: Path) -> None:
    async with started_broker(tmp_path) as broker:
        await broker.create_topic("t", ONE)
        state = await begin_step(broker)
        assert state.step is not None
        await broker.ring.change(AbortStep(state.step.id))
        assert await Appends(broker.hosted("t").open_log_of(PARENT)).event(b"0") == 0
        assert len(broker.hosted("t").topic.partitions) == 1


async def test_the_settings_of_a_topic_are_altered_on_their_own(tmp_path: Path) -> None:
    """A step carries them over to the children."""

    async with started_broker(tmp_path) as broker:
        await broker.create_topic("t", ONE)
        await split(broker)
        await broker.alter_topic("t", {"json_check": False})
        hosted = broker.hosted("t")
        assert hosted.topic.settings == msgspec.structs.replace(ONE, json_check=False)


async def test_a_log_whose_partition_leaves_while_it_is_opened_is_not_kept(tmp_path: Path) -> None:
    """A later state was followed meanwhile; what is applied then closes the log."""

    async with started_broker(tmp_path) as broker:
        topic, _ = await broker.create_topic("t", TopicSettings(partitions_per_range=2))
        hosted, local = broker.hosted("t"), broker._topics.local
        first, second = hosted.all_logs()
        hosted.alter(msgspec.structs.replace(topic, partitions=topic.partitions[1:]), [second])

        local._keep(hosted, [first, second], is_living=True)

        assert broker.hosted("t").all_logs() == [second]
        assert hosted.take_leaving() == [first]
        await first.close()
