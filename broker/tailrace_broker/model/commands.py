"""Commands to the replicated state. Each is conditional: it names the state that it expects.

Each travels with an id (`Stamped`), by which it is applied once, however often it arrives.
Applied by `core.ring_commands`; encoding: `codec.commands`.
"""

from typing import Literal
from uuid import UUID

import msgspec

from tailrace_broker.model.ring_state import LostOffsets, RangeEnd, Replica, Start
from tailrace_broker.model.topic import RetentionBounds, TopicSettings


class _Command(msgspec.Struct, frozen=True, array_like=True, tag_field="command"):
    pass


# --- brokers ---


class Register(_Command, frozen=True, tag="register"):
    """A process has started. `starts`: of its disk, oldest first, itself last.

    They go back to the last one that the disk knows to be registered, so that the worst loss since
    can be known; when none of them but the last is known to the ring the disk is new, or a copy.
    `replaces`: number of the broker's registration until now, 0 for none, as the process has seen
    it when it was current. `ends`: what it has recovered of its ranges.
    `damaged`: ranges in which it found committed records damaged or missing.
    """

    ordinal: int
    incarnation: UUID
    boot: int
    starts: tuple[Start, ...]
    replaces: int
    ends: tuple[RangeEnd, ...] = ()
    damaged: tuple[int, ...] = ()


class Fence(_Command, frozen=True, tag="fence"):
    """The broker, in this registration, is not heard; or it is again (`is_fenced` False)."""

    ordinal: int
    registration: int
    is_fenced: bool = True


class Retire(_Command, frozen=True, tag="retire"):
    """The broker leaves for good. Refused while a range names it.

    `registration`: its number, as whoever asks has seen it.
    """

    ordinal: int
    registration: int
    accept_loss: bool = False


# --- ranges ---


class Lead(_Command, frozen=True, tag="lead"):
    """This broker leads the range with `epoch` + 1; it has been `epoch` until now.

    `without`: brokers that it takes for dead; they leave the ISR as far as the floor lets them.
    """

    range_id: int
    epoch: int
    ordinal: int
    registration: int
    without: tuple[int, ...] = ()


class ChangeIsr(_Command, frozen=True, tag="isr"):
    """Of the leader of `epoch`, which knows `version`: these are in sync now."""

    range_id: int
    epoch: int
    version: int
    isr: tuple[Replica, ...]


class AcceptLoss(_Command, frozen=True, tag="accept-loss"):
    """By hand: all ISR entries of the range are ghosts; this broker is to lead what it has.

    Of a sealed range nobody has a whole copy: what this broker has is one from now on. `lost`: what
    it lacks; what the only copy of an open one lacks, which is led on.
    """

    range_id: int
    epoch: int
    ordinal: int
    registration: int
    lost: tuple[LostOffsets, ...] = ()


class Lost(_Command, frozen=True, tag="lost"):
    """The broker has found committed records of the range damaged or missing, since it registered.

    `losses`: how often it had before, in this registration.
    """

    range_id: int
    ordinal: int
    registration: int
    losses: int


# --- topics ---


class CreateTopic(_Command, frozen=True, tag="create-topic"):
    """Refused when it exists with other settings; internal names too are created so."""

    name: str
    topic_id: UUID
    settings: TopicSettings


class AlterTopic(_Command, frozen=True, tag="alter-topic"):
    """`changes`: fields of the settings, as in JSON (camelCase).

    `topic_id`: None, whichever it is.
    """

    name: str
    changes: dict[str, int | bool | str | None]
    topic_id: UUID | None = None


class DeleteTopic(_Command, frozen=True, tag="delete-topic"):
    """It can be restored until it is purged. `topic_id`: None, whichever has the name."""

    name: str
    deleted_us: int
    topic_id: UUID | None = None


class RestoreTopic(_Command, frozen=True, tag="restore-topic"):
    """`new_name`: None, its own."""

    topic_id: UUID
    new_name: str | None = None


class PurgeTopics(_Command, frozen=True, tag="purge-topics"):
    """Forget these deleted topics: their data is gone, or about to be.

    `deleted_us`: when each was deleted, as whoever asks has seen it.
    """

    deleted_us: dict[UUID, int]


# --- steps ---


StepKind = Literal["grow", "shrink"]


class BeginStep(_Command, frozen=True, tag="begin-step"):
    """Grow or shrink the ring by one broker; it has `brokers_before` until then."""

    kind: StepKind
    brokers_before: int


class Reslice(_Command, frozen=True, tag="re-slice"):
    """Begin to continue the range, for topics that want another number of partitions in it."""

    range_id: int


class Sealed(_Command, frozen=True, tag="sealed"):
    """The leader of `epoch` appends nothing more: the ends of all partitions of the range.

    `ends`: by topic id, in the order of the partitions' ids. `prepared`: replicas that will hold
    the children from their first record on. `held_after_ms`: how long the leader knew of the step
    before it held appends.
    """

    step: int
    range_id: int
    epoch: int
    ends: dict[UUID, tuple[int, ...]]
    prepared: tuple[Replica, ...]
    held_after_ms: int = 0


class AbortStep(_Command, frozen=True, tag="abort-step"):
    """Its ranges go on as they were. `why` the leader of `range_id` has not reported its ends."""

    step: int
    range_id: int | None = None
    why: str = ""


# --- copies of sealed ranges ---


class Completed(_Command, frozen=True, tag="completed"):
    """The broker has a whole copy: on its disk, and read back from there with the same checksums.

    `losses`: how often it had found damage in the range before, in this registration.
    """

    range_id: int
    ordinal: int
    registration: int
    losses: int


class DropCopy(_Command, frozen=True, tag="drop-copy"):
    """The broker need not hold the range any more. Refused while too few others do."""

    range_id: int
    ordinal: int


class TrimSealed(_Command, frozen=True, tag="trim-sealed"):
    """Of the broker that decides for a sealed range: what is below these offsets is removed.

    `starts`: by topic id, in the order of the partitions' ids; a topic that is not named stays as
    it is. A partition whose log start is its end leaves, and a range without partitions.
    `kept`: the retention by which that was decided, of topics that do not keep all for ever. A
    topic that has another one by now stays as it is.
    """

    range_id: int
    ordinal: int
    registration: int
    starts: dict[UUID, tuple[int, ...]]
    kept: dict[UUID, RetentionBounds] = {}


class InheritedAll(_Command, frozen=True, tag="inherited"):
    """A partition of an internal topic holds all that its parents say of its tokens."""

    topic_id: UUID
    partition: int


Command = (
    Register
    | Fence
    | Retire
    | Lead
    | ChangeIsr
    | AcceptLoss
    | Lost
    | CreateTopic
    | AlterTopic
    | DeleteTopic
    | RestoreTopic
    | PurgeTopics
    | BeginStep
    | Reslice
    | Sealed
    | AbortStep
    | Completed
    | DropCopy
    | TrimSealed
    | InheritedAll
)


class Stamped(msgspec.Struct, frozen=True, array_like=True):
    """A command with its id: a random number of 63 bits."""

    id: int
    command: Command
