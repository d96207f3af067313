"""Brokers' answers as values, and their form in JSON: members are fields in camelCase."""

from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tailrace.errors import PartitionDamagedError, PartitionUnavailableError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = TypeVar("Value", bound="DataclassInstance")
# Members whose name in JSON is not ours in camelCase.
_WIRE_NAMES = {
    "range_id": "range",
    "now_us": "now",
    "timestamp_us": "timestamp",
    "from_offset": "from",
    "to_offset": "to",
}


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic's settings and size; `copies` of each record on brokers' disks.

    `partitions`: the sealed ones too. Retention None: for ever. `ranges_to_slice`: of the ring, in
    which it does not have `partitions_per_range` partitions yet. Defaults are what brokers do that
    do not say.
    """

    name: str
    id: str
    partitions_per_range: int
    json_check: bool
    durability: str
    partitions: int
    copies: int
    compression: str = "lz4"
    flush_ms: int = 1000
    flush_bytes: int = 16 * 1024 * 1024
    linger_ms: int = 0
    linger_bytes: int = 0
    retention_ms: int | None = None
    retention_bytes: int | None = None
    min_in_sync_replicas: int = 2
    ranges_to_slice: int = 0
    sealed_partitions: int = 0

    @property
    def open_partitions(self) -> int:
        """Those that take records."""
        return self.partitions - self.sealed_partitions


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """Where a partition begins and ends; `state`: open, sealed (readable, closed) or damaged;
    waiting, leaderless: no broker leads it now; unreachable: neither the broker that was asked nor
    this client reached its leader.

    All three ends are None when it is damaged, or no broker that leads it was reached; `leader` is
    that broker's ordinal, None: there is none now. `leader_url`: where it is, reported by others.
    `timestamp_offset`: the first offset whose record is not older than the time that was asked for;
    None when there is none, or no time was asked.
    """

    topic: str
    partition: int
    range_id: int
    epoch: int
    first_offset: int
    log_start: int | None
    high_watermark: int | None
    log_end: int | None
    state: str
    parents: tuple[int, ...]
    children: tuple[int, ...] = ()
    timestamp_offset: int | None = None
    leader: int | None = None
    leader_url: str | None = None

    def readable(self) -> range:
        """The offsets [`log_start`, `high_watermark`).

        PartitionDamagedError, PartitionUnavailableError: it has none.
        """
        is_damaged = self.state == "damaged"
        if is_damaged and self.log_start == self.high_watermark:
            raise PartitionDamagedError(self.topic, self.partition, self.state)
        if self.log_start is None or self.high_watermark is None:
            raise PartitionUnavailableError(self.topic, self.partition, self.leader)
        return range(self.log_start, self.high_watermark)


@dataclass(frozen=True, slots=True)
class QuarantinedBatch:
    """Offsets `first_offset` to `last_offset`, which cannot be read: see `byte` of `file`.

    `accepted`: they are lost for good, and somebody has accepted that.
    """

    first_offset: int
    last_offset: int
    file: str
    byte: int
    accepted: bool


@dataclass(frozen=True, slots=True)
class PartitionDetails:
    """A partition with its place in the ring; ends and size None when it is damaged, or no broker
    that leads it was reached. `leader_url`: where that is, when another broker answered.

    It owns tokens [`token_start`, `token_end`): texts, since JavaScript's numbers are too small.
    """

    partition: int
    range_id: int
    slice: int
    slices: int
    token_start: str
    token_end: str
    leader: int | None
    isr: tuple[int, ...]
    epoch: int
    first_offset: int
    log_start: int | None
    high_watermark: int | None
    log_end: int | None
    size_bytes: int | None
    parents: tuple[int, ...]
    children: tuple[int, ...]
    state: str
    leader_url: str | None = None
    quarantined: tuple[QuarantinedBatch, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicDetails:
    """One topic and each of its partitions."""

    topic: TopicInfo
    partition_details: tuple[PartitionDetails, ...]


@dataclass(frozen=True, slots=True)
class PartitionLoss:
    """What a partition has lost: from `first_offset` to `last_offset` it is known that there were
    records, and it goes on at `next_offset`, which none can have had; on a `dry_run` nothing was
    done.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    next_offset: int
    dry_run: bool


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """A deleted topic that can be restored; `purge_at`: until then, on a full disk less long.

    Both times are texts as in records. `partitions`: the sealed ones too.
    """

    name: str
    id: str
    partitions: int
    size_bytes: int
    deleted_at: str
    purge_at: str
    sealed_partitions: int = 0


@dataclass(frozen=True, slots=True)
class Ring:
    """What holds for all brokers together; `under_replicated`: ranges with fewer than `copies`."""

    name: str
    cluster_id: str
    version: str
    ranges: int
    under_replicated: int
    metadata_leader: int | None
    metadata_term: int
    copies: int = 1


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """One broker: what it holds, its disk, since when it runs; what only it knows itself is None in
    the answer of another.

    `data_bytes`: what its data takes; `disk_used_bytes`: of its file system, whoever uses it.
    `durable_write_ms`: of one block, at its start. None: what could not be measured. `alive`: heard
    of a moment ago, by the broker that answered.
    """

    ordinal: int
    token: str
    leads: int
    replicates: int
    damaged: int | None
    quarantined: int | None
    lag_max: int | None
    data_bytes: int | None
    disk_used_bytes: int | None
    disk_bytes: int | None
    direct_io: bool | None
    durable_write_ms: float | None
    incarnation: str | None
    started_at: str | None
    up_seconds: float | None
    alive: bool = True


@dataclass(frozen=True, slots=True)
class RingStatus:
    """The ring's `length` brokers by name and public port, and the state of each.

    `now_us`: the clock of the broker that answered, as the other two ports. `ports` is empty when
    all brokers have the same.
    """

    length: int
    names: tuple[str, ...]
    producer_port: int
    producer_binary_port: int
    consumer_port: int
    ring: Ring
    now_us: int
    brokers: tuple[BrokerStatus, ...]
    ports: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Fetched:
    """A read's body as sent; `next_offset` continues it, `high_watermark` is the readable end.

    `is_sealed`: this is the end of a partition that takes no more; its `children` continue it.
    """

    body: bytes
    next_offset: int
    high_watermark: int
    log_start: int
    epoch: int | None = None  # of the leader; None from a broker that does not say
    is_sealed: bool = False
    children: tuple[int, ...] = ()


# --- in JSON --------------------------------------------------------------------------------------


def from_document(kind: type[Value], document: Any, **known: object) -> Value:
    """A value out of its document; members that an older broker leaves out get their defaults.

    `known`: fields that are elsewhere, or are no plain members.
    """
    members = dict(known)
    for field in fields(kind):
        name = wire_name(field.name)
        if field.name not in known and (name in document or field.default is MISSING):
            member = document[name]
            members[field.name] = tuple(member) if isinstance(member, list) else member
    return kind(**members)


def to_document(value: "DataclassInstance") -> dict[str, Any]:
    """One of these values in JSON's terms, named as in the broker's answers."""
    return {wire_name(field.name): _plain(getattr(value, field.name)) for field in fields(value)}


def wire_name(name: str) -> str:
    """ "log_start" -> "logStart"."""
    head, *rest = name.split("_")
    return _WIRE_NAMES.get(name) or head + "".join(map(str.capitalize, rest))


def _plain(value: Any) -> Any:
    """A field's value in JSON's terms."""
    if is_dataclass(value) and not isinstance(value, type):
        return to_document(value)
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
