"""The parts of a stream and of its tasks that need a broker, but no Java."""

import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec
import pytest

from tailrace.errors import ConnectionFailedError, TailraceError
from tailrace.spark.offsets import OffsetRange
from tailrace.spark.options import Read, ReadOptions, parse_read_options
from tailrace.spark.task import DataLossError, read_range
from tailrace.sync import Client
from tailrace_broker.core.ring.arithmetic import TOKEN_END, TOKEN_MIN
from tailrace_broker.core.ring.topics import topic_of
from tailrace_broker.model.topic import Partition
from tests.support.broker.fixtures import RunningBroker
from tests.support.ring.ring_disk import put_topics, ring_state_on
from tests.support.spark.spark import SPARK_MARKS, ends_of

if TYPE_CHECKING:
    from tailrace.spark.source import TailraceStreamReader

pytestmark = SPARK_MARKS

Answered = TypeVar("Answered")
Planners: TypeAlias = "Callable[..., TailraceStreamReader]"

WAIT_S_MAX = 30
RETRIES = {"fetchOffset.numRetries": "200", "fetchOffset.retryIntervalMs": "20"}
HASTE = {"fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "1"}


def options_of(broker: RunningBroker, topic: str, **given: str) -> ReadOptions:
    return parse_read_options({"url": broker.url, "subscribe": topic, **given}, Read.STREAM)


@pytest.fixture
def planners() -> "Iterator[Planners]":
    """Makes the readers of a test."""
    with ExitStack() as stack:

        def planner(broker: RunningBroker, topic: str, **given: str) -> "TailraceStreamReader":
            from tailrace.spark.source import TailraceStreamReader

            # As Spark gets it to the process that plans.
            pickled = pickle.dumps(TailraceStreamReader(options_of(broker, topic, **given)))
            reader: TailraceStreamReader = pickle.loads(pickled)
            stack.callback(reader.stop)
            return reader

        yield planner


def produce(broker: RunningBroker, topic: str, count: int) -> None:
    """To one partition."""
    with Client(broker.url) as client:
        client.produce_records(topic, [b"key"] * count, [b"%d" % number for number in range(count)])


def sum_of(offsets: dict[str, dict[str, int]]) -> int:
    return sum(offset for by_partition in offsets.values() for offset in by_partition.values())


def ask_while_killed(broker: RunningBroker, question: Callable[[], Answered]) -> Answered:
    """The answer of a broker that is not there when it is asked, and comes back."""
    broker.kill()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(question)
        broker.restart()  # here: it would die with the thread that starts it
        return answer.result(WAIT_S_MAX)


def test_a_plan_outlives_a_broker_that_is_killed(
    broker: RunningBroker, topic: str, planners: Planners
) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    produce(broker, topic, 5)
    reader = planners(broker, topic, startingOffsets="earliest", **RETRIES)
    start = reader.initialOffset()

    end = ask_while_killed(broker, lambda: reader.latestOffset(start, ReadAllAvailable()))
    tasks = ask_while_killed(broker, lambda: reader.partitions(start, end))

    assert sum_of(end) == 5
    assert [task.offsets.record_count for task in tasks] == [5]  # type: ignore[attr-defined]


def test_a_task_outlives_a_broker_that_is_killed_and_goes_on_where_it_was(
    broker: RunningBroker, topic: str
) -> None:
    for _ in range(20):
        produce(broker, topic, 10)
    (partition,) = [partition for partition, end in ends_of(broker, topic).items() if end]
    options = options_of(broker, topic, fetchMaxBytes="1", coalesceRows="10", **RETRIES)

    batches = read_range(OffsetRange(topic, partition, 0, 200), options)
    rows = next(batches)["offset"].to_pylist()
    rest = ask_while_killed(broker, lambda: list(batches))
    rows += [offset for batch in rest for offset in batch["offset"].to_pylist()]

    assert rows == list(range(200))


def test_progress_that_cannot_be_published_ends_nothing(
    broker: RunningBroker, topic: str, planners: Planners, caplog: pytest.LogCaptureFixture
) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    produce(broker, topic, 5)
    with Client(broker.url) as client:
        client.register("c1", "taken", [topic])  # consumers, which publish nothing
    reader = planners(broker, topic, startingOffsets="earliest", groupId="taken")

    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert reader.latestOffset(end, ReadAllAvailable()) is end

    assert sum_of(end) == 5
    (warning,) = caplog.messages
    assert 'progress of group "taken" is not published' in warning


def test_what_stays_away_ends_plan_and_task(
    broker: RunningBroker, topic: str, planners: Planners
) -> None:
    produce(broker, topic, 5)
    reader = planners(broker, topic, startingOffsets="earliest", **HASTE)
    reader.initialOffset()
    broker.kill()

    with pytest.raises(ConnectionFailedError):
        reader.initialOffset()
    with pytest.raises(ConnectionFailedError):
        list(read_range(OffsetRange(topic, 0, 0, 5), options_of(broker, topic, **HASTE)))


def test_a_second_broker_answers_for_one_that_is_not_there(
    flights_broker: RunningBroker, topic: str, planners: Planners
) -> None:
    produce(flights_broker, topic, 5)
    nowhere = f"http://127.0.0.1:{flights_broker.port + 9}"

    reader = planners(
        flights_broker,
        topic,
        url=f"{nowhere},{flights_broker.url}",
        startingOffsets="earliest",
        **HASTE,
    )

    assert reader.initialOffset().keys() == {topic}


def test_a_batch_waits_for_so_many_records_but_not_for_ever(
    flights_broker: RunningBroker, topic: str, planners: Planners
) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMinRows

    produce(flights_broker, topic, 5)
    patient = planners(flights_broker, topic, startingOffsets="earliest", minOffsetsPerTrigger="20")
    hasty = planners(
        flights_broker,
        topic,
        startingOffsets="earliest",
        minOffsetsPerTrigger="20",
        maxTriggerDelay="0s",
    )
    limit = patient.getDefaultReadLimit()
    start = patient.initialOffset()

    first = patient.latestOffset(start, limit)
    assert hasty.latestOffset(start, limit) == first
    produce(flights_broker, topic, 19)

    assert limit == ReadMinRows(20)
    assert sum_of(first) == 5, "nothing was read before: no reason to wait"
    assert patient.latestOffset(first, limit) is first
    assert sum_of(patient.latestOffset(first, ReadAllAvailable())) == 24
    assert sum_of(hasty.latestOffset(first, limit)) == 24
    produce(flights_broker, topic, 1)
    assert sum_of(patient.latestOffset(first, limit)) == 25


def test_what_is_available_now_is_what_there_was_at_the_start(
    flights_broker: RunningBroker, topic: str, planners: Planners
) -> None:
    from pyspark.sql.streaming.datasource import ReadMaxRows

    produce(flights_broker, topic, 5)
    reader = planners(
        flights_broker,
        topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger="3",
        minOffsetsPerTrigger="100",
    )
    limit = reader.getDefaultReadLimit()

    reader.prepareForTriggerAvailableNow()
    produce(flights_broker, topic, 50)
    first = reader.latestOffset(reader.initialOffset(), limit)
    second = reader.latestOffset(first, limit)

    assert limit == ReadMaxRows(3)
    assert (sum_of(first), sum_of(second)) == (3, 5)
    assert reader.latestOffset(second, limit) is second
    assert reader.reportLatestOffset() == second


def test_a_query_from_the_latest_begins_with_a_batch_that_says_where_that_is(
    flights_broker: RunningBroker, topic: str, planners: Planners
) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    produce(flights_broker, topic, 5)
    reader = planners(flights_broker, topic)

    assert reader.initialOffset() == {}
    first = reader.latestOffset({}, ReadAllAvailable())
    produce(flights_broker, topic, 2)

    assert sum_of(first) == 5
    assert reader.partitions({}, first) == []
    assert sum_of(reader.latestOffset(first, ReadAllAvailable())) == 7


def test_a_query_waits_for_its_first_topic_and_reads_it_from_its_beginning(
    flights_broker: RunningBroker, topic: str, planners: Planners
) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    reader = planners(flights_broker, topic, failOnDataLoss="false")

    assert reader.reportLatestOffset() is None
    assert reader.latestOffset({}, ReadAllAvailable()) == {}
    produce(flights_broker, topic, 5)
    assert sum_of(reader.latestOffset({}, ReadAllAvailable())) == 0


def test_a_topic_that_is_deleted_ends_the_query_unless_loss_is_allowed(
    flights_broker: RunningBroker, topic: str, planners: Planners
) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    produce(flights_broker, topic, 5)
    strict, lenient = (
        planners(flights_broker, topic, startingOffsets="earliest", failOnDataLoss=strictness)
        for strictness in ("true", "false")
    )
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    with Client(flights_broker.url) as client:
        client.delete_topic(topic)

    with pytest.raises(DataLossError, match=r"/\d is gone, and was read up to \d"):
        strict.latestOffset(end, ReadAllAvailable())
    with pytest.raises(DataLossError, match="is gone before it was read"):
        strict.partitions(start, end)
    assert lenient.latestOffset(end, ReadAllAvailable()) == {}
    assert lenient.partitions(start, end) == []


@pytest.mark.parametrize(
    ("offsets", "loss"),
    [(range(3, 9), "ends at 5, not 9"), (range(6, 9), "out of range")],
)
def test_a_task_whose_records_are_not_there_fails_unless_loss_is_allowed(
    flights_broker: RunningBroker, topic: str, offsets: range, loss: str
) -> None:
    produce(flights_broker, topic, 5)
    (partition,) = [partition for partition, end in ends_of(flights_broker, topic).items() if end]
    wanted = OffsetRange(topic, partition, offsets.start, offsets.stop)

    with pytest.raises(DataLossError, match=loss):
        list(read_range(wanted, options_of(flights_broker, topic)))
    left = list(read_range(wanted, options_of(flights_broker, topic, failOnDataLoss="false")))

    assert [offset for batch in left for offset in batch["offset"].to_pylist()] == [
        offset for offset in offsets if offset < 5
    ]


def test_a_pushed_condition_is_still_left_to_spark(
    flights_broker: RunningBroker, topic: str
) -> None:
    from pyspark.sql.datasource import EqualTo

    from tailrace.spark.source import NarrowingReader

    produce(flights_broker, topic, 5)
    options = parse_read_options({"url": flights_broker.url, "subscribe": topic}, Read.BATCH)
    reader = NarrowingReader(options)
    condition = EqualTo(("offset",), 3)

    assert list(reader.pushFilters([condition])) == [condition]
    assert [task.offsets.start for task in reader.partitions()] == [3]  # type: ignore[attr-defined]


def test_an_overwrite_is_refused(flights_broker: RunningBroker, topic: str) -> None:
    from pyspark.sql.types import StructType

    from tailrace.spark.source import TailraceDataSource

    source = TailraceDataSource({"url": flights_broker.url, "topic": topic})

    with pytest.raises(TailraceError, match='cannot be overwritten: write with mode\\("append"\\)'):
        source.writer(StructType().add("value", "string"), overwrite=True)


def split(broker: RunningBroker, *, sealed_end: int) -> None:
    """What a step does to the broker's only topic: 0 is sealed, 1 and 2 have half its keys each."""
    broker.stop()
    state = ring_state_on(broker.data_dir)
    ((_, created),) = state.topics.items()
    topic = topic_of(state, created)
    (parent,) = topic.partitions
    sealed = msgspec.structs.replace(parent, sealed_end=sealed_end, children=(1, 2))
    high, low = (
        Partition(
            partition,
            range_id=partition,
            epoch=parent.epoch + 1,
            token_start=token_start,
            token_end=token_end,
            first_offset=sealed_end,
            parents=(0,),
        )
        for partition, token_start, token_end in ((1, 0, TOKEN_END), (2, TOKEN_MIN, 0))
    )
    partitions = (sealed, high, low)
    put_topics(broker.data_dir, msgspec.structs.replace(topic, partitions=partitions))
    broker.restart()


def test_a_key_keeps_its_order_over_a_step_of_the_ring(
    broker: RunningBroker, topic: str, planners: Planners
) -> None:
    from pyspark.sql.streaming.datasource import ReadMaxRows

    with Client(broker.url) as client:
        client.create_topic(topic, partitions_per_range=1)
    keys = [b"%d" % (number % 7) for number in range(100)]
    values = [b"%d" % number for number in range(100)]
    for part in (slice(0, 40), slice(40, 100)):
        with Client(broker.url) as client:
            client.produce_records(topic, keys[part], values[part])
        if part.start == 0:
            split(broker, sealed_end=40)
    reader = planners(broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger="15")

    read: list[tuple[bytes, bytes]] = []
    batches = []
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    while (end := reader.latestOffset(start, ReadMaxRows(15))) is not start:
        for task in reader.partitions(start, end):
            for batch in reader.read(task):
                read += zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True)
        batches.append(end)
        start = end

    assert [len(end[topic]) for end in batches[:3]] == [1, 1, 1], "the parent first, alone"
    assert batches[2][topic] == {"0": 40}
    assert batches[-1][topic].keys() == {"0", "1", "2"}
    assert len(read) == 100
    for key in set(keys):
        assert [v for k, v in read if k == key] == [
            v for k, v in zip(keys, values, strict=True) if k == key
        ]
