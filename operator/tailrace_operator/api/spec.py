"""The specs of both kinds: fields, defaults and limits; `crds.py` makes the CRDs from them.

What is refused here is refused by the API server too, with the same words (`fields.py`).
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, Field, ValidationError
from pydantic.alias_generators import to_camel

from tailrace.settings.quantities import DURATION, DURATION_UNITS, SIZE_UNITS
from tailrace_operator.api.fields import (
    Fields,
    NoneTwice,
    ResourceQuantity,
    Rule,
    Text,
    Written,
    duration,
    ruled,
    size,
    unchanged,
)
from tailrace_operator.api.forms import Annotations, LabelValue, Name, NameOrNone, Origin
from tailrace_operator.api.listeners import Listeners
from tailrace_operator.api.pod import NO_ANNOTATIONS_OF_OURS, PodSettings

GROUP = "tailrace.dev"
VERSION = "v1alpha1"
CLUSTER_PLURAL = "streamclusters"
TOPIC_PLURAL = "topics"

BROKERS_MAX = 48  # supported; the arithmetic of rings goes on to 12,288 (docs/ring.md)
_MEBIBYTE = SIZE_UNITS["Mi"]
_GIBIBYTE = SIZE_UNITS["Gi"]
_HOUR_MS = DURATION_UNITS["h"]
_MINUTE_MS = DURATION_UNITS["m"]
_TOPIC_NAME = Text(
    # Neither . nor .., and not from __ on, which the ring's own topics have.
    "[A-Za-z0-9-][A-Za-z0-9._-]*|_|_[A-Za-z0-9.-][A-Za-z0-9._-]*"
    "|[.][A-Za-z0-9_-][A-Za-z0-9._-]*|[.][.][A-Za-z0-9._-]+",
    "not a topic's name: letters, digits, dot, underscore and hyphen, not from __ on",
)
_STORAGE_SIZE = size(_GIBIBYTE)
_LARGEST_BUFFER_BYTES = 40 * _MEBIBYTE  # for the largest batch that a request can bring

ResourceList = Annotated[dict[str, Annotated[str, ResourceQuantity()]], Field(max_length=16)]

_PLAIN_MESSAGES = {"extra_forbidden": "unknown field", "missing": "required value"}
_PRODUCE_MEMORY_RULE = (
    "[has(self.produceMemory) ? self.produceMemory : '64Mi'].all(memory, "
    "[has(self.maxRequestSize) ? self.maxRequestSize : '16Mi'].all(body, !isQuantity(memory) || "
    "!isQuantity(body) || quantity(memory).compareTo(quantity(body)) >= 0))"
)
# What a broker takes where the spec says nothing; a test compares it with the broker's settings.
_MEMORY_DEFAULTS = {
    "produce_memory": 64 * _MEBIBYTE,
    "read_memory": 96 * _MEBIBYTE,
    "io_buffer": 64 * _MEBIBYTE,
    "cache_size": 32 * _MEBIBYTE,
}
_ZONES_MESSAGE = "a ring has three zones, or none"
_ZONE_TWICE_MESSAGE = "a zone is named twice"
_NO_SETTINGS = {"cluster", "topic_name", "deletion_policy"}  # of a topic, for its ring

_Spec = TypeVar("_Spec", bound=BaseModel)


def _zones(zones: tuple[str, ...]) -> tuple[str, ...]:
    if len(zones) not in (0, 3):
        raise ValueError(_ZONES_MESSAGE)
    if len(set(zones)) != len(zones):
        raise ValueError(_ZONE_TWICE_MESSAGE)
    return zones


class InvalidSpecError(Exception):
    """A spec that cannot be worked with; `field` as in `spec.storage.size`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class Storage(Fields):
    """The volume of each broker."""

    size: Annotated[
        str,
        _STORAGE_SIZE,
        Rule(
            "!isQuantity(self) || quantity(self).compareTo(quantity(oldSelf)) >= 0",
            message_expression="'storage can grow, not shrink (now ' + oldSelf + ')'",
        ),
    ] = "10Gi"
    """How much each broker can store, as in `50Gi`; it can grow while the ring works."""

    storage_class_name: NameOrNone | None = None
    """Which kind of volume; the cluster's default when it is not given, and with `""` none: volumes
    that are there already. It cannot be changed."""

    model_config = ruled(
        Rule(
            # No class differs from the default class: it needs a word that no class has.
            unchanged("storageClassName", otherwise="'the default'"),
            message="the class of volumes cannot be changed: they are made; move to another "
            "StreamCluster for another class",
            field=".storageClassName",
        )
    )

    @property
    def size_bytes(self) -> int:
        """Return `size` in bytes."""
        size_bytes = _STORAGE_SIZE.quantity.read(self.size)
        assert size_bytes is not None, "storage has a bound"
        return size_bytes


