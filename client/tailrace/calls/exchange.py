"""One request and its answer, from the broker that leads what is wanted; any transport."""

from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

from tailrace.errors import ConnectionFailedError
from tailrace.protocol.requests import Answer, Request
from tailrace.sansio.leaders import Leaders
from tailrace.sansio.routing import Routing

P = ParamSpec("P")
T = TypeVar("T")


class Transport(Protocol):
    """Connections to one broker. Those of the blocking client never suspend."""

    async def send(self, request: Request) -> Answer:
        """Send one request once. ConnectionFailedError: there is no answer."""
        ...

    async def close(self) -> None:
        """Close the connections; a later request opens one again."""
        ...


class Exchange:
    """The brokers of a ring, from the one at `url` on: a transport for each, and who leads what."""

    def __init__(self, url: str, connect: Callable[[str], Transport]) -> None:
        """`connect` makes the transport to a URL; it opens nothing yet."""
        self.routing = Routing(url)
        self._leaders = Leaders(self.routing.contact)
        self._connect = connect
        self._transports: dict[str, Transport] = {}

    async def ask(self, request: Request, *, url: str | None = None) -> Answer:
        """Return the answer of the broker that leads what is wanted; `url`: which to ask first."""
        leaders = self._leaders
        if url is not None and url != self.routing.url:
            leaders = Leaders(self.routing.contact.beginning_at(url))
        hops = leaders.hops(request)
        while True:
            try:
                answer = await self._transport(hops.url).send(hops.request)
            except ConnectionFailedError as error:
                self.routing.mark_unreachable(hops.url)
                if not hops.go_around(error):
                    raise
            else:
                if not hops.go_on(answer):
                    return hops.outcome(answer)

    async def ask_all(self, request: Request, urls: Iterable[str]) -> list[Answer]:
        """Return the successful answers of those brokers that can be reached."""
        answers = []
        for url in urls:
            with suppress(ConnectionFailedError):
                answer = await self._transport(url).send(request)
                if answer.status == 200:
                    answers.append(answer)
        return answers

    async def close(self) -> None:
        """Close all connections; a later request opens one again."""
        transports, self._transports = self._transports, {}
        for transport in transports.values():
            await transport.close()

    def _transport(self, url: str) -> Transport:
        if url not in self._transports:
            self._transports[url] = self._connect(url)
        return self._transports[url]


class Caller(Protocol):
    """A client, as its calls see it."""

    _exchange: Exchange


def blocking(call: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return `call` as a plain function, for a transport that never suspends."""

    @wraps(call)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            call(*args, **kwargs).send(None)
        except StopIteration as returned:
            result: T = returned.value
            return result
        raise AssertionError(f"{call.__name__} suspended over a blocking transport")

    return run
