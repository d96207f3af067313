import pytest

from tailrace_broker.core.replication.isr import admitted, shrunk
from tailrace_broker.core.replication.log_ends import LogEnds, common_end
from tailrace_broker.model.replication import EpochStart
from tailrace_broker.model.ring_state import Replica

A, B, C = (Replica(each, 1) for each in range(3))


def starts(*pairs: tuple[int, int]) -> tuple[EpochStart, ...]:
    return tuple(EpochStart(*each) for each in pairs)


def log_of(*pairs: tuple[int, int], end: int) -> LogEnds:
    return LogEnds(0, end, end, 0, list(starts(*pairs)))


@pytest.mark.parametrize(
    ("mine", "my_end", "theirs", "their_end", "end"),
    [
        pytest.param(((1, 0),), 10, ((1, 0),), 7, 7, id="behind in the same epoch"),
        pytest.param(((1, 0),), 7, ((1, 0),), 10, 7, id="ahead in the same epoch"),
        pytest.param(((1, 0), (3, 5)), 9, ((1, 0), (2, 4)), 8, 4, id="an epoch of its own"),
        pytest.param(((1, 0), (3, 5)), 9, ((1, 0),), 8, 5, id="a longer common epoch"),
        pytest.param(((1, 0), (4, 9)), 12, ((1, 0), (2, 3), (3, 6)), 8, 3, id="several of its own"),
        pytest.param(((2, 0),), 5, ((1, 0),), 5, None, id="nothing in common"),
    ],
)
def test_two_logs_part_at_the_smaller_end_of_their_largest_common_epoch(
    mine: tuple[tuple[int, int], ...],
    my_end: int,
    theirs: tuple[tuple[int, int], ...],
    their_end: int,
    end: int | None,
) -> None:
    assert common_end(starts(*mine), my_end, starts(*theirs), their_end) == end


def test_an_epoch_begins_once() -> None:
    ends = LogEnds()

    ends.begin_epoch(1, 0)
    ends.begin_epoch(1, 5)
    ends.begin_epoch(3, 7)

    assert ends.epochs == [EpochStart(1, 0), EpochStart(3, 7)]
    assert ends.last_epoch == 3
    assert [ends.epoch_before(each) for each in (0, 1, 7, 8)] == [0, 1, 1, 3]


def test_a_cut_takes_epochs_back() -> None:
    ends = log_of((1, 0), (3, 7), end=9)

    ends.cut(7)

    assert (ends.written, ends.flushed, ends.last_epoch) == (7, 7, 1)


def test_what_retention_removes_leaves_the_epoch_before_it() -> None:
    ends = log_of((1, 0), (3, 7), (4, 8), end=9)
    ends.high_watermark = 9

    ends.move_start(5)
    assert (ends.base_epoch, ends.epochs[0]) == (1, EpochStart(1, 5))
    assert ends.known_epochs() == starts((1, 5), (3, 7), (4, 8))

    ends.move_start(7)
    assert (ends.base_epoch, ends.epochs) == (1, [EpochStart(3, 7), EpochStart(4, 8)])
    assert ends.known_epochs() == starts((1, 7), (3, 7), (4, 8))

    ends.move_start(9)
    assert (ends.base_epoch, ends.epochs, ends.last_epoch) == (4, [EpochStart(4, 9)], 4)
    ends.begin_epoch(5, 9)
    assert [ends.epoch_before(each) for each in (9, 10)] == [4, 5]
    ends.validate()


def test_an_empty_log_has_another_start() -> None:
    ends = LogEnds(5, 9, 9, 9)

    ends.move_start(9)

    assert (ends.start, ends.epochs) == (9, [])


def test_a_reset_log_is_empty_and_goes_on_behind_the_epoch() -> None:
    ends = log_of((1, 0), end=9)

    ends.reset(50, 3)

    assert ends == LogEnds(50, 50, 50, 50, [], 3)
    assert ends.known_epochs() == starts((3, 50))
    assert LogEnds().known_epochs() == ()


def test_the_end_that_counts_is_the_flushed_one_where_that_is_promised() -> None:
    ends = LogEnds(0, 9, 4)

    assert ends.counted(is_synced=True) == 4
    assert ends.counted(is_synced=False) == 9


def test_who_joins_takes_the_place_of_its_ghost() -> None:
    ghost = B._replace(is_ghost=True)

    assert admitted((A, ghost, C), [Replica(1, 2)]) == (A, Replica(1, 2), C)
    assert admitted((A, C), [B]) == (A, C, B)


def test_no_more_leave_than_the_floor_lets() -> None:
    assert shrunk((A, B, C), A, [1, 2], 2) == (A, C)
    assert shrunk((A, B), A, [1], 2) == (A, B)
