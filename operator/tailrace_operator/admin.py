"""The only calls of brokers: what their ring is, founding it, and its topics, over `tailrace.aio`.

A `RingAdmin` keeps a client for each broker open. Whatever goes wrong is a RingError; a broker that
does not answer is no error, it is not among those that did.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

from pydantic.alias_generators import to_snake

from tailrace.aio import Client
from tailrace.errors import ConnectionFailedError, ProblemError, TailraceError, TopicNotFoundError
from tailrace.requests import NewTopicSettings, TopicSettings
from tailrace.ring_values import RangeDetails, Registration, RingDetails
from tailrace.values import PartitionDetails, TopicDetails, to_document
from tailrace_operator.observed import Broker, Document, LiveTopic, Ring

# Founding waits until every broker has it on its disk.
FOUND_TIMES_LONGER = 4
_NOT_SETTINGS = frozenset({"name", "id", "partitions", "copies"})
_OUT_OF_SERVICE = ("leaderless", "waiting")


class RingError(Exception):
    """The ring refused or did not answer; `retriable`: it may do so later, nothing is wrong."""

    def __init__(self, message: str, *, retriable: bool) -> None:
        super().__init__(message)
        self.retriable = retriable


class RingAdmin:
    """Of the ring whose broker `ordinal` is at `url_of(ordinal)`; for one event loop."""

    def __init__(self, url_of: Callable[[int], str], *, timeout_s: float) -> None:
        self._url_of = url_of
        self._timeout_s = timeout_s
        self._clients: dict[int, tuple[str, Client]] = {}  # with the uid of the broker's pod
        self._secret: str | None = None
        self._version: tuple[object, str] | None = None  # of these processes
        self._ready: list[int] = []  # ordinals, as last seen
        self._retired: list[Client] = []  # of pods that are gone, until nobody asks any more
        self._asking_count = 0
        self._is_gone = False
        self.is_observed = False

    @property
    def is_ready(self) -> bool:
        """Whether any broker served when the ring was observed last."""
        return bool(self._ready)

    async def close(self, *, for_good: bool = False) -> None:
        """Close the connections, when nobody waits for an answer; a later call opens them again.

        `for_good`: what is asked now is the last.
        """
        self._is_gone = self._is_gone or for_good
        self._retired += [client for _, client in self._clients.values()]
        self._clients.clear()
        await self._close_retired()

    async def know_secret(self, secret: str | None) -> None:
        """What the brokers are told from now on by whom wants to change the ring."""
        if secret != self._secret:
            self._secret = secret
            await self.close()

    async def observe(self, pods: Mapping[int, str]) -> Ring | None:
        """The ring as its brokers tell; `pods`: their uid by ordinal. None: no broker answers."""
        await self._forget_others(pods)
        found: dict[int, tuple[RingDetails, bool]] = {}
        async with asyncio.TaskGroup() as tasks:
            for ordinal, uid in pods.items():
                tasks.create_task(self._ask(ordinal, self._client(ordinal, uid), found))
        self._ready = sorted(ordinal for ordinal, (_, is_ready) in found.items() if is_ready)
        self.is_observed = True
        if not found:
            return None
        best = max((ring for ring, _ in found.values()), key=_progress)
        brokers = tuple(Broker(ordinal, ring.state) for ordinal, (ring, _) in sorted(found.items()))
        return _ring(best, brokers, await self._version_of(best))

    async def found(self, broker_count: int) -> str:
        """The id of the ring that is founded now, or was before with as many brokers."""
        async with _translated(self._timeout_s * FOUND_TIMES_LONGER):
            client = self._client(0).twin(timeout_s=self._timeout_s * FOUND_TIMES_LONGER)
            async with client:
                ring = await client.found(broker_count)
        if ring.cluster_id is None:
            raise RingError("the brokers were told to found a ring, and have none", retriable=True)
        return ring.cluster_id

    async def topic(self, name: str) -> LiveTopic | None:
        """None: there is none of this name."""
        with suppress(TopicNotFoundError):
            async with self._asked() as client:
                return _live(await client.topic(name))
        return None

    async def create_topic(self, name: str, settings: Mapping[str, Any]) -> None:
        """Safe to repeat; settings by their names in the API's JSON."""
        async with self._asked() as client:
            await client.create_topic(name, **cast(NewTopicSettings, _arguments(settings)))

    async def alter_topic(self, name: str, settings: Mapping[str, Any]) -> None:
        """Make these settings others."""
        async with self._asked() as client:
            await client.alter_topic(name, **cast(TopicSettings, _arguments(settings)))

    async def delete_topic(self, name: str) -> None:
        """Done when it is gone already."""
        with suppress(TopicNotFoundError):
            async with self._asked() as client:
                await client.delete_topic(name)

    def _client(self, ordinal: int, uid: str | None = None) -> Client:
        """The one that is kept; it belongs to a pod, since the next has another address."""
        known = self._clients.get(ordinal)
        if known is None:
            client = Client(
                self._url_of(ordinal), timeout_s=self._timeout_s, token=self._secret or None
            )
            known = self._clients[ordinal] = (uid or "", client)
        return known[1]

    async def _forget_others(self, pods: Mapping[int, str]) -> None:
        """Close the clients of pods that are gone."""
        for ordinal, (uid, client) in list(self._clients.items()):
            if uid != pods.get(ordinal):
                del self._clients[ordinal]
                self._retired.append(client)
        await self._close_retired()

    async def _close_retired(self) -> None:
        """A client that is used again after it was closed would be open for ever."""
        while self._retired and not self._asking_count:
            await self._retired.pop().close()

    @asynccontextmanager
    async def _asked(self) -> AsyncIterator[Client]:
        """A broker that serves, to ask it something within the time for that; RingError.

        Not for what only broker 0 is asked.
        """
        self._asking_count += 1
        try:
            client = await self._ready_client()
            async with _translated(self._timeout_s):
                yield client
        finally:
            self._asking_count -= 1
            if self._is_gone:
                await self.close()
            await self._close_retired()

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
        processes = tuple((each.ordinal, each.registration) for each in ring.registrations)
        if not self._ready:
            return None
        if self._version is None or self._version[0] != processes:
            try:
                async with asyncio.timeout(self._timeout_s):
                    status = await self._client(self._ready[0]).brokers()
            except (TailraceError, TimeoutError):
                return None
            self._version = (processes, status.ring.version)
        return self._version[1]

    async def _ready_client(self) -> Client:
        """Of any broker that serves; RingError."""
        for ordinal in self._ready:
            client = self._client(ordinal, self._clients.get(ordinal, ("",))[0])
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
                lambda ordinal: self._url_of(namespace, name, ordinal), timeout_s=self._timeout_s
            )
        return self._admins[key]

    async def forget(self, namespace: str, name: str) -> None:
        """The cluster is gone."""
        admin = self._admins.pop((namespace, name), None)
        if admin is not None:
            await admin.close(for_good=True)

    async def close(self) -> None:
        """All of them."""
        for key in list(self._admins):
            await self.forget(*key)


