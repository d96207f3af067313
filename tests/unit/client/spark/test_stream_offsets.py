import json

import pytest

from tailrace.errors import PartitionDamagedError
from tailrace.spark.offsets import Listing, OffsetRange, Plan
from tailrace.spark.options import Read, ReadOptions, parse_read_options
from tailrace.spark.stream_offsets import (
    OLDER_LISTINGS_MAX,
    Reach,
    first_offsets,
    from_earliest,
    is_older,
    latest_offsets,
    limited,
    listing_with,
    plan_batch,
    reach,
    read_offsets,
    starts_by_moment,
    write_offsets,
)
from tailrace.values import PartitionOffsets


def options_of(**given: str) -> ReadOptions:
    selection = {} if {"assign", "subscribePattern"} & given.keys() else {"subscribe": "t"}
    return parse_read_options({"url": "http://a:9250", **selection, **given}, Read.STREAM)


def listed(
    partition: int = 0,
    end: int = 100,
    *,
    first_offset: int = 0,
    log_start: int | None = None,
    parents: tuple[int, ...] = (),
    state: str = "open",
    topic: str = "t",
) -> PartitionOffsets:
    return PartitionOffsets(
        topic=topic,
        partition=partition,
        range_id=0,
        epoch=1,
        first_offset=first_offset,
        log_start=first_offset if log_start is None else log_start,
        high_watermark=end,
        log_end=end,
        state=state,
        parents=parents,
    )


def damaged(partition: int = 0) -> PartitionOffsets:
    return PartitionOffsets(
        topic="t",
        partition=partition,
        range_id=0,
        epoch=1,
        first_offset=0,
        log_start=None,
        high_watermark=None,
        log_end=None,
        state="damaged",
        parents=(),
    )


# 0 was split into 1 and 2 at offset 50.
SPLIT = Listing(
    [
        listed(0, 50, state="sealed"),
        listed(1, 80, first_offset=50, parents=(0,)),
        listed(2, 60, first_offset=50, parents=(0,)),
    ]
)
# 0 and 1 were joined into 2, at the larger end of both.
JOIN = Listing(
    [
        listed(0, 50, state="sealed"),
        listed(1, 30, state="sealed"),
        listed(2, 70, first_offset=50, parents=(0, 1)),
    ]
)


def offsets_of(*offsets: int) -> dict[tuple[str, int], int]:
    return {("t", partition): offset for partition, offset in enumerate(offsets)}


def test_offsets_are_written_in_one_order_however_they_came() -> None:
    offsets = {("b", 10): 1, ("a", 2): 2, ("b", 9): 3}

    text = json.dumps(write_offsets(offsets))

    assert text == '{"a": {"2": 2}, "b": {"9": 3, "10": 1}}'
    assert read_offsets(json.loads(text)) == offsets


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, True),
        ({"startingOffsets": "latest"}, True),
        ({"startingOffsets": '{"t":{"0":5,"1":-1}}'}, True),
        ({"startingOffsets": '{"t":{"0":5,"1":-2}}'}, False),
        ({"startingOffsets": "earliest"}, False),
        ({"startingTimestamp": "5"}, False),
        (
            {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "latest"},
            True,
        ),
    ],
)
def test_a_start_that_depends_on_the_moment_is_known(given: dict[str, str], expected: bool) -> None:
    assert starts_by_moment(options_of(**given)) is expected


def test_a_query_starts_where_its_options_say() -> None:
    listing = Listing([listed(0, 100, log_start=7), listed(1, 40)])

    assert first_offsets(options_of(), listing) == offsets_of(100, 40)
    assert first_offsets(options_of(startingOffsets="earliest"), listing) == offsets_of(7, 0)
    assert first_offsets(options_of(startingOffsets='{"t":{"0":9,"1":-1}}'), listing) == (
        offsets_of(9, 40)
    )


def test_children_wait_at_the_start_for_what_is_unread_of_their_parents() -> None:
    earliest = options_of(startingOffsets="earliest")
    grandchild = listed(3, 90, first_offset=80, parents=(1,))
    # 1 is at its end, but 0 is not: 3 must wait for both.
    parent = listed(1, 80, first_offset=50, log_start=80, parents=(0,), state="sealed")

    assert first_offsets(earliest, SPLIT) == offsets_of(0)
    assert first_offsets(earliest, JOIN) == offsets_of(0, 0)
    assert first_offsets(earliest, Listing([SPLIT.partitions[0], parent, grandchild])) == (
        offsets_of(0)
    )
    assert first_offsets(options_of(), SPLIT) == offsets_of(50, 80, 60)
    assert first_offsets(options_of(assign='{"t":[1]}'), SPLIT) == {("t", 1): 80}


