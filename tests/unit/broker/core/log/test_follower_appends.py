"""What a follower writes: what fits, in which order, and what becomes of it."""

import pytest
from msgspec.structs import replace

from tailrace_broker.codec.batch import StoredBatch
from tailrace_broker.core.log.appends import GROUP_BYTES_MAX
from tailrace_broker.core.log.producers import ProducerWindows
from tailrace_broker.core.log.recovery import SegmentState
from tailrace_broker.core.log.replica_tail import LARGE_GROUP_BYTES, SPILL_BYTES
from tailrace_broker.core.log.tail_events import (
    ASK_JOURNAL,
    ASK_SEGMENT,
    CLOSING,
    FLUSH_BEGUN,
    JOURNAL_TURN,
    LINGER_OVER,
    SPILL,
    WAKE_READERS,
    CommitsAlone,
    CutNotBegun,
    EpochEnded,
    Flush,
    Flushed,
    FlushFailed,
    HighWatermarkMoved,
    LogEnd,
    Publish,
    Refused,
    SettingsAltered,
    Spilled,
    TailEvent,
    Written,
)
from tailrace_broker.model.append_outcome import (
    Appended,
    CutFailed,
    CutRefused,
    LogIsCut,
    Misfit,
    MisfitReason,
)
from tailrace_broker.model.errors import DiskFullError, NoLeaderError, StorageFailedError
from tests.support.log.follower import Follower
from tests.support.log.leader import SYNCED, WRITTEN, Leader, batches_of
from tests.support.storage.followers import stored_batch

FAILED = StorageFailedError("failed")


def batch(base_offset: int, *, epoch: int = 1, previous: int = 1, size: int = 1) -> StoredBatch:
    """Of two records."""
    previous = previous if base_offset else 0
    values = [bytes(size), b"2"]
    found = stored_batch(values, base_offset, epoch=epoch, previous_epoch=previous)
    if size > 1:  # as if it did not compress
        header = found.header._replace(payload_bytes=size)
        return replace(found, header=header)
    return found


def follower_at(offset: int) -> Follower:
    """A follower whose log ends there, in epoch 1."""
    follower = Follower()
    for base_offset in range(0, offset, 2):
        follower.append("before", batch(base_offset))
        follower.write_all()
    follower.answers.clear()
    return follower


# --- appends --------------------------------------------------------------------------------------


def test_behind_a_loss_the_epoch_before_is_not_known() -> None:
    """Of a sealed log that is copied: the source says which offsets come next."""
    follower = follower_at(2)
    follower.tail.end = LogEnd.of(SegmentState(4, 10, 2, is_behind_damage=True))
    older = follower.append("a", batch(10, epoch=5, previous=1))
    assert isinstance(older, Misfit)
    assert older.reason == MisfitReason.OTHER_EPOCH
    assert follower.append("a", batch(10, epoch=5, previous=4)) == [ASK_JOURNAL]
    follower.write_all()
    assert isinstance(follower.append("b", batch(12, epoch=7, previous=6)), Misfit)
    assert follower.append("b", batch(12, epoch=5, previous=5)) == [ASK_JOURNAL]


def test_batches_are_written_as_they_came_and_commit_nothing() -> None:
    follower = Follower()
    batches = [batch(0), batch(2)]
    assert follower.append("a", *batches) == [ASK_JOURNAL]
    follower.turn()
    assert list(follower.writing) == batches
    assert follower.end_write() == [Publish(batches)]
    assert (follower.ends, follower.outcomes) == ((4, 4, 0), [("a", Appended(0))])


def test_what_comes_while_a_write_is_in_flight_joins_the_next() -> None:
    follower = Follower()
    follower.append("a", batch(0))
    follower.turn()
    assert follower.append("b", batch(2)) == []
    assert follower.append("c", batch(4)) == []
    assert follower.end_write()[1:] == [ASK_JOURNAL]
    follower.turn()
    assert [each.header.base_offset for each in follower.writing] == [2, 4]
    follower.end_write()
    assert [name for name, _ in follower.outcomes] == ["a", "b", "c"]


