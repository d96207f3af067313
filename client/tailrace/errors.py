"""Every error that the client raises; what it says is one sentence for a person.

    TailraceError
        CorruptBatchError           bytes that are no valid batch
        PartitionDamagedError       a partition that cannot be read
        ConnectionFailedError       no broker answered
        UnexpectedAnswerError       what answered does not speak Tailrace's protocol
        ProblemError                the broker refused and said why (RFC 9457)
            TopicNotFoundError
            OffsetOutOfRangeError

`retriable`: trying again may help. `write_attempted`: a retry may store the records twice.
The problem types and their members: docs/protocol.md.
"""

from collections.abc import Mapping

PROBLEM_TYPE_PREFIX = "/v1/problems/"


class TailraceError(Exception):
    """The root: catch this to catch all of the client's own errors."""

    retriable = False
    write_attempted = False


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


_CLASS_BY_TYPE: Mapping[str, type[ProblemError]] = {
    "topic-not-found": TopicNotFoundError,
    "offset-out-of-range": OffsetOutOfRangeError,
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
