"""Which Event reports a change, for `kubectl describe`: pure."""

from typing import Any, NamedTuple

from tailrace_operator.api.spec import GROUP
from tailrace_operator.plan.actions import Action, Blocked, words_of
from tailrace_operator.plan.conditions import by_type
from tailrace_operator.plan.findings import WARNED, subject
from tailrace_operator.plan.names import RESOURCES, digest
from tailrace_operator.plan.observed import Document

NOTE_CHARACTERS_MAX = 1024  # of a message


class Announcement(NamedTuple):
    """`reason`: one word; `action`: what was done, another word; `note`: for people."""

    reason: str
    action: str
    note: str
    is_warning: bool


def announcement(action: Action, *, outcome: str | None) -> Announcement | None:
    """None: no Event. `outcome`: the result of applying it, as a ring's id."""
    words = words_of(action, outcome)
    if words.event is None:
        return None
    return Announcement(*words.event, words.note or words.text, isinstance(action, Blocked))


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
    announced: Announcement, document: Document, *, now: str, instance: str, name: str | None
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
