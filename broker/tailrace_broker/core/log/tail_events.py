"""The events and effects of the machines of a log's tail (`core/log/`).

Events are per write, never per record: a single event is one list append until its group is
written.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from tailrace.wire import BatchHeader
from tailrace_broker.codec.batch import BatchBody, BatchPlace, StoredBatch
from tailrace_broker.codec.columns import RecordColumns
from tailrace_broker.core.log.producers import ProducerWindows
from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.model.append_outcome import (
    CutFailed,
    CutOutcome,
    CutRefused,
    OnAppended,
    OnCut,
)
from tailrace_broker.model.errors import TailraceError
from tailrace_broker.model.topic import TopicSettings


class LogEnd(NamedTuple):
    """The written end: where the next batch goes, and what it follows.

    `is_behind_loss`: the epoch before it is not known, and not below `epoch`.
    """

    offset: int
    epoch: int
    append_time_us: int
    is_behind_loss: bool = False

    @classmethod
    def of(cls, segment: SegmentState) -> "LogEnd":
        """Of a log of which this is the last segment."""
        time_us, is_behind_loss = segment.last_append_time_us, segment.is_behind_damage
        return cls(segment.end_offset, segment.last_epoch, time_us, is_behind_loss)

    @classmethod
    def behind(cls, header: BatchHeader) -> "LogEnd":
        """After this batch."""
        return cls(header.end_offset, header.epoch, header.append_time_us)

    def follows(self, epoch: int) -> bool:
        """Whether a batch that comes behind one of this epoch goes here."""
        return epoch == self.epoch or (self.is_behind_loss and epoch > self.epoch)


class CutLog(NamedTuple):
    """Cut a follower's log at `end`, behind a batch of `epoch`; below the high watermark, too.

    `is_reset`: nothing before is kept either: the log is empty, and goes on at `end`.
    """

    end: int
    epoch: int
    is_reset: bool
    done: OnCut


# --- in ---


@dataclass(frozen=True, slots=True)
class JournalTurn:
    """The journal fills a frame, and asks what this log writes now."""


@dataclass(frozen=True, slots=True)
class SegmentTurn:
    """The log may write its segments now."""


class Written(msgspec.Struct, frozen=True):
    """The write in flight has ended. `is_journaled`: it went into the journal."""

    batches: Sequence[StoredBatch]
    is_journaled: bool
    is_durable: bool


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """The write in flight has failed. `needs_cut`: it may still stand in the segment."""

    error: TailraceError
    needs_cut: bool


@dataclass(frozen=True, slots=True)
class Spilled:
    """A part of the pending tail is in the segment, durably; or not, with `error`."""

    error: TailraceError | None
    pending_bytes: int
    needs_cut: bool


@dataclass(frozen=True, slots=True)
class FlushBegun:
    """What is written by now will be flushed."""


@dataclass(frozen=True, slots=True)
class Flushed:
    """All below this offset is durable."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class FlushFailed:
    """The flush has failed; it is tried again."""

    error: TailraceError


@dataclass(frozen=True, slots=True)
class SettingsAltered:
    """The topic has these settings from now on."""

    settings: TopicSettings


@dataclass(frozen=True, slots=True)
class LingerOver:
    """The linger timer has ended."""


@dataclass(frozen=True, slots=True)
class Closing:
    """No append comes from now on."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Each append from now on fails with `reason`, None: with none; those under way go on."""

    reason: TailraceError | None


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """The epoch has ended: what it has handed out offsets to fails with `attempted`.

    In `next_epoch` this process leads again, and what waits goes on. None: it does not lead, and
    what waits, or comes later, fails with `refusal`.
    """

    attempted: TailraceError
    next_epoch: int | None
    refusal: TailraceError | None = None


@dataclass(frozen=True, slots=True)
class CommitsAlone:
    """`is_alone`: what this replica counts is committed. Else `HighWatermarkMoved` says what is."""

    is_alone: bool


@dataclass(frozen=True, slots=True)
class HighWatermarkMoved:
    """All below is committed, as the range's leader says; of it this replica may lack the end."""

    high_watermark: int


