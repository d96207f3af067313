"""The end of one replica's log: how far it is written, durable and committed. A machine.

Three ends, which fall only with a cut:

- the written end: a write there has returned;
- the durable end: a power failure cannot take what is below;
- the high watermark: what is below is committed, and can be read.

A replica that commits alone moves the high watermark to its own counted end: the durable end of an
`fsync` topic, the written end of a `written` topic. Else the range's leader says what is committed.
At most one write or cut is in flight.
"""

from collections.abc import Sequence
from typing import NamedTuple, assert_never
from uuid import UUID

from tailrace.wire import BatchHeader
from tailrace_broker.codec.batch import BatchPlace
from tailrace_broker.codec.segment import EpochStart
from tailrace_broker.core.log.appends import GROUP_BYTES_MAX
from tailrace_broker.core.log.epochs import (
    EpochEnd,
    cut_epochs,
    end_of_epoch,
    note_epoch,
    trim_epochs,
)
from tailrace_broker.core.log.producers import ProducerWindows
from tailrace_broker.core.log.tail_events import (
    ASK_JOURNAL,
    ASK_SEGMENT,
    SPILL,
    WAKE_READERS,
    AskJournal,
    AskSegment,
    Closing,
    CommitsAlone,
    CutEnded,
    CutNotBegun,
    EpochEnded,
    Flush,
    FlushBegun,
    Flushed,
    FlushFailed,
    HighWatermarkMoved,
    JournalTurn,
    LingerOver,
    LogEnd,
    Publish,
    Refused,
    SegmentTurn,
    SettingsAltered,
    Spilled,
    TailEffect,
    TailEvent,
    WriteFailed,
    Written,
)
from tailrace_broker.model.append_outcome import CutFailed
from tailrace_broker.model.errors import DiskFullError, TailraceError
from tailrace_broker.model.topic import TopicSettings

# A write from here on goes straight to the segment: as one write that costs less than twice.
LARGE_GROUP_BYTES = 64 * 1024
# A pending tail of this size is brought to the segment.
SPILL_BYTES = 256 * 1024


class LogId(NamedTuple):
    """What the header of each batch of a log says of its partition."""

    topic_id: UUID
    range_id: int
    partition: int


