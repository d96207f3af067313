"""Every error that the client raises; what it says is one sentence for a person.

    TailraceError
        CorruptBatchError           bytes that are no valid batch
        PartitionDamagedError       a partition that cannot be read
        PartitionUnavailableError   one whose leader was not reached
        ConnectionFailedError       no broker answered
            UntrustedCertificateError   one did, with a certificate that is not trusted
            WrongSchemeError            the port speaks http without TLS, or the other way round
        BufferFullError             a producer's memory stays full
        NotStoredError              what a producer could not store by its end
        UnexpectedAnswerError       what answered does not speak Tailrace's protocol
        ProblemError                the broker refused and said why (RFC 9457)
            TopicNotFoundError
            OffsetOutOfRangeError
            GroupNotFoundError
            GroupNotIdleError
            GroupKindError
            ConsumerNotRegisteredError
            StaleDeliveryError
            StaleAssignmentError

`retriable`: trying again may help. `write_attempted`: a retry may store the records twice.
`topic_created`: the produce that failed has created its topic, which exists now.
The problem types and their members: docs/protocol.md.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `tailrace --help` raises these errors, and starts without dataclasses
    from tailrace.produced import Produced

PROBLEM_TYPE_PREFIX = "/v1/problems/"


class TailraceError(Exception):
    """The root: catch this to catch all of the client's own errors.

    `parts`: of a produce whose partitions fared differently, what became of each that is known.
    """

    retriable = False
    write_attempted = False
    topic_created = False
    parts: "Sequence[Produced | ProblemError]" = ()


class CorruptBatchError(TailraceError):
    """Bytes that should be a batch are cut short, fail a checksum or contradict themselves."""


class PartitionDamagedError(TailraceError):
    """The broker lists this partition, and has stored data of it that is damaged."""

    def __init__(self, topic: str, partition: int, state: str) -> None:
        super().__init__(
            f'partition {partition} of topic "{topic}" is {state} and cannot be read: restore the '
            "file that the broker's log names and start it again, or read the other partitions"
        )
        self.topic = topic
        self.partition = partition
        self.state = state


class PartitionUnavailableError(TailraceError):
    """No broker leads this partition now, or the one that does was not reached."""

    retriable = True

    def __init__(self, topic: str, partition: int, leader: int | None) -> None:
        why = "no broker leads it"
        if leader is not None:
            why = f"broker {leader}, its leader, is away or not sure of its end"
        super().__init__(
            f'partition {partition} of topic "{topic}" cannot be read now, since {why}: see '
            "tailrace ring status, or read the other partitions"
        )
        self.topic = topic
        self.partition = partition
        self.leader = leader


class ConnectionFailedError(TailraceError):
    """No broker answered at `url`: refused, reset, timed out, or not speaking HTTP."""

    retriable = True

    def __init__(self, url: str, reason: str, *, write_attempted: bool = False) -> None:
        super().__init__(
            f"no broker answers at {url} ({reason}). "
            "Start one: tailrace dev; or name another with --url or TAILRACE_URL"
        )
        self.url = url
        self.reason = reason
        self.write_attempted = write_attempted


class UntrustedCertificateError(ConnectionFailedError):
    """What answers at `url` has a certificate that is not trusted; nothing was asked of it."""

    retriable = False

    def __init__(self, url: str, reason: str) -> None:
        TailraceError.__init__(
            self,
            f"the certificate of {url} is not trusted ({reason}). Name the file of the CA that "
            "issued it with ca_file or TAILRACE_CA_FILE; the URL's host must be in it",
        )
        self.url = url
        self.reason = reason


class WrongSchemeError(ConnectionFailedError):
    """The port at `url` speaks plain http where TLS was tried, or TLS where http was."""

    retriable = False

    def __init__(self, url: str) -> None:
        scheme, _, address = url.partition("://")
        is_tls = scheme == "https"
        self.reason = "speaks plain http, and no TLS" if is_tls else "speaks TLS, and no plain http"
        right = f"{'http' if is_tls else 'https'}://{address}"
        TailraceError.__init__(self, f"{url} {self.reason}: use {right}")
        self.url = url


class BufferFullError(TailraceError):
    """A producer's memory stayed full of records that are on their way; this one was not taken."""

    retriable = True

    def __init__(self, buffer_bytes: int, waited_s: float) -> None:
        super().__init__(
            f"the producer's buffer_bytes ({buffer_bytes:,}) stayed full for {waited_s:g} s: "
            "send more slowly, or give it more memory"
        )
        self.buffer_bytes = buffer_bytes


