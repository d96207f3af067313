"""A topic whose number of partitions per range was changed gets them range by range.

The wanted number is in the topic's settings. A range in which a topic has another number is
continued by a step: sealed, and followed by a range of the same tokens and replicas, in which all
topics have the partitions that their settings want (docs/decisions/024).
"""

from msgspec.structs import replace

from tailrace_broker.core.ring.step_commands import step_open, why_not_ready, with_step
from tailrace_broker.model.commands import Reslice
from tailrace_broker.model.ring_state import RangeState, Refusal, RingState, TopicState


def reslice(state: RingState, command: Reslice) -> RingState | Refusal:
    """Begin a step that continues the range with the partitions that topics want."""
    if state.step is not None:
        return step_open(state.step)
    parent = state.ranges.get(command.range_id)
    if parent is None or parent.is_sealed:
        return Refusal("range-not-found", f"there is no open range {command.range_id}")
    if not any(parent.id in ranges_to_slice(topic) for topic in state.topics.values()):
        return Refusal("sliced-already", f"range {parent.id} has the partitions that are wanted")
    refusal = why_not_reslice(state, parent)
    if refusal is not None:
        return refusal
    return with_step(state, "re-slice", state.broker_count, [parent], (_child(state, parent),))


def why_not_reslice(state: RingState, parent: RangeState) -> Refusal | None:
    """Why the open range cannot be re-sliced now, while no step is open; None: it can."""
    return why_not_ready(state, [parent], [_child(state, parent)])


def ranges_to_slice(topic: TopicState) -> tuple[int, ...]:
    """The open ranges in which it has more or fewer partitions than its settings want."""
    wanted = topic.settings.partitions_per_range
    return tuple(
        each.range_id
        for each in topic.slices
        if not each.sealed_ends and len(each.starts) != wanted
    )


def _child(state: RingState, parent: RangeState) -> RangeState:
    return replace(
        parent, id=state.next_range_id, isr=(), epoch=0, version=0, leader=None,
        lossy_epochs=(), losses={}, accepted=(),
    )  # fmt: skip
