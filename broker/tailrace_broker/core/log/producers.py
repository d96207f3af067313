"""What a partition remembers of its producers, so that a retry is stored once. A machine.

A request that names its producer and a sequence is *new*, a *duplicate* of one that is stored or
under way, or *unknown*: it may have been stored so long ago that nobody remembers. What holds:

- Remembered are the last 1,000 appends of each producer that are not older than 10 minutes, each by
  itself: a late 7 after 8 is new.
- What is no longer remembered leaves a mark: a sequence at or below the highest forgotten one is
  unknown, never new and never a duplicate.
- A partition remembers 100,000 appends; over that, first those of the producer that has been
  silent longest go, and leave its mark. It remembers 10,000 producers; over that, first the mark
  of the one that has been silent longest goes, once that is 10 minutes. Then all it sends is new.
  While none has been silent for so long, a producer that nobody knows is refused.

So within 10 minutes of an append a retry of it is never stored again, whatever else happens to a
log that is whole. Of one with damage, what was appended there is unknown; but for a request with a
sequence above all that are remembered of its producer, which is new.
Time is the append time of batches, and `now_us` of a request; nothing happens automatically.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tailrace.wire import BatchHeader
from tailrace_broker.codec.producers import (
    NO_SEQUENCE,
    ROW,
    Checkpoint,
    ProducerState,
    Row,
    decode_table,
)
from tailrace_broker.model.damage import Damage
from tailrace_broker.model.errors import (
    SequenceReusedError,
    SequenceUnknownError,
    TooManyProducersError,
)

# Of a log without batches.
NOTHING = Checkpoint(0, ())

_ID_BYTES = 16
ROWS = np.dtype(
    [("sequence", "<i8"), ("offset", "<i8"), ("append_time_us", "<i8"), ("record_count", "<u4")]
)

assert ROWS.itemsize == ROW.size


class Producer(NamedTuple):
    """Who sends a request, and which of its requests it is; a retry has the same sequence."""

    id: bytes
    sequence: int

    @classmethod
    def named(cls, name: bytes, sequence: int) -> "Producer":
        """By the name that the producer gave itself."""
        return cls(blake2b(name, digest_size=_ID_BYTES).digest(), sequence)


class Verdict(Enum):
    """What a request is that is not answered by what is stored."""

    NEW = "new"
    UNDER_WAY = "under way"


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The request is stored: `offset` is its first record's."""

    offset: int


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """What a partition remembers at most; the counts are of one producer or of all together."""

    age_us: int = 600_000_000
    rows_per_producer: int = 1_000
    rows: int = 100_000
    producers: int = 10_000

    def __post_init__(self) -> None:
        """One producer alone never has too many."""
        assert 1 <= self.rows_per_producer <= self.rows


@dataclass(slots=True)
class _Window:
    """One producer: its appends in the order of the log, packed since there may be many."""

    forgotten: int = NO_SEQUENCE
    highest: int = NO_SEQUENCE
    last_append_us: int = 0
    rows: bytearray = field(default_factory=bytearray)

    @property
    def row_count(self) -> int:
        return len(self.rows) // ROW.size

    def column(self, name: str) -> npt.NDArray[np.int64]:
        """A view: while it lives, rows neither come nor go."""
        return np.frombuffer(self.rows, ROWS)[name]

    def find(self, sequence: int) -> Row | None:
        """The append of a sequence."""
        found = np.flatnonzero(self.column("sequence") == sequence)
        return Row._make(ROW.unpack_from(self.rows, found[-1] * ROW.size)) if len(found) else None

    def add(self, row: Row) -> None:
        self.rows += ROW.pack(*row)
        self.highest = max(self.highest, row.sequence)
        self.last_append_us = row.append_time_us

    def forget(self, old_us: int, row_count_max: int) -> int:
        """The first rows: those of this time or older, and what are too many. How many."""
        surplus_bytes = len(self.rows) - row_count_max * ROW.size
        end = 0
        while end < len(self.rows):
            sequence, _, append_time_us, _ = ROW.unpack_from(self.rows, end)
            if end >= surplus_bytes and append_time_us > old_us:
                break
            self.forgotten = max(self.forgotten, sequence)
            end += ROW.size
        del self.rows[:end]
        return end // ROW.size


