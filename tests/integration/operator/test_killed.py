"""The operator may end between any two of its calls: the next one brings all to the same end.

Only calls that change something count: between them nothing is lost but what was read.
"""

from typing import Any

import pytest

from tests.support.operator.fake_brokers import MemoryBrokers
from tests.support.operator.fake_kubernetes import FakeKubernetes
from tests.support.operator.operators import (
    MARKS,
    fake_cluster,
    killed_operator,
    operator_settings,
    run_scenario,
)

pytestmark = [*MARKS, pytest.mark.timeout(240)]

WRITES_MIN = 20  # that a ring and a topic take, at the least
_OF_ONE_MOMENT = frozenset(
    {"resourceVersion", "uid", "creationTimestamp", "lastTransitionTime", "generation"}
)
_OF_ONE_RING = frozenset({"clusterId", "topicId", "secret"})


def wanted(kube: FakeKubernetes) -> None:
    """A ring of three with a topic; volumes and topic go with their resources."""
    spec = {"deletionPolicy": "Delete"}
    kube.put({"kind": "StreamCluster", "metadata": {"name": "events"}, "spec": spec})
    kube.put(
        {
            "kind": "Topic",
            "metadata": {"name": "flights"},
            "spec": {"cluster": "events", "retention": "7d", "deletionPolicy": "Delete"},
        }
    )


def end_state(kube: FakeKubernetes, brokers: MemoryBrokers) -> Any:
    """All that is there but for ids and times, and Events, which may come twice or not at all."""
    ignored = ("Event", "Lease")
    kept = [each for place, each in sorted(kube.objects.items()) if place[0] not in ignored]
    topics = {name: {**topic, "id": ""} for name, topic in brokers.topics.items()}
    return [_timeless(each) for each in kept], topics, len(brokers.founded)


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _timeless(each)
            for name, each in value.items()
            if name not in _OF_ONE_MOMENT | _OF_ONE_RING
        }
    return [_timeless(each) for each in value] if isinstance(value, list) else value


async def killed_after(writes: int) -> tuple[Any, bool]:
    """The end, when the first operator was killed behind its `writes`-th change."""
    async with fake_cluster() as (kube, brokers, nodes):
        wanted(kube)
        settings = operator_settings(brokers.url_pattern)
        was_killed = await killed_operator(kube, settings, writes=writes)
        if was_killed:
            assert not await killed_operator(kube, settings, writes=1000)
        assert len(nodes.started) == 3, "no pod was started twice"
        return end_state(kube, brokers), was_killed


def test_an_operator_killed_once_anywhere_is_continued_by_the_next() -> None:
    async def scenario() -> None:
        expected, was_killed = await killed_after(1000)
        assert not was_killed
        assert expected[2] == 1, "one ring"
        for writes in range(1, 1000):
            found, was_killed = await killed_after(writes)
            assert found == expected, f"killed after {writes} changes"
            if not was_killed:
                assert writes > WRITES_MIN
                return

    run_scenario(scenario())


def test_an_operator_killed_after_each_change_still_comes_to_the_end() -> None:
    async def scenario() -> None:
        expected, _ = await killed_after(1000)
        async with fake_cluster() as (kube, brokers, nodes):
            wanted(kube)
            settings = operator_settings(brokers.url_pattern)
            kills = 0
            while await killed_operator(kube, settings, writes=1):
                kills += 1
            assert kills > WRITES_MIN
            assert end_state(kube, brokers) == expected
            assert len(nodes.started) == 3

    run_scenario(scenario())
