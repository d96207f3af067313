"""All calls of brokers: the ring's state, its bootstrap and its topics, over `tailrace.aio`.

Whatever goes wrong is a RingError; a broker that does not answer is no error, it is not among those
that did. `answers.py` says what the answers mean, `clients.py` keeps the connections.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Literal, cast

from tailrace.aio import Client
from tailrace.errors import ConnectionFailedError, ProblemError, TailraceError, TopicNotFoundError
from tailrace.protocol.requests import TopicSettings
from tailrace.protocol.ring_values import RingDetails
from tailrace_operator.plan.observed import Broker, LiveTopic, Ring
from tailrace_operator.ring.answers import (
    arguments,
    live_topic,
    plan_text,
    ring_of,
    state_in,
    step_text,
    together,
)
from tailrace_operator.ring.clients import BrokerClients

# `ring found` waits until every broker has it on its disk.
FOUND_TIMES_LONGER = 4
# A step waits until leaders have stopped, and goes back when that takes too long.
STEP_TIMES_LONGER = 4


class RingError(Exception):
    """The ring refused or did not answer; `retriable`: it may do so later, nothing is wrong."""

    def __init__(self, message: str, *, retriable: bool) -> None:
        super().__init__(message)
        self.retriable = retriable


class RingAdmin:
    """Of the ring whose broker `ordinal` is at `url_of(ordinal)`; for one event loop."""

    def __init__(self, url_of: Callable[[int], str], *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._clients = BrokerClients(url_of, timeout_s=timeout_s)
        self._version: tuple[object, str] | None = None  # of these processes
        self._ready: list[int] = []  # ordinals, as last seen
        self.ring: Ring | None = None  # as last seen
        self.is_observed = False

    @property
    def is_ready(self) -> bool:
        """Return whether any broker served when the ring was observed last."""
        return bool(self._ready)

    async def close(self) -> None:
        """Close it: requests under way are the last."""
        await self._clients.close()

    async def know_secret(self, secret: str | None) -> None:
        """The secret of the calls that change the ring, from now on."""
        await self._clients.know_secret(secret)

    async def observe(self, pods: Mapping[int, str], cluster_id: str | None) -> Ring | None:
        """The ring as its brokers report it, or None if none answers. `pods`: uid by ordinal."""
        await self._clients.forget_others(pods)
        found: dict[int, tuple[RingDetails, bool]] = {}
        async with asyncio.TaskGroup() as tasks:
            for ordinal, uid in pods.items():
                tasks.create_task(self._ask(ordinal, self._clients.of(ordinal, uid), found))
        self._ready = sorted(ordinal for ordinal, (_, is_ready) in found.items() if is_ready)
        self.is_observed = True
        self.ring = await self._ring_of(found, cluster_id)
        return self.ring

    async def _ring_of(
        self, found: Mapping[int, tuple[RingDetails, bool]], cluster_id: str | None
    ) -> Ring | None:
        """What they say together."""
        if not found:
            return None
        best = together([ring for ring, _ in found.values()], cluster_id)
        brokers = tuple(
            Broker(ordinal, state_in(best, ring)) for ordinal, (ring, _) in sorted(found.items())
        )
        return ring_of(best, brokers, await self._version_of(best))

    async def has_moved(self) -> bool:
        """Return whether a broker that served says something else of the ranges than was seen.

        One is asked, another each time. A ring that did not serve is observed soon anyway.
        """
        if self.ring is None or not self._ready:
            return False
        ordinal = self._ready.pop(0)
        self._ready.append(ordinal)
        async with self._clients.in_use():
            with suppress(TailraceError, TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    said = ring_of(await self._clients.of(ordinal).ring(), (), None)
                    return _copies_of(said) != _copies_of(self.ring)
        return True

    async def found(self, broker_count: int) -> str:
        """The id of the ring that is founded now, or was before with as many brokers."""
        async with _translated(self._timeout_s * FOUND_TIMES_LONGER):
            client = self._clients.of(0).twin(timeout_s=self._timeout_s * FOUND_TIMES_LONGER)
            async with client:
                ring = await client.found(broker_count)
        if ring.cluster_id is None:
            raise RingError("the brokers were asked to found a ring, and have none", retriable=True)
        return ring.cluster_id

    async def plan(self, broker_count: int) -> str | None:
        """What it would go through, for people; None: no broker can say it now."""
        with suppress(RingError):
            async with self._asked() as client:
                return plan_text(await client.ring_plan(broker_count))
        return None

    async def step(self, kind: Literal["grow", "shrink"], brokers_before: int) -> str:
        """Have the ring take a step; what it cost, for people."""
        timeout_s = self._timeout_s * STEP_TIMES_LONGER
        async with self._clients.in_use():
            client = (await self._ready_client()).twin(timeout_s=timeout_s)
            async with _translated(timeout_s), client:
                return step_text(await client.step(kind, brokers_before))

    async def retire(self, ordinal: int) -> None:
        """Have the ring do without the broker, which has no part of it any more."""
        async with self._asked() as client:
            await client.retire(ordinal)

    async def topic(self, name: str) -> LiveTopic | None:
        """None: there is none of this name."""
        with suppress(TopicNotFoundError):
            async with self._asked() as client:
                return live_topic(await client.topic(name))
        return None

    async def create_topic(self, name: str, settings: Mapping[str, Any]) -> None:
        """Safe to repeat; settings by their names in the API's JSON."""
        async with self._asked() as client:
            await client.create_topic(name, **cast(TopicSettings, arguments(settings)))

    async def alter_topic(self, name: str, settings: Mapping[str, Any]) -> None:
        """Change these settings."""
        async with self._asked() as client:
            await client.alter_topic(name, **cast(TopicSettings, arguments(settings)))

    async def delete_topic(self, name: str) -> None:
        """Done when it is gone already."""
        with suppress(TopicNotFoundError):
            async with self._asked() as client:
                await client.delete_topic(name)

    @asynccontextmanager
    async def _asked(self) -> AsyncIterator[Client]:
        """A broker that serves, to ask it something within the time for that; RingError.

        Not for what only broker 0 is asked.
        """
        async with self._clients.in_use():
            client = await self._ready_client()
            async with _translated(self._timeout_s):
                yield client

    async def _ask(
        self, ordinal: int, client: Client, found: dict[int, tuple[RingDetails, bool]]
    ) -> None:
        """One broker; nothing is found when it does not answer."""
        with suppress(TailraceError, TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                ring = await client.ring()
                found[ordinal] = (ring, await client.is_ready())

    async def _version_of(self, ring: RingDetails) -> str | None:
        """Asked once of the processes that a ring consists of."""
        processes = tuple(
            (registration.ordinal, registration.registration) for registration in ring.registrations
        )
        if not self._ready:
            return None
        if self._version is None or self._version[0] != processes:
            try:
                async with asyncio.timeout(self._timeout_s):
                    status = await self._clients.of(self._ready[0]).brokers()
            except (TailraceError, TimeoutError):
                return None
            self._version = (processes, status.ring.version)
        return self._version[1]

    async def _ready_client(self) -> Client:
        """Return a client of any broker that serves; RingError."""
        for ordinal in self._ready:
            client = self._clients.of(ordinal)
            with suppress(TailraceError, TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    if await client.is_ready():
                        return client
        raise RingError("no broker of the ring is ready", retriable=True)


class Rings:
    """The RingAdmin of each StreamCluster, by namespace and name."""

    def __init__(self, url_of: Callable[[str, str, int], str], *, timeout_s: float) -> None:
        self._url_of = url_of
        self._timeout_s = timeout_s
        self._admins: dict[tuple[str, str], RingAdmin] = {}

    def of(self, namespace: str, name: str) -> RingAdmin:
        """The one that is kept."""
        key = (namespace, name)
        if key not in self._admins:
            self._admins[key] = RingAdmin(
                partial(self._url_of, namespace, name), timeout_s=self._timeout_s
            )
        return self._admins[key]

    async def forget(self, namespace: str, name: str) -> None:
        """Forget a cluster that is gone."""
        admin = self._admins.pop((namespace, name), None)
        if admin is not None:
            await admin.close()

    async def close(self) -> None:
        """Close all of them."""
        for key in list(self._admins):
            await self.forget(*key)


def _copies_of(ring: Ring) -> object:
    """What no object of Kubernetes shows."""
    return ring.ranges, ring.sealed_short, ring.sealed_lost


@asynccontextmanager
async def _translated(timeout_s: float) -> AsyncIterator[None]:
    """Bound a request to a broker by this time; it fails with a RingError.

    But for TopicNotFoundError, which is an answer.
    """
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TopicNotFoundError:
        raise
    except TimeoutError as error:
        raise RingError(f"the broker gave no answer in {timeout_s:g} s", retriable=True) from error
    except ConnectionFailedError as error:
        raise RingError(f"{error.url} does not answer ({error.reason})", retriable=True) from error
    except TailraceError as error:
        is_refused = isinstance(error, ProblemError) and not error.retriable
        raise RingError(str(error), retriable=not is_refused) from error
