"""What the truth about groups takes for right, and seeds in which it or consumers were wrong."""

from collections import Counter
from uuid import UUID

import pytest

from tailrace_broker.codec.groups import encode_group_event
from tailrace_broker.model.group import Committed, GroupEvent, Joined, Subscription, TopicPartition
from tailrace_broker.model.replication import LogKey
from tests.simulation.ring.data.truth import Truth
from tests.simulation.ring.groups.truth import GroupsTruth
from tests.simulation.ring.run import run
from tests.simulation.ring.scenario import make_scenario
from tests.simulation.ring.violation import Violation

KEY = LogKey(UUID(int=1), 0)
JOINED = Joined(
    Subscription("a", "g", ("orders",), "startFromLatest", 1000), 1, {KEY.topic_id: {0: 39}}
)
END = 33  # after a loss


class NoReplicas(Truth):
    """Nobody is there."""

    def __init__(self) -> None:
        """Without a ring."""

    def hosts(self) -> tuple[()]:
        return ()


@pytest.fixture
def truth() -> GroupsTruth:
    return GroupsTruth(NoReplicas(), Counter(), Counter(), lambda tp: None)


def store(truth: GroupsTruth, event: GroupEvent, number: int) -> None:
    truth.stored_event("g", encode_group_event(event), number)


def committed(offset: int) -> Committed:
    return Committed({KEY.topic_id: {0: offset}}, 0)


def test_a_start_that_is_committed_after_its_log_has_lost_it_is_where_the_log_ends(
    truth: GroupsTruth,
) -> None:
    truth.lost(KEY, END, 7)
    store(truth, JOINED, 7)

    store(truth, committed(END), 8)

    assert truth.stored == truth.dealt == {("g", TopicPartition(*KEY)): END}


def test_a_position_that_is_committed_after_its_log_has_lost_it_is_where_the_log_ends(
    truth: GroupsTruth,
) -> None:
    store(truth, JOINED, 5)
    truth.dealt["g", TopicPartition(*KEY)] = 45
    truth.lost(KEY, END, 7)
    store(truth, committed(45), 7)

    store(truth, committed(END), 8)

    assert truth.stored == truth.dealt == {("g", TopicPartition(*KEY)): END}


def test_a_start_of_after_the_loss_counts(truth: GroupsTruth) -> None:
    truth.lost(KEY, END, 7)
    store(truth, JOINED, 8)

    with pytest.raises(Violation, match="goes back from 39 to 33"):
        store(truth, committed(END), 9)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(3827, id="a start that is committed after a loss of power"),
        pytest.param(3959, id="a topic that is restored late"),
        pytest.param(7959, id="a topic that is created late"),
        pytest.param(8015, id="one of two topics that is created late"),
    ],
)
def test_a_seed_that_failed_keeps_every_promise(seed: int) -> None:
    assert run(make_scenario(seed)).failure is None
