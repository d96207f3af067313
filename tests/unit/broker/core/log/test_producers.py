"""What a partition remembers of its producers, case by case; in general: test_producers_properties.

Limits are small: 10 µs, 3 appends a producer, 6 in all, 3 producers.
"""

from pathlib import Path

import pytest

from tailrace.wire import BatchHeader
from tailrace_broker.codec.producers import (
    NO_SEQUENCE,
    ROW,
    Checkpoint,
    ProducerState,
    TableEntry,
    encode_table,
)
from tailrace_broker.core.log.producers import (
    Duplicate,
    Producer,
    ProducerWindows,
    Verdict,
    WindowLimits,
    cut_checkpoint,
    damage_checkpoint,
)
from tailrace_broker.model.damage import Damage
from tailrace_broker.model.errors import (
    SequenceReusedError,
    SequenceUnknownError,
    TooManyProducersError,
)

LIMITS = WindowLimits(age_us=10, rows_per_producer=3, rows=6, producers=3)
NO_HEADER = BatchHeader._make([0] * len(BatchHeader._fields))


def id_of(name: str) -> bytes:
    return Producer.named(name.encode(), 0).id


def store(
    windows: ProducerWindows,
    name: str,
    sequence: int,
    *,
    offset: int = 0,
    count: int = 1,
    at_us: int = 0,
) -> None:
    """As a batch with this one request."""
    table = encode_table([TableEntry(id_of(name), sequence, 0, count)])
    windows.replay(NO_HEADER._replace(base_offset=offset, append_time_us=at_us), table)
    windows.validate()


def verdict(
    windows: ProducerWindows, name: str, sequence: int, *, count: int = 1, now_us: int = 0
) -> Verdict | Duplicate:
    """Of a request that goes no further."""
    producer = Producer(id_of(name), sequence)
    found = windows.begin(producer, count, now_us)
    if found is Verdict.NEW:
        windows.end(producer)
    return found


def test_an_id_is_a_hash_of_the_name_that_never_changes() -> None:
    """BLAKE2b-128: it is stored in batches."""
    expected = bytes.fromhex("3658f964a5308c3fe8d8e351c9594d07")

    assert Producer.named(b"till-7", 5) == Producer(expected, 5)


def test_a_first_request_is_new() -> None:
    assert verdict(ProducerWindows(), "a", 0) is Verdict.NEW


def test_windows_are_empty_until_a_producer_is_known() -> None:
    windows = ProducerWindows()
    assert windows.is_empty
    store(windows, "a", 0, offset=70)

    assert not windows.is_empty


def test_a_retry_of_what_is_stored_gets_its_offset() -> None:
    windows = ProducerWindows()
    store(windows, "a", 0, offset=70, count=5)
    store(windows, "a", 1, offset=75, count=2)

    assert verdict(windows, "a", 0, count=5) == Duplicate(70)
    assert verdict(windows, "a", 1, count=2) == Duplicate(75)


def test_producers_of_one_batch_have_their_own_records() -> None:
    windows = ProducerWindows()
    entries = [TableEntry(id_of("a"), 4, 0, 1), TableEntry(id_of("b"), 9, 2, 1)]
    windows.replay(NO_HEADER._replace(base_offset=100), encode_table(entries))

    assert verdict(windows, "a", 4) == Duplicate(100)
    assert verdict(windows, "b", 9) == Duplicate(102)
    assert verdict(windows, "a", 9) is Verdict.NEW


def test_a_late_7_after_8_is_new_and_then_a_duplicate() -> None:
    windows = ProducerWindows()
    store(windows, "a", 8, offset=0)

    assert verdict(windows, "a", 7) is Verdict.NEW
    store(windows, "a", 7, offset=1)
    assert verdict(windows, "a", 7) == Duplicate(1)
    assert verdict(windows, "a", 8) == Duplicate(0)


def test_a_request_is_under_way_until_it_ends() -> None:
    windows = ProducerWindows()
    producer = Producer(id_of("a"), 0)

    assert windows.begin(producer, 1, now_us=0) is Verdict.NEW
    assert windows.begin(producer, 1, now_us=0) is Verdict.UNDER_WAY
    store(windows, "a", 0, offset=7)
    windows.end(producer)
    assert windows.begin(producer, 1, now_us=0) == Duplicate(7)


