"""Both kinds as the CRDs have them: what their status holds, names, columns.

The operator writes the status (`plan/status.py`, `plan/topic_status.py`), and needs no types of it.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, Field

from tailrace_operator.api.fields import Fields
from tailrace_operator.api.spec import (
    CLUSTER_PLURAL,
    TOPIC_PLURAL,
    StreamClusterSpec,
    TopicSpec,
)
from tailrace_operator.plan.topic_status import PARTITIONS_LISTED_MAX

Line = Annotated[str, Field(max_length=1024)]
Word = Annotated[str, Field(max_length=253)]
Count = Annotated[int, Field(ge=0)]
Ordinal = Annotated[int, Field(ge=0, le=12_287)]

# Names of what belongs to a ring begin with its own; the longest is that of a pod's label.
CLUSTER_NAME_MAX = 40


class StatusCondition(Fields):
    """As everywhere in Kubernetes."""

    type: Annotated[str, Field(max_length=64)]
    """Its name, for `kubectl wait --for=condition=`."""

    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""

    reason: Annotated[str, Field(max_length=128)]
    """Why, in one word, for programs."""

    message: Annotated[str, Field(max_length=4096)]
    """Why, for people."""

    observed_generation: Count
    """Of which version of the spec this was said."""

    last_transition_time: Annotated[
        str, Field(max_length=64, json_schema_extra={"format": "date-time"})
    ]
    """Since when its status is as it is."""


Conditions = Annotated[
    tuple[StatusCondition, ...],
    Field(
        max_length=16,
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
    ),
]


class FoundedRing(Fields):
    """The ring that was founded, so that it is never founded again."""

    brokers: Count
    """How many brokers it was founded with."""

    cluster_id: Word | None = None
    """Its id; absent until the bootstrap is known to be done."""


class StreamClusterStatus(Fields):
    """What the operator found."""

    observed_generation: Count | None = None
    """The version of the spec that all of this is about."""

    phase: Line | None = None
    """`Ready`, or what the ring waits for."""

    brokers: Count | None = None
    """How many brokers the ring is to have."""

    ready_brokers: Count | None = None
    """How many brokers serve."""

    balanced: Literal["True", "False"] | None = None
    """Whether each range has the same share of the keys."""

    zones: Count | None = None
    """In how many zones brokers run."""

    version: Word | None = None
    """The brokers' version."""

    image: Line | None = None
    """The brokers' image."""

    copies: Count | None = None
    """Of each event."""

    cluster_id: Word | None = None
    """The ring's id."""

    listeners: Count | None = None
    """How many objects lead to single brokers from outside, those included that are to go."""

    founded: FoundedRing | None = None
    """The ring that was founded."""

    selector: Line | None = None
    """Of the brokers' pods, for the `scale` subresource."""

    plan: Line | None = None
    """What the ring goes through on its way to `spec.brokers`; absent when it has as many."""

    conditions: Conditions = ()
    """`Ready`, `Progressing`, `Degraded`, `Balanced`, `ReconciliationPaused`."""


class PartitionStatus(Fields):
    """A partition of the topic."""

    id: Count
    """Its number."""

    leader: Ordinal | None = None
    """The broker that leads it."""

    isr: Annotated[tuple[Ordinal, ...], Field(max_length=16)] = ()
    """The brokers whose copies are in sync."""

    high_watermark: Count | None = None
    """The offset below which its records are committed."""

    log_end: Count | None = None
    """The offset after its last record."""

    size_bytes: Count | None = None
    """What it takes on the leader's disk."""


class TopicStatus(Fields):
    """What the operator found."""

    observed_generation: Count | None = None
    """The version of the spec that all of this is about."""

    topic_id: Word | None = None
    """The topic's id in its ring."""

    partition_count: Count | None = None
    """Partitions that take events."""

    sealed_partition_count: Count | None = None
    """Partitions that take no events any more: others have taken their keys over."""

    retention: Word | None = None
    """How long records are kept: what is in force."""

    durability: Word | None = None
    """When a produce is answered: what is in force."""

    size: Word | None = None
    """What it takes on the leaders' disks."""

    partitions: Annotated[tuple[PartitionStatus, ...], Field(max_length=PARTITIONS_LISTED_MAX)] = ()
    """The partitions that take events, when they are 64 or less."""

    conditions: Conditions = ()
    """`Ready`, `ReconciliationPaused`."""


class Column(NamedTuple):
    """Of `kubectl get`."""

    name: str
    type: str
    path: str


class Kind(NamedTuple):
    """A kind of resource. `scale`: paths of wanted, found, selector; `name`: what bounds names."""

    kind: str
    plural: str
    short: str
    spec: type[BaseModel]
    status: type[BaseModel]
    columns: tuple[Column, ...]
    scale: tuple[str, str, str] | None = None
    name: Mapping[str, Any] = {"maxLength": 253}


_AGE = Column("Age", "date", ".metadata.creationTimestamp")
KINDS = (
    Kind(
        "StreamCluster",
        CLUSTER_PLURAL,
        "trc",
        StreamClusterSpec,
        StreamClusterStatus,
        (
            Column("Brokers", "integer", ".spec.brokers"),
            Column("Ready", "integer", ".status.readyBrokers"),
            Column("Status", "string", ".status.phase"),
            Column("Balanced", "string", ".status.balanced"),
            Column("Zones", "integer", ".status.zones"),
            Column("Version", "string", ".status.version"),
            _AGE,
        ),
        scale=(".spec.brokers", ".status.readyBrokers", ".status.selector"),
        # Services and labels have its name in theirs.
        name={"maxLength": CLUSTER_NAME_MAX, "pattern": "^[a-z]([a-z0-9-]*[a-z0-9])?$"},
    ),
    Kind(
        "Topic",
        TOPIC_PLURAL,
        "trt",
        TopicSpec,
        TopicStatus,
        (
            Column("Cluster", "string", ".spec.cluster"),
            Column("Partitions", "integer", ".status.partitionCount"),
            Column("Retention", "string", ".status.retention"),
            Column("Durability", "string", ".status.durability"),
            Column("Size", "string", ".status.size"),
            Column("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
            Column("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason'),
            _AGE,
        ),
    ),
)
