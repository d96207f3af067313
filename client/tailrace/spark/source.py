"""The data source behind `format("tailrace")`: reads in batches and as a stream, writes in batches.

Owns what Spark pickles, plans and runs. The driver asks the broker for its offsets and makes a
task of each range; a task reads it on an executor (`tailrace.spark.task`). What is decided is
decided in `offsets` and `stream_offsets`.

Source: pyspark 4.3, `pyspark/sql/datasource.py`, `pyspark/sql/streaming/datasource.py`,
`pyspark/sql/worker/plan_data_source_read.py`.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from tailrace.errors import TailraceError
from tailrace.spark import stream_offsets
from tailrace.spark.connection import PatientClient, list_partitions
from tailrace.spark.filters import Condition, conditions_of, narrow
from tailrace.spark.group_offsets import GroupOffsets
from tailrace.spark.offsets import Listing, OffsetRange, Plan, plan_ranges, split_ranges
from tailrace.spark.option_values import InvalidOptionError
from tailrace.spark.options import Read, ReadOptions, parse_read_options, parse_write_options
from tailrace.spark.stream_offsets import (
    NO_OFFSETS,
    Offsets,
    OffsetsDocument,
    Reach,
    read_offsets,
    write_offsets,
)
from tailrace.spark.task import DataLossError, MissingTopicError, read_range, report_loss

if TYPE_CHECKING:
    import pyarrow as pa


class TailraceDataSource(DataSource):
    """Found by Spark through `pyspark_tailrace`; options: `tailrace.spark.options`."""

    @classmethod
    def name(cls) -> str:
        """For `format(...)`."""
        return "tailrace"

    def schema(self) -> StructType:
        """The columns of `tailrace.arrow.batches.SCHEMA`, or SCHEMA_WITH_HEADERS."""
        return row_schema(parse_read_options(self.options, Read.ANY))

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`."""
        options = self._read_options(Read.BATCH, schema)
        return (NarrowingReader if options.filter_pushdown else TailraceReader)(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For `spark.readStream`."""
        return TailraceStreamReader(self._read_options(Read.STREAM, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For `df.write`."""
        from tailrace.spark.sink import TailraceWriter

        if overwrite:
            raise TailraceError('a topic cannot be overwritten: write with mode("append")')
        columns = {field.name: field.dataType.simpleString() for field in schema.fields}
        return TailraceWriter(parse_write_options(self.options, columns))

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        """For `df.writeStream`, which comes later."""
        raise TailraceError(
            'format("tailrace") does not write streams yet: use foreachBatch, and in it df.write'
        )

    def _read_options(self, read: Read, schema: StructType) -> ReadOptions:
        options = parse_read_options(self.options, read)
        if schema != row_schema(options):
            raise InvalidOptionError('format("tailrace") has its own columns: take .schema() away')
        return options


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """One task: a range of offsets."""

    offsets: OffsetRange


class TailraceReader(DataSourceReader):
    """Plans on the driver, reads on executors; holds nothing but options, so that it pickles."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """The tasks, planned by the offsets of this moment. MissingTopicError,
        DataLossError, InvalidOptionError.
        """
        with closing(PatientClient.of(self._options)) as client:
            listing = list_partitions(client, self._options, with_times=True)
        for missing in listing.missing():
            report_loss(self._options, missing, MissingTopicError)
        return _tasks(self._options, plan_ranges(self._options, listing))

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """All records of the task."""
        return _read(partition, self._options)


class NarrowingReader(TailraceReader):
    """One that heeds conditions; Spark refuses `pushFilters` unless it is configured to call it."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._conditions: list[Condition] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Remember what spares reading; Spark checks all of them again."""
        self._conditions = conditions_of(filters)
        return filters

    def partitions(self) -> list[InputPartition]:
        """The tasks that may have wanted rows."""
        tasks = [task.offsets for task in super().partitions() if isinstance(task, RangePartition)]
        return [RangePartition(offsets) for offsets in narrow(tasks, self._conditions)]


class TailraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in a process that lives as long as the query; reads on executors.

    Nothing but options is set until the planner calls, so that it pickles for the executors.
    Spark calls `commit` late and for the last batch not at all, so nothing hangs on it: that a
    batch is written shows sooner, when the next one is asked for from its end.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._client: PatientClient | None = None
        self._group_offsets: GroupOffsets | None = None
        self._listing: Listing | None = None  # the newest
        self._final_listing: Listing | None = None  # of Trigger.AvailableNow: up to there
        self._has_waited = False  # for a first topic
        self._batch_at_s: float | None = None
        self._reported: set[str] = set()  # losses; the planner asks many times a second

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options ask for. Trigger.Once hands `latestOffset` another: all there is."""
        if self._options.trigger_records_max is not None:
            return ReadMaxRows(self._options.trigger_records_max)
        if self._options.trigger_records_min is not None:
            return ReadMinRows(self._options.trigger_records_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix where the query ends."""
        self._final_listing = self._list(with_times=True)

    def initialOffset(self) -> OffsetsDocument:
        """Where a new query starts, or `{}`: see `tailrace.spark.stream_offsets`."""
        if stream_offsets.starts_by_moment(self._options):
            return {}
        return self._first_offsets()

    def latestOffset(self, start: OffsetsDocument, limit: ReadLimit) -> OffsetsDocument:
        """Where the next batch ends; `start` itself when there is nothing new."""
        if not start:
            return self._first_offsets()
        self._publish(start)
        begun = read_offsets(start)
        if self._final_listing is not None and stream_offsets.is_older(self._final_listing, begun):
            self._final_listing = self._list(begun, with_times=True)
        self._listing = self._final_listing or self._list(begun)
        reached = stream_offsets.reach(self._options, begun, self._listing)
        self._report(reached.losses, DataLossError)
        self._report(self._listing.missing(), MissingTopicError)
        if self._is_too_early(reached, limit):
            return start
        end = reached.end
        if isinstance(limit, ReadMaxRows):
            end = stream_offsets.limited(reached, limit.max_rows)
        document = write_offsets(end)
        if document == start:
            return start
        self._has_waited = not document  # all its topics were deleted
        self._batch_at_s = time.monotonic()
        return document

    def reportLatestOffset(self) -> OffsetsDocument | None:
        """How far the topics go, for progress reports."""
        if self._listing is None:
            return None
        return write_offsets(stream_offsets.latest_offsets(self._options, self._listing))

    def partitions(self, start: OffsetsDocument, end: OffsetsDocument) -> list[InputPartition]:
        """The tasks of a batch; the same ones when it is run again. DataLossError."""
        if not start:
            return []
        ended = read_offsets(end)
        plan = stream_offsets.plan_batch(
            self._options, read_offsets(start), ended, self._list(ended)
        )
        return _tasks(self._options, plan)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """All records of the task."""
        return _read(partition, self._options)

    def stop(self) -> None:
        """Close the connection; Spark ends the process instead, but for a planner that failed."""
        if self._client is not None:
            self._client.close()
        if self._group_offsets is not None:
            self._group_offsets.close()

    def _list(self, offsets: Offsets = NO_OFFSETS, *, with_times: bool = False) -> Listing:
        """By a broker that knows the partitions of these offsets."""
        client = self._client
        if client is None:
            client = self._client = PatientClient.of(self._options)
        return stream_offsets.listing_with(
            offsets,
            partial(list_partitions, client, self._options, with_times=with_times),
            partial(client.turn, stream_offsets.OLDER_LISTING_S),
        )

    def _publish(self, committed: OffsetsDocument) -> None:
        if self._options.group_id is None:
            return
        if self._group_offsets is None:
            self._group_offsets = GroupOffsets.of(self._options.group_id, self._options)
        self._group_offsets.publish(read_offsets(committed))

    def _first_offsets(self) -> OffsetsDocument:
        """Where the query starts; `{}` as long as there is no topic to read."""
        self._listing = self._final_listing or self._list(with_times=True)
        self._report(self._listing.missing(), MissingTopicError)
        options = self._options
        if self._has_waited:  # a topic that is there now is newer than the query
            options = stream_offsets.from_earliest(options)
        offsets = stream_offsets.first_offsets(options, self._listing)
        self._has_waited = not offsets
        return write_offsets(offsets)

    def _is_too_early(self, reached: Reach, limit: ReadLimit) -> bool:
        """Whether to wait for minOffsetsPerTrigger."""
        records_min = self._options.trigger_records_min
        if records_min is None or self._final_listing or isinstance(limit, ReadAllAvailable):
            return False
        if self._batch_at_s is None or reached.record_count >= records_min:
            return False
        return time.monotonic() - self._batch_at_s < self._options.trigger_delay_s_max

    def _report(self, losses: list[str], kind: type[DataLossError]) -> None:
        for loss in losses:
            if loss not in self._reported:
                report_loss(self._options, loss, kind)
                self._reported.add(loss)


def row_schema(options: ReadOptions) -> StructType:
    """What `tailrace.arrow.batches` decodes, in Spark's types; Spark refuses any difference."""
    schema = (
        StructType()
        .add("key", BinaryType())
        .add("value", BinaryType())
        .add("topic", StringType())
        .add("partition", IntegerType())
        .add("offset", LongType())
        .add("timestamp", TimestampType())
        .add("timestampType", IntegerType())
    )
    if options.include_headers:
        header = StructType().add("key", StringType()).add("value", BinaryType())
        schema = schema.add("headers", ArrayType(header))
    return schema


def _tasks(options: ReadOptions, plan: Plan) -> list[InputPartition]:
    """A task for each part of the plan's ranges. DataLossError."""
    for loss in plan.losses:
        report_loss(options, loss)
    ranges = split_ranges(
        plan.ranges,
        range_count_min=options.partition_count_min,
        range_records_max=options.partition_records_max,
    )
    return [RangePartition(offsets) for offsets in ranges]


def _read(partition: InputPartition, options: ReadOptions) -> "Iterator[pa.RecordBatch]":
    if isinstance(partition, RangePartition):  # else Spark's stand-in for a read without partitions
        yield from read_range(partition.offsets, options)
