"""The ends of a replica that nobody leads: what is in flight still ends."""

import pytest

from tailrace_broker.codec.segment import EpochStart
from tailrace_broker.core.log.epochs import EpochEnd
from tailrace_broker.core.log.replica_tail import LogId, ReplicaTail
from tailrace_broker.core.log.tail_events import (
    CLOSING,
    JOURNAL_TURN,
    LINGER_OVER,
    SEGMENT_TURN,
    EpochEnded,
    Flush,
    Flushed,
    FlushFailed,
    LogEnd,
    Publish,
    Refused,
    SettingsAltered,
    TailEvent,
    Written,
)
from tailrace_broker.model.errors import StorageFailedError
from tests.support.log.leader import SYNCED, WRITTEN, Leader, batches_of
from tests.support.storage.batches import PARTITION, TOPIC_ID

FAILED = StorageFailedError("failed")


def tail_at(offset: int, *, sealed_end: int | None = None) -> ReplicaTail:
    return ReplicaTail(
        LogId(TOPIC_ID, 0, PARTITION), LogEnd(offset, 1, 0), SYNCED, sealed_end=sealed_end
    )


def test_a_sealed_log_is_committed_up_to_its_end() -> None:
    assert tail_at(7, sealed_end=5).high_watermark == 5


def test_a_trimmed_log_knows_where_the_epochs_that_it_has_end() -> None:
    epochs = [EpochStart(1, 0), EpochStart(3, 4)]
    tail = ReplicaTail(LogId(TOPIC_ID, 0, PARTITION), LogEnd(9, 3, 0), SYNCED, epochs=epochs)
    assert tail.end_of_epoch(2) == EpochEnd(1, 4)
    tail.trim(5)

    assert (tail.end_of_epoch(2), tail.end_of_epoch(3)) == (EpochEnd(None, 5), EpochEnd(3, 9))


def test_a_write_that_a_leader_has_begun_ends_without_it() -> None:
    leader = Leader()
    leader.event("a")
    leader.turn()
    assert leader.write is not None
    batches = batches_of(leader.write[0])
    effects = leader.tail.step(Written(batches, is_journaled=True, is_durable=True))
    assert effects[0] == Publish(batches)
    assert leader.ends == (1, 1, 1)


@pytest.mark.parametrize("turn", [JOURNAL_TURN, SEGMENT_TURN])
def test_a_turn_that_a_leader_has_asked_for_is_over_without_it(turn: TailEvent) -> None:
    tail = tail_at(0)
    tail.ask(1)
    assert tail.step(turn) == []
    assert not tail.is_writing


@pytest.mark.parametrize(
    "event", [FlushFailed(FAILED), LINGER_OVER, CLOSING, Refused(FAILED), EpochEnded(FAILED, 2)]
)
def test_what_concerns_appends_changes_no_end(event: TailEvent) -> None:
    tail = tail_at(3)
    assert tail.step(event) == []
    assert tail.end.offset == tail.high_watermark == tail.durable_end == 3


def test_a_flush_that_began_before_a_write_does_not_make_it_durable() -> None:
    leader = Leader(WRITTEN)
    leader.event("a")
    leader.write_all()
    leader.begin_flush()
    leader.event("b")
    leader.write_all()
    leader.step(SettingsAltered(SYNCED))
    assert leader.end_flush() == [Flush(0)]
    assert leader.ends == (2, 1, 2)
    leader.begin_flush()
    leader.end_flush()
    assert leader.ends == (2, 2, 2)
    assert leader.tail.step(Flushed(1)) == []
    assert leader.ends == (2, 2, 2)
