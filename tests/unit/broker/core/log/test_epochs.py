import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_broker.codec.segment import EpochStart
from tailrace_broker.core.log.epochs import (
    EpochEnd,
    cut_epochs,
    end_of_epoch,
    joined,
    note_epoch,
    trim_epochs,
)

STARTS = [EpochStart(3, 10), EpochStart(7, 90), EpochStart(8, 95)]
LOG_END = 98

# A log as batches: each with how far its epoch is above the one before, and its records.
batches = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=12)


def starts_of(log: list[tuple[int, int]], log_start: int = 0) -> tuple[list[EpochStart], list[int]]:
    """What is noted of these batches; and the epoch of each offset."""
    starts: list[EpochStart] = []
    epochs: list[int] = []
    epoch = 1
    for rise, count in log:
        epoch += rise
        note_epoch(starts, epoch, log_start + len(epochs))
        epochs += [epoch] * count
    return starts, epochs


@pytest.mark.parametrize(
    ("epoch", "end"),
    [
        (2, EpochEnd(None, 10)),
        (3, EpochEnd(3, 90)),
        (5, EpochEnd(3, 90)),
        (7, EpochEnd(7, 95)),
        (8, EpochEnd(8, 98)),
        (9, EpochEnd(8, 98)),
    ],
    ids=["below all", "first", "between two", "middle", "last", "above all"],
)
def test_an_epoch_ends_where_the_next_begins(epoch: int, end: EpochEnd) -> None:
    assert end_of_epoch(STARTS, LOG_END, epoch) == end


def test_an_empty_log_has_no_epoch() -> None:
    assert end_of_epoch([], 5, 3) == EpochEnd(None, 5)


@pytest.mark.parametrize(
    ("log_start", "starts"),
    [(5, STARTS), (10, STARTS), (92, [EpochStart(7, 92), STARTS[2]]), (98, [EpochStart(8, 98)])],
)
def test_a_trimmed_log_keeps_the_epoch_that_it_begins_in(
    log_start: int, starts: list[EpochStart]
) -> None:
    assert trim_epochs(STARTS, log_start) == starts


@given(batches, st.data())
def test_epochs_end_where_the_records_say(log: list[tuple[int, int]], data: st.DataObject) -> None:
    starts, epochs = starts_of(log)
    asked = data.draw(st.integers(0, 30))

    found = end_of_epoch(starts, len(epochs), asked)

    known = [epoch for epoch in epochs if epoch <= asked]
    assert found == EpochEnd(max(known, default=None), len(known))


@given(batches, st.data())
def test_a_cut_log_has_the_epochs_of_what_is_left(
    log: list[tuple[int, int]], data: st.DataObject
) -> None:
    kept = data.draw(st.integers(0, len(log)))
    starts, _ = starts_of(log)
    left, epochs = starts_of(log[:kept])

    assert cut_epochs(starts, len(epochs)) == left


@given(batches, st.integers(0, 12))
def test_the_epochs_of_segments_are_joined_to_those_of_the_log(
    log: list[tuple[int, int]], split: int
) -> None:
    starts, epochs = starts_of(log)
    first, records = starts_of(log[:split])
    behind = [EpochStart(epochs[len(records)], len(records))] if len(records) < len(epochs) else []
    second = [*behind, *(start for start in starts if start.offset > len(records))]

    assert joined([first, second]) == starts
