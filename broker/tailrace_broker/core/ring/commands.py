"""The replicated state of a ring: how it begins, and what each command makes of it.

Every broker applies the same commands in the same order and so has the same state: nothing
here may depend on anything else. A command that is refused changes nothing but `recent`. The rules
by subject: `core.registrations`, `core.range_commands`, `core.topic_commands`,
`core.step_commands`, `core.reslicing`, `core.copies`, `core.sealed_retention`; a table of them all:
`docs/ring-state.md`.
"""

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from tailrace_broker.core.ring import (
    copies,
    range_commands,
    registrations,
    reslicing,
    sealed_retention,
    step_commands,
    topic_commands,
)
from tailrace_broker.core.ring.arithmetic import ring_ranges
from tailrace_broker.model import commands
from tailrace_broker.model.commands import Command, Stamped
from tailrace_broker.model.ring_state import (
    RangeState,
    Refusal,
    Registration,
    Replica,
    RingState,
)

# So many outcomes are remembered; a command that comes again later is up to its conditions.
RECENT_MAX = 1000

_APPLY: dict[type[Command], Callable[[RingState, Any], RingState | Refusal]] = {
    commands.Register: registrations.register,
    commands.Fence: registrations.fence,
    commands.Retire: registrations.retire,
    commands.Lead: range_commands.lead,
    commands.ChangeIsr: range_commands.change_isr,
    commands.AcceptLoss: range_commands.accept_loss,
    commands.Lost: range_commands.lost,
    commands.CreateTopic: topic_commands.create_topic,
    commands.AlterTopic: topic_commands.alter_topic,
    commands.DeleteTopic: topic_commands.delete_topic,
    commands.RestoreTopic: topic_commands.restore_topic,
    commands.PurgeTopics: topic_commands.purge_topics,
    commands.BeginStep: step_commands.begin_step,
    commands.Reslice: reslicing.reslice,
    commands.Sealed: step_commands.seal,
    commands.AbortStep: step_commands.abort_step,
    commands.Completed: copies.completed,
    commands.DropCopy: copies.drop_copy,
    commands.TrimSealed: sealed_retention.trim_sealed,
    commands.InheritedAll: sealed_retention.inherited,
}


def apply_command(state: RingState, stamped: Stamped) -> RingState:
    """The state after the command, whose outcome is in `recent`; once, however often it comes."""
    if stamped.id in state.recent:
        return state
    outcome = _APPLY[type(stamped.command)](state, stamped.command)
    after, refusal = (state, outcome) if isinstance(outcome, Refusal) else (outcome, None)
    recent = {**state.recent, stamped.id: refusal}
    if len(recent) > RECENT_MAX:
        del recent[next(iter(recent))]
    return replace(after, recent=recent)


def initial_state(
    cluster_id: UUID,
    broker_count: int,
    factor: int,
    registrations: Iterable[Registration],
) -> RingState:
    """A ring of these brokers, which are all in sync: they have nothing."""
    brokers = {each.ordinal: each for each in registrations}
    assert factor >= 1, factor
    assert brokers.keys() >= {*range(broker_count)}, brokers
    ranges: dict[int, RangeState] = {}
    for index, planned in enumerate(ring_ranges(broker_count)):
        empty = step_commands.new_range(index, planned, factor)
        isr = tuple(Replica(each, brokers[each].number) for each in empty.replicas)
        ranges[index] = replace(empty, isr=isr)
    return RingState(
        cluster_id,
        broker_count,
        factor,
        brokers,
        ranges,
        len(ranges),
    )
