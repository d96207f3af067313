import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import PartitionDamagedError
from tailrace.spark.offsets import (
    Listing,
    OffsetRange,
    Plan,
    plan_ranges,
    split_ranges,
)
from tailrace.spark.option_values import InvalidOptionError
from tailrace.spark.options import Read, ReadOptions, parse_read_options
from tailrace.values import PartitionOffsets


def listed(
    topic: str = "flights",
    partition: int = 0,
    *,
    first_offset: int = 0,
    log_start: int = 0,
    high_watermark: int = 100,
) -> PartitionOffsets:
    return PartitionOffsets(
        topic=topic,
        partition=partition,
        range_id=0,
        epoch=1,
        first_offset=first_offset,
        log_start=log_start,
        high_watermark=high_watermark,
        log_end=high_watermark + 5,
        state="open",
        parents=(),
    )


def options_of(**given: str) -> ReadOptions:
    selection = {} if {"assign", "subscribePattern"} & given.keys() else {"subscribe": "flights"}
    return parse_read_options({"url": "http://127.0.0.1:9250", **selection, **given}, Read.BATCH)


def plan_of(options: ReadOptions, *partitions: PartitionOffsets) -> Plan:
    return plan_ranges(options, Listing(partitions))


def offsets_json(offset: int, partition: int = 0) -> str:
    return json.dumps({"flights": {partition: offset}})


def test_a_whole_topic_is_planned_from_log_start_to_high_watermark() -> None:
    listing = [
        listed(partition=1, log_start=7),
        listed(partition=0),
        listed(partition=2, high_watermark=0),
        listed("other"),
    ]

    assert plan_of(options_of(), *listing) == Plan(
        [OffsetRange("flights", 0, 0, 100), OffsetRange("flights", 1, 7, 100)], []
    )


def test_json_offsets_bound_the_range_and_know_earliest_and_latest() -> None:
    options = options_of(
        startingOffsets='{"flights":{"0":10,"1":-2}}', endingOffsets='{"flights":{"0":20,"1":-1}}'
    )

    assert plan_of(options, listed(), listed(partition=1, log_start=7)) == Plan(
        [OffsetRange("flights", 0, 10, 20), OffsetRange("flights", 1, 7, 100)], []
    )


def test_a_partition_that_json_does_not_name_starts_at_its_first_offset() -> None:
    newer = listed(partition=1, first_offset=40, log_start=40)

    plan = plan_of(options_of(startingOffsets=offsets_json(10)), listed(), newer)

    assert plan.ranges == [OffsetRange("flights", 0, 10, 100), OffsetRange("flights", 1, 40, 100)]
    assert plan.losses == []


def test_a_newer_partition_that_lost_its_first_records_is_a_loss() -> None:
    newer = listed(partition=1, first_offset=40, log_start=60)

    plan = plan_of(options_of(startingOffsets=offsets_json(10)), listed(), newer)

    assert plan.ranges[1] == OffsetRange("flights", 1, 60, 100)
    assert plan.losses == ["flights/1 is asked for [40, 100) and holds [60, 100)"]


def test_a_damaged_partition_is_refused_unless_it_is_not_read() -> None:
    damaged = replace(
        listed(partition=1), log_start=None, high_watermark=None, log_end=None, state="damaged"
    )

    with pytest.raises(PartitionDamagedError, match='partition 1 of topic "flights" is damaged'):
        plan_of(options_of(failOnDataLoss="false"), listed(), damaged)
    assert plan_of(options_of(assign='{"flights":[0]}'), listed(), damaged) == Plan(
        [OffsetRange("flights", 0, 0, 100)], []
    )


def test_an_end_must_be_named_for_every_partition() -> None:
    with pytest.raises(InvalidOptionError, match="no end for flights/1"):
        plan_of(options_of(endingOffsets=offsets_json(10)), listed(), listed(partition=1))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"startingOffsets": offsets_json(3)}, [OffsetRange("flights", 0, 5, 100)]),
        ({"endingOffsets": offsets_json(101)}, [OffsetRange("flights", 0, 5, 100)]),
        ({"endingOffsets": offsets_json(4)}, []),
        ({"startingOffsets": offsets_json(101)}, []),
        ({"startingOffsets": offsets_json(50), "endingOffsets": offsets_json(40)}, []),
    ],
    ids=["start gone", "end not there", "end gone", "start not there", "end before start"],
)
def test_what_cannot_be_read_is_a_loss_and_the_rest_is_kept(
    given: dict[str, str], kept: list[OffsetRange]
) -> None:
    plan = plan_of(options_of(**given), listed(log_start=5))

    assert plan.ranges == kept
    assert len(plan.losses) == 1


@pytest.mark.parametrize(
    "given", [{"assign": '{"flights":[0,9]}'}, {"startingOffsets": offsets_json(0, partition=9)}]
)
def test_a_partition_that_is_not_there_is_a_loss(given: dict[str, str]) -> None:
    plan = plan_of(options_of(**given), listed())

    assert plan.ranges == [OffsetRange("flights", 0, 0, 100)]
    assert plan.losses == ["flights/9 does not exist"]


