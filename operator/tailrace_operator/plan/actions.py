"""The actions, one at a time, each safe to repeat; and the words by which each is reported."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, assert_never

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
RingAction = RecordFounding | Found | StepRing
BrokerAction = PlacePod | RestartBroker | ReplaceVolume | RetireBroker
VolumeAction = OwnClaim | GrowClaim | DeleteClaim
ObjectAction = Apply | CreateSecret | Remove | ReplaceStatefulSet
ClusterAction = ObjectAction | VolumeAction | BrokerAction | RingAction | Blocked
Action = ClusterAction | TopicAction


class Words(NamedTuple):
    """`reason`: what is under way, in one word for programs; `text`: the same for people.

    `event`: reason and action of the Event that reports it, None: there is none; `note`: what the
    Event says instead of the text.
    """

    reason: str
    text: str
    event: tuple[str, str] | None = None
    note: str = ""


def words_of(action: Action, outcome: str | None = None) -> Words:
    """Return how an action is reported. `outcome`: the result of applying it, as a ring's id."""
    match action:
        case RecordFounding() | Found() | StepRing():
            return _of_ring(action, outcome)
        case Apply(manifest, reason, is_drift):
            text = f"{manifest['kind']} {manifest['metadata']['name']}: {reason}"
            if reason == MADE:
                event = ("ObjectCreated", "Create") if is_drift else None
                return Words("Creating", text, event, f"{text}, was missing")
            return Words("Updating", text, ("DriftCorrected", "Apply") if is_drift else None)
        case CreateSecret(manifest):
            return Words("Creating", f"Secret {manifest['metadata']['name']}: {MADE}")
        case Remove(child):
            return Words("Deleting", f"{child.kind} {child.name}: not wanted any more")
        case ReplaceStatefulSet(name, _, reason):
            text = f"StatefulSet {name}: recreated around its pods, {reason}"
            return Words("Updating", text, ("StatefulSetReplaced", "Replace"))
        case PlacePod(ordinal, _, zone):
            text = f"broker {ordinal}: placed in zone {zone}"
            return Words("PlacingBrokers", text, ("BrokerPlaced", "Place"))
        case OwnClaim(name, _, _, is_owned):
            what = "is deleted with" if is_owned else "stays when somebody deletes"
            return Words("UpdatingVolumes", f"volume {name}: {what} the StreamCluster")
        case GrowClaim(name, size):
            text = f"volume {name}: grows to {size}"
            return Words("UpdatingVolumes", text, ("VolumeGrown", "Grow"))
        case RestartBroker(ordinal, _, reason):
            text = f"broker {ordinal}: restarted, {reason}"
            return Words("Restarting", text, ("BrokerRestart", "Restart"))
        case ReplaceVolume(ordinal, _, claim, copies):
            others = "1 other copy" if copies == 1 else f"{copies} other copies"
            fills = f" and fills it from the ring, which has {others} of each event"
            text = f"volume {claim} is being deleted; the broker restarts on a new one"
            text = f"broker {ordinal}: {text}{fills * bool(copies)}"
            return Words("ReplacingVolume", text, ("VolumeReplaced", "Replace"))
        case RetireBroker(ordinal):
            text = f"broker {ordinal}: retired, others have all that it held"
            return Words("Shrinking", text, ("BrokerRetired", "Retire"))
        case DeleteClaim(name):
            text = f"volume {name}: deleted, its broker is retired"
            return Words("Shrinking", text, ("VolumeDeleted", "Delete"))
        case CreateTopic(name):
            text = f"topic {name} is being created"
            return Words("Creating", text, ("TopicCreated", "Create"), f"topic {name}")
        case AlterTopic(name, _, reason):
            return Words("Updating", f"topic {name}: {reason}", ("TopicAltered", "Alter"))
        case DeleteTopic(name):
            text, note = f"topic {name} is being deleted", f"topic {name}, with its records"
            return Words("Deleting", text, ("TopicDeleted", "Delete"), note)
        case SetFinalizer(is_wanted):
            until = "until the topic is deleted" if is_wanted else "for nothing any more"
            return Words("Updating", f"its deletion waits {until}")
        case Blocked(reason, message):
            return Words(reason, message, (reason, "Wait"))
        case _:
            assert_never(action)


def _of_ring(action: RingAction, outcome: str | None) -> Words:
    match action:
        case RecordFounding(count, cluster_id):
            what = "about to be founded" if cluster_id is None else cluster_id
            return Words("Founding", f"the ring of {count} brokers is {what}")
        case Found(count):
            text = f"the ring of {count} brokers is being founded"
            size = "1 broker" if count == 1 else f"{count} brokers"
            return Words("Founding", text, ("RingFounded", "Found"), f"ring {outcome} of {size}")
        case StepRing("grow", count):
            text, note = f"a range is split for broker {count}", f"broker {count} has joined"
            return Words("Growing", text, ("RangeSplit", "Grow"), f"{note}: {outcome}")
        case StepRing(_, count):
            text = f"the range of broker {count - 1} is joined to its neighbour"
            note = (
                f"broker {count - 1} has given its range back: {outcome}; it stays until others "
                "have copied what it stores"
            )
            return Words("Shrinking", text, ("RangesJoined", "Shrink"), note)
        case _:
            assert_never(action)
