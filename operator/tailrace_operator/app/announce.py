"""Which Event reports a change, for `kubectl describe`: pure."""

from typing import Any, NamedTuple, assert_never

from tailrace_operator.api.spec import GROUP
from tailrace_operator.plan.actions import (
    MADE,
    AddFinalizer,
    AlterTopic,
    Apply,
    Blocked,
    ClusterAction,
    CreateSecret,
    CreateTopic,
    DeleteClaim,
    DeleteTopic,
    Found,
    GrowClaim,
    OwnClaim,
    PlacePod,
    RecordFounding,
    Remove,
    RemoveFinalizer,
    ReplaceStatefulSet,
    ReplaceVolume,
    RestartBroker,
    RetireBroker,
    StepRing,
    TopicAction,
    described,
)
from tailrace_operator.plan.conditions import by_type
from tailrace_operator.plan.names import RESOURCES, digest
from tailrace_operator.plan.observed import Document, Owner
from tailrace_operator.plan.problems import WARNED, subject

NOTE_CHARACTERS_MAX = 1024  # of a message


class Announcement(NamedTuple):
    """`reason`: one word; `action`: what was done, another word; `note`: for people."""

    reason: str
    action: str
    note: str
    is_warning: bool = False


def announcement(
    action: ClusterAction | TopicAction, owner: Owner, *, outcome: str | None = None
) -> Announcement | None:
    """None: no Event. `outcome`: the result of applying it, as a ring's id."""
    match action:
        case Found():
            size = "1 broker" if action.broker_count == 1 else f"{action.broker_count} brokers"
            return Announcement("RingFounded", "Found", f"ring {outcome} of {size}")
        case StepRing("grow"):
            note = f"broker {action.brokers_before} has joined: {outcome}"
            return Announcement("RangeSplit", "Grow", note)
        case StepRing():
            note = (
                f"broker {action.brokers_before - 1} has given its range back: {outcome}; it stays "
                "until others have copied what it stores"
            )
            return Announcement("RangesJoined", "Shrink", note)
        case RetireBroker(ordinal):
            note = f"broker {ordinal} has left the ring: others have all that it held"
            return Announcement("BrokerRetired", "Retire", note)
        case DeleteClaim():
            return Announcement("VolumeDeleted", "Delete", described(action))
        case RestartBroker():
            name = f"{owner.name}-{action.ordinal}"
            return Announcement("BrokerRestart", "Restart", f"{name}: {action.reason}")
        case ReplaceVolume():
            return Announcement("VolumeReplaced", "Replace", described(action))
        case GrowClaim():
            return Announcement("VolumeGrown", "Grow", f"{action.name}: to {action.size}")
        case PlacePod():
            name = f"{owner.name}-{action.ordinal}"
            return Announcement("BrokerPlaced", "Place", f"{name}: in zone {action.zone}")
        case ReplaceStatefulSet():
            note = f"StatefulSet {action.name} is recreated, its pods stay: {action.reason}"
            return Announcement("StatefulSetReplaced", "Replace", note)
        case Apply() if action.is_drift and action.reason == MADE:
            return Announcement("ObjectCreated", "Create", f"{described(action)}, was missing")
        case Apply() if action.is_drift:
            return Announcement("DriftCorrected", "Apply", described(action))
        case Blocked():
            return Announcement(action.reason, "Wait", action.message, is_warning=True)
        case CreateTopic():
            return Announcement("TopicCreated", "Create", f"topic {action.name}")
        case AlterTopic():
            return Announcement("TopicAltered", "Alter", f"topic {action.name}: {action.reason}")
        case DeleteTopic():
            return Announcement("TopicDeleted", "Delete", f"topic {action.name}, with its records")
        case Apply() | CreateSecret() | Remove() | RecordFounding() | OwnClaim():
            return None
        case AddFinalizer() | RemoveFinalizer():
            return None
        case _:
            assert_never(action)


def warning(document: Document, before: Document) -> tuple[Announcement, str] | None:
    """What a person should hear of a resource, and the name of the Event, one for each time.

    `before`: the status that it had. None: nothing, or it was said.
    """
    degraded, known = (by_type(each).get("Degraded", {}) for each in (document["status"], before))
    if degraded.get("status") != "True" or degraded["reason"] not in WARNED:
        return None
    seen = (degraded["reason"], subject(degraded["message"]))
    if known.get("status") == "True" and (known["reason"], subject(known["message"])) == seen:
        return None
    metadata = document["metadata"]
    number = digest([metadata["uid"], *seen, degraded["lastTransitionTime"]])
    announced = Announcement(seen[0], "Wait", degraded["message"], is_warning=True)
    return announced, f"{metadata['name']}.{number}"


def event_manifest(
    announced: Announcement, document: Document, *, now: str, instance: str, name: str | None = None
) -> dict[str, Any]:
    """The Event, of the resource `document`; `now` with microseconds; `instance`: the reporter.

    One of the core API: those of events.k8s.io may have no `lastTimestamp`, by which `kubectl
    describe` sorts.
    """
    metadata = document["metadata"]
    note = announced.note
    if len(note) > NOTE_CHARACTERS_MAX:
        note = note[: NOTE_CHARACTERS_MAX - 1] + "…"
    return {
        "apiVersion": RESOURCES["Event"].group_version,
        "kind": "Event",
        "metadata": {
            **({"generateName": f"{metadata['name']}-"} if name is None else {"name": name}),
            "namespace": metadata["namespace"],
        },
        "eventTime": now,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "type": "Warning" if announced.is_warning else "Normal",
        "reason": announced.reason,
        "action": announced.action,
        "message": note,
        "source": {"component": f"{GROUP}/operator"},
        "reportingComponent": f"{GROUP}/operator",
        "reportingInstance": instance,
        "involvedObject": {
            "apiVersion": document["apiVersion"],
            "kind": document["kind"],
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
    }


def is_news(action: Blocked, status: Document) -> bool:
    """Return whether the status does not say so yet."""
    return not any(
        action.message in condition.get("message", "")
        for condition in status.get("conditions") or ()
    )
