"""Which partition of a hosted topic has a key; while some keys have none yet, too."""

from collections.abc import Sequence
from itertools import pairwise
from typing import cast
from uuid import UUID

import numpy as np
import pytest

from tailrace_broker.core.ring.arithmetic import TOKEN_END, TOKEN_MIN, token
from tailrace_broker.model.errors import NotReadyError
from tailrace_broker.model.topic import Partition, Topic, TopicSettings
from tailrace_broker.topics.hosted_topic import HostedTopic
from tailrace_broker.topics.range_leaders import RangeRoles

THIRD = 2**64 // 3
STARTS = [TOKEN_MIN, TOKEN_MIN + THIRD, TOKEN_MIN + 2 * THIRD, TOKEN_END]
KEYS = [b"%d" % number for number in range(30)]


def hosted(thirds: Sequence[int]) -> HostedTopic:
    """A topic with partitions in these thirds of the tokens; a step changes the others."""
    bounds = list(pairwise(STARTS))
    partitions = tuple(
        Partition(number, third, 1, *bounds[third]) for number, third in enumerate(thirds)
    )
    topic = Topic("t", UUID(int=1), TopicSettings(), partitions)
    logs = [NotReadyError("not open yet") for _ in partitions]
    return HostedTopic(topic, logs, cast("RangeRoles", None), ordinal=0)


def third_of(key: bytes) -> int:
    return next(third for third in range(3) if token(key) < STARTS[third + 1])


@pytest.mark.parametrize("thirds", [[], [0], [1], [2], [0, 1], [0, 2], [1, 2]])
def test_a_key_whose_range_a_step_changes_waits_for_its_end(thirds: list[int]) -> None:
    """It never goes to a partition that has other tokens."""
    topic = hosted(thirds)

    for key in KEYS:
        if third_of(key) in thirds:
            assert topic.partition_of_key(key) == thirds.index(third_of(key))
            assert topic.partitions_of_keys([key]).tolist() == [thirds.index(third_of(key))]
        else:
            with pytest.raises(NotReadyError, match="when the step"):
                topic.partition_of_key(key)
            with pytest.raises(NotReadyError):
                topic.partitions_of_keys(KEYS)


def test_all_keys_have_a_partition_otherwise() -> None:
    topic = hosted([0, 1, 2])

    expected = [third_of(key) for key in KEYS]
    assert [topic.partition_of_key(key) for key in KEYS] == expected
    assert np.array_equal(topic.partitions_of_keys(KEYS), expected)


def test_no_key_has_any_partition_that_is_there() -> None:
    assert hosted([1]).partition_of_key(None) == 0
    with pytest.raises(NotReadyError):
        hosted([]).partition_of_key(None)
