"""Mutations of the storage engine, one at a time: the simulation finds each."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from msgspec.structs import replace

from tailrace_broker.codec import segment
from tailrace_broker.codec.journal import read_frames
from tailrace_broker.core.log import recovery
from tailrace_broker.core.log.journal_replay import JournalReplay, plan_replay
from tailrace_broker.core.log.leader_appends import LeaderAppends
from tailrace_broker.core.log.producers import Duplicate, Producer, ProducerWindows
from tailrace_broker.core.log.tail_events import WriteFailed
from tailrace_broker.model.errors import TailraceError
from tailrace_broker.storage.data_directory import DataDirectory
from tailrace_broker.storage.files import direct_file
from tailrace_broker.storage.files.direct_file import DirectFile
from tailrace_broker.storage.files.inventory import Inventory
from tailrace_broker.storage.journal import recovery as journal_recovery
from tailrace_broker.storage.journal import spiller
from tailrace_broker.storage.journal.file import JournalFile
from tailrace_broker.storage.journal.journal import Journal
from tailrace_broker.storage.log import recovery as log_recovery
from tailrace_broker.storage.log import trim as log_trim
from tailrace_broker.storage.log import trimming
from tailrace_broker.storage.log.producer_recovery import ProducerRecovery
from tailrace_broker.storage.segments import scan as segment_scan
from tailrace_broker.storage.segments.writer import SegmentWriter
from tailrace_broker.topics import topics
from tests.simulation.crashes import Scenario
from tests.support.docs.mutations import seeds_in_the_docs
from tests.support.storage.simulated_disk import BLOCK_BYTES

SEED_COUNT = 60

Mutation = Callable[[pytest.MonkeyPatch], None]


def stale_batch_accepted_after_a_cut(patch: pytest.MonkeyPatch) -> None:
    """What follows the log's end stays on the disk, and epochs are not compared."""
    patch.setattr(DirectFile, "truncate", lambda self, size_bytes: None)
    patch.setattr(
        recovery,
        "_follows",
        lambda header, end: header.base_offset == end.end_offset,
    )


def directory_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(direct_file, "sync_directory", lambda directory: None)


def acknowledged_before_the_write_is_durable(patch: pytest.MonkeyPatch) -> None:
    write = DirectFile.write
    patch.setattr(
        DirectFile,
        "write",
        lambda self, buffer, position, *, is_durable=True: write(
            self, buffer, position, is_durable=False
        ),
    )


def served_before_the_write_has_ended(patch: pytest.MonkeyPatch) -> None:
    """The journal tells its logs of a frame when its write begins."""

    def submit(self: Any, taken: Any, size_bytes: int, durable: bool, error: Any) -> None:
        file, frame = self._files[self._index].file, memoryview(bytes(self._buffer[:size_bytes]))
        write = partial(file.write, frame, self._position, is_durable=durable)
        self._io.submit(write, lambda _, __: None)
        on_written = partial(self._on_written, taken, size_bytes, durable, perf_counter())
        self._io.call_soon(partial(on_written, None, error))

    patch.setattr(Journal, "_submit", submit)


def epoch_resumed_after_restart(patch: pytest.MonkeyPatch) -> None:
    """The file that counts the starts is read, and not written: the ring knows this start."""
    begin_boot = DataDirectory.begin_boot

    def resume(self: DataDirectory) -> Any:
        before = self.identity
        restart = begin_boot(self)
        if before.starts:
            self.identity = before
        return restart

    patch.setattr(DataDirectory, "begin_boot", resume)


def what_a_killed_broker_wrote_not_synced_at_a_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(topics, "sync_file_system", lambda path: None)


def journal_space_reused_too_early(patch: pytest.MonkeyPatch) -> None:
    """What only a file holds is not brought to the segments before its next round."""
    init = JournalFile.__init__

    def forget(self: JournalFile, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        self.pending = Forgotten()

    patch.setattr(JournalFile, "__init__", forget)


class Forgotten(dict[Any, None]):
    """Logs that nobody waits for any more."""

    def __delitem__(self, log: Any) -> None:
        self.pop(log, None)

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def journal_replayed_in_the_wrong_order(patch: pytest.MonkeyPatch) -> None:
    def replay_backwards(rounds: Any, accepted: Any) -> JournalReplay:
        replay = plan_replay(rounds, accepted)
        for batches in replay.batches.values():
            batches.reverse()
        return replay

    patch.setattr(journal_recovery, "plan_replay", replay_backwards)


def frames_of_an_older_round_accepted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        journal_recovery,
        "read_frames",
        lambda stored, journal_id, first_sequence: read_frames(stored, journal_id, 0),
    )