@asynccontextmanager
async def _translated(timeout_s: float) -> AsyncIterator[None]:
    """What is asked of a broker within has this time, and fails with a RingError.

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


def _progress(ring: RingDetails) -> tuple[bool, int]:
    """Who knows more of what is agreed."""
    return ring.cluster_id is not None, ring.metadata.applied or 0


def _ring(best: RingDetails, brokers: tuple[Broker, ...], version: str | None) -> Ring:
    by_ordinal = {each.ordinal: each for each in best.registrations}
    return Ring(
        cluster_id=best.cluster_id,
        broker_count=best.brokers,
        copies=best.copies,
        version=version,
        metadata_leader=best.metadata.leader,
        leaderless=sum(each.state in _OUT_OF_SERVICE for each in best.ranges),
        under_replicated=sum(_lacks_replicas(each, by_ordinal) for each in best.ranges),
        brokers=brokers,
    )


def _lacks_replicas(one: RangeDetails, by_ordinal: Mapping[int, Registration]) -> bool:
    """As a broker counts for `GET /v1/brokers`, which asks for one that is ready."""
    good = 0
    for each in one.isr:
        registration = by_ordinal.get(each.ordinal)
        good += (
            not each.ghost
            and registration is not None
            and registration.registration == each.registration
            and not registration.fenced
        )
    return one.state != "sealed" and good < len(one.replicas)


def _live(details: TopicDetails) -> LiveTopic:
    document = to_document(details.topic)
    partitions = tuple(map(_partition, details.partition_details))
    return LiveTopic(
        id=details.topic.id,
        settings={name: each for name, each in document.items() if name not in _NOT_SETTINGS},
        partition_count=details.topic.partitions,
        partitions=partitions,
        size_bytes=_sum(each.size_bytes for each in details.partition_details),
    )


def _sum(sizes: Iterable[int | None]) -> int | None:
    """Of those that are known; None: not one is."""
    listed = list(sizes)
    known = [each for each in listed if each is not None]
    return sum(known) if known or not listed else None


def _partition(one: PartitionDetails) -> Document:
    return {
        "id": one.partition,
        "leader": one.leader,
        "isr": list(one.isr),
        "highWatermark": one.high_watermark,
        "logEnd": one.log_end,
        "sizeBytes": one.size_bytes,
    }


def _arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """ "retentionMs" -> "retention_ms"."""
    return {to_snake(name): each for name, each in settings.items()}
