"""Mutations of what cuts a log: each takes one rule away."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tailrace_broker.codec.batch import read_header
from tailrace_broker.core.log import journal_replay, recovery
from tailrace_broker.core.log.follower_appends import FollowerAppends
from tailrace_broker.core.log.recovery import LogScan
from tailrace_broker.core.log.tail_events import Acknowledge
from tailrace_broker.memory.pool import BufferPool
from tailrace_broker.model.errors import TailraceError
from tailrace_broker.storage.engine import Replayed
from tailrace_broker.storage.files import direct_file
from tailrace_broker.storage.files.direct_file import DirectFile
from tailrace_broker.storage.log import cutting, producer_recovery, trimming
from tailrace_broker.storage.log import recovery as log_recovery
from tailrace_broker.storage.log.cutting import Cutting
from tailrace_broker.storage.log.pending_tail import PendingTail
from tailrace_broker.storage.log.tail import LogTail
from tailrace_broker.storage.segments import cut as segments_cut
from tailrace_broker.storage.segments import reader as segments_reader
from tailrace_broker.storage.segments import scan as segment_scan
from tailrace_broker.storage.segments.writer import SegmentWriter, segment_path
from tests.simulation.cuts import replica

Mutation = Callable[[pytest.MonkeyPatch], None]


def cut_not_in_the_journal(patch: pytest.MonkeyPatch) -> None:
    """A start replays what stands in frames before the cut."""
    patch.setattr(journal_replay, "_cut", lambda replay, key, end_offset: None)


def cut_without_a_successor_erases_nothing(patch: pytest.MonkeyPatch) -> None:
    """A start takes out what another batch at the same offset replaces, and nothing else."""
    plan = journal_replay.plan_replay

    def replay_the_last(rounds: Any, accepted: Any = ()) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(journal_replay, "_cut", lambda replay, key, end_offset: None)
            replay = plan(rounds, accepted)
        for batches in replay.batches.values():
            kept: list[Any] = []
            for batch in batches:
                base_offset = batch.header.base_offset
                kept = [each for each in kept if each.end_offset <= base_offset]
                kept.append(batch)
            batches[:] = kept
        return replay

    patch.setattr("tailrace_broker.storage.journal.recovery.plan_replay", replay_the_last)


def segment_read_beyond_the_next_one(patch: pytest.MonkeyPatch) -> None:
    """Where its index is lost, a segment ends where its file does."""

    def scan_to_the_end(*args: Any, limit: int | None = None, **options: Any) -> LogScan:
        return LogScan(*args, **options)

    patch.setattr(log_recovery, "LogScan", scan_to_the_end)
    patch.setattr(log_recovery, "read_index", lambda path: None)


def cut_answered_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    """The entry of the journal need not be synced, nor what is done to segments."""
    patch.setattr(Cutting, "is_synced", False)
    report = Cutting.on_journaled

    def on_journaled(self: Any, file: Any, error: Any, *, is_durable: bool) -> None:
        report(self, file, error, is_durable=True)

    patch.setattr(Cutting, "on_journaled", on_journaled)


def cut_answered_before_its_entry_is_written(patch: pytest.MonkeyPatch) -> None:
    def apply_at_once(self: Any, is_found: bool, error: TailraceError | None) -> None:
        self._parts.turns.end()
        self._parts.turns.take(self._apply)

    patch.setattr(Cutting, "_found", apply_at_once)


def removal_of_segments_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(segments_cut, "sync_directory", lambda directory: None)


def segments_removed_without_a_mark(patch: pytest.MonkeyPatch) -> None:
    """The first one first: a stop leaves a gap."""
    patch.setattr(segments_cut, "remove_from", segments_cut.finish_cut)
    patch.setattr(cutting, "remove_from", segments_cut.finish_cut)


def stale_end_of_a_segment_comes_back(patch: pytest.MonkeyPatch) -> None:
    """Segments are removed without a mark, the last one first: of one that was cut before nothing
    says any more where it ends.
    """

    def last_first(directory: Path, end_offset: int, *, is_direct: bool) -> None:
        for path in sorted(directory.iterdir(), reverse=True):
            if segments_cut.FILE_NAME.fullmatch(path.name) and int(path.stem) >= end_offset:
                path.unlink()
                direct_file.sync_directory(directory)
        segments_cut.finish_cut(directory, end_offset, is_direct=is_direct)

    patch.setattr(segments_cut, "remove_from", last_first)
    patch.setattr(cutting, "remove_from", last_first)


def cut_before_its_segment_is_flushed(patch: pytest.MonkeyPatch) -> None:
    """What a `written` topic has before a cut may be lost, and a segment follows."""
    cut_segments = segments_cut.cut_segments

    def cut_unflushed(*args: Any, **options: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(DirectFile, "flush", lambda self: None)
            cut_segments(*args, **options)

    patch.setattr(cutting, "cut_segments", cut_unflushed)


def window_kept_after_a_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cutting, "_windows_at", lambda self, end_offset: self._parts.windows)


def checkpoint_kept_after_a_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cutting, "replace_checkpoint_above", lambda *args: None)


def windows_learn_what_was_cut(patch: pytest.MonkeyPatch) -> None:
    """A start reads a finished segment to its file's end."""
    replay = producer_recovery.ProducerRecovery._replay_segment

    def replay_all(self: Any, state: Any, from_offset: int) -> None:
        path = segment_path(self._directory, state.base_offset)
        state.position, position = path.stat().st_size, state.position
        try:
            replay(self, state, from_offset)
        finally:
            state.position = position

    patch.setattr(producer_recovery.ProducerRecovery, "_replay_segment", replay_all)


