"""Reads of a whole topic, without a group: records, or a table of Arrow, pandas or Polars.

    client.read("flights", last=10_000).to_pandas()
    client.read("flights", start=datetime(2026, 11, 21, tzinfo=UTC)).to_arrow()

Which offsets of which partitions is decided when a reading begins (`plan`, pure), so that live
producers do not prolong it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from heapq import nlargest
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, Unpack

from tailrace.calls import records, topics
from tailrace.calls.exchange import Caller, blocking
from tailrace.errors import OffsetOutOfRangeError, TailraceError, UnexpectedAnswerError
from tailrace.extras import require, require_arrow
from tailrace.protocol.records_ndjson import Record, decode_lines
from tailrace.values import Fetched, PartitionOffsets

if TYPE_CHECKING:
    import pyarrow as pa


PAGE_BYTES = 4 * 1024 * 1024
PAGE_RECORDS = 10_000
_offsets = blocking(topics.offsets)
_read_batches = blocking(records.read_batches)
_read_lines = blocking(records.read_lines)
_EPOCH = datetime.fromtimestamp(0, UTC)

# An offset in every partition, one for each of some, a time, or an end of what a partition holds.
Bound = int | Mapping[int, int] | datetime | Literal["earliest", "latest"]


class ReadingParameters(TypedDict, total=False):
    """What is read; without any: all that the topic holds.

    `start`, `end` (exclusive): an offset in every partition, -n is n before the end; "earliest" or
    "latest"; offsets by partition (one that is left out is read from its beginning, to its end); or
    a time with a zone: from the first record that is not older, up to that of `end`. What a
    partition does not hold, or not any more when it is its turn, is left out.
    `last`: in place of these; of the last so many of each partition the so many newest by their
    time, oldest first.
    `partitions`: these only. `include_headers`: with a column of them.
    """

    start: Bound | None
    end: Bound | None
    last: int | None
    partitions: Collection[int] | None
    include_headers: bool


class Stretch(NamedTuple):
    """Offsets [start, end) of a partition."""

    partition: int
    start: int
    end: int


# By partition: the first offset that is not older than a bound's time; None: it has none.
OffsetsOfTime = Mapping[int, int | None]


def plan(
    listing: Iterable[PartitionOffsets],
    start: Bound | None,
    end: Bound | None,
    *,
    starts_of_time: OffsetsOfTime,
    ends_of_time: OffsetsOfTime,
) -> list[Stretch]:
    """What there is to read of each partition. PartitionDamagedError."""
    stretches = []
    for each in listing:
        readable = each.readable()
        first = _offset(start, each.partition, readable, starts_of_time, readable.start)
        last = _offset(end, each.partition, readable, ends_of_time, readable.stop)
        stretches.append(Stretch(each.partition, first, max(first, last)))
    return stretches


class Reading:
    """Records of a topic; each use reads them again. ValueError: parameters that say nothing.

    Partition by partition in the order of their offsets, but with `last` in that of their times.
    What the broker refuses, and a damaged partition, are raised when it is used.
    """

    def __init__(self, client: Caller, topic: str, **parameters: Unpack[ReadingParameters]) -> None:
        """Nothing is asked yet."""
        self._client = client
        self._topic = topic
        self._start = parameters.get("start")
        self._end = parameters.get("end")
        self._last = parameters.get("last")
        partitions = parameters.get("partitions")
        self._partitions = None if partitions is None else frozenset(partitions)
        self._include_headers = parameters.get("include_headers", False)
        if self._last is not None and (self._start is not None or self._end is not None):
            raise ValueError("last excludes start and end: give one or the others")
        if self._last is not None and self._last < 1:
            raise ValueError(f"last is {self._last}; it is a number of records, 1 or more")
        _check_bound("start", self._start)
        _check_bound("end", self._end)

    def __iter__(self) -> Iterator[Record]:
        """One by one; needs no extra. With `last` they are held in memory first."""
        records = (record for stretch in self._stretches() for record in self._records(stretch))
        if self._last is None:
            return records
        newest = nlargest(self._last, records, key=_place_in_time)
        return iter(newest[::-1])

    def batches(self) -> Iterator["pa.RecordBatch"]:
        """Arrow record batches, as stored (columns: `tailrace.arrow.batches`); extra `arrow`."""
        require_arrow("reading as Arrow")
        if self._last is None:
            return self._stored_batches()
        return iter(self.to_arrow().to_batches())

    def to_arrow(self) -> "pa.Table":
        """A table of all records (columns: `tailrace.arrow.batches`); extra `arrow`."""
        require_arrow("to_arrow()")
        import pyarrow as pa

        from tailrace.arrow.batches import SCHEMA, SCHEMA_WITH_HEADERS

        schema = SCHEMA_WITH_HEADERS if self._include_headers else SCHEMA
        table = pa.Table.from_batches(self._stored_batches(), schema)
        return table if self._last is None else _newest(table, self._last)

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with the columns of `to_arrow`; values are bytes."""
        require("pandas", purpose="to_pandas()")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """A `polars.DataFrame` with the columns of `to_arrow`; values are bytes."""
        require("polars", purpose="to_polars()")
        import polars  # type: ignore[import-not-found, unused-ignore]

        return polars.from_arrow(self.to_arrow())

    def _stretches(self) -> list[Stretch]:
        """What there is to read now."""
        starts_of_time = self._offsets_of_time(self._start)
        ends_of_time = self._offsets_of_time(self._end)
        listing = _offsets(self._client, [self._topic])  # last: no time's offset is behind its ends
        return plan(
            self._chosen(listing),
            self._start if self._last is None else -self._last,
            self._end,
            starts_of_time=starts_of_time,
            ends_of_time=ends_of_time,
        )

    def _offsets_of_time(self, bound: Bound | None) -> OffsetsOfTime:
        if not isinstance(bound, datetime):
            return {}
        time_us = max(0, (bound - _EPOCH) // timedelta(microseconds=1))
        listing = _offsets(self._client, [self._topic], time_us)
        return {each.partition: each.timestamp_offset for each in listing}

    def _chosen(self, listing: Sequence[PartitionOffsets]) -> Sequence[PartitionOffsets]:
        if self._partitions is None:
            return listing
        unknown = self._partitions - {each.partition for each in listing}
        if unknown:
            raise TailraceError(
                f'topic "{self._topic}" has no partition {min(unknown)}, but 0 to '
                f"{len(listing) - 1}: give some of these as partitions"
            )
        return [each for each in listing if each.partition in self._partitions]

    def _records(self, stretch: Stretch) -> Iterator[Record]:
        position = stretch.start
        while position < stretch.end:
            count = min(PAGE_RECORDS, stretch.end - position)
            try:
                page = _read_lines(
                    self._client, self._topic, stretch.partition, position, max_records=count
                )
            except OffsetOutOfRangeError as error:
                position = _behind_removed(error, position)
                continue
            yield from decode_lines(page.body, self._topic)
            position = _after(page, stretch, position)

    def _stored_batches(self) -> Iterator["pa.RecordBatch"]:
        from tailrace.arrow.batches import decode_batches

        for stretch in self._stretches():
            position = stretch.start
            while position < stretch.end:
                try:
                    page = _read_batches(
                        self._client, self._topic, stretch.partition, position, max_bytes=PAGE_BYTES
                    )
                except OffsetOutOfRangeError as error:
                    position = _behind_removed(error, position)
                    continue
                yield from decode_batches(
                    page.body,
                    topic=self._topic,
                    start=position,
                    end=stretch.end,
                    include_headers=self._include_headers,
                )
                position = _after(page, stretch, position)


def _check_bound(name: str, bound: object) -> None:
    if isinstance(bound, datetime) and bound.tzinfo is None:
        raise ValueError(f"{name} is a time without a zone: give it one, like tzinfo=UTC")
    is_word = isinstance(bound, str) and bound in ("earliest", "latest")
    if not is_word and not isinstance(bound, int | Mapping | datetime | None):
        raise ValueError(
            f'{name} is {bound!r}; give an offset, -n, "earliest", "latest", a datetime with a '
            "zone, or offsets by partition"
        )


def _offset(
    bound: Bound | None,
    partition: int,
    readable: range,
    offsets_of_time: OffsetsOfTime,
    default: int,
) -> int:
    """What a bound means in a partition, inside of what can be read."""
    if isinstance(bound, datetime):
        timestamp_offset = offsets_of_time.get(partition)
        offset = readable.stop if timestamp_offset is None else timestamp_offset
    elif isinstance(bound, str):
        offset = readable.start if bound == "earliest" else readable.stop
    elif isinstance(bound, int):
        offset = bound if bound >= 0 else readable.stop + bound
    else:
        offset = default if bound is None else bound.get(partition, default)
    return min(max(offset, readable.start), readable.stop)


def _after(page: Fetched, stretch: Stretch, position: int) -> int:
    """Where to go on; UnexpectedAnswerError when that is nowhere."""
    if page.next_offset <= position:
        raise UnexpectedAnswerError(
            f"partition {stretch.partition} gave nothing from offset {position} on, below "
            f"{stretch.end}, which can be read"
        )
    return page.next_offset


def _behind_removed(error: OffsetOutOfRangeError, position: int) -> int:
    """Where to go on when retention has removed what was to come; raises any other error."""
    if error.log_start <= position:
        raise error
    return error.log_start


def _place_in_time(record: Record) -> tuple[int, int, int]:
    return record.timestamp_us, record.partition, record.offset


def _newest(table: "pa.Table", count: int) -> "pa.Table":
    """The last `count` rows by their time, oldest first."""
    from pyarrow import compute

    order = [(name, "ascending") for name in ("timestamp", "partition", "offset")]
    return table.take(compute.sort_indices(table, order)[-count:])
