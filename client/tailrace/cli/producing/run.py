"""One run of `tailrace produce`: sends the lines, and enters in its account what came of it."""

from collections.abc import Callable, Collection, Iterator, Sequence

from tailrace.cli.lib.parser import shown
from tailrace.cli.producing.account import Account
from tailrace.cli.producing.input import BATCH_BYTES
from tailrace.cli.producing.requests import LineRequest, LineRequests, Target, refused_line
from tailrace.cli.producing.resume import Token
from tailrace.errors import ProblemError, TailraceError, TopicNotFoundError
from tailrace.produced import Produced
from tailrace.request_producer import RequestProducer
from tailrace.sync import Client
from tailrace.wire import LARGEST_REQUEST_BYTES


class BadLineError(TailraceError):
    """Line `number`, from 1 on, is no event; all before it is stored."""

    def __init__(self, noun: str, number: int, reason: str) -> None:
        super().__init__(f"{noun} {number} {reason}")
        self.number = number
        self.is_json = not reason.startswith("is not JSON")


class Run:
    """Stores lines in order, one request after the other."""

    def __init__(
        self,
        client: Client,
        target: Target,
        *,
        resume: Token | None,
        sleep: Callable[[float], None],
    ) -> None:
        """`sleep`: between two attempts of a request."""
        self.client = client
        self.topic = target.topic
        self.noun = target.form.noun
        self.needs_json = bool(target.form.key_path)  # for the key, whatever the topic checks
        self._producer = RequestProducer(
            client,
            id=resume and resume.producer_id,
            sequence=resume and resume.sequence,
            is_retry=resume is not None and resume.line_count > 0,
            sleep=sleep,
        )
        self.account = Account(self._producer, checksum=target.checksum, resume=resume)
        self.requests = LineRequests(client, self._producer, target)
        self._bytes_max = 2 * BATCH_BYTES  # of a request of several lines

    @property
    def has_created_topic(self) -> bool:
        """Whether the topic exists since a request of this run, which may have failed."""
        return self.topic in self._producer.created_topics

    def take(self, lines: Sequence[bytes]) -> None:
        """Store the next lines of the input, but for those that an earlier run has stored."""
        replay = self.account.replay
        if replay is None or replay.is_done:
            self._store(lines)
            return
        for is_begun, some in replay.take(lines):
            self.account.checksum = replay.checksum
            if is_begun:
                self.account.under_way = LineRequest(some, None)
                self._store_request(some, self.account.known_stored)
            else:
                self._store(some)

    def end(self) -> None:
        """End the input. TailraceError: it had too few lines, or there is no topic."""
        replay = self.account.replay
        if replay is not None and not replay.is_done:
            self.take(())
            replay.end()
        if not self.account.event_count:
            self._check_topic()

    # --- sending ---

    def _store(self, lines: Sequence[bytes]) -> None:
        """All of them, in requests that the broker takes."""
        for some in cut(lines, self._bytes_max):
            try:
                self._store_request(some)
            except ProblemError as error:
                if error.type != "body-too-large" or not self.account.is_settled:
                    raise
                if len(some) == 1:
                    raise self._too_large(some[0], error) from error
                self._bytes_max = min(self._bytes_max, sum(map(len, some))) // 2
                self._store(some)

    def _store_request(self, lines: Sequence[bytes], known: Collection[int] = ()) -> None:
        """As one request, without what these partitions have of it.

        BadLineError: the lines before it are stored.
        """
        request = self.requests.of(lines, known)
        try:
            self.account.settle(request, self._send(request))
        except ProblemError as error:
            bad_line = refused_line(error, lines)
            if bad_line is None:
                raise
            # A broker that refuses a line stores nothing.
            self.account.under_way = LineRequest((), None)
            self._store(lines[: bad_line.line_index])
        else:
            bad_line = request.bad_line
        if bad_line is not None:
            raise BadLineError(self.noun, self.account.line, bad_line.reason)

    def _send(self, request: LineRequest) -> Sequence[Produced]:
        self.account.under_way = request
        return () if request.send is None else request.send()

    def _too_large(self, line: bytes, error: ProblemError) -> TailraceError:
        limit = error.members.get("maxRequestBytes")
        most, remedy = "more than one request may have", "split it"
        if isinstance(limit, int):
            most = f"and a request has at most {limit:,} (the broker's maxRequestBytes)"
            if max(limit, len(line)) < LARGEST_REQUEST_BYTES:
                remedy += ", or raise TAILRACE_MAX_REQUEST_BYTES of the brokers"
        return BadLineError(
            self.noun, self.account.line, f"has {len(line):,} bytes, {most}: {remedy}"
        )

    def _check_topic(self) -> None:
        try:
            self.client.offsets([self.topic])
        except TopicNotFoundError as error:
            raise TailraceError(
                f"there are no events, and topic {shown(self.topic)} does not exist: nothing was "
                "created"
            ) from error


def cut(lines: Sequence[bytes], bytes_max: int) -> Iterator[Sequence[bytes]]:
    """Cut lines into parts of this many bytes at most; a longer line is a part of its own."""
    sizes = list(map(len, lines))
    if sum(sizes) <= bytes_max:
        if lines:
            yield lines
        return
    first = size_bytes = 0
    for index, line_bytes in enumerate(sizes):
        if index > first and size_bytes + line_bytes > bytes_max:
            yield lines[first:index]
            first, size_bytes = index, 0
        size_bytes += line_bytes
    yield lines[first:]
