"""What can go wrong in the broker, split by whose fault it is.

    TailraceError
    ├── CallerError                 the request is wrong; nothing was stored
    │   ├── InvalidTopicNameError
    │   ├── InvalidRecordError      a record of the body; names the line
    │   ├── InvalidBodyError
    │   ├── InvalidParameterError   names the parameter
    │   ├── UnsupportedMediaTypeError
    │   ├── InvalidRequestError
    │   ├── PathNotFoundError
    │   ├── MethodNotAllowedError
    │   ├── NotAcceptableError
    │   ├── ExpectationFailedError
    │   ├── HeaderTooLargeError
    │   ├── BodyTooLargeError
    │   ├── TopicNotFoundError
    │   ├── PartitionNotFoundError
    │   ├── TopicExistsError
    │   ├── NotInTrashError
    │   ├── SequenceUnknownError
    │   ├── SequenceReusedError
    │   ├── ConsumerExistsError
    │   ├── ConsumerNotRegisteredError
    │   ├── StaleAssignmentError
    │   ├── StaleDeliveryError
    │   ├── GroupNotFoundError
    │   ├── GroupNotIdleError
    │   ├── NothingLostError
    │   ├── GroupKindError          one of consumers, or of a reader that keeps its offsets
    │   ├── OffsetOutOfRangeError
    │   ├── SecretRequiredError
    │   ├── ForeignHostError
    │   ├── ForeignOriginError
    │   ├── RingExistsError
    │   └── RingRefusedError        the ring's state is not what the request takes for granted
    ├── OverloadError               try again later; nothing was stored
    │   ├── RequestTimeoutError
    │   ├── ProduceMemoryFullError
    │   ├── ReadMemoryFullError
    │   ├── TooManyProducersError
    │   ├── TooManyConnectionsError
    │   ├── TooManyForwardedError
    │   ├── OutcomeUnknownError     the leader was sent it, and is not heard any more
    │   ├── TooManyGroupsError
    │   ├── TooManyConsumersError
    │   ├── NotLeaderError
    │   ├── NoLeaderError
    │   ├── NotEnoughReplicasError
    │   ├── BrokerUnreachableError
    │   ├── NotAgreedError          the brokers could not agree in time; they still may
    │   ├── StepNotTakenError       the ring has not changed its size, and may later
    │   └── NotReadyError
    ├── StartError                  the broker cannot start; says what to change
    │   ├── InvalidSettingError
    │   ├── PortInUseError
    │   └── DataDirectoryInUseError
    ├── SupersededError             another process is this broker now
    ├── PeerError                   who is connected is no broker of this ring, or speaks otherwise
    │   ├── CorruptFrameError       bytes that are not a message
    │   └── HandshakeError          names what does not fit
    └── StoredDataError             the disk or what is on it
        ├── CorruptBatchError       bytes that are not a batch
        ├── CorruptPartitionError   damage below the high watermark; the partition takes no writes
        ├── CorruptMetadataError    the broker's own files; it does not start
        ├── ReadFailedError         the disk, not what is on it
        ├── DiskFullError
        └── StorageFailedError      a write failed; unknown whether it was stored

HTTP statuses for these live in `net/http/problems.py` only.
"""

from tailrace_broker.model.refusal import Refusal


class TailraceError(Exception):
    """Base of all; `retriable` and `write_attempted` are what a producer needs to know."""

    retriable = False
    write_attempted = False

    def __init__(self, detail: str, **members: str | int | bool | list[int]) -> None:
        """`members` become own fields of the problem document; names as on the wire."""
        super().__init__(detail)
        self.detail = detail
        self.members = members


class CallerError(TailraceError):
    """The request is wrong; the same request fails again."""


class InvalidTopicNameError(CallerError):
    """The topic name breaks the naming rule."""


class InvalidRecordError(CallerError):
    """A record of the body is not JSON; member `line`, 1 for a body of one event."""


class InvalidBodyError(CallerError):
    """The body as a whole cannot be read."""


class InvalidParameterError(CallerError):
    """A query parameter or field is unknown, missing or out of bounds; member `parameter`."""


class UnsupportedMediaTypeError(CallerError):
    """Type or coding of the body is none that the path takes; `contentType`, `contentEncoding`."""


class InvalidRequestError(CallerError):
    """The bytes are not an HTTP/1.1 request; the connection is closed."""


class PathNotFoundError(CallerError):
    """No such path at this listener."""


class MethodNotAllowedError(CallerError):
    """The path has other methods; `allowed` names them."""

    def __init__(self, detail: str, *, allowed: str) -> None:
        """`allowed`: the value of the header Allow."""
        super().__init__(detail)
        self.allowed = allowed


class NotAcceptableError(CallerError):
    """The path has no answer of a type that the request accepts."""


class ExpectationFailedError(CallerError):
    """The request expects what no HTTP/1.1 server here can do."""


class HeaderTooLargeError(CallerError):
    """Request line and headers are over the limit."""


class BodyTooLargeError(CallerError):
    """The body is over the limit; member `maxRequestBytes`."""


class TopicNotFoundError(CallerError):
    """No such topic; member `topic`."""


class PartitionNotFoundError(CallerError):
    """The topic has no such partition; members `topic`, `partition`."""


class TopicExistsError(CallerError):
    """A topic of this name exists with other settings, or is in the way; member `topic`."""


class NotInTrashError(CallerError):
    """No deleted topic of this name or id can be restored; member `topic`."""


class SequenceUnknownError(CallerError):
    """Whether the producer's request was stored is no longer known; member `sequence`."""


class SequenceReusedError(CallerError):
    """The producer sent another request under this sequence before; member `sequence`."""


