"""One worker for each resource: a pass, a wait, the next pass; watching only wakes it.

A worker ends when its resource is gone; none waits for another.
"""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field

from tailrace_operator.app.pace import Outcome, Pace
from tailrace_operator.app.reconcile import Key, Reconciler
from tailrace_operator.app.settings import Settings
from tailrace_operator.plan.conditions import by_type
from tailrace_operator.plan.names import INSTANCE_LABEL, PAUSED
from tailrace_operator.plan.observed import Document
from tailrace_operator.plan.topic_names import TopicNames, holder_of

# Then the ring is asked between two passes; else the next pass is soon, or may not be too soon.
_OBSERVED = (Outcome.WELL, Outcome.WAITING)
_GONE = "gone"  # the state of a ring whose StreamCluster is not there


@dataclass(slots=True)
class _Worker:
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    seen: object = None  # what its resource said last that a worker has to know of


class Workers:
    """All workers, in `tasks`; fed by `saw`."""

    def __init__(
        self, tasks: asyncio.TaskGroup, reconciler: Reconciler, settings: Settings
    ) -> None:
        self._tasks = tasks
        self._reconciler = reconciler
        self._settings = settings
        self._workers: dict[Key, _Worker] = {}
        self._topic_names = TopicNames()
        self._ring_states: dict[Key, object] = {}

    def saw(self, document: Document, *, is_deleted: bool) -> None:
        """A StreamCluster or Topic as the API reported it."""
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
                self._note(key, None if is_deleted else document)
        if key.kind == "StreamCluster":
            self._saw_state(key, _GONE if is_deleted else _ring_state(document))

    def saw_child(self, document: Document) -> None:
        """An object that belongs to a StreamCluster has changed."""
        metadata = document["metadata"]
        name = (metadata.get("labels") or {}).get(INSTANCE_LABEL, "")
        self._wake(Key("StreamCluster", metadata["namespace"], name))

    def taken_by(self, key: Key, listed: list[Document] | None) -> str | None:
        """The name of an older Topic of the same topic; by `listed`, or the reported ones."""
        if listed is None:
            return self._topic_names.holder(key.namespace, key.name)
        return holder_of(key.name, listed)

    def _wake(self, key: Key) -> None:
        worker = self._workers.get(key)
        if worker is not None:
            worker.wake.set()

    def _note(self, key: Key, document: Document | None) -> None:
        """Others may have a topic now that was taken, or lose it."""
        for name in self._topic_names.note(key.namespace, key.name, document):
            self._wake(Key("Topic", key.namespace, name))

    def _saw_state(self, key: Key, state: object) -> None:
        """Its Topics wait for a ring, and have to know when there is none any more."""
        if self._ring_states.get(key, _GONE) == state:
            return
        self._ring_states[key] = state
        if state == _GONE:
            del self._ring_states[key]
        for name in self._topic_names.of_cluster(key.namespace, key.name):
            self._wake(Key("Topic", key.namespace, name))

    async def _work(self, key: Key, worker: _Worker) -> None:
        pace = Pace(self._settings)
        while True:
            worker.wake.clear()
            result = await self._reconciler.reconcile(
                key,
                failure_count=pace.failure_count,
                taken_by=lambda listed: self.taken_by(key, listed),
            )
            if result.outcome is Outcome.GONE and not worker.wake.is_set():
                break
            wait_s = pace.next_s(result.outcome, result.state, time.monotonic())
            rest_s = pace.rest_s(result.outcome)
            await asyncio.sleep(rest_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s - rest_s):
                    if key.kind == "StreamCluster" and result.outcome in _OBSERVED:
                        await self._until_moved(key, worker)
                    else:
                        await worker.wake.wait()
        del self._workers[key]
        self._gone(key)

    async def _until_moved(self, key: Key, worker: _Worker) -> None:
        """Until the worker is woken, or its ring has changed, which no object shows."""
        while not worker.wake.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.ring_seconds):
                    await worker.wake.wait()
            if not worker.wake.is_set() and await self._reconciler.has_ring_moved(key):
                return

    def _gone(self, key: Key) -> None:
        """A restarted watch does not report earlier deletions."""
        if key.kind == "Topic":
            self._note(key, None)
        else:
            self._saw_state(key, _GONE)


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
    status: Document = document.get("status") or {}
    said = by_type(status)
    conditions = [said.get(each, {}) for each in ("Ready", "Degraded")]
    reasons = [(each.get("status"), each.get("reason")) for each in conditions]
    return (document["metadata"]["uid"], status.get("clusterId"), *reasons)
