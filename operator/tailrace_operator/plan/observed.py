"""What was seen of a cluster or a topic at one moment: plain values that plans are made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tailrace_operator.api.spec import StreamClusterSpec, TopicSpec

Document = Mapping[str, Any]  # an object of Kubernetes, as its API gives it


class ChildName(NamedTuple):
    """Which object of a cluster's namespace, as in `StatefulSet events`."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Owner:
    """The resource that all is made for."""

    namespace: str
    name: str
    uid: str
    generation: int
    is_paused: bool = False
    is_deleting: bool = False


@dataclass(frozen=True, slots=True)
class Pod:
    """A broker's pod. `revision`: of the StatefulSet's template that it was made from.

    `is_running`: its broker does; `is_ready`: it also serves. `is_gated`: it waits for the
    operator to say in which zone it belongs. `problem`: why it does not run, as in
    `ImagePullBackOff: …`. `template`: what it was made from, as far as it shows.
    """

    ordinal: int
    uid: str
    revision: str
    is_running: bool
    is_ready: bool
    is_deleting: bool = False
    is_gated: bool = False
    zone: str | None = None
    problem: str | None = None
    template: Document = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Claim:
    """A broker's PersistentVolumeClaim. `problem`: of a failed resize, or why it has no `volume`.

    `owners`: the references to what it goes with, in this `version` of the object. `holder`: a
    finalizer that keeps it when it is deleted and no pod uses it any more.
    """

    ordinal: int
    name: str
    requested_bytes: int
    capacity_bytes: int
    is_expandable: bool
    problem: str | None = None
    owners: tuple[Document, ...] = ()
    version: str = ""
    volume: str = ""
    is_deleting: bool = False
    holder: str | None = None
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that answered: `state` as in `GET /v1/ring`."""

    ordinal: int
    state: str


@dataclass(frozen=True, slots=True)
class Range:
    """An open range. `in_sync`: those of its replicas, by ordinal, that live and have all events.

    `loss`: what happened to its data, when all that had it are back without it.
    """

    number: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    is_led: bool = True
    loss: str | None = None

    def is_short_of(self, minimum: int) -> bool:
        """Return whether fewer replicas are in sync than that; of fewer in all, than those."""
        return len(self.in_sync) < min(minimum, len(self.replicas))


@dataclass(frozen=True, slots=True)
class Ring:
    """What its brokers say, by the one that has applied the most; `brokers`: those that answered.

    `cluster_id` None: none of them is in a ring. `broker_count`: how many belong to it.
    `new_disks`: brokers that started on a disk without what they had. `registered`: those that
    belong to it, are about to, or have not left yet. `sealed_held`: by broker, how many sealed
    ranges count on its copy. `sealed_short`: sealed ranges that fewer than `copies` hold whole;
    `sealed_lost`: those that nobody does.
    `voters`: brokers that vote on the metadata; `next_voters`: those that are to, when others are.
    `has_step`: one is open.
    """

    cluster_id: str | None
    broker_count: int | None
    copies: int
    version: str | None
    metadata_leader: int | None
    ranges: tuple[Range, ...]
    brokers: tuple[Broker, ...]
    new_disks: frozenset[int] = frozenset()
    registered: frozenset[int] = frozenset()
    sealed_held: Mapping[int, int] = field(default_factory=dict)
    sealed_short: int = 0
    sealed_lost: tuple[int, ...] = ()
    voters: frozenset[int] = frozenset()
    next_voters: frozenset[int] = frozenset()
    has_step: bool = False

    @property
    def leaderless(self) -> int:
        """Return how many ranges nobody leads."""
        return sum(not each.is_led for each in self.ranges)

    @property
    def under_replicated(self) -> int:
        """Return how many ranges lack a replica."""
        return self.short_of(self.copies)

    @property
    def lost(self) -> tuple[tuple[int, str], ...]:
        """Return the open ranges that wait for a person, and what happened to each."""
        return tuple((each.number, each.loss) for each in self.ranges if each.loss is not None)

    @property
    def all_lost(self) -> tuple[tuple[int, str], ...]:
        """Return the sealed ones too."""
        return self.lost + tuple((each, "has no whole copy left") for each in self.sealed_lost)

    def short_of(self, minimum: int) -> int:
        """Return how many ranges have fewer replicas in sync than that."""
        return sum(each.is_short_of(minimum) for each in self.ranges)


@dataclass(frozen=True, slots=True)
class Founded:
    """Noted in the status before the ring is founded; `cluster_id` None: not known to be done."""

    broker_count: int
    cluster_id: str | None


@dataclass(frozen=True, slots=True)
class Cluster:
    """A StreamCluster and all that was found of it.

    `default_image`: of the brokers, where the spec names none. `children`: live objects by name,
    those of `names.child_names` and of its listeners that exist. `has_secret`: the ring Secret
    exists (its text is never observed). `former_pods`: those of a StatefulSet that had its name
    before, which are on their way out. `stored_spec`: how the API server writes
    the wanted spec of the StatefulSet, with its defaults; None: it is not known. `pod_refusal`: why
    Kubernetes makes no pod, as for a quota. `plan`: what the ring goes through on its way to the
    wanted number of brokers.
    """

    owner: Owner
    spec: StreamClusterSpec
    status: Document
    founded: Founded | None
    default_image: str
    has_secret: bool
    children: Mapping[ChildName, Document] = field(default_factory=dict)
    pods: tuple[Pod, ...] = ()
    former_pods: tuple[Pod, ...] = ()
    claims: tuple[Claim, ...] = ()
    ring: Ring | None = None
    stored_spec: Document | None = None
    pod_refusal: str | None = None
    plan: str | None = None

    @property
    def image(self) -> str:
        """Return the image that the brokers are to run."""
        return self.spec.image or self.default_image


@dataclass(frozen=True, slots=True)
class LiveTopic:
    """A topic of the ring; settings by their names in the API's JSON (`retentionMs`).

    `partition_count`, `partitions`: those that take events; `sealed_count`: that do not any more.
    `ranges_to_slice`: those in which it does not have its `partitionsPerRange` yet.
    """

    id: str
    settings: Mapping[str, Any]
    partition_count: int
    partitions: tuple[Document, ...]
    size_bytes: int | None
    ranges_to_slice: int = 0
    sealed_count: int = 0


@dataclass(frozen=True, slots=True)
class Topic:
    """A Topic resource and what was found of it.

    `cluster_problem`: why the ring cannot be asked, (reason, message) of the condition; None: it
    was asked. `has_finalizer`: its deletion waits for the operator. `ring`: as it was seen last,
    since each of its ranges has partitions of every topic.
    """

    owner: Owner
    spec: TopicSpec
    status: Document
    has_finalizer: bool
    cluster_problem: tuple[str, str] | None
    live: LiveTopic | None
    ring: Ring | None = None
