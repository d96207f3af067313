"""One run of `tailrace produce`: what is sent, what is stored, and where another run goes on."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from zlib import crc32

from tailrace.cli.lib.options import counted
from tailrace.cli.lib.parser import shown
from tailrace.cli.producing.input import BATCH_BYTES
from tailrace.cli.producing.requests import LineRequest, LineRequests, Target, refused_line
from tailrace.cli.producing.resume import Replay, Token
from tailrace.errors import ProblemError, TailraceError, TopicNotFoundError
from tailrace.produced import Produced
from tailrace.request_producer import RequestProducer
from tailrace.sync import Client
from tailrace.wire import LARGEST_REQUEST_BYTES

# Of asking, when a run has failed, which lines belong to the partitions that are not stored.
ASK_S_MAX = 5.0


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
        self._client = client
        self._target = target
        self.noun = target.form.noun
        self._replay = None if resume is None else Replay(resume, target.checksum)
        self._producer = RequestProducer(
            client,
            id=resume and resume.producer_id,
            sequence=resume and resume.sequence,
            is_retry=resume is not None and resume.line_count > 0,
            sleep=sleep,
        )
        self._requests = LineRequests(client, self._producer, target)
        self._counts: Counter[int] = Counter()  # of settled events, by partition
        self.sent_bytes = 0
        # Each line before this one is stored, or is blank; the checksum is that of these lines.
        self._line = 1 if resume is None else resume.line
        self._checksum = target.checksum
        self._under_way = LineRequest((), None)
        self._bytes_max = 2 * BATCH_BYTES  # of a request of several lines

    @property
    def event_count(self) -> int:
        """Events that are known to be stored."""
        return self._stored_by_partition().total()

    @property
    def has_created_topic(self) -> bool:
        """Whether the topic exists since a request of this run, which may have failed."""
        return self._target.topic in self._producer.created_topics

    @property
    def has_begun(self) -> bool:
        """Whether a line may be stored, by this run or by the one that it resumes."""
        return bool(self.event_count) or not self.is_settled or self._replay is not None

    @property
    def is_settled(self) -> bool:
        """Whether it is known of each line that was sent that it is stored, or that it is not."""
        return self._producer.unsettled is None or not self._under_way.lines

    def take(self, lines: Sequence[bytes]) -> None:
        """Store the next lines of the input, but for those that an earlier run has stored."""
        if self._replay is None or self._replay.is_done:
            self._store(lines)
            return
        for is_begun, some in self._replay.take(lines):
            self._checksum = self._replay.checksum
            if is_begun:
                self._under_way = LineRequest(some, None)
                self._store_request(some, self._known_stored)
            else:
                self._store(some)

    def end(self) -> None:
        """End the input. TailraceError: it had too few lines, or there is no topic."""
        if self._replay is not None and not self._replay.is_done:
            self.take(())
            self._replay.end()
        if not self.event_count:
            self._check_topic()

    def token(self) -> Token:
        """Where another run goes on."""
        if self._replay is not None and not self._replay.is_done:
            return self._replay.token
        unsettled = None if self.is_settled else self._producer.unsettled
        lines = self._under_way.lines if unsettled else ()
        return Token(
            self._producer.id,
            unsettled.sequence if unsettled else self._producer.next_sequence,
            self._line,
            len(lines),
            crc32(b"".join(lines), self._checksum),
            tuple(sorted(self._stored_of_unsettled())),
        )

    def tokens_of_doubt(self) -> tuple[Token, Token]:
        """Where to go on when brokers have forgotten the request: behind it, or with it as new."""
        begun = self.token()
        again = begun._replace(sequence=begun.sequence + 1)
        return again._replace(line=begun.line + begun.line_count, line_count=0, stored=()), again

    def summary(self) -> str:
        """What is stored, and the first line that is not."""
        count = self.event_count
        text = f"{counted(count, 'event')} {'is' if count == 1 else 'are'} stored"
        stored = sorted(self._stored_by_partition().items())
        if stored:
            text += f" ({', '.join(f'partition {each}: {n:,}' for each, n in stored)})"
        if self.is_settled:
            return f"{text}; the first {self.noun} that is not is {self.noun} {self._line}"
        last = self._line + len(self._under_way.lines) - 1
        return (
            f"{text}, and perhaps more of {self.noun}s {self._line} to {last}; the first "
            f"{self.noun} that is not known to be stored is {self.noun} {self._first_missing()}"
        )

    def created_text(self) -> str:
        """The topic that this run has created."""
        topic, partitions = self._target.topic, ""
        with suppress(TailraceError):
            count = self._client.topic(topic).topic.partitions
            partitions = f" ({counted(count, 'partition')})"
        return f"created topic {topic}{partitions}"

    # --- sending ---

    def _store(self, lines: Sequence[bytes]) -> None:
        """All of them, in requests that the broker takes."""
        for some in cut(lines, self._bytes_max):
            try:
                self._store_request(some)
            except ProblemError as error:
                if error.type != "body-too-large" or not self.is_settled:
                    raise
                if len(some) == 1:
                    raise self._too_large(some[0], error) from error
                self._bytes_max = min(self._bytes_max, sum(map(len, some))) // 2
                self._store(some)

    def _store_request(self, lines: Sequence[bytes], known: Collection[int] = ()) -> None:
        """As one request, without what these partitions have of it.

        BadLineError: the lines before it are stored.
        """
        request = self._requests.of(lines, known)
        try:
            self._settle(request, self._send(request))
        except ProblemError as error:
            bad_line = refused_line(error, lines)
            if bad_line is None:
                raise
            self._under_way = LineRequest((), None)  # a broker that refuses a line stores nothing
            self._store(lines[: bad_line.line_index])
        else:
            bad_line = request.bad_line
        if bad_line is not None:
            raise BadLineError(self.noun, self._line, bad_line.reason)

    def _send(self, request: LineRequest) -> Sequence[Produced]:
        self._under_way = request
        return () if request.send is None else request.send()

    def _settle(self, request: LineRequest, produced: Sequence[Produced]) -> None:
        for part in produced:
            self._counts[part.partition] += part.count
        sent = b"".join(request.lines)
        self._checksum = crc32(sent, self._checksum)
        self._line += len(request.lines)
        self.sent_bytes += len(sent)

    def _too_large(self, line: bytes, error: ProblemError) -> TailraceError:
        limit = error.members.get("maxRequestBytes")
        most, remedy = "more than one request may have", "split it"
        if isinstance(limit, int):
            most = f"and a request has at most {limit:,} (the broker's maxRequestBytes)"
            if max(limit, len(line)) < LARGEST_REQUEST_BYTES:
                remedy += ", or raise TAILRACE_MAX_REQUEST_BYTES of the brokers"
        return BadLineError(self.noun, self._line, f"has {len(line):,} bytes, {most}: {remedy}")

    def _check_topic(self) -> None:
        topic = self._target.topic
        try:
            self._client.offsets([topic])
        except TopicNotFoundError as error:
            raise TailraceError(
                f"there are no events, and topic {shown(topic)} does not exist: nothing was created"
            ) from error

    # --- what is known ---

    @property
    def _known_stored(self) -> Collection[int]:
        """Partitions that have what they should of the request that is sent again."""
        return () if self._replay is None else self._replay.token.stored

    def _stored_of_unsettled(self) -> dict[int, int]:
        """Events by partition, of the request whose outcome is not known for all partitions."""
        unsettled = self._producer.unsettled
        if unsettled is None or self.is_settled:
            return {}
        replay = self._replay
        is_resumed = replay is not None and replay.token.sequence == unsettled.sequence
        stored = dict.fromkeys(self._known_stored if is_resumed else (), 0)
        return stored | {each.partition: each.count for each in unsettled.stored.values()}

    def _stored_by_partition(self) -> Counter[int]:
        return self._counts + Counter(self._stored_of_unsettled())

    def _first_missing(self) -> int:
        """The first line under way whose partition is not known to have stored it."""
        keys, stored = self._under_way.keys, self._stored_of_unsettled()
        with suppress(TailraceError), self._client.twin(timeout_s=ASK_S_MAX) as client:
            placed = self._requests.partitions(client, [key for _, key in keys]) if stored else ()
            for (index, _), partition in zip(keys, placed, strict=False):
                if partition not in stored:
                    return self._line + index
        return self._line


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