def end_reported_with_a_write_in_flight(patch: pytest.MonkeyPatch) -> None:
    """What is being written is answered, and not again when its write has ended or failed."""
    on_turn = FollowerAppends._on_turn

    def answer(self: Any, turn: Any) -> Any:
        effects = on_turn(self, turn)
        flying = self._flying
        self._flying = [each._replace(done=lambda outcome: None) for each in flying]
        return [
            *effects,
            *(Acknowledge(each.done, each.batches[0].header.base_offset) for each in flying),
        ]

    patch.setattr(FollowerAppends, "_on_turn", answer)


def flush_counts_what_was_written_since(patch: pytest.MonkeyPatch) -> None:
    """The end of a `written` topic counts as durable though a later write was not flushed."""
    on_flushed = LogTail.on_flushed

    def count_all(self: Any, end_offset: int) -> None:
        on_flushed(self, max(end_offset, self.replica.end.offset))

    patch.setattr(LogTail, "on_flushed", count_all)


def header_proves_after_a_loss_of_power(patch: pytest.MonkeyPatch) -> None:
    """What others had committed counts as durable here."""
    recover = log_recovery.recover_log
    patch.setattr(
        replica, "recover_log", lambda *args, headers_prove, **options: recover(*args, **options)
    )


def given_up_in_the_journal_proves_later(patch: pytest.MonkeyPatch) -> None:
    """A start after a loss of power leaves there what it has given up."""
    patch.setattr(Replayed, "note_opened", lambda self, place, found: None)


def given_up_stays_unless_it_proves_a_loss(patch: pytest.MonkeyPatch) -> None:
    """The journal is cut where a header names a later end than the log has, and nowhere else."""
    cut = log_recovery._Recovery._journal_cut

    def cut_where_it_proves(self: Any, end_offset: int) -> int | None:
        above = [each for each in self.evidence.journaled if each.end_offset > end_offset]
        is_proof = any(each.header.high_watermark > end_offset for each in above)
        return cut(self, end_offset) if is_proof else None

    patch.setattr(log_recovery._Recovery, "_journal_cut", cut_where_it_proves)


def log_start_falls(patch: pytest.MonkeyPatch) -> None:
    """A trim within a segment is not on the disk."""
    patch.setattr(trimming, "save_log_start", lambda directory, start, write_file: None)


# --- of a disk in trouble ---


def failed_write_acknowledged(patch: pytest.MonkeyPatch) -> None:
    fail_appends = FollowerAppends._fail_appends

    def acknowledge(self: Any, error: TailraceError) -> Any:
        flying, self._flying = self._flying, []
        answers = [Acknowledge(each.done, each.batches[0].header.base_offset) for each in flying]
        return [*answers, *fail_appends(self, error)]

    patch.setattr(FollowerAppends, "_fail_appends", acknowledge)


def failed_cut_reported(patch: pytest.MonkeyPatch) -> None:
    """Where memory says that the log ends there: its entry, or a change of files, has failed."""
    on_journaled, applied = Cutting.on_journaled, Cutting._applied

    def apply(self: Any, file: Any, error: Any, *, is_durable: bool) -> None:
        on_journaled(self, file, None, is_durable=True)

    def report(self: Any, _: None, error: Any) -> None:
        pending, segments = self._parts.pending.batches, self._parts.segments
        is_cut = not pending and segments[-1].end_offset == self._cut.end
        applied(self, None, None if is_cut else error)

    patch.setattr(Cutting, "on_journaled", apply)
    patch.setattr(Cutting, "_applied", report)


def appends_taken_after_half_a_cut(patch: pytest.MonkeyPatch) -> None:
    on_cut_ended = FollowerAppends._on_cut_ended

    def forget(self: Any, event: Any) -> Any:
        effects = on_cut_ended(self, event)
        self._half_cut = None
        return effects

    patch.setattr(FollowerAppends, "_on_cut_ended", forget)


def leftovers_of_a_failed_write_kept(patch: pytest.MonkeyPatch) -> None:
    """What it has put behind the log's end is taken for the log's."""
    patch.setattr(SegmentWriter, "_cut", lambda self, file: None)


def failed_write_left_behind_a_cut(patch: pytest.MonkeyPatch) -> None:
    """A cut leaves the segment as it is, when that ends before."""
    apply = Cutting._apply

    def apply_blindly(self: Any) -> None:
        self._parts = self._parts._replace(needs_cut=lambda: False)
        apply(self)

    patch.setattr(Cutting, "_apply", apply_blindly)


def failed_write_keeps_its_buffer(patch: pytest.MonkeyPatch) -> None:
    lend = BufferPool.lend

    @contextmanager
    def lend_for_good(self: Any, size_bytes: int) -> Iterator[memoryview]:
        with lend(self, size_bytes) as buffer:
            try:
                yield buffer
            except TailraceError:
                self._io.take(len(buffer))
                raise

    patch.setattr(BufferPool, "lend", lend_for_good)


def cut_batches_count_as_pending(patch: pytest.MonkeyPatch) -> None:
    cut = PendingTail.cut

    def cut_uncounted(self: Any, end_offset: int) -> None:
        size_bytes = self.size_bytes
        cut(self, end_offset)
        self.size_bytes = size_bytes

    patch.setattr(PendingTail, "cut", cut_uncounted)


# --- of a flipped bit ---


def damage_taken_for_the_end(patch: pytest.MonkeyPatch) -> None:
    """A log ends before the first damage, whatever stands behind it."""
    follow = recovery.follow_journal
    patch.setattr(segment_scan, "durable_end_behind", lambda scan, window: 0)
    patch.setattr(log_recovery, "follow_journal", lambda end, batches: (follow(end, batches)[0], 0))


def payloads_not_verified(patch: pytest.MonkeyPatch) -> None:
    for module in (recovery, segments_reader):
        patch.setattr(module, "verify_batch", read_header)
