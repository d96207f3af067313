"""The coordinator on a real broker: what is stored, what waits, what survives a restart."""

import asyncio
import errno
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from tailrace_broker.app.broker import LocalBroker
from tailrace_broker.groups import log as group_log
from tailrace_broker.groups import sessions as group_sessions
from tailrace_broker.model.errors import (
    ConsumerExistsError,
    ConsumerNotRegisteredError,
    CorruptPartitionError,
    DiskFullError,
    GroupNotFoundError,
    GroupNotIdleError,
    NoLeaderError,
    StaleAssignmentError,
    StaleDeliveryError,
    TopicNotFoundError,
)
from tailrace_broker.model.group import Confirmation, Subscription, TopicPartition
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.net.broker import GroupPoll
from tailrace_broker.node import ring
from tests.support.broker.brokers import started_broker
from tests.support.ring.ring_disk import put_ring_state, ring_state_on
from tests.support.storage.storage import Appends, FaultyDisk
from tests.support.waits import until

NOTHING = Confirmation(0)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    return FaultyDisk(monkeypatch, spares_metadata=True)


def wanted(consumer_id: str = "c1", **changes: object) -> Subscription:
    fields: dict[str, object] = {
        "group": "g",
        "topics": ("t",),
        "on_new_group": "startFromEarliest",
    }
    return Subscription(consumer_id, **(fields | changes))  # type: ignore[arg-type]


async def create(broker: LocalBroker, *, partitions: int = 1, name: str = "t") -> None:
    await broker.create_topic(name, TopicSettings(partitions_per_range=partitions))


async def append(broker: LocalBroker, *values: bytes, partition: int = 0) -> None:
    await Appends(broker.hosted("t").log_of(partition)).batch(list(values))


async def take(
    broker: LocalBroker, consumer_id: str = "c1", said: Confirmation = NOTHING, wait_ms: int = 0
) -> tuple[list[tuple[int, int, int]], int | None]:
    """Poll, and have all of it delivered: [(partition, start, end)], the delivery's number."""
    poll = await broker.groups.poll(consumer_id, said, wait_ms)
    ends = [fetch_range.end or log.high_watermark for fetch_range, log in poll.fetch_ranges]
    number = await broker.groups.deliver(poll, ends) if poll.fetch_ranges else None
    return ranges_of(poll, ends), number


def ranges_of(poll: GroupPoll, ends: list[int]) -> list[tuple[int, int, int]]:
    return sorted(
        (fetch_range.partition.partition, fetch_range.start, end)
        for (fetch_range, _), end in zip(poll.fetch_ranges, ends, strict=True)
    )


async def test_a_commit_survives_a_restart_and_what_was_only_delivered_comes_again(
    tmp_path: Path,
) -> None:
    async with started_broker(tmp_path) as broker:
        await create(broker)
        await append(broker, b"0", b"1")
        epoch = await broker.groups.register(wanted())
        _, number = await take(broker)
        await broker.groups.commit("c1", Confirmation(number))
        await append(broker, b"2")
        _, unconfirmed = await take(broker, said=Confirmation(number))
    async with started_broker(tmp_path) as broker:
        assert await broker.groups.register(wanted()) == epoch
        again, later_number = await take(broker, said=Confirmation(unconfirmed))
        await broker.groups.commit("c1", Confirmation(number))  # whose answer was lost
        with pytest.raises(StaleDeliveryError):
            await broker.groups.commit("c1", Confirmation(unconfirmed))

    assert again == [(0, 2, 3)]
    assert unconfirmed is not None
    assert later_number is not None
    assert later_number > unconfirmed


