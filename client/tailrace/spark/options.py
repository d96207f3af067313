"""The options of reads and writes, with names and meaning of those of Spark's Kafka source; pure.

What each means, and its default, is in docs/spark.md. What they are given as becomes values in
`tailrace.spark.option_values`.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from tailrace.spark.option_values import (
    EARLIEST,
    INT64_MAX,
    LATEST,
    SELECTION_NAMES,
    URL_NAMES,
    Bound,
    InvalidOptionError,
    Values,
    refuse,
)

FETCH_BYTES_DEFAULT = 4 * 1024 * 1024
FETCH_BYTES_MAX = 16 * 1024 * 1024  # docs/protocol.md, "Read"
COALESCE_ROWS_DEFAULT = 20_000
RETRY_COUNT_DEFAULT = 10  # with the interval, nearly a minute: longer than a broker's restart
RETRY_INTERVAL_MS_DEFAULT = 500
_RETRY_COUNT_MAX = 1_000
_RETRY_INTERVAL_MS_MAX = 60_000
_TRIGGER_DELAY_S_DEFAULT = 15 * 60.0

_EARLIEST_WORD = {"earliest": EARLIEST}
_LATEST_WORD = {"latest": LATEST}
_READ_NAMES = (
    *URL_NAMES,
    *SELECTION_NAMES,
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "fetchMaxBytes",
    "coalesceRows",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
_BATCH_NAMES = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "filterPushdown")
_STREAM_NAMES = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "groupId")
_WRITE_NAMES = (*URL_NAMES, "topic")

_TYPES_BY_COLUMN = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
}


class Read(Enum):
    """What is read; `load()` asks for the columns before that is known."""

    BATCH = "a batch read"
    STREAM = "a streaming read"
    ANY = "a read"


NAMES_BY_READ = {
    Read.BATCH: _READ_NAMES + _BATCH_NAMES,
    Read.STREAM: _READ_NAMES + _STREAM_NAMES,
    Read.ANY: _READ_NAMES + _BATCH_NAMES + _STREAM_NAMES,
}
_STARTING_DEFAULT_BY_READ = {Read.BATCH: EARLIEST, Read.STREAM: LATEST, Read.ANY: EARLIEST}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read, and how; travels pickled to the executors."""

    urls: tuple[str, ...]
    partitions_by_topic: Mapping[str, frozenset[int] | None]  # None: all of the topic's
    topic_pattern: str | None  # in place of partitions_by_topic, which is then empty
    starting: Bound
    ending: Bound
    starts_latest_without_match: bool  # where no record is as late as a starting time
    partition_count_min: int
    partition_records_max: int
    fail_on_data_loss: bool
    include_headers: bool
    fetch_bytes_max: int
    coalesce_rows: int
    retry_count: int
    retry_interval_s: float
    filter_pushdown: bool
    trigger_records_max: int | None
    trigger_records_min: int | None
    trigger_delay_s_max: float
    group_id: str | None  # under which the query's progress is published; None: it is not

    def selects(self, topic: str, partition: int) -> bool:
        """Whether this partition of the topic is asked for."""
        if self.topic_pattern is not None:
            return re.fullmatch(self.topic_pattern, topic) is not None
        if topic not in self.partitions_by_topic:
            return False
        partitions = self.partitions_by_topic[topic]
        return partitions is None or partition in partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Where to write; travels pickled to the executors."""

    urls: tuple[str, ...]
    topic: str | None  # None: each row names its own


def parse_read_options(given: Mapping[str, str], read: Read) -> ReadOptions:
    """Check every option; InvalidOptionError says in a sentence what to write instead.

    Names are taken in any case, since Spark hands them over in lower case.
    """
    _refuse_unknown(given, NAMES_BY_READ[read], read.value)
    values = Values(given)
    partitions_by_topic, topic_pattern = values.selection()
    options = ReadOptions(
        urls=values.urls(),
        partitions_by_topic=partitions_by_topic,
        topic_pattern=topic_pattern,
        starting=_starting(values, read),
        ending=_ending(values),
        starts_latest_without_match=values.word(
            "startingOffsetsByTimestampStrategy", ("error", "latest"), default="error"
        )
        == "latest",
        partition_count_min=values.count("minPartitions", 1),
        partition_records_max=values.count("maxRecordsPerPartition", INT64_MAX),
        fail_on_data_loss=values.boolean("failOnDataLoss", default=True),
        include_headers=values.boolean("includeHeaders", default=False),
        fetch_bytes_max=values.count(
            "fetchMaxBytes", FETCH_BYTES_DEFAULT, count_max=FETCH_BYTES_MAX
        ),
        coalesce_rows=values.count("coalesceRows", COALESCE_ROWS_DEFAULT),
        retry_count=values.count(
            "fetchOffset.numRetries", RETRY_COUNT_DEFAULT, 0, _RETRY_COUNT_MAX
        ),
        retry_interval_s=values.count(
            "fetchOffset.retryIntervalMs", RETRY_INTERVAL_MS_DEFAULT, 0, _RETRY_INTERVAL_MS_MAX
        )
        / 1000,
        filter_pushdown=values.boolean("filterPushdown", default=False),
        trigger_records_max=values.count_or_none("maxOffsetsPerTrigger"),
        trigger_records_min=values.count_or_none("minOffsetsPerTrigger"),
        trigger_delay_s_max=values.seconds("maxTriggerDelay", _TRIGGER_DELAY_S_DEFAULT),
        group_id=values.group("groupId"),
    )
    for bound in (options.starting, options.ending):
        _refuse_unselected(bound, options)
    return options


def parse_write_options(given: Mapping[str, str], columns: Mapping[str, str]) -> WriteOptions:
    """Check every option, and the columns that are to be written. InvalidOptionError.

    `columns`: each one's type, as Spark's simpleString.
    """
    _refuse_unknown(given, _WRITE_NAMES, "a write")
    _refuse_columns(columns)
    values = Values(given)
    if values.text("topic") == "":
        refuse("topic", "", "a topic's name")
    if values.text("topic") is None and "topic" not in columns:
        raise InvalidOptionError("name the topic to write to: option topic, or a column topic")
    return WriteOptions(urls=values.urls(), topic=values.text("topic"))


def _starting(values: Values, read: Read) -> Bound:
    words = _EARLIEST_WORD if read is Read.BATCH else _EARLIEST_WORD | _LATEST_WORD
    return (
        values.timestamp("startingTimestamp")
        or values.timestamps("startingOffsetsByTimestamp")
        or values.offsets("startingOffsets", words, _STARTING_DEFAULT_BY_READ[read])
    )


def _ending(values: Values) -> Bound:
    return (
        values.timestamp("endingTimestamp")
        or values.timestamps("endingOffsetsByTimestamp")
        or values.offsets("endingOffsets", _LATEST_WORD, LATEST)
    )


def _refuse_unknown(given: Iterable[str], names: Iterable[str], use: str) -> None:
    name_by_lower = {name.lower(): name for name in names}
    for name in sorted(given):
        if name.lower() not in name_by_lower:
            close = difflib.get_close_matches(name.lower(), name_by_lower, n=1)
            hint = f"did you mean {name_by_lower[close[0]]}?" if close else "take it away."
            listed = ", ".join(name_by_lower.values())
            raise InvalidOptionError(f'{use} has no option "{name}": {hint} Its options: {listed}')


def _refuse_columns(columns: Mapping[str, str]) -> None:
    if "value" not in columns:
        raise InvalidOptionError("a write needs a column value; there are " + ", ".join(columns))
    for name, column_type in columns.items():
        if name not in _TYPES_BY_COLUMN:
            reason = "; the key decides the partition" if name == "partition" else ""
            raise InvalidOptionError(
                f'column "{name}" cannot be written{reason}: '
                f"select {', '.join(_TYPES_BY_COLUMN)} or some of them first"
            )
        if column_type not in _TYPES_BY_COLUMN[name]:
            wanted = " or ".join(_TYPES_BY_COLUMN[name])
            raise InvalidOptionError(f'column "{name}" is {column_type}: cast it to {wanted}')


def _refuse_unselected(bound: Bound, options: ReadOptions) -> None:
    """JSON may only name what is read: anything else is a slip of the pen."""
    for topic, partition in sorted(bound.named()):
        if not options.selects(topic, partition):
            selections = ", ".join(SELECTION_NAMES)
            raise InvalidOptionError(
                f"{bound.option} names {topic}/{partition}, which none of {selections} selects"
            )