def test_a_large_group_goes_to_the_segment() -> None:
    follower = Follower()
    assert follower.append("a", batch(0, size=LARGE_GROUP_BYTES)) == [ASK_SEGMENT]
    follower.write_all()
    assert follower.append("b", batch(2)) == [ASK_JOURNAL]
    assert follower.append("c", batch(4, size=LARGE_GROUP_BYTES)) == []
    assert follower.turn() == [ASK_SEGMENT]
    follower.write_all()
    assert follower.ends == (6, 6, 0)


def test_a_group_takes_so_many_bytes() -> None:
    follower = follower_at(2)
    follower.append("a", batch(2))
    follower.turn()
    follower.append("b", batch(4, size=GROUP_BYTES_MAX - 1000))
    follower.append("c", batch(6, size=2000))
    follower.end_write()
    follower.turn()
    assert [each.header.base_offset for each in follower.writing] == [4]


def test_a_tail_that_is_too_large_is_spilled_first() -> None:
    follower = Follower(pending_bytes=GROUP_BYTES_MAX)
    follower.append("a", batch(0, size=LARGE_GROUP_BYTES))
    assert follower.turn() == [SPILL]
    assert follower.step(Spilled(None, 0, needs_cut=False)) == [ASK_SEGMENT]
    follower.asked = ASK_SEGMENT
    follower.write_all()
    assert follower.outcomes == [("a", Appended(0))]


def test_a_write_that_has_waited_for_a_spill_fails_with_it() -> None:
    follower = Follower(pending_bytes=GROUP_BYTES_MAX)
    follower.append("a", batch(0, size=LARGE_GROUP_BYTES))
    follower.turn()
    follower.step(Spilled(FAILED, GROUP_BYTES_MAX, needs_cut=False))
    assert follower.outcomes == [("a", "failed")]
    assert follower.append("b", batch(0)) == [SPILL]  # a repaired disk takes it again
    assert follower.outcomes[1:] == [("b", "failed")]


def test_a_spill_beside_a_write_fails_nothing() -> None:
    follower = Follower()
    follower.append("a", batch(0))
    follower.turn()
    assert follower.step(Spilled(DiskFullError("full"), 0, needs_cut=False)) == []
    assert follower.outcomes == []


def test_what_waits_behind_a_failed_write_fails() -> None:
    follower = Follower()
    follower.append("a", batch(0))
    follower.turn()
    follower.append("b", batch(2))
    follower.end_write(FAILED)
    assert follower.outcomes == [("a", "failed"), ("b", "failed")]
    assert follower.append("c", batch(0, epoch=2)) == [ASK_JOURNAL]


@pytest.mark.parametrize(
    ("misfit", "reason"),
    [
        (batch(4), MisfitReason.GAP),
        (batch(0), MisfitReason.GAP),
        (batch(2, epoch=3, previous=2), MisfitReason.OTHER_EPOCH),
        (batch(2, epoch=0, previous=1), MisfitReason.FALLING_EPOCH),
        (
            replace(batch(2), header=batch(2).header._replace(partition=9)),
            MisfitReason.OTHER_LOG,
        ),
    ],
)
def test_a_misfit_is_not_queued(misfit: StoredBatch, reason: MisfitReason) -> None:
    follower = follower_at(2)
    found = follower.append("a", misfit)
    assert isinstance(found, Misfit)
    assert (found.reason, follower.asked, follower.outcomes) == (reason, None, [])


def test_what_waits_counts_for_what_fits() -> None:
    follower = Follower()
    follower.append("a", batch(0))
    assert isinstance(follower.append("b", batch(0)), Misfit)
    assert follower.append("b", batch(2)) == []
    follower.turn()
    assert follower.append("c", batch(4, epoch=2)) == []
    assert isinstance(follower.append("d", batch(6, previous=1)), Misfit)


