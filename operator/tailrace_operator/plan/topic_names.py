"""Whose a topic of a ring is when several Topics name it: the oldest one's. Pure.

Of resources that are as old as each other it is that of the smaller uid: all operators agree.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tailrace_operator.plan.observed import Document


@dataclass(frozen=True, order=True, slots=True)
class _Claimant:
    """A Topic that names a topic of a ring: the smallest has it."""

    created: str
    uid: str
    name: str = field(compare=False)
    topic: tuple[str, str] = field(compare=False)  # cluster, topic


class TopicNames:
    """The Topics that are known, by namespace; names of resources go in and come out."""

    def __init__(self) -> None:
        self._claimants: dict[str, dict[str, _Claimant]] = {}

    def note(self, namespace: str, name: str, document: Document | None) -> list[str]:
        """What a Topic says now, None: it is gone. The others that may have its topic, or lose it
        or what it had before.
        """
        claimants = self._claimants.setdefault(namespace, {})
        before = claimants.pop(name, None)
        now = None if document is None else _claimant(document)
        if now is not None:
            claimants[name] = now
        elif not claimants:
            del self._claimants[namespace]
        claims = {each.topic for each in (before, now) if each is not None}
        return [
            claimant.name
            for claimant in claimants.values()
            if claimant.topic in claims and claimant.name != name
        ]

    def of_cluster(self, namespace: str, cluster: str) -> list[str]:
        """The Topics of a StreamCluster."""
        claimants = self._claimants.get(namespace, {}).values()
        return [claimant.name for claimant in claimants if claimant.topic[0] == cluster]

    def holder(self, namespace: str, name: str) -> str | None:
        """The older Topic that has what this one names; None: it has it itself, or is not known."""
        return _holder(name, self._claimants.get(namespace, {}).values())


def holder_of(name: str, listed: Iterable[Document]) -> str | None:
    """The same, by all Topics of the namespace."""
    return _holder(name, map(_claimant, listed))


def _holder(name: str, claimants: Iterable[_Claimant]) -> str | None:
    by_name = {claimant.name: claimant for claimant in claimants}
    own = by_name.get(name)
    if own is None:
        return None
    first = min(each for each in by_name.values() if each.topic == own.topic)
    return None if first is own else first.name


def _claimant(document: Document) -> _Claimant:
    metadata, spec = document["metadata"], document.get("spec") or {}
    name = metadata["name"]
    return _Claimant(
        created=metadata.get("creationTimestamp", ""),
        uid=metadata["uid"],
        name=name,
        topic=(str(spec.get("cluster", "")), str(spec.get("topicName") or name)),
    )
