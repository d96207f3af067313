"""Mutations of consumer groups: each function takes one rule from the shipped code."""

import asyncio
from itertools import count
from typing import Any

import pytest

from tailrace_broker.core.groups import group
from tailrace_broker.core.groups.group import Group
from tailrace_broker.core.log.leader_appends import LeaderAppends
from tailrace_broker.core.log.producers import Duplicate, Producer, ProducerWindows, Verdict
from tailrace_broker.core.log.tail_events import Acknowledge, TailEffect
from tailrace_broker.groups import coordinator
from tailrace_broker.groups.coordinator import PartitionCoordinator
from tailrace_broker.groups.log import GroupLog
from tailrace_broker.groups.polled_logs import PolledLog
from tailrace_broker.groups.writer import GroupWriter, end
from tailrace_broker.model.append_outcome import OnAppended
from tailrace_broker.model.errors import SequenceUnknownError, TailraceError
from tailrace_broker.model.group import Confirmation, GroupEvent, Joined, TopicPartition
from tailrace_broker.net.api import group_routing
from tailrace_broker.net.http.router import Response


def commit_without_delivery_number(patch: pytest.MonkeyPatch) -> None:
    """Whatever a poll or a commit names, it confirms what was delivered last."""

    def unnamed(said: Confirmation) -> Confirmation:
        return said._replace(delivery=None)

    def begin_poll(self: Group, consumer_id: str, said: Confirmation, now_us: int) -> int:
        return shipped_poll(self, consumer_id, unnamed(said), now_us)

    def confirm(self: Group, consumer_id: str, said: Confirmation, now_us: int) -> None:
        shipped_confirm(self, consumer_id, unnamed(said), now_us)

    shipped_poll, shipped_confirm = Group.begin_poll, Group.confirm
    patch.setattr(Group, "begin_poll", begin_poll)
    patch.setattr(Group, "confirm", confirm)


def deliveries_numbered_by_each_coordinator(patch: pytest.MonkeyPatch) -> None:
    """From 1 on: a number of an earlier coordinator names another delivery."""

    def init(self: PartitionCoordinator, *args: Any, **named: Any) -> None:
        shipped(self, *args, **named | {"numbers": count(1)})

    shipped = PartitionCoordinator.__init__
    patch.setattr(PartitionCoordinator, "__init__", init)
    patch.setattr(group, "_TERM_SHIFT", 0)
    patch.setattr(Group, "term", property(lambda self: 0, lambda self, value: None), raising=False)


def latest_re_evaluated_after_failover(patch: pytest.MonkeyPatch) -> None:
    """A new coordinator has groups that began at `latest` begin there once more."""

    async def begin(self: PartitionCoordinator) -> None:
        for found in self.by_name.values():
            members = found.group.members.values()
            if any(each.subscription.on_new_group == "startFromLatest" for each in members):
                _move_to_the_end(self, found.group)
        await shipped(self)

    shipped = PartitionCoordinator.begin
    patch.setattr(PartitionCoordinator, "begin", begin)


def _move_to_the_end(self: PartitionCoordinator, moved: Group) -> None:
    for hosted in self._topics.by_name.values():
        for log in hosted.all_logs():
            tp = TopicPartition(hosted.topic.topic_id, log.place.partition)
            if tp in moved.positions:
                moved._move(tp, max(moved.positions[tp], log.high_watermark))


def position_moved_back_by_a_lagging_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """What a replica does not know to be committed passes for lost."""

    async def fit(group: Group, tp: TopicPartition, log: PolledLog) -> bool:
        group.fit(tp, log.log_start, log.high_watermark)
        return True

    patch.setattr(coordinator, "fit", fit)
    patch.setattr(
        coordinator,
        "fits",
        lambda log, position: log.log_start <= position <= log.high_watermark,
    )


def coordinates_before_the_end_is_known(patch: pytest.MonkeyPatch) -> None:
    """A new leader of `__groups` reads as far as it knows that it is committed."""

    async def knows_end(self: GroupLog) -> bool:
        return self.is_led

    patch.setattr(GroupLog, "knows_end", knows_end)


