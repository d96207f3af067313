"""The state that a ring must agree on; here of a ring of one: topics and their partitions."""

from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from tailrace_broker.core.ring import TOKEN_MIN, UNITS, slice_bounds
from tailrace_broker.model.errors import InvalidParameterError, TopicExistsError
from tailrace_broker.model.topic import (
    FIRST_EPOCH,
    FIRST_RANGE_ID,
    Partition,
    Topic,
    TopicSettings,
    check_topic_name,
)


@dataclass(slots=True)
class Metadata:
    """Topics by name. Changes only by commands, which are idempotent."""

    topics: dict[str, Topic] = field(default_factory=dict)

    def create_topic(self, name: str, settings: TopicSettings, topic_id: UUID) -> Topic:
        """The new topic, or the one that exists with the same settings.

        InvalidTopicNameError; TopicExistsError when it exists with other settings.
        """
        check_topic_name(name)
        topic = self.add_topic(name, settings, topic_id)
        if topic.settings != settings:
            raise TopicExistsError(
                f'topic "{name}" exists with other settings; alter it, or choose another name',
                topic=name,
            )
        return topic

    def add_topic(self, name: str, settings: TopicSettings, topic_id: UUID) -> Topic:
        """The topic that exists, or a new one; its name may be one of the broker's own."""
        if name not in self.topics:
            self.topics[name] = new_topic(name, settings, topic_id)
        return self.topics[name]

    def alter_topic(self, name: str, settings: TopicSettings) -> Topic:
        """The topic, which exists, with these settings; InvalidParameterError."""
        topic = self.topics[name]
        if settings.partitions_per_range != topic.settings.partitions_per_range:
            raise InvalidParameterError(
                f'partitionsPerRange of topic "{name}" cannot be changed in this version; '
                "create another topic",
                parameter="partitionsPerRange",
            )
        self.topics[name] = msgspec.structs.replace(topic, settings=settings)
        return self.topics[name]

    def delete_topic(self, name: str) -> None:
        """Forget the topic, which exists."""
        del self.topics[name]

    def restore_topic(self, topic: Topic) -> None:
        """Take a deleted topic back. InvalidTopicNameError; TopicExistsError: its name is taken."""
        check_topic_name(topic.name)
        if topic.name in self.topics:
            raise TopicExistsError(
                f'topic "{topic.name}" exists; give the restored one another name: "as" of the '
                "request, --as of the command",
                topic=topic.name,
            )
        self.topics[topic.name] = topic


def new_topic(name: str, settings: TopicSettings, topic_id: UUID) -> Topic:
    """A topic whose partitions slice the one range of a ring of one: all tokens."""
    bounds = slice_bounds(TOKEN_MIN, UNITS, settings.partitions_per_range)
    partitions = tuple(
        Partition(index, FIRST_RANGE_ID, FIRST_EPOCH, start, end)
        for index, (start, end) in enumerate(bounds)
    )
    return Topic(name, topic_id, settings, partitions)
