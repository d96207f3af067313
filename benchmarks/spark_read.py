"""How many records does Spark read per CPU second, and what does a micro-batch cost?

A batch read of 5 million events of 100 bytes (with keys of some 7) into Spark's `noop` sink, on two
executor cores: four partitions, stored batches of 2,000. Counted is the CPU of Java, of Spark's
Python workers and of the driver together; the broker's comes beside it. The first read of a
session is a figure of its own; the others are the median of the three after it. Then a stream of
400 records a micro-batch, into `noop`, beside Spark's own `rate-micro-batch` of the same size.

Sketch of a million records, CPU s:

| step                                                                            | s    |
|---------------------------------------------------------------------------------|------|
| Python: 70 MB received, checksummed, inflated to 135 MB at 1.6 GB/s             | 0.11 |
| Python: columns checked in place, joined to 20,000 rows, 150 MB sent to Java    | 0.12 |
| Java: 150 MB received through a local socket, copied into Arrow vectors         | 0.12 |
| Java: a row at a time out of the vectors, through the plan into the sink        | 0.35 |
| sum                                                                             | 0.70 |

So 1.4 million records per CPU second, two thirds of it Java's. The first read costs some 8 s more:
Java compiles while it interprets, and each Python process imports pyspark. A micro-batch: two files
of Spark's log, 90 ms of waiting, and planning and four tasks, in both; what comes on top is four
tasks through Python workers, and two requests to the broker. Bound: Java's loop over rows.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from benchmarks.broker import DATA_DIR, broker_on_disk
from benchmarks.events import readings
from benchmarks.load import CLOCK_TICKS_PER_S, cpu_seconds
from benchmarks.parts import groups_of
from benchmarks.report import Row
from tailrace.local.broker import LocalBroker
from tailrace.spark.jobs.session import lean_spark_home
from tailrace.sync import Client

TOPIC = "bench"
STREAM_TOPIC = "ticks"
EVENT_BYTES = 100
EVENT_COUNT = 200_000
REPEAT_COUNT = 25
REQUEST_EVENT_COUNT = 8_000
RECORD_COUNT = EVENT_COUNT * REPEAT_COUNT
READ_COUNT = 3
PARTITION_COUNT = 4
BATCH_ROWS = 400
WARM_UP_BATCHES = 20
MEASURED_BATCHES = 60
POLL_S = 0.1
AIMS = {"records_per_cpu_s": 650_000}


class _Spent(NamedTuple):
    """Seconds: of the clock, of CPU in Java, and in all Python processes, this one included."""

    wall: float
    java: float
    python: float

    @property
    def cpu(self) -> float:
        return self.java + self.python


class _Process(NamedTuple):
    """CPU seconds of a process and of its children that have ended, in ticks of 10 ms."""

    parent: int
    name: str
    cpu: float


def run() -> Iterator[Row]:
    """Produce once, read several times, then stream."""
    with broker_on_disk() as broker:
        _fill(broker)
        with _spark() as spark:
            reads = _measure_reads(spark, broker)
            ticks = spark.readStream.format("tailrace").option("url", broker.url)
            ticks = ticks.option("subscribe", STREAM_TOPIC).option("startingOffsets", "earliest")
            batch = _measure_batches(ticks.option("maxOffsetsPerTrigger", BATCH_ROWS).load())
            rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", BATCH_ROWS)
            rate_batch = _measure_batches(rate.option("numPartitions", PARTITION_COUNT).load())
    figures = reads | {
        "micro_batch_ms": batch.wall * 1000,
        "micro_batch_cpu_ms": batch.cpu * 1000,
        "micro_batch_python_cpu_ms": batch.python * 1000,
        "rate_micro_batch_ms": rate_batch.wall * 1000,
        "rate_micro_batch_cpu_ms": rate_batch.cpu * 1000,
    }
    asked = "Spark batch read of events of 100 B on two cores, and a micro-batch of 400"
    yield Row("spark_read", asked, figures, AIMS)


def _fill(broker: LocalBroker) -> None:
    events = readings(EVENT_COUNT, EVENT_BYTES)
    with Client(broker.url) as client:
        for topic, repeat_count in ((TOPIC, REPEAT_COUNT), (STREAM_TOPIC, 1)):
            client.create_topic(topic, partitions_per_range=PARTITION_COUNT)
            for _ in range(repeat_count):
                for group in groups_of(events, REQUEST_EVENT_COUNT):
                    keys = [event.key.encode() for event in group]
                    client.produce_records(topic, keys, [event.value for event in group])


@contextmanager
def _spark() -> Iterator[SparkSession]:
    """Two executor cores, and all else as Spark has it."""
    with lean_spark_home() as home:
        os.environ |= {"SPARK_HOME": home, "PYSPARK_PYTHON": sys.executable}
        session = SparkSession.builder.master("local[2]").appName("bench").getOrCreate()
        try:
            yield session
        finally:
            session.stop()


def _measure_reads(spark: SparkSession, broker: LocalBroker) -> dict[str, float]:
    def read() -> None:
        frame = spark.read.format("tailrace").option("url", broker.url)
        frame.option("subscribe", TOPIC).load().write.format("noop").mode("overwrite").save()

    first = _spent_on(read)  # and Java compiles
    spents, broker_cpu_s = [], []
    for _ in range(READ_COUNT):
        broker_start_s = cpu_seconds(broker.pid)
        spents.append(_spent_on(read))
        broker_cpu_s.append(cpu_seconds(broker.pid) - broker_start_s)
    middle = sorted(spents, key=lambda spent: spent.cpu)[READ_COUNT // 2]
    return {
        "first_records_per_cpu_s": RECORD_COUNT / first.cpu,
        "records_per_cpu_s": RECORD_COUNT / middle.cpu,
        "records_per_s": RECORD_COUNT / middle.wall,
        "java_cpu_us_per_record": middle.java / RECORD_COUNT * 1e6,
        "python_cpu_us_per_record": middle.python / RECORD_COUNT * 1e6,
        "broker_cpu_us_per_record": median(broker_cpu_s) / RECORD_COUNT * 1e6,
    }


def _measure_batches(rows: DataFrame) -> _Spent:
    """What one micro-batch of a stream takes, on average."""
    with tempfile.TemporaryDirectory(dir=DATA_DIR) as checkpoint:
        writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.start()
        try:
            commits = Path(checkpoint, "commits")
            first = _wait_for_batch(commits, WARM_UP_BATCHES)
            before = _spent_so_far()
            last = _wait_for_batch(commits, first + MEASURED_BATCHES)
            after = _spent_so_far()
        finally:
            query.stop()
    return _Spent(
        *[(end - start) / (last - first) for start, end in zip(before, after, strict=True)]
    )


def _wait_for_batch(commits: Path, batch: int) -> int:
    """The number of batches that are done, once those are enough."""
    done = 0
    while done < batch:
        time.sleep(POLL_S)
        done = max((int(path.name) + 1 for path in commits.glob("[0-9]*")), default=0)
    return done


def _spent_on(work: Callable[[], None]) -> _Spent:
    before = _spent_so_far()
    work()
    after = _spent_so_far()
    return _Spent(*[end - start for start, end in zip(before, after, strict=True)])


def _spent_so_far() -> _Spent:
    """This process and all below it; what has ended counts at its parent."""
    processes = dict(_processes())
    family = {os.getpid()}
    while grown := {pid for pid, process in processes.items() if process.parent in family} - family:
        family |= grown
    # Java's children that end are no Python but programs like chmod, which Hadoop starts.
    java = sum(processes[pid].cpu for pid in family if processes[pid].name == "java")
    both = sum(processes[pid].cpu for pid in family)
    return _Spent(time.perf_counter(), java, both - java)


def _processes() -> Iterator[tuple[int, _Process]]:
    """All of the machine, by process id."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
            # ppid, and utime, stime, cutime, cstime: fields 4 and 14 to 17 of proc(5).
            cpu_s = sum(map(int, fields[11:15])) / CLOCK_TICKS_PER_S
            yield int(path.parent.name), _Process(int(fields[1]), name, cpu_s)