def test_a_pasted_checkpoint_goes_on_where_it_was() -> None:
    pasted = options_of(startingOffsets='{"t":{"0":50,"1":55,"2":50}}')

    assert first_offsets(pasted, SPLIT) == offsets_of(50, 55, 50)


def test_a_batch_reaches_the_ends_of_all_partitions() -> None:
    reached = reach(options_of(), offsets_of(10, 40), Listing([listed(0, 100), listed(1, 40)]))

    assert reached == Reach(offsets_of(10, 40), offsets_of(100, 40), [])
    assert reached.record_count == 90


def test_a_new_partition_joins_at_its_first_offset_even_when_records_are_gone() -> None:
    listing = Listing([listed(0, 10), listed(1, 60, first_offset=20, log_start=30)])

    reached = reach(options_of(), offsets_of(10), listing)

    assert reached == Reach(offsets_of(10, 20), offsets_of(10, 60), [])
    assert plan_batch(options_of(), offsets_of(10), reached.end, listing) == Plan(
        [OffsetRange("t", 1, 30, 60)], ["t/1 is asked for [20, 60) and holds [30, 60)"]
    )


@pytest.mark.parametrize(
    ("listing", "start", "end"),
    [
        (SPLIT, offsets_of(20), offsets_of(50)),
        (SPLIT, offsets_of(50), offsets_of(50, 80, 60)),
        (JOIN, offsets_of(50, 20), offsets_of(50, 30)),
        (JOIN, offsets_of(50, 30), offsets_of(50, 30, 70)),
    ],
    ids=["parent first", "then its children", "both parents first", "then their child"],
)
def test_a_child_joins_when_a_batch_starts_with_its_parents_at_their_ends(
    listing: Listing, start: dict[tuple[str, int], int], end: dict[tuple[str, int], int]
) -> None:
    assert reach(options_of(), start, listing).end == end


def test_a_child_waits_as_long_as_its_parent_is_not_said_to_be_sealed() -> None:
    listing = Listing([listed(0, 50), *SPLIT.partitions[1:]])

    assert reach(options_of(), offsets_of(50), listing).end == offsets_of(50)


def test_a_child_whose_parent_is_not_read_waits_for_nothing() -> None:
    assert reach(options_of(assign='{"t":[2]}'), {("t", 2): 50}, SPLIT).end == {("t", 2): 60}
    assert reach(options_of(assign='{"t":[2]}'), {}, SPLIT).end == {("t", 2): 60}


@pytest.mark.parametrize(
    "start",
    [offsets_of(50, 70, 60), offsets_of(50)],
    ids=["its child is read", "its child starts there"],
)
def test_a_read_partition_that_retention_removed_leaves_the_offsets(
    start: dict[tuple[str, int], int],
) -> None:
    reached = reach(options_of(), start, Listing(SPLIT.partitions[1:]))

    assert reached.end == {("t", 1): 80, ("t", 2): 60}
    assert reached.losses == []


def test_one_child_that_is_read_is_enough_when_another_still_waits_for_its_other_parent() -> None:
    listing = Listing(
        [
            listed(1, 70, state="sealed"),
            listed(2, 60, first_offset=50, parents=(0,)),
            listed(3, 80, first_offset=70, parents=(0, 1)),
        ]
    )

    reached = reach(options_of(), offsets_of(50, 20, 55), listing)

    assert reached.losses == []
    assert reached.end == {("t", 1): 70, ("t", 2): 60}


def test_a_partition_that_is_gone_before_it_was_read_is_a_loss() -> None:
    reached = reach(options_of(), offsets_of(20), Listing(SPLIT.partitions[1:]))

    assert reached.end == {("t", 1): 80, ("t", 2): 60}
    assert reached.losses == ["t/0 is gone, and was read up to 20"]


# Of 0, 1, 2, each the parent of the next, retention has left the last.
CHAIN_END = Listing([listed(2, 80, first_offset=70, parents=(1,))])


def test_two_generations_that_were_read_may_be_gone() -> None:
    assert reach(options_of(), offsets_of(50, 70), CHAIN_END).losses == []
    assert reach(options_of(), offsets_of(50, 60, 75), CHAIN_END).losses == []


def test_a_generation_that_is_gone_unread_is_a_loss() -> None:
    assert reach(options_of(), offsets_of(50), CHAIN_END).losses == [
        "t/0 is gone, and was read up to 50"
    ]


def test_a_topic_that_was_made_again_with_fewer_partitions_is_a_loss() -> None:
    reached = reach(options_of(), offsets_of(100, 50), Listing([listed(0)]))

    assert reached.losses == ["t/1 is gone, and was read up to 50"]


def test_a_topic_that_is_gone_is_a_loss() -> None:
    reached = reach(options_of(), offsets_of(20), Listing([], ["t"]))

    assert reached.losses == ["t/0 is gone, and was read up to 20"]
    assert reached.end == {}