class ConsumerExistsError(CallerError):
    """A consumer of this id is registered with other values; member `consumerId`."""


class ConsumerNotRegisteredError(CallerError):
    """No such consumer, or it was not seen for too long: it registers again; `consumerId`."""


class StaleAssignmentError(CallerError):
    """The consumer has registered again since: another process is it now; `assignmentEpoch`."""


class StaleDeliveryError(CallerError):
    """The delivery that a commit names is not the consumer's last; member `delivery`."""


class GroupNotFoundError(CallerError):
    """No such consumer group; member `group`."""


class GroupNotIdleError(CallerError):
    """The group has consumers, and this needs it to have none; members `group`, `members`."""


class NothingLostError(CallerError):
    """The partition lacks nothing that has to be accepted as lost; members `topic`, `partition`."""


class GroupKindError(CallerError):
    """The group's offsets are kept by its reader, or by the broker for consumers, and this needs
    the other; members `group`, `source`.
    """


class OffsetOutOfRangeError(CallerError):
    """The offset is outside the log; members `logStart`, `highWatermark`."""


class SecretRequiredError(CallerError):
    """The request is for those who know the ring's secret."""


class ForeignHostError(CallerError):
    """The request names a host that the broker does not know; member `host`."""


class ForeignOriginError(CallerError):
    """A web page of another origin wants to change something; member `origin`."""


class RingExistsError(CallerError):
    """A broker that is to be founded with belongs to a ring; member `broker`."""


class RingRefusedError(CallerError):
    """What was asked of the ring does not fit its committed state; member `reason`."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.detail, reason=refusal.reason)
        self.refusal = refusal


class OverloadError(TailraceError):
    """The broker cannot take it now; nothing was stored."""

    retriable = True


class RequestTimeoutError(OverloadError):
    """The request did not arrive whole in time; what it held is needed by others."""


class ProduceMemoryFullError(OverloadError):
    """Requests in flight hold all of the produce memory."""


class TooManyProducersError(OverloadError):
    """The partition remembers as many producers as it can."""


class ReadMemoryFullError(OverloadError):
    """Answers that their readers have not taken hold all of the read memory."""


class TooManyConnectionsError(OverloadError):
    """As many connections as the broker takes are open."""


class TooManyForwardedError(OverloadError):
    """As many requests as the broker forwards wait for their leaders; member `forwardedMax`."""


class OutcomeUnknownError(OverloadError):
    """The leader was sent the events and is not heard any more; members `topic`, `partition`."""

    write_attempted = True


class TooManyGroupsError(OverloadError):
    """The broker coordinates as many groups as it takes."""


class TooManyConsumersError(OverloadError):
    """The group has as many consumers as it takes; member `group`."""


class NotLeaderError(OverloadError):
    """Another broker leads the partition, or it is sealed; members `topic`, `partition`, `leader`,
    and `leaderUrl` or `children`.
    """


class NoLeaderError(OverloadError):
    """No broker leads the partition now; members `topic`, `partition`, `range`.

    With `write_attempted` the leader's epoch has ended while it wrote.
    """


class NotEnoughReplicasError(OverloadError):
    """Too few of the partition's replicas answer; members `topic`, `partition`, `range`.

    With `write_attempted` it is written here, and is committed when they are back.
    """


class BrokerUnreachableError(OverloadError):
    """Another broker, which this needs, does not answer; member `broker`."""


class NotAgreedError(OverloadError):
    """The voters could not be asked in time; they may still agree. No event was stored."""


class StepNotTakenError(OverloadError):
    """The ring is not ready for the step, gave it up, or is still at it; `reason`, and `step`.

    `reason`: why it was refused, `cancelled` or `under-way`.
    """


class NotReadyError(OverloadError):
    """The broker is still recovering, or stopping."""


class StartError(TailraceError):
    """The broker cannot start as it is configured."""


class InvalidSettingError(StartError):
    """A setting is missing or out of bounds; names its environment variable."""


class PortInUseError(StartError):
    """Another process listens on one of the listeners' ports."""


class DataDirectoryInUseError(StartError):
    """Another broker runs on this data directory."""


class SupersededError(TailraceError):
    """Another process is this broker now, or it was retired: this one must end."""


class PeerError(TailraceError):
    """Another broker does not keep to the protocol between brokers; the connection is closed."""


class CorruptFrameError(PeerError):
    """These bytes are not a message of this version."""


class HandshakeError(PeerError):
    """Who dialled, or was dialled, is no broker of this ring; `reason`: one word, for logs."""

    def __init__(self, detail: str, *, reason: str) -> None:
        """`reason`: what does not fit."""
        super().__init__(detail)
        self.reason = reason


class StoredDataError(TailraceError):
    """The disk, or what is on it, is at fault."""


class CorruptBatchError(StoredDataError):
    """These bytes are not a valid batch of this version."""


class CorruptPartitionError(StoredDataError):
    """Stored data is damaged below the high watermark; members `topic`, `partition`.

    Of a read also `firstOffset`, `lastOffset`, `nextOffset`, and `accepted`: somebody has accepted
    that these offsets are lost for good.
    """


class CorruptMetadataError(StoredDataError):
    """A file that the broker needs to start is unreadable or of a foreign version."""


class ReadFailedError(StoredDataError):
    """A file cannot be opened or read."""

    retriable = True


class DiskFullError(StoredDataError):
    """The file system has no space for the append; nothing was stored."""

    retriable = True


class StorageFailedError(StoredDataError):
    """A write failed; the records may or may not be on disk."""

    retriable = True
    write_attempted = True
