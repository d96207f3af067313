"""What this process is in one range: one object that all its logs of the range share.

So a change of the role is one change, in one turn of the event loop, whatever it interrupts.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from tailrace_broker.model.errors import NotEnoughReplicasError, TailraceError
from tailrace_broker.model.topic import TopicSettings
from tailrace_broker.storage.segments.writer import LogPlace

# Makes the error that says who serves a partition instead: of a topic's name, and the partition.
Elsewhere = Callable[[str, int], TailraceError]


class LogInRange(Protocol):
    """What a role asks of a log."""

    @property
    def settings(self) -> TopicSettings:
        """Return its topic's settings."""

    def on_role_changed(self) -> None:
        """`RangeRole.epoch` or another attribute of it has changed."""

    def on_shortage(self) -> None:
        """There is a shortage of replicas, or none any more."""

    def flush(self) -> None:
        """Make durable what is not, at once."""


class InSync(NamedTuple):
    """The in-sync replicas of a range, and those of them that answer. `copies`: of the ring."""

    members: Sequence[int]
    answering: Sequence[int]
    copies: int

    def lacking(self, settings: TopicSettings) -> int | None:
        """How many replicas must have each event of the topic; None: as many answer."""
        needed = min(settings.min_in_sync_replicas, self.copies)
        return needed if len(self.answering) < needed else None


class RangeRole:
    """`epoch`: this process leads the range in it; None: it takes no appends.

    `elsewhere`: None when this process serves the range's partitions, at least to readers.
    `commits_alone`: it has the only copy. Else `PartitionLog.commit` says what is committed.
    `copies`: in-sync replicas, without which nothing is committed. `is_held`: appends wait for the
    end of the epoch. `is_in_step`: a step is to seal the range, so all logs are flushed at once.
    """

    __slots__ = (
        "_count_in_sync", "_given_up", "_logs", "_on_given_up", "_prove", "_short",
        "commits_alone", "copies", "elsewhere", "epoch", "is_held", "is_in_step",
    )  # fmt: skip

    def __init__(
        self,
        epoch: int | None,
        elsewhere: Elsewhere | None = None,
        *,
        commits_alone: bool = True,
        on_given_up: Callable[[int], None],
        prove: Callable[[], Awaitable[bool]],
        count_in_sync: Callable[[], InSync | None] = lambda: None,
    ) -> None:
        """`on_given_up` is called once with each epoch that this process can lead in no more.

        `prove` says whether it still leads where others have copies. `count_in_sync` counts them
        now; None: this process does not lead there.
        """
        self.epoch = epoch
        self.elsewhere = elsewhere
        self.commits_alone = commits_alone
        self.copies = 1
        self.is_held = self.is_in_step = False
        self._count_in_sync = count_in_sync
        self._short: set[LogInRange] = set()  # logs that lack replicas
        self._on_given_up = on_given_up
        self._prove = prove
        self._given_up: int | None = None
        self._logs: dict[LogInRange, None] = {}

    def change(
        self,
        epoch: int | None,
        elsewhere: Elsewhere | None = None,
        *,
        commits_alone: bool = True,
    ) -> None:
        """Be this from now on. O(logs); those with appends under way answer them."""
        self.is_held = False
        self.epoch, self.elsewhere, self.commits_alone = epoch, elsewhere, commits_alone
        for log in list(self._logs):
            log.on_role_changed()

    def hold(self) -> None:
        """Append nothing more in this epoch: what comes waits until `change`."""
        self.is_held = True
        for log in list(self._logs):
            log.on_role_changed()

    def take_step(self, *, is_open: bool) -> None:
        """A step of the ring changes the range, or none does. O(logs) when one begins."""
        if is_open and not self.is_in_step:
            for log in list(self._logs):
                log.flush()
        self.is_in_step = is_open

    def look_for_shortage(self) -> None:
        """Have logs that lack replicas refuse appends and give up those that wait.

        Those that lack none any more take them again. O(logs) while a replica is away.
        """
        in_sync = self._count_in_sync()
        short: set[LogInRange] = set()
        if in_sync is not None and len(in_sync.answering) < in_sync.copies:
            short = {log for log in self._logs if in_sync.lacking(log.settings) is not None}
        for log in short | self._short:
            log.on_shortage()
        self._short = short

    def shortage(
        self, place: LogPlace, settings: TopicSettings, *, is_attempted: bool = False
    ) -> TailraceError | None:
        """Return why appends cannot be committed now; None: they can."""
        in_sync = self._count_in_sync()
        needed = None if in_sync is None else in_sync.lacking(settings)
        if in_sync is None or needed is None:
            return None
        error = NotEnoughReplicasError(
            f'partition {place.partition} of topic "{place.topic}": of its in-sync replicas '
            f"{sorted(in_sync.members)} only {sorted(in_sync.answering)} answer, and {needed} must "
            "have each event (minInSyncReplicas); start the brokers that are down (tailrace ring "
            "status)",
            topic=place.topic,
            partition=place.partition,
            range=place.range_id,
        )
        error.write_attempted = is_attempted
        return error

    def refusal(self, place: LogPlace) -> TailraceError:
        """The error of appends that this process does not take."""
        if self.elsewhere is not None:
            return self.elsewhere(place.topic, place.partition)
        return place.no_leader(
            f'partition {place.partition} of topic "{place.topic}" takes no more events: range '
            f"{place.range_id} is sealed, or its new leader is not ready; try again"
        )

    def unknown_end(self, place: LogPlace) -> TailraceError:
        """The error of readers who ask a new leader for its end."""
        return place.no_leader(
            f'the new leader of partition {place.partition} of topic "{place.topic}" does not know '
            "yet how much is committed; try again"
        )

    async def check_led(self, place: LogPlace) -> None:
        """NoLeaderError: another broker may lead by now, and have acknowledged more."""
        if not self.commits_alone and not await self._prove():
            raise place.no_leader(
                f'the leader of partition {place.partition} of topic "{place.topic}" is not sure '
                "that it leads still: too few replicas answer; try again"
            )

    def interrupted(self, place: LogPlace, *, is_deposed: bool) -> TailraceError:
        """What becomes of appends whose write the end of the epoch has overtaken."""
        error: TailraceError = place.no_leader(
            f"the leader's epoch has ended while it wrote to partition {place.partition} of topic "
            f'"{place.topic}": the events may be stored; send them again'
        )
        if is_deposed:
            error = self.refusal(place)
        error.write_attempted = True
        return error

    def give_up(self, epoch: int) -> None:
        """A log of the range must not append in this epoch any more."""
        if epoch == self.epoch and epoch != self._given_up:
            self._given_up = epoch
            self._on_given_up(epoch)

    def add(self, log: LogInRange) -> None:
        """The log was opened."""
        self._logs[log] = None

    def remove(self, log: LogInRange) -> None:
        """The log goes."""
        self._short.discard(log)
        self._logs.pop(log, None)
