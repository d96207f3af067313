"""Streams over made-up topics that grow, shrink and forget: every record once, parents first."""

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tailrace.spark.offsets import Listing, OffsetRange
from tailrace.spark.options import Read, parse_read_options
from tailrace.spark.stream_offsets import (
    Offsets,
    first_offsets,
    limited,
    plan_batch,
    reach,
    read_offsets,
    write_offsets,
)
from tailrace.values import PartitionOffsets

pytestmark = pytest.mark.timeout(30)  # hypothesis marks no state machine

OPTIONS = parse_read_options(
    {"url": "http://a:9250", "subscribe": "t", "startingOffsets": "earliest"}, Read.STREAM
)
REPLAYS = 3  # batches that Spark may run again: one, in truth


@dataclass
class Partition:
    """One log of the topic, and how far the query has read it."""

    first_offset: int
    parents: tuple[int, ...] = ()
    is_sealed: bool = False
    is_removed: bool = False
    end: int = field(init=False)
    read_to: int = field(init=False)

    def __post_init__(self) -> None:
        self.end = self.read_to = self.first_offset


class StreamMachine(RuleBasedStateMachine):
    """A broker's topic and a query on it, one step at a time."""

    @initialize(count=st.integers(1, 4))
    def begin(self, count: int) -> None:
        self.partitions = [Partition(0) for _ in range(count)]
        self.offsets: Offsets = {}
        self.batches: list[tuple[Offsets, Offsets, list[OffsetRange]]] = []

    @rule(data=st.data(), count=st.integers(1, 50))
    def append(self, data: st.DataObject, count: int) -> None:
        self.partitions[data.draw(self.open_ids())].end += count

    @precondition(lambda self: len(self.partitions) < 40)
    @rule(data=st.data(), child_count=st.integers(1, 3))
    def split(self, data: st.DataObject, child_count: int) -> None:
        self.seal([data.draw(self.open_ids())], child_count)

    @precondition(lambda self: sum(not partition.is_sealed for partition in self.partitions) > 1)
    @rule(data=st.data())
    def join(self, data: st.DataObject) -> None:
        first = data.draw(self.open_ids())
        self.seal([first, data.draw(self.open_ids().filter(lambda id_: id_ != first))], 1)

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        """Retention takes a sealed partition that was read and whose children were begun."""
        begun = {parent for _, index in self.offsets for parent in self.partitions[index].parents}
        removable = [
            index
            for index in sorted(begun)
            if self.partitions[index].is_sealed and not self.partitions[index].is_removed
        ]
        if removable:
            self.partitions[data.draw(st.sampled_from(removable))].is_removed = True

    @rule(records_max=st.integers(1, 100))
    def run_batch(self, records_max: int) -> None:
        listing = self.listing()
        start = self.offsets or first_offsets(OPTIONS, listing)
        reached = reach(OPTIONS, start, listing)
        assert reached.losses == []
        end = limited(reached, records_max)
        plan = plan_batch(OPTIONS, start, end, listing)
        assert plan.losses == []
        count = sum(range_.record_count for range_ in plan.ranges)
        assert count <= records_max + len(plan.ranges)
        assert bool(count) == bool(reached.record_count)
        self.read(plan.ranges)
        self.batches.append((start, end, plan.ranges))
        self.offsets = read_offsets(json.loads(json.dumps(write_offsets(end))))

    @rule()
    def run_again(self) -> None:
        """What Spark does after a crash: the same offsets, a later listing."""
        for start, end, ranges in self.batches[-REPLAYS:]:
            if not any(self.partitions[range_.partition].is_removed for range_ in ranges):
                assert plan_batch(OPTIONS, start, end, self.listing()).ranges == ranges

    @invariant()
    def offsets_are_what_was_read(self) -> None:
        for (_, partition), offset in self.offsets.items():
            assert offset == self.partitions[partition].read_to

    def teardown(self) -> None:
        """Without a limit a batch or so for each generation reads all of the rest."""
        for _ in range(len(self.partitions) + 1):
            self.run_batch(10**9)
        for partition in self.partitions:
            assert partition.read_to == partition.end

    def seal(self, parents: list[int], child_count: int) -> None:
        for parent in parents:
            self.partitions[parent].is_sealed = True
        first_offset = max(self.partitions[parent].end for parent in parents)
        self.partitions += [Partition(first_offset, tuple(parents)) for _ in range(child_count)]

    def read(self, ranges: list[OffsetRange]) -> None:
        for range_ in ranges:
            partition = self.partitions[range_.partition]
            assert range_.start == partition.read_to, "nothing skipped, nothing again"
            parents = [self.partitions[index] for index in partition.parents]
            assert all(parent.read_to == parent.end for parent in parents), "parents first"
        for range_ in ranges:
            self.partitions[range_.partition].read_to = range_.end

    def open_ids(self) -> st.SearchStrategy[int]:
        return st.sampled_from(
            [index for index, partition in enumerate(self.partitions) if not partition.is_sealed]
        )

    def listing(self) -> Listing:
        return Listing(
            [
                PartitionOffsets(
                    topic="t",
                    partition=index,
                    range_id=index,
                    epoch=1,
                    first_offset=partition.first_offset,
                    log_start=partition.first_offset,
                    high_watermark=partition.end,
                    log_end=partition.end,
                    state="sealed" if partition.is_sealed else "open",
                    parents=partition.parents,
                )
                for index, partition in enumerate(self.partitions)
                if not partition.is_removed
            ]
        )


TestStream = StreamMachine.TestCase
TestStream.settings = settings(max_examples=20, deadline=None)  # each of fifty steps