class ReplicaTail:
    """One write is in flight, or none. `windows` is None until a producer is known."""

    __slots__ = (
        "_flush_end_max", "_needs_cut", "_spill_at_bytes", "_unflushed_bytes",
        "_unflushed_end", "_waits_for_spill", "commits_alone", "durable_end", "end",
        "epochs",
        "has_leftovers", "high_watermark", "id", "is_writing", "orphaned", "owes_sync",
        "pending_bytes", "settings", "stuck", "windows",
    )  # fmt: skip

    def __init__(
        self,
        id: LogId,
        end: LogEnd,
        settings: TopicSettings,
        *,
        windows: ProducerWindows | None = None,
        pending_bytes: int = 0,
        sealed_end: int | None = None,
        epochs: Sequence[EpochStart] = (),
        committed_end: int | None = None,
    ) -> None:
        """As recovered: all of it is durable, and committed up to `sealed_end` if there is one.

        `committed_end`: this replica does not commit alone, and knows so much to be committed.
        """
        self.id = id
        self.end = end
        self.epochs = list(epochs)
        self.settings = settings
        self.windows = windows
        self.pending_bytes = pending_bytes  # in the journal and in memory, not in the segment
        self.durable_end = self.high_watermark = end.offset if sealed_end is None else sealed_end
        self.commits_alone = committed_end is None
        if committed_end is not None:
            self.high_watermark = committed_end
        self.is_writing = False
        # Appends came while the topic was `fsync`: their offsets count when they are durable.
        self.owes_sync = False
        # What a write in flight that an ended epoch has begun was answered with.
        self.orphaned: TailraceError | None = None
        # A start may find a write or a cut that failed, until the journal's next entry is there.
        self.has_leftovers = False
        # Why the segment cannot be written: what is pending waits, and nothing is added to it.
        self.stuck: TailraceError | None = None
        self._unflushed_end = 0  # of the last write that was not durable
        self._unflushed_bytes = 0  # written since the last flush began
        self._flush_end_max: int | None = None  # what a cut has left of the flush under way
        self._needs_cut = False
        self._waits_for_spill = False
        self._spill_at_bytes = SPILL_BYTES

    @property
    def is_synced(self) -> bool:
        """Offsets count when they are durable, not when they are written."""
        return self.settings.durability == "fsync" or self.owes_sync

    @property
    def committed_end(self) -> int:
        """The end of what is committed, and durable here: a batch's header notes it."""
        return min(self.high_watermark, self.durable_end)

    @property
    def must_spill_first(self) -> bool:
        """The pending tail is too large to be written with what follows it."""
        return self.pending_bytes >= GROUP_BYTES_MAX

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """Return the largest epoch up to this one, and where it ends: for a follower's cut."""
        return end_of_epoch(self.epochs, self.end.offset, epoch)

    def trim(self, log_start: int) -> None:
        """The log begins here now."""
        self.epochs = trim_epochs(self.epochs, log_start)

    def next_place(self, epoch: int, now_us: int) -> BatchPlace:
        """Return where and when the next batch goes, in this epoch."""
        end = self.end
        assert epoch >= end.epoch, (epoch, end.epoch)
        return BatchPlace(
            *self.id,
            epoch,
            end.epoch,
            end.offset,
            max(now_us, end.append_time_us),
            self.committed_end,
        )

    def goes_to_segment(self, size_bytes: int) -> bool:
        """Whether a write of this size goes straight to the segment.

        It must when a failed one may still stand there, where a recovery would take it for the
        log's: the write to the segment cuts that away.
        """
        return size_bytes >= LARGE_GROUP_BYTES or self._needs_cut

    def ask(self, size_bytes: int) -> AskJournal | AskSegment:
        """Begin a write of what waits, of this size by now."""
        assert not self.is_writing
        self.is_writing = True
        return ASK_SEGMENT if self.goes_to_segment(size_bytes) else ASK_JOURNAL

    def wait_for_spill(self) -> list[TailEffect]:
        """Put the write off until the pending tail is smaller."""
        assert self.is_writing
        self._waits_for_spill = True
        return [SPILL]

    def step(self, event: TailEvent) -> list[TailEffect]:
        """Change the ends, and return what follows."""
        match event:
            case Written():
                return self._on_written(event)
            case WriteFailed():
                self.is_writing, self.orphaned = False, None
                self._needs_cut, self.has_leftovers = event.needs_cut, True
                return []
            case Spilled():
                return self._on_spilled(event)
            case FlushBegun():
                self._unflushed_bytes, self._flush_end_max = 0, None
                return []
            case Flushed():
                return self._on_flushed(event.end_offset)
            case SettingsAltered():
                self.settings = event.settings
                return [*self._ask_flush(), *self._advance()]
            case JournalTurn() | SegmentTurn():  # whoever asked for it does not lead any more
                self.is_writing = False
                return []
            case CommitsAlone():
                self.commits_alone = event.is_alone
                return self._advance()
            case HighWatermarkMoved():
                return self._commit(event.high_watermark)
            case CutNotBegun():
                self.is_writing = False
                self.has_leftovers |= isinstance(event.outcome, CutFailed)
                return []
            case CutEnded():
                return self._on_cut(event)
            case FlushFailed() | LingerOver() | Closing() | Refused() | EpochEnded():
                return []
            case _:
                assert_never(event)

    def validate(self) -> None:
        """Assert what always holds."""
        assert 0 <= self.durable_end <= self.end.offset
        assert 0 <= self.high_watermark <= self.end.offset
        assert self.is_writing or not self._waits_for_spill
        assert self.pending_bytes >= 0

    def _on_written(self, written: Written) -> list[TailEffect]:
        batches = written.batches
        assert self.is_writing
        assert batches[0].header.base_offset == self.end.offset
        self.is_writing, self.orphaned = False, None
        self.end = LogEnd.behind(batches[-1].header)
        effects: list[TailEffect] = [Publish(batches)]
        size_bytes = 0
        for batch in batches:
            header = batch.header
            size_bytes += header.batch_bytes
            note_epoch(self.epochs, header.epoch, header.base_offset)
            if header.producer_table_bytes:
                self._remember(header, batch.buffers[1])
        if not written.is_durable:
            self._unflushed_end = self.end.offset
        if self.durable_end >= self._unflushed_end:
            self.durable_end = self.end.offset
        else:
            effects += self._flush_later(size_bytes)
        effects += self._advance()
        if not written.is_journaled:
            self.pending_bytes, self._needs_cut = 0, False
        else:
            self.has_leftovers = False
            self.pending_bytes += size_bytes
            if self.pending_bytes >= self._spill_at_bytes:
                # Not again before as much has come: while this one is under way, or if it fails.
                self._spill_at_bytes = self.pending_bytes + SPILL_BYTES
                effects.append(SPILL)
        return effects

    def _remember(self, header: BatchHeader, table: bytes | memoryview) -> None:
        """Note which requests of producers are stored."""
        self.windows = self.windows or ProducerWindows()
        self.windows.replay(header, table)

    def _flush_later(self, size_bytes: int) -> list[TailEffect]:
        """Have this write flushed, with what is not durable before it."""
        is_first = not self._unflushed_bytes
        self._unflushed_bytes += size_bytes
        if self.is_synced or self._unflushed_bytes >= self.settings.flush_bytes:
            return [Flush(0)]
        return [Flush(self.settings.flush_ms)] if is_first else []

    def _ask_flush(self) -> list[TailEffect]:
        """Have flushed what is not durable, at once where offsets count only then."""
        if self.durable_end >= self._unflushed_end:
            return []
        return [Flush(0 if self.is_synced else self.settings.flush_ms)]

    def _advance(self) -> list[TailEffect]:
        """Move the high watermark to the counted end of this replica, if that is what counts."""
        counted_end = self.durable_end if self.is_synced else self.end.offset
        if counted_end <= self.high_watermark or not self.commits_alone:
            return []
        self.high_watermark = counted_end
        return [WAKE_READERS]

    def _commit(self, high_watermark: int) -> list[TailEffect]:
        """Move the high watermark as the leader says, as far as the log goes here."""
        assert not self.commits_alone
        high_watermark = min(high_watermark, self.end.offset)
        if high_watermark <= self.high_watermark:
            return []
        self.high_watermark = high_watermark
        return [WAKE_READERS]

    def _on_cut(self, cut: CutEnded) -> list[TailEffect]:
        """End where the log ends now. What was being flushed above says nothing of what follows."""
        assert self.is_writing
        self.is_writing = False
        self.end, end_offset = cut.end, cut.end.offset
        self.epochs = [] if cut.is_reset else cut_epochs(self.epochs, end_offset)
        self.windows = cut.windows
        self.pending_bytes, self._needs_cut = cut.pending_bytes, cut.needs_cut
        self.has_leftovers = self.has_leftovers and cut.error is not None
        self._spill_at_bytes = SPILL_BYTES
        self._unflushed_end = min(self._unflushed_end, end_offset)
        was_max = end_offset if self._flush_end_max is None else self._flush_end_max
        self._flush_end_max = min(was_max, end_offset)
        self.durable_end = end_offset if cut.is_durable else min(self.durable_end, end_offset)
        self.high_watermark = end_offset if cut.is_reset else min(self.high_watermark, end_offset)
        return []

    def _on_flushed(self, end_offset: int) -> list[TailEffect]:
        if self._flush_end_max is not None:
            end_offset, self._flush_end_max = min(end_offset, self._flush_end_max), None
        if end_offset < self._unflushed_end:
            self.durable_end = max(self.durable_end, end_offset)
            return [*(self._ask_flush() if self.is_synced else ()), *self._advance()]
        self.durable_end = self.end.offset  # the writes since then were durable
        return self._advance()

    def _on_spilled(self, spilled: Spilled) -> list[TailEffect]:
        error = spilled.error
        self.pending_bytes, self._needs_cut = spilled.pending_bytes, spilled.needs_cut
        self.stuck = None if isinstance(error, DiskFullError) else error
        if error is None:
            self._spill_at_bytes = SPILL_BYTES
        if not self._waits_for_spill:
            return []
        self._waits_for_spill = False
        if error is None:
            return [ASK_SEGMENT]
        self.is_writing = False
        return []
