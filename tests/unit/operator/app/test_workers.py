"""What workers know of each other's resources; what they do is in tests/integration."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from tailrace_operator.app.pace import Outcome
from tailrace_operator.app.reconcile import Key, PassResult, Reconciler
from tailrace_operator.app.settings import Settings
from tailrace_operator.app.workers import Workers


class Finds:
    """Observes nothing: all but `there` has gone."""

    def __init__(self, *there: str) -> None:
        self.there = there

    async def reconcile(self, key: Key, **_: Any) -> PassResult:
        return PassResult(Outcome.WELL if key.name in self.there else Outcome.GONE)


def topic(name: str, *, created: int) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": "ns",
        "uid": name,
        "creationTimestamp": f"2026-01-01T00:00:{created:02d}Z",
    }
    return {
        "kind": "Topic",
        "metadata": metadata,
        "spec": {"cluster": "events", "topicName": "flights"},
    }


def reported(*, there: tuple[str, ...], notify: Callable[[Workers], None]) -> str | None:
    """Who has the younger one's topic, when all workers have looked."""

    async def scenario() -> str | None:
        async with asyncio.TaskGroup() as tasks:
            kept = tasks.create_task(asyncio.Event().wait())
            working = cast("asyncio.TaskGroup", Started(tasks))
            settings = Settings(
                waiting_seconds=1, resync_seconds=1000, ring_seconds=1000, retry_seconds_max=1
            )
            workers = Workers(working, cast("Reconciler", Finds(*there)), settings)
            notify(workers)
            for _ in range(10):
                await asyncio.sleep(0)
            holder = workers.taken_by(Key("Topic", "ns", "younger"), None)
            cast("Started", working).end()
            kept.cancel()
        return holder

    return asyncio.run(scenario())


class Started:
    """A TaskGroup whose tasks can be ended."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._started: list[asyncio.Task[Any]] = []

    def create_task(self, work: Any, *, name: str) -> None:
        self._started.append(self._tasks.create_task(work, name=name))

    def end(self) -> None:
        for each in self._started:
            each.cancel()


def both(workers: Workers) -> None:
    workers.saw(topic("older", created=1), is_deleted=False)
    workers.saw(topic("younger", created=2), is_deleted=False)


def test_the_older_resource_has_the_topic() -> None:
    assert reported(there=("older", "younger"), notify=both) == "older"


def test_a_resource_that_went_without_being_reported_of_has_nothing() -> None:
    assert reported(there=("younger",), notify=both) is None
