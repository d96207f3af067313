"""Appends for one partition that its leader has not answered yet, in order. A machine.

They go to whoever leads the partition, and go again elsewhere when nothing was attempted, or when
a producer's sequence makes a second copy impossible. While something must be repeated, nothing is
sent before all that was sent is answered or given up: no request passes an earlier one.

A leader that is not heard any more may have stored what it was sent. What has no producer is
answered so, and never repeated.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from tailrace_broker.codec.batch import BatchBody
from tailrace_broker.codec.columns import RecordColumns
from tailrace_broker.core.log.producers import Producer
from tailrace_broker.model.append_outcome import OnAppended
from tailrace_broker.model.errors import (
    NoLeaderError,
    NotLeaderError,
    NotReadyError,
    TailraceError,
)
from tailrace_broker.model.replication import LogKey

# After a refusal, until the same leader is asked again; doubled each time.
BACKOFF_MS_MIN = 10
BACKOFF_MS_MAX = 320
# How long a broker that leads no more may take to answer what it was sent.
DEPOSED_MS = 1000
NEVER_MS = 1 << 62
# What was moved from a partition's parents comes first in its order.
_MOVED_MAX = 1 << 32


class EventContents(NamedTuple):
    """A single event."""

    key: bytes | None
    value: bytes
    timestamp_us: int
    flags: int


Contents = EventContents | RecordColumns | BatchBody


class WaitingAppend:
    """A request for one partition until it is answered.

    `may_be_stored`: a leader was sent it, and is not heard any more. `error`: the last refusal.
    `is_ready_made`: it came as a batch for this very partition, and goes nowhere else.
    """

    __slots__ = (
        "contents", "deadline_ms", "done", "error", "is_in_work", "is_ready_made",
        "may_be_stored", "order", "producer",
    )  # fmt: skip

    def __init__(
        self,
        contents: Contents,
        done: OnAppended,
        producer: Producer | None,
        deadline_ms: int,
    ) -> None:
        self.contents = contents
        self.is_ready_made = isinstance(contents, BatchBody)  # others become one when they are sent
        self.done = done
        self.producer = producer
        self.deadline_ms = deadline_ms
        self.may_be_stored = False
        self.error: TailraceError | None = None
        self.is_in_work = False  # its contents are being compressed
        self.order = 0


def is_refusal(error: TailraceError) -> bool:
    """Nothing was attempted, and another broker, or this one a little later, may take it."""
    if error.write_attempted or "children" in error.members:
        return False
    return isinstance(error, NotLeaderError | NoLeaderError | NotReadyError)


def is_sealed(error: TailraceError) -> bool:
    """The partition takes no more, and nothing was attempted: the events go on in its children."""
    sealed = isinstance(error, NotLeaderError) and "children" in error.members
    return sealed and not error.write_attempted


def is_role_end(error: TailraceError) -> bool:
    """The leader wrote when its epoch ended: whether it is stored the next leader knows."""
    return error.write_attempted and isinstance(error, NotLeaderError | NoLeaderError)


class PartitionQueue:
    """`key`: the partition's. `turn` grows whenever what waits is begun again."""

    __slots__ = (
        "_backoff_ms", "_count", "_give_up_at_ms", "_moved_count", "_returned", "_sent",
        "_target", "_turns", "_waiting", "key", "resume_at_ms", "turn",
    )  # fmt: skip

    def __init__(self, key: LogKey, turns: Iterator[int]) -> None:
        """`turns`: numbers that grow, of all queues of this process."""
        self.key = key
        self.turn = next(turns)
        self._turns = turns
        self.resume_at_ms = 0  # nothing is sent before
        self._waiting: deque[WaitingAppend] = deque()
        self._sent: dict[int, WaitingAppend] = {}  # by number, in order, to `_target`
        self._returned: list[WaitingAppend] = []  # to be repeated
        self._target: int | None = None
        self._give_up_at_ms: int | None = None
        self._backoff_ms = BACKOFF_MS_MIN
        self._count = self._moved_count = 0

    def __len__(self) -> int:
        """How many are not answered."""
        return len(self._waiting) + len(self._sent) + len(self._returned)

    @property
    def has_unsent(self) -> bool:
        """Something is to be sent, or sent again."""
        return bool(self._waiting or self._returned)

    @property
    def target(self) -> int | None:
        """The broker whose numbers those of what was sent are."""
        return self._target

    @property
    def has_sent(self) -> bool:
        """Of something it is not known whether it is to be sent again."""
        return bool(self._sent)

    def add(self, append: WaitingAppend) -> None:
        """Behind all others."""
        self._count += 1
        append.order = _MOVED_MAX + self._count
        self._waiting.append(append)

    def add_moved(self, append: WaitingAppend) -> None:
        """What came to a parent of the partition: before all that came to itself, in order.

        All that a leader held for a step comes in one turn: thousands.
        """
        self._moved_count += 1
        append.order = self._moved_count
        place = bisect_left(self._waiting, _MOVED_MAX, key=attrgetter("order"))
        self._waiting.insert(place, append)

    def seal(self, now_ms: int) -> None:
        """Nobody leads the partition any more: wait for answers that are on their way."""
        if self._sent and self._give_up_at_ms is None:
            self._give_up_at_ms = now_ms + DEPOSED_MS

    def next(self, leader: int | None, now_ms: int) -> WaitingAppend | None:
        """Return what is to be sent to the leader now; `sent` follows, or nothing."""
        if self._sent and leader != self._target:
            self._leave(now_ms)
        elif leader is not None:
            self._give_up_at_ms = None
        if self._returned and not self._sent:
            self._begin_again()
        must_wait = self._returned or (self._sent and leader != self._target)
        if leader is None or must_wait or now_ms < self.resume_at_ms or not self._waiting:
            return None
        self._target = leader
        return self._waiting[0]

    def sent(self, number: int) -> None:
        """The first that waits was sent under this number."""
        self._sent[number] = self._waiting.popleft()

    def stored(self, number: int) -> WaitingAppend | None:
        """Its leader has it. None: it was given up before."""
        self._backoff_ms = BACKOFF_MS_MIN
        return self._sent.pop(number, None)

    def failed(self, number: int, error: TailraceError, now_ms: int) -> WaitingAppend | None:
        """Return the request if the error is its answer; None: it is repeated, or was given up."""
        append = self._sent.pop(number, None)
        if append is None:
            return None
        if is_refusal(error) or is_sealed(error):
            self._return(append, error)
            self.resume_at_ms = now_ms + self._backoff_ms
            if not self._sent:
                self._backoff_ms = min(2 * self._backoff_ms, BACKOFF_MS_MAX)
            return None
        if is_role_end(error) and append.producer is not None:
            append.may_be_stored = True
            self._return(append, error)
            return None
        return append

    def lost(self, ordinal: int, handed_over: int) -> list[WaitingAppend]:
        """The connection to that broker broke: what was handed over may be stored there.

        `handed_over`: the largest number of those. Return what is given up.
        """
        return self._give_up(handed_over) if ordinal == self._target else []

    def expired(self, now_ms: int) -> list[WaitingAppend]:
        """Return what is given up now. What was sent may be stored."""
        given_up: list[WaitingAppend] = []
        if self._give_up_at_ms is not None and now_ms >= self._give_up_at_ms:
            given_up += self._give_up()
        for number in [key for key, each in self._sent.items() if each.deadline_ms <= now_ms]:
            append = self._sent.pop(number)
            append.may_be_stored = True
            given_up.append(append)
        for append in [each for each in self._returned if each.deadline_ms <= now_ms]:
            self._returned.remove(append)
            given_up.append(append)
        while self._waiting and self._waiting[0].deadline_ms <= now_ms:
            given_up.append(self._waiting.popleft())
        return given_up

    def take_waiting(self) -> list[WaitingAppend]:
        """Return what is not sent: its topic is gone, or its partition is sealed."""
        taken = sorted([*self._returned, *self._waiting], key=lambda each: each.order)
        self._returned = []
        self._waiting.clear()
        return taken

    def validate(self) -> None:
        """Assert what always holds."""
        orders = [each.order for each in (*self._sent.values(), *self._waiting)]
        assert orders == sorted(orders)
        assert list(self._sent) == sorted(self._sent)
        assert self._target is not None or not self._sent

    def _return(self, append: WaitingAppend, error: TailraceError | None) -> None:
        append.error = error or append.error
        self._returned.append(append)

    def _leave(self, now_ms: int) -> None:
        """Another broker leads, or none: what has a producer need not wait for the answer."""
        if all(each.producer is not None for each in self._sent.values()):
            self._give_up()
        elif self._give_up_at_ms is None:
            self._give_up_at_ms = now_ms + DEPOSED_MS

    def _give_up(self, handed_over: int | None = None) -> list[WaitingAppend]:
        """Wait for no answer any more; return what must not be repeated."""
        given_up = []
        for number, append in self._sent.items():
            was_handed_over = handed_over is None or number <= handed_over
            append.may_be_stored = append.may_be_stored or was_handed_over
            if was_handed_over and append.producer is None:
                given_up.append(append)
            else:
                self._return(append, None)
        self._sent = {}
        self._give_up_at_ms = None
        return given_up

    def _begin_again(self) -> None:
        """What was sent is all answered or given up: what came back goes first."""
        returned = sorted(self._returned, key=lambda each: each.order)
        self._returned = []
        self._waiting.extendleft(reversed(returned))
        self.turn = next(self._turns)
