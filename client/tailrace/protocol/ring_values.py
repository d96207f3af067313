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

    `followers` None: another broker than the one that answered leads the range.
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


@dataclass(frozen=True, slots=True)
class RingChange:
    """A change of a registration, a leader or an ISR, `at` the time at which a broker applied it.

    `number`: of those since its start. `kind`: registered, fenced, heard, retired; of a range:
    leads, leaderless, joined, left, ghost. `broker`: whom it is about; None: no broker leads.
    `text`: all of it in words.
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
    """A change of the ring that is under way, from `parents`, of which `sealed` take no more."""

    id: int
    kind: str
    brokers_before: int
    brokers_after: int
    parents: tuple[int, ...]
    sealed: tuple[int, ...]


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
