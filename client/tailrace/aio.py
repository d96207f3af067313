"""The client for asyncio: a pool of `aiohttp`'s connections below `calls` (extra `aio`).

The methods are those of `tailrace.sync`, awaited; any number of tasks may call them at once. As
there nothing is sent twice automatically.
"""

import asyncio
from functools import partial
from io import BytesIO
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from tailrace.calls import groups as group_calls
from tailrace.calls import records as record_calls
from tailrace.calls import ring as ring_calls
from tailrace.calls import topics as topic_calls
from tailrace.calls.exchange import Exchange
from tailrace.extras import require
from tailrace.protocol.endpoint import (
    ClientOptions,
    authorization,
    connection_failed,
    parse_endpoint,
    tls_context,
)
from tailrace.protocol.requests import Answer, Request

require("aiohttp", purpose="tailrace.aio", extra="aio")

import aiohttp  # noqa: E402  # names what is missing first
from aiohttp.connector import Connection  # noqa: E402
from yarl import URL  # noqa: E402

if TYPE_CHECKING:
    from ssl import SSLContext

    from tailrace.aio_reading import Reading
    from tailrace.reading import ReadingParameters
    from tailrace.sync import Client as SyncClient

# A client's connections to its broker; a call more waits for one of them.
CONNECTIONS_MAX = 100
PIECE_BYTES = 256 * 1024
HEADER_BYTES_MAX = 1 << 20  # start offsets of many partitions
_NOT_CONNECTED = (
    aiohttp.ClientConnectorError,
    aiohttp.ClientConnectorCertificateError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.InvalidURL,
)


class Client:
    """One broker at `url` (http[s]://host:port); connects when first used. ValueError: a bad URL.

    `token` goes with each request as `Authorization: Bearer`; https trusts the certificates of
    `ca_file` (PEM), without it those of the system. Every method raises ConnectionFailedError when
    no broker answers within `timeout_s` (of each wait on the socket) and ProblemError when it
    refuses. For one event loop.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 30.0,
        token: str | None = None,
        ca_file: str | None = None,
    ) -> None:
        endpoint = parse_endpoint(url)
        self.url = endpoint.url
        self._options: ClientOptions = {"timeout_s": timeout_s, "token": token, "ca_file": ca_file}
        connect = partial(
            ConnectionPool,
            timeout_s=timeout_s,
            headers=authorization(token),
            context=tls_context(endpoint, ca_file),
        )
        self._exchange = Exchange(endpoint.url, connect)

    @property
    def timeout_s(self) -> float:
        """How long it waits for an answer, or any other step of a request."""
        return self._options["timeout_s"]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections, what waits on them fails; a later call opens one again."""
        await self._exchange.close()

    def twin(self, url: str | None = None, *, timeout_s: float | None = None) -> Self:
        """A client like this one with connections of its own, to another broker of the ring."""
        options = self._options
        if timeout_s is not None:
            options = {**options, "timeout_s": timeout_s}
        return type(self)(url or self.url, **options)

    is_ready = topic_calls.is_ready
    topics = topic_calls.topics
    create_topic = topic_calls.create_topic
    topic = topic_calls.topic
    alter_topic = topic_calls.alter_topic
    delete_topic = topic_calls.delete_topic
    accept_partition_loss = topic_calls.accept_partition_loss
    deleted_topics = topic_calls.deleted_topics
    restore_topic = topic_calls.restore_topic
    brokers = topic_calls.brokers
    offsets = topic_calls.offsets

    produce = record_calls.produce
    produce_lines = record_calls.produce_lines
    produce_records = record_calls.produce_records
    produce_encoded = record_calls.produce_encoded
    read_batches = record_calls.read_batches
    read_lines = record_calls.read_lines
    last_lines = record_calls.last_lines

    register = group_calls.register
    poll = group_calls.poll
    commit = group_calls.commit
    goodbye = group_calls.goodbye
    groups = group_calls.groups
    group = group_calls.group
    reset_group = group_calls.reset_group
    publish_offsets = group_calls.publish_offsets
    delete_group = group_calls.delete_group

    ring = ring_calls.ring
    ring_history = ring_calls.ring_history
    found = ring_calls.found
    step = ring_calls.step
    ring_plan = ring_calls.ring_plan
    retire = ring_calls.retire
    accept_loss = ring_calls.accept_loss
    recover_metadata = ring_calls.recover_metadata

    def read(self, topic: str, **parameters: "Unpack[ReadingParameters]") -> "Reading":
        """Records of all partitions, as Arrow, pandas or Polars: see `tailrace.reading`.

        Nothing is asked before they are wanted.
        """
        from tailrace.aio_reading import Reading

        return Reading(self._sync_twin, topic, **parameters)

    def _sync_twin(self) -> "SyncClient":
        from tailrace.sync import Client as SyncClient

        return SyncClient(self.url, **self._options)