class ProducerWindows:
    """The producers of one partition. Only `replay` of stored batches changes what is remembered.

    So what a restart rebuilds from the log is what the appends built.
    """

    def __init__(
        self, checkpoint: Checkpoint = NOTHING, limits: WindowLimits = WindowLimits()
    ) -> None:
        """As the log below the checkpoint's end has it."""
        self._limits = limits
        self.end_offset = checkpoint.end_offset  # what stands before it is known
        # Both: the one that has been silent longest is first.
        self._active: OrderedDict[bytes, _Window] = OrderedDict()  # with rows
        self._silent: OrderedDict[bytes, _Window] = OrderedDict()  # without; just a mark
        self._row_count = 0
        self._under_way: dict[Producer, int] = {}
        for state in checkpoint.producers:
            self._restore(state)

    @property
    def is_empty(self) -> bool:
        """No producer is known."""
        return not self._active and not self._silent

    def begin(self, producer: Producer, record_count: int, now_us: int) -> Verdict | Duplicate:
        """What a request is; a new one is under way from now on, until `end`.

        SequenceReusedError; SequenceUnknownError; TooManyProducersError.
        """
        count_under_way = self._under_way.get(producer)
        if count_under_way is not None:
            check_count(producer, record_count, count_under_way)
            return Verdict.UNDER_WAY
        window = self._active.get(producer.id) or self._silent.get(producer.id)
        if window is None:
            self._check_room(now_us)
        elif producer.sequence <= window.highest:
            row = window.find(producer.sequence)
            if row is not None and row.append_time_us > now_us - self._limits.age_us:
                check_count(producer, record_count, row.record_count)
                return Duplicate(row.offset)
            if row is not None or producer.sequence <= window.forgotten:
                raise sequence_unknown(producer)
        self._under_way[producer] = record_count
        return Verdict.NEW

    def knows(self, producer: Producer) -> bool:
        """Whether the request is under way or remembered here."""
        if producer in self._under_way:
            return True
        window = self._active.get(producer.id)
        return window is not None and window.find(producer.sequence) is not None

    def end(self, producer: Producer) -> None:
        """Its append has ended: stored, and then replayed, or failed, and then a retry is new."""
        del self._under_way[producer]

    def replay(self, header: BatchHeader, table: bytes | memoryview) -> None:
        """Remember what a stored batch brought, unless it is known; in the order of the log."""
        if header.base_offset < self.end_offset:
            return
        for entry in decode_table(table):
            row = Row(
                entry.sequence,
                header.base_offset + entry.first_record,
                header.append_time_us,
                entry.record_count,
            )
            self._remember(entry.id, row)
        self.end_offset = header.end_offset

    def checkpoint(self, end_offset: int) -> Checkpoint:
        """All that is remembered; `end_offset`: of the log, all of whose batches were replayed."""
        states = [
            ProducerState(id, window.forgotten, window.last_append_us, bytes(window.rows))
            for id, window in self._windows()
        ]
        return Checkpoint(end_offset, states)

    def validate(self) -> None:
        """Assert what always holds."""
        limits = self._limits
        assert not self._active.keys() & self._silent.keys()
        assert not any(window.rows for window in self._silent.values())
        for earlier, later in pairwise(window for _, window in self._windows()):
            assert earlier.last_append_us <= later.last_append_us
        for window in self._active.values():
            assert 1 <= window.row_count <= limits.rows_per_producer
            times_us = window.column("append_time_us").tolist()
            assert times_us == sorted(times_us)
            assert times_us[-1] == window.last_append_us
            assert window.highest == max(window.forgotten, *window.column("sequence").tolist())
        assert self._row_count == sum(each.row_count for each in self._active.values())
        assert self._row_count <= limits.rows

    def _windows(self) -> Iterator[tuple[bytes, _Window]]:
        """The one that has been silent longest first."""
        return chain(self._silent.items(), self._active.items())

    def _restore(self, state: ProducerState) -> None:
        window = _Window(state.forgotten, NO_SEQUENCE, state.last_append_us, bytearray(state.rows))
        window.highest = int(window.column("sequence").max(initial=state.forgotten))
        (self._active if state.rows else self._silent)[state.id] = window
        self._row_count += window.row_count

    def _check_room(self, now_us: int) -> None:
        """For one more producer: TooManyProducersError."""
        count = len(self._silent) + len(self._active)
        if count < self._limits.producers:
            return
        _, longest_silent = next(self._windows())
        if longest_silent.last_append_us > now_us - self._limits.age_us:
            raise TooManyProducersError(
                f"{count} producers sent to the partition in the last "
                f"{self._limits.age_us // 60_000_000} minutes; keep a producer's id and count its "
                "sequence up, or send without an id"
            )

    def _remember(self, id: bytes, row: Row) -> None:
        """Add to the producer's window, which becomes the last of all."""
        window = self._active.get(id)
        if window is None:
            window = self._silent.pop(id) if id in self._silent else _Window()
            self._active[id] = window
        self._active.move_to_end(id)
        old_us = row.append_time_us - self._limits.age_us
        window.add(row)
        self._row_count += 1 - window.forget(old_us, self._limits.rows_per_producer)
        self._make_room(old_us)

    def _make_room(self, old_us: int) -> None:
        """Forget those that have been silent since `old_us`, and what is over the limits."""
        while self._row_count > self._limits.rows or _first(self._active).last_append_us <= old_us:
            id, window = self._active.popitem(last=False)
            self._row_count -= window.forget(old_us, 0)
            self._silent[id] = window
        while (
            len(self._silent) + len(self._active) > self._limits.producers
            and self._silent
            and _first(self._silent).last_append_us <= old_us
        ):
            self._silent.popitem(last=False)


