"""What is said to who asks for a consumer or a group that is not there."""

from tailrace_broker.core.groups.unknown import group_not_found, not_registered


def test_the_name_is_in_the_text_and_a_member() -> None:
    consumer, group = not_registered("c1"), group_not_found("g1")

    assert 'consumer "c1" is not registered' in consumer.detail
    assert 'group "g1" does not exist' in group.detail
    assert (consumer.members, group.members) == ({"consumerId": "c1"}, {"group": "g1"})
