"""Which Event reports a change, for `kubectl describe`: pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tailrace_operator.api.spec import GROUP
from tailrace_operator.plan import actions
from tailrace_operator.plan.conditions import by_type
from tailrace_operator.plan.names import RESOURCES, digest
from tailrace_operator.plan.observed import Document
from tailrace_operator.plan.problems import WARNED, subject

NOTE_CHARACTERS_MAX = 1024  # of a message

# Reason and action of the Event for an action that is described in the same words everywhere.
_EVENTS: Mapping[type, tuple[str, str]] = {
    actions.RetireBroker: ("BrokerRetired", "Retire"),
    actions.DeleteClaim: ("VolumeDeleted", "Delete"),
    actions.RestartBroker: ("BrokerRestart", "Restart"),
    actions.ReplaceVolume: ("VolumeReplaced", "Replace"),
    actions.GrowClaim: ("VolumeGrown", "Grow"),
    actions.PlacePod: ("BrokerPlaced", "Place"),
    actions.ReplaceStatefulSet: ("StatefulSetReplaced", "Replace"),
    actions.AlterTopic: ("TopicAltered", "Alter"),
}


class Announcement(NamedTuple):
    """`reason`: one word; `action`: what was done, another word; `note`: for people."""

    reason: str
    action: str
    note: str
    is_warning: bool = False


def announcement(action: actions.Action, *, outcome: str | None = None) -> Announcement | None:
    """None: no Event. `outcome`: the result of applying it, as a ring's id."""
    match action:
        case actions.Found(count):
            size = "1 broker" if count == 1 else f"{count} brokers"
            return Announcement("RingFounded", "Found", f"ring {outcome} of {size}")
        case actions.StepRing("grow", count):
            return Announcement("RangeSplit", "Grow", f"broker {count} has joined: {outcome}")
        case actions.StepRing(_, count):
            note = (
                f"broker {count - 1} has given its range back: {outcome}; it stays until others "
                "have copied what it stores"
            )
            return Announcement("RangesJoined", "Shrink", note)
        case actions.Apply(reason=actions.MADE, is_drift=True):
            note = f"{actions.described(action)}, was missing"
            return Announcement("ObjectCreated", "Create", note)
        case actions.Apply(is_drift=True):
            return Announcement("DriftCorrected", "Apply", actions.described(action))
        case actions.Blocked(reason, message):
            return Announcement(reason, "Wait", message, is_warning=True)
        case actions.CreateTopic(name):
            return Announcement("TopicCreated", "Create", f"topic {name}")
        case actions.DeleteTopic(name):
            return Announcement("TopicDeleted", "Delete", f"topic {name}, with its records")
    words = _EVENTS.get(type(action))
    return None if words is None else Announcement(*words, actions.described(action))


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


def is_news(action: actions.Blocked, status: Document) -> bool:
    """Return whether the status does not say so yet."""
    return not any(
        action.message in condition.get("message", "")
        for condition in status.get("conditions") or ()
    )
