"""The next thing to do for a Topic: one action; None: nothing, or its ring is waited for."""

from collections.abc import Mapping
from typing import Any

from tailrace_operator.plan.actions import (
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    SetFinalizer,
    TopicAction,
)
from tailrace_operator.plan.observed import Topic

CLUSTER_MISSING = "ClusterNotFound"  # a reason that the ring cannot be asked: it does not exist
NAME_TAKEN = "NameTaken"  # another: an older Topic has the ring's topic


def next_topic_action(topic: Topic) -> TopicAction | None:
    """Return the next action."""
    is_deleted_with = topic.spec.deletion_policy == "Delete"
    if topic.owner.is_deleting:
        return _deletion(topic, is_deleted_with=is_deleted_with)
    if topic.owner.is_paused:
        return None
    if topic.has_finalizer != is_deleted_with:
        return SetFinalizer(is_deleted_with)
    if topic.cluster_problem is not None:
        return None
    name, wanted = topic.spec.name_in_ring(topic.owner.name), topic.spec.topic_settings()
    if topic.live is None:
        return CreateTopic(name, wanted)
    return _alteration(name, wanted, topic.live.settings)


def _deletion(topic: Topic, *, is_deleted_with: bool) -> TopicAction | None:
    """Return the deletion of a topic; the resource does not stay when its ring or topic is gone."""
    if not topic.has_finalizer:
        return None
    problem = None if topic.cluster_problem is None else topic.cluster_problem[0]
    if not is_deleted_with or problem in (CLUSTER_MISSING, NAME_TAKEN):
        return SetFinalizer(is_wanted=False)
    if topic.owner.is_paused or problem is not None:
        return None
    if topic.live is None:
        return SetFinalizer(is_wanted=False)
    return DeleteTopic(topic.spec.name_in_ring(topic.owner.name))


def _alteration(name: str, wanted: Mapping[str, Any], live: Mapping[str, Any]) -> AlterTopic | None:
    changes = {setting: value for setting, value in wanted.items() if live.get(setting) != value}
    if not changes:
        return None
    texts = (f"{setting} {live.get(setting)} → {value}" for setting, value in changes.items())
    return AlterTopic(name, changes, ", ".join(texts))
