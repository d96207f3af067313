"""Topics come, change and go; a deleted one can be restored until it is purged."""

from uuid import UUID

import msgspec
from msgspec.structs import replace

from tailrace_broker.core.ring.copies import begun_again
from tailrace_broker.core.ring.topics import open_ranges, with_partitions
from tailrace_broker.model.commands import (
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    PurgeTopics,
    RestoreTopic,
)
from tailrace_broker.model.errors import InvalidParameterError, InvalidTopicNameError
from tailrace_broker.model.ring_state import DeletedTopic, Refusal, RingState, TopicState
from tailrace_broker.model.topic import TopicSettings, check_topic_name, is_internal

TOPICS_MAX = 10_000

_KNOWN = {each.encode_name for each in msgspec.structs.fields(TopicSettings)}

_NOT_RESTORED = (
    "it cannot be restored. Nothing of it is removed before its time: its records can be read from "
    'the files until then (docs/operations.md, "Bring a deleted topic back")'
)


def create_topic(state: RingState, command: CreateTopic) -> RingState | Refusal:
    """The topic, unless one of these settings is there already."""
    existing = state.topics.get(command.name)
    if existing is not None:
        if existing.settings == command.settings:
            return state
        return Refusal(
            "topic-exists",
            f'topic "{command.name}" exists with other settings; choose another name',
        )
    refusal = _check_name(command.name) or _check_count(state)
    if refusal is not None:
        return refusal
    if _is_known(state, command.topic_id):
        return Refusal(
            "topic-exists",
            f'topic "{command.name}" was created before, and renamed or deleted since',
        )
    topic = TopicState(command.name, command.topic_id, command.settings, (), 0)
    return _with_topic(state, with_partitions(topic, open_ranges(state)))


def alter_topic(state: RingState, command: AlterTopic) -> RingState | Refusal:
    """The topic with these settings changed; its partitions follow with steps (`reslicing`)."""
    topic = _find(state, command.name, command.topic_id)
    if isinstance(topic, Refusal):
        return topic
    unknown = command.changes.keys() - _KNOWN
    if unknown:
        return Refusal("invalid-parameter", f"{min(unknown)} is no setting of a topic")
    wanted = {**msgspec.to_builtins(topic.settings), **command.changes}
    try:
        settings = msgspec.convert(wanted, TopicSettings)
    except (msgspec.ValidationError, InvalidParameterError) as error:
        return Refusal("invalid-parameter", str(error))
    unflushed = topic.unflushed
    if topic.settings.durability == "written" and settings.durability != "written":
        unflushed = tuple((each.ordinal, each.number) for each in state.brokers.values())
    return _with_topic(state, replace(topic, settings=settings, unflushed=unflushed))


def delete_topic(state: RingState, command: DeleteTopic) -> RingState | Refusal:
    """Nobody reads or writes it any more."""
    topic = _find(state, command.name, command.topic_id)
    if isinstance(topic, Refusal):
        return topic
    topics = {**state.topics}
    del topics[topic.name]
    deleted = {**state.deleted, topic.id: DeletedTopic(topic, command.deleted_us)}
    return replace(state, topics=topics, deleted=deleted)


def restore_topic(state: RingState, command: RestoreTopic) -> RingState | Refusal:
    """As it was; not when the ring has changed since."""
    found = state.deleted.get(command.topic_id)
    if found is None:
        return Refusal("not-in-trash", f"there is no deleted topic {command.topic_id}")
    topic = found.topic
    if topic.lacks_copies:
        return Refusal(
            "ring-changed",
            f'topic "{topic.name}" was deleted before brokers came or left, who copied sealed '
            f"partitions without it; {_NOT_RESTORED}",
        )
    if command.new_name is not None:
        refusal = _check_name(command.new_name, may_be_internal=False)
        if refusal is not None:
            return refusal
        topic = replace(topic, name=command.new_name)
    if topic.name in state.topics:
        return Refusal(
            "topic-exists",
            f'topic "{topic.name}" exists; give the restored one another name: "as" of the '
            "request, --as of the command",
        )
    refusal = _check_count(state) or _check_lineage(state, topic)
    if refusal is not None:
        return refusal
    deleted = {**state.deleted}
    del deleted[topic.id]
    held = {each.range_id for each in topic.slices}
    lacking = [each for each in open_ranges(state) if each.id not in held]
    state = begun_again(replace(state, deleted=deleted), topic)
    return _with_topic(state, with_partitions(topic, lacking))


def purge_topics(state: RingState, command: PurgeTopics) -> RingState:
    """They cannot be restored any more; one that was, and was deleted again since, stays."""
    deleted = {
        key: each
        for key, each in state.deleted.items()
        if command.deleted_us.get(key) != each.deleted_us
    }
    return replace(state, deleted=deleted)


def _find(state: RingState, name: str, topic_id: UUID | None) -> TopicState | Refusal:
    found = state.topics.get(name)
    if found is None or topic_id not in (None, found.id):
        return Refusal("topic-not-found", f'topic "{name}" does not exist')
    return found


def _is_known(state: RingState, topic_id: UUID) -> bool:
    """A command that comes late must not make a second topic of one id. O(topics)."""
    numbers = [each.id.int for each in state.topics.values()]  # UUIDs compare slowly
    return topic_id in state.deleted or topic_id.int in numbers


def _check_name(name: str, *, may_be_internal: bool = True) -> Refusal | None:
    try:
        check_topic_name(name[2:] if may_be_internal and is_internal(name) else name)
    except InvalidTopicNameError as error:
        return Refusal("invalid-topic-name", str(error))
    return None


def _check_count(state: RingState) -> Refusal | None:
    if len(state.topics) >= TOPICS_MAX:
        return Refusal("too-many-topics", f"there are {TOPICS_MAX} topics; delete some first")
    return None


def _check_lineage(state: RingState, topic: TopicState) -> Refusal | None:
    """Refuse a topic of which no leader has reported the ends of sealed partitions."""
    for slices in topic.slices:
        held = state.ranges[slices.range_id]
        if held.is_sealed and not slices.sealed_ends:
            return Refusal(
                "ring-changed",
                f'topic "{topic.name}" was deleted before the ring changed, and nobody has said '
                f"where its partitions ended; {_NOT_RESTORED}",
            )
        if held.step is not None:
            return Refusal(
                "step-open", f"range {held.id} is being changed; try again when that is done"
            )
    return None


def _with_topic(state: RingState, topic: TopicState) -> RingState:
    return replace(state, topics={**state.topics, topic.name: topic})
