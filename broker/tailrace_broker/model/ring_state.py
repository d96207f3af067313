"""The replicated state of a ring, as values: brokers, ranges, topics, steps.

Nothing here is changed in place: a command makes a new state that shares what stays the same, so
that a reader, or a snapshot being written, keeps the state that it has.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple
from uuid import UUID

import msgspec

from tailrace_broker.model.refusal import Refusal as Refusal  # a part of the state
from tailrace_broker.model.topic import TopicSettings

# What a disk may have lost since the registration before: from nothing to all.
LOSSES = ("clean", "process", "power", "disk")
Loss = Literal["clean", "process", "power", "disk"]
# Why a replica is a ghost, the worst last. `damage`: committed records were found damaged.
CAUSES = ("clean", "process", "power", "damage", "disk")
Cause = Literal["clean", "process", "power", "damage", "disk"]
# What a step does. `re-slice`: a range is continued for another number of partitions of a topic.
LineageChange = Literal["split", "join", "re-slice"]


class Start(NamedTuple):
    """One start of a broker's process on its disk. `loss`: what came before it may have cost."""

    id: UUID
    loss: Loss


class RangeEnd(NamedTuple):
    """What a replica has of a range: its logs' last epoch, and the sum of their ends."""

    range_id: int
    last_epoch: int
    end: int


class Registration(msgspec.Struct, frozen=True, array_like=True):
    """The process that a broker is now. `number` grows by one at every registration of it.

    `ends`: what recovery found of the ranges of which the broker is a replica.
    """

    ordinal: int
    number: int
    incarnation: UUID
    boot: int
    start: UUID
    loss: Loss
    is_fenced: bool = False
    ends: tuple[RangeEnd, ...] = ()


class Replica(NamedTuple):
    """A member of an ISR: this broker in this registration, after so many losses found later.

    A ghost may have lost data: nothing is committed without it, and it is not elected while one of
    the range is whole. `cause`: of a ghost the worst loss since. `losses`: `RangeState.losses`.
    """

    ordinal: int
    registration: int
    is_ghost: bool = False
    cause: Cause | None = None
    losses: int = 0

    @property
    def number(self) -> tuple[int, int]:
        """Names what the broker has of the range: it grows when that may have become less."""
        return self.registration, self.losses


class LostOffsets(NamedTuple):
    """Offsets `[first, end)` of a partition that no copy has, as a person has accepted."""

    topic_id: UUID
    partition: int
    first: int
    end: int


class RangeState(msgspec.Struct, frozen=True, array_like=True):
    """A range of tokens `[start, end)`; `leader`: None, or who leads in `epoch`.

    `natural_leader` is the broker at whose token it starts. `version` grows with each change of
    `isr`. `sealed_epoch`: the epoch that sealed it; it takes no more events. `step`: the open
    one that changes it. `complete`: of a sealed one the replicas whose copies are whole.
    `lossy_epochs`: those that began although committed records may be missing. `losses`: by
    ordinal how often a broker has found damage since it was registered, or had to begin a copy of
    a sealed one again, or to hold none any more, where it has. `accepted`: what is lost of
    it.
    """

    id: int
    start: int
    end: int
    length_units: int
    natural_leader: int
    replicas: tuple[int, ...]
    isr: tuple[Replica, ...]
    epoch: int = 0
    version: int = 0
    leader: Replica | None = None
    step: int | None = None
    sealed_epoch: int | None = None
    complete: tuple[int, ...] = ()
    lossy_epochs: tuple[int, ...] = ()
    losses: Mapping[int, int] = {}
    accepted: tuple[LostOffsets, ...] = ()

    def replica_of(self, broker: Registration) -> Replica:
        """What names this process as a replica of the range now."""
        return Replica(broker.ordinal, broker.number, losses=self.losses.get(broker.ordinal, 0))

    @property
    def is_sealed(self) -> bool:
        """It takes no more events."""
        return self.sealed_epoch is not None

    @property
    def holders(self) -> tuple[int, ...]:
        """The brokers that count as having it: its replicas, of a sealed one the whole copies."""
        return self.complete if self.is_sealed else self.replicas


