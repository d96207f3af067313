"""A group is moved back where a log that another broker leads has lost its end."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tailrace_broker.core.groups.group import Group
from tailrace_broker.groups import end_comparison
from tailrace_broker.groups.end_comparison import EndComparison
from tailrace_broker.model.errors import NotReadyError
from tailrace_broker.model.group import TopicPartition
from tailrace_broker.model.topic import Partition, Topic, TopicSettings
from tests.support.waits import until

FIRST, SECOND, SEALED = (TopicPartition(UUID(int=1), partition) for partition in range(3))
PARTITIONS = (
    Partition(0, 0, 1, -(2**63), 0),
    Partition(1, 0, 1, 0, 2**63),
    Partition(2, 0, 1, -(2**63), 2**63, sealed_end=9),
)

Ends = dict[TopicPartition, tuple[int, int]]


class Leaders:
    """What they say of all partitions, as often as they are asked."""

    def __init__(self, ends: Ends) -> None:
        self.ends = ends
        self.asked: list[Sequence[str]] = []
        self.before_answer: Callable[[], object] = lambda: None
        self.refusal: NotReadyError | None = None

    async def ends_of(self, topics: Sequence[str]) -> Ends:
        self.asked.append(topics)
        ends = dict(self.ends)
        await asyncio.sleep(0)
        self.before_answer()
        if self.refusal is not None:
            raise self.refusal
        return ends


def group_at(**positions: int) -> Group:
    group = Group("g", 1)
    places = {"first": FIRST, "second": SECOND, "sealed": SEALED}
    for name, position in positions.items():
        group._move(places[name], position)
    return group


def run(
    scenario: Callable[[EndComparison, Leaders], Awaitable[None]], group: Group, ends: Ends
) -> list[Group]:
    """The groups that were reported as moved."""
    moved: list[Group] = []

    async def compare() -> None:
        leaders = Leaders(ends)
        hosted = SimpleNamespace(topic=Topic("t", UUID(int=1), TopicSettings(), PARTITIONS))
        topics: Any = SimpleNamespace(by_name={"t": hosted})
        async with asyncio.TaskGroup() as tasks:

            def spawn(work: Coroutine[Any, Any, None]) -> object:
                return tasks.create_task(work)

            comparison = EndComparison(
                topics, leaders.ends_of, spawn, lambda: [group], moved.append
            )
            await scenario(comparison, leaders)
            await until(lambda: not comparison._is_running)

    asyncio.run(compare())
    return moved


async def once(comparison: EndComparison, _: Leaders) -> None:
    comparison.compare(["t"])


def test_a_position_above_the_end_moves_back_to_it_and_others_stay() -> None:
    group = group_at(first=100, second=50, sealed=9)

    assert run(once, group, {FIRST: (0, 90), SECOND: (60, 70), SEALED: (0, 9)}) == [group]
    assert group.positions == {FIRST: 90, SECOND: 50, SEALED: 9}


def test_nobody_is_asked_for_what_is_known_or_not_read() -> None:
    asked = []

    async def scenario(comparison: EndComparison, leaders: Leaders) -> None:
        comparison.compare(["t", "gone"], known={FIRST})
        asked.append(leaders.asked)

    assert run(scenario, group_at(first=100, sealed=9), {FIRST: (0, 90)}) == []
    assert asked == [[]]


def test_who_does_not_say_it_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(end_comparison, "RETRY_SECONDS_MIN", 0.001)
    group = group_at(first=100, second=100)

    async def scenario(comparison: EndComparison, leaders: Leaders) -> None:
        leaders.refusal = NotReadyError("not yet")
        comparison.compare(["t"])
        await until(lambda: len(leaders.asked) > 2)
        leaders.refusal = None
        await until(lambda: group.positions[FIRST] == 90)
        leaders.ends[SECOND] = (0, 80)

    assert run(scenario, group, {FIRST: (0, 90)}) == [group, group]
    assert group.positions == {FIRST: 90, SECOND: 80}


def test_an_answer_from_before_a_loss_is_not_taken_for_one_behind_it() -> None:
    group = group_at(first=100)

    async def scenario(comparison: EndComparison, leaders: Leaders) -> None:
        def lose() -> None:
            leaders.before_answer = lambda: None
            leaders.ends[FIRST] = (0, 90)
            comparison.compare(["t"])

        leaders.before_answer = lose
        comparison.compare(["t"])

    assert run(scenario, group, {FIRST: (0, 100)}) == [group]
    assert group.positions == {FIRST: 90}


def test_what_has_gone_on_meanwhile_stays_where_it_is() -> None:
    group = group_at(first=100)

    async def scenario(comparison: EndComparison, leaders: Leaders) -> None:
        leaders.before_answer = lambda: group._move(FIRST, 101)
        comparison.compare(["t"])

    assert run(scenario, group, {FIRST: (0, 90)}) == []
    assert group.positions == {FIRST: 101}


def test_a_coordinator_that_has_ended_moves_nothing() -> None:
    group = group_at(first=100)

    async def scenario(comparison: EndComparison, leaders: Leaders) -> None:
        leaders.before_answer = comparison.end
        comparison.compare(["t"])

    assert run(scenario, group, {FIRST: (0, 90)}) == []
    assert group.positions == {FIRST: 100}