def test_a_retry_of_what_failed_is_new() -> None:
    windows = ProducerWindows()
    producer = Producer(id_of("a"), 0)
    windows.begin(producer, 1, now_us=0)
    windows.end(producer)

    assert windows.begin(producer, 1, now_us=0) is Verdict.NEW


@pytest.mark.parametrize("is_stored", [False, True])
def test_another_request_under_a_known_sequence_is_refused(is_stored: bool) -> None:
    windows = ProducerWindows()
    windows.begin(Producer(id_of("a"), 3), 2, now_us=0)
    if is_stored:
        store(windows, "a", 3, count=2)
        windows.end(Producer(id_of("a"), 3))

    with pytest.raises(SequenceReusedError, match="brought 2 events before, and now 1") as refused:
        verdict(windows, "a", 3, count=1)
    assert refused.value.members == {"sequence": 3}


def test_below_the_window_a_sequence_is_unknown_whether_it_was_used_or_not() -> None:
    windows = ProducerWindows(limits=LIMITS)
    for sequence in (2, 4, 6, 8):
        store(windows, "a", sequence, offset=sequence)

    for sequence in (0, 1, 2):
        with pytest.raises(SequenceUnknownError) as refused:
            verdict(windows, "a", sequence)
        assert refused.value.members == {"sequence": sequence}
    assert verdict(windows, "a", 3) is Verdict.NEW
    assert verdict(windows, "a", 4) == Duplicate(4)


def test_the_last_appends_count_not_the_highest_sequences() -> None:
    """A late one is remembered like the others, though all others are above it."""
    windows = ProducerWindows(limits=LIMITS)
    for offset, sequence in enumerate((6, 7, 8, 1)):
        store(windows, "a", sequence, offset=offset)

    assert verdict(windows, "a", 1) == Duplicate(3)
    with pytest.raises(SequenceUnknownError):
        verdict(windows, "a", 2)


def test_after_its_time_a_sequence_is_unknown() -> None:
    windows = ProducerWindows(limits=LIMITS)
    store(windows, "a", 0, at_us=5)

    assert verdict(windows, "a", 0, now_us=14) == Duplicate(0)
    with pytest.raises(SequenceUnknownError):
        verdict(windows, "a", 0, now_us=15)
    assert verdict(windows, "a", 1, now_us=15) is Verdict.NEW


def test_what_is_too_old_goes_with_the_next_append() -> None:
    windows = ProducerWindows(limits=LIMITS)
    store(windows, "a", 0, at_us=0)
    store(windows, "b", 0, at_us=1)
    store(windows, "b", 1, at_us=11)

    assert [(len(state.rows), state.forgotten) for state in windows.checkpoint(0).producers] == [
        (0, 0),
        (28, 0),
    ]
    with pytest.raises(SequenceUnknownError):
        verdict(windows, "a", 0)
    assert verdict(windows, "a", 1) is Verdict.NEW


def test_a_silent_producer_goes_on_where_it_was() -> None:
    windows = ProducerWindows(limits=LIMITS)
    store(windows, "a", 5, at_us=0)
    store(windows, "b", 0, at_us=10)
    store(windows, "a", 6, at_us=11, offset=2)

    assert verdict(windows, "a", 6, now_us=11) == Duplicate(2)
    with pytest.raises(SequenceUnknownError):
        verdict(windows, "a", 5, now_us=11)


def test_over_the_limit_of_all_appends_the_longest_silent_producer_is_forgotten_first() -> None:
    windows = ProducerWindows(limits=LIMITS)
    for sequence in range(3):
        store(windows, "a", sequence, offset=sequence)
    for sequence in range(3):
        store(windows, "b", sequence, offset=3 + sequence)
    store(windows, "a", 3, offset=6)  # in place of one of its own
    store(windows, "c", 0, offset=9)

    with pytest.raises(SequenceUnknownError):
        verdict(windows, "b", 2)
    assert verdict(windows, "b", 3) is Verdict.NEW
    assert verdict(windows, "a", 1) == Duplicate(1)
    assert verdict(windows, "c", 0) == Duplicate(9)