@dataclass(frozen=True, slots=True)
class CutNotBegun:
    """The cut has changed nothing."""

    outcome: CutRefused | CutFailed


@dataclass(frozen=True, slots=True)
class CutEnded:
    """The log ends at `end` now; with `error` that is not as asked for, or not durable.

    `is_durable`: all that is left is. `windows`: what is remembered of what is left.
    """

    end: LogEnd
    windows: ProducerWindows | None
    pending_bytes: int
    needs_cut: bool
    is_durable: bool
    is_reset: bool
    error: TailraceError | None = None


TailEvent = (
    JournalTurn
    | SegmentTurn
    | Written
    | WriteFailed
    | Spilled
    | FlushBegun
    | Flushed
    | FlushFailed
    | SettingsAltered
    | LingerOver
    | Closing
    | Refused
    | EpochEnded
    | CommitsAlone
    | HighWatermarkMoved
    | CutNotBegun
    | CutEnded
)

# --- out ---


@dataclass(frozen=True, slots=True)
class AskJournal:
    """Ask the journal for a turn."""


@dataclass(frozen=True, slots=True)
class AskSegment:
    """Ask for a turn to write the log's segments."""


class Write(msgspec.Struct, frozen=True):
    """Compress, stamp and write a batch of each of `contents`, the first at `first`.

    In the journal's turn into its frame; in the segment's turn behind the pending tail, with it.
    """

    contents: Sequence[RecordColumns | BatchBody]
    first: BatchPlace
    is_durable: bool


class WriteStored(NamedTuple):
    """Write these batches as they are, where `Write` would write."""

    batches: Sequence[StoredBatch]


class Publish(msgspec.Struct, frozen=True):
    """These batches are in the log: readers get them up to the high watermark."""

    batches: Sequence[StoredBatch]


@dataclass(frozen=True, slots=True)
class WakeReaders:
    """The high watermark has moved."""


@dataclass(frozen=True, slots=True)
class Flush:
    """Make durable what is written, within this time."""

    within_ms: int


@dataclass(frozen=True, slots=True)
class Spill:
    """Bring the pending tail to the segment."""


@dataclass(frozen=True, slots=True)
class StartLinger:
    """Report `LingerOver` after this time."""

    after_ms: int


@dataclass(frozen=True, slots=True)
class StopLinger:
    """The linger timer is of no interest any more."""


class Acknowledge(msgspec.Struct, frozen=True):
    """The append is committed; its first record is at `offset`, of another partition if one is
    given.
    """

    done: OnAppended
    offset: int
    is_duplicate: bool = False
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """The append has failed. `written_end`: see `AppendFailed`."""

    done: OnAppended
    error: TailraceError
    written_end: int | None = None


@dataclass(frozen=True, slots=True)
class GiveUpEpoch:
    """Offsets of this epoch may stand on the disk: have the range led in a newer one."""

    epoch: int


@dataclass(frozen=True, slots=True)
class CutNow:
    """Cut the log, and report `CutNotBegun` or `CutEnded`."""

    cut: CutLog


class AnswerCut(NamedTuple):
    """The cut has ended."""

    done: OnCut
    outcome: CutOutcome


TailEffect = (
    AskJournal
    | AskSegment
    | Write
    | WriteStored
    | CutNow
    | AnswerCut
    | Publish
    | WakeReaders
    | Flush
    | Spill
    | StartLinger
    | StopLinger
    | Acknowledge
    | Fail
    | GiveUpEpoch
)

# What replication is told of a leader's write: it begins; it has ended well, or failed.
OwnWrite = Write | Written | WriteFailed

# One object of each that says nothing but its name.
JOURNAL_TURN, SEGMENT_TURN = JournalTurn(), SegmentTurn()
FLUSH_BEGUN, LINGER_OVER, CLOSING = FlushBegun(), LingerOver(), Closing()
ASK_JOURNAL, ASK_SEGMENT, SPILL = AskJournal(), AskSegment(), Spill()
WAKE_READERS, STOP_LINGER = WakeReaders(), StopLinger()
