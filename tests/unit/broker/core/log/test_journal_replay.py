"""Which frames of the journal are replayed, and which that are missing prove a loss."""

from uuid import UUID

import pytest

from tailrace.wire import BatchHeader
from tailrace_broker.codec.batch import read_header
from tailrace_broker.codec.journal import JournalCut, JournalFileHeader, JournalFrame
from tailrace_broker.core.log.journal_replay import JournalReplay, JournalRound, plan_replay
from tests.support.storage.batches import PARTITION, TOPIC_ID, Event, batch_of

KEY = (TOPIC_ID.bytes, PARTITION)


def header_of(
    base_offset: int,
    partition: int = PARTITION,
    topic_id: UUID = TOPIC_ID,
    *,
    count: int = 1,
    epoch: int = 1,
) -> BatchHeader:
    stored = batch_of(
        [Event(b"1")] * count,
        base_offset=base_offset,
        partition=partition,
        topic_id=topic_id,
        epoch=epoch,
    )
    return read_header(memoryview(stored))


def frame(sequence: int, durable: int = 0, *, damaged: bool = False) -> JournalFrame:
    """A frame with one batch, whose offset is its sequence."""
    header = header_of(sequence)
    batches = [] if damaged else [(header, memoryview(b"%d" % sequence))]
    return JournalFrame(sequence, durable, batches, [header] if damaged else [])


def round_of(index: int, first: int | None, *frames: JournalFrame, boot: int = 1) -> JournalRound:
    header = None if first is None else JournalFileHeader(boot, 99, first, 0)
    return JournalRound(index, header, frames)


def replayed(replay: JournalReplay) -> list[tuple[int, int]]:
    """Offset and file of the batches, in their order."""
    return [(each.header.base_offset, each.file_index) for each in replay.batches.get(KEY, [])]


UNUSED = [round_of(index, None) for index in range(4)]


def test_a_journal_that_was_never_used_begins_with_the_first_sequence() -> None:
    assert plan_replay(UNUSED) == JournalReplay(next_sequence=1, last_used=0, last_boot=0)


def test_batches_come_in_the_order_of_their_frames_wherever_the_ring_begins() -> None:
    newest = round_of(0, 30, frame(30, 30), frame(31, 31))
    oldest = round_of(1, 10, frame(10), frame(11))
    replay = plan_replay(
        [newest, oldest, round_of(2, 12, frame(12)), round_of(3, 13, *map(frame, range(13, 30)))]
    )

    assert replayed(replay)[:5] == [(10, 1), (11, 1), (12, 2), (13, 3), (14, 3)]
    assert [offset for offset, _ in replayed(replay)] == list(range(10, 32))
    assert (replay.next_sequence, replay.last_used, replay.missing) == (32, 0, None)


def test_batches_are_distinguished_by_topic_and_partition() -> None:
    others = [header_of(5, PARTITION + 1), header_of(5, topic_id=UUID(int=1)), header_of(5)]
    batches = [(header, memoryview(b"")) for header in others]
    replay = plan_replay([round_of(0, 1, JournalFrame(1, 1, batches, [])), *UNUSED[1:]])

    assert set(replay.batches) == {
        (TOPIC_ID.bytes, PARTITION + 1),
        (UUID(int=1).bytes, PARTITION),
        KEY,
    }
    ((batch,), *_) = (replay.batches[KEY],)
    assert (batch.end_offset, batch.last_epoch) == (6, 1)


def test_a_round_without_frames_keeps_its_sequence_and_its_file() -> None:
    """It was taken, and the first write to it did not end."""
    replay = plan_replay([round_of(0, 1, frame(1)), round_of(1, 2), *UNUSED[2:]])

    assert (replay.next_sequence, replay.last_used) == (2, 1)


def test_a_frame_behind_a_round_that_failed_to_begin_is_replayed() -> None:
    """Its header was written, but that was not known: the frame went to the file before."""
    replay = plan_replay([round_of(0, 1, frame(1), frame(2, 2)), round_of(1, 2), *UNUSED[2:]])

    assert replayed(replay) == [(1, 0), (2, 0)]
    assert (replay.next_sequence, replay.last_used, replay.missing) == (3, 0, None)


def test_boots_are_counted() -> None:
    replay = plan_replay([round_of(0, 1, boot=4), round_of(1, 1, boot=3), *UNUSED[2:]])

    assert replay.last_boot == 4


# --- what is missing ------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [0, 1, 2])
def test_a_frame_that_was_not_durable_may_be_missing(durable: int) -> None:
    replay = plan_replay([round_of(0, 1, frame(1), frame(3, durable)), *UNUSED[1:]])

    assert replay.missing is None
    assert replayed(replay) == [(1, 0), (3, 0)]


@pytest.mark.parametrize(
    ("sequences", "missing"), [([2, 3], 1), ([1, 3], 2), ([3], 1)], ids=["first", "middle", "two"]
)
def test_a_frame_that_was_durable_is_missed(sequences: list[int], missing: int) -> None:
    frames = [frame(each, 3) for each in sequences]

    assert plan_replay([*UNUSED[:2], round_of(2, 1, *frames), UNUSED[3]]).missing == (2, missing)


def test_the_end_of_a_round_is_missed_when_a_later_round_says_that_it_was_durable() -> None:
    before = round_of(1, 5, frame(5, 5))
    for durable, missing in ((6, None), (7, (1, 6))):
        rounds = [UNUSED[0], before, round_of(2, 8, frame(8, durable)), UNUSED[3]]
        assert plan_replay(rounds).missing == missing