async def test_who_is_cancelled_while_it_registers_keeps_others_waiting_until_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped, cancelling = group_log.GroupLog.append, list[asyncio.Task[int]]()

    def append(self: group_log.GroupLog, *args: Any) -> None:
        shipped(self, *args)
        while cancelling:
            cancelling.pop().cancel()

    async with started_broker(tmp_path) as broker:
        await create(broker)
        await broker.groups.register(wanted("c0", group="other"))  # makes the topic
        monkeypatch.setattr(group_log.GroupLog, "append", append)
        registering = asyncio.create_task(broker.groups.register(wanted("c1")))
        cancelling.append(registering)
        later = asyncio.create_task(broker.groups.register(wanted("c2")))
        with pytest.raises(asyncio.CancelledError):
            await registering
        joined_epoch = await later
        members = broker.groups.view("g").group.members
        assert {each: members[each].joined_epoch for each in members} == {"c1": 1, "c2": 2}
        assert joined_epoch == 2
    async with started_broker(tmp_path) as broker:
        assert broker.groups.view("g").group.members.keys() == {"c1", "c2"}


async def test_a_poll_waits_for_the_first_record_and_a_later_poll_ends_it(tmp_path: Path) -> None:
    async with started_broker(tmp_path) as broker:
        await create(broker, partitions=4)
        await broker.groups.register(wanted())
        waiting = asyncio.create_task(take(broker, wait_ms=60_000))
        await until(lambda: bool(broker.hosted("t").log_of(2).waiters))
        later = asyncio.create_task(take(broker, wait_ms=60_000))
        ended, _ = await waiting
        await until(lambda: bool(broker.hosted("t").log_of(2).waiters))
        await append(broker, b"0", partition=2)
        got, _ = await later

    assert ended == []
    assert got == [(2, 0, 1)]


async def test_a_partition_moves_to_a_new_consumer_when_it_is_confirmed(tmp_path: Path) -> None:
    async with started_broker(tmp_path) as broker:
        await create(broker, partitions=2)
        for partition in (0, 1):
            await append(broker, b"0", partition=partition)
        await broker.groups.register(wanted("c1"))
        both, number = await take(broker, "c1")
        await broker.groups.register(wanted("c2"))
        nothing_yet, _ = await take(broker, "c2")
        waiting = asyncio.create_task(take(broker, "c2", wait_ms=60_000))
        for partition in (0, 1):
            await append(broker, b"1", partition=partition)
        kept, _ = await take(broker, "c1", Confirmation(number))
        moved, _ = await waiting

    assert both == [(0, 0, 1), (1, 0, 1)]
    assert nothing_yet == []
    assert sorted([*kept, *moved]) == [(0, 1, 2), (1, 1, 2)]
    assert len(kept) == len(moved) == 1


async def test_a_consumer_that_is_not_seen_is_removed_and_another_takes_over(
    tmp_path: Path,
) -> None:
    async with started_broker(tmp_path) as broker:
        await create(broker)
        await append(broker, b"0")
        await broker.groups.register(wanted("c1", session_ms=100))
        first, _ = await take(broker, "c1")
        await broker.groups.register(wanted("c2"))
        taken_over, _ = await take(broker, "c2", wait_ms=60_000)
        with pytest.raises(ConsumerNotRegisteredError):
            await take(broker, "c1")

    assert first == taken_over == [(0, 0, 1)]


async def test_a_late_goodbye_neither_confirms_nor_removes_a_successor(tmp_path: Path) -> None:
    async with started_broker(tmp_path) as broker:
        await create(broker)
        await append(broker, b"0")
        groups = broker.groups
        old_epoch = await groups.register(wanted())
        await groups.goodbye("c1", Confirmation(None, old_epoch), commits=True)
        new_epoch = await groups.register(wanted())
        got, number = await take(broker)
        with pytest.raises(StaleAssignmentError):
            await groups.goodbye("c1", Confirmation(None, old_epoch), commits=True)
        with pytest.raises(StaleAssignmentError):
            await groups.register(wanted(), old_epoch)
        assert await groups.register(wanted(), new_epoch) == new_epoch
        await groups.goodbye("c1", Confirmation(0, new_epoch), commits=True)  # names nothing
        with pytest.raises(ConsumerNotRegisteredError):
            await groups.register(wanted(), new_epoch)
        await groups.register(wanted())
        again, _ = await take(broker)

    assert got == again == [(0, 0, 1)]
    assert number is not None


