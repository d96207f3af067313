"""The connections to a ring's brokers: a client for each is kept, as long as its pod is there."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from tailrace.aio import Client


class BrokerClients:
    """Of the ring whose broker `ordinal` is at `url_of(ordinal)`; for one event loop."""

    def __init__(self, url_of: Callable[[int], str], *, timeout_s: float) -> None:
        self._url_of = url_of
        self._timeout_s = timeout_s
        self._secret: str | None = None
        self._clients: dict[int, tuple[str, Client]] = {}  # with the uid of the broker's pod
        self._retired: list[Client] = []  # of pods that are gone, until nobody asks any more
        self._asking_count = 0
        self._is_gone = False

    def of(self, ordinal: int, uid: str = "") -> Client:
        """The one that is kept; it belongs to a pod, since the next has another address."""
        known = self._clients.get(ordinal)
        if known is None:
            client = Client(
                self._url_of(ordinal), timeout_s=self._timeout_s, token=self._secret or None
            )
            known = self._clients[ordinal] = (uid, client)
        return known[1]

    async def know_secret(self, secret: str | None) -> None:
        """The secret that brokers get from now on."""
        if secret != self._secret:
            self._secret = secret
            await self._retire_all()

    async def forget_others(self, pods: Mapping[int, str]) -> None:
        """Close the clients of pods that are gone; `pods`: uids by ordinal of those that are."""
        for ordinal, (uid, client) in list(self._clients.items()):
            if uid != pods.get(ordinal):
                del self._clients[ordinal]
                self._retired.append(client)
        await self._close_retired()

    async def close(self) -> None:
        """Close all, when nobody waits for an answer; what is asked now is the last."""
        self._is_gone = True
        await self._retire_all()

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[None]:
        """No client is closed within: one that is used after that would be open for ever."""
        self._asking_count += 1
        try:
            yield
        finally:
            self._asking_count -= 1
            if self._is_gone:
                await self._retire_all()
            await self._close_retired()

    async def _retire_all(self) -> None:
        self._retired += [client for _, client in self._clients.values()]
        self._clients.clear()
        await self._close_retired()

    async def _close_retired(self) -> None:
        while self._retired and not self._asking_count:
            await self._retired.pop().close()