def test_a_closed_log_takes_nothing() -> None:
    follower = Follower()
    follower.step(Refused(FAILED))
    misfit = follower.append("a", batch(0))
    assert misfit == Misfit(MisfitReason.CLOSED, "failed")
    follower.cut("c", 0)
    assert follower.outcomes == [("c", CutFailed(FAILED))]


@pytest.mark.parametrize(
    "event",
    [
        FLUSH_BEGUN,
        FlushFailed(FAILED),
        SettingsAltered(SYNCED),
        EpochEnded(FAILED, None),
        LINGER_OVER,
        CLOSING,
    ],
)
def test_other_events_change_no_end(event: TailEvent) -> None:
    follower = follower_at(4)
    assert follower.step(event) == []
    assert follower.ends == (4, 4, 0)


# --- what is committed ----------------------------------------------------------------------------


def test_the_leader_says_what_is_committed() -> None:
    follower = follower_at(4)
    assert follower.step(HighWatermarkMoved(3)) == [WAKE_READERS]
    assert [follower.step(HighWatermarkMoved(each)) for each in (2, 3)] == [[], []]
    assert follower.ends == (4, 4, 3)
    follower.step(HighWatermarkMoved(9))
    assert follower.ends == (4, 4, 4)


def test_a_replica_that_commits_alone_goes_by_its_own_end() -> None:
    follower = follower_at(4)
    assert follower.step(CommitsAlone(is_alone=True)) == [WAKE_READERS]
    assert follower.ends == (4, 4, 4)


def test_a_leader_with_followers_acknowledges_what_is_committed() -> None:
    leader = Leader()
    leader.step(CommitsAlone(is_alone=False))
    leader.event("a")
    leader.write_all()
    assert (leader.outcomes, leader.ends) == ([], (1, 1, 0))
    leader.step(HighWatermarkMoved(1))
    assert leader.outcomes == [("a", 0)]


# --- cuts -----------------------------------------------------------------------------------------


def test_a_cut_lowers_the_ends() -> None:
    follower = follower_at(6)
    follower.step(HighWatermarkMoved(2))
    follower.cut("c", 4)
    assert follower.outcomes == []
    follower.end_cut()
    assert (follower.ends, follower.outcomes) == ((4, 4, 2), [("c", LogIsCut(4))])
    assert follower.append("a", batch(4, epoch=2)) == [ASK_JOURNAL]


def test_epochs_behind_a_cut_are_forgotten() -> None:
    follower = follower_at(2)
    follower.append("a", batch(2, epoch=5))
    follower.write_all()
    assert follower.tail.end_of_epoch(9).epoch == 5
    follower.cut("c", 2)
    follower.end_cut()
    assert follower.tail.end_of_epoch(9) == (1, 2)


def test_a_cut_at_the_end_is_done_at_once() -> None:
    follower = follower_at(2)
    assert follower.cut("c", 2) == []
    assert follower.outcomes == [("c", LogIsCut(2))]


def test_behind_a_failed_write_a_cut_at_the_end_is_done_on_the_disk() -> None:
    follower = follower_at(2)
    follower.append("a", batch(2))
    follower.turn()
    follower.end_write(FAILED)
    follower.cut("c", 2)
    assert is_cutting(follower)
    follower.end_cut(FAILED)
    follower.cut("d", 2)
    follower.end_cut()
    follower.cut("e", 2)
    assert follower.outcomes[-2:] == [("d", LogIsCut(2)), ("e", LogIsCut(2))]


def test_a_cut_at_the_end_takes_back_one_whose_entry_has_failed() -> None:
    follower = follower_at(4)
    follower.cut("c", 2)
    follower.cutting = None
    follower.step(CutNotBegun(CutFailed(FAILED)))
    follower.cut("d", 4)
    assert is_cutting(follower)


def test_a_frame_replaces_one_that_failed() -> None:
    follower = follower_at(2)
    follower.append("a", batch(2))
    follower.turn()
    follower.end_write(FAILED)
    follower.append("b", batch(2))
    follower.write_all()
    follower.cut("c", 4)
    assert follower.outcomes[-1] == ("c", LogIsCut(4))