def test_a_producer_too_many_is_refused_until_one_has_been_silent_for_long() -> None:
    windows = ProducerWindows(limits=LIMITS)
    for at_us, name in enumerate("abc"):
        store(windows, name, 0, at_us=at_us)

    with pytest.raises(TooManyProducersError, match="3 producers sent to the partition"):
        verdict(windows, "d", 0, now_us=9)
    assert verdict(windows, "c", 1, now_us=9) is Verdict.NEW
    assert verdict(windows, "d", 0, now_us=10) is Verdict.NEW
    store(windows, "d", 0, at_us=10)
    assert [state.id for state in windows.checkpoint(0).producers] == [
        id_of(name) for name in "bcd"
    ]
    assert verdict(windows, "a", 0, now_us=11) is Verdict.NEW  # its turn has passed too


def test_those_who_were_under_way_together_may_be_one_too_many() -> None:
    windows = ProducerWindows(limits=LIMITS)
    for name in "abcd":
        store(windows, name, 0, at_us=0)

    assert len(windows.checkpoint(0).producers) == 4
    store(windows, "a", 1, at_us=10)
    assert [state.id for state in windows.checkpoint(0).producers] == [
        id_of(name) for name in "cda"
    ]


def test_one_producer_alone_must_fit() -> None:
    with pytest.raises(AssertionError):
        WindowLimits(rows_per_producer=2, rows=1)


def test_a_checkpoint_of_a_producer_that_is_only_a_mark_keeps_the_mark() -> None:
    windows = ProducerWindows(limits=LIMITS)
    store(windows, "a", 5, at_us=0)
    store(windows, "b", 0, at_us=10)
    resumed = ProducerWindows(windows.checkpoint(1), LIMITS)
    resumed.validate()

    with pytest.raises(SequenceUnknownError):
        verdict(resumed, "a", 5)
    assert verdict(resumed, "a", 6) is Verdict.NEW
    assert verdict(resumed, "b", 0, now_us=10) == Duplicate(0)


def test_a_batch_that_is_known_is_not_replayed_again() -> None:
    windows = ProducerWindows()
    for _ in range(2):
        table = encode_table([TableEntry(id_of("a"), 0, 0, 2)])
        windows.replay(NO_HEADER._replace(base_offset=7, record_count=2), table)

    assert [len(state.rows) for state in windows.checkpoint(9).producers] == [28]


def test_a_cut_checkpoint_has_lost_what_the_log_lost() -> None:
    windows = ProducerWindows(limits=LIMITS)
    for offset, name in enumerate("abab"):
        store(windows, name, offset, offset=offset, at_us=offset)
    marked = ProducerState(id_of("c"), 4, 9, ROW.pack(5, 7, 9, 1))
    unmarked = ProducerState(id_of("d"), NO_SEQUENCE, 9, ROW.pack(5, 8, 9, 1))
    checkpoint = windows.checkpoint(4)
    ahead = Checkpoint(9, [*checkpoint.producers, marked, unmarked])
    kept = cut_checkpoint(ahead, end_offset=2)
    resumed = ProducerWindows(kept, LIMITS)
    resumed.validate()

    assert [(state.id, len(state.rows) // ROW.size) for state in kept.producers] == [
        (id_of("c"), 0),
        (id_of("a"), 1),
        (id_of("b"), 1),
    ]
    with pytest.raises(SequenceUnknownError):
        verdict(resumed, "c", 4)
    assert verdict(resumed, "c", 5) is Verdict.NEW


def test_what_was_appended_into_damage_is_neither_stored_nor_new() -> None:
    windows = ProducerWindows(limits=LIMITS)
    for offset, name in enumerate("abcaba"):
        store(windows, name, offset, offset=offset, at_us=offset)
    damages = [Damage(Path("1.log"), 0, 2, 4), Damage(Path("5.log"), 0, 5, 6)]
    known = damage_checkpoint(windows.checkpoint(6), damages)
    resumed = ProducerWindows(known, LIMITS)
    resumed.validate()

    assert known.end_offset == 6
    assert [(state.id, len(state.rows) // ROW.size) for state in known.producers] == [
        (id_of("c"), 0),
        (id_of("a"), 1),
        (id_of("b"), 2),
    ]
    assert verdict(resumed, "a", 0) == Duplicate(0)
    for name, sequence in (("c", 2), ("a", 3), ("a", 5), ("b", 3)):
        with pytest.raises(SequenceUnknownError):
            verdict(resumed, name, sequence)
    assert verdict(resumed, "a", 6) is Verdict.NEW
