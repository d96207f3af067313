"""One worker for each resource: it looks, waits, and looks again; watching only wakes it.

A worker ends when its resource is gone; none waits for another.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tailrace_operator.names import PAUSED
from tailrace_operator.observed import Document
from tailrace_operator.pace import Outcome, Pace
from tailrace_operator.reconcile import Key, Reconciler

_INSTANCE_LABEL = "app.kubernetes.io/instance"


@dataclass(frozen=True, slots=True)
class Intervals:
    """In seconds; see the settings of these names."""

    waiting_s: float
    resync_s: float
    retry_s_max: float


@dataclass(slots=True)
class _Worker:
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    seen: object = None  # what its resource said last that a worker has to know of


@dataclass(frozen=True, order=True, slots=True)
class _Claim:
    """A Topic's claim to a topic of a ring: the smallest has it."""

    created: str
    uid: str
    name: str = field(compare=False)
    place: tuple[str, str] = field(compare=False)  # cluster, topic


class Workers:
    """All workers, in `tasks`; fed by `saw`."""

    def __init__(
        self, tasks: asyncio.TaskGroup, reconciler: Reconciler, intervals: Intervals
    ) -> None:
        self._tasks = tasks
        self._reconciler = reconciler
        self._intervals = intervals
        self._workers: dict[Key, _Worker] = {}
        self._claims: dict[str, dict[str, _Claim]] = {}  # by namespace and resource
        self._ring_states: dict[Key, object] = {}

    def saw(self, document: Document, *, is_deleted: bool = False) -> None:
        """A StreamCluster or Topic as it was told by the API."""
        metadata = document["metadata"]
        key = Key(document["kind"], metadata["namespace"], metadata["name"])
        worker = self._workers.get(key)
        if worker is None:
            if is_deleted:
                return
            worker = self._workers[key] = _Worker()
            self._tasks.create_task(self._work(key, worker), name=" ".join(key))
        seen = None if is_deleted else _fingerprint(document)
        if seen != worker.seen:  # else it is our own report
            worker.seen = seen
            worker.wake.set()
            if key.kind == "Topic":
                self._claimed(key, document, is_deleted=is_deleted)
        if key.kind == "StreamCluster":
            self._saw_state(key, document, is_deleted=is_deleted)

    def saw_child(self, document: Document) -> None:
        """An object that belongs to a StreamCluster has changed."""
        metadata = document["metadata"]
        name = (metadata.get("labels") or {}).get(_INSTANCE_LABEL, "")
        self._wake(Key("StreamCluster", metadata["namespace"], name))

    def taken_by(self, key: Key, listed: list[Document] | None) -> str | None:
        """The name of an older Topic of the same topic; by `listed`, or those that were told."""
        if listed is None:
            claims = self._claims.get(key.namespace, {})
        else:
            claims = {each["metadata"]["name"]: _claim(each) for each in listed}
        own = claims.get(key.name)
        if own is None:
            return None
        first = min(each for each in claims.values() if each.place == own.place)
        return None if first.name == own.name else first.name

    def _wake(self, key: Key) -> None:
        worker = self._workers.get(key)
        if worker is not None:
            worker.wake.set()

    def _claimed(self, key: Key, document: Document, *, is_deleted: bool) -> None:
        """Others may have a topic now that was taken, or lose it."""
        claims = self._claims.setdefault(key.namespace, {})
        before = claims.pop(key.name, None)
        now = None if is_deleted else _claim(document)
        if now is not None:
            claims[key.name] = now
        places = {each.place for each in (before, now) if each is not None}
        for each in claims.values():
            if each.place in places and each.name != key.name:
                self._wake(Key("Topic", key.namespace, each.name))

    def _saw_state(self, key: Key, document: Document, *, is_deleted: bool) -> None:
        """Its Topics wait for a ring, and have to know when there is none any more."""
        state = "gone" if is_deleted else _ring_state(document)
        if self._ring_states.get(key) == state:
            return
        self._ring_states[key] = state
        if is_deleted:
            del self._ring_states[key]
        for each in self._claims.get(key.namespace, {}).values():
            if each.place[0] == key.name:
                self._wake(Key("Topic", key.namespace, each.name))

    async def _work(self, key: Key, worker: _Worker) -> None:
        intervals = self._intervals
        pace = Pace(intervals.waiting_s, intervals.resync_s, intervals.retry_s_max)
        while True:
            worker.wake.clear()
            look = await self._reconciler.look(
                key,
                failure_count=pace.failure_count,
                taken_by=lambda listed: self.taken_by(key, listed),
            )
            if look.outcome is Outcome.GONE and not worker.wake.is_set():
                break
            wait_s = pace.next_s(look.outcome, look.state, time.monotonic())
            rest_s = pace.rest_s(look.outcome)
            await asyncio.sleep(rest_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s - rest_s):
                    await worker.wake.wait()
        del self._workers[key]


def _fingerprint(document: Document) -> object:
    """All of a resource that its worker acts on."""
    metadata = document["metadata"]
    return (
        metadata["uid"],
        metadata.get("generation"),
        (metadata.get("annotations") or {}).get(PAUSED),
        metadata.get("deletionTimestamp"),
        tuple(metadata.get("finalizers") or ()),
    )


def _ring_state(document: Document) -> object:
    """All of a StreamCluster that its Topics wait for."""
    status: Mapping[str, Any] = document.get("status") or {}
    conditions = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    return (document["metadata"]["uid"], status.get("clusterId"), conditions.get("Ready"))


def _claim(document: Document) -> _Claim:
    metadata, spec = document["metadata"], document.get("spec") or {}
    name = metadata["name"]
    return _Claim(
        created=metadata.get("creationTimestamp", ""),
        uid=metadata["uid"],
        name=name,
        place=(str(spec.get("cluster", "")), str(spec.get("topicName") or name)),
    )
