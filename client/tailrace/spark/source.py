"""The data source behind `spark.read.format("tailrace")`: batch reads by offset.

Owns what Spark pickles, plans and runs. The driver asks the broker for its offsets and makes a
task of each range; a task opens one connection, in `read`, on its executor. What is decided is
decided in `offsets`; bytes become Arrow in `tailrace.arrow`, which is imported only where it is
needed: Spark imports this module in every session that looks for data sources.

Source: pyspark 4.3, `pyspark/sql/datasource.py` and `pyspark/sql/worker/plan_data_source_read.py`.
"""

import functools
import gc
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from tailrace.errors import ConnectionFailedError, OffsetOutOfRangeError, TailraceError
from tailrace.spark.offsets import OffsetRange, Plan, plan_ranges, select_topics, split_ranges
from tailrace.spark.options import InvalidOptionError, ReadOptions, parse_options
from tailrace.sync import Client

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)


class DataLossError(TailraceError):
    """Records that were asked for are not there; option failOnDataLoss=false reads the rest."""


class TailraceDataSource(DataSource):
    """Found by Spark through `pyspark_tailrace`; options: `tailrace.spark.options`."""

    @classmethod
    def name(cls) -> str:
        """For `format(...)`."""
        return "tailrace"

    def schema(self) -> StructType:
        """The columns of `tailrace.arrow.SCHEMA`, or SCHEMA_WITH_HEADERS."""
        return row_schema(parse_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`."""
        options = parse_options(self.options)
        if schema != row_schema(options):
            raise InvalidOptionError('format("tailrace") has its own columns: take .schema() away')
        return TailraceReader(options)

    def streamReader(self, schema: StructType) -> NoReturn:
        """For `spark.readStream`, which comes later."""
        raise TailraceError(
            'format("tailrace") reads batches only: use spark.read in place of spark.readStream'
        )


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """One task: a range of offsets, and the broker to read it from."""

    url: str
    offsets: OffsetRange


class TailraceReader(DataSourceReader):
    """Plans on the driver, reads on executors; holds nothing but options, so that it pickles."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """The tasks, planned by the offsets of this moment. DataLossError, InvalidOptionError."""
        url, plan = _plan(self._options)
        for loss in plan.losses:
            _report_loss(self._options, loss)
        ranges = split_ranges(
            plan.ranges,
            range_count_min=self._options.partition_count_min,
            range_records_max=self._options.partition_records_max,
        )
        return [RangePartition(url, offsets) for offsets in ranges]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """All records of the task, in record batches of `coalesceRows` rows."""
        if not isinstance(partition, RangePartition):
            return  # Spark's stand-in for a read without partitions
        from tailrace.arrow import coalesce

        decoded = _read_range(partition.url, partition.offsets, self._options)
        for batch in coalesce(decoded, rows=self._options.coalesce_rows):
            _freeze_heap()
            yield batch


def row_schema(options: ReadOptions) -> StructType:
    """What `tailrace.arrow` decodes, in Spark's types; Spark refuses any difference."""
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


def _plan(options: ReadOptions) -> tuple[str, Plan]:
    """What to read by the first broker that answers, and its URL."""
    *urls, last_url = options.urls
    for url in urls:
        with suppress(ConnectionFailedError):
            return url, _plan_at(url, options)
    return last_url, _plan_at(last_url, options)


def _plan_at(url: str, options: ReadOptions) -> Plan:
    with Client(url) as client:
        topics = select_topics(options, [topic.name for topic in client.topics()])
        listing = client.offsets(topics.present) if topics.present else []
    plan = plan_ranges(options, listing)
    losses = [f'topic "{name}" does not exist' for name in topics.missing]
    return Plan(plan.ranges, losses + plan.losses)


def _read_range(url: str, offsets: OffsetRange, options: ReadOptions) -> "Iterator[pa.RecordBatch]":
    """The range's records, one record batch a batch, over one connection of its own."""
    from tailrace.arrow import decode_batches

    position = offsets.start
    with Client(url) as client:
        while position < offsets.end:
            asked = position
            try:
                fetched = client.read_batches(
                    offsets.topic, offsets.partition, asked, max_bytes=options.fetch_bytes_max
                )
            except OffsetOutOfRangeError as error:
                _report_loss(options, f"{offsets.topic}/{offsets.partition}: {error}")
                # Retention took the start while the job ran; without a later start, all is gone.
                position = error.log_start if error.log_start > asked else offsets.end
                continue
            for batch in decode_batches(
                fetched.body,
                topic=offsets.topic,
                start=asked,
                end=offsets.end,
                include_headers=options.include_headers,
            ):
                position += batch.num_rows
                yield batch
            if position == asked:
                _report_loss(
                    options,
                    f"{offsets.topic}/{offsets.partition} ends at {asked}, not {offsets.end}",
                )
                return


def _report_loss(options: ReadOptions, loss: str) -> None:
    """Raise, or warn in the log of the process that runs this."""
    if options.fail_on_data_loss:
        raise DataLossError(f"{loss}. To read what is left, set failOnDataLoss to false")
    _log.warning("%s; failOnDataLoss is false: reading what is left", loss)


@functools.cache
def _freeze_heap() -> None:
    """Once a process: take all that is imported out of the collector's sight.

    pyspark/daemon.py runs `gc.collect()` after every task, and a worker imports thousands of
    objects: about 90 % of its CPU was the collector walking imported modules. A task took 183 to
    215 ms before, 41 to 43 ms after. Called behind the first decoded batch, since pyarrow imports
    lazily up to there.
    """
    gc.collect()
    gc.freeze()