def test_a_cut_waits_for_a_write_and_appends_wait_for_it() -> None:
    follower = follower_at(2)
    follower.append("a", batch(2))
    follower.turn()
    follower.cut("c", 2)
    assert follower.append("b", batch(2, epoch=2)) == []
    assert not is_cutting(follower)
    follower.end_write()
    assert is_cutting(follower)
    assert follower.append("d", batch(4, epoch=2, previous=2)) == []
    follower.end_cut()
    follower.write_all()
    assert [name for name, _ in follower.outcomes] == ["a", "c", "b", "d"]
    assert follower.ends[0] == 6


def is_cutting(follower: Follower) -> bool:
    return follower.cutting is not None


def test_a_group_ends_before_a_cut() -> None:
    follower = follower_at(2)
    follower.append("a", batch(2))
    follower.cut("c", 2)
    follower.append("b", batch(2, epoch=2))
    follower.turn()
    assert len(follower.writing) == 1
    follower.end_write(FAILED)
    follower.end_cut()
    assert follower.outcomes == [("a", "failed"), ("c", LogIsCut(2))]
    follower.write_all()
    assert follower.outcomes[2:] == [("b", Appended(2))]


def test_a_cut_behind_the_end_is_refused() -> None:
    follower = follower_at(6)
    follower.step(HighWatermarkMoved(4))
    follower.cut("c", 8)
    assert follower.outcomes == [("c", CutRefused("the log ends at 6, before 8"))]
    assert follower.ends == (6, 6, 4)


def test_a_recorded_loss_lowers_the_high_watermark() -> None:
    follower = follower_at(6)
    follower.step(HighWatermarkMoved(4))
    follower.cut("c", 2)
    follower.end_cut()
    assert follower.ends == (2, 2, 2)


def test_a_reset_log_is_empty_and_all_of_it_is_committed() -> None:
    follower = follower_at(4)
    follower.cut("c", 100, 7, is_reset=True)
    follower.end_cut(is_durable=True)
    assert follower.ends == (100, 100, 100)
    assert follower.tail.end_of_epoch(9) == (None, 100)
    assert follower.append("a", batch(100, epoch=8, previous=7)) == [ASK_JOURNAL]


def test_a_cut_that_was_not_begun_changes_nothing() -> None:
    follower = follower_at(4)
    follower.cut("c", 2)
    follower.append("a", batch(2, epoch=2))
    follower.cutting = None
    follower.step(CutNotBegun(CutRefused("no batch ends there")))
    assert follower.ends == (4, 4, 0)
    why = "what came before these batches failed: send them again"
    assert follower.outcomes == [("c", CutRefused("no batch ends there")), ("a", why)]


def test_nothing_is_appended_before_a_failed_cut_is_repeated() -> None:
    follower = follower_at(8)
    follower.cut("c", 2)
    follower.append("a", batch(2, epoch=2))
    follower.end_cut(FAILED, end=LogEnd(4, 1, 0))
    assert follower.outcomes[0] == ("c", CutFailed(FAILED))
    assert (follower.outcomes[1][0], follower.ends) == ("a", (4, 4, 0))
    assert not follower.appends.may_end
    misfit = follower.append("b", batch(4))
    assert isinstance(misfit, Misfit)
    assert misfit.reason is MisfitReason.CUT_FAILED

    follower.cut("above", 4)
    assert follower.outcomes[2] == ("above", CutRefused("the cut at 2 must be done first"))
    follower.cut("again", 2)
    assert follower.append("b", batch(2, epoch=2)) == []
    follower.end_cut()
    assert follower.appends.may_end is False
    follower.write_all()
    assert follower.outcomes[3:] == [("again", LogIsCut(2)), ("b", Appended(2))]
    assert follower.appends.may_end


def test_a_cut_that_failed_at_its_end_is_repeated_all_the_same() -> None:
    follower = follower_at(4)
    follower.cut("c", 2)
    follower.end_cut(FAILED)
    follower.cut("again", 2)
    assert follower.cutting is not None


