"""Where a stream goes on whose topics were deleted and made again."""

from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tailrace.spark import source, stream_offsets
from tailrace.spark.offsets import Listing
from tailrace.spark.options import Read, parse_read_options
from tailrace.spark.source import TailraceStreamReader
from tailrace.values import PartitionOffsets


def listing(high_watermark: int | None) -> Listing:
    """Of topic t; None: it does not exist."""
    if high_watermark is None:
        return Listing([], ["t"])
    end = high_watermark
    return Listing([PartitionOffsets("t", 0, 0, 1, 0, 0, end, end, "open", (), leader=0)])


def test_a_topic_that_is_made_again_is_read_from_its_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_offsets, "OLDER_LISTING_S", 0.0)
    listings: Iterator[Listing]
    monkeypatch.setattr(source, "list_partitions", lambda *_, **__: next(listings))
    given = {"url": "http://a:9250", "subscribe": "t", "failOnDataLoss": "false"}
    reader = TailraceStreamReader(parse_read_options(given, Read.STREAM))

    listings = iter([listing(5), listing(5)])
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    listings = iter([listing(None)])
    deleted = reader.latestOffset(start, ReadAllAvailable())
    listings = iter([listing(3)])
    made_again = reader.latestOffset(deleted, ReadAllAvailable())

    assert (start, deleted) == ({"t": {"0": 5}}, {})
    assert made_again == {"t": {"0": 0}}