class ConnectionPool:
    """The connections to one broker, as a transport."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float,
        headers: dict[str, str],
        context: "SSLContext | None",
    ) -> None:
        """`headers` go with each request; `context` None: without TLS."""
        self._url = url
        self._timeout_s = timeout_s
        self._headers = headers
        self._context = context
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections, what waits on them fails; a later request opens one again."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def send(self, request: Request) -> Answer:
        """One request, one answer. A connection that failed is not used again."""
        try:
            async with self._opened_session().request(
                request.method,
                URL(self._url + request.target, encoded=True),
                data=_sendable(request.body),
                headers={**request.headers, **self._headers},
                timeout=self._timeout(request),
                allow_redirects=False,
            ) as response:
                body = await response.read()
        except (aiohttp.ClientError, OSError, UnicodeError) as error:  # no host name: the last
            is_connected = not isinstance(error, _NOT_CONNECTED)
            raise connection_failed(
                self._url, error, write_attempted=is_connected and request.method == "POST"
            ) from error
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Answer(response.status, headers, body)

    def _opened_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX, ssl=self._context or True),
                cookie_jar=aiohttp.DummyCookieJar(),
                max_field_size=HEADER_BYTES_MAX,
                middlewares=(_send_once,),
                request_class=_Request,
                skip_auto_headers=("Accept-Encoding", "Content-Type", "User-Agent"),
            )
        return self._session

    def _timeout(self, request: Request) -> aiohttp.ClientTimeout:
        """Of each wait; aiohttp has none for the taking of a body, so that both share one."""
        timeout_s = self._timeout_s
        answer_s = timeout_s + request.wait_ms / 1000
        return aiohttp.ClientTimeout(
            total=timeout_s + answer_s if request.body else None,
            sock_connect=timeout_s,
            sock_read=answer_s,
        )


def _sendable(body: bytes) -> bytes | BytesIO | None:
    """A large body goes in pieces, so that other tasks have their turn."""
    return BytesIO(body) if len(body) > PIECE_BYTES else body or None


class _LostConnectionError(aiohttp.ClientError):
    """A connection ended before its answer came."""


class _Request(aiohttp.ClientRequest):
    """Knows its connection."""

    transport: asyncio.Transport | None = None

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        self.transport = conn.transport
        return await super().send(conn)


async def _send_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Keep aiohttp from repeating what was perhaps done, as it does but for POST; and from waiting
    for a peer to take the rest of a request that has failed.
    """
    assert isinstance(request, _Request), "the session makes no others"
    try:
        return await handler(request)
    except _NOT_CONNECTED:
        raise
    except BaseException as error:
        if request.transport is not None:
            request.transport.abort()
        if isinstance(error, aiohttp.ClientOSError | aiohttp.ServerDisconnectedError):
            reason = getattr(error, "strerror", None) or str(error)
            raise _LostConnectionError(reason) from error
        raise
