"""One cut of a log, step by step, each of which leaves a log that a start can read.

1. Found: a batch ends there; what `damage` says of later offsets is lowered.
2. Journaled: an entry, durable, takes out of the journal what stands there above the cut.
3. Applied: files set aside, the checkpoint of producers, then the segments are cut, durably, or
   what a failed write has left behind them.

Only then it is reported. A stop before leaves a log that ends at the cut or above, with what it
held before. Who writes segments meanwhile (a spill may, between 2 and 3) has the turn.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from tailrace_broker.codec.journal import JournalCut
from tailrace_broker.codec.metadata import LogStart
from tailrace_broker.core.log.producers import NOTHING, ProducerWindows, cut_checkpoint
from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.core.log.tail_events import CutEnded, CutLog, CutNotBegun, LogEnd
from tailrace_broker.model.append_outcome import CutFailed, CutRefused
from tailrace_broker.model.errors import TailraceError
from tailrace_broker.storage.files.direct_file import sync_directory, translated_errors
from tailrace_broker.storage.files.turns import Turns
from tailrace_broker.storage.journal.file import JournalFile
from tailrace_broker.storage.log.damage_file import load_damage, save_damage
from tailrace_broker.storage.log.pending_tail import PendingTail
from tailrace_broker.storage.log.producer_recovery import replace_checkpoint_above
from tailrace_broker.storage.log.rescued_tail import cut_rescued
from tailrace_broker.storage.log.resources import LogResources
from tailrace_broker.storage.log.trim import save_log_start
from tailrace_broker.storage.segments.cut import cut_segments, remove_from, state_before
from tailrace_broker.storage.segments.writer import LogPlace, segment_path


class CutParts(NamedTuple):
    """What of a log is cut. `is_repeated`: the cut before has failed.

    Asked by who has the turn: `start`, where the log begins; `needs_cut`, whether a failed write
    may be behind the last segment's end.
    """

    place: LogPlace
    start: Callable[[], LogStart]
    segments: list[SegmentState]
    resources: LogResources
    turns: Turns
    pending: PendingTail
    windows: ProducerWindows | None
    needs_cut: Callable[[], bool]
    is_repeated: bool


class Cutting:
    """Runs one cut; `report` gets how it ended, on the event loop."""

    is_synced = True  # its entry in the journal

    def __init__(
        self, cut: CutLog, parts: CutParts, report: Callable[[CutNotBegun | CutEnded], None]
    ) -> None:
        self._cut = cut
        self._parts = parts
        self._report = report
        self._cuts_segments = False
        self._cuts_leftovers = False

    def begin(self) -> None:
        """No write of the log is under way, and none begins before it is reported."""
        self._parts.turns.take(self._find)

    @property
    def _kept_end(self) -> int:
        """Where what is kept ends: of a log that is reset nothing is."""
        return 0 if self._cut.is_reset else self._cut.end

    # --- found ---

    def _find(self) -> None:
        """It has the turn."""
        self._parts.resources.receiving.submit(
            partial(self._find_refusal, self._is_in_memory()), self._found
        )

    def _is_in_memory(self) -> bool:
        """Whether memory knows that a batch ends there; else the segments must be asked."""
        cut, segments, pending = self._cut, self._parts.segments, self._parts.pending
        ends = {batch.header.end_offset for batch in pending.batches}
        return cut.is_reset or cut.end in ends or cut.end in (
            segments[0].base_offset, segments[-1].end_offset,
        )  # fmt: skip

    def _find_refusal(self, is_in_memory: bool) -> str | None:
        """Blocks. Return why the log cannot be cut there; else `damage` is lowered."""
        cut, parts = self._cut, self._parts
        log_start = parts.start().log_start
        if cut.end < log_start and not cut.is_reset:
            return f"offset {cut.end} is below the log start {log_start}"
        segments, resources = parts.segments, parts.resources
        if not is_in_memory:
            found = None
            if segments[0].base_offset < cut.end < segments[-1].end_offset:
                found = state_before(
                    parts.place, segments, resources.files, resources.pool, cut.end
                )
            if found is None:
                return f"no batch of the log ends at {cut.end}"
        directory = parts.place.directory
        known = load_damage(directory)
        lowered = known.cut(self._kept_end)
        if lowered != known:
            save_damage(directory, lowered)
        return None

    def _found(self, refusal: str | None, error: TailraceError | None) -> None:
        self._parts.turns.end()
        if error is not None:
            self._report(CutNotBegun(CutFailed(error)))
        elif refusal is not None:
            self._report(CutNotBegun(CutRefused(refusal)))
        else:
            self._parts.resources.journal.add(self)

    # --- journaled ---

    def take_for_journal(self) -> Sequence[JournalCut]:
        """The entry."""
        place = self._parts.place
        return [JournalCut(place.topic_id.bytes, place.partition, self._kept_end)]

    def on_journaled(
        self, file: JournalFile, error: TailraceError | None, *, is_durable: bool
    ) -> None:
        """The entry is durable in this file; or it failed, and the next frame goes over it."""
        if error is not None:
            self._report(CutNotBegun(CutFailed(error)))
        else:
            assert is_durable, file
            self._parts.turns.take(self._apply)

    # --- applied ---

    def _apply(self) -> None:
        """It has the turn."""
        cut, parts = self._cut, self._parts
        parts.pending.cut(self._kept_end)
        is_within = parts.segments[-1].end_offset > cut.end
        self._cuts_segments = cut.is_reset or is_within or (
            parts.is_repeated and parts.segments[-1].end_offset == cut.end
        )  # fmt: skip
        self._cuts_leftovers = parts.needs_cut() and not self._cuts_segments
        parts.resources.receiving.submit(self._cut_files, self._applied)

    def _cut_files(self) -> None:
        """Blocks."""
        cut, parts = self._cut, self._parts
        resources, directory = parts.resources, parts.place.directory
        cut_rescued(directory, self._kept_end, resources.write_file)
        if cut.is_reset:
            _reset(parts.place, parts.segments, resources, LogStart(cut.end, cut.end, cut.epoch, 0))
            return
        windows = self._windows_at(cut.end)
        checkpoint = NOTHING if windows is None else windows.checkpoint(cut.end)
        replace_checkpoint_above(directory, cut.end, checkpoint._replace(end_offset=cut.end))
        if self._cuts_segments:
            cut_segments(
                parts.place,
                parts.segments,
                resources.files,
                resources.inventory,
                resources.pool,
                _empty_at(parts.start()),
                cut.end,
                is_direct=resources.is_direct,
            )
        if self._cuts_leftovers:
            last = parts.segments[-1]
            with resources.files.use(segment_path(directory, last.base_offset)) as file:
                file.truncate(last.position)

    def _windows_at(self, end_offset: int) -> ProducerWindows | None:
        """What is remembered of what is before; nothing of what was appended behind."""
        windows = self._parts.windows
        if windows is None:
            return None
        kept = ProducerWindows(cut_checkpoint(windows.checkpoint(end_offset), end_offset))
        return None if kept.is_empty else kept

    def _applied(self, _: None, error: TailraceError | None) -> None:
        cut, parts = self._cut, self._parts
        last = parts.segments[-1]
        end = LogEnd(last.end_offset, last.last_epoch, last.last_append_time_us)
        if parts.pending.batches:
            end = LogEnd.behind(parts.pending.batches[-1].header)
        is_reset = cut.is_reset and error is None
        self._report(
            CutEnded(
                end,
                None if is_reset else self._windows_at(end.offset),
                parts.pending.size_bytes,
                needs_cut=self._cuts_leftovers and error is not None,
                is_durable=self._cuts_segments and error is None,
                is_reset=is_reset,
                error=error,
            )
        )
        parts.turns.end()


def _empty_at(start: LogStart) -> SegmentState:
    """The first segment of a log that begins so, when nothing is in it."""
    return SegmentState(
        start.first_segment,
        start.first_segment,
        start.epoch_before,
        start.append_time_before_us,
        is_behind_damage=start.is_behind_damage,
    )


def _reset(
    place: LogPlace, segments: list[SegmentState], resources: LogResources, start: LogStart
) -> None:
    """Blocks. Go on at another offset, with nothing before; durable on return.

    It goes by way of the empty log: nothing of what was is taken for what is remembered of what
    comes.
    """
    directory = place.directory
    resources.inventory.cut_segments(place.topic_id, place.partition, None)
    with translated_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        sync_directory(directory.parent)
        sync_directory(directory.parent.parent)
    resources.files.forget(*(segment_path(directory, state.base_offset) for state in segments))
    segments[:] = [SegmentState(segments[0].base_offset, segments[0].base_offset)]
    remove_from(directory, 0, is_direct=resources.is_direct)
    replace_checkpoint_above(directory, 0, NOTHING._replace(end_offset=start.log_start))
    save_log_start(directory, start, resources.write_file)
    segments[:] = [_empty_at(start)]