class NotStoredError(TailraceError):
    """Of a producer's records `count` were not stored since the last flush; `first` says why.

    Each one's own error is in its future.
    """

    def __init__(self, count: int, first: TailraceError) -> None:
        were = "1 record was" if count == 1 else f"{count:,} records were"
        perhaps = ", or perhaps was without an answer" if first.write_attempted else ""
        super().__init__(f"{were} not stored{perhaps}: {first}")
        self.count = count
        self.first = first
        self.retriable = first.retriable
        self.write_attempted = first.write_attempted


class UnexpectedAnswerError(TailraceError):
    """A success whose content is not what the protocol says; likely another server's port."""


class ProblemError(TailraceError):
    """The broker's own words: a problem document; `members` are those beyond RFC 9457's."""

    def __init__(
        self,
        *,
        type: str,
        title: str,
        status: int,
        detail: str = "",
        members: Mapping[str, object] | None = None,
        retriable: bool = False,
        write_attempted: bool = False,
    ) -> None:
        super().__init__(f"{title}: {detail}" if detail else title)
        self.type = type
        self.title = title
        self.status = status
        self.detail = detail
        self.members = dict(members or {})
        self.retriable = retriable
        self.write_attempted = write_attempted
        self.topic_created = self.members.get("topicCreated") is True


class TopicNotFoundError(ProblemError):
    """The topic does not exist, and was not created on first produce."""

    @property
    def topic(self) -> str:
        """The name as asked for."""
        return str(self.members.get("topic", ""))


class OffsetOutOfRangeError(ProblemError):
    """The offset lies outside [`log_start`, `high_watermark`]; both ends can be asked for."""

    @property
    def log_start(self) -> int:
        """The first offset that can be read."""
        return _int_member(self.members, "logStart")

    @property
    def high_watermark(self) -> int:
        """The end of what can be read, exclusive."""
        return _int_member(self.members, "highWatermark")


class GroupNotFoundError(ProblemError):
    """No consumer of this group has ever registered, or the group was deleted."""


class GroupNotIdleError(ProblemError):
    """The group has consumers; they stop first."""


class GroupKindError(ProblemError):
    """A reader such as Spark keeps the group's offsets itself; or, when such a reader publishes
    them, the group is one of consumers.
    """


class ConsumerNotRegisteredError(ProblemError):
    """The consumer was not seen for its whole session, or has said goodbye: it registers again."""


class StaleDeliveryError(ProblemError):
    """The delivery is not the consumer's last: nothing was committed, its records come again."""

    @property
    def coordinator_changed(self) -> bool:
        """Another broker, or another partition, keeps the group since: open deliveries ended."""
        return self.members.get("coordinatorChanged") is True


class StaleAssignmentError(ProblemError):
    """Another process has registered as this consumer since."""


_CLASS_BY_TYPE: Mapping[str, type[ProblemError]] = {
    "topic-not-found": TopicNotFoundError,
    "offset-out-of-range": OffsetOutOfRangeError,
    "group-not-found": GroupNotFoundError,
    "group-not-idle": GroupNotIdleError,
    "group-kind": GroupKindError,
    "consumer-not-registered": ConsumerNotRegisteredError,
    "stale-delivery": StaleDeliveryError,
    "stale-assignment": StaleAssignmentError,
}
_COMMON_MEMBERS = frozenset({"type", "title", "status", "detail", "retriable", "writeAttempted"})


def problem_error(status: int, document: Mapping[str, object]) -> ProblemError:
    """The error for a problem document. Total: absent members get RFC 9457's defaults.

    `type` loses the broker's prefix ("topic-not-found"); `status` is the HTTP status.
    """
    problem_type = str(document.get("type", "about:blank")).removeprefix(PROBLEM_TYPE_PREFIX)
    return _CLASS_BY_TYPE.get(problem_type, ProblemError)(
        type=problem_type,
        title=str(document.get("title") or f"HTTP status {status}"),
        status=status,
        detail=str(document.get("detail") or ""),
        members={name: document[name] for name in document.keys() - _COMMON_MEMBERS},
        retriable=document.get("retriable") is True,
        write_attempted=document.get("writeAttempted") is True,
    )


def _int_member(members: Mapping[str, object], name: str) -> int:
    """A number that a problem of this type must have; 0 when a broken broker left it out."""
    value = members.get(name)
    return value if isinstance(value, int) else 0