def test_a_flush_from_before_a_cut_says_nothing_of_what_follows() -> None:
    follower = Follower(WRITTEN)
    follower.append("a", batch(0), batch(2))
    follower.write_all()
    follower.step(FLUSH_BEGUN)
    follower.cut("c", 2)
    follower.end_cut()
    follower.append("b", batch(2, epoch=2))
    follower.write_all()
    follower.cut("again", 2)
    follower.end_cut()
    follower.append("b", batch(2, epoch=3))
    follower.write_all()
    assert follower.step(Flushed(4)) == []
    assert follower.ends == (4, 2, 0)
    follower.step(FLUSH_BEGUN)
    follower.step(Flushed(4))
    assert follower.ends == (4, 4, 0)


def test_of_two_cuts_during_a_flush_the_lower_one_counts() -> None:
    follower = Follower(WRITTEN)
    follower.append("a", batch(0), batch(2), batch(4))
    follower.write_all()
    follower.step(FLUSH_BEGUN)
    follower.cut("c", 2)
    follower.end_cut()
    follower.append("b", batch(2, epoch=2), batch(4, epoch=2, previous=2))
    follower.write_all()
    follower.cut("d", 4, 2)
    follower.end_cut()
    follower.step(Flushed(6))
    assert follower.ends == (4, 2, 0)


def test_what_was_cut_unflushed_holds_up_nothing() -> None:
    follower = Follower(WRITTEN)
    follower.append("a", batch(0), batch(2))
    follower.write_all()
    follower.cut("c", 2)
    follower.end_cut(is_durable=True)
    follower.step(SettingsAltered(SYNCED))
    written(follower, batch(2, epoch=2))
    assert follower.ends == (4, 4, 0)


def test_a_tail_that_a_cut_has_left_is_spilled_when_it_is_large() -> None:
    """Though it was being spilled before the cut."""
    follower = Follower(pending_bytes=SPILL_BYTES - 1)
    assert SPILL in written(follower, batch(0), batch(2))
    follower.cut("c", 2)
    follower.end_cut(pending_bytes=SPILL_BYTES - 1)
    assert SPILL in written(follower, batch(2, epoch=2))


def test_after_a_cut_a_log_knows_the_requests_that_it_still_has() -> None:
    follower = follower_at(4)
    left = ProducerWindows()
    follower.cut("c", 2)
    follower.end_cut(windows=left)
    assert follower.tail.windows is left


def test_all_is_cut_while_it_is_flushed() -> None:
    follower = Follower(WRITTEN)
    follower.append("a", batch(0))
    follower.write_all()
    follower.step(FLUSH_BEGUN)
    follower.cut("c", 0, 0)
    follower.end_cut()
    assert any(isinstance(each, Flush) for each in written(follower, batch(0, epoch=2)))
    follower.step(Flushed(2))
    assert follower.ends == (2, 0, 0)


def written(follower: Follower, *batches: StoredBatch) -> list[object]:
    follower.append("b", *batches)
    follower.turn()
    return list(follower.end_write())


# --- after a leader -------------------------------------------------------------------------------


def test_a_write_that_a_leader_has_begun_ends_first() -> None:
    leader = Leader()
    leader.event("a")
    leader.turn()
    follower = Follower()
    follower.tail = follower.appends.tail = leader.tail
    leader.step(EpochEnded(NoLeaderError("ended"), None, NoLeaderError("elsewhere")))
    follower.tail.commits_alone = False
    assert follower.append("b", batch(0)) == []
    assert leader.write is not None
    batches = batches_of(leader.write[0])
    follower.step(Written(batches, is_journaled=True, is_durable=True))
    why = "what came before these batches failed: send them again"
    assert (follower.outcomes, follower.ends) == ([("b", why)], (1, 1, 0))


def test_a_turn_that_a_leader_has_asked_for_is_over() -> None:
    leader = Leader()
    leader.event("a")
    follower = Follower()
    follower.tail = follower.appends.tail = leader.tail
    assert follower.step(JOURNAL_TURN) == []
    assert not leader.tail.is_writing