def test_a_partition_that_is_not_asked_for_any_more_leaves_silently() -> None:
    options = options_of(assign='{"t":[1]}')

    reached = reach(options, offsets_of(20, 5), Listing([listed(0), listed(1)]))

    assert reached == Reach({("t", 1): 5}, {("t", 1): 100}, [])


def test_a_partition_that_ends_before_it_was_read_to_is_a_loss_and_read_on_from_there() -> None:
    reached = reach(options_of(), offsets_of(200, 0), Listing([listed(0), listed(1)]))

    assert reached.losses == ["t/0 was read up to 200 and ends at 100"]
    assert reached.record_count == 100
    assert limited(reached, 10) == offsets_of(100, 10)
    assert plan_batch(options_of(), offsets_of(200), offsets_of(100), Listing([listed(0)])) == (
        Plan([], [])
    )


def test_a_damaged_partition_is_refused_whatever_is_allowed() -> None:
    with pytest.raises(PartitionDamagedError):
        reach(options_of(failOnDataLoss="false"), offsets_of(0), Listing([damaged()]))


@pytest.mark.parametrize(
    ("records_max", "end"),
    [
        (1000, [100, 300, 7, 8]),
        (400, [100, 300, 7, 8]),
        (40, [10, 30, 7, 8]),
        (3, [1, 2, 7, 8]),
        (1, [1, 1, 7, 8]),
    ],
)
def test_a_limit_is_shared_in_proportion_and_each_gets_one(
    records_max: int, end: list[int]
) -> None:
    reached = Reach(offsets_of(0, 0, 7, 8), offsets_of(100, 300, 7, 8), [])

    assert limited(reached, records_max) == offsets_of(*end)


def test_the_first_batch_of_a_query_reads_nothing() -> None:
    assert plan_batch(options_of(), {}, offsets_of(100), Listing([listed(0)])) == Plan([], [])


def test_a_batch_reads_between_its_offsets_and_new_partitions_from_their_first() -> None:
    start, end = offsets_of(50), offsets_of(50, 70, 50)

    assert plan_batch(options_of(), start, end, SPLIT).ranges == [OffsetRange("t", 1, 50, 70)]


def test_a_batch_whose_records_are_gone_is_a_loss() -> None:
    listing = Listing([listed(0, 100, log_start=30)])

    plan = plan_batch(options_of(), offsets_of(10, 5), offsets_of(60, 9), listing)

    assert plan == Plan(
        [OffsetRange("t", 0, 30, 60)],
        ["t/0 is asked for [10, 60) and holds [30, 100)", "t/1 is gone before it was read"],
    )


def test_a_partition_that_is_gone_and_had_nothing_to_read_is_no_loss() -> None:
    plan = plan_batch(options_of(), offsets_of(10, 5), offsets_of(60, 5), Listing([listed(0)]))

    assert plan == Plan([OffsetRange("t", 0, 10, 60)], [])


def test_the_latest_offsets_are_those_of_all_partitions_that_can_be_read() -> None:
    listing = Listing([*SPLIT.partitions, damaged(3), listed(topic="other")])

    assert latest_offsets(options_of(), listing) == offsets_of(50, 80, 60)


def test_a_query_that_waited_for_its_topic_reads_it_from_the_earliest() -> None:
    listing = Listing([listed(0, 100, log_start=7)])

    assert first_offsets(from_earliest(options_of()), listing) == offsets_of(7)


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ({}, False),
        ({("t", 0): 5, ("t", 1): 5}, False),
        ({("t", 2): 5}, True),
        ({("u", 2): 5}, False),  # a topic that is gone
        ({("t", 0): 5, ("u", 7): 5, ("t", 3): 5}, True),
    ],
)
def test_a_listing_that_lacks_the_newest_partitions_is_older(
    offsets: dict[tuple[str, int], int], expected: bool
) -> None:
    """As of a broker that has not heard of a step; retention takes the oldest."""
    assert is_older(Listing([listed(1), listed(0)]), offsets) is expected


def test_a_broker_that_knows_the_partitions_of_the_offsets_is_looked_for() -> None:
    older, newer = Listing([listed(0)]), Listing([listed(0), listed(1)])
    answers, turns = [older, older, newer], []

    found = listing_with({("t", 1): 5}, lambda: answers.pop(0), lambda: turns.append(1))

    assert found is newer
    assert len(turns) == 2


def test_partitions_that_no_broker_knows_are_not_waited_for_for_ever() -> None:
    """The topic was made again, with fewer of them."""
    older, turns = Listing([listed(0)]), list[int]()

    assert listing_with({("t", 1): 5}, lambda: older, lambda: turns.append(1)) is older
    assert len(turns) == OLDER_LISTINGS_MAX