class Slices(msgspec.Struct, frozen=True, array_like=True):
    """A topic's partitions in one range, in token order: ids from `first_partition` on.

    `starts`: tokens, each up to the next, the last up to the range's end. The rest is by slice,
    and empty when it is nothing for all: `first_offsets` (0), `parents`, `sealed_ends`, `children`,
    and of sealed ones `log_starts` (the first offsets), which retention has moved. `gone`: indices
    of those that are no partitions any more, since no record of them is left. `inherited`: parents
    in the places of such ones that are gone, which `parents` names still. `cuts`: of `Partition`.
    """

    range_id: int
    first_partition: int
    starts: tuple[int, ...]
    first_offsets: tuple[int, ...] = ()
    parents: tuple[tuple[int, ...], ...] = ()
    sealed_ends: tuple[int, ...] = ()
    children: tuple[tuple[int, ...], ...] = ()
    log_starts: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    inherited: tuple[tuple[int, ...], ...] = ()
    cuts: tuple[tuple[int, ...], ...] = ()

    @property
    def partition_count(self) -> int:
        """Those that are not gone."""
        return len(self.starts) - len(self.gone)

    @property
    def firsts(self) -> tuple[int, ...]:
        """The first offset of each, gone or not."""
        return self.first_offsets or (0,) * len(self.starts)


class TopicState(msgspec.Struct, frozen=True, array_like=True):
    """A topic. `waits_for`: ranges with an open step, in which it gets partitions afterwards.

    `unflushed`: (ordinal, registration) of processes which may have events of a time when it was
    `written`, and so not all of them on disk. `lacks_copies`: since it was deleted, copies of its
    sealed ranges were made without it, or dropped.
    """

    name: str
    id: UUID
    settings: TopicSettings
    slices: tuple[Slices, ...]
    next_partition: int
    waits_for: tuple[int, ...] = ()
    unflushed: tuple[tuple[int, int], ...] = ()
    lacks_copies: bool = False


class DeletedTopic(msgspec.Struct, frozen=True, array_like=True):
    """A topic whose data brokers keep for a while; µs since the epoch, by who deleted it."""

    topic: TopicState
    deleted_us: int


class StepState(msgspec.Struct, frozen=True, array_like=True):
    """A change of lineage that has begun; ends come in until all its ranges are sealed.

    `children`: ranges to be, without epoch, leader and ISR. `sealed`: by range the ends of its
    partitions, by topic id in the order of their ids; `prepared`: by range who will hold the
    children from their first record on. `held_after_ms`: how long after its begin the first leader
    that has reported held appends.
    """

    id: int
    kind: LineageChange
    brokers_before: int
    brokers_after: int
    parents: tuple[int, ...]
    children: tuple[RangeState, ...]
    sealed: Mapping[int, Mapping[UUID, tuple[int, ...]]] = {}
    prepared: Mapping[int, tuple[Replica, ...]] = {}
    held_after_ms: int | None = None

    @property
    def leaving(self) -> frozenset[int]:
        """The broker that is not of the ring afterwards, if one is."""
        return frozenset({self.brokers_after} if self.kind == "join" else ())


class EndedStep(msgspec.Struct, frozen=True, array_like=True):
    """The last step. `why` it was cancelled; empty: it is done. `held_after_ms`: as of `StepState`,
    of all its leaders; None: they may have held nothing.
    """

    id: int
    kind: LineageChange
    brokers_before: int
    brokers_after: int
    why: str
    held_after_ms: int | None


class RingState(msgspec.Struct, frozen=True, array_like=True):
    """All that a ring commits but who votes.

    `factor`: how many copies a range has, if there are as many brokers. `recent`: outcomes of the
    last commands by their id, oldest first; None: done. `retired`: incarnations that have
    left, the last ones; `last_numbers`: the number of the last registration of an ordinal that has.
    """

    cluster_id: UUID
    broker_count: int
    factor: int
    brokers: Mapping[int, Registration] = {}
    ranges: Mapping[int, RangeState] = {}
    next_range_id: int = 0
    topics: Mapping[str, TopicState] = {}
    deleted: Mapping[UUID, DeletedTopic] = {}
    step: StepState | None = None
    next_step: int = 0
    retired: tuple[UUID, ...] = ()
    last_numbers: Mapping[int, int] = {}
    accepted_losses: tuple[str, ...] = ()
    recent: Mapping[int, Refusal | None] = {}
    last_step: EndedStep | None = None

    @property
    def copies(self) -> int:
        """Of each event, when all brokers are well."""
        return min(self.factor, self.broker_count)

    @property
    def floor(self) -> int:
        """An ISR never has fewer members: they are replaced, not removed."""
        return min(2, self.factor, self.broker_count)
