"""A group against a plain model of its consumers' records (`tests.support.groups.group_world`).

Checked after each step: nothing is skipped unless it is counted as lost, a key's records come in
order over splits and joins, positions move forward only, a partition is in one consumer's hands,
and the stored events make the same group at any time. When all consumers work, all is read.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
)

from tests.support.groups.group_world import KEYS, GroupWorld, Process, processes

choices = st.integers(0, 999)
consumers = st.integers(0, len(processes()) - 1)


class GroupMachine(RuleBasedStateMachine):
    """What can happen to a group, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = GroupWorld()

    def process(self, index: int) -> Process:
        return self.world.processes[index]

    @invariant()
    def all_holds(self) -> None:
        self.world.check()

    @rule(choice=choices, keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=7))
    def produce(self, choice: int, keys: list[int]) -> None:
        self.world.produce(choice, keys)

    @rule(name=st.sampled_from(["t1", "t2"]), partition_count=st.integers(1, 3))
    def create_topic(self, name: str, partition_count: int) -> None:
        self.world.create_topic(name, partition_count)

    @rule(choice=choices)
    def delete_topic(self, choice: int) -> None:
        self.world.delete_topic(choice)

    @rule(choice=choices, child_count=st.integers(1, 2))
    def step(self, choice: int, child_count: int) -> None:
        self.world.step(choice, child_count)

    @rule(choice=choices, record_count=st.integers(1, 7))
    def retain(self, choice: int, record_count: int) -> None:
        self.world.retain(choice, record_count)

    @rule(choice=choices, record_count=st.integers(1, 7))
    def lose(self, choice: int, record_count: int) -> None:
        self.world.lose(choice, record_count)

    @rule(index=consumers)
    def register(self, index: int) -> None:
        self.world.register(self.process(index))

    @rule(index=consumers, record_count=st.integers(1, 5), choice=choices)
    def begin_poll(self, index: int, record_count: int, choice: int) -> None:
        self.world.begin_poll(self.process(index), record_count, choice)

    @rule(index=consumers, choice=choices)
    def end_poll(self, index: int, choice: int) -> None:
        self.world.end_poll(self.process(index), choice)

    @rule(index=consumers, record_count=st.integers(1, 5), choice=choices)
    def poll(self, index: int, record_count: int, choice: int) -> None:
        self.world.begin_poll(self.process(index), record_count, choice)
        self.world.end_poll(self.process(index), choice)

    @rule(index=consumers)
    def commit(self, index: int) -> None:
        self.world.commit(self.process(index))

    @rule(index=consumers)
    def goodbye(self, index: int) -> None:
        self.world.goodbye(self.process(index))

    @rule(index=consumers)
    def crash(self, index: int) -> None:
        self.world.crash(self.process(index))

    @rule(ms=st.sampled_from([100, 400, 1000]))
    def pass_time(self, ms: int) -> None:
        self.world.pass_time(ms)

    @rule()
    def save(self) -> None:
        self.world.save()

    @rule(event_count=st.integers(1, 4))
    def store(self, event_count: int) -> None:
        self.world.store(event_count)

    @rule(choice=choices)
    def reset(self, choice: int) -> None:
        self.world.reset(choice)

    @rule()
    def delete(self) -> None:
        self.world.delete()

    @rule(is_trimmed=st.booleans())
    def snapshot(self, is_trimmed: bool) -> None:
        self.world.snapshot(is_trimmed=is_trimmed)

    @rule(choice=choices, is_power_lost=st.booleans())
    def restart(self, choice: int, is_power_lost: bool) -> None:
        self.world.restart(choice, is_power_lost=is_power_lost)

    @rule()
    def settle(self) -> None:
        self.world.settle()

    def teardown(self) -> None:
        self.world.settle()


GroupMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=60)
TestGroup = GroupMachine.TestCase