def journal_not_replayed(patch: pytest.MonkeyPatch) -> None:
    def replay_nothing(rounds: Any, accepted: Any) -> JournalReplay:
        replay = plan_replay(rounds, accepted)
        replay.batches.clear()
        return replay

    patch.setattr(journal_recovery, "plan_replay", replay_nothing)


def spill_not_durable(patch: pytest.MonkeyPatch) -> None:
    put = SegmentWriter.put
    patch.setattr(
        SegmentWriter,
        "put",
        lambda self, batches, *, is_durable, is_synced_later=False: put(
            self, batches, is_durable=False, is_synced_later=is_synced_later
        ),
    )


def many_spilled_and_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(spiller, "sync_file_system", lambda path: None)


def log_start_moved_after_the_deletion(patch: pytest.MonkeyPatch) -> None:
    save, remove = log_trim.save_log_start, log_trim.remove_segments
    postponed: list[Callable[[], None]] = []

    def remove_first(paths: Iterable[Path]) -> None:
        remove(paths)
        postponed.pop()()

    patch.setattr(
        trimming, "save_log_start", lambda *start: postponed.append(partial(save, *start))
    )
    patch.setattr(trimming, "remove_segments", remove_first)


def log_start_falls(patch: pytest.MonkeyPatch) -> None:
    """To the base of the segment that holds it, at a start."""

    def load(directory: Path) -> Any:
        start = log_trim.load_log_start(directory)
        return start and replace(start, log_start=start.first_segment)

    patch.setattr(log_recovery, "load_log_start", load)


def duplicates_reported_by_the_last_sequence(patch: pytest.MonkeyPatch) -> None:
    """As if one producer's requests could not pass each other."""
    begin = ProducerWindows.begin

    def by_last(self: Any, producer: Producer, record_count: int, now_us: int) -> Any:
        window = self._active.get(producer.id)
        if window is not None and producer.sequence < window.highest:
            return Duplicate(0)
        return begin(self, producer, record_count, now_us)

    patch.setattr(ProducerWindows, "begin", by_last)


def producers_forgotten_at_a_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerRecovery, "end", lambda self, segments, pending, damages: None)


def high_watermark_in_the_header_ignored(patch: pytest.MonkeyPatch) -> None:
    """A log ends before the first damage, whatever stands behind it."""
    follow = recovery.follow_journal
    patch.setattr(segment_scan, "durable_end_behind", lambda scan, window: 0)
    patch.setattr(log_recovery, "follow_journal", lambda end, batches: (follow(end, batches)[0], 0))


def torn_write_taken_for_damage(patch: pytest.MonkeyPatch) -> None:
    """What stands behind the end proves by itself that it was durable."""
    patch.setattr(segment_scan, "durable_end_behind", recovery.largest_end_behind)


def partition_listed_before_it_is_there(patch: pytest.MonkeyPatch) -> None:
    put = SegmentWriter.put

    def list_and_put(self: Any, batches: Any, **options: bool) -> Path:
        self._inventory.add_segments([self.listed_segment])
        return put(self, batches, **options)

    patch.setattr(SegmentWriter, "put", list_and_put)


def journal_file_listed_before_it_is_there(patch: pytest.MonkeyPatch) -> None:
    begin_round = Journal._begin_round

    def list_and_begin(self: Any, write: Any) -> None:
        following = self._files[(self._index + 1) % len(self._files)]
        self._inventory.add_journal_file(following.path.name)
        begin_round(self, write)

    patch.setattr(Journal, "_begin_round", list_and_begin)


def segment_listed_before_it_is_there(patch: pytest.MonkeyPatch) -> None:
    """That of a roll, when the one before is finished."""
    roll = SegmentWriter.roll

    def roll_and_list(self: Any) -> None:
        roll(self)
        self._inventory.add_segments([self.listed_segment])

    patch.setattr(SegmentWriter, "roll", roll_and_list)


