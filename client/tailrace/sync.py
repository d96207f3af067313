"""The blocking client: one keep-alive connection of `http.client` around `requests`.

Sends nothing twice by itself: errors say by `retriable` and `write_attempted` what a caller may do;
`tailrace.producer` does it.
One thread at a time per client.
"""

import http.client
from collections.abc import Iterable, Sequence
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from socket import socket
from types import TracebackType
from typing import Self, Unpack
from urllib.parse import urlsplit

from tailrace import requests
from tailrace.errors import ConnectionFailedError
from tailrace.records_binary import encode_records
from tailrace.requests import (
    Answer,
    NewTopicSettings,
    Numbered,
    ReadParameters,
    Request,
    TopicSettings,
)
from tailrace.values import (
    DeletedTopic,
    Fetched,
    PartitionOffsets,
    Produced,
    RingStatus,
    TopicDetails,
    TopicInfo,
)
from tailrace.wire import JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE


class Client:
    """One broker at `url` (http://host:port); connects when first used. ValueError: a bad URL.

    Every method raises ConnectionFailedError when no broker answers within `timeout_s` (of each
    wait on the socket) and ProblemError when it refuses.
    """

    def __init__(self, url: str, *, timeout_s: float = 30.0) -> None:
        host, port = _host_and_port(url)
        self.url = url.rstrip("/")
        # http.client sets TCP_NODELAY itself.
        self._connection = http.client.HTTPConnection(host, port, timeout=timeout_s)

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
        """Close the connection; a later call opens it again."""
        self._connection.close()

    def is_ready(self) -> bool:
        """Whether the broker serves; False also while none answers, for loops that wait."""
        with suppress(ConnectionFailedError):
            return self._exchange(requests.ready_request()).status == 200
        return False

    def topics(self) -> list[TopicInfo]:
        """All topics, sorted by name."""
        return requests.parse_topics(self._exchange(requests.topics_request()))

    def create_topic(self, name: str, **settings: Unpack[NewTopicSettings]) -> TopicInfo:
        """Create, or find with the settings that are given: safe to repeat."""
        request = requests.create_topic_request(name, **settings)
        return requests.parse_topic(self._exchange(request))

    def topic(self, name: str) -> TopicDetails:
        """One topic and its partitions; TopicNotFoundError."""
        return requests.parse_topic_details(self._exchange(requests.topic_request(name)))

    def alter_topic(self, name: str, **settings: Unpack[TopicSettings]) -> TopicInfo:
        """Change what is given, in force at once; records that are stored stay as they are."""
        request = requests.alter_topic_request(name, **settings)
        return requests.parse_topic(self._exchange(request))

    def delete_topic(self, name: str) -> None:
        """With all its records; TopicNotFoundError."""
        requests.parse_deleted(self._exchange(requests.delete_topic_request(name)))

    def deleted_topics(self) -> list[DeletedTopic]:
        """Those that can be restored, the latest deletion first."""
        return requests.parse_deleted_topics(self._exchange(requests.deleted_topics_request()))

    def restore_topic(self, name_or_id: str, *, new_name: str | None = None) -> TopicDetails:
        """Bring a deleted topic back; by its name when no other deleted one had it."""
        request = requests.restore_topic_request(name_or_id, new_name=new_name)
        return requests.parse_topic_details(self._exchange(request))

    def brokers(self) -> RingStatus:
        """The ring, its brokers and their state."""
        return requests.parse_brokers(self._exchange(requests.brokers_request()))

    def offsets(
        self, topics: Iterable[str] = (), timestamp_us: int | None = None
    ) -> list[PartitionOffsets]:
        """Ends and state of each partition of these topics; of all without any.

        With `timestamp_us` also the first offset whose record is not older.
        """
        request = requests.offsets_request(topics, timestamp_us)
        return requests.parse_offsets(self._exchange(request))

    def produce(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | str | None = None,
        **numbered: Unpack[Numbered],
    ) -> Produced:
        """Store one JSON event; on return it is as durable as the topic promises.

        With `producer_id` and `sequence` it is safe to repeat: stored once.
        """
        request = requests.produce_request(
            topic, value, content_type=JSON_CONTENT_TYPE, key=key, **numbered
        )
        return requests.parse_produced(self._exchange(request))[0]

    def produce_lines(
        self,
        topic: str,
        ndjson: bytes,
        *,
        key: bytes | str | None = None,
        **numbered: Unpack[Numbered],
    ) -> Produced:
        """Store one JSON event a line, all of one key, as one batch: all of them or none."""
        request = requests.produce_request(
            topic, ndjson, content_type=NDJSON_CONTENT_TYPE, key=key, **numbered
        )
        return requests.parse_produced(self._exchange(request))[0]

    def produce_records(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps_us: Sequence[int] | None = None,
        **numbered: Unpack[Numbered],
    ) -> list[Produced]:
        """Store records with a key each; one element a partition, in partition order.

        A partition's failure is raised; `write_attempted` is then set when others succeeded.
        """
        return self.produce_encoded(topic, encode_records(keys, values, timestamps_us), **numbered)

    def produce_encoded(
        self, topic: str, body: bytes, **numbered: Unpack[Numbered]
    ) -> list[Produced]:
        """`produce_records` of a records+binary body that is made already."""
        request = requests.produce_records_request(topic, body, **numbered)
        return requests.parse_produced(self._exchange(request))

    def read_batches(
        self,
        topic: str,
        partition: int,
        offset: int | str | None = None,
        *,
        max_bytes: int | None = None,
        **parameters: Unpack[ReadParameters],
    ) -> Fetched:
        """Whole batches from the one that covers `offset`; "latest", -n: n before the end.

        At least one when any is available, else at most `max_bytes` (broker's default 1 MiB).
        Records before `offset` are the caller's to drop. Without offset or time: the earliest.
        """
        request = requests.batches_request(
            topic, partition, offset, max_bytes=max_bytes, **parameters
        )
        return requests.parse_fetched(self._exchange(request))

    def read_lines(
        self,
        topic: str,
        partition: int,
        offset: int | str | None = None,
        *,
        max_records: int | None = None,
        **parameters: Unpack[ReadParameters],
    ) -> Fetched:
        """NDJSON of exactly min(`max_records`, available) records (broker's default 1,000).

        Starts as `read_batches` does. A client's `timeout_s` must be above a `wait_ms`.
        """
        request = requests.lines_request(
            topic, partition, offset, max_records=max_records, **parameters
        )
        return requests.parse_fetched(self._exchange(request))

    def last_lines(self, topic: str, count: int = 1) -> bytes:
        """NDJSON: of the last `count` of each partition, the `count` newest by record time.

        Oldest first; at most 1,000.
        """
        return requests.parse_last_lines(self._exchange(requests.last_lines_request(topic, count)))

    def _exchange(self, request: Request) -> Answer:
        """One request, one answer. A failure closes the connection, so the next call opens one."""
        is_connected = is_sent = False
        try:
            self._connect()
            is_connected = True
            # A broker that refuses a large body answers before it has read it: read that answer.
            with suppress(BrokenPipeError):
                self._connection.request(
                    request.method, request.target, request.body, dict(request.headers)
                )
                is_sent = True
            response = self._connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            body = response.read()
            if not is_sent:
                self._connection.close()  # the broker has closed its end
            return Answer(response.status, headers, body)
        except (
            OSError,
            http.client.HTTPException,
            UnicodeError,
        ) as error:  # no host name: the last
            self._connection.close()
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise ConnectionFailedError(
                self.url, reason, write_attempted=is_connected and request.method == "POST"
            ) from error

    def _connect(self) -> None:
        """Anew when the broker has closed the connection meanwhile: idle ones it does not keep."""
        if self._connection.sock is not None and _is_readable(self._connection.sock):
            self._connection.close()  # nothing was asked, so what is there to read is its end
        if self._connection.sock is None:
            self._connection.connect()


def _host_and_port(url: str) -> tuple[str, int | None]:
    """ValueError: a bad URL."""
    with suppress(ValueError):  # an address that is none, or a port that none can be
        parts = urlsplit(url)
        is_base_url = parts.path in ("", "/") and not parts.query and not parts.fragment
        if parts.scheme == "http" and parts.hostname and is_base_url:
            return parts.hostname, parts.port
    raise ValueError(f'"{url}" is not a broker\'s URL, like http://127.0.0.1:9250')


def _is_readable(connected: socket) -> bool:
    """Whether a read would not wait."""
    with DefaultSelector() as selector:
        selector.register(connected, EVENT_READ)
        return bool(selector.select(0))