class Resources(Fields):
    """What each broker's container gets, as in a pod."""

    requests: ResourceList = {}
    """What is kept free for it."""

    limits: ResourceList = {}
    """What it never gets more of."""

    model_config = ruled(
        Rule(
            "!has(self.requests) || !has(self.limits) || self.requests.all(name, "
            "!(name in self.limits) || !isQuantity(string(self.requests[name])) || "
            "!isQuantity(string(self.limits[name])) || quantity(string(self.requests[name]))"
            ".compareTo(quantity(string(self.limits[name]))) <= 0)",
            message="a request is above its limit",
            field=".requests",
        )
    )


class BrokerSettings(Fields):
    """Settings of the brokers; those that are neither given nor have a default here are the
    broker's defaults."""

    auto_create_topics: bool = False
    """Whether the first produce to a topic creates it; off, a mistyped name is refused, and topics
    come from `Topic` resources or `POST /v1/topics`."""

    allowed_origins: Annotated[tuple[Origin, ...], Field(max_length=16)] | None = None
    """Origins whose web pages may change and read data, as in `https://console.example`; `*`: every
    page that is open in a browser which reaches the brokers."""

    segment_size: Annotated[str | None, size(_MEBIBYTE, 1024 * _MEBIBYTE)] = None
    """A segment is finished by the write that passes this."""

    journal_size: Annotated[str | None, size(8 * _MEBIBYTE, 1024 * _MEBIBYTE)] = None
    """Disk for small appends on their way to the segments."""

    cache_size: Annotated[str | None, size(0)] = None
    """Recent batches kept in memory for readers near the end."""

    produce_memory: Annotated[str | None, size(_MEBIBYTE)] = None
    """Bodies in flight, all connections together; over it producers get 429."""

    read_memory: Annotated[str | None, size(_LARGEST_BUFFER_BYTES)] = None
    """Answers that are not sent yet; over it readers wait, then get 503."""

    io_buffer: Annotated[str | None, size(_LARGEST_BUFFER_BYTES)] = None
    """Aligned buffers of the I/O threads."""

    max_request_size: Annotated[str | None, size(1024, 16 * _MEBIBYTE)] = None
    """Bound of one produce body."""

    delete_retention: Annotated[str | None, duration(0)] = None
    """How long a deleted topic's data stays in the trash, as in `1d`."""

    scrub_rate: Annotated[str | None, size(0)] = None
    """How much stored data is read again and checked each second; 0: never."""

    io_threads: Annotated[int, Field(ge=1, le=64)] | None = None
    """Threads for disk calls and large compressions."""

    log_level: Literal["debug", "info", "warning", "error"] | None = None
    """Lowest level that is logged."""

    model_config = ruled(
        Rule(
            _PRODUCE_MEMORY_RULE,
            message="below maxRequestSize (16Mi when it is not given): no body would fit",
            field=".produceMemory",
        )
    )

    @property
    def memory_bytes(self) -> int:
        """Return how much a broker's buffers and cache take at most, without the interpreter."""
        given = self.model_dump(include=set(_MEMORY_DEFAULTS), exclude_none=True)
        return sum(
            default if name not in given else size(0).quantity.read(given[name]) or 0
            for name, default in _MEMORY_DEFAULTS.items()
        )