def nothing_listed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Inventory, "add_segments", lambda self, segments: None)
    patch.setattr(Inventory, "add_journal_file", lambda self, name: None)


def leftovers_of_a_failed_write_kept(patch: pytest.MonkeyPatch) -> None:
    """What it has put behind the log's end is taken for the log's."""
    patch.setattr(SegmentWriter, "_cut", lambda self, file: None)


def offset_reused_after_a_failed_write(patch: pytest.MonkeyPatch) -> None:
    """The epoch goes on, and what is left of the write has it too. The cut would mask it."""
    leftovers_of_a_failed_write_kept(patch)

    def go_on(self: LeaderAppends, failed: WriteFailed) -> Any:
        flying, self._flying = self._flying, []
        return [*self.tail.step(failed), *self._fail(flying, failed.error), *self._go_on()]

    patch.setattr(LeaderAppends, "_on_write_failed", go_on)


def hole_taken_for_padding(patch: pytest.MonkeyPatch) -> None:
    """And the batch behind it goes on with the log, wherever it says that it belongs."""
    patch.setattr(recovery, "read_pad", _read_pad_or_hole)
    patch.setattr(
        recovery,
        "_follows",
        lambda header, end: header.base_offset >= end.end_offset,
    )


def _read_pad_or_hole(stored: memoryview) -> int:
    is_hole = len(stored) >= BLOCK_BYTES and not any(stored[:BLOCK_BYTES])
    return BLOCK_BYTES if is_hole else segment.read_pad(stored)


# Each with a seed that finds it, to save time: where it does not any more, those after it may.
CRASHES: list[tuple[Mutation, int]] = [
    (stale_batch_accepted_after_a_cut, 32),
    (directory_not_synced, 0),
    (acknowledged_before_the_write_is_durable, 0),
    (served_before_the_write_has_ended, 0),
    (epoch_resumed_after_restart, 0),
    (what_a_killed_broker_wrote_not_synced_at_a_start, 33),
    (journal_space_reused_too_early, 10),
    (journal_replayed_in_the_wrong_order, 0),
    (frames_of_an_older_round_accepted, 2),
    (journal_not_replayed, 0),
    (spill_not_durable, 0),
    (many_spilled_and_not_synced, 1),
    (log_start_moved_after_the_deletion, 38),
    (log_start_falls, 1),
    (duplicates_reported_by_the_last_sequence, 2),
    (producers_forgotten_at_a_start, 2),
    (torn_write_taken_for_damage, 0),
    (partition_listed_before_it_is_there, 2),
    (journal_file_listed_before_it_is_there, 0),
    (segment_listed_before_it_is_there, 2),
]
DAMAGES: list[tuple[Mutation, int]] = [
    (high_watermark_in_the_header_ignored, 4),
    (hole_taken_for_padding, 4),
]
PLANTED = [
    *((mutation, Scenario.run, seed) for mutation, seed in CRASHES),
    *((mutation, Scenario.damage, seed) for mutation, seed in DAMAGES),
    (nothing_listed, Scenario.lose_files, 14),
    (leftovers_of_a_failed_write_kept, Scenario.fail_writes, 7),
    (offset_reused_after_a_failed_write, Scenario.fail_writes, 8),
]


def test_the_docs_name_mutations_with_their_seeds() -> None:
    planted = {mutation.__name__: str(seed) for mutation, _, seed in PLANTED}

    named = seeds_in_the_docs("One broker")

    assert named
    assert named == {name: planted[name] for name in named}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("mutation", "scenario", "first_seed"),
    PLANTED,
    ids=[mutation.__name__ for mutation, _, _ in PLANTED],
)
def test_a_mutation_is_found(
    mutation: Mutation,
    scenario: Callable[[Scenario], None],
    first_seed: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutation(monkeypatch)
    for seed in range(first_seed, first_seed + SEED_COUNT):
        directory = tmp_path / str(seed)
        directory.mkdir()
        try:
            scenario(Scenario(seed, directory, monkeypatch))
        except (AssertionError, TailraceError) as error:
            print(f"seed {seed}: {error}")
            return
    pytest.fail(f"{mutation.__name__} was not found in {SEED_COUNT} seeds")
