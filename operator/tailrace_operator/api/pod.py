"""What a StreamCluster can ask for its brokers' pods: `spec.pod`."""

from typing import Annotated, Any, Literal

from pydantic import Field

from tailrace_operator.api.fields import Fields, Rule, Text, ruled
from tailrace_operator.api.forms import Annotations, Labels, LabelValue, Name, TaintKey

USER_ID = 10250  # of the image's user, and of the group that owns the volume

# What the operator does not read, and the API server checks when it is asked for a StatefulSet.
AsInKubernetes = Annotated[
    dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
]
UserId = Annotated[int, Field(ge=1, le=2**31 - 1)]

NO_ANNOTATIONS_OF_OURS = Rule(
    "!has(self.annotations) || self.annotations.all(key, !key.startsWith('tailrace.dev/'))",
    message="annotations that begin with tailrace.dev/ are Tailrace's own",
    field=".annotations",
)
# Which broker it is, and where; and what fields of `spec.settings` are called there.
OPERATORS_VARIABLES = (
    "POD_NAME",
    *(
        f"TAILRACE_{name}"
        for name in (
            *("ADVERTISED_HOST", "DATA_DIR", "HOST", "ORDINAL", "PEER_HOST", "PORT"),
            *("PORT_STRIDE", "RING_NAME", "RING_SECRET"),
            *("OUTSIDE_URL", "OUTSIDE_PORT_STRIDE", "OUTSIDE_HOSTS"),
            *("ALLOWED_ORIGINS", "AUTO_CREATE_TOPICS", "CACHE_BYTES", "DELETE_RETENTION_MS"),
            *("IO_BUFFER_BYTES", "IO_THREADS", "JOURNAL_BYTES", "LOG_LEVEL", "MAX_REQUEST_BYTES"),
            *("PRODUCE_MEMORY_BYTES", "READ_MEMORY_BYTES", "SCRUB_BYTES_PER_SECOND"),
            "SEGMENT_BYTES",
        )
    ),
)


class Toleration(Fields):
    """A taint that the pods may run with, as in a pod."""

    key: TaintKey | None = None
    """The taint's key; every key when it is not given, with the operator `Exists`."""

    operator: Literal["Exists", "Equal", ""] | None = None
    """`Equal` when it is not given, or `""`."""

    value: LabelValue | None = None
    """The taint's value, with `Equal`."""

    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute", ""] | None = None
    """Every effect when it is not given, or `""`."""

    toleration_seconds: int | None = None
    """How long a taint of effect `NoExecute` is borne; less than 0 is as 0."""

    model_config = ruled(
        Rule(
            "has(self.key) && self.key != '' || has(self.operator) && self.operator == 'Exists'",
            message="without a key it has to be Exists, which means every taint",
            field=".operator",
        ),
        Rule(
            "!has(self.value) || self.value == '' || !has(self.operator) || "
            "self.operator != 'Exists'",
            message="with the operator Exists there is no value: it means every one",
            field=".value",
        ),
        Rule(
            "!has(self.tolerationSeconds) || has(self.effect) && self.effect == 'NoExecute'",
            message="only with the effect NoExecute: no other ends a pod that runs",
            field=".tolerationSeconds",
        ),
    )


class EnvironmentVariable(Fields):
    """A variable of the brokers' environment, as in a container."""

    name: Annotated[
        str,
        Field(min_length=1, max_length=253),
        Text("[A-Za-z_][A-Za-z0-9_]*", "not a variable's name: letters, digits and underscores"),
        Rule(
            f"!(self in {sorted(OPERATORS_VARIABLES)})".replace('"', "'"),
            message="the operator sets this variable; what spec.settings has is set there",
        ),
    ]
    """Its name; a broker's setting, as in `TAILRACE_FORWARD_SECONDS`, if `spec.settings` has it
    not."""

    value: Annotated[str, Field(max_length=4096)] | None = None
    """Its value."""

    value_from: AsInKubernetes | None = None
    """Where its value is, as in `{secretKeyRef: {name: proxy, key: url}}`."""

    model_config = ruled(
        Rule(
            "has(self.value) != has(self.valueFrom)",
            message="a variable has value or valueFrom, one of them",
            field=".valueFrom",
        )
    )


class PodUser(Fields):
    """As whom the brokers run, and which group has the volume; what is not given is left to the
    cluster, as in OpenShift, whose users are of the namespace's range."""

    run_as_user: UserId | None = None
    """The user."""

    run_as_group: UserId | None = None
    """Its group."""

    fs_group: UserId | None = None
    """The group of the volume."""


class PodSettings(Fields):
    """What the brokers' pods have besides."""

    labels: Labels = {}
    """Labels of the pods, but for those that Tailrace sets."""

    annotations: Annotations = {}
    """Annotations of the pods, but for those from `tailrace.dev/` on."""

    node_selector: Labels = {}
    """Labels of the nodes that they may run on."""

    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] = ()
    """Taints of nodes that they may run on."""

    affinity: AsInKubernetes | None = None
    """As in a pod, in place of the operator's: rather on different nodes, and in different zones.
    `{}`: none."""

    topology_spread_constraints: Annotated[tuple[AsInKubernetes, ...], Field(max_length=8)] = ()
    """As in a pod; without a `labelSelector` the ring's brokers are counted."""

    priority_class_name: Name | None = None
    """Their PriorityClass."""

    env: Annotated[
        tuple[EnvironmentVariable, ...],
        Field(
            max_length=64,
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        ),
    ] = ()
    """Further variables of the brokers' environment."""

    security_context: PodUser = PodUser(run_as_user=USER_ID, run_as_group=USER_ID, fs_group=USER_ID)
    """As whom the brokers run. In OpenShift `{}`."""

    model_config = ruled(
        Rule(
            "!has(self.labels) || self.labels.all(key, !key.startsWith('tailrace.dev/') && "
            "!(key in ['name', 'instance', 'component', 'managed-by'].map(name, "
            "'app.kubernetes.io/' + name)))",
            message="labels that begin with tailrace.dev/, and app.kubernetes.io/name, instance, "
            "component and managed-by, are Tailrace's own",
            field=".labels",
        ),
        NO_ANNOTATIONS_OF_OURS,
    )
