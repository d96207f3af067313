import pytest

from tailrace_broker.model.errors import InvalidParameterError, InvalidTopicNameError
from tailrace_broker.model.topic import TopicSettings, check_topic_name


@pytest.mark.parametrize("name", ["a", "Flights-2026_v1.raw", "_one", "...", "-", "x" * 249])
def test_a_name_by_the_rule_is_taken(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "__groups", "__", "x" * 250, "a/b", "a b", "zürich", "a\n", "a\0", "%2e"],
)
def test_a_name_that_breaks_the_rule_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidTopicNameError) as refused:
        check_topic_name(name)

    assert refused.value.members == {"topic": name}


@pytest.mark.parametrize("count", [1, 256])
def test_a_range_has_1_to_256_partitions(count: int) -> None:
    assert TopicSettings(partitions_per_range=count).partitions_per_range == count


@pytest.mark.parametrize("count", [-1, 0, 257])
def test_other_numbers_of_partitions_are_refused(count: int) -> None:
    with pytest.raises(InvalidParameterError, match="it can be 1 to 256") as refused:
        TopicSettings(partitions_per_range=count)

    assert refused.value.members == {"parameter": "partitionsPerRange"}
