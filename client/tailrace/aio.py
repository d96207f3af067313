"""The client for asyncio: a pool of `aiohttp`'s connections around `requests` (extra `aio`).

The methods are those of `tailrace.sync`, awaited; any number of tasks may call them at once. As
there nothing is sent twice by itself.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, Unpack

from tailrace import ClientOptions
from tailrace.errors import ConnectionFailedError, ProblemError, TailraceError
from tailrace.extras import require
from tailrace.protocol import group_requests, requests, ring_requests
from tailrace.protocol.endpoint import authorization, connection_failed, parse_endpoint, tls_context
from tailrace.protocol.group_requests import Named, PollParameters
from tailrace.protocol.group_values import (
    GroupDetails,
    GroupInfo,
    GroupReset,
    OnNewGroup,
    Polled,
    Registered,
)
from tailrace.protocol.records_binary import Header
from tailrace.protocol.requests import (
    Answer,
    NewTopicSettings,
    Numbered,
    ReadParameters,
    Request,
    TopicSettings,
)
from tailrace.protocol.ring_values import RangeDetails, RingDetails
from tailrace.sansio.leaders import Leaders, leader_urls, merged, newest_lines
from tailrace.sansio.routing import Routing
from tailrace.sansio.scattering import Records, Scattering
from tailrace.values import (
    DeletedTopic,
    Fetched,
    PartitionLoss,
    PartitionOffsets,
    Produced,
    RingStatus,
    TopicDetails,
    TopicInfo,
)
from tailrace.wire import JSON_CONTENT_TYPE, NDJSON_CONTENT_TYPE

require("aiohttp", purpose="tailrace.aio", extra="aio")

import aiohttp  # noqa: E402  # what is missing is told first
from aiohttp.connector import Connection  # noqa: E402
from yarl import URL  # noqa: E402

if TYPE_CHECKING:
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
        self._leaders = Leaders(endpoint.url)
        self._routing = Routing(endpoint.url)
        self._twins: dict[str, Self] = {}  # to other brokers of the ring
        self._options: ClientOptions = {
            "timeout_s": timeout_s,
            "token": token,
            "ca_file": ca_file,
        }
        self._authorization = authorization(token)
        self._tls = tls_context(endpoint, ca_file)
        self._session: aiohttp.ClientSession | None = None

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
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        twins, self._twins = self._twins, {}
        for twin in twins.values():
            await twin.close()

    def twin(self, url: str | None = None, *, timeout_s: float | None = None) -> Self:
        """A client like this one with connections of its own, to another broker of the ring."""
        options = self._options
        if timeout_s is not None:
            options = {**options, "timeout_s": timeout_s}
        return type(self)(url or self.url, **options)

    async def is_ready(self) -> bool:
        """Whether the broker serves; False also while none answers, for loops that wait."""
        with suppress(ConnectionFailedError):
            return (await self._exchange(requests.ready_request())).status == 200
        return False

    async def topics(self) -> list[TopicInfo]:
        """All topics, sorted by name."""
        return requests.parse_topics(await self._exchange(requests.topics_request()))

    async def create_topic(self, name: str, **settings: Unpack[NewTopicSettings]) -> TopicInfo:
        """Create, or find with the settings that are given: safe to repeat."""
        request = requests.create_topic_request(name, **settings)
        return requests.parse_topic(await self._exchange(request))

    async def topic(self, name: str) -> TopicDetails:
        """One topic and its partitions; TopicNotFoundError."""
        request = requests.topic_request(name)
        details = requests.parse_topic_details(await self._exchange(request))
        urls = leader_urls(self.url, details.partition_details)
        others = map(requests.parse_topic_details, await self._at_leaders(request, urls))
        rows = merged(details.partition_details, (other.partition_details for other in others))
        return TopicDetails(details.topic, tuple(rows))

    async def alter_topic(self, name: str, **settings: Unpack[TopicSettings]) -> TopicInfo:
        """Change what is given, in force at once; records that are stored stay as they are."""
        request = requests.alter_topic_request(name, **settings)
        return requests.parse_topic(await self._exchange(request))

    async def delete_topic(self, name: str) -> None:
        """With all its records; TopicNotFoundError."""
        requests.parse_deleted(await self._exchange(requests.delete_topic_request(name)))

    async def accept_partition_loss(
        self, topic: str, partition: int, *, dry_run: bool = False
    ) -> PartitionLoss:
        """Let a partition that has lost its end take events again; what is lost of it."""
        request = requests.accept_partition_loss_request(topic, partition, dry_run=dry_run)
        return requests.parse_partition_loss(await self._exchange(request))

    async def deleted_topics(self) -> list[DeletedTopic]:
        """Those that can be restored, the latest deletion first."""
        return requests.parse_deleted_topics(
            await self._exchange(requests.deleted_topics_request())
        )

    async def restore_topic(self, name_or_id: str, *, new_name: str | None = None) -> TopicDetails:
        """Bring a deleted topic back; by its name when no other deleted one had it."""
        request = requests.restore_topic_request(name_or_id, new_name=new_name)
        return requests.parse_topic_details(await self._exchange(request))

    async def brokers(self) -> RingStatus:
        """The ring, its brokers and their state."""
        return requests.parse_brokers(await self._exchange(requests.brokers_request()))

    async def offsets(
        self, topics: Iterable[str] = (), timestamp_us: int | None = None
    ) -> list[PartitionOffsets]:
        """Ends and state of each partition of these topics; of all without any.

        With `timestamp_us` also the first offset whose record is not older.
        """
        request = requests.offsets_request(topics, timestamp_us)
        listing = requests.parse_offsets(await self._exchange(request))
        others = await self._at_leaders(request, leader_urls(self.url, listing))
        return merged(listing, map(requests.parse_offsets, others))

    async def produce(
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
        return requests.parse_produced(await self._exchange(request))[0]

    async def produce_lines(
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
        return requests.parse_produced(await self._exchange(request))[0]

    async def produce_records(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps_us: Sequence[int] | None = None,
        headers: Sequence[Sequence[Header]] | None = None,
        **numbered: Unpack[Numbered],
    ) -> list[Produced]:
        """Store records with a key each; one element a partition, in partition order.

        `headers`: of each record pairs of a name in UTF-8 and a value. A partition's failure is
        raised; `write_attempted` is then set when others succeeded, which are in `parts`.
        """
        records = Records(keys, values, timestamps_us, headers)
        producer_id = numbered.get("producer_id")
        scattering = Scattering(self._routing, topic, records, producer_id)
        while True:
            for url, body, indices in scattering.requests():
                try:
                    stored = await self._at(url).produce_encoded(topic, body, **numbered)
                except TailraceError as error:
                    scattering.failed(error, indices)
                else:
                    scattering.stored(stored)
            if not scattering.wants_routing:
                return scattering.outcome()
            try:
                ring, details = await self.brokers(), await self.topic(topic)
            except TailraceError as error:
                scattering.cut_by(error)
                raise
            scattering.learn(ring, details, time.monotonic())

    async def produce_encoded(
        self, topic: str, body: bytes, **numbered: Unpack[Numbered]
    ) -> list[Produced]:
        """`produce_records` of a records+binary body that is made already."""
        request = requests.produce_records_request(topic, body, **numbered)
        return requests.parse_produced(await self._exchange(request))

    async def read_batches(
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
        return requests.parse_fetched(await self._exchange(request))

    async def read_lines(
        self,
        topic: str,
        partition: int,
        offset: int | str | None = None,
        *,
        max_records: int | None = None,
        **parameters: Unpack[ReadParameters],
    ) -> Fetched:
        """NDJSON of exactly min(`max_records`, available) records (broker's default 1,000).

        Starts as `read_batches` does.
        """
        request = requests.lines_request(
            topic, partition, offset, max_records=max_records, **parameters
        )
        return requests.parse_fetched(await self._exchange(request))

    async def last_lines(self, topic: str, count: int = 1) -> bytes:
        """NDJSON: of the last `count` of each partition, the `count` newest by record time.

        Oldest first; at most 1,000.
        """
        request = requests.last_lines_request(topic, count)
        try:
            return requests.parse_last_lines(await self._exchange(request))
        except ProblemError as error:
            if error.type != "not-supported":
                raise
        pages = []  # of a ring of several brokers, each partition of its leader
        for each in await self.offsets([topic]):
            if each.readable():
                page = await self.read_lines(topic, each.partition, -count, max_records=count)
                pages.append(page.body)
        return newest_lines(pages, count)

    def read(self, topic: str, **parameters: "Unpack[ReadingParameters]") -> "Reading":
        """Records of all partitions, as Arrow, pandas or Polars: see `tailrace.reading`.

        Nothing is asked before they are wanted.
        """
        from tailrace.aio_reading import Reading

        return Reading(self._sync_twin, topic, **parameters)

    # --- consumers and groups ---

    async def register(
        self,
        consumer_id: str,
        group: str,
        topics: Iterable[str],
        *,
        on_new_group: OnNewGroup | None = None,
        session_ms: int | None = None,
        create_topics: bool | None = None,
        assignment_epoch: int | None = None,
    ) -> Registered:
        """Join a group; safe to repeat with the same values. `tailrace.consumer` does it for you.

        The broker's defaults: startFromLatest, and 120 s. TopicNotFoundError, unless
        `create_topics` has it created. With the `assignment_epoch` that it knows, a consumer shows
        that it lives, and does not join again: ConsumerNotRegisteredError, StaleAssignmentError.
        """
        request = group_requests.register_request(
            consumer_id,
            group,
            topics,
            on_new_group=on_new_group,
            session_ms=session_ms,
            create_topics=create_topics,
            assignment_epoch=assignment_epoch,
        )
        return group_requests.parse_registered(await self._exchange(request))

    async def poll(self, consumer_id: str, **parameters: Unpack[PollParameters]) -> Polled:
        """What the consumer may read now; ConsumerNotRegisteredError, StaleAssignmentError.

        Without `delivery` it confirms what was delivered last. With it safe to repeat: when the
        answer was lost the same records come again.
        """
        request = group_requests.poll_request(consumer_id, **parameters)
        return group_requests.parse_polled(await self._exchange(request))

    async def commit(self, consumer_id: str, **named: Unpack[Named]) -> None:
        """Confirm a delivery, on disk at return; safe to repeat.

        ConsumerNotRegisteredError, StaleAssignmentError, StaleDeliveryError: nothing is committed.
        """
        request = group_requests.commit_request(consumer_id, **named)
        group_requests.parse_done(await self._exchange(request))

    async def goodbye(
        self,
        consumer_id: str,
        *,
        delivery: int | None = None,
        assignment_epoch: int | None = None,
        commit: bool = True,
    ) -> None:
        """Leave the group; with `commit` the named delivery, or else the last one, is confirmed.

        What is not goes to another consumer. ConsumerNotRegisteredError, StaleAssignmentError.
        """
        request = group_requests.goodbye_request(
            consumer_id, delivery=delivery, assignment_epoch=assignment_epoch, commit=commit
        )
        group_requests.parse_done(await self._exchange(request))

    async def groups(self) -> list[GroupInfo]:
        """All groups, sorted by name."""
        return group_requests.parse_groups(await self._exchange(group_requests.groups_request()))

    async def group(self, name: str) -> GroupDetails:
        """One group, its consumers and how far it is in each partition; GroupNotFoundError."""
        return group_requests.parse_group(await self._exchange(group_requests.group_request(name)))

    async def reset_group(
        self,
        name: str,
        *,
        to: Literal["earliest", "latest"] | None = None,
        timestamp_us: int | None = None,
        offsets: Mapping[str, Mapping[int, int]] | None = None,
        topics: Iterable[str] | None = None,
        dry_run: bool = False,
    ) -> GroupReset:
        """Have an idle group go on elsewhere, in these topics or all; GroupNotIdleError.

        One of `to`, `timestamp_us` and `offsets` (by topic and partition) says where.
        """
        request = group_requests.reset_group_request(
            name, to=to, timestamp_us=timestamp_us, offsets=offsets, topics=topics, dry_run=dry_run
        )
        return group_requests.parse_group_reset(await self._exchange(request))

    async def publish_offsets(
        self, name: str, source: str, offsets: Mapping[str, Mapping[int, int]]
    ) -> None:
        """Tell how far a reader is that keeps its offsets itself; GroupNotIdleError.

        `source` says what it is, and is the group's state.
        """
        request = group_requests.publish_offsets_request(name, source, offsets)
        group_requests.parse_done(await self._exchange(request))

    async def delete_group(self, name: str) -> None:
        """Forget a group and its offsets; GroupNotFoundError, GroupNotIdleError."""
        group_requests.parse_done(await self._exchange(group_requests.delete_group_request(name)))

    # --- the ring: what changes it needs its secret, when it has one, as the client's token ---

    async def ring(self, *, consistent: bool = False) -> RingDetails:
        """What the ring has agreed on, as this broker knows it; answered before it is ready.

        `consistent`: all that was agreed up to now, which needs most of the voters.
        """
        request = ring_requests.ring_request(consistent=consistent)
        return ring_requests.parse_ring(await self._exchange(request))

    async def found(self, brokers: int) -> RingDetails:
        """Found a ring of brokers 0 to `brokers` - 1, all of them empty; safe to repeat."""
        request = ring_requests.found_request(brokers)
        return ring_requests.parse_ring(await self._exchange(request))

    async def accept_loss(self, range_id: int, broker: int) -> RangeDetails:
        """Let a broker lead a range of which no whole replica is left: events may be lost."""
        request = ring_requests.accept_loss_request(range_id, broker)
        return ring_requests.parse_range(await self._exchange(request))

    async def recover_metadata(self, *, accept_loss: bool) -> RingDetails:
        """Let this voter go on alone, most of them being lost for good; `accept_loss` says so."""
        request = ring_requests.recover_metadata_request(accept_loss=accept_loss)
        return ring_requests.parse_ring(await self._exchange(request))

    def _sync_twin(self) -> "SyncClient":
        from tailrace.sync import Client as SyncClient

        return SyncClient(self.url, **self._options)

    async def _exchange(self, request: Request) -> Answer:
        """One answer, of the broker that leads what is wanted."""
        hops = self._leaders.hops(request)
        while True:
            try:
                answer = await self._at(hops.url)._send(request)
            except ConnectionFailedError as error:
                if not hops.go_around(error):
                    raise
            else:
                if not hops.go_on(answer):
                    return hops.outcome(answer)

    async def _at_leaders(self, request: Request, urls: Iterable[str]) -> list[Answer]:
        """What the brokers say that can be reached."""
        answers = []
        for url in urls:
            with suppress(ConnectionFailedError):
                answer = await self._at(url)._send(request)
                if answer.status == 200:
                    answers.append(answer)
        return answers

    def _at(self, url: str) -> Self:
        """This client, or a twin that lives as long."""
        if url == self.url:
            return self
        if url not in self._twins:
            self._twins[url] = self.twin(url)
        return self._twins[url]

    async def _send(self, request: Request) -> Answer:
        """One request, one answer. A connection that failed is not used again."""
        try:
            async with self._opened_session().request(
                request.method,
                URL(self.url + request.target, encoded=True),
                data=_sendable(request.body),
                headers={**request.headers, **self._authorization},
                timeout=self._timeout(request),
                allow_redirects=False,
            ) as response:
                body = await response.read()
        except (aiohttp.ClientError, OSError, UnicodeError) as error:  # no host name: the last
            is_connected = not isinstance(error, _NOT_CONNECTED)
            raise connection_failed(
                self.url, error, write_attempted=is_connected and request.method == "POST"
            ) from error
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Answer(response.status, headers, body)

    def _opened_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX, ssl=self._tls or True),
                cookie_jar=aiohttp.DummyCookieJar(),
                max_field_size=HEADER_BYTES_MAX,
                middlewares=(_send_once,),
                request_class=_Request,
                skip_auto_headers=("Accept-Encoding", "Content-Type", "User-Agent"),
            )
        return self._session

    def _timeout(self, request: Request) -> aiohttp.ClientTimeout:
        """Of each wait; aiohttp has none for the taking of a body, so that both share one."""
        timeout_s = self.timeout_s
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
    """Keeps aiohttp from repeating what was perhaps carried out, as it does but for POST; and from
    waiting for a peer to take the rest of a request that has failed.
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
