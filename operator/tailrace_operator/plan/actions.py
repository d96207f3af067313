"""The actions, and their descriptions; one at a time, each safe to repeat."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, assert_never

from tailrace_operator.plan.observed import ChildName, Document

MADE = "created"  # the reason of an Apply of what was not there
# The reason of a `Blocked` that ends without a person: an object of the previous StreamCluster.
REPLACED = "Replaced"


@dataclass(frozen=True, slots=True)
class Apply:
    """Make a child what `manifest` says, by server-side apply, which leaves what others added.

    `patch` takes that out before, where it does harm. Refused when the object is not of this
    `version` any more; empty: it is to be made. `is_drift`: somebody else has changed it.
    """

    manifest: Document
    reason: str
    is_drift: bool = False
    patch: Document = field(default_factory=dict)
    version: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class CreateSecret:
    """The ring Secret, with a new random text; refused by the API when there is one."""

    manifest: Document


@dataclass(frozen=True, slots=True)
class Remove:
    """A child that is not wanted any more."""

    child: ChildName
    uid: str


@dataclass(frozen=True, slots=True)
class ReplaceStatefulSet:
    """Delete it and leave its pods alone: a field that cannot be changed is to be another."""

    name: str
    uid: str
    reason: str


@dataclass(frozen=True, slots=True)
class PlacePod:
    """Pin a pod that waits to its zone, and let it go."""

    ordinal: int
    pod_uid: str
    zone: str


@dataclass(frozen=True, slots=True)
class RecordFounding:
    """Note in the status that a ring is about to be founded, or with `cluster_id` that it is."""

    broker_count: int
    cluster_id: str | None


@dataclass(frozen=True, slots=True)
class Found:
    """Found the ring of brokers 0 to `broker_count` - 1."""

    broker_count: int


@dataclass(frozen=True, slots=True)
class OwnClaim:
    """Make a volume go with the StreamCluster, or stay without it (`is_owned`).

    `owners`: all references that it is to have; refused when it is not of this `version` any more.
    """

    name: str
    version: str = field(compare=False)  # who undoes it each time is answered less and less often
    owners: tuple[Document, ...]
    is_owned: bool


@dataclass(frozen=True, slots=True)
class GrowClaim:
    """Ask for a larger volume."""

    name: str
    size: str


@dataclass(frozen=True, slots=True)
class RestartBroker:
    """Evict its pod, if it is still this one; the StatefulSet recreates it."""

    ordinal: int
    pod_uid: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReplaceVolume:
    """Evict the pod whose claim is being deleted, if it is still this one: the claim goes with it,
    and the StatefulSet makes both again. `copies`: those that others have of each event; 0: there
    is nothing on it, since the broker is about to join.
    """

    ordinal: int
    pod_uid: str
    claim: str
    copies: int


@dataclass(frozen=True, slots=True)
class StepRing:
    """Make the ring of `brokers_before` brokers one by one broker larger, or smaller."""

    kind: Literal["grow", "shrink"]
    brokers_before: int


@dataclass(frozen=True, slots=True)
class RetireBroker:
    """The ring does without it from now on, and its disk never comes back."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class DeleteClaim:
    """The volume of a broker that has been retired goes, where volumes are not to stay."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Blocked:
    """Nothing can be done until a person acts: a reason, and a message with the remedy."""

    reason: str
    message: str


ClusterAction = (
    Apply
    | CreateSecret
    | Remove
    | ReplaceStatefulSet
    | PlacePod
    | RecordFounding
    | Found
    | OwnClaim
    | GrowClaim
    | RestartBroker
    | ReplaceVolume
    | StepRing
    | RetireBroker
    | DeleteClaim
    | Blocked
)


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """In the ring; settings by their names in the API's JSON."""

    name: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AlterTopic:
    """`settings`: those that are to be others."""

    name: str
    settings: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """In the ring, where it can be restored for a while."""

    name: str


@dataclass(frozen=True, slots=True)
class SetFinalizer:
    """The resource stays until the operator has deleted the topic, or need not (`is_wanted`)."""

    is_wanted: bool


TopicAction = CreateTopic | AlterTopic | DeleteTopic | SetFinalizer | Blocked
Action = ClusterAction | TopicAction


def progress_reason(action: Action) -> str:
    """What is under way, in one word for programs."""
    match action:
        case Apply(reason="created") | CreateSecret() | CreateTopic():
            return "Creating"
        case Apply() | ReplaceStatefulSet() | AlterTopic() | SetFinalizer():
            return "Updating"
        case Remove() | DeleteTopic():
            return "Deleting"
        case PlacePod():
            return "PlacingBrokers"
        case RecordFounding() | Found():
            return "Founding"
        case OwnClaim() | GrowClaim():
            return "UpdatingVolumes"
        case RestartBroker():
            return "Restarting"
        case ReplaceVolume():
            return "ReplacingVolume"
        case StepRing("grow"):
            return "Growing"
        case StepRing() | RetireBroker() | DeleteClaim():
            return "Shrinking"
        case Blocked():
            return action.reason
        case _:
            assert_never(action)


def described(action: Action) -> str:
    """Describe an action for people."""
    match action:
        case Apply(manifest, reason):
            return f"{manifest['kind']} {manifest['metadata']['name']}: {reason}"
        case CreateSecret(manifest):
            return f"Secret {manifest['metadata']['name']}: {MADE}"
        case Remove(child, _):
            return f"{child.kind} {child.name}: not wanted any more"
        case ReplaceStatefulSet(name, _, reason):
            return f"StatefulSet {name}: recreated around its pods, {reason}"
        case PlacePod(ordinal, _, zone):
            return f"broker {ordinal}: placed in zone {zone}"
        case RecordFounding(count, None):
            return f"the ring of {count} brokers is about to be founded"
        case RecordFounding(count, cluster_id):
            return f"the ring of {count} brokers is {cluster_id}"
        case Found(count):
            return f"the ring of {count} brokers is being founded"
        case OwnClaim(name, _, _, is_owned):
            what = "is deleted with" if is_owned else "stays when somebody deletes"
            return f"volume {name}: {what} the StreamCluster"
        case GrowClaim(name, size):
            return f"volume {name}: grows to {size}"
        case RestartBroker(ordinal, _, reason):
            return f"broker {ordinal}: restarted, {reason}"
        case ReplaceVolume(ordinal, _, claim, copies):
            others = "1 other copy" if copies == 1 else f"{copies} other copies"
            fills = f" and fills it from the ring, which has {others} of each event"
            return (
                f"broker {ordinal}: volume {claim} is being deleted; the broker restarts on a new "
                f"one{fills * bool(copies)}"
            )
        case StepRing("grow", count):
            return f"a range is split for broker {count}"
        case StepRing(_, count):
            return f"the range of broker {count - 1} is joined to its neighbour"
        case RetireBroker(ordinal):
            return f"broker {ordinal}: retired, others have all that it held"
        case DeleteClaim(name):
            return f"volume {name}: deleted, its broker is retired"
        case CreateTopic(name):
            return f"topic {name} is being created"
        case AlterTopic(name, _, reason):
            return f"topic {name}: {reason}"
        case DeleteTopic(name):
            return f"topic {name} is being deleted"
        case SetFinalizer(is_wanted):
            until = "until the topic is deleted" if is_wanted else "for nothing any more"
            return f"its deletion waits {until}"
        case Blocked(_, message):
            return message
        case _:
            assert_never(action)