async def test_one_id_goes_to_one_of_two_groups_that_register_it_at_once(tmp_path: Path) -> None:
    async with started_broker(tmp_path) as broker:
        await create(broker)
        await append(broker, b"0")
        await broker.groups.register(wanted("other", group="h"))
        outcomes = await asyncio.gather(
            broker.groups.register(wanted(group="g")),
            broker.groups.register(wanted(group="h")),
            return_exceptions=True,
        )
        refused = [outcome for outcome in outcomes if isinstance(outcome, ConsumerExistsError)]

        assert len(refused) == 1


async def test_a_refused_registration_leaves_no_group_behind(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    async with started_broker(tmp_path) as broker:
        await create(broker)
        await broker.groups.register(wanted())
        disk.fail("pwritev", errno.ENOSPC)
        with pytest.raises(DiskFullError):
            await broker.groups.register(wanted("c2", group="other"))
        await broker.groups.register(wanted("c2", group="third"))

        assert [view.group.name for view in broker.groups.views()] == ["g", "third"]


async def test_a_removal_that_cannot_be_stored_is_tried_again(
    tmp_path: Path, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_sessions, "RETRY_SECONDS", 0.05)

    async with started_broker(tmp_path) as broker:
        await create(broker)
        await broker.groups.register(wanted(session_ms=50))
        disk.fail("pwritev", errno.ENOSPC)
        group = broker.groups.view("g").group
        await until(lambda: not group.members)

        assert disk.calls["pwritev"] > 0


async def test_latest_is_fixed_at_registration(tmp_path: Path) -> None:
    async with started_broker(tmp_path) as broker:
        await create(broker)
        await append(broker, b"0")
        await broker.groups.register(wanted(on_new_group="startFromLatest"))
        await append(broker, b"1")
    async with started_broker(tmp_path) as broker:
        await append(broker, b"2")
        got, _ = await take(broker)

    assert got == [(0, 1, 3)]


async def test_a_topic_that_is_created_again_starts_fresh(tmp_path: Path) -> None:
    async with started_broker(tmp_path) as broker:
        await create(broker)
        await append(broker, b"0", b"1")
        await broker.groups.register(wanted(on_new_group="startFromLatest"))
        await broker.delete_topic("t")
        nothing, _ = await take(broker)
        waiting = asyncio.create_task(take(broker, wait_ms=60_000))
        await create(broker)
        await append(broker, b"0")
        got, _ = await waiting

    assert nothing == []
    assert got == [(0, 0, 1)]


async def test_who_is_not_registered_or_registered_otherwise_is_reported(tmp_path: Path) -> None:
    async with started_broker(tmp_path, auto_create_topics=False) as broker:
        await create(broker)
        groups = broker.groups
        with pytest.raises(ConsumerNotRegisteredError):
            await groups.poll("c1", NOTHING, 0)
        with pytest.raises(TopicNotFoundError, match=r"create it with POST /v1/topics$"):
            await groups.register(wanted(topics=("unknown",)))
        with pytest.raises(GroupNotFoundError):
            groups.view("g")
        first_epoch = await groups.register(wanted())
        with pytest.raises(ConsumerExistsError):
            await groups.register(wanted(session_ms=5000))
        with pytest.raises(ConsumerExistsError):
            await groups.register(wanted(group="other"))
        with pytest.raises(GroupNotIdleError):
            await groups.delete("g")
        await groups.goodbye("c1", Confirmation(), commits=True)
        await groups.register(wanted())
        with pytest.raises(StaleAssignmentError):
            await groups.poll("c1", Confirmation(0, first_epoch), 0)
        assert [view.group.name for view in groups.views()] == ["g"]


async def test_a_group_is_moved_published_and_deleted(tmp_path: Path) -> None:
    async with started_broker(tmp_path) as broker:
        await create(broker)
        await append(broker, b"0", b"1", b"2")
        topic_partition = TopicPartition(broker.hosted("t").topic.topic_id, 0)
        await broker.groups.publish("spark:1", "spark", {topic_partition: 2})
        await broker.groups.register(wanted())
        await broker.groups.goodbye("c1", Confirmation(), commits=True)
        await broker.groups.reset("g", {topic_partition: 1})
    async with started_broker(tmp_path) as broker:
        groups = broker.groups
        assert groups.view("spark:1").group.source == "spark"
        assert groups.view("spark:1").group.positions[topic_partition] == 2
        await groups.register(wanted())
        got, _ = await take(broker)
        await groups.delete("spark:1")
    async with started_broker(tmp_path) as broker:
        names = [view.group.name for view in broker.groups.views()]

    assert got == [(0, 1, 3)]
    assert names == ["g"]


async def test_a_full_disk_fails_a_commit_and_loses_no_position(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    async with started_broker(tmp_path) as broker:
        await create(broker)
        await append(broker, b"0")
        await broker.groups.register(wanted())
        _, number = await take(broker)
        for _ in range(2):  # a save that fails is tried again for waiters
            disk.fail("pwritev", errno.ENOSPC)
        with pytest.raises(DiskFullError):
            await broker.groups.commit("c1", Confirmation(number))
        disk.forget_faults()
        await broker.groups.commit("c1", Confirmation(number))
    async with started_broker(tmp_path) as broker:
        got, _ = await take(broker)

    assert got == []


async def test_who_waits_is_not_taken_for_gone(tmp_path: Path) -> None:
    async with started_broker(tmp_path) as broker:
        await create(broker)
        await broker.groups.register(wanted("c1", session_ms=50))
        await broker.groups.register(wanted("c2", session_ms=50, group="other"))
        waiting = asyncio.create_task(take(broker, "c1", wait_ms=60_000))
        other = broker.groups.view("other").group
        await until(lambda: not other.members)
        await append(broker, b"0")
        got, _ = await waiting

    assert got == [(0, 0, 1)]


async def test_a_poll_goes_on_behind_what_is_lost_for_good(tmp_path: Path) -> None:
    """Also with a delivery of it that is open; what is only damaged is left out."""

    async with started_broker(tmp_path) as broker:
        await create(broker)
        await append(broker, *(b"%d" % number for number in range(9)))
        await broker.groups.register(wanted())
        place = TopicPartition(broker.hosted("t").topic.topic_id, 0)

        def lost(first: int, end: int, *, is_accepted: bool = True) -> CorruptPartitionError:
            return CorruptPartitionError(
                "gone", firstOffset=first, nextOffset=end, accepted=is_accepted
            )

        with capture_logs() as lines:
            poll = await broker.groups.poll("c1", NOTHING, 0)
            poll = await broker.groups.poll_on(poll, {place: lost(0, 2)}, 0)
            assert ranges_of(poll, [9]) == [(0, 2, 9)]
            assert await broker.groups.deliver(poll, [9]) is not None
            poll = await broker.groups.poll_on(poll, {place: lost(4, 7)}, 0)
            assert [(each.start, each.end) for each, _ in poll.fetch_ranges] == [(2, 4)]
        damage = lost(2, 4, is_accepted=False)
        poll = await broker.groups.poll_on(poll, {place: damage}, 0)
        assert (poll.fetch_ranges, poll.problem) == ([], damage)

        assert broker.groups.view("g").group.lost == 2
        moved = {"event": "group.moved", "group": "g", "lost_records": 2}
        assert lines == 2 * [moved | {"log_level": "warning"}]


async def test_a_position_above_a_log_that_lost_its_end_moves_back_at_the_start(
    tmp_path: Path,
) -> None:
    async with started_broker(tmp_path) as broker:
        await create(broker)
        await append(broker, b"0", b"1")
        topic_partition = TopicPartition(broker.hosted("t").topic.topic_id, 0)
        await broker.groups.publish("g", "spark", {topic_partition: 5})
    for _ in range(2):  # the first start stores it
        async with started_broker(tmp_path) as broker:
            group = broker.groups.view("g").group
            assert group.positions == {topic_partition: 2}
            await until(lambda group=group: group.stored == {topic_partition: 2})  # type: ignore[misc]


async def test_groups_of_a_damaged_log_are_refused_and_others_go_on(tmp_path: Path) -> None:
    names = [f"g{number}" for number in range(8)]

    async with started_broker(tmp_path) as broker:
        await create(broker)
        for name in names:
            await broker.groups.register(wanted(f"of-{name}", group=name))
        damaged_partition = broker.groups.view(names[0]).coordinator
        others = {
            view.group.name
            for view in broker.groups.views()
            if view.coordinator != damaged_partition
        }
        log = broker._topics.internal["__groups"].log_of(damaged_partition)
        await Appends(log).batch([b"no event"])
    async with started_broker(tmp_path) as broker:
        with pytest.raises(CorruptPartitionError):
            await broker.groups.register(wanted(f"of-{names[0]}", group=names[0]))
        assert {view.group.name for view in broker.groups.views()} == others
        assert others


async def test_a_consumer_that_registers_while_its_group_is_deleted_joins_a_new_one(
    tmp_path: Path,
) -> None:
    async with started_broker(tmp_path) as broker:
        await create(broker)
        await append(broker, b"0")
        await broker.groups.register(wanted())
        await broker.groups.goodbye("c1", Confirmation(), commits=True)
        deleting = asyncio.create_task(broker.groups.delete("g"))
        await asyncio.sleep(0)
        await broker.groups.register(wanted())
        await deleting
    async with started_broker(tmp_path) as broker:
        got, _ = await take(broker)

    assert got == [(0, 0, 1)]


async def test_a_compaction_that_fails_is_no_end_and_positions_of_a_new_topic_survive_one(
    tmp_path: Path, disk: FaultyDisk, capsys: pytest.CaptureFixture[str]
) -> None:
    async with started_broker(tmp_path) as broker:
        await create(broker)
        await append(broker, b"0")
        await broker.groups.register(wanted())
        partition = broker.groups.view("g").coordinator
        compaction = broker.groups._by_partition[partition]._compaction
        disk.fail("pwritev", errno.ENOSPC, skipped=1)  # the first brings the log to its segment
        await compaction._compact()
        assert "compaction.failed" in capsys.readouterr().out

        _, number = await take(broker)
        await broker.groups.commit("c1", Confirmation(number))
        await broker.delete_topic("t")
        await compaction._compact()
        assert "groups.compacted" in capsys.readouterr().out
        await broker.restore_topic("t", None)
    async with started_broker(tmp_path) as broker:
        got, _ = await take(broker)

    assert got == []


async def test_the_log_of_groups_is_compacted_and_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_log, "COMPACTED_BYTES_MIN", 16 * 1024)

    async with started_broker(tmp_path) as broker:
        await create(broker)
        for name in ("g", "h", "i"):
            await broker.groups.register(wanted(f"of-{name}", group=name))
        log = broker._topics.internal["__groups"].log_of(broker.groups.view("g").coordinator)
        count = 0
        while log.log_start == 0:
            await append(broker, b"0")
            count += 1
            _, number = await take(broker, "of-g")
            await broker.groups.commit("of-g", Confirmation(number))
        assert len(log.segments) < 3
    async with started_broker(tmp_path) as broker:
        views = list(broker.groups.views())
        positions = [max(view.group.positions.values()) for view in views]
        members = [list(view.group.members) for view in views]

    assert positions == [count, 0, 0]
    assert members == [["of-g"], ["of-h"], ["of-i"]]


async def test_groups_whose_log_nobody_leads_wait_and_end_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their range waits for a person; with it the data of all topics."""
    monkeypatch.setattr(ring, "LEAD_S_MAX", 0.01)

    async with started_broker(tmp_path) as broker:
        await create(broker)
        await broker.groups.register(wanted())
    state = ring_state_on(tmp_path)
    unknown = structs.replace(state.brokers[0], start=UUID(int=1))
    put_ring_state(tmp_path, structs.replace(state, brokers={0: unknown}))
    async with started_broker(tmp_path) as broker:
        with pytest.raises(NoLeaderError, match="no broker leads"):
            await broker.groups.register(wanted())
        assert list(broker.groups.views()) == []