def test_a_topic_that_does_not_exist_is_no_loss() -> None:
    options = options_of(assign='{"gone":[0]}', startingOffsets='{"gone":{"0":5}}')

    assert plan_ranges(options, Listing([], ["gone"])) == Plan([], [])


def test_of_a_topic_that_does_not_exist_the_nearest_name_is_said() -> None:
    listing = replace(Listing([listed()]), missing_topics=["flihgts", "orders"])

    assert listing.missing() == [
        'topic "flihgts" does not exist; did you mean flights?',
        'topic "orders" does not exist',
    ]


def test_assigned_partitions_alone_are_planned() -> None:
    plan = plan_of(options_of(assign='{"flights":[1]}'), listed(), listed(partition=1))

    assert plan == Plan([OffsetRange("flights", 1, 0, 100)], [])


def at_times(
    partitions: list[PartitionOffsets], first_by_time_ms: dict[int, list[int | None]]
) -> Listing:
    """A listing in which each time has found these offsets, one a partition."""
    return Listing(
        partitions,
        first_offsets={
            time_ms * 1000: {
                (partition.topic, partition.partition): offset
                for partition, offset in zip(partitions, offsets, strict=True)
            }
            for time_ms, offsets in first_by_time_ms.items()
        },
    )


def test_times_bound_the_range_by_the_first_record_that_is_not_older() -> None:
    options = options_of(startingTimestamp="5", endingTimestamp="9")
    listing = at_times([listed(), listed(partition=1)], {5: [10, 0], 9: [30, None]})

    assert plan_ranges(options, listing) == Plan(
        [OffsetRange("flights", 0, 10, 30), OffsetRange("flights", 1, 0, 100)], []
    )


def test_times_may_differ_by_partition_and_leave_one_at_its_beginning() -> None:
    options = options_of(startingOffsetsByTimestamp=offsets_json(5))
    newer = listed(partition=1, first_offset=40, log_start=40)

    assert plan_ranges(options, at_times([listed(), newer], {5: [10, 90]})).ranges == [
        OffsetRange("flights", 0, 10, 100),
        OffsetRange("flights", 1, 40, 100),
    ]


def test_a_time_after_the_last_record_is_refused_unless_the_latest_will_do() -> None:
    listing = at_times([listed(), listed(partition=1)], {5: [10, None]})
    latest = options_of(startingTimestamp="5", startingOffsetsByTimestampStrategy="latest")

    with pytest.raises(
        InvalidOptionError, match="no record of flights/1 is as late as 5; to start"
    ):
        plan_ranges(options_of(startingTimestamp="5"), listing)
    assert plan_ranges(latest, listing).ranges == [OffsetRange("flights", 0, 10, 100)]


def test_a_sealed_partition_never_gets_a_later_record_and_is_left_out() -> None:
    sealed = replace(listed(), state="sealed")
    listing = at_times([sealed, listed(partition=1)], {5: [None, 60]})

    plan = plan_ranges(options_of(startingTimestamp="5"), listing)

    assert plan == Plan([OffsetRange("flights", 1, 60, 100)], [])


def test_an_ending_time_must_be_named_for_every_partition() -> None:
    listing = at_times([listed(), listed(partition=1)], {5: [10, 10]})

    with pytest.raises(InvalidOptionError, match=r"names no end for flights/1: add it$"):
        plan_ranges(options_of(endingOffsetsByTimestamp=offsets_json(5)), listing)


ranges_of_one_topic = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(1, 300)), max_size=6
).map(
    lambda spans: [
        OffsetRange("flights", partition, start, start + count)
        for partition, (start, count) in enumerate(spans)
    ]
)


def records_of(ranges: list[OffsetRange]) -> list[tuple[int, int]]:
    return [
        (range_.partition, offset)
        for range_ in ranges
        for offset in range(range_.start, range_.end)
    ]


@given(ranges_of_one_topic, st.integers(1, 40), st.integers(1, 500))
def test_splitting_keeps_every_record_once_and_both_bounds(
    ranges: list[OffsetRange], range_count_min: int, range_records_max: int
) -> None:
    parts = split_ranges(
        ranges, range_count_min=range_count_min, range_records_max=range_records_max
    )

    records = records_of(ranges)
    assert records_of(parts) == records
    assert all(part.record_count <= range_records_max for part in parts)
    assert len(parts) >= min(range_count_min, len(records))


@given(ranges_of_one_topic)
def test_ranges_that_are_enough_are_not_split(ranges: list[OffsetRange]) -> None:
    parts = split_ranges(ranges, range_count_min=len(ranges), range_records_max=10**9)

    assert parts == ranges


def test_a_range_is_cut_evenly() -> None:
    parts = split_ranges(
        [OffsetRange("flights", 0, 5, 15)], range_count_min=4, range_records_max=100
    )

    assert [part.record_count for part in parts] == [2, 2, 2, 2, 2]