def test_a_round_that_is_all_missing_is_missed() -> None:
    rounds = [round_of(0, 9, frame(9, 9)), UNUSED[1], UNUSED[2], round_of(3, 5)]

    assert plan_replay(rounds).missing == (3, 5)


def test_a_file_whose_head_is_gone_is_not_missed() -> None:
    """Its round had not begun, or it was moved away."""
    rounds = [round_of(0, 1, frame(1)), round_of(1, None, frame(2)), round_of(2, 9, frame(9, 9))]

    assert plan_replay([*rounds, UNUSED[3]]).missing is None


def test_what_a_later_boot_says_proves_nothing_of_an_earlier_one() -> None:
    """That one lost power with frames unsynced, and the later one went on from what it found."""
    lost = round_of(0, 1, frame(1), frame(3, 1), boot=1)
    torn = round_of(1, 4, frame(4, 1, damaged=True), boot=1)
    later = round_of(2, 5, frame(5, 5), frame(6, 6), boot=2)
    replay = plan_replay([lost, torn, later, UNUSED[3]])

    assert (replay.missing, replay.damaged) == (None, {})
    assert [offset for offset, _ in replayed(replay)] == [1, 3, 5, 6]


def test_what_an_earlier_boot_says_still_proves_its_own() -> None:
    lost = round_of(0, 1, frame(1), frame(3, 3), boot=1)
    later = round_of(1, 4, frame(4, 4), boot=2)

    assert plan_replay([lost, later, *UNUSED[2:]]).missing == (0, 2)


def test_of_a_frame_that_is_cut_something_is_missing_when_it_was_durable() -> None:
    cut = frame(6)._replace(is_broken_off=True)
    for durable, missing in ((6, None), (7, (0, 6))):
        replay = plan_replay([round_of(0, 5, frame(5), cut, frame(7, durable)), *UNUSED[1:]])
        assert replay.missing == missing
        assert replayed(replay) == [(5, 0), (6, 0), (7, 0)]


def test_what_is_missing_of_a_file_is_passed_over_when_that_is_accepted() -> None:
    rounds = [round_of(0, 1, frame(2, 2)), round_of(1, 3, frame(5, 5), frame(6, 6)), *UNUSED[2:]]
    found = [plan_replay(rounds, accepted) for accepted in ((), {0}, {0, 1})]

    assert [each.missing for each in found] == [(0, 1), (1, 3), None]
    assert [each.is_lossy for each in found] == [False, True, True]
    assert replayed(found[2]) == [(2, 0), (5, 1), (6, 1)]


# --- what is damaged ------------------------------------------------------------------------------


def test_a_damaged_batch_of_a_durable_frame_tells_how_far_its_log_reached() -> None:
    frames = [frame(5), frame(6, damaged=True), frame(7, damaged=True), frame(8, 8)]
    replay = plan_replay([round_of(0, 5, *frames), *UNUSED[1:]])

    assert [each.end_offset for each in replay.damaged[KEY]] == [7, 8]
    assert replay.missing is None


def test_a_damaged_batch_of_a_frame_that_was_not_durable_is_torn() -> None:
    replay = plan_replay([round_of(0, 5, frame(5), frame(6, 6, damaged=True)), *UNUSED[1:]])

    assert replay.damaged == {}


def test_a_damaged_batch_in_a_file_whose_head_is_gone_says_nothing() -> None:
    """It is of an older round: all that it held is in the segments."""
    rounds = [round_of(0, None, frame(2, damaged=True)), round_of(1, 9, frame(9, 9)), *UNUSED[2:]]

    assert plan_replay(rounds).damaged == {}


# --- cuts -----------------------------------------------------------------------------------------


def written(sequence: int, base_offset: int, end_offset: int, epoch: int) -> JournalFrame:
    header = header_of(base_offset, count=end_offset - base_offset, epoch=epoch)
    return JournalFrame(sequence, 0, [(header, memoryview(b""))], [])


def cut(sequence: int, end_offset: int, partition: int = PARTITION) -> JournalFrame:
    cuts = (JournalCut(TOPIC_ID.bytes, partition, end_offset),)
    return JournalFrame(sequence, 0, [], [], cuts=cuts)


def offsets_and_epochs(*frames: JournalFrame) -> list[tuple[int, int, int]]:
    replay = plan_replay([round_of(0, 1, *frames), *UNUSED[1:]])
    batches = replay.batches.get(KEY, [])
    return [(each.header.base_offset, each.end_offset, each.header.epoch) for each in batches]


def test_a_cut_is_executed_in_its_place() -> None:
    stale, new = written(2, 95, 100, epoch=7), written(4, 95, 98, epoch=8)
    first = written(1, 90, 95, epoch=7)

    assert offsets_and_epochs(first, stale, cut(3, 95), new) == [(90, 95, 7), (95, 98, 8)]


def test_a_cut_without_a_successor_erases_too() -> None:
    frames = [written(1, 90, 95, epoch=7), written(2, 95, 100, epoch=7), cut(3, 95)]

    assert offsets_and_epochs(*frames) == [(90, 95, 7)]
    assert offsets_and_epochs(cut(1, 95)) == []


def test_a_cut_is_of_one_partition() -> None:
    frames = [written(1, 90, 95, epoch=7), cut(2, 0, PARTITION + 1)]

    assert offsets_and_epochs(*frames) == [(90, 95, 7)]


def test_what_was_damaged_and_is_cut_is_of_no_interest() -> None:
    frames = [frame(1), frame(2, damaged=True), cut(3, 2)._replace(durable_sequence=3)]
    replay = plan_replay([round_of(0, 1, *frames), *UNUSED[1:]])

    assert (replay.damaged[KEY], replayed(replay)) == ([], [(1, 0)])
