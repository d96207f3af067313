"""The blocking client: one keep-alive connection of `http.client` around `requests`.

Sends nothing twice by itself: errors say by `retriable` and `write_attempted` what a caller may do;
`tailrace.producer` does it.
One thread at a time per client.
"""

import http.client
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from selectors import EVENT_READ, DefaultSelector
from socket import socket
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, Unpack

from tailrace import ClientOptions
from tailrace.errors import ConnectionFailedError, ProblemError, TailraceError
from tailrace.protocol import requests
from tailrace.protocol.endpoint import authorization, connection_failed, parse_endpoint, tls_context
from tailrace.protocol.records_binary import Header
from tailrace.protocol.requests import (
    Answer,
    NewTopicSettings,
    Numbered,
    ReadParameters,
    Request,
    TopicSettings,
)
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

if TYPE_CHECKING:
    from tailrace.protocol.group_requests import Named, PollParameters
    from tailrace.protocol.group_values import (
        GroupDetails,
        GroupInfo,
        GroupReset,
        OnNewGroup,
        Polled,
        Registered,
    )
    from tailrace.protocol.ring_values import RangeDetails, RingDetails
    from tailrace.reading import Reading, ReadingParameters


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
        self._leaders = Leaders(endpoint.url)
        self._routing = Routing(endpoint.url)
        self._twins: dict[str, Self] = {}  # to other brokers of the ring
        self._options: ClientOptions = {"timeout_s": timeout_s, "token": token, "ca_file": ca_file}
        self._authorization = authorization(token)
        context = tls_context(endpoint, ca_file)
        kind: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
        if context is not None:
            kind = partial(http.client.HTTPSConnection, context=context)
        # http.client sets TCP_NODELAY itself.
        self._new_connection = partial(kind, endpoint.host, endpoint.port, timeout=timeout_s)
        self._connection = self._new_connection()

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
        """Close the connection; a later call opens it again."""
        self._connection.close()
        # A request that was interrupted, by Ctrl-C, may have left its head to be sent.
        self._connection = self._new_connection()
        twins, self._twins = self._twins, {}
        for twin in twins.values():
            twin.close()

    def twin(self, url: str | None = None, *, timeout_s: float | None = None) -> Self:
        """A client like this one with a connection of its own, to another broker of the ring."""
        options = self._options
        if timeout_s is not None:
            options = {**options, "timeout_s": timeout_s}
        return type(self)(url or self.url, **options)

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
        request = requests.topic_request(name)
        details = requests.parse_topic_details(self._exchange(request))
        urls = leader_urls(self.url, details.partition_details)
        others = map(requests.parse_topic_details, self._at_leaders(request, urls))
        rows = merged(details.partition_details, (other.partition_details for other in others))
        return TopicDetails(details.topic, tuple(rows))

    def alter_topic(self, name: str, **settings: Unpack[TopicSettings]) -> TopicInfo:
        """Change what is given, in force at once; records that are stored stay as they are."""
        request = requests.alter_topic_request(name, **settings)
        return requests.parse_topic(self._exchange(request))

    def delete_topic(self, name: str) -> None:
        """With all its records; TopicNotFoundError."""
        requests.parse_deleted(self._exchange(requests.delete_topic_request(name)))

    def accept_partition_loss(
        self, topic: str, partition: int, *, dry_run: bool = False
    ) -> PartitionLoss:
        """Let a partition that has lost its end take events again; what is lost of it."""
        request = requests.accept_partition_loss_request(topic, partition, dry_run=dry_run)
        return requests.parse_partition_loss(self._exchange(request))

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
        listing = requests.parse_offsets(self._exchange(request))
        others = self._at_leaders(request, leader_urls(self.url, listing))
        return merged(listing, map(requests.parse_offsets, others))

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
                    stored = self._at(url).produce_encoded(topic, body, **numbered)
                except TailraceError as error:
                    scattering.failed(error, indices)
                else:
                    scattering.stored(stored)
            if not scattering.wants_routing:
                return scattering.outcome()
            try:
                ring, details = self.brokers(), self.topic(topic)
            except TailraceError as error:
                scattering.cut_by(error)
                raise
            scattering.learn(ring, details, time.monotonic())

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

        Starts as `read_batches` does.
        """
        request = requests.lines_request(
            topic, partition, offset, max_records=max_records, **parameters
        )
        return requests.parse_fetched(self._exchange(request))

    def last_lines(self, topic: str, count: int = 1) -> bytes:
        """NDJSON: of the last `count` of each partition, the `count` newest by record time.

        Oldest first; at most 1,000.
        """
        request = requests.last_lines_request(topic, count)
        try:
            return requests.parse_last_lines(self._exchange(request))
        except ProblemError as error:
            if error.type != "not-supported":
                raise
        pages = []  # of a ring of several brokers, each partition of its leader
        for each in self.offsets([topic]):
            if each.readable():
                page = self.read_lines(topic, each.partition, -count, max_records=count)
                pages.append(page.body)
        return newest_lines(pages, count)

    def read(self, topic: str, **parameters: "Unpack[ReadingParameters]") -> "Reading":
        """Records of all partitions, as Arrow, pandas or Polars: see `tailrace.reading`.

        Nothing is asked before they are wanted.
        """
        from tailrace.reading import Reading

        return Reading(self, topic, **parameters)

    # --- consumers and groups: what they need is loaded when it is used ---

    def register(
        self,
        consumer_id: str,
        group: str,
        topics: Iterable[str],
        *,
        on_new_group: "OnNewGroup | None" = None,
        session_ms: int | None = None,
        create_topics: bool | None = None,
        assignment_epoch: int | None = None,
    ) -> "Registered":
        """Join a group; safe to repeat with the same values. `tailrace.consumer` does it for you.

        The broker's defaults: startFromLatest, and 120 s. TopicNotFoundError, unless
        `create_topics` has it created. With the `assignment_epoch` that it knows, a consumer shows
        that it lives, and does not join again: ConsumerNotRegisteredError, StaleAssignmentError.
        """
        from tailrace.protocol import group_requests

        request = group_requests.register_request(
            consumer_id,
            group,
            topics,
            on_new_group=on_new_group,
            session_ms=session_ms,
            create_topics=create_topics,
            assignment_epoch=assignment_epoch,
        )
        return group_requests.parse_registered(self._exchange(request))

    def poll(self, consumer_id: str, **parameters: "Unpack[PollParameters]") -> "Polled":
        """What the consumer may read now; ConsumerNotRegisteredError, StaleAssignmentError.

        Without `delivery` it confirms what was delivered last. With it safe to repeat: when the
        answer was lost the same records come again.
        """
        from tailrace.protocol import group_requests

        request = group_requests.poll_request(consumer_id, **parameters)
        return group_requests.parse_polled(self._exchange(request))

    def commit(self, consumer_id: str, **named: "Unpack[Named]") -> None:
        """Confirm a delivery, on disk at return; safe to repeat.

        ConsumerNotRegisteredError, StaleAssignmentError, StaleDeliveryError: nothing is committed.
        """
        from tailrace.protocol import group_requests

        request = group_requests.commit_request(consumer_id, **named)
        group_requests.parse_done(self._exchange(request))

    def goodbye(
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
        from tailrace.protocol import group_requests

        request = group_requests.goodbye_request(
            consumer_id, delivery=delivery, assignment_epoch=assignment_epoch, commit=commit
        )
        group_requests.parse_done(self._exchange(request))

    def groups(self) -> "list[GroupInfo]":
        """All groups, sorted by name."""
        from tailrace.protocol import group_requests

        return group_requests.parse_groups(self._exchange(group_requests.groups_request()))

    def group(self, name: str) -> "GroupDetails":
        """One group, its consumers and how far it is in each partition; GroupNotFoundError."""
        from tailrace.protocol import group_requests

        return group_requests.parse_group(self._exchange(group_requests.group_request(name)))

    def reset_group(
        self,
        name: str,
        *,
        to: Literal["earliest", "latest"] | None = None,
        timestamp_us: int | None = None,
        offsets: Mapping[str, Mapping[int, int]] | None = None,
        topics: Iterable[str] | None = None,
        dry_run: bool = False,
    ) -> "GroupReset":
        """Have an idle group go on elsewhere, in these topics or all; GroupNotIdleError.

        One of `to`, `timestamp_us` and `offsets` (by topic and partition) says where.
        """
        from tailrace.protocol import group_requests

        request = group_requests.reset_group_request(
            name, to=to, timestamp_us=timestamp_us, offsets=offsets, topics=topics, dry_run=dry_run
        )
        return group_requests.parse_group_reset(self._exchange(request))

    def publish_offsets(
        self, name: str, source: str, offsets: Mapping[str, Mapping[int, int]]
    ) -> None:
        """Tell how far a reader is that keeps its offsets itself; GroupNotIdleError.

        `source` says what it is, and is the group's state.
        """
        from tailrace.protocol import group_requests

        request = group_requests.publish_offsets_request(name, source, offsets)
        group_requests.parse_done(self._exchange(request))

    def delete_group(self, name: str) -> None:
        """Forget a group and its offsets; GroupNotFoundError, GroupNotIdleError."""
        from tailrace.protocol import group_requests

        group_requests.parse_done(self._exchange(group_requests.delete_group_request(name)))

    # --- the ring: what changes it needs its secret, when it has one, as the client's token ---

    def ring(self, *, consistent: bool = False) -> "RingDetails":
        """What the ring has agreed on, as this broker knows it; answered before it is ready.

        `consistent`: all that was agreed up to now, which needs most of the voters.
        """
        from tailrace.protocol import ring_requests

        request = ring_requests.ring_request(consistent=consistent)
        return ring_requests.parse_ring(self._exchange(request))

    def found(self, brokers: int) -> "RingDetails":
        """Found a ring of brokers 0 to `brokers` - 1, all of them empty; safe to repeat."""
        from tailrace.protocol import ring_requests

        request = ring_requests.found_request(brokers)
        return ring_requests.parse_ring(self._exchange(request))

    def accept_loss(self, range_id: int, broker: int) -> "RangeDetails":
        """Let a broker lead a range of which no whole replica is left: events may be lost."""
        from tailrace.protocol import ring_requests

        request = ring_requests.accept_loss_request(range_id, broker)
        return ring_requests.parse_range(self._exchange(request))

    def recover_metadata(self, *, accept_loss: bool) -> "RingDetails":
        """Let this voter go on alone, most of them being lost for good; `accept_loss` says so."""
        from tailrace.protocol import ring_requests

        request = ring_requests.recover_metadata_request(accept_loss=accept_loss)
        return ring_requests.parse_ring(self._exchange(request))

    def _exchange(self, request: Request) -> Answer:
        """One answer, of the broker that leads what is wanted."""
        hops = self._leaders.hops(request)
        while True:
            try:
                answer = self._at(hops.url)._send(request)
            except ConnectionFailedError as error:
                if not hops.go_around(error):
                    raise
            else:
                if not hops.go_on(answer):
                    return hops.outcome(answer)

    def _at_leaders(self, request: Request, urls: Iterable[str]) -> list[Answer]:
        """What the brokers say that can be reached."""
        answers = []
        for url in urls:
            with suppress(ConnectionFailedError):
                answer = self._at(url)._send(request)
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

    def _send(self, request: Request) -> Answer:
        """One request, one answer. A failure closes the connection, so the next call opens one."""
        is_connected = is_sent = False
        try:
            self._connect()
            is_connected = True
            self._set_timeout(request.wait_ms)
            # A broker that refuses a large body answers before it has read it: read that answer.
            with suppress(BrokenPipeError):
                headers = {**request.headers, **self._authorization}
                self._connection.request(request.method, request.target, request.body, headers)
                is_sent = True
            response = self._connection.getresponse()
            answered = {name.lower(): value for name, value in response.getheaders()}
            body = response.read()
            if not is_sent:
                self._connection.close()  # the broker has closed its end
            return Answer(response.status, answered, body)
        except (
            OSError,
            http.client.HTTPException,
            UnicodeError,
        ) as error:  # no host name: the last
            self.close()
            raise connection_failed(
                self.url, error, write_attempted=is_connected and request.method == "POST"
            ) from error
        except BaseException:  # half an exchange, which the next one must not meet
            self.close()
            raise

    def _connect(self) -> None:
        """Anew when the broker has closed the connection meanwhile: idle ones it does not keep."""
        if self._connection.sock is not None and _is_readable(self._connection.sock):
            self._connection.close()  # nothing was asked, so what is there to read is its end
        if self._connection.sock is None:
            self._connection.connect()

    def _set_timeout(self, wait_ms: int) -> None:
        """Of each wait for this request: what the broker waits for records comes on top."""
        timeout_s = self.timeout_s
        if wait_ms:
            timeout_s += wait_ms / 1000
        if self._connection.sock.gettimeout() != timeout_s:
            self._connection.sock.settimeout(timeout_s)


def _is_readable(connected: socket) -> bool:
    """Whether a read would not wait."""
    with DefaultSelector() as selector:
        selector.register(connected, EVENT_READ)
        return bool(selector.select(0))