class ServiceSettings(Fields):
    """The Service of the clients."""

    type: Literal["ClusterIP", "LoadBalancer", "NodePort"] = "ClusterIP"
    """How clients outside of the cluster reach it."""

    annotations: Annotations = {}
    """Annotations of the Service, for what makes load balancers."""

    model_config = ruled(NO_ANNOTATIONS_OF_OURS)


class StreamClusterSpec(Fields):
    """A ring of brokers; all fields have defaults."""

    brokers: Annotated[
        int,
        Field(ge=1, le=BROKERS_MAX),
    ] = 3
    """How many brokers the ring has. Another number makes it grow or shrink, one broker at a
    time; with 1 or 2 brokers there are as many copies of each event, else 3."""

    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """The brokers' image; the operator's default, of its own version, when it is not given."""

    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When a node fetches the image."""

    image_pull_secrets: Annotated[tuple[Name, ...], Field(max_length=16), NoneTwice()] = ()
    """Names of Secrets of the namespace, for the image's registry."""

    storage: Storage = Storage()
    """The volume of each broker."""

    resources: Resources = Resources(
        requests={"cpu": "250m", "memory": "512Mi"}, limits={"memory": "512Mi"}
    )
    """What each broker's container gets. A quantity with a fraction is a text, `"0.5"` or `500m`;
    one with an exponent has a unit instead: `1G`, not `1e9`."""

    settings: BrokerSettings = BrokerSettings()
    """Settings of the brokers; their memory has to fit into `spec.resources.limits.memory`."""

    zones: Annotated[tuple[LabelValue, ...], Field(max_length=3), AfterValidator(_zones)] = ()
    """Three zones (`topology.kubernetes.io/zone`) that the brokers are spread over; none: they are
    spread over nodes. They cannot be changed."""

    deletion_policy: Literal["Retain", "Delete"] = "Retain"
    """Whether the volumes stay when the StreamCluster is deleted."""

    pod: PodSettings = PodSettings()
    """What the brokers' pods have besides."""

    service: ServiceSettings = ServiceSettings()
    """The Service of the clients."""

    listeners: Listeners | None = None
    """An address outside of the cluster for each broker. Without it all share that of
    `spec.service`, which suffices: every broker serves everything."""

    network_policy: bool = True
    """Whether a NetworkPolicy keeps others than brokers from the brokers' ports for each other."""

    model_config = ruled(
        Rule(
            "!has(self.zones) || self.zones.size() in [0, 3]",
            message=_ZONES_MESSAGE,
            field=".zones",
        ),
        Rule(
            "!has(self.zones) || self.zones.all(zone, self.zones.exists_one(same, same == zone))",
            message=_ZONE_TWICE_MESSAGE,
            field=".zones",
        ),
        Rule(
            unchanged("zones", otherwise="[]"),
            message="zones cannot be changed: volumes stay where they are; make another "
            "StreamCluster for other zones",
            field=".zones",
        ),
    )

    def broker_settings(self) -> dict[str, str]:
        """The settings that are given, as variables of a broker's environment."""
        given = _api_settings(self.settings)
        outside = {} if self.listeners is None else self.listeners.broker_settings()
        return outside | {
            f"TAILRACE_{name.upper()}": _in_environment(each) for name, each in given.items()
        }


