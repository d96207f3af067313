"""Which ancestors of a partition are asked for what they remember of their producers."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace_broker.codec.producers import Checkpoint
from tailrace_broker.core.ring.topics import topic_of
from tailrace_broker.model.errors import TailraceError
from tailrace_broker.topics import parent_producers
from tailrace_broker.topics.hosted_topic import HostedTopic
from tailrace_broker.topics.parent_producers import ParentProducers
from tests.support.ring.states import led, stepped, with_topic

NOW_US = 1_700_000_000_000_000
DAY_US = 86_400_000_000


class FakeLog:
    """One with a batch of this time; it remembers nobody."""

    def __init__(self, append_us: int) -> None:
        self.is_served, self.lost_end = True, None
        self.log_start, self.log_end = 0, 1
        self.append_us = append_us
        self.asked = 0

    async def read_written(self, *_: object) -> list[Any]:
        return [SimpleNamespace(header=SimpleNamespace(append_time_us=self.append_us))]

    def producers(self) -> Checkpoint:
        self.asked += 1
        return Checkpoint(1, [])


@pytest.mark.parametrize("is_sure", [True, False])
def test_a_clock_that_is_not_sure_makes_no_ancestor_too_old_to_be_asked(
    monkeypatch: pytest.MonkeyPatch, is_sure: bool
) -> None:
    """This broker leads a child since a moment, and is eight days ahead of who led it before: by
    its clock the first batch of the child is old, and a request that its parent has stored a minute
    ago would be stored again.
    """
    monkeypatch.setattr(parent_producers, "PartitionLog", FakeLog)
    state = stepped(with_topic(led(registered=1)))
    topic = topic_of(state, state.topics["orders"])
    child = next(each for each in topic.partitions if each.parents)
    logs = {each.partition: FakeLog(NOW_US) for each in topic.partitions}
    roles: Any = None
    errors = [TailraceError("not a log")] * len(topic.partitions)
    hosted = HostedTopic(topic, errors, roles, ordinal=0)
    hosted.logs = logs  # type: ignore[assignment]
    ring: Any = SimpleNamespace(state=state)

    def is_time_sure(log: object) -> bool:
        assert log is logs[child.partition]
        return is_sure

    subject = ParentProducers(0, ring, lambda _: hosted, lambda: NOW_US + 8 * DAY_US, is_time_sure)
    asyncio.run(subject.load(topic.topic_id, child.partition))

    assert [logs[each].asked for each in child.parents] == [0 if is_sure else 1]
