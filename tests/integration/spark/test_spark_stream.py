"""Spark streams what is produced: where it starts, how far a batch goes, what it remembers."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tailrace.spark
from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker
from tests.support.spark.spark import (
    FLIGHT_COUNT,
    FLIGHTS,
    FLIGHTS_TOPIC,
    SPARK_MARKS,
    all_places,
    ends_of,
    places_of,
    produce_flights,
    stream,
)
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = SPARK_MARKS

WAIT_S_MAX = 60
OTHER_KEY_COUNT = 200  # enough for a record in each partition


def produce(broker: RunningBroker, topic: str, count: int) -> None:
    """So many records of a key each."""
    with Client(broker.url) as client:
        keys = [b"%d" % number for number in range(count)]
        client.produce_records(topic, keys, keys)


def start(events: "DataFrame", folder: Path, *, available_now: bool = True) -> "StreamingQuery":
    """On the checkpoint of the folder, into its files."""
    writer = events.writeStream.format("parquet").option("path", str(folder / "files"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    return (writer.trigger(availableNow=True) if available_now else writer).start()


def run(events: "DataFrame", folder: Path) -> list[int]:
    """Read what is there now; the rows of each batch."""
    query = start(events, folder)
    assert query.awaitTermination(WAIT_S_MAX)
    return [progress["numInputRows"] for progress in query.recentProgress]


def rows_in(spark: "SparkSession", folder: Path) -> list[Any]:
    return spark.read.parquet(str(folder / "files")).collect()


def offsets_in(folder: Path) -> list[dict[str, Any]]:
    """What Spark has in its log, batch by batch."""
    log = folder / "checkpoint" / "offsets"
    files = sorted(log.glob("[0-9]*"), key=lambda path: int(path.name))
    return [json.loads(file.read_text().splitlines()[2]) for file in files]


def test_a_stream_reads_all_by_batches_and_goes_on_where_it_was(
    spark: "SparkSession", flights_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    produce_flights(flights_broker, topic)
    limit = 1000
    events = stream(
        spark,
        flights_broker,
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=limit,
    )

    first = run(events, tmp_path)
    produce_flights(flights_broker, topic, FLIGHTS[:100])
    second = run(events, tmp_path)

    partition_count = len(ends_of(flights_broker, topic))
    assert sum(first) == FLIGHT_COUNT
    assert all(0 < rows <= limit + partition_count for rows in first)
    assert second == [100]
    batch_count = len(offsets_in(tmp_path))
    assert sum(run(events, tmp_path)) == 0
    assert len(offsets_in(tmp_path)) == batch_count
    assert places_of(rows_in(spark, tmp_path)) == all_places(ends_of(flights_broker, topic))
    logged = offsets_in(tmp_path)
    assert logged[-1] == {topic: {str(p): e for p, e in ends_of(flights_broker, topic).items()}}
    assert all(list(each[topic]) == sorted(each[topic], key=int) for each in logged)


def test_a_stream_from_the_latest_remembers_where_that_was(
    spark: "SparkSession", flights_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    produce(flights_broker, topic, OTHER_KEY_COUNT)
    events = stream(spark, flights_broker, subscribe=topic)

    assert run(events, tmp_path) == [0]
    produce(flights_broker, topic, 10)
    assert run(events, tmp_path) == [10]
    assert offsets_in(tmp_path)[0][topic] != offsets_in(tmp_path)[1][topic]


def test_the_lag_of_a_query_with_a_group_shows_among_the_groups(
    spark: "SparkSession", flights_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    produce(flights_broker, topic, OTHER_KEY_COUNT)
    events = stream(
        spark,
        flights_broker,
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=OTHER_KEY_COUNT // 2,
        groupId=f"spark:{topic}",
    )

    run(events, tmp_path)
    ends = ends_of(flights_broker, topic)
    produce(flights_broker, topic, 10)

    with Client(flights_broker.url) as client:
        group = client.group(f"spark:{topic}")
    assert (group.info.state, group.info.topics, group.info.lag) == ("spark", (topic,), 10)
    assert {partition.partition: partition.position for partition in group.partitions} == ends


def test_a_stream_starts_at_the_offsets_of_a_checkpoint_that_are_pasted(
    spark: "SparkSession", flights_broker: RunningBroker, tmp_path: Path
) -> None:
    ends = ends_of(flights_broker)
    pasted = {FLIGHTS_TOPIC: {str(partition): end // 2 for partition, end in ends.items()}}

    events = stream(
        spark, flights_broker, subscribe=FLIGHTS_TOPIC, startingOffsets=json.dumps(pasted)
    )

    assert run(events, tmp_path) == [sum(end - end // 2 for end in ends.values())]


def test_a_stream_starts_at_a_time(
    spark: "SparkSession", flights_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    times_ms = [1_764_000_000_000, 1_764_000_001_000, 1_764_000_002_000]
    with Client(flights_broker.url) as client:
        client.produce_records(
            topic, [b"key"] * 3, [b"1", b"2", b"3"], [1000 * time_ms for time_ms in times_ms]
        )

    events = stream(
        spark,
        flights_broker,
        subscribe=topic,
        startingTimestamp=times_ms[1],
        startingOffsetsByTimestampStrategy="latest",
    )

    # Where no record is so late the start is the latest: that goes to Spark's log first.
    assert run(events, tmp_path) == [0, 2]


def test_a_topic_that_a_pattern_finds_later_is_read_from_its_beginning(
    spark: "SparkSession", flights_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    events = stream(spark, flights_broker, subscribePattern=f"{topic}.*")

    query = start(events, tmp_path, available_now=False)
    try:
        wait_until(lambda: query.status["message"] == "Waiting for data to arrive")
        produce(flights_broker, f"{topic}-1", 5)
        wait_until(lambda: total_rows(query) == 5)
        produce(flights_broker, f"{topic}-2", 7)
        wait_until(lambda: total_rows(query) == 12)
    finally:
        query.stop()

    assert offsets_in(tmp_path)[-1].keys() == {f"{topic}-1", f"{topic}-2"}


def total_rows(query: "StreamingQuery") -> int:
    return sum(progress["numInputRows"] for progress in query.recentProgress)


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": 40}], ids=["alone", "and a limit"])
def test_all_that_is_available_now_is_read_however_few_records_that_are(
    spark: "SparkSession",
    flights_broker: RunningBroker,
    topic: str,
    tmp_path: Path,
    limit: dict[str, int],
) -> None:
    produce(flights_broker, topic, 5)
    events = stream(
        spark,
        flights_broker,
        subscribe=topic,
        startingOffsets="earliest",
        minOffsetsPerTrigger=20,
        **limit,
    )

    assert run(events, tmp_path) == [5]


def test_offsets_that_are_not_there_end_the_query_unless_loss_is_allowed(
    spark: "SparkSession", flights_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    produce(flights_broker, topic, OTHER_KEY_COUNT)
    beyond = {partition: end + 10 for partition, end in ends_of(flights_broker, topic).items()}
    options = {"subscribe": topic, "startingOffsets": json.dumps({topic: beyond})}

    with pytest.raises(Exception, match=r"DataLossError.*was read up to"):
        run(stream(spark, flights_broker, **options), tmp_path / "strict")
    allowed = stream(spark, flights_broker, **options, failOnDataLoss="false")
    assert run(allowed, tmp_path) == [0]
    produce(flights_broker, topic, 3)
    assert run(allowed, tmp_path) == [3]


def test_progress_is_reported_in_lines(
    spark: "SparkSession",
    flights_broker: RunningBroker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    events = stream(spark, flights_broker, subscribe=FLIGHTS_TOPIC, startingOffsets="earliest")
    other = start(events, tmp_path / "other")

    query = start(events, tmp_path)
    listener = tailrace.spark.watch(query)
    try:
        query.awaitTermination(WAIT_S_MAX)
        other.awaitTermination(WAIT_S_MAX)
        said = ""

        def has_reported() -> bool:
            nonlocal said
            said += capsys.readouterr().out
            return said.endswith("\n")

        wait_until(has_reported)
    finally:
        spark.streams.removeListener(listener)

    pattern = r"flights: batch 0, [\d,]+ rows/s, behind 0 events \(\d+\.\d s\)\n"
    assert re.fullmatch(pattern, said)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"endingOffsets": "latest"}, 'a streaming read has no option "endingoffsets"'),
        ({"startingOffsets": "now"}, "startingOffsets must be earliest or latest, or JSON"),
        ({"subscribe": "nosuch"}, 'topic "nosuch" does not exist'),
    ],
)
def test_what_a_stream_cannot_do_is_refused(
    spark: "SparkSession",
    flights_broker: RunningBroker,
    tmp_path: Path,
    options: dict[str, str],
    reason: str,
) -> None:
    options = {"subscribe": FLIGHTS_TOPIC, **options}

    with pytest.raises(Exception, match=re.escape(reason)):
        run(stream(spark, flights_broker, **options), tmp_path)


def test_a_stream_is_not_written_yet_but_by_its_batches(
    spark: "SparkSession", flights_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    events = stream(
        spark, flights_broker, subscribe=FLIGHTS_TOPIC, startingOffsets="earliest"
    ).select("key", "value")
    copy = {"url": flights_broker.url, "topic": topic}

    def write(batch: "DataFrame", _: int) -> None:
        batch.write.format("tailrace").options(**copy).mode("append").save()

    refused = events.writeStream.format("tailrace").options(**copy)
    refused = refused.option("checkpointLocation", str(tmp_path / "refused"))
    with pytest.raises(Exception, match="does not write streams yet: use foreachBatch"):
        refused.trigger(availableNow=True).start().awaitTermination(WAIT_S_MAX)
    by_batch = events.writeStream.foreachBatch(write)
    by_batch = by_batch.option("checkpointLocation", str(tmp_path / "batches"))
    assert by_batch.trigger(availableNow=True).start().awaitTermination(WAIT_S_MAX)
    assert sum(ends_of(flights_broker, topic).values()) == FLIGHT_COUNT