class TopicSpec(Fields):
    """A topic; what is not given is the ring's default, and is not enforced."""

    cluster: Annotated[
        Name,
        Rule("self == oldSelf", message="a topic stays in its ring; make another Topic"),
    ]
    """The StreamCluster, in the same namespace. It cannot be changed."""

    topic_name: Annotated[str | None, Field(max_length=249), _TOPIC_NAME] = None
    """The topic's name in the ring; the resource's when it is not given. It cannot be changed."""

    partitions_per_range: Annotated[
        int | None,
        Field(ge=1, le=256),
    ] = None
    """Partitions in each range; the ring has a range for each broker. The ranges follow a change
    one after another."""

    json_check: bool | None = None
    """Whether values must be JSON."""

    compression: Literal["lz4", "zstd", "none"] | None = None
    """How batches are compressed."""

    durability: Literal["fsync", "written"] | None = None
    """Whether an acknowledged event is on the disk (`fsync`), or with the kernel (`written`)."""

    retention: Annotated[str | None, duration(_MINUTE_MS, or_none=True)] = None
    """How long records are kept, as in `7d`; `none`: for ever."""

    retention_size: Annotated[str | None, size(_MEBIBYTE, or_none=True)] = None
    """How much each partition keeps, as in `10Gi`; `none`: all."""

    flush: Annotated[str | None, duration(1, _HOUR_MS)] = None
    """How long records of a `written` topic wait for the disk, as in `1s`."""

    flush_size: Annotated[str | None, size(4096)] = None
    """How much of a `written` topic waits for the disk."""

    linger: Annotated[str | None, duration(0, _MINUTE_MS)] = None
    """How long the broker collects records for one batch."""

    linger_size: Annotated[str | None, size(0, 16 * _MEBIBYTE)] = None
    """How much the broker collects for one batch."""

    min_in_sync_replicas: Annotated[int | None, Field(ge=2, le=3)] = None
    """Replicas that must be in sync, or produces are refused; at most the ring's copies count."""

    deletion_policy: Literal["Retain", "Delete"] = "Retain"
    """Whether the topic in the ring stays when this resource is deleted."""

    model_config = ruled(
        Rule(
            unchanged("topicName"),
            message="a topic's name in its ring cannot be changed; make another Topic",
            field=".topicName",
        ),
    )

    def topic_settings(self) -> dict[str, Any]:
        """The settings that are given, by their names in the API's JSON."""
        given = _api_settings(self)
        return {to_camel(name): each for name, each in given.items() if name not in _NO_SETTINGS}

    def name_in_ring(self, resource_name: str) -> str:
        """Return the topic's name in the ring."""
        return self.topic_name or resource_name


def parse_cluster_spec(document: Mapping[str, Any]) -> StreamClusterSpec:
    """The spec of a StreamCluster, of which `document` is the whole; or InvalidSpecError."""
    return _parsed(StreamClusterSpec, document)


def parse_topic_spec(document: Mapping[str, Any]) -> TopicSpec:
    """The spec of a Topic, of which `document` is the whole; or InvalidSpecError."""
    return _parsed(TopicSpec, document)


def _parsed(model: type[_Spec], document: Mapping[str, Any]) -> _Spec:
    try:
        return model.model_validate(document.get("spec") or {})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(("spec", *(str(part) for part in first["loc"])))
        message = _PLAIN_MESSAGES.get(first["type"], first["msg"]).removeprefix("Value error, ")
        raise InvalidSpecError(field, message) from None


def _api_settings(fields: Fields) -> dict[str, Any]:
    """Return the given fields in terms of settings: `flush_size` "1Mi" -> `flush_bytes` 2**20."""
    given = fields.model_dump(exclude_none=True)
    return dict(_api_setting(_written(type(fields), name), name, given[name]) for name in given)


def _api_setting(written: Written | None, name: str, value: Any) -> tuple[str, Any]:
    if written is None:
        return name, value
    in_units = written.quantity.read(value)
    if written.quantity.kind is DURATION:
        return f"{name}_ms", in_units
    if name.endswith("_rate"):
        return f"{name.removesuffix('_rate')}_bytes_per_second", in_units
    return f"{name.removesuffix('_size')}_bytes", in_units


def _written(model: type[Fields], name: str) -> Written | None:
    """Return how the field's quantity is written; None: it holds none."""
    metadata = model.model_fields[name].metadata
    return next((each for each in metadata if isinstance(each, Written)), None)


def _in_environment(value: bool | int | str | tuple[str, ...]) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
