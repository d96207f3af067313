from uuid import UUID

import pytest

from tailrace_broker.core.metadata import Metadata, new_topic
from tailrace_broker.core.ring import TOKEN_END, TOKEN_MIN
from tailrace_broker.model.errors import (
    InvalidParameterError,
    InvalidTopicNameError,
    TopicExistsError,
)
from tailrace_broker.model.topic import FIRST_EPOCH, FIRST_RANGE_ID, TopicSettings

ID, OTHER_ID = UUID(int=1), UUID(int=2)


def test_a_new_topic_is_kept_by_its_name() -> None:
    metadata = Metadata()

    topic = metadata.create_topic("flights", TopicSettings(), ID)

    assert metadata.topics == {"flights": topic}
    assert (topic.name, topic.topic_id, topic.settings) == ("flights", ID, TopicSettings())


def test_creating_a_topic_again_gives_the_one_that_exists() -> None:
    metadata = Metadata()
    first = metadata.create_topic("flights", TopicSettings(), ID)

    assert metadata.create_topic("flights", TopicSettings(), OTHER_ID) is first


def test_a_topic_that_exists_keeps_its_settings() -> None:
    metadata = Metadata()
    first = metadata.create_topic("flights", TopicSettings(), ID)

    with pytest.raises(TopicExistsError, match="other settings") as refused:
        metadata.create_topic("flights", TopicSettings(json_check=False), OTHER_ID)

    assert refused.value.members == {"topic": "flights"}
    assert metadata.topics == {"flights": first}


def test_a_name_that_breaks_the_rule_changes_nothing() -> None:
    metadata = Metadata()

    with pytest.raises(InvalidTopicNameError):
        metadata.create_topic("../flights", TopicSettings(), ID)

    assert metadata.topics == {}


def test_an_altered_topic_keeps_all_but_its_settings() -> None:
    metadata = Metadata()
    first = metadata.create_topic("flights", TopicSettings(), ID)

    altered = metadata.alter_topic("flights", TopicSettings(json_check=False))

    assert altered == metadata.topics["flights"] == new_topic("flights", altered.settings, ID)
    assert (altered.settings, altered.partitions) == (
        TopicSettings(json_check=False),
        first.partitions,
    )


def test_the_number_of_partitions_stays() -> None:
    metadata = Metadata()
    first = metadata.create_topic("flights", TopicSettings(), ID)

    with pytest.raises(InvalidParameterError, match="cannot be changed in this version") as refused:
        metadata.alter_topic("flights", TopicSettings(partitions_per_range=5, json_check=False))

    assert refused.value.members == {"parameter": "partitionsPerRange"}
    assert metadata.topics == {"flights": first}


def test_a_deleted_topic_can_be_created_again() -> None:
    metadata = Metadata()
    metadata.create_topic("flights", TopicSettings(), ID)

    metadata.delete_topic("flights")

    assert metadata.topics == {}
    assert metadata.create_topic("flights", TopicSettings(), OTHER_ID).topic_id == OTHER_ID


@pytest.mark.parametrize("count", [1, 3, 4, 256])
def test_the_partitions_of_a_topic_slice_all_tokens(count: int) -> None:
    partitions = new_topic("flights", TopicSettings(partitions_per_range=count), ID).partitions

    assert [partition.partition for partition in partitions] == list(range(count))
    assert {(p.range_id, p.epoch, p.first_offset, p.parents) for p in partitions} == {
        (FIRST_RANGE_ID, FIRST_EPOCH, 0, ())
    }
    assert {(p.is_sealed, p.children) for p in partitions} == {(False, ())}
    ends = [partition.token_end for partition in partitions]
    assert [partition.token_start for partition in partitions] == [TOKEN_MIN, *ends[:-1]]
    assert ends[-1] == TOKEN_END


def test_a_deleted_topic_comes_back_under_a_name_that_is_free() -> None:
    metadata = Metadata()
    old = metadata.create_topic("flights", TopicSettings(), ID)
    metadata.delete_topic("flights")
    metadata.restore_topic(old)
    assert metadata.topics == {"flights": old}

    with pytest.raises(TopicExistsError, match="another name") as refused:
        metadata.restore_topic(new_topic("flights", TopicSettings(), OTHER_ID))
    assert refused.value.members == {"topic": "flights"}
    with pytest.raises(InvalidTopicNameError):
        metadata.restore_topic(new_topic("../flights", TopicSettings(), OTHER_ID))
    assert metadata.topics == {"flights": old}