def delivers_without_a_proof(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that knows no successor takes itself for the only one."""

    async def check_surely_led(self: GroupLog) -> None:
        self.check_led()

    patch.setattr(GroupLog, "check_surely_led", check_surely_led)


def answers_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    """A commit is answered when it is noted in memory."""

    async def saved(self: GroupWriter) -> None:
        self.save_soon()

    patch.setattr(GroupWriter, "saved", saved)


def joins_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    """A registration is answered before its starts are stored."""

    async def store(self: GroupWriter, event: GroupEvent) -> None:
        if not isinstance(event, Joined):
            await shipped(self, event)
            return
        self._group.apply(event, self._clock_us())
        self._on_stored(event)
        self._append(event, lambda error: None)

    shipped = GroupWriter.store
    patch.setattr(GroupWriter, "store", store)


def stale_assignments_accepted(patch: pytest.MonkeyPatch) -> None:
    """A process whose consumer id another has taken goes on."""

    def seen(self: Group, consumer_id: str, epoch: int | None, now_us: int) -> Any:
        return shipped(self, consumer_id, None, now_us)

    shipped = Group.seen
    patch.setattr(Group, "seen", seen)


def router_repeats_blindly(patch: pytest.MonkeyPatch) -> None:
    """Also what does not do the same once more: a poll that names no delivery."""

    async def retried(broker: Any, once: Any, *, repeats_unknown: bool = False) -> Response:
        return await shipped(broker, once, repeats_unknown=True)

    shipped = group_routing._retried
    patch.setattr(group_routing, "_retried", retried)


def partitions_move_with_open_deliveries(patch: pytest.MonkeyPatch) -> None:
    """A partition goes to another consumer though the first has a delivery of it."""
    patch.setattr(Group, "_is_free", lambda self, tp: self.owners.get(tp) is not None)
    patch.setattr(Group, "_holders", property(lambda self: _Nobody(), lambda self, value: None))


class _Nobody(dict[TopicPartition, str]):
    """No delivery is open."""

    def pop(self, *args: Any) -> Any:
        return ""


def lost_records_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    """A group goes on where retention has left records, and does not say what it has lost."""
    patch.setattr(Group, "lost", property(lambda self: 0, lambda self, value: None))


def registration_lets_go_when_cancelled(patch: pytest.MonkeyPatch) -> None:
    """Who is cancelled lets others decide on a group, though its event is under way."""

    async def store(self: GroupWriter, event: GroupEvent) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: TailraceError | None) -> None:
            if error is None:
                self._group.apply(event, self._clock_us())
                self._on_stored(event)
            end(waiter, error)

        self._append(event, done)
        await waiter

    patch.setattr(GroupWriter, "store", store)


def dedup_by_last_sequence(patch: pytest.MonkeyPatch) -> None:
    """What is not above the last sequence of its producer is a duplicate of it."""

    def begin(
        self: ProducerWindows, producer: Producer, record_count: int, now_us: int
    ) -> Verdict | Duplicate:
        window = self._active.get(producer.id)
        if window is not None and producer.sequence <= window.highest:
            row = window.find(window.highest)
            assert row is not None
            return Duplicate(row.offset)
        return shipped(self, producer, record_count, now_us)

    shipped = ProducerWindows.begin
    patch.setattr(ProducerWindows, "begin", begin)


def duplicate_answered_above_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """A retry is answered as soon as the original is in the leader's log."""

    def answer(self: LeaderAppends, offset: int, count: int, done: OnAppended) -> list[TailEffect]:
        return [Acknowledge(done, offset, is_duplicate=True)]

    patch.setattr(LeaderAppends, "_answer_duplicate", answer)


def late_sequences_are_new(patch: pytest.MonkeyPatch) -> None:
    """What is no longer remembered counts as never sent."""

    def begin(
        self: ProducerWindows, producer: Producer, record_count: int, now_us: int
    ) -> Verdict | Duplicate:
        try:
            return shipped(self, producer, record_count, now_us)
        except SequenceUnknownError:
            self._under_way[producer] = record_count
            return Verdict.NEW

    shipped = ProducerWindows.begin
    patch.setattr(ProducerWindows, "begin", begin)