def cut_checkpoint(checkpoint: Checkpoint, end_offset: int) -> Checkpoint:
    """Of a log that has lost what it had from `end_offset` on: without the appends there."""
    states = []
    for state in checkpoint.producers:
        rows = np.frombuffer(state.rows, ROWS)
        kept = rows[rows["offset"] < end_offset]
        last_append_us = int(kept["append_time_us"][-1]) if len(kept) else 0
        if len(kept) or state.forgotten != NO_SEQUENCE:
            states.append(state._replace(rows=kept.tobytes(), last_append_us=last_append_us))
    states.sort(key=lambda state: (bool(state.rows), state.last_append_us))  # marks first
    return Checkpoint(end_offset, states)


def damage_checkpoint(checkpoint: Checkpoint, damages: Sequence[Damage]) -> Checkpoint:
    """Of a log with offsets that cannot be read. What was appended there is not known to be stored.

    Nor is it known what else was: a sequence up to the highest is unknown unless it is remembered.
    """
    states = []
    for state in checkpoint.producers:
        rows = kept = np.frombuffer(state.rows, ROWS)
        for damage in damages:
            offsets = kept["offset"]
            kept = kept[(offsets < damage.first_offset) | (offsets >= damage.end_offset)]
        forgotten = int(rows["sequence"].max(initial=state.forgotten))
        last_append_us = int(kept["append_time_us"][-1]) if len(kept) else 0
        states.append(ProducerState(state.id, forgotten, last_append_us, kept.tobytes()))
    states.sort(key=lambda state: (bool(state.rows), state.last_append_us))  # marks first
    return Checkpoint(checkpoint.end_offset, states)


def _first(windows: OrderedDict[bytes, _Window]) -> _Window:
    """The one that has been silent longest."""
    return next(iter(windows.values()))


def sequence_unknown(producer: Producer) -> SequenceUnknownError:
    """Return the error of a request that may have been stored long ago."""
    return SequenceUnknownError(
        f"sequence {producer.sequence} was used so long ago that it is not known whether its "
        "events were stored; nothing was stored now. Read the topic to see, and go on with a "
        "higher sequence",
        sequence=producer.sequence,
    )


def check_count(producer: Producer, record_count: int, original_count: int) -> None:
    """A retry has as many events as the original: SequenceReusedError."""
    if record_count != original_count:
        raise SequenceReusedError(
            f"sequence {producer.sequence} brought {original_count} events before, and now "
            f"{record_count}; nothing was stored now. A retry repeats its request, another request "
            "has another sequence",
            sequence=producer.sequence,
        )
