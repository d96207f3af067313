"""What the listeners need of the broker; `app.broker` provides it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

import numpy as np
import numpy.typing as npt

from tailrace_broker.core.groups.group import FetchRange, Group
from tailrace_broker.core.replication.progress import FollowerLag
from tailrace_broker.core.ring.changes import AppliedChange
from tailrace_broker.core.ring.origins import Origins
from tailrace_broker.core.ring.step_ends import StepReport
from tailrace_broker.memory.pool import Lease
from tailrace_broker.memory.read_memory import ReadMemory
from tailrace_broker.model.commands import Command, StepKind
from tailrace_broker.model.counters import Counters, TopicCounts
from tailrace_broker.model.damage import LostEnd
from tailrace_broker.model.errors import TailraceError
from tailrace_broker.model.forwarding import ForwardedCall
from tailrace_broker.model.group import Confirmation, Subscription, TopicPartition
from tailrace_broker.model.messages import Hint
from tailrace_broker.model.ring_state import LostOffsets, Registration, RingState
from tailrace_broker.model.topic import Topic, TopicSettings
from tailrace_broker.model.trashed_topic import TrashedTopic
from tailrace_broker.net.logs import Appends, OpenLog, ReadLog, SealedLog
from tailrace_broker.net.outside import Outside

T = TypeVar("T")


class LeaderAnswer(NamedTuple):
    """What another broker has answered; the first members of a `Response`."""

    body: Sequence[bytes | memoryview] | AsyncIterator[bytes]
    content_type: str
    status: int
    headers: Mapping[str, str]
    lease: Lease | None = None
    on_lost: Callable[[], None] | None = None


async def contents_of(answer: LeaderAnswer) -> bytes:
    """Return the body of an answer."""
    if isinstance(answer.body, AsyncIterator):
        return b"".join([bytes(part) async for part in answer.body])
    return b"".join(bytes(part) for part in answer.body)


class OpenTopic(Protocol):
    """A topic with its open partitions."""

    @property
    def counts(self) -> TopicCounts:
        """Return what is counted of it."""

    @property
    def topic(self) -> Topic:
        """Return the topic."""

    @property
    def origins(self) -> Mapping[int, Origins]:
        """By partition, where it or an ancestor has several parents."""

    def log_of(self, partition: int) -> OpenLog:
        """PartitionNotFoundError; CorruptPartitionError when its data is damaged."""

    def replica_of(self, partition: int) -> OpenLog | None:
        """The log as it is here, whoever leads it; None: it is not, or is damaged.

        PartitionNotFoundError.
        """

    def open_log_of(self, partition: int) -> OpenLog:
        """Return the log to append to. As `log_of`; NotLeaderError: the partition is sealed."""

    def partition_of_key(self, key: bytes | None) -> int:
        """The open partition that a key belongs to; without a key, each undamaged in turn."""

    def partitions_of_keys(self, keys: Sequence[bytes | str]) -> npt.NDArray[np.int32]:
        """Return the open partition that each key belongs to."""


@dataclass(frozen=True, slots=True)
class ClientView:
    """Where clients find this broker, and what people call its ring."""

    host: str
    produce_port: int
    read_port: int
    ring_name: str


class GroupPoll(NamedTuple):
    """What a consumer may read now, and what `GroupCoordinator.deliver` needs to know of the poll.

    Without fetch ranges there is nothing; `is_assigned`: some partition is this consumer's.
    """

    consumer_id: str
    poll_number: int
    fetch_ranges: Sequence[tuple[FetchRange, ReadLog]]
    is_assigned: bool
    epoch: int  # of the group's assignment
    confirmed: int  # the last delivery that was; 0: none
    problem: TailraceError | None = None  # of a partition that is left out, being damaged


class GroupView(NamedTuple):
    """A group as `GET` shows it, with those of its topics that exist, by name."""

    group: Group
    topics: Mapping[str, OpenTopic]
    coordinator: int  # the partition of `__groups` that keeps it
    now_us: int  # of the clock that its consumers are seen by
    # Log start and high watermark of a partition elsewhere, as far as polls have heard lately.
    heard: Callable[[TopicPartition], tuple[int, int] | None]


class GroupCoordinator(Protocol):
    """The consumer groups that this broker coordinates. Every method can raise NotReadyError,
    CorruptPartitionError (the log that keeps the group), and NotLeaderError and NoLeaderError:
    another broker coordinates the group, or none now. What stores something: DiskFullError and
    StorageFailedError.
    """

    async def register(
        self, wanted: Subscription, epoch: int | None = None, *, creates_topics: bool = False
    ) -> int:
        """The assignment epoch that the consumer joined in; it is stored.

        With the `epoch` that it knows of it is a heartbeat of a consumer that must be there:
        ConsumerNotRegisteredError, StaleAssignmentError. ConsumerExistsError, GroupKindError; of
        its topics TopicNotFoundError, InvalidTopicNameError. With `creates_topics` those that do
        not exist are created, as the first produce does.
        """

    async def poll(self, consumer_id: str, said: Confirmation, wait_ms: int) -> GroupPoll:
        """Return what can be read now, or within `wait_ms`.

        ConsumerNotRegisteredError, StaleAssignmentError.
        """

    async def poll_on(
        self, poll: GroupPoll, unreadable: Mapping[TopicPartition, TailraceError], wait_ms: int
    ) -> GroupPoll:
        """The same poll again, when nothing of it could be read: what can be read now, or within
        `wait_ms`, of other partitions than these, and behind what is lost for good of these.

        ConsumerNotRegisteredError.
        """

    async def deliver(self, poll: GroupPoll, ends: Sequence[int]) -> int | None:
        """Return the delivery's number. `ends`: of each fetch range, the end of what was read.

        None: answer with nothing; what was read must not be sent. When it is called, no other
        broker has delivered anything as a later coordinator of the group.
        """

    def withdraw(self, poll: GroupPoll, delivery: int) -> None:
        """The answer did not leave: the next poll does not confirm it."""

    async def commit(self, consumer_id: str, said: Confirmation) -> None:
        """Confirm, and store the group's positions.

        ConsumerNotRegisteredError, StaleAssignmentError, StaleDeliveryError.
        """

    async def goodbye(self, consumer_id: str, said: Confirmation, *, commits: bool) -> None:
        """Remove a consumer; when it `commits`, what it names, or got last, is dealt with.

        ConsumerNotRegisteredError, StaleAssignmentError.
        """

    @property
    def generation(self) -> int:
        """Return a number that grows when groups go on in other partitions."""

    def leader_of(self, group: str) -> int | None:
        """Return the broker that coordinates this group; None: there is none, or none is known."""

    def coordinator_of(self, consumer_id: str) -> int | None:
        """Return the broker that coordinated this consumer last; None: it is not known."""

    def note_coordinator(self, consumer_id: str, ordinal: int) -> None:
        """That broker has answered a request of this consumer."""

    def check_loaded(self) -> None:
        """NotReadyError while this broker reads groups that it coordinates."""

    async def check_surely_led(self, group: str | None = None) -> None:
        """NoLeaderError: another broker may coordinate the group by now, or any that this one
        knows. GroupNotFoundError.
        """

    def views(self) -> Iterable[GroupView]:
        """All groups that this broker coordinates, by name."""

    def view(self, group: str) -> GroupView:
        """Return the group's view. GroupNotFoundError."""

    def log_elsewhere(self, topic: Topic, partition: int) -> ReadLog:
        """Return a log of which there is no replica here, to read some of it."""

    async def reset(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Move a group's positions. GroupNotFoundError, GroupNotIdleError, GroupKindError."""

    async def publish(self, group: str, source: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Store what a reader that keeps its offsets itself has read.

        GroupNotIdleError, GroupKindError.
        """

    async def delete(self, group: str) -> None:
        """Forget a group. GroupNotFoundError, GroupNotIdleError."""


@dataclass(frozen=True, slots=True)
class RingView:
    """What a broker knows of its ring's agreement now; that of one that is in no ring is empty.

    Brokers by their ordinals; `leader`: None, none is known. `is_established`: this broker leads,
    and has committed something as such. Heights: `commit` of what it knows to be
    committed, `applied` of its state. `alive`: of those that were heard of.
    `next_voters`: who is to vote when others vote now, also before that change has begun.
    `log_bytes`: what the log of the agreement takes, until it is compacted.
    """

    term: int
    leader: int | None
    is_established: bool
    voters: tuple[int, ...]
    next_voters: tuple[int, ...]
    commit: int
    applied: int
    alive: Mapping[int, bool]
    hints: Mapping[int, Hint]
    log_bytes: int


class Ring(Protocol):
    """This broker's part in the ring."""

    @property
    def is_loaded(self) -> bool:
        """What this broker knew of its ring has been read from its disk."""

    @property
    def state(self) -> RingState | None:
        """The committed state, as far as this broker has applied it; None: it is in no ring yet."""

    @property
    def registration(self) -> Registration | None:
        """Return this process's registration; None until that is committed."""

    def view(self) -> RingView:
        """Return how consensus proceeds."""

    async def change(self, command: Command) -> None:
        """Carry a command out; on return it is in `state`. RingRefusedError, NotReadyError."""

    async def current(self) -> RingState:
        """A state that includes all that was committed when this was asked. NotReadyError."""

    async def found(self, broker_count: int) -> None:
        """Found a ring of brokers 0 to `broker_count` - 1; done when it is this ring already.

        RingExistsError, BrokerUnreachableError.
        """

    async def recover_alone(self) -> None:
        """Go on without the other voters, by hand: most of them are lost for good.

        RingRefusedError.
        """


class Steps(Protocol):
    """Steps of the ring: as they are asked for here, and as this broker has seen them."""

    async def take(self, kind: StepKind, brokers_before: int) -> StepReport:
        """Take a step to its end. StepNotTakenError, RingRefusedError, NotReadyError."""

    def age_ms(self, step: int) -> int | None:
        """For how long this broker has known an open step; None: it does not know it."""

    def times_ms(self, step: int) -> tuple[int | None, int | None]:
        """How long a step took, and held appends, that has ended; None: it was not seen here."""


class Broker(Protocol):
    """The broker behind the listeners."""

    @property
    def groups(self) -> GroupCoordinator:
        """Return the consumer groups."""

    @property
    def ring(self) -> Ring:
        """Its part in the ring."""

    @property
    def steps(self) -> Steps:
        """The ring's steps."""

    @property
    def ring_secret(self) -> str:
        """Return the secret that admin requests must name; empty: none."""

    def ring_history(self) -> Sequence[AppliedChange]:
        """Return the last changes of the ring's state that this process has applied."""

    def replication_lags(self) -> Mapping[int, Sequence[FollowerLag]]:
        """By range that this broker leads, how far its followers are behind."""

    def address_of(self, ordinal: int) -> tuple[str, int]:
        """Host and public port at which clients reach a broker of the ring."""

    @property
    def outside(self) -> Outside | None:
        """Return where clients outside reach the brokers; None: nowhere else."""

    @property
    def client_view(self) -> ClientView:
        """The part that clients see."""

    @property
    def ordinal(self) -> int:
        """Return the ordinal of this broker."""

    @property
    def incarnation(self) -> UUID:
        """Return the incarnation of its data directory."""

    @property
    def restart_kind(self) -> str:
        """Return how the boot before ended: clean, process, power, disk."""

    @property
    def is_direct(self) -> bool:
        """Data files bypass the page cache."""

    @property
    def durable_write_ms(self) -> float | None:
        """Median of some durable writes at the start."""

    @property
    def started_us(self) -> int:
        """Return when the process started, µs since the epoch."""

    @property
    def quarantined_count(self) -> int:
        """Batches that are known to be damaged."""

    @property
    def damaged_count(self) -> int:
        """Partitions that take no events because their data is damaged."""

    @property
    def counters(self) -> Counters:
        """Return the counters of the listeners."""

    @property
    def max_request_bytes(self) -> int:
        """Return the bound of one body."""

    def check_ready(self) -> None:
        """NotReadyError until recovery has ended, and from a stop on."""

    def now_us(self) -> int:
        """The broker's clock, µs since the epoch."""

    async def data_bytes(self) -> int | None:
        """Return the size of its data on disk; None: the disk does not answer."""

    async def disk_bytes(self) -> tuple[int, int] | None:
        """Used, and all, of the file system that holds the data; None: it does not answer."""

    def hosted(self, topic: str) -> OpenTopic:
        """Return the topic. TopicNotFoundError, InvalidTopicNameError."""

    def hosted_for_brokers(self, topic: str) -> OpenTopic:
        """Return the topic; to other brokers the ring's own ones too. As `hosted`."""

    def present(self, topic: str) -> OpenTopic | None:
        """The topic, when it is there and no call of `with_topic` waits for it."""

    def appends_to(self, hosted: OpenTopic, partition: int, moved: TailraceError | None) -> Appends:
        """Where to append to a partition, whoever leads it; NotLeaderError: it is sealed.

        `moved`: with which an append to a parent of it was answered, that goes on here.

        CorruptPartitionError when it is led here, and its data is damaged.
        """

    async def read_at_leader(
        self,
        hosted: OpenTopic,
        partition: int,
        target: bytes,
        accept: str,
        here: Callable[[], Awaitable[T]],
    ) -> T | LeaderAnswer:
        """Return what the broker that serves the partition answers to this GET, or `here` does.

        What that broker raises, NoLeaderError and TooManyForwardedError.
        """

    async def ask_broker(self, ordinal: int, target: bytes) -> bytes:
        """Return the body of what that broker answers to this GET for itself alone.

        What that broker raises, NoLeaderError and TooManyForwardedError.
        """

    async def forward_call(
        self,
        ordinal: int,
        request: ForwardedCall,
        wait_ms: int = 0,
        *,
        waits_for_memory: bool = True,
    ) -> LeaderAnswer:
        """Return what that broker answers for itself alone. `wait_ms`: how long it may wait.

        Without `waits_for_memory` ReadMemoryFullError at once.

        What that broker raises; NoLeaderError: it was not asked; OutcomeUnknownError: it was, and
        does not answer; TooManyForwardedError.
        """

    def with_topic(
        self,
        topic: str,
        use: Callable[[OpenTopic | None, TailraceError | None, bool], None],
        check: Callable[[Topic], object],
    ) -> None:
        """Call `use` with the topic, at once when it is there, else when it has been created.

        The last argument is whether this very call created the topic. `check` gets the topic that
        would be created; when it raises a TailraceError nothing is created.
        """

    async def create_topic(self, name: str, settings: TopicSettings) -> tuple[Topic, bool]:
        """The topic, and whether it is new."""

    async def alter_topic(self, name: str, changes: Mapping[str, Any]) -> Topic:
        """The topic with these fields of its settings changed; InvalidParameterError."""

    async def accept_loss(self, topic: str, partition: int, *, dry_run: bool) -> LostEnd:
        """Let a partition that has lost its end go on behind it. NothingLostError."""

    async def lost_here(self, range_id: int) -> Sequence[LostOffsets]:
        """What this broker lacks of a range, as `topics.lost_here`."""

    async def delete_topic(self, name: str) -> None:
        """Take the topic away; its data moves to the trash."""

    async def trashed_topics(self) -> Sequence[TrashedTopic]:
        """Deleted topics that are still there, the latest deletion first."""

    async def restore_topic(self, wanted: str, new_name: str | None) -> Topic:
        """Bring the deleted topic of this name or id back; NotInTrashError, TopicExistsError."""

    def topics(self) -> Sequence[OpenTopic]:
        """Return all topics by name."""

    @property
    def read_memory(self) -> ReadMemory:
        """Return the memory of answers; readers wait there."""

    @property
    def catch_up_memory(self) -> ReadMemory:
        """Return the memory of what is read for other brokers; they wait there."""

    def sealed_log(self, topic_id: UUID, partition: int) -> SealedLog:
        """A log of which this broker has a whole copy. NoLeaderError: it has not."""

    def check_produce_memory(self, size_bytes: int) -> None:
        """ProduceMemoryFullError when there is no room for so much now."""

    def take_produce_memory(self, size_bytes: int) -> None:
        """Count bytes of a body; ProduceMemoryFullError when the bound is reached."""

    def return_produce_memory(self, size_bytes: int) -> None:
        """The body has been answered."""
