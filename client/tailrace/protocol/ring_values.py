"""A broker's answers about its ring, as values; in JSON as `tailrace.values` says."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RingMetadata:
    """How much of the replicated state the broker that answered has; brokers by ordinal.

    `leader` None: none is known. `next_voters`: while they change. Heights None: it is in no ring.
    """

    term: int
    leader: int | None
    voters: tuple[int, ...]
    next_voters: tuple[int, ...]
    height: int | None
    applied: int | None
    log_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Registration:
    """The process that a broker is now. `loss`: what its data may have lost since the one before:
    clean, process, power or disk. `alive`: heard of a moment ago. `height`: what it had applied.
    """

    ordinal: int
    registration: int
    incarnation: str
    boot: int
    loss: str
    fenced: bool
    alive: bool
    height: int | None


@dataclass(frozen=True, slots=True)
class RangeReplica:
    """An in-sync replica; a `ghost` may have lost data, and never leads.

    `cause`: why it is one: clean, process, power, damage or disk.
    """

    ordinal: int
    registration: int
    ghost: bool
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class RangeFollower:
    """A replica as the leader of its range knows it: `lag_records` are what it lacks.

    `lag_ms`: how long the oldest write waits that it must acknowledge. None: not known.
    """

    ordinal: int
    lag_records: int | None
    lag_ms: int | None


@dataclass(frozen=True, slots=True)
class RangeDetails:
    """Tokens [`start`, `end`), as texts. `state`: open, sealed, leaderless (until a replica leads),
    or waiting: for its brokers, or for `accept_loss`, since no replica is known to be whole.

    `followers` None: another broker than the one that answered leads the range. `complete`: of a
    sealed range the replicas that hold all of it; None: it is open.
    """

    id: int
    start: str
    end: str
    epoch: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[RangeReplica, ...]
    state: str
    followers: tuple[RangeFollower, ...] | None = None
    complete: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class LostOffsets:
    """Offsets of a sealed partition that are lost."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """A range whose loss was accepted, as it is then; `lost`: of a sealed one what it lacks.

    `fenced`: brokers that had all of it; one that still runs may acknowledge events that are lost.
    `dry_run`: nothing was changed.
    """

    range: RangeDetails
    lost: tuple[LostOffsets, ...]
    fenced: tuple[int, ...]
    dry_run: bool


@dataclass(frozen=True, slots=True)
class RingChange:
    """A change of a registration, a leader, an ISR or a step; a broker applied it `at` this time.

    `number`: of those since its start. `kind`: registered, fenced, heard, retired; of a range:
    leads, leaderless, joined, left, ghost, sealed; step; or loss, which a person has accepted.
    `broker`: whom it is about, or None. `text`: all of it in words.
    """

    number: int
    at: str
    kind: str
    broker: int | None
    range: int | None
    epoch: int | None
    text: str


@dataclass(frozen=True, slots=True)
class RingStep:
    """A change of the ring that is under way, from `parents`, of which `sealed` take no more.

    `phase`: waiting (for replicas to be near) or sealing. `age_ms`: since the broker knows of it.
    """

    id: int
    kind: str
    brokers_before: int
    brokers_after: int
    parents: tuple[int, ...]
    sealed: tuple[int, ...]
    phase: str = "waiting"
    age_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step that the ring has taken: `brokers` belong to it now. `kind`: split or join.

    `duration_ms`: of all of it. `pause_ms`: the longest time for which a range took no events, None
    when that is not known.
    """

    step: int
    kind: str
    brokers: int
    duration_ms: int
    sealed_ranges: tuple[int, ...]
    new_ranges: tuple[int, ...]
    sealed_partitions: int
    new_partitions: int
    pause_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LastStep:
    """The step that has ended last. `cancelled`: why; None: it is done. Times as of `StepResult`;
    None: the broker that answered has not seen it.
    """

    id: int
    kind: str
    brokers_before: int
    brokers_after: int
    cancelled: str | None
    duration_ms: int | None
    pause_ms: int | None


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """A range that a step seals or makes, tokens [`start`, `end`); `leader`: its natural one."""

    id: int
    start: str
    end: str
    leader: int
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlannedCopy:
    """Broker `broker` has to copy this sealed range; `bytes` None: not known where it was asked."""

    range_id: int
    broker: int
    bytes: int | None


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step of a plan. `continued`: the range of the same tokens before and after, or None."""

    kind: str
    brokers_before: int
    brokers_after: int
    sealed_ranges: tuple[PlannedRange, ...]
    new_ranges: tuple[PlannedRange, ...]
    continued: tuple[int, int] | None
    sealed_partitions: int
    new_partitions: int
    copies: tuple[PlannedCopy, ...]


@dataclass(frozen=True, slots=True)
class RingPlan:
    """What a ring would go through on its way from `brokers` to `brokers_after`.

    `missing`: brokers that have to be started first. `copies_unknown`: copies of unknown size.
    """

    brokers: int
    brokers_after: int
    missing: tuple[int, ...]
    topics: int
    steps: tuple[PlannedStep, ...]
    sealed_partitions: int
    new_partitions: int
    copy_bytes: int
    copies_unknown: int


@dataclass(frozen=True, slots=True)
class RingDetails:
    """A ring as one broker knows it. `state`: that broker is starting, waiting to be founded,
    admitted or registered, or a member. While it is in no ring, as far as it has read its disk,
    `cluster_id`, `brokers` and `factor` are None.

    `brokers`: how many belong to it. `copies`: of each event.
    """

    name: str
    state: str
    cluster_id: str | None
    brokers: int | None
    factor: int | None
    copies: int
    metadata: RingMetadata
    registrations: tuple[Registration, ...]
    ranges: tuple[RangeDetails, ...]
    step: RingStep | None
    last_step: LastStep | None = None
