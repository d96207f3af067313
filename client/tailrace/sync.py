"""The blocking client: keep-alive connections of `http.client` below the calls of `calls`.

Sends nothing twice automatically: errors say by `retriable` and `write_attempted` what a caller may
do; `tailrace.producer` does it. One thread at a time per client.
"""

import http.client
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from selectors import EVENT_READ, DefaultSelector
from socket import socket
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from tailrace.calls import groups as group_calls
from tailrace.calls import records as record_calls
from tailrace.calls import ring as ring_calls
from tailrace.calls import topics as topic_calls
from tailrace.calls.exchange import Exchange, blocking
from tailrace.protocol.endpoint import (
    ClientOptions,
    authorization,
    connection_failed,
    parse_endpoint,
    tls_context,
)
from tailrace.protocol.requests import Answer, Request

if TYPE_CHECKING:
    from ssl import SSLContext

    from tailrace.reading import Reading, ReadingParameters


# UnicodeError: a URL whose host cannot be a name.
_FAILURES = (OSError, http.client.HTTPException, UnicodeError)


class Client:
    """One broker at `url` (http[s]://host:port); connects when first used. ValueError: a bad URL.

    `token` goes with each request as `Authorization: Bearer`; https trusts the certificates of
    `ca_file` (PEM), without it those of the system. Every method raises ConnectionFailedError when
    no broker answers within `timeout_s` (of each wait on the socket) and ProblemError when it
    refuses.
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
            Connection,
            timeout_s=timeout_s,
            headers=authorization(token),
            context=tls_context(endpoint, ca_file),
        )
        self._exchange = Exchange(endpoint.url, connect)

    @property
    def timeout_s(self) -> float:
        """How long it waits for an answer, or any other step of a request."""
        return self._options["timeout_s"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; a later call opens one again."""
        blocking(self._exchange.close)()

    def twin(self, url: str | None = None, *, timeout_s: float | None = None) -> Self:
        """A client like this one with a connection of its own, to another broker of the ring."""
        options = self._options
        if timeout_s is not None:
            options = {**options, "timeout_s": timeout_s}
        return type(self)(url or self.url, **options)

    is_ready = blocking(topic_calls.is_ready)
    topics = blocking(topic_calls.topics)
    create_topic = blocking(topic_calls.create_topic)
    topic = blocking(topic_calls.topic)
    alter_topic = blocking(topic_calls.alter_topic)
    delete_topic = blocking(topic_calls.delete_topic)
    accept_partition_loss = blocking(topic_calls.accept_partition_loss)
    deleted_topics = blocking(topic_calls.deleted_topics)
    restore_topic = blocking(topic_calls.restore_topic)
    brokers = blocking(topic_calls.brokers)
    offsets = blocking(topic_calls.offsets)

    produce = blocking(record_calls.produce)
    produce_lines = blocking(record_calls.produce_lines)
    produce_records = blocking(record_calls.produce_records)
    produce_encoded = blocking(record_calls.produce_encoded)
    read_batches = blocking(record_calls.read_batches)
    read_lines = blocking(record_calls.read_lines)
    last_lines = blocking(record_calls.last_lines)

    register = blocking(group_calls.register)
    poll = blocking(group_calls.poll)
    commit = blocking(group_calls.commit)
    goodbye = blocking(group_calls.goodbye)
    groups = blocking(group_calls.groups)
    group = blocking(group_calls.group)
    reset_group = blocking(group_calls.reset_group)
    publish_offsets = blocking(group_calls.publish_offsets)
    delete_group = blocking(group_calls.delete_group)

    ring = blocking(ring_calls.ring)
    ring_history = blocking(ring_calls.ring_history)
    found = blocking(ring_calls.found)
    step = blocking(ring_calls.step)
    ring_plan = blocking(ring_calls.ring_plan)
    retire = blocking(ring_calls.retire)
    accept_loss = blocking(ring_calls.accept_loss)
    recover_metadata = blocking(ring_calls.recover_metadata)

    def read(self, topic: str, **parameters: "Unpack[ReadingParameters]") -> "Reading":
        """Records of all partitions, as Arrow, pandas or Polars: see `tailrace.reading`.

        Nothing is asked before they are wanted.
        """
        from tailrace.reading import Reading

        return Reading(self, topic, **parameters)


class Connection:
    """A keep-alive connection to one broker, the blocking transport: `send` never suspends."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float,
        headers: dict[str, str],
        context: "SSLContext | None",
    ) -> None:
        """`headers` go with each request; `context` None: without TLS."""
        endpoint = parse_endpoint(url)
        self._url = endpoint.url
        self._timeout_s = timeout_s
        self._headers = headers
        kind: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
        if context is not None:
            kind = partial(http.client.HTTPSConnection, context=context)
        # http.client sets TCP_NODELAY itself.
        self._new_connection = partial(kind, endpoint.host, endpoint.port, timeout=timeout_s)
        self._connection = self._new_connection()

    async def close(self) -> None:
        """Close the connection; a later request opens it again."""
        self._close()

    async def send(self, request: Request) -> Answer:
        """One request, one answer. A failure closes the connection, so the next call opens one."""
        is_connected = is_sent = False
        try:
            self._connect()
            is_connected = True
            self._set_timeout(request.wait_ms)
            # A broker that refuses a large body answers before it has read it: read that answer.
            with suppress(BrokenPipeError):
                headers = {**request.headers, **self._headers}
                self._connection.request(request.method, request.target, request.body, headers)
                is_sent = True
            response = self._connection.getresponse()
            answered = {name.lower(): value for name, value in response.getheaders()}
            body = response.read()
            if not is_sent:
                self._connection.close()  # the broker has closed its end
            return Answer(response.status, answered, body)
        except _FAILURES as error:
            self._close()
            raise connection_failed(
                self._url, error, write_attempted=is_connected and request.method == "POST"
            ) from error
        except BaseException:  # half an exchange, which the next one must not meet
            self._close()
            raise

    def _close(self) -> None:
        self._connection.close()
        # A request that was interrupted, by Ctrl-C, may have left its head to be sent.
        self._connection = self._new_connection()

    def _connect(self) -> None:
        """Connect again when the broker has closed the connection, as it does with idle ones."""
        if self._connection.sock is not None and _is_readable(self._connection.sock):
            self._connection.close()  # nothing was asked, so what is there to read is its end
        if self._connection.sock is None:
            self._connection.connect()

    def _set_timeout(self, wait_ms: int) -> None:
        """Of each wait for this request: what the broker waits for records comes on top."""
        timeout_s = self._timeout_s
        if wait_ms:
            timeout_s += wait_ms / 1000
        if self._connection.sock.gettimeout() != timeout_s:
            self._connection.sock.settimeout(timeout_s)


def _is_readable(connected: socket) -> bool:
    """Whether a read would not wait."""
    with DefaultSelector() as selector:
        selector.register(connected, EVENT_READ)
        return bool(selector.select(0))
