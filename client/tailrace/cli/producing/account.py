"""What a run of `tailrace produce` knows of its lines, and where another run goes on."""

from collections import Counter
from collections.abc import Collection, Sequence
from zlib import crc32

from tailrace.cli.producing.requests import LineRequest
from tailrace.cli.producing.resume import Replay, Token, event_count
from tailrace.produced import Produced
from tailrace.request_producer import RequestProducer


class Account:
    """The lines that are stored, and those of the request that is under way."""

    def __init__(self, producer: RequestProducer, *, checksum: int, resume: Token | None) -> None:
        """`checksum`: of the options. `resume`: where an earlier run ended."""
        self._producer = producer
        self.replay = None if resume is None else Replay(resume, checksum)
        self._counts: Counter[int] = Counter()  # of events that this run has stored, by partition
        self._found_count = 0  # events that this run has met, and an earlier one has stored
        self.sent_bytes = 0
        # Each line before this one is stored, or is blank; the checksum is that of these lines.
        self.line = 1 if resume is None else resume.line
        self.checksum = checksum
        self.under_way = LineRequest((), None)

    @property
    def event_count(self) -> int:
        """Events that are known to be stored by this run."""
        return self.stored_by_partition().total()

    @property
    def earlier_count(self) -> int:
        """Events that are known to be stored by the runs that this one resumes."""
        return self._found_count + (0 if self.replay is None else self.replay.event_count)

    @property
    def has_begun(self) -> bool:
        """Whether a line may be stored, by this run or by the one that it resumes."""
        return bool(self.event_count) or not self.is_settled or self.replay is not None

    @property
    def is_settled(self) -> bool:
        """Whether it is known of each line that was sent that it is stored, or that it is not."""
        return self._producer.unsettled is None or not self.under_way.lines

    @property
    def doubtful_count(self) -> int:
        """Lines from `line` on of which it is not known whether they are stored."""
        if self.replay is not None and not self.replay.is_done:
            return self.replay.token.line_count
        return 0 if self.is_settled else len(self.under_way.lines)

    @property
    def known_stored(self) -> Collection[int]:
        """Partitions that have what they should of the request that is sent again."""
        return () if self.replay is None else self.replay.token.stored

    def settle(self, request: LineRequest, produced: Sequence[Produced]) -> None:
        """Count a request whose lines are all stored."""
        new = [part for part in produced if self.replay is None or not part.duplicate]
        for part in new:
            self._counts[part.partition] += part.count
        if self.replay is not None:
            self._found_count += event_count(request.lines) - sum(part.count for part in new)
        sent = b"".join(request.lines)
        self.checksum = crc32(sent, self.checksum)
        self.line += len(request.lines)
        self.sent_bytes += len(sent)

    def token(self) -> Token:
        """Where another run goes on."""
        if self.replay is not None and not self.replay.is_done:
            return self.replay.token
        unsettled = None if self.is_settled else self._producer.unsettled
        lines = self.under_way.lines if unsettled else ()
        return Token(
            self._producer.id,
            unsettled.sequence if unsettled else self._producer.next_sequence,
            self.line,
            len(lines),
            crc32(b"".join(lines), self.checksum),
            tuple(sorted(self.stored_of_unsettled())),
        )

    def tokens_of_doubt(self) -> tuple[Token, Token]:
        """Where to go on when brokers have forgotten the request: behind it, or with it as new."""
        begun = self.token()
        again = begun._replace(sequence=begun.sequence + 1)
        return again._replace(line=begun.line + begun.line_count, line_count=0, stored=()), again

    def stored_of_unsettled(self) -> dict[int, int]:
        """Events by partition, of the request whose outcome is not known for all partitions."""
        unsettled = self._producer.unsettled
        if unsettled is None or self.is_settled:
            return {}
        replay = self.replay
        is_resumed = replay is not None and replay.token.sequence == unsettled.sequence
        stored = dict.fromkeys(self.known_stored if is_resumed else (), 0)
        return stored | unsettled.stored

    def stored_by_partition(self) -> Counter[int]:
        """Events that are known to be stored by this run."""
        return self._counts + Counter(self.stored_of_unsettled())
