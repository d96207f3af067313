"""Mutations of the machine of a group, one at a time: a scenario of it finds each."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest

from tailrace_broker.core.groups import group as module
from tailrace_broker.core.groups.group import Group
from tailrace_broker.core.groups.member import Member
from tailrace_broker.core.groups.offsets import partitions_of
from tailrace_broker.model.group import Confirmation, GroupEvent, Left, Moved, TopicPartition
from tailrace_broker.model.topic import Partition, Topic
from tests.support.groups.group_world import GroupWorld

SEED_COUNT = 60
STEP_COUNT = 150

Mutation = Callable[[pytest.MonkeyPatch], None]


def poll_confirms_whatever_it_names(patch: pytest.MonkeyPatch) -> None:
    begin = Group.begin_poll
    patch.setattr(
        Group,
        "begin_poll",
        lambda self, name, said, now_us: begin(self, name, Confirmation(None, said.epoch), now_us),
    )


def commit_confirms_whatever_it_names(patch: pytest.MonkeyPatch) -> None:
    confirm = Group.confirm
    patch.setattr(
        Group,
        "confirm",
        lambda self, name, said, now_us: confirm(self, name, Confirmation(None), now_us),
    )


def position_moved_on_delivery(patch: pytest.MonkeyPatch) -> None:
    """As if what was sent had arrived."""
    deliver = Group.deliver

    def deliver_and_confirm(self: Group, name: str, poll_number: int, ranges: Any) -> int | None:
        number = deliver(self, name, poll_number, ranges)
        if number is not None:
            self.confirm(name, Confirmation(number), self.members[name].seen_us)
        return number

    patch.setattr(Group, "deliver", deliver_and_confirm)


def withdrawn_delivery_stays_open(patch: pytest.MonkeyPatch) -> None:
    """A poll that names none confirms what never left."""
    patch.setattr(Group, "withdraw", lambda self, name, poll_number, number: None)


def answer_of_an_older_poll_sent(patch: pytest.MonkeyPatch) -> None:
    deliver = Group.deliver
    patch.setattr(
        Group,
        "deliver",
        lambda self, name, poll_number, ranges: deliver(
            self,
            name,
            self.members[name].poll_number if name in self.members else poll_number,
            ranges,
        ),
    )


def delivery_numbers_begin_again_with_each_boot(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(module, "_TERM_SHIFT", 0)


def child_served_before_its_parents(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Group, "_readable", lambda self, topic: topic.partitions)


def child_served_before_its_second_parent(patch: pytest.MonkeyPatch) -> None:
    def after_any_parent(self: Group, topic: Topic) -> list[Partition]:
        done = {
            partition.partition for partition in topic.partitions if self._is_done(topic, partition)
        }
        return [
            partition
            for partition in topic.partitions
            if not partition.parents or done & {*partition.parents}
        ]

    patch.setattr(Group, "_readable", after_any_parent)


def child_of_an_empty_parent_served_before_its_grandparents(patch: pytest.MonkeyPatch) -> None:
    def after_its_parents(self: Group, topic: Topic) -> list[Partition]:
        done = {
            partition.partition for partition in topic.partitions if self._is_done(topic, partition)
        }
        return [partition for partition in topic.partitions if done >= {*partition.parents}]

    patch.setattr(Group, "_readable", after_its_parents)


def partition_moved_while_it_is_delivered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Group, "_is_free", lambda self, tp: True)


def latest_evaluated_again_when_consumers_come_back(patch: pytest.MonkeyPatch) -> None:
    join, joined = Group.join, Group._apply_joined

    def forget(self: Group) -> None:
        if not self.members:
            self.positions, self.stored = {}, {}

    def join_again(self: Group, *args: Any) -> Any:
        forget(self)
        return join(self, *args)

    def joined_again(self: Group, event: Any, now_us: int) -> None:
        forget(self)
        joined(self, event, now_us)

    patch.setattr(Group, "join", join_again)
    patch.setattr(Group, "_apply_joined", joined_again)


def starts_not_stored(patch: pytest.MonkeyPatch) -> None:
    joined = Group._apply_joined

    def without_starts(self: Group, event: Any, now_us: int) -> None:
        stored = dict(self.stored)
        joined(self, event, now_us)
        self.stored = stored

    patch.setattr(Group, "_apply_joined", without_starts)


def stored_position_never_moves_back(patch: pytest.MonkeyPatch) -> None:
    """Not even to where a log ended that had lost its end, which has grown since."""

    def commit(self: Group, offsets: Any) -> None:
        for tp, offset in partitions_of(offsets):
            self.stored[tp] = offset
            self.positions[tp] = max(self.positions.get(tp, 0), offset)

    patch.setattr(Group, "_apply_committed", commit)


def position_beyond_the_end_of_a_log_kept(patch: pytest.MonkeyPatch) -> None:
    fit = Group.fit
    patch.setattr(Group, "fit", lambda self, tp, log_start, end: fit(self, tp, log_start, 2**62))


def gap_left_in_a_delivery(patch: pytest.MonkeyPatch) -> None:
    pass_over, narrow = Group.pass_over, Group._narrow_at

    def move_only(self: Group, tp: TopicPartition, gap: range) -> bool:
        patch.setattr(Group, "_narrow_at", lambda self, tp, fitting: False)
        has_changed = pass_over(self, tp, gap)
        patch.setattr(Group, "_narrow_at", narrow)
        return has_changed

    patch.setattr(Group, "pass_over", move_only)


def gap_not_counted(patch: pytest.MonkeyPatch) -> None:
    pass_over = Group.pass_over

    def forget(self: Group, tp: TopicPartition, gap: range) -> bool:
        lost = self.lost
        has_changed = pass_over(self, tp, gap)
        self.lost = lost
        return has_changed

    patch.setattr(Group, "pass_over", forget)


def lost_records_not_counted(patch: pytest.MonkeyPatch) -> None:
    fit = Group.fit

    def forget(self: Group, *args: Any) -> None:
        lost = self.lost
        fit(self, *args)
        self.lost = lost

    patch.setattr(Group, "fit", forget)


def lost_records_not_stored(patch: pytest.MonkeyPatch) -> None:
    apply = Group.apply

    def forget(self: Group, event: GroupEvent, now_us: int) -> None:
        lost = self._stored_lost
        apply(self, event, now_us)
        self._stored_lost = lost

    patch.setattr(Group, "apply", forget)


def reset_while_consumers_read(patch: pytest.MonkeyPatch) -> None:
    apply = Group.apply

    def at_once(self: Group, event: GroupEvent, now_us: int) -> None:
        apply(self, event, now_us)
        if isinstance(event, Moved):
            self._apply_moved(event)

    patch.setattr(Group, "apply", at_once)


def removed_consumer_keeps_its_partitions(patch: pytest.MonkeyPatch) -> None:
    apply = Group.apply

    def keep(self: Group, event: GroupEvent, now_us: int) -> None:
        holders = dict(self._holders)
        apply(self, event, now_us)
        if isinstance(event, Left):
            self._holders = holders

    patch.setattr(Group, "apply", keep)


def registered_process_taken_for_one_before(patch: pytest.MonkeyPatch) -> None:
    """Numbers of assignments are used again."""
    joined = Group._apply_joined

    def without_growth(self: Group, event: Any, now_us: int) -> None:
        epoch = self.epoch
        joined(self, event, now_us)
        self.epoch = max(epoch, event.epoch)

    patch.setattr(Group, "_apply_joined", without_growth)


def delivery_of_a_deleted_topic_asked_for(patch: pytest.MonkeyPatch) -> None:
    """It is never confirmed, and nothing else is delivered."""
    patch.setattr(Group, "_forget_all_but", lambda self, topics: None)


def delivery_that_is_lost_asked_for(patch: pytest.MonkeyPatch) -> None:
    """What retention has removed is to be delivered again."""

    def move(self: Group, tp: TopicPartition, log_start: int, high_watermark: int) -> None:
        if tp not in self._holders:
            fit(self, tp, log_start, high_watermark)

    fit = Group.fit
    patch.setattr(Group, "fit", move)


def redelivery_takes_what_is_new_along(patch: pytest.MonkeyPatch) -> None:
    def again(self: Group, member: Member, delivery: Any, ranges: Mapping[Any, Any]) -> int:
        self._end_delivery(member)
        delivery.ranges = dict(ranges)
        member.delivery = delivery
        self._holders |= dict.fromkeys(ranges, member.subscription.consumer_id)
        number: int = delivery.number
        return number

    fetch_ranges = Group.fetch_ranges

    def all_pieces(self: Group, name: str, topics: Any) -> Any:
        return [range_._replace(end=None) for range_ in fetch_ranges(self, name, topics)]

    patch.setattr(Group, "_deliver_again", again)
    patch.setattr(Group, "fetch_ranges", all_pieces)


MUTATIONS: list[tuple[Mutation, int]] = [
    (poll_confirms_whatever_it_names, 0),
    (commit_confirms_whatever_it_names, 8),
    (position_moved_on_delivery, 0),
    (withdrawn_delivery_stays_open, 10),
    (answer_of_an_older_poll_sent, 10),
    (delivery_numbers_begin_again_with_each_boot, 1),
    (child_served_before_its_parents, 0),
    (child_served_before_its_second_parent, 0),
    (child_of_an_empty_parent_served_before_its_grandparents, 12),
    (partition_moved_while_it_is_delivered, 1),
    (latest_evaluated_again_when_consumers_come_back, 0),
    (starts_not_stored, 0),
    (stored_position_never_moves_back, 11),
    (position_beyond_the_end_of_a_log_kept, 11),
    (lost_records_not_counted, 1),
    (lost_records_not_stored, 6),
    (reset_while_consumers_read, 19),
    (removed_consumer_keeps_its_partitions, 6),
    (registered_process_taken_for_one_before, 1),
    (delivery_of_a_deleted_topic_asked_for, 80),
    (gap_left_in_a_delivery, 120),
    (gap_not_counted, 0),
    (delivery_that_is_lost_asked_for, 1),
    (redelivery_takes_what_is_new_along, 1),
]


def run_scenario(seed: int) -> None:
    """A scenario of a group."""
    world, chance = GroupWorld(), Random(seed)
    for _ in range(STEP_COUNT):
        world.happen(chance)
    world.settle()


def test_a_group_without_a_mutation_holds() -> None:
    for seed in range(3):
        run_scenario(seed)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("mutation", "first_seed"), MUTATIONS, ids=[mutation.__name__ for mutation, _ in MUTATIONS]
)
def test_a_mutation_is_found(
    mutation: Mutation, first_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    for seed in range(first_seed, first_seed + SEED_COUNT):
        try:
            run_scenario(seed)
        except AssertionError as error:
            print(f"seed {seed}: {error}")
            return
    pytest.fail(f"{mutation.__name__} was not found in {SEED_COUNT} seeds")
