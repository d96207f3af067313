"""Replicated states of rings for tests: made by commands, which are done or refused."""

from collections.abc import Iterable
from itertools import count
from uuid import UUID

from tailrace_broker.core.ring.commands import apply_command, initial_state
from tailrace_broker.core.ring.reslicing import ranges_to_slice
from tailrace_broker.core.ring.topics import slices_in, topic_of
from tailrace_broker.model.commands import (
    BeginStep,
    Command,
    CreateTopic,
    Lead,
    Register,
    Reslice,
    Sealed,
    Stamped,
)
from tailrace_broker.model.ring_state import (
    Loss,
    Registration,
    Replica,
    RingState,
    Start,
)
from tailrace_broker.model.topic import Partition, TopicSettings
from tests.support.ring.checks import check_state

CLUSTER_ID = UUID(int=7)
_ids = count(1)


def incarnation(ordinal: int, disk: int = 1) -> UUID:
    """Of a broker's first, second … disk."""
    return UUID(int=1000 * ordinal + disk)


def start_id(ordinal: int, boot: int) -> UUID:
    """Of a broker's first, second … start."""
    return UUID(int=10**6 * (ordinal + 1) + boot)


def registration(ordinal: int) -> Registration:
    """The one that a broker is founded with."""
    return Registration(ordinal, 1, incarnation(ordinal), 1, start_id(ordinal, 1), "disk")


def founded(broker_count: int = 3, factor: int = 3, *, registered: int = 0) -> RingState:
    """A new ring; `registered`: so many brokers have registered that are not of it."""
    brokers = [registration(each) for each in range(broker_count + registered)]
    return initial_state(CLUSTER_ID, broker_count, factor, brokers)


def led(broker_count: int = 3, factor: int = 3, *, registered: int = 0) -> RingState:
    """A new ring all of whose ranges are led by their natural leaders, in epoch 1."""
    state = founded(broker_count, factor, registered=registered)
    return done(
        state, *(Lead(range_.id, 0, range_.natural_leader, 1) for range_ in state.ranges.values())
    )


def with_topic(
    state: RingState, name: str = "orders", *, partitions: int = 2, written: bool = False
) -> RingState:
    """The ring with one topic more."""
    settings = TopicSettings(
        partitions_per_range=partitions, durability="written" if written else "fsync"
    )
    return done(state, CreateTopic(name, UUID(bytes=name.encode().ljust(16)[:16]), settings))


def partitions(state: RingState, name: str = "orders") -> dict[int, Partition]:
    """Of a topic, by id; those that are gone are not among them."""
    return {each.partition: each for each in topic_of(state, state.topics[name]).partitions}


def done(state: RingState, *commands: Command) -> RingState:
    """The state after these commands, none of which is refused."""
    for command in commands:
        stamped = Stamped(next(_ids), command)
        state = apply_command(state, stamped)
        assert state.recent[stamped.id] is None, state.recent[stamped.id]
        check_state(state)
    return state


def refusal_of(state: RingState, command: Command) -> str:
    """Why the command is refused; it changes nothing."""
    stamped = Stamped(next(_ids), command)
    after = apply_command(state, stamped)
    refusal = after.recent[stamped.id]
    assert refusal is not None, f"not refused: {command}"
    for field in state.__struct_fields__:
        assert field == "recent" or getattr(after, field) is getattr(state, field), field
    assert refusal.detail
    return refusal.reason


def register(
    ordinal: int, *losses: Loss, first_boot: int = 1, replaces: int | None = None
) -> Register:
    """Of a disk that has started, and then again after each of these losses.

    `replaces`: None: all starts but the last have been registered.
    """
    starts = [Start(start_id(ordinal, first_boot), "disk")]
    starts += [
        Start(start_id(ordinal, first_boot + index), loss) for index, loss in enumerate(losses, 1)
    ]
    seen = len(losses) if replaces is None else replaces
    return Register(ordinal, incarnation(ordinal), first_boot + len(losses), tuple(starts), seen)


def begin(state: RingState, kind: str = "grow") -> RingState:
    """The ring with a step begun."""
    return done(state, BeginStep("grow" if kind == "grow" else "shrink", state.broker_count))


def sealed(
    state: RingState,
    range_id: int,
    ends: int = 100,
    *,
    prepared: Iterable[int] | None = None,
) -> Sealed:
    """What the range's leader says in the open step: the first partition ends at `ends`, and so on.

    `prepared`: ordinals; all, unless given.
    """
    assert state.step is not None
    ordinals = state.brokers if prepared is None else prepared
    return Sealed(
        state.step.id,
        range_id,
        state.ranges[range_id].epoch,
        {
            topic_id: tuple(ends + index for index in range(len(slices.starts)))
            for topic_id, slices in slices_in(state, range_id).items()
        },
        tuple(Replica(ordinal, state.brokers[ordinal].number) for ordinal in ordinals),
    )


def stepped(state: RingState, kind: str = "grow") -> RingState:
    """The ring after a step."""
    state = begin(state, kind)
    assert state.step is not None
    for range_id in state.step.parents:
        state = done(state, sealed(state, range_id, 100 * (range_id + 1)))
    assert state.step is None
    return state


def resliced(state: RingState) -> RingState:
    """The ring after all steps that a topic's partitions per range are waiting for."""
    for range_id in sorted(
        {each for topic in state.topics.values() for each in ranges_to_slice(topic)}
    ):
        state = done(state, Reslice(range_id))
        state = done(state, sealed(state, range_id, 100 * (range_id + 1)))
    return state
